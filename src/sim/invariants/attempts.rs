//! Invariants of attempts: how many there are, and that an attempt that was rolled back stays so.

use super::Committed;
use crate::api::Workload;
use crate::gang::snapshot::claims::is_stuck;
use crate::gang::{AdmissionId, Journal, StateName};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::Value;
use setu_sim::values::{annotation, created, going_since, label, name};
use std::collections::{BTreeMap, BTreeSet};

/// Normal latency of a request.
const LATENCY: SignedDuration = SignedDuration::from_secs(1);

/// Limits of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Attempts under one admission; any number if `None`.
    pub attempts: Option<usize>,
    /// Maximum additional delay of a request.
    pub delay: SignedDuration,
    /// Whether several replicas act at the same time.
    pub several_act: bool,
}

/// UID of the Workload, the check, and the attempt.
type AttemptKey = (String, String, u32);

/// UID of the Workload, the check, Setu's id of the admission, and how many reservations ended before it. A
/// reservation that is lost and made again within a second has the same id.
type AdmissionKey = (String, String, AdmissionId, u32);

/// The record of attempts.
#[derive(Default)]
pub struct AttemptsRecord {
    /// Attempts under one admission; any number if `None`.
    pub most: Option<usize>,
    /// When each ended attempt was first known to have ended.
    over: BTreeMap<AttemptKey, Timestamp>,
    /// The attempts under each admission.
    begun: BTreeMap<AdmissionKey, BTreeSet<u32>>,
    /// How often each Workload's reservation has ended, by UID.
    ended: BTreeMap<String, u32>,
}

/// Whether a request sent at that time can no longer arrive.
pub fn is_long_ago(committed: &Committed, then: Timestamp) -> bool {
    then < committed.lateness.before(committed.now, committed.lateness.delay + LATENCY)
}

/// A Workload was written by any client.
pub fn workload_changed(committed: &mut Committed, before: &Workload, after: &Workload) {
    if before.has_quota() && !after.has_quota() {
        *committed.attempts_record.ended.entry(after.uid().unwrap_or_default()).or_default() += 1;
    }
}

/// Setu has written a journal.
pub fn journal_written(
    committed: &mut Committed,
    workload: &Workload,
    check: &str,
    (old, new): (Option<&Journal>, &Journal),
) {
    let uid = workload.uid().unwrap_or_default();
    let tampered = committed.gangs_record.is_tampered(&uid);
    let (attempt, now) = (new.memory.attempt, committed.now);
    let place = (uid.clone(), check.to_owned(), attempt);
    let record = &mut committed.attempts_record;
    if new.state.wants_claims() {
        record.over.remove(&place);
        let ended = record.ended.get(&uid).copied().unwrap_or_default();
        let admission = (uid, check.to_owned(), new.memory.admission.clone(), ended);
        let begun = record.begun.entry(admission).or_default();
        begun.insert(attempt);
        let many = begun.len();
        if record.most.is_some_and(|most| many > most) && !tampered {
            let what = format!("{} begins attempt {many} of one admission", workload.name_any());
            committed.violated("bounded", what);
        }
    } else {
        record.over.entry(place).or_insert(now);
    }
    let ended = old.is_some_and(|old| old.state.name() == StateName::RollingBack)
        && new.state.name() != StateName::RollingBack
        && !new.state.wants_claims();
    if ended && !tampered {
        rolled_back(committed, workload, check, attempt);
    }
}

/// A rollback has ended: no claim of its attempt may be left, unless its request was still on its way.
fn rolled_back(committed: &mut Committed, workload: &Workload, check: &str, attempt: u32) {
    let uid = workload.uid().unwrap_or_default();
    if let Some(left) = left(committed, (&uid, check), attempt) {
        let what = format!("{} ends its rollback while {left} is there", workload.name_any());
        committed.violated("total-rollback", what);
    }
}

/// Name of a claim of this attempt that exists, except claims whose create was still on its way and claims that
/// are stuck in deletion, which nothing waits for.
pub fn left(committed: &Committed, (uid, check): (&str, &str), attempt: u32) -> Option<String> {
    let left = committed.claims.values().find(|claim| {
        label(claim, names::WORKLOAD_UID) == uid
            && label(claim, names::ATTEMPT) == attempt.to_string()
            && annotation(claim, names::CHECK) == check
            && is_long_ago(committed, created(claim))
            && !going_since(claim).is_some_and(|since| is_stuck(since, committed.now))
    });
    left.map(|claim| name(claim).to_owned())
}

/// Setu has created a claim of an untampered gang.
pub fn created_under(committed: &mut Committed, claim: &Value) {
    let Ok(attempt) = label(claim, names::ATTEMPT).parse() else { return };
    let place =
        (label(claim, names::WORKLOAD_UID).to_owned(), annotation(claim, names::CHECK).to_owned(), attempt);
    if committed.attempts_record.over.get(&place).is_some_and(|then| is_long_ago(committed, *then)) {
        let what = format!("{} is created although attempt {attempt} is taken back", name(claim));
        committed.violated("total-rollback", what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::State;
    use crate::sim::invariants::InvariantChecker;
    use crate::sim::invariants::tests::with_journal;
    use serde_json::json;
    use setu_sim::api::{Change, Observer as _, kinds};
    use std::sync::Arc;

    /// A Workload in this attempt, with or without a reservation.
    fn trying(attempt: u32, reserved: &str) -> Arc<Value> {
        let mut workload = with_journal(|journal| {
            (journal.state, journal.memory.attempt) = (State::Provisioning, attempt);
        });
        workload["status"] = json!({"conditions": [{
            "type": "QuotaReserved", "status": reserved, "reason": "", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]});
        Arc::new(workload)
    }

    /// Whether these steps violate a limit of one attempt per admission.
    fn too_many(steps: &[(&str, u32, &str)]) -> bool {
        let checker = InvariantChecker::default();
        checker.allow(Allowed { attempts: Some(1), ..Allowed::default() });
        let mut before = None;
        for (version, (by, attempt, reserved)) in (1..).zip(steps) {
            let after = Some(trying(*attempt, reserved));
            checker.clone().committed(&Change {
                version,
                at: Timestamp::UNIX_EPOCH,
                kind: &kinds::WORKLOAD,
                before,
                after: after.clone(),
                by: (*by).into(),
                subresource: None,
            });
            before = after;
        }
        checker.violations().iter().any(|v| v.invariant == "bounded")
    }

    #[test]
    fn a_reservation_made_again_within_a_second_is_another_admission() {
        let (setu, kueue) = (names::SETU, "kueue");
        assert!(too_many(&[(setu, 1, "True"), (setu, 2, "True")]));
        let again = [(setu, 1, "True"), (kueue, 1, "False"), (kueue, 1, "True"), (setu, 2, "True")];
        assert!(!too_many(&again));
        assert!(too_many(&[&again[..], &[(setu, 3, "True")]].concat()), "and takes no more than one");
    }
}
