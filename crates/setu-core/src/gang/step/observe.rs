//! Turns a snapshot into events: what has happened to a gang, given the state in its journal.
//!
//! Rule: level-triggered and pure. Absence counts only in a quorum read. Where a cache is not enough to decide, the
//! observation asks for a quorum read instead of guessing.

use super::adoption::{contradicted, first_reconcile};
use super::approved::approved;
use super::attempting::{provisioning, waiting_ready};
use super::observation::Observation;
use super::replacement;
use super::ungated_pods;
use super::validating::validating;
use crate::api::parameters::Compat;
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{AdmissionPhase, Reservation};
use crate::gang::statechart::rules::is_too_far;
use crate::gang::statechart::state::{State, Then};
use crate::planted::planted;
use jiff::Timestamp;

/// Observes a gang in a snapshot.
pub fn observe(journal: &Journal, snapshot: &Snapshot<'_>) -> Observation {
    let attempt = &Attempt::of(journal, snapshot);
    if let Some(event) = reservation_event(journal, snapshot) {
        return replacement::carry_nodes_over(attempt, event);
    }
    if snapshot.is_substitute
        && journal.seq == 0
        && let Some(event) = first_reconcile(snapshot)
    {
        return Observation::of(event);
    }
    if let Some(event) = contradicted(attempt) {
        return Observation::of(event);
    }
    if ungated_pods::needs_pod_search(attempt) {
        return Observation::NeedsQuorumRead;
    }
    // A Ready is withdrawn before its nodes are deleted.
    let held = attempt.may_be_admitted() && matches!(journal.state, State::RollingBack { .. });
    let unwanted = if held { Vec::new() } else { unwanted_claims(attempt) };
    let mut events = Vec::new();
    if !unwanted.is_empty() {
        events.push(Event::Unwanted(unwanted));
    }
    let read = match by_state(attempt) {
        // Kueue may admit at any time while the check is Ready, so Ready is withdrawn before the nodes are given up.
        Some(Observation::Events(mut more)) if attempt.may_be_admitted() => {
            more.retain(|event| !event.is_setback());
            Observation::Events(more)
        }
        Some(Observation::Events(more)) if attempt.pods_may_run() => {
            ungated_pods::keep_attempt(attempt, more)
        }
        None if attempt.pods_may_run() => ungated_pods::keep_attempt(attempt, Vec::new()),
        read => read.unwrap_or(Observation::Events(Vec::new())),
    };
    match read {
        Observation::Events(more) => events.extend(more),
        needs_read if events.is_empty() => return needs_read,
        Observation::NeedsQuorumRead | Observation::NeedsPlanRead => {}
    }
    Observation::Events(events)
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
                !journal.state.is_approved() && *phase == AdmissionPhase::Running && !snapshot.is_substitute;
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

fn by_state(attempt: &Attempt<'_>) -> Option<Observation> {
    match &attempt.journal.state {
        State::Validating => validating(attempt),
        State::Provisioning => provisioning(attempt),
        State::WaitingReady => waiting_ready(attempt),
        State::Approved { .. } => approved(attempt),
        State::RollingBack { .. } => rolling_back(attempt.snapshot),
        State::BackingOff { until } => backing_off(*until, attempt.snapshot),
        State::Yielded | State::Rejected | State::Released => None,
    }
}

fn rolling_back(snapshot: &Snapshot<'_>) -> Option<Observation> {
    // Names are never reused, so a claim that cannot be deleted blocks nothing.
    let is_over = snapshot.claims.iter().all(|c| c.stuck);
    is_over.then(|| Observation::confirmed(snapshot, Event::ClaimsGone))
}

fn backing_off(until: Timestamp, snapshot: &Snapshot<'_>) -> Option<Observation> {
    // A wait beyond the policy's longest is invalid, so it ends now.
    let is_over = until <= snapshot.now || is_too_far(until, snapshot.now, snapshot.policy.wait_bound());
    // The first Setu always waited the full time.
    let is_back = snapshot.capacity_back && snapshot.policy.compat == Compat::None;
    let event = if is_over { Some(Event::WaitOver) } else { is_back.then_some(Event::CapacityBack) };
    event.map(Observation::of)
}
