//! Gangs that get their nodes late: their pods are let go already, and nobody makes them anew.
//!
//! Called by `observe`. Rule: a node that came up may have pods on it, so what fails at one slot ends that
//! slot alone, and nothing ends the attempt. That it has none counts once it was searched for them.

use super::claims::ClaimView;
use super::event::{Event, Standing};
use super::facts::{Facts, Sight};
use super::journal::Journal;
use super::losses::{first_loss, live};
use super::observe::Reading;
use super::reservation::Reservation;
use super::state::State;
use jiff::Timestamp;

/// Whether pods that nobody makes anew may run on some nodes of the attempt while the others still come.
pub fn is_late(journal: &Journal, facts: &Facts<'_>) -> bool {
    let let_go = matches!(facts.reservation, Reservation::Held { standing: Standing::AdmittedPods, .. });
    let coming = matches!(journal.state, State::Provisioning | State::WaitingReady);
    let_go && coming && live(journal, facts).any(ClaimView::may_have_pods)
}

/// Whether a claim will not come whose node pods may be on, as far as the cache can tell.
pub(super) fn is_to_be_searched(journal: &Journal, facts: &Facts<'_>) -> bool {
    let unsure = |c: &ClaimView| c.has_failed() && c.may_have_pods();
    facts.sight == Sight::Cached && is_late(journal, facts) && live(journal, facts).any(unsure)
}

/// Claims that will not come and have no pods: only these are deleted, so that others can take their places.
pub(super) fn doomed(journal: &Journal, facts: &Facts<'_>) -> Vec<String> {
    if !is_late(journal, facts) {
        return Vec::new();
    }
    let failed = live(journal, facts).filter(|c| c.has_failed() && !c.may_have_pods());
    failed.map(|c| c.name.clone()).collect()
}

/// What is left of these events where no failure may end the attempt: a slot that lost its claim gets another
/// one, as often as that takes.
pub(super) fn spared(journal: &Journal, facts: &Facts<'_>, events: Vec<Event>) -> Reading {
    let (failures, mut rest): (Vec<Event>, Vec<Event>) = events.into_iter().partition(Event::is_setback);
    let due = next_try(journal, facts).is_none_or(|at| at <= facts.now);
    if let Some(failure) = first_loss(journal, facts).filter(|_| due && !failures.is_empty()) {
        if facts.sight == Sight::Cached {
            return Reading::LookAgain;
        }
        rest.push(Event::Lost { failure, standing: Standing::AdmittedPods });
    }
    Reading::Events(rest)
}

/// When a lost claim is made up for: the first at once, the others paced like tries.
pub(super) fn next_try(journal: &Journal, facts: &Facts<'_>) -> Option<Timestamp> {
    match journal.memory.tries {
        0 => None,
        tries => journal.entered_at.checked_add(facts.policy.in_check.wait(tries).signed()).ok(),
    }
}
