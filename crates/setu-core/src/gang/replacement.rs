//! What is done about slots that lost their node: another claim for each of them, the end of the attempt, or nothing.
//!
//! Called by `observe`.

use super::event::{AdmissionPhase, Event};
use super::failure::Failure;
use super::loss::Loss;
use super::observe::Reading;
use super::reservation::{Ending, Reservation};
use super::slot::Attempt;
use super::snapshot::Freshness;
use crate::api::parameters::OnNodeLost;
use crate::plan::Outcome;
use jiff::Timestamp;

/// What this event of its reservation means for the nodes that a gang has. Where nothing replaces those that it
/// lost under its last admission, the next one is not held to them, and begins with nodes of its own. So it does where
/// the hold on them has run out while it was admitted: it would end the next attempt at once, and the sweep its nodes.
pub(super) fn carried_over(attempt: &Attempt<'_>, event: Event) -> Reading {
    let anew = matches!(event, Event::Reserved { phase: AdmissionPhase::Reserved, .. });
    let carries = anew && attempt.journal.state.is_approved();
    let ends = || Reading::Events(vec![Event::Gone(Ending::Superseded)]);
    if carries && attempt.hold_is_over() {
        return ends();
    }
    let kept = carries && attempt.snapshot.policy.on_node_lost != OnNodeLost::Replace;
    match attempt.snapshot.freshness {
        _ if !kept || attempt.is_filled() => Reading::Events(vec![event]),
        Freshness::Cached => Reading::NeedsQuorumRead,
        Freshness::Quorum => ends(),
    }
}

/// The loss for which a gang that was approved, and is not admitted yet, must not be.
pub(super) fn regretted<'a>(attempt: &Attempt<'a>) -> Option<&'a Failure> {
    let minds = attempt.journal.state.is_approved()
        && attempt.awaits_admission()
        && attempt.snapshot.policy.on_node_lost != OnNodeLost::Ignore;
    minds.then(|| attempt.first_loss())?
}

/// Whether this shortage is left to the next tier for the slots that it took alone.
pub(super) fn falls_in_part(attempt: &Attempt<'_>, failure: &Failure) -> bool {
    attempt.snapshot.policy.mixed_tiers
        && attempt.journal.memory.option.past(failure.reason).is_some()
        && attempt.first_loss() == Some(failure)
}

/// Whether this is what an earlier way took, without a word of what is short, from a gang of several tiers.
/// The way that is gone by now was not tried for that slot, so it is neither skipped nor the end.
fn is_superseded(attempt: &Attempt<'_>, failure: &Failure) -> bool {
    let is_earlier = |loss: &Loss| matches!(loss, Loss::Superseded(of) if of == failure);
    attempt.journal.is_mixed(attempt.snapshot.policy)
        && !failure.reason.names_what_is_short()
        && attempt.journal.memory.option.still(failure.reason).is_some()
        && attempt.first_loss() == Some(failure)
        && attempt.slots().filter_map(|(_, slot)| slot.loss()).any(is_earlier)
}

/// What this failure is for a gang that waits for its nodes: a loss that is made up for, or the attempt's end.
pub(super) fn lost_or_failed(attempt: &Attempt<'_>, failure: &Failure) -> Event {
    let is_lost = || failure.reason.is_node_loss() || falls_in_part(attempt, failure);
    let superseded = is_superseded(attempt, failure);
    let failure = failure.clone();
    if superseded {
        return Event::Superseded(failure);
    }
    if is_lost() { Event::Lost { failure, phase: AdmissionPhase::Reserved } } else { Event::Failed(failure) }
}

/// What an admitted gang needs that lost nodes: nobody but us can give its pods others, because they
/// ask for the gang's own label. The pods of a slice that was replaced run on, and its nodes are still its own.
pub(super) fn replace_lost(attempt: &Attempt<'_>) -> Option<Reading> {
    let Attempt { journal, snapshot, .. } = attempt;
    let phase = match snapshot.reservation {
        Reservation::Held { phase, .. } => phase,
        Reservation::Leaving(Ending::Replaced) => &AdmissionPhase::AdmittedPods,
        Reservation::Leaving(_) | Reservation::Gone(_) => return None,
    };
    if !phase.lets_pods_go()
        || !journal.state.holds_nodes()
        || snapshot.policy.on_node_lost != OnNodeLost::Replace
    {
        return None;
    }
    let event = |event| Some(Reading::Events(vec![event]));
    let is_replacing = journal.state.creates_claims();
    if attempt.is_filled() {
        let is_whole_again = journal.memory.tries > 0 && attempt.is_ready();
        return match (is_replacing, is_whole_again) {
            (true, _) => event(Event::ClaimsExist),
            (false, true) => event(Event::NodesReady),
            (false, false) => None,
        };
    }
    let rests = replaces_at(attempt).is_none_or(|at| at > snapshot.now);
    if !is_replacing && rests {
        return None;
    }
    if snapshot.freshness == Freshness::Cached {
        return Some(Reading::NeedsQuorumRead);
    }
    let missing = attempt.missing();
    match snapshot.plan {
        _ if !is_replacing || missing.is_empty() => {}
        Some(Outcome::Provision(plan)) if journal.is_begun_with_but_for_types(plan) => {
            return event(Event::ClaimsMissing(missing));
        }
        // What it was given is no longer to be had like that; its pods decide what comes of it.
        _ => return None,
    }
    if rests {
        return None;
    }
    event(Event::Lost { failure: attempt.first_loss()?.clone(), phase: *phase })
}

/// When the next replacement for an admitted gang may begin: the first at once, the others paced like
/// tries. `None` if none is due, or all tries are used up.
pub(super) fn replaces_at(attempt: &Attempt<'_>) -> Option<Timestamp> {
    let (journal, pace) = (attempt.journal, attempt.snapshot.policy.in_check);
    match journal.memory.tries {
        _ if attempt.is_filled() => None,
        tries if tries >= pace.limit => None,
        0 => Some(journal.entered_at),
        tries => journal.entered_at.checked_add(pace.wait(tries).signed()).ok(),
    }
}

/// Whether a node of a gang that may run is lost and nothing has taken its place yet.
pub(super) fn is_broken(attempt: &Attempt<'_>) -> bool {
    attempt.journal.state.creates_claims() || attempt.has_losses()
}
