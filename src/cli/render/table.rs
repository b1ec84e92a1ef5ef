//! `setu inspect`: one line for each gang.

use super::{clean, paint, span, style_of};
use crate::cli::gang_objects::GangView;
use crate::cli::known::PricedBy;
use crate::cli::report::GangReport;
use jiff::Timestamp;
use std::collections::BTreeSet;
use tabled::builder::Builder;
use tabled::settings::peaker::Priority;
use tabled::settings::{Alignment, Padding, Style, Width};

/// Minimum width; below it, truncated text would be unreadable.
const LEAST_WIDTH: usize = 60;

/// The columns and the total width.
#[derive(Clone, Copy, Debug, Default)]
pub struct Columns {
    /// Show owner, queue, check, time in the state, cost and trace.
    pub wide: bool,
    /// Show the namespace.
    pub namespaces: bool,
    /// Width of the terminal; `None` truncates nothing.
    pub width: Option<usize>,
}

/// The gangs as a table.
pub fn gangs(gangs: &[GangReport], now: Timestamp, layout: Columns) -> String {
    let mut head = vec!["WORKLOAD", "STATE", "NODES", "ATTEMPT", "TIER", "AGE"];
    if layout.namespaces {
        head.insert(0, "NAMESPACE");
    }
    if layout.wide {
        head.extend(["FOR", "PER HOUR", "OWNER", "QUEUE", "CHECK", "TRACE"]);
    }
    head.push("WHY");
    let width = if layout.wide { None } else { layout.width };
    table(&head, gangs.iter().map(|gang| row(gang, now, layout)), width)
}

fn row(report: &GangReport, now: Timestamp, layout: Columns) -> Vec<String> {
    let dash = || "-".to_owned();
    let gang = report.gang.as_ref();
    let mut row = vec![
        clean(&report.workload),
        painted_state(report),
        nodes(report),
        gang.map_or_else(dash, |g| g.attempt.to_string()),
        gang.map_or_else(dash, |g| match (&g.tier_name, g.tier) {
            (Some(name), _) => clean(name),
            (None, 0) => dash(),
            (None, index) => index.saturating_add(1).to_string(),
        }),
        span(now.duration_since(report.created)),
    ];
    if layout.namespaces {
        row.insert(0, clean(&report.namespace));
    }
    if layout.wide {
        row.extend([
            gang.map_or_else(dash, |g| span(now.duration_since(g.since))),
            match (report.cost, &report.no_price) {
                (Some(cost), _) => cost.money().to_string(),
                (None, lack) => lack.as_deref().map_or_else(dash, clean),
            },
            clean(&report.owner),
            clean(&report.queue),
            clean(&report.check),
            report.trace_id.clone().unwrap_or_else(dash),
        ]);
    }
    row.push(clean(&report.why));
    row
}

/// A line naming the source of a table's prices; `None` if no price is shown.
pub fn priced_by(all: impl Iterator<Item = PricedBy>) -> Option<String> {
    let all: BTreeSet<String> = all.map(|by| by.to_string()).collect();
    let all: Vec<String> = all.into_iter().collect();
    (!all.is_empty()).then(|| format!("PER HOUR is by {}", all.join(" and ")))
}

/// The state of a gang in the style of that state.
pub fn painted_state(report: &GangReport) -> String {
    paint(style_of(report.gang.as_ref().map(|gang| gang.state)), &report.state())
}

/// Ready and total nodes, if the gang wants nodes. A question mark stands for a number that is not known.
pub fn nodes(report: &GangReport) -> String {
    let wants = report.gang.as_ref().filter(|gang| gang.wants_nodes());
    wants.map_or_else(|| "-".to_owned(), GangView::ready_of_all)
}

/// A table in kubectl's style: columns three blanks apart, no lines. The longest columns are truncated to
/// fit the width.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>, width: Option<usize>) -> String {
    let mut builder = Builder::default();
    builder.push_record(head.iter().copied());
    rows.for_each(|row| builder.push_record(row));
    let mut table = builder.build();
    table.with(Style::empty()).with(Padding::new(0, 3, 0, 0)).with(Alignment::left());
    if let Some(width) = width {
        let width = width.max(LEAST_WIDTH);
        table.with(Width::truncate(width).suffix("…").priority(Priority::max(true)));
    }
    let lines: Vec<String> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}
