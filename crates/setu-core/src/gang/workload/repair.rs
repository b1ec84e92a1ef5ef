//! Rebuilds a gang's journal from its Workload and the labels of its NodeClaims.
//!
//! Used by `setu repair` for a journal that the controller ignores or that someone else wrote.
//! Rule: the result is the one that the controller would reach without a journal.

use super::journal_load::substitute_journal;
use crate::api::Workload;
use crate::gang::identity::GangIdentity;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::snapshot::{Freshness, Snapshot, SnapshotParts};
use crate::gang::statechart::attempt_terms::PolicySource;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{Ending, Reservation};
use crate::gang::step::{Step, step};
use crate::policy::Policy;
use jiff::Timestamp;

/// The rebuilt journal.
///
/// `old` is the current journal, if it can be read. Its attempt number and its count of yields continue, so that no
/// NodeClaim name is used twice.
///
/// # Errors
/// The ending, if Kueue is taking the Workload down and its pods may still run: then nothing can be decided.
pub fn rebuild_journal(
    workload: &Workload,
    identity: &GangIdentity,
    claims: &[ClaimView],
    old: Option<&Journal>,
    now: Timestamp,
) -> Result<Journal, Ending> {
    let policy = Policy::default();
    let parts = SnapshotParts::of(workload, &identity.check, claims.to_vec(), now);
    if let Reservation::Leaving(ending) = &parts.reservation {
        return Err(*ending);
    }
    let mut journal = substitute_journal(&identity.uid, parts.reservation.clone(), now);
    let is_held = matches!(parts.reservation, Reservation::Held { .. });
    let attempts = claims.iter().map(|c| c.attempt).chain(old.map(|o| o.memory.attempt));
    journal.memory.attempt = attempts.max().unwrap_or_default();
    if let Some(old) = old {
        journal.memory.yields = old.memory.yields;
        journal.memory.not_before = old.memory.not_before;
    }
    let snapshot = Snapshot {
        is_substitute: true,
        freshness: Freshness::Quorum,
        policy_source: PolicySource::Unknown,
        ..parts.snapshot(&policy)
    };
    if is_held && let Step::Moved(moved) = step(&journal, &snapshot) {
        journal = moved.journal;
    }
    if let Some(old) = old.filter(|old| old.memory.attempt == journal.memory.attempt) {
        journal.memory.generation = journal.memory.generation.max(old.memory.generation);
    }
    Ok(journal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::Health;
    use crate::gang::StateName;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn workload(conditions: &[&str], reported: &str) -> Workload {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|kind| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": at(0).to_string()}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"namespace": "ns", "name": "w", "uid": "u"}, "spec": {},
            "status": {
                "conditions": conditions, "admissionChecks": [{"name": "c", "state": reported}],
                "admission": {"clusterQueue": "q", "podSetAssignments": []},
            },
        }))
        .unwrap()
    }

    fn claims(attempt: u32) -> Vec<ClaimView> {
        let claim =
            |slot: u32| ClaimView::new(&format!("c-{slot}"), attempt, slot, Health::Ready { since: at(0) });
        (0..2).map(claim).collect()
    }

    fn of(workload: &Workload, claims: &[ClaimView], old: Option<&Journal>) -> Result<Journal, Ending> {
        let identity =
            GangIdentity { namespace: "ns".into(), workload: "w".into(), uid: "u".into(), check: "c".into() };
        rebuild_journal(workload, &identity, claims, old, at(10))
    }

    fn gist(journal: &Journal) -> (StateName, u32, u32) {
        (journal.state.name(), journal.memory.attempt, journal.memory.slots)
    }

    #[test]
    fn the_state_is_rebuilt_from_the_workload_and_its_claims() {
        let reserved = workload(&["QuotaReserved"], "Pending");
        assert_eq!(gist(&of(&reserved, &[], None).unwrap()), (StateName::Validating, 0, 0));
        assert_eq!(gist(&of(&reserved, &claims(3), None).unwrap()), (StateName::Provisioning, 3, 2));
        let runs = workload(&["QuotaReserved", "Admitted"], "Ready");
        assert_eq!(gist(&of(&runs, &claims(2), None).unwrap()), (StateName::Approved, 2, 2));
        assert_eq!(gist(&of(&runs, &[], None).unwrap()), (StateName::Approved, 0, 0));
        let finished = workload(&["QuotaReserved", "Admitted", "Finished"], "Ready");
        assert_eq!(gist(&of(&finished, &claims(2), None).unwrap()), (StateName::Released, 2, 0));
    }

    #[test]
    fn no_journal_is_rebuilt_while_kueue_stops_the_workload() {
        let evicted = workload(&["QuotaReserved", "Admitted", "Evicted"], "Ready");
        assert_eq!(of(&evicted, &claims(1), None), Err(Ending::Evicted));
    }

    #[test]
    fn the_attempt_number_and_the_yields_are_kept() {
        let reserved = workload(&["QuotaReserved"], "Pending");
        let mut old = of(&reserved, &[], None).unwrap();
        (old.memory.attempt, old.memory.yields) = (7, 2);
        let journal = of(&reserved, &[], Some(&old)).unwrap();
        assert_eq!((journal.memory.attempt, journal.memory.yields), (7, 2));
        assert_eq!(Journal::decode(&journal.encode(), "u", at(0), at(20)), Ok(journal));
    }
}
