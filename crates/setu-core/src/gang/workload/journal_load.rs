//! How a reconcile loads its gang: which stored journal it goes on from, and what takes the place of one that is not used.
//!
//! Called by the controller and the model checker. The command line reads stored journals here too.
//! Rule: a tenant can write the journal. One that cannot be the gang's is ignored, and the gang starts over from its claims.

use crate::api::{NodeClaim, Workload};
use crate::gang::identity::GangIdentity;
use crate::gang::statechart::journal::{Journal, JournalError};
use crate::gang::statechart::reservation::{Ending, Reservation};
use crate::gang::statechart::state::{Nodes, State};
use crate::names;
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::sync::Arc;

/// The journal of a gang that is reconciled.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedGang {
    /// The journal to go on from.
    pub journal: Journal,
    /// Whether the Workload has no journal of this gang that can be used.
    pub is_substitute: bool,
}

/// The result of loading a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadResult {
    /// `None` if there is nothing to do.
    pub gang: Option<LoadedGang>,
    /// Why its stored journal is ignored, if it cannot be read.
    pub unreadable: Option<JournalError>,
}

/// The journal that is stored on a Workload for this gang; `None` if there is none.
pub fn stored_journal(
    workload: &Workload,
    identity: &GangIdentity,
    now: Timestamp,
) -> Option<Result<Journal, JournalError>> {
    let text = workload.annotations().get(&names::journal_key(&identity.check))?;
    Some(journal_of(workload, text, now))
}

/// The checks of a Workload with quota whose stored journals say that claims are being created.
pub fn checks_being_provisioned(workload: &Workload, now: Timestamp) -> impl Iterator<Item = &str> {
    let journals = workload.annotations().iter().filter(|_| workload.has_quota());
    journals.filter_map(move |(key, text)| {
        let check = key.strip_prefix(names::JOURNAL_PREFIX)?;
        let journal = journal_of(workload, text, now).ok()?;
        (journal.state == State::Provisioning).then_some(check)
    })
}

/// The journal in an annotation of this Workload.
pub(super) fn journal_of(workload: &Workload, text: &str, now: Timestamp) -> Result<Journal, JournalError> {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let created = workload.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
    Journal::decode(text, uid, created, now)
}

/// Loads a gang with these claims. A gang with neither a journal nor a reservation is handled only if it has claims or Kueue
/// waits for its check.
///
/// # Errors
/// A newer release wrote its journal and decides about its nodes.
pub fn load(
    workload: &Workload,
    identity: &GangIdentity,
    claims: &[Arc<NodeClaim>],
    now: Timestamp,
) -> Result<LoadResult, JournalError> {
    let (stored, unreadable) = match stored_journal(workload, identity, now) {
        Some(Err(error @ JournalError::Newer(_))) => return Err(error),
        Some(Err(error)) => (None, Some(error)),
        Some(Ok(journal)) => (Some(journal).filter(|j| has_possible_slots(j, workload, claims)), None),
        None => (None, None),
    };
    let reservation = Reservation::of(workload, &identity.check);
    let reported = workload.check(&identity.check).map(|check| check.state).unwrap_or_default();
    let is_awaited = !claims.is_empty() || reservation.retry_blocks_requeue(reported);
    let gang = match (stored, reservation) {
        (Some(journal), _) => Some(LoadedGang { journal, is_substitute: false }),
        (None, Reservation::Leaving(_) | Reservation::Gone(Ending::CheckRemoved)) => None,
        (None, Reservation::Gone(_)) if !is_awaited => None,
        (None, reservation) => Some(LoadedGang::substitute(&identity.uid, reservation, now)),
    };
    Ok(LoadResult { gang, unreadable })
}

impl LoadedGang {
    /// A gang without a journal that can be used.
    fn substitute(uid: &str, reservation: Reservation, now: Timestamp) -> Self {
        Self { journal: substitute_journal(uid, reservation, now), is_substitute: true }
    }

    /// Starts over if claims from a quorum read, unlike those in the cache, contradict the stored journal. Returns whether it
    /// did.
    pub fn verify(
        &mut self,
        workload: &Workload,
        identity: &GangIdentity,
        claims: &[Arc<NodeClaim>],
        now: Timestamp,
    ) -> bool {
        let is_contradicted = !self.is_substitute && !has_possible_slots(&self.journal, workload, claims);
        if is_contradicted {
            *self = Self::substitute(&identity.uid, Reservation::of(workload, &identity.check), now);
        }
        is_contradicted
    }
}

/// The journal of a gang without one that can be used.
pub(super) fn substitute_journal(uid: &str, reservation: Reservation, now: Timestamp) -> Journal {
    match reservation {
        Reservation::Held { admission, .. } => Journal::new(uid, admission, now, None),
        Reservation::Leaving(_) | Reservation::Gone(_) => Journal::released(uid, now),
    }
}

/// Whether a gang may have as many slots as its journal says. More slots would cause useless work. With fewer slots than
/// claims the gang would start without some of its nodes.
fn has_possible_slots(journal: &Journal, workload: &Workload, claims: &[Arc<NodeClaim>]) -> bool {
    let pods: i64 = workload.spec.pod_sets.iter().map(|set| i64::from(set.count)).sum();
    let begun = match journal.state {
        State::Provisioning | State::WaitingReady => true,
        // Without slots it needs no nodes, and its claims are deleted. Once it is admitted, its pods run on them.
        State::Approved { nodes } => nodes != Nodes::Unneeded && !workload.is_admitted(),
        _ => false,
    };
    let attempt = journal.memory.attempt.to_string();
    let lasts = |c: &&Arc<NodeClaim>| c.label(names::ATTEMPT) == attempt && !c.is_deleting();
    let least = if begun { slots_of(claims.iter().filter(lasts)) } else { 0 };
    let most = pods.max(slots_of(claims.iter()));
    (least..=most).contains(&i64::from(journal.memory.slots))
}

/// The least number of slots of a gang that has these claims.
fn slots_of<'c>(claims: impl Iterator<Item = &'c Arc<NodeClaim>>) -> i64 {
    claims.filter_map(|c| i64::from(c.slot()?).checked_add(1)).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::StateName;
    use crate::gang::statechart::reservation::AdmissionId;
    use serde_json::{Value, json};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn identity() -> GangIdentity {
        GangIdentity { namespace: "ns".into(), workload: "w".into(), uid: "u".into(), check: "c".into() }
    }

    /// A Workload of two pods with these conditions, this verdict and this journal.
    fn workload(conditions: &[(&str, &str)], reported: &str, journal: Option<&str>) -> Workload {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "r", "message": "", "lastTransitionTime": NOW.to_string()}))
            .collect();
        let pods = json!({"name": "main", "count": 2, "template": {"spec": {"containers": []}}});
        let annotations = journal.map(|text| json!({(names::journal_key("c")): text}));
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "w", "uid": "u", "annotations": annotations},
            "spec": {"podSets": [pods]},
            "status": {
                "conditions": conditions, "admissionChecks": [{"name": "c", "state": reported}],
                "admission": {"clusterQueue": "q", "podSetAssignments": []},
            },
        }))
        .unwrap()
    }

    fn claim(slot: u32) -> Arc<NodeClaim> {
        Arc::new(serde_json::from_value(json!({
            "metadata": {
                "name": "n", "labels": {(names::ATTEMPT): "1"}, "annotations": {(names::SLOT): slot.to_string()},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap())
    }

    fn journal(state: State, slots: u32) -> Journal {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), NOW, None);
        journal.state = state;
        (journal.memory.attempt, journal.memory.slots) = (1, slots);
        journal
    }

    /// The state that a gang goes on from, and whether it has no usable journal.
    fn loaded(workload: &Workload, claims: &[Arc<NodeClaim>]) -> Option<(StateName, bool)> {
        let result = load(workload, &identity(), claims, NOW).unwrap();
        result.gang.map(|gang| (gang.journal.state.name(), gang.is_substitute))
    }

    #[test]
    fn a_gang_without_a_journal_starts_by_its_reservation_and_claims() {
        let held = workload(&[("QuotaReserved", "True")], "Pending", None);
        assert_eq!(loaded(&held, &[]), Some((StateName::Validating, true)));
        let leaving = workload(&[("QuotaReserved", "True"), ("Evicted", "True")], "Pending", None);
        assert_eq!(loaded(&leaving, &[claim(0)]), None, "its pods may still run");
        let evicted = |verdict| workload(&[("QuotaReserved", "False"), ("Evicted", "True")], verdict, None);
        assert_eq!(loaded(&evicted("Pending"), &[]), None);
        assert_eq!(loaded(&evicted("Pending"), &[claim(0)]), Some((StateName::Released, true)));
        assert_eq!(loaded(&evicted("Retry"), &[]), Some((StateName::Released, true)), "Kueue waits for it");
    }

    #[test]
    fn a_check_has_begun_if_its_journal_is_provisioning_and_quota_is_held() {
        for (conditions, state, begun) in [
            (&[("QuotaReserved", "True")][..], State::Provisioning, true),
            (&[("QuotaReserved", "True")], State::WaitingReady, false),
            (&[], State::Provisioning, false),
        ] {
            let workload = workload(conditions, "Pending", Some(&journal(state.clone(), 2).encode()));
            let checks: Vec<&str> = checks_being_provisioned(&workload, NOW).collect();
            assert_eq!(checks, if begun { vec!["c"] } else { vec![] }, "{state:?} {conditions:?}");
        }
    }

    #[test]
    fn a_journal_that_cannot_be_the_gangs_is_ignored_and_one_of_a_newer_release_is_left_alone() {
        let with = |text: &str| workload(&[("QuotaReserved", "True")], "Pending", Some(text));
        let text = journal(State::WaitingReady, 2).encode();
        let own = load(&with(&text), &identity(), &[], NOW).unwrap();
        assert_eq!(
            own.gang.map(|gang| (gang.journal.encode(), gang.is_substitute)),
            Some((text.clone(), false))
        );
        for (text, unreadable) in [
            (text.replace("\"u\"", "\"other\""), true),
            ("{".to_owned(), true),
            (journal(State::WaitingReady, 3).encode(), false),
        ] {
            let result = load(&with(&text), &identity(), &[], NOW).unwrap();
            assert_eq!(result.unreadable.is_some(), unreadable, "{text}");
            assert!(result.gang.unwrap().is_substitute, "{text}");
        }
        let newer = load(&with(r#"{"version": 999}"#), &identity(), &[], NOW);
        assert_eq!(newer, Err(JournalError::Newer(999)));
    }

    #[test]
    fn a_journal_with_fewer_slots_than_claims_is_ignored_until_the_gang_is_admitted() {
        let (admitted, reserved) = (("Admitted", "True"), ("QuotaReserved", "True"));
        let held = State::Approved { nodes: Nodes::Held };
        for (state, conditions, is_used) in [
            (State::WaitingReady, vec![reserved], false),
            (held.clone(), vec![reserved], false),
            (held, vec![reserved, admitted], true),
            (State::Validating, vec![reserved], true),
        ] {
            let of_one = journal(state.clone(), 1);
            let workload = workload(&conditions, "Ready", Some(&of_one.encode()));
            let claims = [claim(0), claim(1)];
            assert_eq!(
                loaded(&workload, &claims).map(|(_, is_substitute)| !is_substitute),
                Some(is_used),
                "{state:?}"
            );
            let mut gang = LoadedGang { journal: of_one, is_substitute: false };
            assert_eq!(gang.verify(&workload, &identity(), &claims, NOW), !is_used, "{state:?}");
            assert_eq!(gang.is_substitute, !is_used);
            assert!(!gang.verify(&workload, &identity(), &claims, NOW), "it has started over");
        }
    }
}
