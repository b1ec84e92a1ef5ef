//! `setu trace`: the timeline of a gang's states and of its nodes.
//!
//! Times of states come from the journal, with millisecond precision. Times of nodes come from NodeClaim
//! conditions, which Kubernetes keeps in whole seconds. The duration shown for a node ends when it is
//! initialized.

use super::table::painted_state;
use super::{BOLD, DIM, clean, paint, span, style_of};
use crate::cli::gang_objects::UnreadKind;
use crate::cli::report::GangReport;
use crate::gang::StateName;
use crate::gang::report::explain::{SlotPhase, SlotView};
use crate::gang::statechart::transition::Transition;
use anstyle::Style;
use jiff::{SignedDuration, Timestamp};
use std::fmt::Write as _;

/// Widths of the label and of the duration before each bar.
const LABEL: usize = 18;
const TIME: usize = 8;
/// Minimum and maximum width of a bar.
const BAR: std::ops::RangeInclusive<usize> = 20..=120;

/// Settings of the drawing.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// Total width.
    pub width: usize,
    /// Whether to include earlier admissions.
    pub everything: bool,
    /// Address of a trace, with `{traceId}` where its id belongs.
    pub trace_url: Option<&'a str>,
}

/// A stretch of time on one line.
struct Row {
    label: String,
    style: Style,
    /// Its start, the boundaries between its parts, and its end.
    marks: Vec<Timestamp>,
    /// The duration to show.
    took: SignedDuration,
    /// Whether it is still going on.
    open: bool,
    note: String,
}

impl Row {
    /// Whether this is the row of a node. Node rows have shades for their phases, and no color.
    fn is_node(&self) -> bool {
        self.style == Style::new()
    }
}

/// The waterfall of one gang.
pub fn waterfall(report: &GangReport, now: Timestamp, layout: Layout<'_>) -> String {
    let mut text = head(report, now, layout.trace_url);
    let steps = if layout.everything { &report.history[..] } else { report.this_admission() };
    let mut rows = states(report, steps, now);
    rows.extend(report.gang.iter().flat_map(|g| &g.nodes).filter_map(|slot| node(slot, now)));
    let first = rows.iter().filter_map(|r| r.marks.first()).min().copied();
    let last = rows.iter().filter_map(|r| r.marks.last()).max().copied();
    let (Some(first), Some(last)) = (first, last) else {
        let _ = writeln!(text, "\nNothing has happened yet: {}", clean(&report.why));
        return text;
    };
    let scale = Scale::new(first, last, layout.width);
    let _ = writeln!(text, "\n{:width$}{}", "", paint(DIM, &scale.axis()), width = LABEL + TIME + 2);
    for row in &rows {
        let label: String = row.label.chars().take(LABEL).collect();
        let bar = scale.bar(row);
        let note = if row.note.is_empty() { String::new() } else { format!("  {}", clean(&row.note)) };
        let line = format!(
            "{} {:>TIME$} {bar}{}",
            paint(row.style, &format!("{label:LABEL$}")),
            span(row.took),
            paint(DIM, &note)
        );
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if rows.iter().all(|row| !row.is_node()) {
        if steps.iter().any(|step| step.to == StateName::WaitingReady) {
            let _ = writeln!(text, "\n{}", paint(DIM, without_nodes(report)));
        }
        return text;
    }
    let _ =
        writeln!(text, "\n{}", paint(DIM, "nodes: ░ launch  ▒ register  ▓ initialize  █ ready   ▶ goes on"));
    text
}

/// Why the nodes of a gang that had some are not shown.
fn without_nodes(report: &GangReport) -> &'static str {
    match report.gang.as_ref().and_then(|gang| gang.unread) {
        Some(UnreadKind::NodeClaims) => "NodeClaims may not be read, so its nodes are not shown.",
        Some(UnreadKind::Nodes) | None => {
            "The nodes are gone. The trace has a span of each, with launch, register and initialize."
        }
    }
}

fn head(report: &GangReport, now: Timestamp, trace_url: Option<&str>) -> String {
    let title = format!("{}/{}", clean(&report.namespace), clean(&report.workload));
    let mut text = format!("{}  {}", paint(BOLD, &title), painted_state(report));
    if let Some(gang) = &report.gang {
        let since = span(now.duration_since(gang.since));
        let _ = write!(text, " for {since}, attempt {}", gang.attempt);
        if gang.wants_nodes() {
            let _ = write!(text, ", {} nodes ready", gang.ready_of_all());
        }
    }
    text.push('\n');
    if let Some(id) = &report.trace_id {
        let _ = writeln!(text, "trace {id}");
        if let Some(template) = trace_url {
            let _ = writeln!(text, "{}", template.replace("{traceId}", id));
        }
    }
    text
}

/// One row for each period in a state.
fn states(report: &GangReport, steps: &[Transition], now: Timestamp) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut left: Option<(StateName, Timestamp, String)> = None;
    if let Some(first) = steps.first() {
        // The time before the admission's first transition is known only from the reservation, in whole seconds.
        let reserved = report.reserved.filter(|at| *at <= first.at && first.seq > report.trace.seq);
        left = reserved.map(|at| (first.from, at, String::new()));
    }
    for step in steps {
        if let Some((name, since, _)) = left.replace((step.to, step.at, step.reason.to_string())) {
            rows.push(stay(name, since, step.at, false, format!("→ {} ({})", step.to, step.reason)));
        }
    }
    let (name, since) = match (&left, &report.gang) {
        (Some((name, since, _)), _) => (*name, *since),
        (None, Some(gang)) => (gang.state, gang.since),
        (None, None) => return rows,
    };
    if name.is_over() {
        rows.push(stay(name, since, since, false, String::new()));
    } else {
        rows.push(stay(name, since, now.max(since), true, String::new()));
    }
    rows
}

fn stay(name: StateName, from: Timestamp, to: Timestamp, open: bool, note: String) -> Row {
    let label = name.to_string();
    Row {
        style: style_of(Some(name)),
        label,
        marks: vec![from, to],
        took: to.duration_since(from),
        open,
        note,
    }
}

/// One row for each node, with a part for each phase of its life.
fn node(slot: &SlotView, now: Timestamp) -> Option<Row> {
    let reached = [slot.launched, slot.registered, slot.initialized];
    let mut marks = vec![slot.created?];
    // Stop at a missing condition: later phases have not happened.
    for at in reached.into_iter().map_while(|at| at) {
        marks.push(at.max(marks.last().copied().unwrap_or(at)));
    }
    let open = slot.phase != SlotPhase::Failed;
    let took = slot.initialized.unwrap_or(now).duration_since(slot.created?);
    marks.push(now.max(marks.last().copied().unwrap_or(now)));
    let there = [&slot.node, &slot.instance_type, &slot.zone];
    let there: Vec<&str> = there.into_iter().map(String::as_str).filter(|t| !t.is_empty()).collect();
    let note = match slot.phase {
        SlotPhase::Ready => there.join(" "),
        // Whether it is ready is not known.
        SlotPhase::Settling if slot.detail.is_empty() => "initialized".to_owned(),
        _ if slot.detail.is_empty() => format!("{:?}", slot.phase),
        SlotPhase::Failed => slot.detail.clone(),
        _ => format!("waits for {}", slot.detail),
    };
    Some(Row { label: format!("  slot {}", slot.slot), style: Style::new(), marks, took, open, note })
}

/// Maps times to columns.
struct Scale {
    start: Timestamp,
    length: SignedDuration,
    columns: usize,
}

impl Scale {
    fn new(start: Timestamp, end: Timestamp, width: usize) -> Self {
        // Half of the rest is for the notes of the rows.
        let columns = (width.saturating_sub(LABEL + TIME + 2) / 2).clamp(*BAR.start(), *BAR.end());
        Self { start, length: end.duration_since(start).max(SignedDuration::from_millis(1)), columns }
    }

    fn column(&self, at: Timestamp) -> usize {
        let columns = i128::try_from(self.columns).unwrap_or_default();
        let passed = at.duration_since(self.start).as_millis().clamp(0, self.length.as_millis());
        usize::try_from(passed * columns / self.length.as_millis().max(1)).unwrap_or_default()
    }

    /// `0s` on the left, half of the duration in the middle, the whole on the right.
    fn axis(&self) -> String {
        let (half, whole) = (span(self.length / 2), span(self.length));
        let middle = self.columns / 2;
        let right = self.columns.saturating_sub(middle);
        format!("{:middle$}{half:<}{whole:>rest$}", "0s", rest = right.saturating_sub(half.chars().count()))
    }

    fn bar(&self, row: &Row) -> String {
        const SHADES: [char; 4] = ['░', '▒', '▓', '█'];
        let mut cells = vec![' '; self.columns];
        let last = self.columns.saturating_sub(1);
        for (part, pair) in row.marks.windows(2).enumerate() {
            let [from, to] = pair else { continue };
            let shade = if row.is_node() { SHADES.get(part).copied().unwrap_or('█') } else { '█' };
            let (from, to) = (self.column(*from).min(last), self.column(*to).min(self.columns));
            // Every part gets at least one column.
            for cell in cells.iter_mut().take(to.max(from + 1)).skip(from) {
                *cell = shade;
            }
        }
        if row.open
            && let Some(end) = row.marks.last().map(|at| self.column(*at).saturating_sub(1).min(last))
            && let Some(cell) = cells.get_mut(end)
        {
            *cell = '▶';
        }
        paint(row.style, &cells.into_iter().collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Workload;
    use crate::cli::cluster::ClusterObjects;
    use crate::cli::render::explanation::explain;
    use crate::cli::report;
    use crate::gang::{
        AdmissionId, AdmissionPhase, Event, Failure, FailureClass, Journal, OptionPosition, Rules, decide,
    };
    use crate::names;
    use crate::plan::pod_set_labels::PodSetLabels;
    use crate::policy::Policy;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    /// The journal of an approved gang. Its first attempt failed, and another admission replaced the first one while it waited for
    /// the next attempt.
    fn admitted_again() -> Journal {
        let planned = Event::Planned {
            slots: 1,
            plan: "p".into(),
            pinning: crate::api::parameters::Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: OptionPosition::default(),
        };
        let again =
            Event::Reserved { admission: AdmissionId("2-0-a".into()), phase: AdmissionPhase::Reserved };
        let events = [
            planned.clone(),
            Event::ClaimsExist,
            Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "none")),
            Event::ClaimsGone,
            again,
            planned,
            Event::ClaimsExist,
            Event::NodesReady,
        ];
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), at(0), None);
        for (event, second) in events.iter().zip((10..).step_by(10)) {
            journal = decide(&journal, event, &Rules::new(&Policy::default(), at(second), 0.0)).journal;
        }
        assert!(journal.state.is_approved() && journal.history.iter().all(|step| !step.to.is_over()));
        journal
    }

    #[test]
    fn an_admission_that_replaced_another_is_shown_without_the_attempts_of_the_other() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": at(50).to_string()});
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "namespace": "ns", "name": "w", "uid": "u",
                "annotations": {(names::journal_key("c")): admitted_again().encode()},
            },
            "spec": {},
            "status": {
                "admission": {"clusterQueue": "q", "podSetAssignments": []},
                "admissionChecks": [{"name": "c", "state": "Ready"}],
                "conditions": [condition("QuotaReserved"), condition("Admitted")],
            },
        }))
        .unwrap();
        let objects = ClusterObjects { now: at(100), ..ClusterObjects::default() };
        let report = report::report(&objects, &workload, "c");
        let drawn = |everything: bool| {
            let layout = Layout { width: 140, everything, trace_url: None };
            let text = waterfall(&report, at(100), layout);
            let text = anstream::adapter::strip_str(&text).to_string();
            let states = text.lines().filter(|line| line.contains('█') || line.contains('▶'));
            states.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
        };
        let states = ["Validating", "Provisioning", "WaitingReady", "Approved"];
        assert_eq!(drawn(false), states);
        assert_eq!(drawn(true)[..4], ["Provisioning", "WaitingReady", "RollingBack", "BackingOff"]);
        assert_eq!(drawn(true)[4..], states);
        let text = explain(&report, at(100));
        assert!(text.contains("It runs") && !text.contains("Attempts that failed before"), "{text}");
    }
}
