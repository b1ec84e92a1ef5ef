//! The tables of `setu top`.

use super::table::{nodes, painted_state, priced_by, table};
use super::{BOLD, clean, paint, span};
use crate::cli::summary::{Held, Summary, total};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The summary as tables.
pub fn top(summary: &Summary, now: Timestamp, width: Option<usize>) -> String {
    let mut text = match &summary.pools {
        None => "NodeClaims may not be read.\n".to_owned(),
        Some(pools) if pools.is_empty() => "No node is held.\n".to_owned(),
        Some(pools) => held_nodes(pools, width),
    };
    if summary.slowest.is_empty() {
        text.push_str("\nNo gang waits for its nodes.\n");
    } else {
        text.push_str(&slowest(summary, now, width));
    }
    if summary.queued > 0 {
        text.push_str(&longest_queued(summary, now, width));
    }
    text
}

/// The nodes of each NodePool, and of all. The column UNKNOWN is there only if it is needed.
fn held_nodes(pools: &BTreeMap<String, Held>, width: Option<usize>) -> String {
    let all = total(pools);
    let has_unknown = all.unknown > 0;
    let mut head = vec!["NODEPOOL", "NODES", "RUNNING", "COMING", "IDLE", "WARM", "WASTED"];
    head.extend(has_unknown.then_some("UNKNOWN"));
    head.extend(["UNUSED TIME", "PER HOUR"]);
    let mut rows: Vec<Vec<String>> =
        pools.iter().map(|(pool, held)| cells(&clean(pool), held, has_unknown)).collect();
    if pools.len() > 1 {
        rows.push(cells("all", &all, has_unknown));
    }
    let mut text = table(&head, rows.into_iter(), width);
    let by = priced_by(pools.values().flat_map(|held| held.priced_by.iter().copied()));
    text.extend(by.map(|line| format!("\n{line}.\n")));
    if has_unknown {
        text.push_str(
            "\nUNKNOWN nodes may be in use: the journal of their gang, their ProvisioningRequest or their Node cannot be read.\n",
        );
    }
    text
}

fn slowest(summary: &Summary, now: Timestamp, width: Option<usize>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "\n{}", paint(BOLD, "Waiting longest"));
    let head = ["WORKLOAD", "STATE", "NODES", "ATTEMPT", "WAITING", "WHY"];
    let rows = summary.slowest.iter().map(|report| {
        let gang = report.gang.as_ref();
        vec![
            format!("{}/{}", clean(&report.namespace), clean(&report.workload)),
            painted_state(report),
            nodes(report),
            gang.map_or_else(|| "-".to_owned(), |g| g.attempt.to_string()),
            report.waiting(now).map(span).unwrap_or_default(),
            clean(&report.why),
        ]
    });
    text + &table(&head, rows, width)
}

fn longest_queued(summary: &Summary, now: Timestamp, width: Option<usize>) -> String {
    let title = format!("Waiting for quota: {}", summary.queued);
    let head = ["WORKLOAD", "QUEUE", "CLUSTERQUEUE", "WAITING", "WHY"];
    let rows = summary.longest_queued.iter().map(|report| {
        vec![
            format!("{}/{}", clean(&report.namespace), clean(&report.workload)),
            clean(&report.queue),
            clean(&report.cluster_queue),
            span(now.duration_since(report.created)),
            clean(&report.why),
        ]
    });
    format!("\n{}\n{}", paint(BOLD, &title), table(&head, rows, width))
}

/// The hourly cost of nodes, with the number of nodes whose price is unknown.
fn cost(held: &Held) -> String {
    let known: Vec<String> = held.cost_per_hour.iter().map(|money| money.to_string()).collect();
    let known = known.join(" + ");
    match (known.is_empty(), held.unpriced) {
        (true, _) => "unknown".to_owned(),
        (_, 0) => known,
        (_, unpriced) => format!("{known} and {unpriced} unknown"),
    }
}

fn cells(name: &str, held: &Held, has_unknown: bool) -> Vec<String> {
    let counts = [held.nodes, held.running, held.coming, held.idle, held.warm, held.wasted];
    let unused = span(SignedDuration::from_secs(held.unused_seconds));
    std::iter::once(name.to_owned())
        .chain(counts.into_iter().chain(has_unknown.then_some(held.unknown)).map(|n| n.to_string()))
        .chain([unused, cost(held)])
        .collect()
}
