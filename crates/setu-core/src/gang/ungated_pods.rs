//! Gangs that get their nodes late: their pods are let go already.
//!
//! Called by `observe`. Rule: a node that came up may have pods on it, so what fails at one slot ends that
//! slot alone, and nothing ends the attempt. That it has none counts once it was searched for them.

use super::event::Event;
use super::observe::Reading;
use super::slot::{Attempt, SlotStatus};
use super::snapshot::Freshness;
use jiff::Timestamp;

/// Whether a claim will not come whose node pods may be on, as far as the cache can tell.
pub(super) fn is_to_be_searched(attempt: &Attempt<'_>) -> bool {
    attempt.snapshot.freshness == Freshness::Cached
        && attempt.pods_may_run()
        && attempt.claims().any(|c| c.has_failed() && c.may_have_pods())
}

/// What is left of these events where no failure may end the attempt: a slot whose claim is lost, or will not come,
/// gets another one, as often as that takes.
pub(super) fn spared(attempt: &Attempt<'_>, events: Vec<Event>) -> Reading {
    let (failures, mut rest): (Vec<Event>, Vec<Event>) = events.into_iter().partition(Event::is_setback);
    let doomed = |slot| match slot {
        SlotStatus::Failed(claim, failure) if claim.is_doomed() => Some(failure),
        _ => None,
    };
    let lost = attempt.first_loss().filter(|_| !failures.is_empty());
    let failure = lost.or_else(|| attempt.slots().find_map(|(_, slot)| doomed(slot)));
    let is_due = next_try(attempt).is_none_or(|at| at <= attempt.snapshot.now);
    if let (Some(failure), Some(phase), true) = (failure, attempt.pods_let_go(), is_due) {
        if attempt.snapshot.freshness == Freshness::Cached {
            return Reading::NeedsQuorumRead;
        }
        rest.push(Event::Lost { failure: failure.clone(), phase });
    }
    Reading::Events(rest)
}

/// When a lost claim is made up for: the first at once, the others paced like tries.
pub(super) fn next_try(attempt: &Attempt<'_>) -> Option<Timestamp> {
    let journal = attempt.journal;
    match journal.memory.tries {
        0 => None,
        tries => journal.entered_at.checked_add(attempt.snapshot.policy.in_check.wait(tries).signed()).ok(),
    }
}
