//! One step of a gang: from its journal and a snapshot to the next journal and to what follows from it.
//!
//! Rule: a gang moves by [`step`] alone, in the controller, in `setu repair`, and in the model checker that proves the steps. A
//! step changes the state once at most, so that each change is written before the next one.

use super::decide::{Rules, decide};
use super::event::{Effect, Event};
use super::journal::Journal;
use super::observe::{Reading, observe};
use super::snapshot::Snapshot;
use super::terms::is_the_same_under_all;

/// Whether it is known what a gang is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JudgedBy {
    /// By a policy that could be read, or by the terms of its attempt.
    Known,
    /// The parameters cannot be read, and the terms of its attempt are not known: only what is the same under all
    /// policies is done.
    Unknown,
}

/// What one step comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// What the caches show points to a decision that a quorum read has to confirm.
    NeedsQuorumRead,
    /// Nothing changes.
    Still,
    /// The journal changes, or something is to be done.
    Moved(Box<Moved>),
}

/// Where a step leads.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The next journal; the same as before where only effects are left to be run.
    pub journal: Journal,
    /// What is to be done once the journal is written.
    pub effects: Vec<Effect>,
    /// The event that changed the state, if one did.
    pub cause: Option<Event>,
}

/// Takes a gang one step further.
pub fn step(journal: &Journal, snapshot: &Snapshot<'_>, judged_by: JudgedBy, rules: &Rules) -> Step {
    let events = match observe(journal, snapshot) {
        Reading::NeedsQuorumRead => return Step::NeedsQuorumRead,
        Reading::Events(events) => events,
    };
    let may_act = |event: &Event| {
        judged_by == JudgedBy::Known
            || !journal.state.is_in_flight()
            || is_the_same_under_all(event, journal, snapshot.reservation)
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
