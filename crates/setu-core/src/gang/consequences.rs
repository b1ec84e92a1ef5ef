//! What a gang's step means for what is kept about gangs besides their journals: options, plans, refusals, shortages.

use super::event::Event;
use super::failure::Failure;
use super::journal::Journal;
use super::option_position::OptionPosition;
use super::state::State;
use super::step::Moved;
use crate::api::parameters::Compat;
use crate::policy::Policy;

/// What follows from a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consequences<'m> {
    /// Set if the gang's option is to be recorded: the one it has reached, or none once it is over.
    pub option: Option<Option<OptionPosition>>,
    /// Whether the attempt goes on with another option. The plan accepted for the previous one does not apply to it.
    pub is_elsewhere: bool,
    /// Whether the gang was refused.
    pub is_refused: bool,
    /// The failure that may show what is out of capacity.
    pub failure: Option<&'m Failure>,
    /// Whether nodes that others give back end the gang's wait early.
    pub awaits_nodes: bool,
}

impl<'m> Consequences<'m> {
    /// What follows from a step from this journal under this policy.
    pub fn of(before: &Journal, moved: &'m Moved, policy: &Policy) -> Self {
        let after = &moved.journal;
        let begun = before.state != State::Validating;
        let falls = after.is_mixed(policy) && after.memory.generation != before.memory.generation;
        let is_elsewhere = begun
            && after.state == State::Provisioning
            && (falls || after.memory.option != before.memory.option);
        let option = (!after.state.is_over()).then_some(after.memory.option);
        let failure = match &moved.cause {
            Some(Event::Failed(failure) | Event::Lost { failure, .. }) => Some(failure),
            _ => None,
        };
        let is_exhausted = failure.is_some_and(|failure| failure.reason.counts_as_short());
        Self {
            option: (moved.cause.is_some() || is_elsewhere).then_some(option),
            is_elsewhere,
            is_refused: matches!(moved.cause, Some(Event::Refused(_))),
            failure,
            // `compat: Setu` never ends back-off early, like the first Setu.
            awaits_nodes: is_exhausted && policy.compat == Compat::None,
        }
    }
}
