//! In which order a reconcile takes steps and makes requests: quorum reads, the journal, its effects, the report to Kueue.
//!
//! Rule: the order is decided here, for the controller and for the model checker. They make the requests.

use super::Step;
use crate::gang::snapshot::Freshness;
use crate::gang::statechart::event::Effect;

/// Upper bound on the steps of one reconcile. A gang needs at most six.
pub const STEPS: usize = 16;

/// The next action after a step, with effects of type `E`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Next<E> {
    /// Reads the gang, bypassing the caches, then takes another step.
    ReadGang,
    /// Reads what plans are made from, bypassing the caches, then takes another step.
    ReadPlanObjects,
    /// Takes another step: this one has no effects, and its journal is written with that of a later one.
    Step,
    /// Writes the journal if it changed, then runs the effects that [`Permitted`](super::commit::Permitted) allows, then takes
    /// another step.
    Commit(Vec<E>),
    /// Writes the journal if it changed, then reports to Kueue.
    Report,
}

impl Next<Effect> {
    /// The next action after a step that was based on objects of the gang with this freshness.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_that_rests_on_a_plan_needs_the_gang_and_then_the_plans_objects() {
        assert_eq!(Next::after(Step::NeedsPlanRead, Freshness::Cached), Next::ReadGang);
        assert_eq!(Next::after(Step::NeedsPlanRead, Freshness::Quorum), Next::ReadPlanObjects);
    }
}
