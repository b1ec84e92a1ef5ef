//! The NodeClaims that an attempt creates.
//!
//! Called by the controller, which writes them. Rule: everything by which a claim is found again is derived here: its name, its
//! labels and its annotations.

use crate::api::NodeClaim;
use crate::gang::identity::GangIdentity;
use crate::gang::statechart::journal::Journal;
use crate::names;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::words::to_the_second;
use jiff::Timestamp;

/// The data that all new claims of an attempt share.
#[derive(Clone, Copy, Debug)]
pub struct NewClaims<'a> {
    /// The gang.
    pub identity: &'a GangIdentity,
    /// Value of the gang's label on its nodes.
    pub gang_label: &'a str,
    /// The Workload that owns the ProvisioningRequest, if the gang comes from one.
    pub owner: Option<&'a str>,
    /// The journal that says that they are created.
    pub journal: &'a Journal,
    /// The gang's policy.
    pub policy: &'a Policy,
}

impl NewClaims<'_> {
    /// The claims of these slots of the plan, held from `now` on.
    pub fn of_slots(&self, plan: &Plan, slots: &[u32], now: Timestamp) -> Vec<NodeClaim> {
        let hold = now.checked_add(self.policy.hold_limit.signed()).unwrap_or(Timestamp::MAX);
        slots.iter().filter_map(|slot| self.of_slot(plan, *slot, hold)).collect()
    }

    /// Whether no entered plan counts them, because they replace lost ones.
    pub fn are_uncounted(&self) -> bool {
        self.journal.memory.generation > 0 && !self.journal.is_mixed(self.policy)
    }

    /// The claim of one slot. Identical slots differ only in name and annotations.
    fn of_slot(&self, plan: &Plan, slot: u32, hold: Timestamp) -> Option<NodeClaim> {
        let (identity, memory) = (self.identity, &self.journal.memory);
        let planned = plan.slots.iter().find(|planned| planned.index == slot)?;
        let mut claim = planned.claim().into_owned();
        claim.metadata.name = Some(identity.replacement_name(memory.attempt, memory.generation, slot));
        let labels = [
            (names::MANAGED_BY, names::SETU.to_owned()),
            (names::GANG, self.gang_label.to_owned()),
            (names::WORKLOAD_UID, identity.uid.clone()),
            (names::ATTEMPT, memory.attempt.to_string()),
        ];
        let annotations = [
            (names::SLOT, slot.to_string()),
            (names::GENERATION, memory.generation.to_string()),
            (names::WORKLOAD, identity.workload_ref()),
            (names::CHECK, identity.check.clone()),
            (names::HOLD_UNTIL, to_the_second(hold)),
        ];
        let owner = self.owner.map(|owner| (names::OWNER, owner.to_owned()));
        let terms = memory.terms.as_ref().map(|terms| (names::TERMS, terms.digest()));
        let pod_sets = memory.pod_sets.of_slot(planned).map(|value| (names::POD_SETS, value.to_owned()));
        let keyed = |(key, value): (&str, String)| (key.to_owned(), value);
        claim.metadata.labels.get_or_insert_default().extend(labels.into_iter().chain(pod_sets).map(keyed));
        let annotations = annotations.into_iter().chain(owner).chain(terms);
        claim.metadata.annotations.get_or_insert_default().extend(annotations.map(keyed));
        Some(claim)
    }
}

/// Whether this claim of the gang already fills the slot of the wanted one.
pub fn fills_slot_of(claim: &NodeClaim, wanted: &NodeClaim) -> bool {
    !claim.is_deleting()
        && claim.label(names::ATTEMPT) == wanted.label(names::ATTEMPT)
        && claim.slot() == wanted.slot()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::release::custody::is_of_workload;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::plan::fixtures::Fixture;
    use crate::plan::pod_set_labels::PodSetLabels;

    fn with<T>(generation: u32, act: impl FnOnce(&NewClaims<'_>) -> T) -> T {
        let identity =
            GangIdentity { namespace: "ns".into(), workload: "w".into(), uid: "u".into(), check: "c".into() };
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        (journal.memory.attempt, journal.memory.generation) = (2, generation);
        let policy = Policy::default();
        act(&NewClaims {
            identity: &identity,
            gang_label: "gang",
            owner: None,
            journal: &journal,
            policy: &policy,
        })
    }

    #[test]
    fn a_new_claim_names_its_gang_attempt_and_slot_and_how_long_it_is_held() {
        let now = Timestamp::UNIX_EPOCH;
        let plan = Fixture::new().provisioned();
        with(0, |new| {
            let [claim] = new.of_slots(&plan, &[0, 99], now).try_into().unwrap();
            assert_eq!(claim.metadata.name, Some(new.identity.claim_name(2, 0)));
            assert!(new.identity.is_of_gang(&claim) && is_of_workload(new.identity, &claim));
            assert_eq!((claim.label(names::GANG), claim.label(names::ATTEMPT)), ("gang", "2"));
            assert_eq!((claim.slot(), claim.generation()), (Some(0), 0));
            let held = claim.annotation(names::HOLD_UNTIL).parse::<Timestamp>().unwrap();
            assert_eq!(held, now + new.policy.hold_limit.signed());
            assert_eq!(claim.annotation(names::OWNER), "");
            let owned = NewClaims { owner: Some("ns/owner"), ..*new }.of_slots(&plan, &[0], now);
            assert_eq!(owned[0].annotation(names::OWNER), "ns/owner");
        });
    }

    #[test]
    fn a_claim_names_its_pod_sets_if_the_journal_says_that_their_pods_select_it() {
        let plan = Fixture::new().provisioned();
        let label_of = |values: &[&str]| {
            with(0, |new| {
                let mut journal = new.journal.clone();
                journal.memory.pod_sets = PodSetLabels::of_values(values.iter().copied());
                let new = NewClaims { journal: &journal, ..*new };
                new.of_slots(&plan, &[0], Timestamp::UNIX_EPOCH).remove(0).label(names::POD_SETS).to_owned()
            })
        };
        assert_eq!(label_of(&["main.other", "third"]), "main.other");
        assert_eq!(label_of(&["third"]), "");
        assert_eq!(label_of(&[]), "");
    }

    #[test]
    fn a_replacement_has_a_name_of_its_own_and_fills_the_same_slot() {
        let plan = Fixture::new().provisioned();
        let made = |generation| {
            with(generation, |new| {
                (new.of_slots(&plan, &[0], Timestamp::UNIX_EPOCH).remove(0), new.are_uncounted())
            })
        };
        let ((first, first_uncounted), (second, uncounted)) = (made(0), made(1));
        assert_ne!(first.metadata.name, second.metadata.name);
        assert!(fills_slot_of(&first, &second));
        assert_eq!((first_uncounted, uncounted), (false, true));
    }
}
