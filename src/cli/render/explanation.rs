//! `setu explain`: what a gang waits for, what happens next and when, and its last failure.

use super::table::painted_state;
use super::{BOLD, DIM, clean, moment, paint, span};
use crate::cli::gang_objects::GangView;
use crate::cli::report::GangReport;
use crate::cli::workload_phase::WorkloadPhase;
use crate::gang::StateName;
use crate::gang::report::explain::{Explanation, SlotPhase, SlotView};
use crate::gang::statechart::event::Reason;
use crate::gang::statechart::transition::Transition;
use jiff::Timestamp;
use std::fmt::Write as _;

/// Width of the labels on the left.
const LABEL: usize = 11;
/// Maximum number of listed nodes; the rest is only counted.
const NODES_LISTED: usize = 16;

/// The full explanation of one gang.
pub fn explain(report: &GangReport, now: Timestamp) -> String {
    let mut text = String::new();
    for (label, value) in facts(report, now) {
        let _ = writeln!(text, "{}{value}", paint(DIM, &format!("{label:LABEL$}")));
    }
    waits(&mut text, report);
    if let Some(gang) = &report.gang {
        nodes(&mut text, gang, now);
        failed_attempts(&mut text, report, gang);
        what_next(&mut text, report, gang, now);
    }
    text
}

/// The lines at the top, each with its label.
fn facts(report: &GangReport, now: Timestamp) -> Vec<(&'static str, String)> {
    let name = format!("{}/{}", clean(&report.namespace), clean(&report.workload));
    let owner = if report.owner.is_empty() { String::new() } else { format!("  ({})", clean(&report.owner)) };
    let granted = if report.cluster_queue.is_empty() {
        String::new()
    } else {
        format!(" → {}", clean(&report.cluster_queue))
    };
    let mut facts = vec![
        ("Workload", format!("{}{owner}", paint(BOLD, &name))),
        ("Queue", format!("{}{granted}", clean(&report.queue))),
    ];
    if !report.check.is_empty() {
        let verdict = report.verdict.map_or_else(|| "not asked yet".to_owned(), |v| format!("{v:?}"));
        facts.push(("Check", format!("{}: {verdict}", clean(&report.check))));
    }
    let state = painted_state(report);
    match &report.gang {
        Some(gang) => {
            let since = span(now.duration_since(gang.since));
            facts.push(("State", format!("{state} for {since}{}", attempt(gang))));
            if gang.wants_nodes() {
                facts.push(("Nodes", nodes_and_cost(report, gang)));
            }
        }
        None => facts.push(("State", state)),
    }
    facts.extend(report.planned.as_ref().map(|plan| ("Plan", clean(plan))));
    facts
}

fn attempt(gang: &Explanation) -> String {
    let tier = tier_of(gang, gang.tier);
    match (gang.state, gang.attempt) {
        (StateName::Validating, 0) => String::new(),
        (StateName::Validating, last) => format!(", after attempt {last}"),
        (_, current) => format!(", attempt {current}{tier}"),
    }
}

/// A tier of the gang's policy, with a comma before it: its name, which is known of the current tier alone, or its number from 1. Empty
/// where the gang never left the first tier and it has no name.
fn tier_of(gang: &Explanation, tier: u32) -> String {
    match &gang.tier_name {
        Some(name) if tier == gang.tier => format!(", tier {}", clean(name)),
        None if (tier, gang.tier) == (0, 0) => String::new(),
        _ => format!(", tier {}", tier.saturating_add(1)),
    }
}

fn nodes_and_cost(report: &GangReport, gang: &GangView) -> String {
    let created = gang.known_created().filter(|created| *created < gang.slots);
    let created = created.map_or_else(String::new, |created| format!(", {created} created"));
    let cost = match (report.cost, &report.no_price) {
        (Some(cost), _) => format!(", {} an hour by {}", cost.money(), cost.priced_by),
        (None, Some(lack)) => format!(", {}", clean(lack)),
        (None, None) => String::new(),
    };
    format!("{} ready{created}{cost}", gang.ready_of_all())
}

fn heading(text: &mut String, words: &str) {
    let _ = writeln!(text, "\n{}", paint(BOLD, words));
}

fn waits(text: &mut String, report: &GangReport) {
    let unbound = report.gang.as_ref().is_some_and(|gang| gang.unbound_pods.is_some());
    let runs = report.workload_phase == WorkloadPhase::Admitted
        && report.verdict == Some(crate::api::workload::Verdict::Ready);
    let question = match report.workload_phase {
        WorkloadPhase::Finished | WorkloadPhase::Ended => "How it ended",
        WorkloadPhase::Unowned => "Why it has no nodes",
        _ if runs && unbound => "Why not all of its pods run",
        _ if runs => "It runs",
        _ => "Why it waits",
    };
    heading(text, question);
    let _ = writeln!(text, "  {}", clean(&report.why));
    if let Some(words) = report.kueue_says.as_ref().filter(|_| !report.why_quotes_kueue) {
        let _ = writeln!(text, "  Kueue: {}", clean(words));
    }
    // The controller's message adds how long this usually takes. An older one begins otherwise.
    let count = report.why.split([',', ';']).next().filter(|count| !count.is_empty());
    if report.gang.as_ref().is_some_and(|gang| gang.state == StateName::WaitingReady)
        && count.is_some_and(|count| report.check_message.starts_with(count))
        && report.check_message != report.why
    {
        let _ = writeln!(text, "  Reported to Kueue: {}", clean(&report.check_message));
    }
    for other in &report.other_checks {
        let says =
            if other.message.is_empty() { String::new() } else { format!(": {}", clean(&other.message)) };
        let _ = writeln!(
            text,
            "  check {} of another controller is {:?}{says}",
            clean(&other.name),
            other.verdict
        );
    }
}

/// Nodes that are not ready, each with what it lacks, and how many may be ready.
fn nodes(text: &mut String, gang: &GangView, now: Timestamp) {
    let open = gang.nodes.iter().filter(|n| n.phase != SlotPhase::Ready);
    let (unknown, missing): (Vec<&SlotView>, Vec<&SlotView>) = open.partition(|n| gang.may_be_ready(n));
    if !missing.is_empty() {
        not_ready(text, &missing, now);
    }
    if !unknown.is_empty() {
        heading(text, "Nodes that may be ready");
        let _ =
            writeln!(text, "  {} of {} are initialized; Nodes may not be read", unknown.len(), gang.slots);
    }
}

/// Nodes that are not ready, each with what it lacks.
fn not_ready(text: &mut String, open: &[&SlotView], now: Timestamp) {
    let leaving = open.iter().all(|slot| slot.phase == SlotPhase::Going);
    heading(text, if leaving { "Nodes that are still there" } else { "Nodes that are missing" });
    for slot in open.iter().take(NODES_LISTED) {
        let verb = if slot.phase == SlotPhase::Failed { "failed:" } else { "waits for" };
        let by = slot.until.map_or_else(String::new, |at| format!(", at the latest at {}", moment(at, now)));
        let _ = writeln!(text, "  slot {:<3} {verb} {}{by}", slot.slot, clean(&slot.detail));
        let place = [&slot.claim, &slot.node_pool, &slot.instance_type, &slot.zone, &slot.node];
        let place: Vec<String> = place.into_iter().filter(|p| !p.is_empty()).map(|p| clean(p)).collect();
        if !place.is_empty() {
            let _ = writeln!(text, "           {}", paint(DIM, &place.join("  ")));
        }
    }
    if let Some(more) = open.len().checked_sub(NODES_LISTED).filter(|more| *more > 0) {
        let _ = writeln!(text, "  and {more} more");
    }
}

/// Whether Kueue has admitted the gang on its nodes.
fn is_running(report: &GangReport, gang: &Explanation) -> bool {
    report.workload_phase == WorkloadPhase::Admitted && gang.state == StateName::Approved
}

/// Why earlier attempts of this admission gave a running gang no nodes.
fn failed_attempts(text: &mut String, report: &GangReport, gang: &Explanation) {
    let is_failure = |step: &&Transition| matches!(step.reason, Reason::Failed(_));
    let steps = report.this_admission().iter().filter(is_failure);
    let failed: Vec<&Transition> = steps.filter(|step| step.fails_attempt()).collect();
    if failed.is_empty() || !is_running(report, gang) {
        return;
    }
    heading(text, "Attempts that failed before");
    let last = report.history.iter().rfind(is_failure);
    for step in failed {
        // The journal has the message of the last failure only, and of the others the class.
        let is_last = |class| last == Some(step) && step.reason == Reason::Failed(class);
        let in_words = gang.last_failure.as_ref().filter(|failure| is_last(failure.reason));
        let why = in_words.map_or_else(|| step.reason.to_string(), ToString::to_string);
        let _ = writeln!(text, "  attempt {}{}: {}", step.attempt, tier_of(gang, step.tier), clean(&why));
    }
}

fn what_next(text: &mut String, report: &GangReport, gang: &Explanation, now: Timestamp) {
    if is_running(report, gang) || report.workload_phase == WorkloadPhase::Finished {
        return;
    }
    heading(text, "What comes next");
    let early = if gang.state == StateName::Yielded { "not before " } else { "" };
    let at = gang.next_at.map_or_else(String::new, |at| format!("{early}{}: ", moment(at, now)));
    let _ = writeln!(text, "  {at}{}", clean(&gang.next));
    if let Some(otherwise) = &gang.otherwise {
        let _ = writeln!(text, "  if not by {}: {}", moment(otherwise.at, now), clean(&otherwise.what));
    }
    let failure = gang.last_failure.as_ref().map(ToString::to_string);
    if let Some(failure) = failure.filter(|failure| !report.why.contains(failure)) {
        heading(text, "What went wrong last time");
        let _ = writeln!(text, "  {}", clean(&failure));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{NodeClaim, Workload};
    use crate::cli::cluster::ClusterObjects;
    use crate::cli::render::{table, waterfall};
    use crate::cli::report;
    use crate::gang::{AdmissionId, Journal, State};
    use crate::names;
    use serde_json::{Value, json};

    /// The report of a gang that waits for two nodes, which are initialized.
    fn waiting(read: impl FnOnce(&mut ClusterObjects)) -> GangReport {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        journal.state = State::WaitingReady;
        (journal.memory.attempt, journal.memory.slots) = (1, 2);
        let workload: Workload = serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {
                "namespace": "ns", "name": "w", "uid": "u",
                "annotations": {(names::journal_key("c")): journal.encode()},
            },
            "spec": {}, "status": {"admissionChecks": [{"name": "c"}]},
        }))
        .unwrap();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let conditions: Vec<Value> = ["Launched", "Registered", "Initialized"].map(condition).to_vec();
        let claim = |slot: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {
                    "name": slot, "labels": {(names::WORKLOAD_UID): "u", (names::ATTEMPT): "1"},
                    "annotations": {(names::CHECK): "c", (names::SLOT): slot},
                },
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}}, "status": {"conditions": conditions},
            }))
            .unwrap()
        };
        let (claims, nodes) = (Some(vec![claim("0"), claim("1")]), Some(Vec::new()));
        let mut objects = ClusterObjects { claims, nodes, ..ClusterObjects::default() };
        read(&mut objects);
        report::report(&objects, &workload, "c")
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn only_nodes_that_were_read_are_counted_or_called_missing() {
        let now = Timestamp::UNIX_EPOCH;
        let shown = |report: &GangReport| plain(&explain(report, now));
        let read = shown(&waiting(|_| {}));
        assert!(read.contains("0/2 ready") && read.contains("Nodes that are missing"), "{read}");
        let without_nodes = shown(&waiting(|objects| objects.nodes = None));
        assert!(without_nodes.contains("?/2 ready") && !without_nodes.contains("missing"), "{without_nodes}");
        assert!(without_nodes.contains("2 of 2 are initialized; Nodes may not be read"), "{without_nodes}");
        let unread = waiting(|objects| objects.claims = None);
        let text = shown(&unread);
        assert!(text.contains("?/2 ready") && !text.contains("created"), "{text}");
        assert_eq!(table::nodes(&unread), "?/2");
        let layout = waterfall::Layout { width: 140, everything: false, trace_url: None };
        assert!(plain(&waterfall::waterfall(&unread, now, layout)).contains("?/2 nodes ready"));
    }
}
