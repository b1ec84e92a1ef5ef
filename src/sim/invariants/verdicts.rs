//! Invariants of verdicts other than Ready: when a gang may be given up, and when a verdict may be revoked.
//!
//! Writes of a verdict carry the resourceVersion that it was decided on. So the stored Workload, with its
//! journal, is exactly the one that was evaluated.

use super::{Committed, attempts};
use crate::api::Workload;
use crate::api::workload::{CheckState, Verdict};
use crate::gang::{Ending, Journal, Reservation, StateName};
use kube::ResourceExt;

/// Setu has written the check entry.
pub fn entry_written(
    committed: &mut Committed,
    workload: &Workload,
    journal: Option<&Journal>,
    (old, new): (&CheckState, &CheckState),
) {
    if old.state == new.state {
        return;
    }
    let wrong = match new.state {
        // `honest` is checked elsewhere.
        Verdict::Ready => None,
        Verdict::Pending => taken_back(workload, old),
        Verdict::Retry => given_up(committed, workload, journal, (&new.name, StateName::Yielded)),
        Verdict::Rejected => given_up(committed, workload, journal, (&new.name, StateName::Rejected)),
    };
    if let Some(wrong) = wrong {
        let what =
            format!("{} is reported {:?} after {:?} {wrong}", workload.name_any(), new.state, old.state);
        committed.violated("verdict", what);
    }
}

/// Why a verdict may not be revoked: pods may run on it.
fn taken_back(workload: &Workload, old: &CheckState) -> Option<String> {
    match Reservation::of(workload, &old.name) {
        Reservation::Held { .. } if workload.is_admitted() => Some("although it is admitted".to_owned()),
        // Kueue keeps the verdict, and would admit the next reservation on it.
        Reservation::Held { .. } | Reservation::Gone(Ending::QuotaLost) => None,
        // The Retry kept a refused gang out of the queue.
        Reservation::Gone(Ending::Evicted) if old.state == Verdict::Retry => None,
        other => Some(format!("while its reservation is {other:?}")),
    }
}

/// Why a gang may not be given up: it still has nodes while Kueue would take its quota, or the journal does not say so.
fn given_up(
    committed: &Committed,
    workload: &Workload,
    journal: Option<&Journal>,
    (check, state): (&str, StateName),
) -> Option<String> {
    let Some(journal) = journal else { return Some("without a journal".to_owned()) };
    if journal.state.name() != state {
        return Some(format!("in {}", journal.state.name()));
    }
    match Reservation::of(workload, check) {
        Reservation::Held { admission, .. } if admission == journal.memory.admission => {}
        // The Retry keeps a refused gang out of the queue.
        Reservation::Leaving(Ending::Evicted) | Reservation::Gone(Ending::Evicted)
            if state == StateName::Yielded => {}
        other => return Some(format!("for {} while its reservation is {other:?}", journal.memory.admission)),
    }
    let uid = workload.uid().unwrap_or_default();
    // A tenant who restores an old journal makes its gang forget what it has.
    let left = attempts::left(committed, (&uid, check), journal.memory.attempt);
    left.filter(|_| !committed.gangs_record.is_tampered(&uid)).map(|claim| format!("while {claim} is there"))
}

#[cfg(test)]
mod tests {
    use crate::gang::{AdmissionId, Journal, Nodes, State, Then};
    use crate::names;
    use crate::sim::invariants::InvariantChecker;
    use crate::sim::invariants::tests::with_journal;
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use setu_sim::api::{Change, Observer as _, kinds};
    use std::sync::Arc;

    const RESERVED: (&str, &str) = ("QuotaReserved", "True");
    const ADMITTED: (&str, &str) = ("Admitted", "True");

    /// A Workload whose gang is in this state, with these conditions and this verdict.
    fn at(state: &State, conditions: &[(&str, &str)], verdict: &str) -> Value {
        let make = |journal: &mut Journal| journal.state = state.clone();
        let mut workload = with_journal(make);
        let conditions = conditions.iter().map(|(kind, status)| {
            json!({
                "type": kind, "status": status, "reason": "", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        });
        workload["status"] = json!({
            "admission": {"clusterQueue": "q", "podSetAssignments": []},
            "conditions": conditions.collect::<Vec<Value>>(),
            "admissionChecks": [{
                "name": "c", "state": verdict, "message": "", "podSetUpdates": [],
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let decoded = crate::sim::invariants::decode(&workload).unwrap();
        let admission = AdmissionId::of(&decoded, "c");
        let with_epoch = with_journal(|journal| {
            make(journal);
            journal.memory.admission = admission;
            journal.memory.attempt = 1;
        });
        workload["metadata"] = with_epoch["metadata"].clone();
        workload
    }

    /// The violations if Setu writes `new` after `old` while this many claims exist.
    fn wrong(
        state: &State,
        conditions: &[(&str, &str)],
        (old, new): (&str, &str),
        claims: usize,
    ) -> Vec<String> {
        let mut checker = InvariantChecker::default();
        let mut change = |kind, by: &str, before: Option<Value>, after: Value| {
            checker.committed(&Change {
                version: 1,
                at: "2026-01-01T01:00:00Z".parse::<Timestamp>().unwrap(),
                kind,
                before: before.map(Arc::new),
                after: Some(Arc::new(after)),
                by: by.into(),
                subresource: None,
            });
        };
        for slot in 0..claims {
            let claim = json!({"metadata": {
                "name": format!("claim-{slot}"), "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {(names::WORKLOAD_UID): "u", (names::ATTEMPT): "1"}, "annotations": {(names::SLOT): slot.to_string()},
                "annotations": {(names::CHECK): "c"},
            }});
            change(&kinds::NODE_CLAIM, "karpenter", None, claim);
        }
        let [before, after] = [old, new].map(|verdict| at(state, conditions, verdict));
        change(&kinds::WORKLOAD, names::SETU, Some(before), after);
        checker.violations().iter().filter(|v| v.invariant == "verdict").map(|v| v.what.clone()).collect()
    }

    #[test]
    fn a_gang_is_given_up_only_if_its_journal_says_so_and_no_claim_is_left() {
        let retry =
            |state: &State, conditions: &[_], claims| wrong(state, conditions, ("Pending", "Retry"), claims);
        let none: Vec<String> = Vec::new();
        assert_eq!(retry(&State::Yielded, &[RESERVED], 0), none);
        assert_eq!(wrong(&State::Rejected, &[RESERVED], ("Pending", "Rejected"), 0), none);
        let going = State::RollingBack { then: Then::Yielded };
        assert_eq!(retry(&going, &[RESERVED], 0), ["w is reported Retry after Pending in RollingBack"]);
        assert_eq!(
            retry(&State::Rejected, &[RESERVED], 0),
            ["w is reported Retry after Pending in Rejected"]
        );
        let left = ["w is reported Retry after Pending while claim-0 is there"];
        assert_eq!(retry(&State::Yielded, &[RESERVED], 2), left);
        let evicted = [RESERVED, ("Evicted", "True")];
        assert_eq!(retry(&State::Yielded, &evicted, 0), none, "it keeps a refused gang out of the queue");
        let gone = wrong(&State::Rejected, &evicted, ("Pending", "Rejected"), 0);
        assert!(gone.len() == 1 && gone[0].ends_with("is Leaving(Evicted)"), "{gone:?}");
    }

    #[test]
    fn a_verdict_is_not_revoked_while_pods_may_run_on_it() {
        let back = |conditions: &[_]| {
            wrong(&State::Approved { nodes: Nodes::Held }, conditions, ("Ready", "Pending"), 2)
        };
        let none: Vec<String> = Vec::new();
        assert_eq!(back(&[RESERVED]), none);
        assert_eq!(back(&[("QuotaReserved", "False")]), none, "its quota is lost");
        assert_eq!(
            back(&[RESERVED, ADMITTED]),
            ["w is reported Pending after Ready although it is admitted"]
        );
        assert_eq!(back(&[RESERVED, ADMITTED, ("Evicted", "True")]).len(), 1);
        assert_eq!(back(&[RESERVED, ("Finished", "True")]).len(), 1);
    }
}
