//! Which slots of an attempt have their node, which have lost it, and what is to be done about that.
//!
//! Called by `observe`. Rule: that a claim is gone counts in a quorum read alone, and a slot gets another
//! claim only under a generation that is in the journal already, so that no name is used twice.

use super::claims::{ClaimView, Loss};
use super::event::{Event, Standing};
use super::failure::Failure;
use super::journal::Journal;
use super::observe::{Reading, hold_is_over, is_waiting};
use super::reservation::{Ending, Reservation};
use super::snapshot::{Freshness, Snapshot};
use super::state::State;
use super::ungated_pods::{self, is_late};
use super::way::Way;
use crate::api::parameters::{OnNodeLost, Pinning};
use crate::plan::{Outcome, Plan};
use crate::policy::Policy;
use jiff::Timestamp;
use std::collections::BTreeSet;

/// Claims of the current attempt, those that are going included.
pub(super) fn current<'a>(
    journal: &'a Journal,
    snapshot: &'a Snapshot<'_>,
) -> impl Iterator<Item = &'a ClaimView> {
    snapshot.claims.iter().filter(|c| c.attempt == journal.memory.attempt && c.slot < journal.memory.slots)
}

/// Claims of the current attempt that are to stay.
pub(super) fn live<'a>(
    journal: &'a Journal,
    snapshot: &'a Snapshot<'_>,
) -> impl Iterator<Item = &'a ClaimView> {
    current(journal, snapshot).filter(|c| !c.deleting && !is_superseded(c, journal, snapshot))
}

/// Whether a claim is not wanted any more, by what the journal says already.
pub(super) fn is_superseded(claim: &ClaimView, journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    is_replaced(claim, journal, snapshot) || ungated_pods::is_given_up(claim, journal, snapshot)
}

/// Whether a later claim has taken its place: a create that was long on its way may come after all.
pub(super) fn is_replaced(claim: &ClaimView, journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    let later = |other: &ClaimView| {
        !other.deleting
            && (other.attempt, other.slot) == (claim.attempt, claim.slot)
            && other.generation > claim.generation
    };
    claim.generation < journal.memory.generation && snapshot.claims.iter().any(later)
}

/// Slots that no claim fills which is to stay.
pub(super) fn empty(journal: &Journal, snapshot: &Snapshot<'_>) -> Vec<u32> {
    let filled: BTreeSet<u32> = live(journal, snapshot).map(|c| c.slot).collect();
    (0..journal.memory.slots).filter(|slot| !filled.contains(slot)).collect()
}

/// Whether a node of the attempt is lost and nothing has taken its place yet.
pub(super) fn is_broken(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.memory.mending
        || current(journal, snapshot).any(|c| c.deleting) && !empty(journal, snapshot).is_empty()
}

/// Empty slots that have had no claim of the current generation yet, as far as is known.
pub(super) fn missing(journal: &Journal, snapshot: &Snapshot<'_>) -> Vec<u32> {
    let latest = journal.memory.generation;
    let seen = current(journal, snapshot).filter(|c| c.generation >= latest).map(|c| c.slot);
    let had: BTreeSet<u32> = seen.chain(snapshot.losses.keys().copied()).collect();
    empty(journal, snapshot).into_iter().filter(|slot| !had.contains(slot)).collect()
}

/// What became of the first slot that lost its claim. A missing claim counts only in a quorum read.
pub(super) fn first_loss(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Failure> {
    let empty = empty(journal, snapshot);
    let creating = journal.state == State::Provisioning || (journal.memory.mending && !is_waiting(snapshot));
    let latest = journal.memory.generation;
    let going = |slot: &u32| {
        current(journal, snapshot).any(|c| c.slot == *slot && (!creating || c.generation >= latest))
    };
    let known = |slot: &&u32| going(slot) || snapshot.freshness == Freshness::Quorum;
    empty.iter().filter(known).find_map(|slot| snapshot.losses.get(slot)?.failure().cloned())
}

/// What ends the attempt as it stands: a claim that will not come before one that is lost, because a
/// replacement mends the second alone.
pub(super) fn first_failure(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Failure> {
    // Where some nodes may have pods, what fails beside them ends nothing.
    let failed = || live(journal, snapshot).find_map(|c| c.failure().cloned());
    let failed = if is_late(journal, snapshot) { None } else { failed() };
    match first_loss(journal, snapshot) {
        Some(failure) if !failure.reason.is_node_loss() => Some(failure),
        lost => failed.or(lost),
    }
}

/// What this event of its reservation means for the nodes that a gang has. Where nothing replaces those that it
/// lost under its last admission, the next one is not held to them, and begins with nodes of its own. So it does where
/// the hold on them has run out while it was admitted: it would end the next attempt at once, and the sweep its nodes.
pub(super) fn carried_over(journal: &Journal, snapshot: &Snapshot<'_>, event: Event) -> Reading {
    let anew = matches!(event, Event::Reserved { standing: Standing::Reserved, .. });
    let carries = anew && journal.state == State::Approved;
    let ends = || Reading::Events(vec![Event::Gone(Ending::Superseded)]);
    if carries && hold_is_over(journal, snapshot) {
        return ends();
    }
    let kept = carries && snapshot.policy.on_node_lost != OnNodeLost::Replace;
    match snapshot.freshness {
        _ if !kept || empty(journal, snapshot).is_empty() => Reading::Events(vec![event]),
        Freshness::Cached => Reading::NeedsQuorumRead,
        Freshness::Quorum => ends(),
    }
}

/// The loss for which a gang that was approved, and is not admitted yet, must not be.
pub(super) fn regretted(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Failure> {
    let minds = journal.state == State::Approved
        && is_waiting(snapshot)
        && snapshot.policy.on_node_lost != OnNodeLost::Ignore;
    minds.then(|| first_loss(journal, snapshot))?
}

/// Whether a plan gives the nodes that the attempt was started with.
pub fn is_same(journal: &Journal, plan: &Plan) -> bool {
    is_begun(journal, plan, Plan::is_hashed)
}

/// The same whichever of the instance types are the cheapest now: a node that is lost is mended by one of these.
fn is_same_but_for_types(journal: &Journal, plan: &Plan) -> bool {
    is_begun(journal, plan, Plan::is_hashed_but_for_types)
}

fn is_begun(journal: &Journal, plan: &Plan, has_hash: impl Fn(&Plan, &str) -> bool) -> bool {
    let memory = &journal.memory;
    // What Kueue is to add to the pods is one for all nodes.
    let pinned_alike = memory.pinning == Pinning::Auto || memory.pinning == plan.pinning;
    let alike = match &memory.plan {
        Some(hash) => has_hash(plan, hash),
        None => pinned_alike,
    };
    alike && is_as_many(journal, plan)
}

/// Whether a plan gives as many nodes as the attempt was started with.
pub(super) fn is_as_many(journal: &Journal, plan: &Plan) -> bool {
    u32::try_from(plan.slots.len()) == Ok(journal.memory.slots)
}

/// Whether this shortage is left to the next tier for the slots that it took alone.
pub(super) fn falls_in_part(journal: &Journal, snapshot: &Snapshot<'_>, failure: &Failure) -> bool {
    snapshot.policy.mixed_tiers
        && journal.memory.way.past(failure.reason).is_some()
        && first_loss(journal, snapshot).as_ref() == Some(failure)
}

/// Whether this is what an earlier way took, without a word of what is short, from a gang of several tiers.
/// The way that is gone by now was not tried for that slot, so it is neither skipped nor the end.
fn is_outlived(journal: &Journal, snapshot: &Snapshot<'_>, failure: &Failure) -> bool {
    let unnamed = !failure.reason.names_what_is_short();
    let earlier = |slot: &u32| matches!(snapshot.losses.get(slot), Some(Loss::Outlived(f)) if f == failure);
    is_mixed(journal, snapshot.policy)
        && unnamed
        && journal.memory.way.still(failure.reason).is_some()
        && first_loss(journal, snapshot).as_ref() == Some(failure)
        && empty(journal, snapshot).iter().any(earlier)
}

/// What this failure is for a gang that waits for its nodes: a loss that is made up for, or the attempt's end.
pub(super) fn lost_or_failed(journal: &Journal, snapshot: &Snapshot<'_>, failure: Failure) -> Event {
    if is_outlived(journal, snapshot, &failure) {
        return Event::Outlived(failure);
    }
    let lost = failure.reason.is_node_loss() || falls_in_part(journal, snapshot, &failure);
    if lost { Event::Lost { failure, standing: Standing::Reserved } } else { Event::Failed(failure) }
}

/// Whether what is missing of a gang of several tiers comes by another way than the journal says.
pub(super) fn goes_another_way(journal: &Journal, snapshot: &Snapshot<'_>, plan: &Plan) -> bool {
    let Way { tier, choice, .. } = journal.memory.way;
    is_mixed(journal, snapshot.policy) && (tier, choice) != (plan.tier, plan.choice)
}

/// Whether the nodes of the attempt may have come by several ways.
pub fn is_mixed(journal: &Journal, policy: &Policy) -> bool {
    policy.mixed_tiers && journal.memory.plan.is_none() && journal.memory.generation > 0
}

/// What an admitted gang needs that lost nodes: nobody but us can give its pods others, because they
/// ask for the gang's own label. The pods of a slice that was replaced run on, and its nodes are still its own.
pub(super) fn mend(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Reading> {
    let standing = match snapshot.reservation {
        Reservation::Held { standing, .. } => standing,
        Reservation::Leaving(Ending::Replaced) => &Standing::AdmittedPods,
        Reservation::Leaving(_) | Reservation::Gone(_) => return None,
    };
    let ours = matches!(standing, Standing::Admitted | Standing::AdmittedPods);
    if !ours || journal.memory.slots == 0 || snapshot.policy.on_node_lost != OnNodeLost::Replace {
        return None;
    }
    let event = |event| Some(Reading::Events(vec![event]));
    let memory = &journal.memory;
    let empty = empty(journal, snapshot);
    if empty.is_empty() {
        let whole = memory.tries > 0 && live(journal, snapshot).all(ClaimView::is_ready);
        return match (memory.mending, whole) {
            (true, _) => event(Event::ClaimsExist),
            (false, true) => event(Event::NodesReady),
            (false, false) => None,
        };
    }
    let rests = mends_at(journal, snapshot).is_none_or(|at| at > snapshot.now);
    if !memory.mending && rests {
        return None;
    }
    if snapshot.freshness == Freshness::Cached {
        return Some(Reading::NeedsQuorumRead);
    }
    let missing = missing(journal, snapshot);
    match snapshot.plan {
        _ if !memory.mending || missing.is_empty() => {}
        Some(Outcome::Provision(plan)) if is_same_but_for_types(journal, plan) => {
            return event(Event::ClaimsMissing(missing));
        }
        // What it was given is no longer to be had like that; its pods decide what comes of it.
        _ => return None,
    }
    if rests {
        return None;
    }
    event(Event::Lost { failure: first_loss(journal, snapshot)?, standing: *standing })
}

/// When the next replacement for an admitted gang may begin: the first at once, the others paced like
/// tries. `None` if none is due, or all tries are used up.
pub(super) fn mends_at(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let pace = snapshot.policy.in_check;
    match journal.memory.tries {
        _ if empty(journal, snapshot).is_empty() => None,
        tries if tries >= pace.limit => None,
        0 => Some(journal.entered_at),
        tries => journal.entered_at.checked_add(pace.wait(tries).signed()).ok(),
    }
}
