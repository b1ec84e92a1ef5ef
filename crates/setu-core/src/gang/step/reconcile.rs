//! In which order a reconcile takes steps and makes requests: quorum reads, the journal, its effects, the report to Kueue.
//!
//! Rule: the order is decided here, for the controller and for the model checker. They make the requests.

use super::Step;
use super::commit::Commit;
use crate::gang::snapshot::Freshness;
use crate::gang::statechart::event::Effect;
use crate::gang::statechart::reservation::Reservation;

/// Upper bound on the steps of one reconcile. A gang needs at most six.
pub const STEPS: usize = 16;

/// What follows a step, with effects of type `E`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next<E> {
    /// Reads the gang, bypassing the caches, then takes another step.
    ReadGang,
    /// Reads what plans are made from, bypassing the caches, then takes another step.
    ReadPlanObjects,
    /// Takes another step: this one has no effects, and its journal is written with that of a later one.
    Step,
    /// Writes the journal if it changed, then runs the effects that [`Permitted`] allows, then takes another step.
    Commit(Vec<E>),
    /// Writes the journal if it changed, then reports to Kueue.
    Report,
}

/// An effect that knows whether it is a deletion.
pub trait IsDeletion {
    /// Whether it deletes.
    fn is_deletion(&self) -> bool;
}

impl IsDeletion for Effect {
    fn is_deletion(&self) -> bool {
        matches!(self, Self::DeleteClaims(_))
    }
}

/// The effects that may run after the write of their journal. The reconcile ends after them if the write failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permitted<E> {
    /// These.
    pub effects: Vec<E>,
    /// Whether a request must confirm the journal before: only a write proves that it is current.
    pub needs_confirmation: bool,
}

impl Next<Effect> {
    /// What follows a step that was based on objects of the gang with this freshness.
    pub fn after(step: Step, freshness: Freshness) -> Self {
        match step {
            Step::NeedsQuorumRead => Self::ReadGang,
            // A decision that rests on a plan rests on the gang as well.
            Step::NeedsPlanRead if freshness == Freshness::Cached => Self::ReadGang,
            Step::NeedsPlanRead => Self::ReadPlanObjects,
            Step::Moved(moved) if moved.effects.is_empty() => Self::Step,
            Step::Moved(moved) => Self::Commit(moved.effects),
            Step::Still => Self::Report,
        }
    }
}

impl<E: IsDeletion> Permitted<E> {
    /// The effects that may run after the write of their journal ended like this, under this reservation.
    pub fn after(commit: Commit, reservation: &Reservation, mut effects: Vec<E>) -> Self {
        let permission = commit.permits(reservation);
        effects.retain(|effect| permission.allows(effect.is_deletion()));
        let needs_confirmation = commit.needs_confirmation() && !effects.is_empty();
        Self { effects, needs_confirmation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::reservation::{AdmissionId, AdmissionPhase, Ending};

    #[test]
    fn a_decision_that_rests_on_a_plan_needs_the_gang_and_then_the_plans_objects() {
        assert_eq!(Next::after(Step::NeedsPlanRead, Freshness::Cached), Next::ReadGang);
        assert_eq!(Next::after(Step::NeedsPlanRead, Freshness::Quorum), Next::ReadPlanObjects);
    }

    #[test]
    fn after_a_failed_write_only_deletions_of_a_gang_without_a_reservation_run() {
        let (create, delete) = (Effect::CreateClaims(vec![0]), Effect::DeleteClaims(vec!["c".into()]));
        let held =
            Reservation::Held { admission: AdmissionId("1-0-a".into()), phase: AdmissionPhase::Reserved };
        let gone = Reservation::Gone(Ending::Evicted);
        let unlisted = Reservation::Gone(Ending::CheckRemoved);
        let both = vec![create, delete.clone()];
        for (commit, reservation, runs) in [
            (Commit::Written, &held, both.clone()),
            (Commit::Unneeded, &gone, both.clone()),
            (Commit::Unanswered, &held, vec![]),
            (Commit::Unanswered, &unlisted, vec![]),
            (Commit::Unanswered, &gone, vec![delete]),
            (Commit::Conflict, &held, vec![]),
            (Commit::Conflict, &gone, vec![]),
        ] {
            assert_eq!(commit.needs_confirmation(), commit != Commit::Written);
            let needs_confirmation = commit != Commit::Written && !runs.is_empty();
            let permitted = Permitted::after(commit, reservation, both.clone());
            assert_eq!(
                permitted,
                Permitted { effects: runs, needs_confirmation },
                "{commit:?} {reservation:?}"
            );
        }
    }
}
