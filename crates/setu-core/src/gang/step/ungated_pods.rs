//! Gangs that get their nodes late: their pods may already start.
//!
//! Used by `observe`. Rule: a node that came up may have pods, so a failure ends only its slot, never the attempt. A node
//! counts as empty only after a search for its pods.

use super::observation::Observation;
use crate::gang::snapshot::Freshness;
use crate::gang::snapshot::attempt::{Attempt, SlotStatus};
use crate::gang::statechart::event::Event;
use jiff::Timestamp;

/// Whether the cache shows a failed claim whose node may have pods.
pub(super) fn needs_pod_search(attempt: &Attempt<'_>) -> bool {
    attempt.snapshot.freshness == Freshness::Cached
        && attempt.pods_may_run()
        && attempt.claims().any(|c| c.has_failed() && c.may_have_pods())
}

/// Filters the events of an attempt that no failure may end. A slot whose claim is lost or has failed gets another one,
/// without a limit.
pub(super) fn keep_attempt(attempt: &Attempt<'_>, events: Vec<Event>) -> Observation {
    let (failures, mut rest): (Vec<Event>, Vec<Event>) = events.into_iter().partition(Event::is_setback);
    let doomed = |slot| match slot {
        SlotStatus::Failed(claim, failure) if claim.is_doomed() => Some(failure),
        _ => None,
    };
    let lost = attempt.first_loss().filter(|_| !failures.is_empty());
    let failure = lost.or_else(|| attempt.slots().find_map(|(_, slot)| doomed(slot)));
    let is_due = next_try(attempt).is_none_or(|at| at <= attempt.snapshot.now);
    if let (Some(failure), Some(phase), true) = (failure, attempt.phase_with_pods(), is_due) {
        if attempt.snapshot.freshness == Freshness::Cached {
            return Observation::NeedsQuorumRead;
        }
        rest.push(Event::Lost { failure: failure.clone(), phase });
    }
    Observation::Events(rest)
}

/// When a lost claim is replaced: the first at once, later ones after the waits of tries.
pub(super) fn next_try(attempt: &Attempt<'_>) -> Option<Timestamp> {
    let journal = attempt.journal;
    match journal.memory.tries {
        0 => None,
        tries => journal.entered_at.checked_add(attempt.snapshot.policy.in_check.wait(tries).signed()).ok(),
    }
}
