//! Handles one event by the statechart: `(journal, event) → (journal', effects)`.
//!
//! Rule: deterministic and total. The same journal, event and rules give the same result at every
//! replica, and no event can make it fail.

use super::chart::GangChart;
use super::event::{Effect, Event};
use super::journal::Journal;
use super::rules::Rules;
use super::step_context::StepContext;
use statig::Outcome;
use statig::blocking::StateExt as _;

/// The result of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The journal afterwards; equal to the one before if nothing changed.
    pub journal: Journal,
    /// Effects to run once the journal is durable.
    pub effects: Vec<Effect>,
}

/// Handles one event.
pub fn decide(journal: &Journal, event: &Event, rules: &Rules) -> Decision {
    let mut state = journal.state.clone();
    let mut context = StepContext::new(journal, rules);
    let outcome = state.handle(&mut GangChart, event, &mut context);
    let mut next = journal.clone();
    if let Outcome::Transition(mut target) = outcome {
        let (exits, enters) = state.transition_path(&mut target);
        state.exit(&mut GangChart, &mut context, exits);
        target.enter(&mut GangChart, &mut context, enters);
        next.memory = context.memory;
        next.record(target, event.reason(), rules.now);
    } else {
        next.memory = context.memory;
        next.state = state;
    }
    let resumes = journal.state.is_over() && !next.state.is_over();
    if resumes || next.memory.admission != journal.memory.admission {
        next.start_trace(journal, rules.now);
    }
    Decision { journal: next, effects: context.effects }
}
