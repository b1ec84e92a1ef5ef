//! Turns a snapshot into events: what has happened to a gang, given the state in its journal.
//!
//! Rule: level-triggered and pure. Absence is an observation only in a quorum read. Where a cache is not enough to decide,
//! the reading asks for a quorum read instead of guessing.

use super::adoption::{contradicted, first_reconcile};
use super::claims::ClaimView;
use super::decide::is_too_far;
use super::event::{AdmissionPhase, Event};
use super::failure::{Failure, FailureClass};
use super::journal::Journal;
use super::replacement;
use super::reservation::Reservation;
use super::slot::Attempt;
use super::snapshot::{Freshness, Snapshot};
use super::state::{Nodes, State, Then};
use super::ungated_pods;
use super::validating::{planned, validating};
use crate::api::parameters::{Compat, OnNodeLost, Release};
use crate::api::workload::Verdict;
use crate::plan::{ObstacleReason, Outcome};
use crate::planted::planted;

/// The result of reading a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// These events, in the order to handle them; may be empty.
    Events(Vec<Event>),
    /// The cache suggests a decision that needs a quorum read.
    NeedsQuorumRead,
}

/// Reads a snapshot, given the journal.
pub fn observe(journal: &Journal, snapshot: &Snapshot<'_>) -> Reading {
    let attempt = &Attempt::of(journal, snapshot);
    if let Some(event) = reservation_event(journal, snapshot) {
        return replacement::carried_over(attempt, event);
    }
    if snapshot.fresh
        && journal.seq == 0
        && let Some(event) = first_reconcile(snapshot)
    {
        return Reading::Events(vec![event]);
    }
    if let Some(event) = contradicted(attempt) {
        return Reading::Events(vec![event]);
    }
    if ungated_pods::is_to_be_searched(attempt) {
        return Reading::NeedsQuorumRead;
    }
    // A Ready is withdrawn before its nodes are deleted.
    let held = ready_stands(attempt) && matches!(journal.state, State::RollingBack { .. });
    let unwanted = if held { Vec::new() } else { unwanted_claims(attempt) };
    let mut events = Vec::new();
    if !unwanted.is_empty() {
        events.push(Event::Unwanted(unwanted));
    }
    let read = match by_state(attempt) {
        // Kueue may admit at any time while the check is Ready, so Ready is withdrawn before the nodes are given up.
        Some(Reading::Events(mut more)) if ready_stands(attempt) => {
            more.retain(|event| !event.is_setback());
            Reading::Events(more)
        }
        Some(Reading::Events(more)) if attempt.pods_may_run() => ungated_pods::spared(attempt, more),
        None if attempt.pods_may_run() => ungated_pods::spared(attempt, Vec::new()),
        read => read.unwrap_or(Reading::Events(Vec::new())),
    };
    match read {
        Reading::NeedsQuorumRead if events.is_empty() => return Reading::NeedsQuorumRead,
        Reading::NeedsQuorumRead => {}
        Reading::Events(more) => events.extend(more),
    }
    Reading::Events(events)
}

fn ready_stands(attempt: &Attempt<'_>) -> bool {
    attempt.snapshot.reported == Verdict::Ready
        && attempt.awaits_admission()
        && !planted!(ReadyStandsWhileDeleting)
}

fn reservation_event(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Event> {
    let leaving_for_good = matches!(journal.state, State::RollingBack { then: Then::Released });
    match snapshot.reservation {
        _ if leaving_for_good => None,
        Reservation::Gone(ending) => (!journal.state.is_over()).then_some(Event::Gone(*ending)),
        Reservation::Leaving(ending) if planted!(DeleteWhileAdmitted) => Some(Event::Gone(*ending)),
        Reservation::Leaving(ending) => {
            let pods_may_run = journal.state.is_approved();
            (!journal.state.is_over() && !pods_may_run).then_some(Event::Leaving(*ending))
        }
        Reservation::Held { admission, phase } => {
            // The check was removed for a while, or quota returned within the second in which it was lost. Then the
            // reservation that was given up still stands. Kueue may even have admitted it on a Ready whose nodes are gone.
            let stands_again = journal.state == State::Released
                && matches!(phase, AdmissionPhase::Reserved | AdmissionPhase::Admitted)
                && !planted!(ReleasedForGood);
            // Pods that an eviction would delete get their nodes late, even after the quota was given back.
            let ungated = *phase == AdmissionPhase::AdmittedPods && journal.state == State::Yielded;
            let runs_already =
                !journal.state.is_approved() && *phase == AdmissionPhase::Running && !snapshot.fresh;
            (*admission != journal.memory.admission || stands_again || runs_already || ungated)
                .then(|| Event::Reserved { admission: admission.clone(), phase: *phase })
        }
    }
}

/// Unwanted claims that are not being deleted yet.
fn unwanted_claims(attempt: &Attempt<'_>) -> Vec<String> {
    let memory = &attempt.journal.memory;
    let is_wanted = |claim: &ClaimView| {
        attempt.journal.state.wants_claims()
            && claim.attempt == memory.attempt
            && claim.slot < memory.slots
            && !attempt.is_superseded(claim)
    };
    let unwanted = attempt.snapshot.claims.iter().filter(|c| !c.deleting && !is_wanted(c));
    unwanted.map(|c| c.name.clone()).collect()
}

fn by_state(attempt: &Attempt<'_>) -> Option<Reading> {
    let snapshot = attempt.snapshot;
    let event = match &attempt.journal.state {
        State::Validating => return validating(attempt),
        State::Provisioning => return provisioning(attempt),
        State::WaitingReady => return waiting_ready(attempt),
        State::Approved { .. } => return approved(attempt),
        State::RollingBack { .. } => return rolling_back(snapshot),
        // A wait beyond the policy's longest is invalid, so it ends now.
        State::BackingOff { until } => {
            let is_over =
                *until <= snapshot.now || is_too_far(*until, snapshot.now, snapshot.policy.longest_wait());
            // The first Setu always waited the full time.
            let is_back = snapshot.capacity_back && snapshot.policy.compat == Compat::None;
            if is_over { Some(Event::WaitOver) } else { is_back.then_some(Event::CapacityBack) }
        }
        State::Yielded | State::Rejected | State::Released => None,
    };
    event.map(|e| Reading::Events(vec![e]))
}

fn provisioning(attempt: &Attempt<'_>) -> Option<Reading> {
    let Attempt { journal, snapshot, .. } = attempt;
    let event = |event| Some(Reading::Events(vec![event]));
    // If pods may run on other nodes, a refused claim ends nothing.
    if let Some(reason) = snapshot.create_refused.filter(|_| !attempt.pods_may_run()) {
        let message = format!("the API server refused a NodeClaim: {reason}");
        return Some(failed(snapshot, Failure::new(FailureClass::Refused, message)));
    }
    if let Some(failure) = attempt.first_failure() {
        if !replacement::falls_in_part(attempt, failure) {
            return Some(failed(snapshot, failure.clone()));
        }
        let lost = Event::Lost { failure: failure.clone(), phase: AdmissionPhase::Reserved };
        return if snapshot.freshness == Freshness::Cached {
            Some(Reading::NeedsQuorumRead)
        } else {
            event(lost)
        };
    }
    let missing = attempt.missing();
    if snapshot.freshness == Freshness::Cached && attempt.has_losses() {
        // One seems to be gone already.
        return Some(Reading::NeedsQuorumRead);
    }
    // A journal with a different slot count cannot be distinguished from one that a tenant wrote.
    let recounted =
        matches!(snapshot.plan, Some(Outcome::Provision(plan)) if !journal.has_as_many_slots(plan));
    if missing.is_empty() && journal.memory.plan.is_some() && !recounted {
        return event(Event::ClaimsExist);
    }
    if attempt.has_expired() {
        let message =
            format!("{} of {} NodeClaims could not be created in time", missing.len(), journal.memory.slots);
        return Some(failed(snapshot, Failure::new(FailureClass::GangTimeout, message)));
    }
    let changed = |message: &str| Some(failed(snapshot, Failure::new(FailureClass::PlanChanged, message)));
    match snapshot.plan? {
        Outcome::Provision(plan) => match (journal.is_begun_with(plan), missing.is_empty()) {
            (false, _) => {
                changed("NodePool, flavor or policy changed while the NodeClaims were being created")
            }
            _ if journal.goes_another_way(plan, snapshot.policy) => event(planned(plan)),
            (true, true) => event(Event::ClaimsExist),
            // A replacement and a node that is taken over have a different name, so only a quorum read shows that the slot
            // has no other claim.
            (true, false) if renames(attempt) && snapshot.freshness == Freshness::Cached => {
                Some(Reading::NeedsQuorumRead)
            }
            (true, false) => event(Event::ClaimsMissing(missing)),
        },
        Outcome::Wait(obstacle) if journal.is_mixed(snapshot.policy) => {
            // No tier has the missing capacity. Any other obstacle may clear before the deadline.
            let short = obstacle.reason == ObstacleReason::CapacityShort;
            let failure = Failure::new(FailureClass::InsufficientCapacity, &obstacle.message);
            if short { event(Event::Failed(failure)) } else { None }
        }
        // Once Karpenter has reconciled the edit, it is known whether it changes what is created.
        Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NodePoolEdited => None,
        // Without the parameters no plan can be made, so none has changed.
        Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NoPolicy => None,
        Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) | Outcome::Never(obstacle) => {
            changed(&obstacle.message)
        }
        Outcome::NothingNeeded(why) => changed(why),
    }
}

/// Whether a slot may be filled by a claim with a different name than its first one.
fn renames(attempt: &Attempt<'_>) -> bool {
    attempt.journal.memory.generation > 0 || attempt.snapshot.policy.release == Release::Warm
}

fn waiting_ready(attempt: &Attempt<'_>) -> Option<Reading> {
    let snapshot = attempt.snapshot;
    let quorum = snapshot.freshness == Freshness::Quorum || planted!(ReadyBeforeGate);
    if let Some(failure) = attempt.first_failure() {
        let is_ignored = failure.reason.is_node_loss() && snapshot.policy.on_node_lost == OnNodeLost::Ignore;
        if !is_ignored {
            return Some(match replacement::lost_or_failed(attempt, failure) {
                Event::Failed(failure) => failed(snapshot, failure),
                event if quorum => Reading::Events(vec![event]),
                _ => Reading::NeedsQuorumRead,
            });
        }
    }
    if !attempt.is_filled() && !quorum {
        return Some(Reading::NeedsQuorumRead);
    }
    if attempt.is_ready() {
        return Some(if quorum {
            Reading::Events(vec![Event::NodesReady])
        } else {
            Reading::NeedsQuorumRead
        });
    }
    (attempt.has_expired() || attempt.hold_is_over()).then(|| {
        let message = match attempt.laggard() {
            Some((slot, what)) => format!("the gang was not ready in time: slot {slot} waits for {what}"),
            None => "the gang was not ready in time".to_owned(),
        };
        failed(snapshot, Failure::new(FailureClass::GangTimeout, message))
    })
}

/// Ends the attempt with a failure, or asks for a quorum read if the failure needs one.
pub(super) fn failed(snapshot: &Snapshot<'_>, failure: Failure) -> Reading {
    let unsure = failure.reason.needs_quorum() && snapshot.freshness == Freshness::Cached;
    if unsure && !planted!(DeadlineOnCache) {
        return Reading::NeedsQuorumRead;
    }
    Reading::Events(vec![Event::Failed(failure)])
}

fn approved(attempt: &Attempt<'_>) -> Option<Reading> {
    let snapshot = attempt.snapshot;
    if !attempt.awaits_admission() {
        return replacement::replace_lost(attempt);
    }
    let cached = snapshot.freshness == Freshness::Cached;
    if let Some(failure) = replacement::regretted(attempt) {
        let lost = Event::Lost { failure: failure.clone(), phase: AdmissionPhase::Reserved };
        return Some(if cached { Reading::NeedsQuorumRead } else { Reading::Events(vec![lost]) });
    }
    if let Some(failure) = unfit(attempt) {
        return Some(failed(snapshot, failure));
    }
    if !attempt.journal.state.holds_nodes() {
        return None;
    }
    let unsure = snapshot.reported != Verdict::Ready && !planted!(ReadyFromJournalAlone);
    let doubtful = unsure || falters(attempt) || !attempt.is_filled();
    (cached && doubtful).then_some(Reading::NeedsQuorumRead)
}

/// Whether a node is not ready any more while the check is Ready and Kueue may admit. That only delays the gang: the node
/// may come back.
pub fn falters(attempt: &Attempt<'_>) -> bool {
    ready_stands(attempt)
        && attempt.journal.state.is_approved()
        && attempt.snapshot.policy.on_node_lost != OnNodeLost::Ignore
        && !attempt.is_ready()
}

/// Why an approved gang that is not admitted yet must not run.
pub fn unfit(attempt: &Attempt<'_>) -> Option<Failure> {
    let Attempt { journal, snapshot, .. } = attempt;
    let State::Approved { nodes } = journal.state else { return None };
    if !attempt.awaits_admission() {
        return None;
    }
    if nodes == Nodes::Unneeded {
        let needed =
            matches!(snapshot.plan, Some(Outcome::Provision(_) | Outcome::Refuse(_) | Outcome::Never(_)));
        let message = "the gang was approved without nodes, and needs some";
        return needed.then(|| Failure::new(FailureClass::PlanChanged, message));
    }
    let late = || {
        let message = if attempt.hold_is_over() {
            "every node was ready, but the Workload was not admitted while they were held".to_owned()
        } else {
            let limit = snapshot.policy.deadlines.admit;
            attempt.admit_ends().filter(|end| *end <= snapshot.now)?;
            let why = if snapshot.outlook.unplaced {
                ": Kueue found no place for its pods in the topology"
            } else {
                ""
            };
            format!("every node was ready, but the Workload was not admitted within {limit}{why}")
        };
        Some(Failure::new(FailureClass::NotAdmitted, message))
    };
    replacement::regretted(attempt).cloned().or_else(late)
}

/// Whether the plan says that no node is needed.
pub fn needs_nothing(snapshot: &Snapshot<'_>) -> bool {
    matches!(snapshot.plan, Some(Outcome::NothingNeeded(_)))
}

/// Whether every node of the attempt is ready, seen in a quorum read.
pub fn is_proven(attempt: &Attempt<'_>) -> bool {
    if planted!(ReadyFromJournalAlone) || planted!(ReadyBeforeGate) {
        return true;
    }
    attempt.is_ready() && attempt.snapshot.freshness == Freshness::Quorum
}

fn rolling_back(snapshot: &Snapshot<'_>) -> Option<Reading> {
    // Names are never reused, so a claim that cannot be deleted blocks nothing.
    snapshot.claims.iter().all(|c| c.stuck).then(|| match snapshot.freshness {
        Freshness::Quorum => Reading::Events(vec![Event::ClaimsGone]),
        Freshness::Cached => Reading::NeedsQuorumRead,
    })
}
