//! Gangs that get their nodes late: their pods are let go already.
//!
//! Called by `observe`. Rule: a node that came up may have pods on it, so what fails at one slot ends that
//! slot alone, and nothing ends the attempt. That it has none counts once it was searched for them.

use super::claims::ClaimView;
use super::event::{Event, Standing};
use super::journal::Journal;
use super::losses::{current, first_loss, is_replaced, live};
use super::observe::Reading;
use super::reservation::Reservation;
use super::snapshot::{Freshness, Snapshot};
use super::state::State;
use jiff::Timestamp;

/// Whether pods may run on some nodes of the attempt while the others still come. Mostly nobody makes them anew; those
/// of a Job were let go on a Ready of its last reservation, which could not be taken back in time.
pub fn is_late(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    let coming = matches!(journal.state, State::Provisioning | State::WaitingReady);
    let runs = |c: &ClaimView| !c.deleting && !is_replaced(c, journal, snapshot) && c.may_have_pods();
    let_go(snapshot).is_some() && coming && current(journal, snapshot).any(runs)
}

/// How the Workload is admitted whose pods are let go on a Ready of ours.
fn let_go(snapshot: &Snapshot<'_>) -> Option<Standing> {
    match snapshot.reservation {
        Reservation::Held { standing: let_go @ (Standing::Admitted | Standing::AdmittedPods), .. } => {
            Some(*let_go)
        }
        _ => None,
    }
}

/// Whether a claim will not come whose node pods may be on, as far as the cache can tell.
pub(super) fn is_to_be_searched(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    let unsure = |c: &ClaimView| c.has_failed() && c.may_have_pods();
    snapshot.freshness == Freshness::Cached
        && is_late(journal, snapshot)
        && live(journal, snapshot).any(unsure)
}

/// Whether another claim is to take the place of one that will not come and has no pods: it is deleted once the
/// journal says so.
pub(super) fn is_given_up(claim: &ClaimView, journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    claim.generation < journal.memory.generation && is_doomed(claim) && is_late(journal, snapshot)
}

fn is_doomed(claim: &ClaimView) -> bool {
    claim.has_failed() && !claim.may_have_pods()
}

/// What is left of these events where no failure may end the attempt: a slot whose claim is lost, or will not come,
/// gets another one, as often as that takes.
pub(super) fn spared(journal: &Journal, snapshot: &Snapshot<'_>, events: Vec<Event>) -> Reading {
    let (failures, mut rest): (Vec<Event>, Vec<Event>) = events.into_iter().partition(Event::is_setback);
    let doom = || live(journal, snapshot).filter(|c| is_doomed(c)).find_map(|c| c.failure().cloned());
    let failure = first_loss(journal, snapshot).filter(|_| !failures.is_empty()).or_else(doom);
    let due = next_try(journal, snapshot).is_none_or(|at| at <= snapshot.now);
    if let (Some(failure), Some(standing), true) = (failure, let_go(snapshot), due) {
        if snapshot.freshness == Freshness::Cached {
            return Reading::NeedsQuorumRead;
        }
        rest.push(Event::Lost { failure, standing });
    }
    Reading::Events(rest)
}

/// When a lost claim is made up for: the first at once, the others paced like tries.
pub(super) fn next_try(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    match journal.memory.tries {
        0 => None,
        tries => journal.entered_at.checked_add(snapshot.policy.in_check.wait(tries).signed()).ok(),
    }
}
