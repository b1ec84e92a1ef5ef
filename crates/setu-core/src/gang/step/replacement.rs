//! Slots that lost their node: each gets another claim, the attempt ends, or nothing happens.
//!
//! Used by `observe`.

use super::observation::Observation;
use crate::api::parameters::OnNodeLost;
use crate::gang::snapshot::Freshness;
use crate::gang::snapshot::attempt::{Attempt, SlotStatus};
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::snapshot::loss::Loss;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::reservation::{AdmissionPhase, Ending, Reservation};
use crate::gang::statechart::state::{Nodes, State};
use crate::plan::Outcome;
use jiff::Timestamp;

/// Turns a reservation event into an observation, by whether the gang's existing nodes carry over to the next admission. An
/// incomplete set does so only if lost nodes are replaced. No set carries over after its hold has ended: the hold would end the
/// next attempt at once, and the sweep would delete the nodes.
pub(super) fn carry_nodes_over(attempt: &Attempt<'_>, event: Event) -> Observation {
    let anew = matches!(event, Event::Reserved { phase: AdmissionPhase::Reserved, .. });
    let carries = anew && attempt.journal.state.is_approved();
    let ends = Event::Gone(Ending::Superseded);
    if carries && attempt.hold_is_over() {
        return Observation::of(ends);
    }
    let kept = carries && attempt.snapshot.policy.on_node_lost != OnNodeLost::Replace;
    if kept && !attempt.is_filled() {
        return Observation::confirmed(attempt.snapshot, ends);
    }
    Observation::of(event)
}

/// Whether only the slots that hit this shortage move to another tier.
pub(super) fn moves_lost_slots(attempt: &Attempt<'_>, failure: &Failure) -> bool {
    attempt.snapshot.policy.mixed_tiers
        && attempt.journal.memory.option.next_for_lost(failure.reason).is_some()
        && attempt.first_loss() == Some(failure)
}

/// Whether this is the loss of a claim of an earlier option, in a gang of several tiers, and nothing says what is short.
/// The current option was not tried for that slot, so it is tried now, even if it is the last one.
fn is_of_earlier_option(attempt: &Attempt<'_>, failure: &Failure) -> bool {
    let is_earlier = |loss: &Loss| matches!(loss, Loss::Superseded(of) if of == failure);
    attempt.journal.is_mixed(attempt.snapshot.policy)
        && !failure.reason.is_certain_shortage()
        && attempt.journal.memory.option.current_for_lost(failure.reason).is_some()
        && attempt.first_loss() == Some(failure)
        && attempt.slots().filter_map(|(_, slot)| slot.loss()).any(is_earlier)
}

/// The event for a failure of a gang that waits for its nodes: a loss that is replaced, or the end of the attempt.
pub(super) fn lost_or_failed(attempt: &Attempt<'_>, failure: &Failure) -> Event {
    let is_lost = || failure.reason.is_node_loss() || moves_lost_slots(attempt, failure);
    let superseded = is_of_earlier_option(attempt, failure);
    let failure = failure.clone();
    if superseded {
        return Event::Superseded(failure);
    }
    if is_lost() { Event::Lost { failure, phase: AdmissionPhase::Reserved } } else { Event::Failed(failure) }
}

/// Replaces lost nodes of an admitted gang. Only Setu can, because the pods select the gang's own label. The pods of a
/// replaced slice keep running, and its nodes still belong to it.
pub(super) fn replace_lost(attempt: &Attempt<'_>) -> Option<Observation> {
    let Attempt { journal, snapshot, .. } = attempt;
    let phase = phase_with_replacements(attempt)?;
    let event = |event| Some(Observation::of(event));
    let is_replacing = journal.state.creates_claims();
    let failed = failed_replacement(attempt);
    if attempt.is_filled() && failed.is_none() {
        let is_whole_again = journal.memory.tries > 0 && attempt.is_ready();
        return match (is_replacing, is_whole_again) {
            (true, _) => event(Event::ClaimsExist),
            (false, true) => event(Event::NodesReady),
            (false, false) => None,
        };
    }
    let rests = next_replacement(attempt).is_none_or(|at| at > snapshot.now);
    if !is_replacing && rests {
        return None;
    }
    // It also shows which failed nodes have no pods.
    if snapshot.freshness == Freshness::Cached {
        return Some(Observation::NeedsQuorumRead);
    }
    if let Some((claim, failure)) = failed.filter(|_| attempt.is_filled()) {
        let lost = Event::Lost { failure: failure.clone(), phase };
        return if is_replacing {
            event(Event::ClaimsExist)
        } else {
            event(lost).filter(|_| claim.is_doomed())
        };
    }
    let missing = attempt.missing();
    match snapshot.plan {
        _ if !is_replacing || missing.is_empty() => {}
        Some(Outcome::Provision(plan))
            if journal.is_replaced_by(plan) && snapshot.create_refused.is_none() =>
        {
            return event(Event::ClaimsMissing(missing));
        }
        // No plan gives the same nodes any more, or the API server refused them a moment ago. What happens next depends on the
        // gang's pods and on the time.
        _ => return None,
    }
    if rests {
        return None;
    }
    event(Event::Lost { failure: attempt.first_loss()?.clone(), phase })
}

/// The admission phase of a gang whose lost nodes are replaced; `None` if they are not.
fn phase_with_replacements(attempt: &Attempt<'_>) -> Option<AdmissionPhase> {
    let phase = match attempt.snapshot.reservation {
        Reservation::Held { phase, .. } => *phase,
        Reservation::Leaving(Ending::Replaced) => AdmissionPhase::AdmittedPods,
        Reservation::Leaving(_) | Reservation::Gone(_) => return None,
    };
    let is_replaced = phase.lets_pods_start()
        && attempt.journal.state.holds_nodes()
        && attempt.snapshot.policy.on_node_lost == OnNodeLost::Replace;
    is_replaced.then_some(phase)
}

/// When the next replacement for an admitted gang may start; `None` if none is due. The first starts at once, later ones after the
/// waits of `retry.inCheck`, and when those are used up, after the waits of `retry.yield`: the gang runs, so it never gives up.
pub(super) fn next_replacement(attempt: &Attempt<'_>) -> Option<Timestamp> {
    let (journal, policy) = (attempt.journal, attempt.snapshot.policy);
    let limit = policy.in_check.limit;
    let wait = match journal.memory.tries {
        _ if attempt.is_filled() && failed_replacement(attempt).is_none() => return None,
        tries if tries >= limit => policy.yielding.wait(tries.saturating_sub(limit).saturating_add(1)),
        0 => return Some(journal.entered_at),
        tries => policy.in_check.wait(tries),
    };
    journal.entered_at.checked_add(wait.signed()).ok()
}

/// Why a lost node of a running gang is not created now; `None` if it is, or if the plan is unknown.
pub(in crate::gang) fn replacement_obstacle<'a>(attempt: &Attempt<'a>) -> Option<&'a str> {
    let Attempt { journal, snapshot, .. } = attempt;
    if journal.state != (State::Approved { nodes: Nodes::Replacing }) {
        return None;
    }
    match snapshot.plan? {
        Outcome::Provision(plan) if journal.is_replaced_by(plan) => None,
        Outcome::Provision(_) => Some("a plan for its pods gives other nodes now"),
        Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) | Outcome::Never(obstacle) => {
            Some(&obstacle.message)
        }
        Outcome::NothingNeeded(why) => Some(why),
    }
}

/// A permanently failed replacement and its failure, preferably one without pods. `None` for a replaced slice, whose
/// Job may now need fewer nodes.
fn failed_replacement<'a>(attempt: &Attempt<'a>) -> Option<(&'a ClaimView, &'a Failure)> {
    if !matches!(attempt.snapshot.reservation, Reservation::Held { .. }) {
        return None;
    }
    let failed = || {
        attempt.slots().filter_map(|(_, slot)| match slot {
            SlotStatus::Failed(claim, failure) if claim.generation > 0 => Some((claim, failure)),
            _ => None,
        })
    };
    failed().find(|(claim, _)| claim.is_doomed()).or_else(|| failed().next())
}

/// Whether a gang that may run has lost a node that is not replaced yet.
pub(in crate::gang) fn lacks_nodes(attempt: &Attempt<'_>) -> bool {
    attempt.journal.state.creates_claims() || attempt.has_losses()
}
