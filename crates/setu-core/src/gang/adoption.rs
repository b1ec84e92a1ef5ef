//! What the claims tell of a gang whose journal is missing, or knows less than they do.
//!
//! Called by `observe`. Rule: a tenant can erase or write a journal, and no claim.

use super::event::{AdmissionPhase, Event};
use super::journal::SLOTS_LIMIT;
use super::observe::needs_nothing;
use super::reservation::{Ending, Reservation};
use super::slot::Attempt;
use super::snapshot::Snapshot;
use crate::api::workload::Verdict;
use crate::planted::planted;

/// What a gang without a journal may really be.
pub(super) fn first_reconcile(snapshot: &Snapshot<'_>) -> Option<Event> {
    let Reservation::Held { phase, .. } = snapshot.reservation else {
        return None;
    };
    match phase {
        _ if !planted!(AttemptFromJournalOnly) && latest_attempt(snapshot).is_some() => {
            found(snapshot, *phase)
        }
        AdmissionPhase::Admitted | AdmissionPhase::Running | AdmissionPhase::AdmittedPods => {
            Some(Event::AlreadyRunning)
        }
        AdmissionPhase::Reserved => None,
    }
}

/// The latest attempt of which claims exist.
fn latest_attempt(snapshot: &Snapshot<'_>) -> Option<u32> {
    snapshot.claims.iter().filter(|c| !c.deleting).map(|c| c.attempt).max()
}

/// The attempt that the claims tell of.
fn found(snapshot: &Snapshot<'_>, phase: AdmissionPhase) -> Option<Event> {
    let attempt = latest_attempt(snapshot)?;
    let own = || snapshot.claims.iter().filter(|c| c.attempt == attempt && c.slot < SLOTS_LIMIT);
    Some(Event::Found {
        attempt,
        generation: own().map(|c| c.generation).max().unwrap_or_default(),
        // A slot whose claim is lost is a slot all the same.
        slots: own().map(|c| c.slot.saturating_add(1)).max().unwrap_or_default(),
        phase,
    })
}

/// What the claims of an admitted gang say against its journal, which a tenant can write: no journal of
/// ours knows fewer slots than there are claims of its attempt, or is without any claim while a later
/// attempt has some. The gang's pods run on them, so they are believed.
pub(super) fn contradicted(attempt: &Attempt<'_>) -> Option<Event> {
    let Attempt { journal, snapshot, .. } = attempt;
    // A gang that needs no node, or was not started on a Ready of ours, runs elsewhere: a claim that came
    // late is unwanted. Once our check is taken off, neither is known any more.
    let phase = match snapshot.reservation {
        Reservation::Held { phase, .. }
            if snapshot.reported == Verdict::Ready && !needs_nothing(snapshot) =>
        {
            *phase
        }
        Reservation::Leaving(Ending::CheckRemoved) => AdmissionPhase::Admitted,
        _ => return None,
    };
    if !journal.state.is_approved() || !phase.lets_pods_go() {
        return None;
    }
    let event = found(snapshot, phase)?;
    let Event::Found { attempt: found, slots, .. } = event else { return None };
    let of_another = found > journal.memory.attempt && attempt.existing() == 0;
    let of_more = found == journal.memory.attempt && slots > journal.memory.slots;
    (of_another || of_more).then_some(event)
}
