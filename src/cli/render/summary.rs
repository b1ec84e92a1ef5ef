//! `setu top`: what gangs hold and waste, by NodePool, and which gangs wait longest.

use super::table::{nodes, painted_state, priced_by, table};
use super::{BOLD, clean, paint, span};
use crate::api::NodeClaim;
use crate::api::amount::Sums;
use crate::cli::cluster::ClusterObjects;
use crate::cli::known::{PricedBy, PricesOfCheck};
use crate::cli::report::GangReport;
use crate::cli::workload_phase::WorkloadPhase;
use crate::gang::report::explain::{SlotPhase, SlotView};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The nodes that are held, and the gangs that wait.
#[derive(Serialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// By NodePool; empty if NodeClaims may not be read.
    pub pools: BTreeMap<String, Held>,
    /// Gangs that wait with quota reserved, longest first.
    pub slowest: Vec<GangReport>,
    /// Number of gangs that wait for quota.
    pub queued: usize,
    /// Gangs that wait for quota, oldest first.
    pub longest_queued: Vec<GangReport>,
}

/// Nodes that Setu made, by their current use.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// All of them.
    pub nodes: usize,
    /// Ready, with an admitted gang.
    pub running: usize,
    /// Not ready yet.
    pub coming: usize,
    /// Ready, and their gang does not run yet.
    pub idle: usize,
    /// Kept for the next gang of the same LocalQueue.
    pub warm: usize,
    /// Of no use to any gang: being deleted, or left over.
    pub wasted: usize,
    /// Total hourly cost of the nodes with a known price, by currency.
    pub cost_per_hour: Sums,
    /// Where the prices come from.
    pub priced_by: BTreeSet<PricedBy>,
    /// Number of nodes with an unknown price.
    pub unpriced: usize,
    /// Total unused time in seconds: of idle and warm nodes since they became so; of wasted nodes since their deletion
    /// began, or since their creation if they are left over.
    pub unused_seconds: i64,
}

/// Summarizes objects. `most` limits the lists of gangs.
pub fn summary(objects: &ClusterObjects, gangs: Vec<GangReport>, most: usize) -> Summary {
    let mut pools: BTreeMap<String, Held> = BTreeMap::new();
    let slots: BTreeMap<&str, (&GangReport, &SlotView)> = gangs
        .iter()
        .flat_map(|report| report.gang.iter().flat_map(move |g| g.nodes.iter().map(move |n| (report, n))))
        .map(|(report, slot)| (slot.claim.as_str(), (report, slot)))
        .collect();
    let mut prices: BTreeMap<&str, PricesOfCheck> = BTreeMap::new();
    for claim in objects.claims.iter().flatten() {
        let check = claim.annotation(names::CHECK);
        let prices = prices.entry(check).or_insert_with(|| objects.prices_of(check));
        let held = pools.entry(claim.label(names::NODEPOOL).to_owned()).or_default();
        count(held, claim, slots.get(claim.name_any().as_str()).copied(), objects.now);
        price(held, claim, prices);
    }
    let (mut queued, gangs): (Vec<GangReport>, Vec<GangReport>) =
        gangs.into_iter().partition(|gang| gang.workload_phase == WorkloadPhase::Queued);
    queued.sort_by_key(|gang| gang.created);
    let mut slowest: Vec<(SignedDuration, GangReport)> =
        gangs.into_iter().filter_map(|g| g.waiting(objects.now).map(|waits| (waits, g))).collect();
    slowest.sort_by_key(|(waits, _)| std::cmp::Reverse(*waits));
    Summary {
        pools,
        slowest: slowest.into_iter().take(most).map(|(_, gang)| gang).collect(),
        queued: queued.len(),
        longest_queued: queued.into_iter().take(most).collect(),
    }
}

fn count(held: &mut Held, claim: &NodeClaim, slot: Option<(&GangReport, &SlotView)>, now: Timestamp) {
    let since = |at: Option<Timestamp>| at.map_or(0, |at| now.duration_since(at).as_secs().max(0));
    let created = claim.metadata.creation_timestamp.as_ref().map(|t| t.0);
    held.nodes += 1;
    match slot {
        // Of the gang's current attempt, in a state that wants nodes.
        Some((report, slot)) if wanted(report, slot) => match (report.workload_phase, slot.phase) {
            (WorkloadPhase::Admitted, SlotPhase::Ready) => held.running += 1,
            (_, SlotPhase::Ready) => {
                held.idle += 1;
                held.unused_seconds += since(slot.initialized);
            }
            _ => held.coming += 1,
        },
        _ if claim.is_warm() && claim.metadata.deletion_timestamp.is_none() => {
            held.warm += 1;
            held.unused_seconds += since(claim.annotation(names::WARM_SINCE).parse().ok());
        }
        _ => {
            held.wasted += 1;
            let going = claim.metadata.deletion_timestamp.as_ref().map(|t| t.0);
            held.unused_seconds += since(going.or(created));
        }
    }
}

fn price(held: &mut Held, claim: &NodeClaim, prices: &PricesOfCheck) {
    match prices.hourly(&prices.cost([claim])) {
        Some(cost) => {
            held.cost_per_hour.add(cost.money());
            held.priced_by.insert(cost.priced_by);
        }
        None => held.unpriced += 1,
    }
}

fn wanted(report: &GangReport, slot: &SlotView) -> bool {
    use crate::gang::StateName::{Approved, Provisioning, WaitingReady};
    let alive = !matches!(slot.phase, SlotPhase::Going | SlotPhase::Failed);
    let wants = |gang: &crate::gang::Explanation| {
        slot.attempt == gang.attempt && matches!(gang.state, Provisioning | WaitingReady | Approved)
    };
    alive && report.gang.as_ref().is_some_and(wants)
}

/// The summary as tables.
pub fn top(summary: &Summary, now: Timestamp, width: Option<usize>) -> String {
    let mut text = String::new();
    if summary.pools.is_empty() {
        text.push_str("No node is held.\n");
    } else {
        let head =
            ["NODEPOOL", "NODES", "RUNNING", "COMING", "IDLE", "WARM", "WASTED", "UNUSED TIME", "PER HOUR"];
        let mut rows: Vec<Vec<String>> =
            summary.pools.iter().map(|(pool, held)| cells(&clean(pool), held)).collect();
        if summary.pools.len() > 1 {
            rows.push(cells("all", &total(&summary.pools)));
        }
        text.push_str(&table(&head, rows.into_iter(), width));
        let by = priced_by(summary.pools.values().flat_map(|held| held.priced_by.iter().copied()));
        text.extend(by.map(|line| format!("\n{line}.\n")));
    }
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

fn total(pools: &BTreeMap<String, Held>) -> Held {
    let mut sum = Held::default();
    for held in pools.values() {
        sum.nodes += held.nodes;
        sum.running += held.running;
        sum.coming += held.coming;
        sum.idle += held.idle;
        sum.warm += held.warm;
        sum.wasted += held.wasted;
        held.cost_per_hour.iter().for_each(|money| sum.cost_per_hour.add(money));
        sum.unpriced += held.unpriced;
        sum.unused_seconds += held.unused_seconds;
    }
    sum
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

fn cells(name: &str, held: &Held) -> Vec<String> {
    let counts = [held.nodes, held.running, held.coming, held.idle, held.warm, held.wasted];
    let unused = span(SignedDuration::from_secs(held.unused_seconds));
    std::iter::once(name.to_owned())
        .chain(counts.map(|n| n.to_string()))
        .chain([unused, cost(held)])
        .collect()
}
