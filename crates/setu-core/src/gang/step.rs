//! One step of a gang: from its journal and a snapshot to the next journal and its effects.
//!
//! Rule: only [`step`] moves a gang: in the controller, in `setu repair`, and in the model checker. A step changes the state
//! at most once, so that each change is written before the next one.

mod adoption;
pub mod approved;
pub mod attempt_plan;
mod attempting;
pub mod commit;
pub mod consequences;
pub mod new_claims;
pub mod observation;
pub mod observe;
pub(super) mod option_retry;
pub mod planning;
pub mod reconcile;
pub(super) mod replacement;
mod ungated_pods;
mod validating;
pub mod wake;

use crate::gang::snapshot::Snapshot;
use crate::gang::statechart::attempt_terms::{PolicySource, is_independent_of_terms, record_terms};
use crate::gang::statechart::decide::decide;
use crate::gang::statechart::event::{Effect, Event};
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::rules::Rules;
use crate::gang::statechart::state::State;
use crate::plan::Outcome;
use observation::Observation;
use observe::observe;

/// The result of one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The cache suggests a decision that a quorum read of the gang must confirm.
    NeedsQuorumRead,
    /// The plan suggests a decision that must be confirmed by a quorum read of the gang and of what plans are made from.
    NeedsPlanRead,
    /// Nothing changes.
    Still,
    /// The journal changes, or there are effects.
    Moved(Box<Moved>),
}

/// The result of a step that changes something.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The next journal; unchanged if there are only effects to run.
    pub journal: Journal,
    /// Effects to run once the journal is written.
    pub effects: Vec<Effect>,
    /// The event that changed the state, if one did.
    pub cause: Option<Event>,
}

/// Takes one step.
pub fn step(stored: &Journal, snapshot: &Snapshot<'_>) -> Step {
    let rules =
        Rules { eviction: snapshot.eviction, ..Rules::new(snapshot.policy, snapshot.now, snapshot.jitter) };
    let mut journal = stored.clone();
    bound_deadline(&mut journal, snapshot);
    let events = match observe(&journal, snapshot) {
        Observation::NeedsQuorumRead => return Step::NeedsQuorumRead,
        Observation::NeedsPlanRead => return Step::NeedsPlanRead,
        Observation::Events(events) => events,
    };
    let may_act = |event: &Event| {
        !matches!(snapshot.policy_source, PolicySource::Unknown)
            || !journal.state.is_in_flight()
            || is_independent_of_terms(event, &journal, snapshot.reservation)
    };
    let mut moved = Moved { journal: journal.clone(), effects: Vec::new(), cause: None };
    for event in events.into_iter().filter(may_act) {
        let decision = decide(&moved.journal, &event, &rules);
        let changes_state = decision.journal.seq != moved.journal.seq;
        moved.journal = decision.journal;
        moved.effects.extend(decision.effects);
        if changes_state {
            moved.cause = Some(event);
            break;
        }
    }
    name_tier(&mut moved.journal, &journal, snapshot.policy_source);
    record_terms(&mut moved.journal, &journal.memory, snapshot.policy_source);
    if moved.effects.is_empty() && moved.journal == *stored {
        return Step::Still;
    }
    Step::Moved(Box::new(moved))
}

/// Limits the deadline to what the policy gives. While the policy is unknown, only a gang that has nothing yet gets one. During
/// a wait without a limit the gang has no deadline, so that this time does not count towards its next wait.
fn bound_deadline(journal: &mut Journal, snapshot: &Snapshot<'_>) {
    let is_validating = journal.state == State::Validating;
    if is_validating && snapshot.plan.is_some_and(Outcome::waits_without_deadline) {
        journal.memory.deadline = None;
        return;
    }
    let begins = is_validating && journal.memory.deadline.is_none();
    if begins || !matches!(snapshot.policy_source, PolicySource::Unknown) {
        journal.bound_deadline(snapshot.now, snapshot.policy.deadlines.gang.signed());
    }
}

/// Records the policy's name for the tier at a transition or a change of tier.
fn name_tier(journal: &mut Journal, before: &Journal, by: PolicySource<'_>) {
    let tier = journal.memory.option.tier;
    if let PolicySource::Policy(policy) = by
        && (journal.seq != before.seq || tier != before.memory.option.tier)
    {
        journal.name_tier(policy.tier_name(tier));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::reservation::{AdmissionId, AdmissionPhase, Reservation};
    use crate::plan::{Obstacle, ObstacleReason};
    use crate::policy::Policy;
    use jiff::Timestamp;

    /// The deadline after a step of a gang that had none and waits for its plan, or for its nodes.
    fn deadline(state: State, policy_source: PolicySource<'_>, policy: &Policy) -> Option<Timestamp> {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let admission = AdmissionId("1-0-a".into());
        let mut journal = Journal::new("uid", admission.clone(), now, None);
        (journal.state, journal.memory.slots) = (state, 1);
        let reservation = Reservation::Held { admission, phase: AdmissionPhase::Reserved };
        let waits = Outcome::Wait(Obstacle::new(ObstacleReason::CapacityShort, "none"));
        let snapshot = Snapshot {
            policy_source,
            plan: Some(&waits),
            freshness: crate::gang::Freshness::Quorum,
            ..Snapshot::of(now, &reservation, policy)
        };
        match step(&journal, &snapshot) {
            Step::Moved(moved) => moved.journal.memory.deadline,
            Step::Still => None,
            Step::NeedsQuorumRead | Step::NeedsPlanRead => panic!("all is current"),
        }
    }

    #[test]
    fn a_missing_deadline_is_set_unless_an_attempt_in_flight_has_an_unknown_policy() {
        let policy = Policy::default();
        let due = Timestamp::from_second(1_800_000_000).unwrap() + policy.deadlines.gang.signed();
        for (state, by, expected) in [
            (State::Validating, PolicySource::Policy(&policy), Some(due)),
            (State::Validating, PolicySource::Unknown, Some(due)),
            (State::WaitingReady, PolicySource::Terms, Some(due)),
            (State::WaitingReady, PolicySource::Unknown, None),
        ] {
            assert_eq!(deadline(state.clone(), by, &policy), expected, "{state:?} {by:?}");
        }
    }

    #[test]
    fn a_wait_without_a_deadline_does_not_count_for_the_next_wait() {
        let (policy, start) = (Policy::default(), Timestamp::from_second(1_800_000_000).unwrap());
        let admission = AdmissionId("1-0-a".into());
        let mut journal = Journal::new("uid", admission.clone(), start, None);
        let reservation = Reservation::Held { admission, phase: AdmissionPhase::Reserved };
        let limit = policy.deadlines.gang.signed();
        for (reason, now, deadline) in [
            (ObstacleReason::CapacityShort, start, Some(start + limit)),
            (ObstacleReason::OtherChecks, start + limit, None),
            (ObstacleReason::CapacityShort, start + limit + limit, Some(start + limit + limit + limit)),
        ] {
            let waits = Outcome::Wait(Obstacle::new(reason, "none"));
            let snapshot = Snapshot { plan: Some(&waits), ..Snapshot::of(now, &reservation, &policy) };
            let Step::Moved(moved) = step(&journal, &snapshot) else { panic!("the deadline changes") };
            assert_eq!((moved.journal.memory.deadline, moved.cause), (deadline, None), "{reason}");
            journal = moved.journal;
            assert_eq!(step(&journal, &snapshot), Step::Still, "{reason}");
        }
    }
}
