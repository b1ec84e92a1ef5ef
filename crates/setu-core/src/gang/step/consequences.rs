//! Consequences of a gang's step for the records kept besides its journal: options, plans, refusals and shortages.

use super::Moved;
use crate::api::parameters::Compat;
use crate::gang::snapshot::Snapshot;
use crate::gang::statechart::attempt_terms::PolicySource;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::option_position::OptionPosition;
use crate::gang::statechart::state::{Nodes, State};
use crate::plan::Plan;
use jiff::Timestamp;

/// The consequences of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consequences<'m> {
    /// The journal after the step.
    pub journal: &'m Journal,
    /// The change of the option that is recorded for the gang.
    pub option: OptionChange,
    /// Whether the attempt goes on with another option. The plan accepted for the previous one does not apply to it.
    pub is_elsewhere: bool,
    /// Until when the gang is refused, if it was.
    pub refused_until: Option<Timestamp>,
    /// The failure that may show what is out of capacity.
    pub failure: Option<&'m Failure>,
    /// Whether nodes that others give back end the gang's wait early.
    pub awaits_nodes: bool,
    /// Whether an attempt begins with terms that are too large for the journal: another replica would judge it by the policy
    /// of that time.
    pub lacks_terms: bool,
}

/// The change of the option that a replica records for a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum OptionChange {
    /// There is none.
    #[default]
    Unchanged,
    /// The gang has reached this one.
    Reached(OptionPosition),
    /// It is forgotten, because the gang is over.
    Forgotten,
}

/// The change that a gang's state makes to its entry in the ledger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LedgerChange<'p> {
    /// This plan is being carried out, and is entered.
    Enter(&'p Plan),
    /// An unknown plan is being carried out: the existing entry stays.
    Keep,
    /// All its claims exist: others no longer wait for it to be entered.
    Complete,
    /// It has no plan that others must count.
    Remove,
}

impl<'p> LedgerChange<'p> {
    /// For a gang in this state with this plan.
    pub fn of(state: &State, plan: Option<&'p Plan>) -> Self {
        match (state, plan) {
            (State::Provisioning, Some(plan)) => Self::Enter(plan),
            (State::Provisioning, None) => Self::Keep,
            (State::WaitingReady, _) => Self::Complete,
            _ => Self::Remove,
        }
    }
}

impl<'m> Consequences<'m> {
    /// The consequences of a step that was taken from this journal with this snapshot.
    pub fn of(before: &Journal, moved: &'m Moved, snapshot: &Snapshot<'_>) -> Self {
        let (after, policy) = (&moved.journal, snapshot.policy);
        let begun = before.state != State::Validating;
        let falls = after.is_mixed(policy) && after.memory.generation != before.memory.generation;
        let is_elsewhere = begun
            && after.state == State::Provisioning
            && (falls || after.memory.option != before.memory.option);
        let option = match after.state.is_over() {
            _ if moved.cause.is_none() && !is_elsewhere => OptionChange::Unchanged,
            true => OptionChange::Forgotten,
            false => OptionChange::Reached(after.memory.option),
        };
        let failure = match &moved.cause {
            Some(Event::Failed(failure) | Event::Lost { failure, .. }) => Some(failure),
            _ => None,
        };
        let is_exhausted = failure.is_some_and(|failure| failure.reason.counts_as_short());
        Self {
            journal: after,
            option,
            is_elsewhere,
            refused_until: match moved.cause {
                Some(Event::Refused(_)) => Some(refused_until(after, snapshot)),
                _ => None,
            },
            failure,
            // `compat: Setu` never ends back-off early, like the first Setu.
            awaits_nodes: is_exhausted && policy.compat == Compat::None,
            lacks_terms: after.memory.attempt != before.memory.attempt
                && after.state.wants_claims()
                && Nodes::of(after.memory.slots) != Nodes::Unneeded
                && after.memory.terms.is_none()
                && matches!(snapshot.policy_source, PolicySource::Policy(_)),
        }
    }
}

/// Until when a refused gang stays out of Kueue's queue, if nothing changes before.
fn refused_until(journal: &Journal, snapshot: &Snapshot<'_>) -> Timestamp {
    let refusals = journal.memory.yields.saturating_add(journal.memory.waits);
    let again = snapshot.now + snapshot.policy.yielding.wait(refusals).signed();
    snapshot.plan.map_or(again, |plan| plan.refused_until(again))
}
