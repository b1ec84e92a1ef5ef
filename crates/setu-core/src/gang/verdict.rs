//! The verdict that Kueue gets, given the gang's state.
//!
//! Rule: a verdict is written again whenever the entry differs from the state, because Kueue's scheduler may write back
//! stale copies. While the Workload is evicted, inactive, finished or without a reservation, only Pending is written, and
//! Retry for a refused gang.

use super::event::AdmissionPhase;
use super::journal::Journal;
use super::message;
use super::observe;
use super::reservation::{Ending, Reservation, ShapeMatch};
use super::slot::Attempt;
use super::snapshot::{Freshness, Snapshot};
use super::state::{Nodes, State, Then};
use crate::api::Workload;
use crate::api::workload::{CheckState, PodSetUpdate, Verdict};
use crate::plan::Obstacle;
use crate::planted::planted;
use jiff::Timestamp;

/// The entry as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Desired {
    /// The verdict.
    pub state: Verdict,
    /// Text for users.
    pub message: String,
    /// What Kueue adds to the pods.
    pub updates: Vec<PodSetUpdate>,
}

/// The entry this gang wants, or `None` to leave it as it is.
pub fn desired(
    journal: &Journal,
    snapshot: &Snapshot<'_>,
    entry: &CheckState,
    updates: Result<Vec<PodSetUpdate>, Obstacle>,
) -> Option<Desired> {
    let pending = |message: String| {
        // For an admitted Workload Pending has no effect, and it would overwrite the Ready that it was admitted on.
        let admitted =
            matches!(snapshot.reservation, Reservation::Held { phase: AdmissionPhase::Admitted, .. });
        let desired = Desired { state: Verdict::Pending, message, updates: Vec::new() };
        (!admitted || entry.state == Verdict::Pending).then_some(desired)
    };
    let (admission, phase) = match snapshot.reservation {
        Reservation::Held { admission, phase } => (admission, phase),
        // Kueue reserves no quota for a Workload whose check is Retry.
        Reservation::Gone(Ending::Evicted) | Reservation::Leaving(Ending::Evicted)
            if journal.state == State::Yielded && snapshot.refusal.is_some() =>
        {
            let message = message::explain(journal, snapshot);
            return Some(Desired { state: Verdict::Retry, message, updates: Vec::new() });
        }
        Reservation::Gone(Ending::Evicted) if comes_back(journal, snapshot, entry) => {
            return pending("what it was refused for may have changed; it waits for quota again".to_owned());
        }
        // Quota can be lost without an eviction. Then Kueue keeps our Ready and would admit the next reservation on it at
        // once.
        Reservation::Gone(Ending::QuotaLost) if entry.state != Verdict::Pending => {
            return pending("the quota reservation was lost; starts again with the next one".to_owned());
        }
        Reservation::Gone(_) | Reservation::Leaving(_) => return None,
    };
    if *admission != journal.memory.admission {
        // The nodes of this Ready are being deleted, and Kueue may admit on it at any time.
        let goes = *phase == AdmissionPhase::Reserved && matches!(journal.state, State::RollingBack { .. });
        return match entry.state {
            Verdict::Ready if goes => {
                pending("takes Ready back: it belonged to an earlier reservation".to_owned())
            }
            // The nodes of the last attempt are deleted before the next one, and that may take a while.
            Verdict::Pending if goes => pending(message::explain(journal, snapshot)),
            _ => None,
        };
    }
    if *phase == AdmissionPhase::Running && !journal.state.is_approved() {
        // Its pods run without us: a decision for another admission must not stop them.
        return None;
    }
    if *phase == AdmissionPhase::AdmittedPods && !journal.state.is_approved() {
        // The pods are ungated: an eviction would delete them permanently, so they get their nodes late instead.
        return None;
    }
    let attempt = &Attempt::of(journal, snapshot);
    let text = message::sentence(attempt);
    match journal.state {
        State::Approved { nodes } => {
            let admitted = *phase != AdmissionPhase::Reserved;
            if journal.memory.shape_match == ShapeMatch::Stale && *phase == AdmissionPhase::Admitted {
                // Its nodes are deleted when its pods have stopped; then it starts again.
                let message = "was admitted on a Ready of an earlier reservation, and its nodes are not what it needs now";
                return Some(Desired {
                    state: Verdict::Retry,
                    message: message.to_owned(),
                    updates: Vec::new(),
                });
            }
            if entry.state == Verdict::Ready && admitted {
                return None;
            }
            if let Some(failure) = observe::unfit(attempt) {
                return pending(format!("takes Ready back: {failure}"));
            }
            if observe::falters(attempt) && snapshot.freshness == Freshness::Quorum {
                return pending(format!("takes Ready back: {}", still_ready(attempt)));
            }
            let promises = entry.state != Verdict::Ready && !admitted;
            if promises && nodes == Nodes::Unneeded && !observe::needs_nothing(snapshot) {
                return pending("working out whether nodes are needed".to_owned());
            }
            if promises && nodes != Nodes::Unneeded && !observe::is_proven(attempt) {
                return pending(still_ready(attempt));
            }
            match updates {
                // A conflict would make Kueue fail the Workload, so Kueue never sees Ready.
                Err(obstacle) => pending(format!("{}: {}", obstacle.reason, obstacle.message)),
                Ok(updates) if entry.state == Verdict::Ready && entry.pod_set_updates == updates => None,
                // Kueue rejects other updates while Ready stays Ready, so the check becomes Pending first.
                Ok(_) if entry.state == Verdict::Ready => pending(text),
                Ok(updates) => Some(Desired { state: Verdict::Ready, message: text, updates }),
            }
        }
        State::RollingBack { then: Then::Yielded } if planted!(VerdictBeforeCleanup) => {
            Some(Desired { state: Verdict::Retry, message: text, updates: Vec::new() })
        }
        State::Yielded => Some(Desired { state: Verdict::Retry, message: text, updates: Vec::new() }),
        State::Rejected => Some(Desired { state: Verdict::Rejected, message: text, updates: Vec::new() }),
        State::Released => None,
        State::Validating
        | State::Provisioning
        | State::WaitingReady
        | State::BackingOff { .. }
        | State::RollingBack { .. } => pending(text),
    }
}

/// How many nodes of a complete attempt are still ready, and what the first of the others waits for.
fn still_ready(attempt: &Attempt<'_>) -> String {
    let (ready, slots) = (attempt.ready(), attempt.journal.memory.slots);
    let waits =
        attempt.laggard().map_or_else(String::new, |(slot, what)| format!("; slot {slot} waits for {what}"));
    format!("{ready}/{slots} nodes still ready{waits}")
}

/// Whether a gang that its check keeps out of Kueue's queue may come back. Kueue queues it only when its condition `Requeued`
/// changes. So that condition must keep it out first.
pub fn comes_back(journal: &Journal, snapshot: &Snapshot<'_>, reported: &CheckState) -> bool {
    let is_refused = journal.state == State::Yielded && snapshot.refusal.is_some();
    is_held_back(snapshot.reservation, reported.state) && !is_refused
}

/// Whether to keep a refused gang out of Kueue's queue: its quota is given back, and the refusal still stands.
pub fn keeps_out(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    snapshot.refusal.is_some() && is_kept_out(journal, snapshot.reservation, Verdict::Retry)
}

/// Whether a check with this verdict keeps a refused gang out of Kueue's queue.
pub fn is_kept_out(journal: &Journal, reservation: &Reservation, reported: Verdict) -> bool {
    journal.state == State::Yielded && is_held_back(reservation, reported)
}

/// Whether Kueue reserves no quota for a Workload because a check still has this verdict after its eviction.
pub fn is_held_back(reservation: &Reservation, reported: Verdict) -> bool {
    reported == Verdict::Retry && *reservation == Reservation::Gone(Ending::Evicted)
}

impl Desired {
    /// The same for this Workload: if an eviction would stop pods of the slice it replaces, the verdict is Pending
    /// instead.
    #[must_use]
    pub fn of(self, workload: &Workload) -> Self {
        match self.state {
            Verdict::Retry | Verdict::Rejected if workload.replaces().is_some() => {
                Self { state: Verdict::Pending, updates: Vec::new(), ..self }
            }
            _ => self,
        }
    }

    /// The entry to write in place of `old`, or `None` if it is the same already.
    pub fn entry(&self, old: &CheckState, now: Timestamp) -> Option<CheckState> {
        let same = old.state == self.state
            && old.message == self.message
            && old.pod_set_updates == self.updates
            && old.requeue_after_seconds.unwrap_or_default() == 0;
        (!same).then(|| CheckState {
            name: old.name.clone(),
            state: self.state,
            last_transition_time: if old.state == self.state { old.last_transition_time } else { now },
            message: self.message.clone(),
            requeue_after_seconds: Some(0),
            pod_set_updates: self.updates.clone(),
        })
    }

    /// Whether this only reports progress, so that it may wait.
    pub fn is_progress(&self, old: &CheckState) -> bool {
        old.state == self.state && old.pod_set_updates == self.updates && self.state == Verdict::Pending
    }
}
