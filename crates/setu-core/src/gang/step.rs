//! One step of a gang: from its journal and a snapshot to the next journal and its effects.
//!
//! Rule: only [`step`] moves a gang: in the controller, in `setu repair`, and in the model checker. A step changes the state
//! at most once, so that each change is written before the next one.

use super::decide::decide;
use super::event::{Effect, Event};
use super::journal::Journal;
use super::observation::Observation;
use super::observe::observe;
use super::rules::Rules;
use super::snapshot::Snapshot;
use super::terms::is_independent_of_terms;

/// Whether the policy or the terms that judge a gang are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JudgedBy {
    /// A policy could be read, or the terms of its attempt are known.
    Known,
    /// The parameters cannot be read, and the terms of its attempt are unknown. Only what is the same under all policies
    /// is done.
    Unknown,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The cache suggests a decision that a quorum read must confirm.
    NeedsQuorumRead,
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
    /// What to do once the journal is written.
    pub effects: Vec<Effect>,
    /// The event that changed the state, if one did.
    pub cause: Option<Event>,
}

/// Takes one step.
pub fn step(journal: &Journal, snapshot: &Snapshot<'_>, judged_by: JudgedBy, rules: &Rules) -> Step {
    let events = match observe(journal, snapshot) {
        Observation::NeedsQuorumRead => return Step::NeedsQuorumRead,
        Observation::Events(events) => events,
    };
    let may_act = |event: &Event| {
        judged_by == JudgedBy::Known
            || !journal.state.is_in_flight()
            || is_independent_of_terms(event, journal, snapshot.reservation)
    };
    let mut events = events.into_iter().filter(may_act).peekable();
    if events.peek().is_none() {
        return Step::Still;
    }
    let mut moved = Moved { journal: journal.clone(), effects: Vec::new(), cause: None };
    for event in events {
        let decision = decide(&moved.journal, &event, rules);
        let changes_state = decision.journal.seq != moved.journal.seq;
        moved.journal = decision.journal;
        moved.effects.extend(decision.effects);
        if changes_state {
            moved.cause = Some(event);
            break;
        }
    }
    if moved.effects.is_empty() && moved.journal == *journal {
        return Step::Still;
    }
    Step::Moved(Box::new(moved))
}
