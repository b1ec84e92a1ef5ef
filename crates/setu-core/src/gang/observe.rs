//! From a snapshot to events: what has happened to this gang, seen from where its journal says it is.
//!
//! Rule: level-triggered and pure. Absence is an observation only in a quorum read; where a cache is
//! not enough to decide, the reading says so instead of guessing.

use super::adoption::{contradicted, first_reconcile};
use super::claims::{ClaimView, Health};
use super::decide::is_too_far;
use super::event::{Event, Standing};
use super::failure::{Failure, FailureClass};
use super::journal::Journal;
use super::losses::{self, empty, first_failure, live, missing};
use super::reboot;
use super::reservation::Reservation;
use super::snapshot::{Freshness, Snapshot};
use super::state::{State, Then};
use super::ungated_pods;
use super::validating::{planned, validating};
use crate::api::parameters::{Compat, OnNodeLost, Release};
use crate::api::workload::Verdict;
use crate::plan::{ObstacleReason, Outcome};
use crate::planted::planted;
use jiff::Timestamp;

/// What a snapshot says.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// These events, in the order they are to be handled; possibly none.
    Events(Vec<Event>),
    /// The cache points to a decision that needs a quorum read.
    NeedsQuorumRead,
}

/// Reads a snapshot from where the journal stands.
pub fn observe(journal: &Journal, snapshot: &Snapshot<'_>) -> Reading {
    if let Some(event) = reservation_event(journal, snapshot) {
        return losses::carried_over(journal, snapshot, event);
    }
    if snapshot.fresh
        && journal.seq == 0
        && let Some(event) = first_reconcile(snapshot)
    {
        return Reading::Events(vec![event]);
    }
    if let Some(event) = contradicted(journal, snapshot) {
        return Reading::Events(vec![event]);
    }
    if ungated_pods::is_to_be_searched(journal, snapshot) {
        return Reading::NeedsQuorumRead;
    }
    // A Ready that stands is taken back before the nodes that it was said of are.
    let held = ready_stands(snapshot) && matches!(journal.state, State::RollingBack { .. });
    let strays = if held { Vec::new() } else { strays(journal, snapshot) };
    let mut events = Vec::new();
    if !strays.is_empty() {
        events.push(Event::Strays(strays));
    }
    let read = match by_state(journal, snapshot) {
        // Kueue may admit at any time on a Ready that stands: that is taken back before the nodes are.
        Some(Reading::Events(mut more)) if ready_stands(snapshot) => {
            more.retain(|event| !event.is_setback());
            Reading::Events(more)
        }
        Some(Reading::Events(more)) if ungated_pods::is_late(journal, snapshot) => {
            ungated_pods::spared(journal, snapshot, more)
        }
        None if ungated_pods::is_late(journal, snapshot) => {
            ungated_pods::spared(journal, snapshot, Vec::new())
        }
        read => read.unwrap_or(Reading::Events(Vec::new())),
    };
    match read {
        Reading::NeedsQuorumRead if events.is_empty() => return Reading::NeedsQuorumRead,
        Reading::NeedsQuorumRead => {}
        Reading::Events(more) => events.extend(more),
    }
    Reading::Events(events)
}

fn ready_stands(snapshot: &Snapshot<'_>) -> bool {
    snapshot.reported == Verdict::Ready && is_waiting(snapshot) && !planted!(ReadyStandsWhileDeleting)
}

/// Whether quota is reserved and Kueue has not admitted yet.
pub(super) fn is_waiting(snapshot: &Snapshot<'_>) -> bool {
    matches!(snapshot.reservation, Reservation::Held { standing: Standing::Reserved, .. })
}

fn reservation_event(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Event> {
    let leaving_for_good = matches!(journal.state, State::RollingBack { then: Then::Released });
    match snapshot.reservation {
        _ if leaving_for_good => None,
        Reservation::Gone(ending) => (!journal.state.is_over()).then_some(Event::Gone(*ending)),
        Reservation::Leaving(ending) if planted!(DeleteWhileAdmitted) => Some(Event::Gone(*ending)),
        Reservation::Leaving(ending) => {
            let pods_may_run = matches!(journal.state, State::Approved);
            (!journal.state.is_over() && !pods_may_run).then_some(Event::Leaving(*ending))
        }
        Reservation::Held { epoch, standing } => {
            // The check was off the Workload for a while, or quota came back within the second in
            // which it was lost: the reservation that was given up stands after all. Kueue may even have
            // admitted on it, by a Ready whose nodes are gone.
            let stands_again = journal.state == State::Released
                && matches!(standing, Standing::Reserved | Standing::Admitted)
                && !planted!(ReleasedForGood);
            // Pods that an eviction would delete are provided for late, whatever was given up before.
            let ungated = *standing == Standing::AdmittedPods && journal.state == State::Yielded;
            let runs_already =
                journal.state != State::Approved && *standing == Standing::Running && !snapshot.fresh;
            (*epoch != journal.memory.epoch || stands_again || runs_already || ungated)
                .then(|| Event::Reserved { epoch: epoch.clone(), standing: *standing })
        }
    }
}

/// Claims that nothing wants and that nobody deletes yet.
fn strays(journal: &Journal, snapshot: &Snapshot<'_>) -> Vec<String> {
    let wanted = |claim: &ClaimView| {
        journal.state.wants_claims()
            && claim.attempt == journal.memory.attempt
            && claim.slot < journal.memory.slots
            && !losses::is_superseded(claim, journal, snapshot)
    };
    snapshot.claims.iter().filter(|c| !c.deleting && !wanted(c)).map(|c| c.name.clone()).collect()
}

fn by_state(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Reading> {
    let event = match &journal.state {
        State::Validating => return validating(journal, snapshot),
        State::Provisioning => return provisioning(journal, snapshot),
        State::WaitingReady => return waiting_ready(journal, snapshot),
        State::Approved => return approved(journal, snapshot),
        State::RollingBack { .. } => return rolling_back(snapshot),
        // No wait is longer than the policy's longest: whoever wrote another time was wrong.
        State::BackingOff { until } => {
            let is_over =
                *until <= snapshot.now || is_too_far(*until, snapshot.now, snapshot.policy.longest_wait());
            // The first Setu waited out its time.
            let is_back = snapshot.capacity_back && snapshot.policy.compat == Compat::None;
            if is_over { Some(Event::WaitOver) } else { is_back.then_some(Event::CapacityBack) }
        }
        State::Yielded | State::Rejected | State::Released => None,
    };
    event.map(|e| Reading::Events(vec![e]))
}

fn provisioning(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Reading> {
    let event = |event| Some(Reading::Events(vec![event]));
    if let Some(failure) = first_failure(journal, snapshot) {
        if !losses::falls_in_part(journal, snapshot, &failure) {
            return Some(failed(snapshot, failure));
        }
        let lost = Event::Lost { failure, standing: Standing::Reserved };
        return if snapshot.freshness == Freshness::Cached {
            Some(Reading::NeedsQuorumRead)
        } else {
            event(lost)
        };
    }
    let missing = missing(journal, snapshot);
    if snapshot.freshness == Freshness::Cached && missing.len() < empty(journal, snapshot).len() {
        // One is gone already, it seems.
        return Some(Reading::NeedsQuorumRead);
    }
    // Nobody can tell a journal with another number of slots from one that a tenant wrote.
    let recounted =
        matches!(snapshot.plan, Some(Outcome::Provision(plan)) if !losses::is_as_many(journal, plan));
    if missing.is_empty() && journal.memory.plan.is_some() && !recounted {
        return event(Event::ClaimsExist);
    }
    if expired(journal, snapshot) {
        let message =
            format!("{} of {} NodeClaims could not be created in time", missing.len(), journal.memory.slots);
        return Some(failed(snapshot, Failure::new(FailureClass::GangTimeout, message)));
    }
    let changed = |message: &str| Some(failed(snapshot, Failure::new(FailureClass::PlanChanged, message)));
    match snapshot.plan? {
        Outcome::Provision(plan) => match (losses::is_same(journal, plan), missing.is_empty()) {
            (false, _) => {
                changed("NodePool, flavor or policy changed while the NodeClaims were being created")
            }
            _ if losses::goes_another_way(journal, snapshot, plan) => event(planned(plan)),
            (true, true) => event(Event::ClaimsExist),
            // A replacement has another name, and so has a node that is taken over: it must be sure that
            // there is no other claim.
            (true, false) if renames(journal, snapshot) && snapshot.freshness == Freshness::Cached => {
                Some(Reading::NeedsQuorumRead)
            }
            (true, false) => event(Event::ClaimsMissing(missing)),
        },
        Outcome::Wait(obstacle) if losses::is_mixed(journal, snapshot.policy) => {
            // No tier has what is missing; whatever else is in the way may go before the deadline.
            let short = obstacle.reason == ObstacleReason::CapacityShort;
            let failure = Failure::new(FailureClass::InsufficientCapacity, &obstacle.message);
            if short { event(Event::Failed(failure)) } else { None }
        }
        // Whether the edit changes what is created shows as soon as Karpenter has looked at it.
        Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NodePoolEdited => None,
        // No plan can be made before the parameters are read, and none was made.
        Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NoPolicy => None,
        Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) | Outcome::Never(obstacle) => {
            changed(&obstacle.message)
        }
        Outcome::NothingNeeded(why) => changed(why),
    }
}

/// Whether a slot may be filled by a claim of another name than the slot's first one.
fn renames(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.memory.generation > 0 || snapshot.policy.release == Release::Warm
}

fn waiting_ready(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Reading> {
    let quorum = snapshot.freshness == Freshness::Quorum || planted!(ReadyBeforeGate);
    if let Some(failure) = first_failure(journal, snapshot) {
        let ignored = failure.reason.is_node_loss() && snapshot.policy.on_node_lost == OnNodeLost::Ignore;
        let event = losses::lost_or_failed(journal, snapshot, failure);
        if !ignored {
            return Some(match event {
                Event::Failed(failure) => failed(snapshot, failure),
                event if quorum => Reading::Events(vec![event]),
                _ => Reading::NeedsQuorumRead,
            });
        }
    }
    let empty = empty(journal, snapshot);
    if !empty.is_empty() && !quorum {
        return Some(Reading::NeedsQuorumRead);
    }
    if empty.is_empty() && live(journal, snapshot).all(ClaimView::is_ready) {
        return Some(if quorum {
            Reading::Events(vec![Event::NodesReady])
        } else {
            Reading::NeedsQuorumRead
        });
    }
    (expired(journal, snapshot) || hold_is_over(journal, snapshot)).then(|| {
        let message = match laggard(journal, snapshot) {
            Some((slot, what)) => format!("the gang was not ready in time: slot {slot} waits for {what}"),
            None => "the gang was not ready in time".to_owned(),
        };
        failed(snapshot, Failure::new(FailureClass::GangTimeout, message))
    })
}

/// A failure that ends the attempt, where the read is one that it may be decided in.
pub(super) fn failed(snapshot: &Snapshot<'_>, failure: Failure) -> Reading {
    let unsure = failure.reason.needs_quorum() && snapshot.freshness == Freshness::Cached;
    if unsure && !planted!(DeadlineOnCache) {
        return Reading::NeedsQuorumRead;
    }
    Reading::Events(vec![Event::Failed(failure)])
}

fn approved(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Reading> {
    if !is_waiting(snapshot) {
        return losses::mend(journal, snapshot);
    }
    let cached = snapshot.freshness == Freshness::Cached;
    if let Some(failure) = losses::regretted(journal, snapshot) {
        let standing = Standing::Reserved;
        let lost = Reading::Events(vec![Event::Lost { failure, standing }]);
        return Some(if cached { Reading::NeedsQuorumRead } else { lost });
    }
    if let Some(failure) = unfit(journal, snapshot) {
        return Some(failed(snapshot, failure));
    }
    if journal.memory.slots == 0 {
        return None;
    }
    let unsure = snapshot.reported != Verdict::Ready && !planted!(ReadyFromJournalAlone);
    let doubtful = unsure || falters(journal, snapshot) || !empty(journal, snapshot).is_empty();
    (cached && doubtful).then_some(Reading::NeedsQuorumRead)
}

/// Whether Kueue may admit a gang on a Ready of which a node is not up any more. That delays the gang and ends
/// nothing: the node may come back.
pub fn falters(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    ready_stands(snapshot)
        && journal.state == State::Approved
        && snapshot.policy.on_node_lost != OnNodeLost::Ignore
        && usize::try_from(journal.memory.slots).is_ok_and(|slots| ready(journal, snapshot) < slots)
}

/// Why a gang that was approved, and is not admitted yet, must not run after all.
pub fn unfit(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Failure> {
    if journal.state != State::Approved || !is_waiting(snapshot) {
        return None;
    }
    if journal.memory.slots == 0 {
        let needed =
            matches!(snapshot.plan, Some(Outcome::Provision(_) | Outcome::Refuse(_) | Outcome::Never(_)));
        let message = "the gang was approved without nodes, and needs some";
        return needed.then(|| Failure::new(FailureClass::PlanChanged, message));
    }
    let late = || {
        let message = if hold_is_over(journal, snapshot) {
            "every node was ready, but the Workload was not admitted while they were held".to_owned()
        } else {
            let limit = snapshot.policy.deadlines.admit;
            reboot::admit_ends(journal, snapshot).filter(|end| *end <= snapshot.now)?;
            let why = if snapshot.outlook.unplaced {
                ": Kueue found no place for its pods in the topology"
            } else {
                ""
            };
            format!("every node was ready, but the Workload was not admitted within {limit}{why}")
        };
        Some(Failure::new(FailureClass::NotAdmitted, message))
    };
    losses::regretted(journal, snapshot).or_else(late)
}

/// Whether the plan is known to be that no node is needed.
pub fn needs_nothing(snapshot: &Snapshot<'_>) -> bool {
    matches!(snapshot.plan, Some(Outcome::NothingNeeded(_)))
}

/// Whether every node of the attempt is there and ready, seen in a quorum read.
pub fn is_proven(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    if planted!(ReadyFromJournalAlone) || planted!(ReadyBeforeGate) {
        return true;
    }
    let all = usize::try_from(journal.memory.slots).is_ok_and(|slots| ready(journal, snapshot) == slots);
    all && snapshot.freshness == Freshness::Quorum
}

fn rolling_back(snapshot: &Snapshot<'_>) -> Option<Reading> {
    // No name is used twice, so a claim that cannot go is in nobody's way.
    snapshot.claims.iter().all(|c| c.stuck).then(|| match snapshot.freshness {
        Freshness::Quorum => Reading::Events(vec![Event::ClaimsGone]),
        Freshness::Cached => Reading::NeedsQuorumRead,
    })
}

/// The slot that is furthest behind, and what it waits for.
pub fn laggard<'a>(journal: &'a Journal, snapshot: &'a Snapshot<'_>) -> Option<(u32, String)> {
    live(journal, snapshot).find_map(|c| match &c.health {
        Health::Coming { waits_for, .. } => Some((c.slot, waits_for.to_string())),
        Health::Failed(failure) => Some((c.slot, failure.message.clone())),
        Health::Ready { .. } => None,
    })
}

/// How many nodes of the current attempt are ready.
pub fn ready(journal: &Journal, snapshot: &Snapshot<'_>) -> usize {
    live(journal, snapshot).filter(|c| c.is_ready()).count()
}

/// When a node of the current attempt last became ready, if any did.
pub fn last_ready(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let since = live(journal, snapshot).filter_map(|c| match &c.health {
        Health::Ready { since } => Some(*since),
        _ => None,
    });
    since.max()
}

/// How many claims of the current attempt exist.
pub fn existing(journal: &Journal, snapshot: &Snapshot<'_>) -> usize {
    live(journal, snapshot).count()
}

/// Whether the time of the gang is over, and nothing extends it.
pub fn expired(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    let over = journal.memory.deadline.is_some_and(|deadline| deadline <= snapshot.now);
    over && !ungated_pods::is_late(journal, snapshot) && !reboot::reboots(journal, snapshot)
}

/// When the hold on the first of the attempt's nodes ends.
pub(super) fn hold_ends(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    live(journal, snapshot).filter_map(|c| c.held_until).min()
}

/// Whether the hold on one of the attempt's nodes has run out.
pub(super) fn hold_is_over(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    hold_ends(journal, snapshot).is_some_and(|end| end <= snapshot.now)
}
