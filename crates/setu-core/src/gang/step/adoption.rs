//! Rebuilds a gang's progress from its NodeClaims when the journal is missing or older than they are.
//!
//! Used by `observe`. Rule: a tenant can erase or write a journal, but not a claim.

use crate::api::workload::Verdict;
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::journal::SLOTS_LIMIT;
use crate::gang::statechart::reservation::{AdmissionPhase, Ending, Reservation};
use crate::plan::pod_set_labels::PodSetLabels;
use crate::planted::planted;

/// The event of a gang without a journal that already has claims or pods.
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

/// The latest attempt with claims that are not being deleted.
fn latest_attempt(snapshot: &Snapshot<'_>) -> Option<u32> {
    snapshot.claims.iter().filter(|c| !c.deleting).map(|c| c.attempt).max()
}

/// The attempt that the claims show.
fn found(snapshot: &Snapshot<'_>, phase: AdmissionPhase) -> Option<Event> {
    let attempt = latest_attempt(snapshot)?;
    let own = || snapshot.claims.iter().filter(|c| c.attempt == attempt && c.slot < SLOTS_LIMIT);
    Some(Event::Found {
        attempt,
        generation: own().map(|c| c.generation).max().unwrap_or_default(),
        // A slot whose claim is lost still counts.
        slots: own().map(|c| c.slot.saturating_add(1)).max().unwrap_or_default(),
        pod_sets: PodSetLabels::of_values(own().map(|c| c.pod_sets.as_str()).filter(|v| !v.is_empty())),
        phase,
    })
}

/// The claims of an admitted gang that contradict its journal, which a tenant can write. In a genuine journal, the
/// attempt has at most as many claims as slots. No later attempt has claims while it has none. Pods run on the nodes
/// of the claims, so the claims win.
pub(super) fn contradicted(attempt: &Attempt<'_>) -> Option<Event> {
    let Attempt { journal, snapshot, .. } = attempt;
    // A gang that needs no node, or was not started on our Ready, runs elsewhere: a late claim is unwanted. Once our
    // check is removed, neither is known any more.
    let phase = match snapshot.reservation {
        Reservation::Held { phase, .. }
            if snapshot.reported == Verdict::Ready && !snapshot.needs_no_nodes() =>
        {
            *phase
        }
        Reservation::Leaving(Ending::CheckRemoved) => AdmissionPhase::Admitted,
        _ => return None,
    };
    if !journal.state.is_approved() || !phase.lets_pods_start() {
        return None;
    }
    let event = found(snapshot, phase)?;
    let Event::Found { attempt: found, slots, .. } = event else { return None };
    let of_another = found > journal.memory.attempt && attempt.existing() == 0;
    let of_more = found == journal.memory.attempt && slots > journal.memory.slots;
    (of_another || of_more).then_some(event)
}
