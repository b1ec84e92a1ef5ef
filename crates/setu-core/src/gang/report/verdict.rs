//! The verdict that Kueue gets, given the gang's state.
//!
//! Rule: a verdict is written again whenever the entry differs from the state, because Kueue's scheduler may write back
//! stale copies. While the Workload is evicted, inactive, finished or without a reservation, only Pending is written, and
//! Retry for a refused gang.

use super::message;
use crate::api::workload::{CheckState, PodSetUpdate, Verdict};
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::{Freshness, Snapshot};
use crate::gang::statechart::attempt_terms::PolicySource;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{AdmissionPhase, AssignmentMatch, Ending, Reservation};
use crate::gang::statechart::rules::Eviction;
use crate::gang::statechart::state::{Nodes, State, Then};
use crate::gang::step::approved::{failure_before_admission, has_lost_readiness};
use crate::gang::workload::queueing::{is_refused, may_requeue};
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
    /// Additions that Kueue makes to the pods.
    pub updates: Vec<PodSetUpdate>,
}

/// The entry this gang wants, or `None` to leave it as it is.
pub fn desired(
    journal: &Journal,
    snapshot: &Snapshot<'_>,
    entry: &CheckState,
    updates: Result<Vec<PodSetUpdate>, Obstacle>,
) -> Option<Desired> {
    let attempt = &Attempt::of(journal, snapshot);
    let text = || message::sentence(attempt);
    let desired = match snapshot.reservation {
        Reservation::Gone(_) | Reservation::Leaving(_) => without_reservation(attempt, entry),
        // The verdict under the earlier policy stands until that policy is known again.
        Reservation::Held { .. } if is_undecided(journal, snapshot) => None,
        Reservation::Held { admission, .. } if *admission != journal.memory.admission => {
            under_another_admission(attempt, entry)
        }
        // Its pods may run without us, and a verdict for another admission must not stop them. Ungated pods would be
        // lost by an eviction, so they get their nodes late.
        Reservation::Held { phase: AdmissionPhase::Running | AdmissionPhase::AdmittedPods, .. }
            if !journal.state.is_approved() =>
        {
            None
        }
        Reservation::Held { .. } => match journal.state {
            State::Approved { nodes } => approved(attempt, nodes, entry, updates),
            State::RollingBack { then: Then::Yielded } if planted!(VerdictBeforeCleanup) => {
                Some(Desired::new(Verdict::Retry, text()))
            }
            State::Yielded => Some(Desired::new(Verdict::Retry, text())),
            State::Rejected => Some(Desired::new(Verdict::Rejected, text())),
            State::Released => None,
            State::Validating
            | State::Provisioning
            | State::WaitingReady
            | State::BackingOff { .. }
            | State::RollingBack { .. } => Some(Desired::new(Verdict::Pending, text())),
        },
    };
    // For an admitted Workload Pending has no effect, and it would overwrite the Ready that it was admitted on.
    let overwrites = is_admitted(snapshot) && entry.state != Verdict::Pending;
    let desired = desired.filter(|desired| desired.state != Verdict::Pending || !overwrites);
    desired.map(
        |desired| {
            if snapshot.eviction == Eviction::StopsOthers { desired.without_eviction() } else { desired }
        },
    )
}

/// Whether the policy of an attempt in flight is unknown.
fn is_undecided(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.state.is_in_flight() && matches!(snapshot.policy_source, PolicySource::Unknown)
}

/// The entry of a gang whose reservation ends or has ended.
fn without_reservation(attempt: &Attempt<'_>, entry: &CheckState) -> Option<Desired> {
    let Attempt { journal, snapshot, .. } = attempt;
    let pending = |message: &str| Some(Desired::new(Verdict::Pending, message));
    match snapshot.reservation {
        // Kueue reserves no quota for a Workload whose check is Retry.
        Reservation::Gone(Ending::Evicted) | Reservation::Leaving(Ending::Evicted)
            if is_refused(journal, snapshot) =>
        {
            Some(Desired::new(Verdict::Retry, message::sentence(attempt)))
        }
        Reservation::Gone(Ending::Evicted) if may_requeue(journal, snapshot, entry) => {
            pending("what it was refused for may have changed; it waits for quota again")
        }
        // Quota can be lost without an eviction. Then Kueue keeps our Ready and would admit the next reservation on it at
        // once.
        Reservation::Gone(Ending::QuotaLost) if entry.state != Verdict::Pending => {
            pending("the quota reservation was lost; starts again with the next one")
        }
        _ => None,
    }
}

/// The entry of a gang whose journal belongs to an earlier admission.
fn under_another_admission(attempt: &Attempt<'_>, entry: &CheckState) -> Option<Desired> {
    // The nodes of this Ready are being deleted, and Kueue may admit on it at any time.
    let is_rolling_back = matches!(attempt.journal.state, State::RollingBack { .. });
    let message = match entry.state {
        _ if !is_rolling_back || !attempt.awaits_admission() => return None,
        Verdict::Ready => "takes Ready back: it belonged to an earlier reservation".to_owned(),
        // The nodes of the last attempt are deleted before the next one, and that may take a while.
        Verdict::Pending => message::sentence(attempt),
        Verdict::Retry | Verdict::Rejected => return None,
    };
    Some(Desired::new(Verdict::Pending, message))
}

/// The entry of a gang that may run.
fn approved(
    attempt: &Attempt<'_>,
    nodes: Nodes,
    entry: &CheckState,
    updates: Result<Vec<PodSetUpdate>, Obstacle>,
) -> Option<Desired> {
    if attempt.journal.memory.assignment_match == AssignmentMatch::Stale && is_admitted(attempt.snapshot) {
        // Its nodes are deleted when its pods have stopped; then it starts again.
        let message =
            "was admitted on a Ready of an earlier reservation, and its nodes are not what it needs now";
        return Some(Desired::new(Verdict::Retry, message));
    }
    let was_ready = entry.state == Verdict::Ready;
    if was_ready && !attempt.awaits_admission() {
        return None;
    }
    if let Some(why) = why_not_ready(attempt, nodes, entry) {
        return Some(Desired::new(Verdict::Pending, why));
    }
    let text = message::sentence(attempt);
    match updates {
        // A conflict would make Kueue fail the Workload, so Kueue never sees Ready.
        Err(obstacle) => {
            Some(Desired::new(Verdict::Pending, format!("{}: {}", obstacle.reason, obstacle.message)))
        }
        Ok(updates) if was_ready && entry.pod_set_updates == updates => None,
        // Kueue rejects other updates while Ready stays Ready, so the check becomes Pending first.
        Ok(_) if was_ready => Some(Desired::new(Verdict::Pending, text)),
        Ok(updates) => Some(Desired { updates, ..Desired::new(Verdict::Ready, text) }),
    }
}

/// Why the check of a gang that may run is not Ready, or not any more.
fn why_not_ready(attempt: &Attempt<'_>, nodes: Nodes, entry: &CheckState) -> Option<String> {
    let snapshot = attempt.snapshot;
    if let Some(failure) = failure_before_admission(attempt) {
        return Some(format!("takes Ready back: {failure}"));
    }
    if has_lost_readiness(attempt) && snapshot.freshness == Freshness::Quorum {
        return Some(format!("takes Ready back: {}", still_ready(attempt)));
    }
    let promises = entry.state != Verdict::Ready && attempt.awaits_admission();
    match nodes {
        _ if !promises => None,
        Nodes::Unneeded => {
            (!snapshot.needs_no_nodes()).then(|| "working out whether nodes are needed".to_owned())
        }
        Nodes::Held | Nodes::Replacing => (!is_proven(attempt)).then(|| still_ready(attempt)),
    }
}

/// Whether Kueue has admitted the Workload on our Ready.
fn is_admitted(snapshot: &Snapshot<'_>) -> bool {
    matches!(snapshot.reservation, Reservation::Held { phase: AdmissionPhase::Admitted, .. })
}

/// Whether every node of the attempt is ready, seen in a quorum read.
fn is_proven(attempt: &Attempt<'_>) -> bool {
    if planted!(ReadyFromJournalAlone) || planted!(ReadyBeforeGate) {
        return true;
    }
    attempt.is_ready() && attempt.snapshot.freshness == Freshness::Quorum
}

/// How many nodes of a complete attempt are still ready, and what the first of the others waits for.
fn still_ready(attempt: &Attempt<'_>) -> String {
    let (ready, slots) = (attempt.ready(), attempt.journal.memory.slots);
    format!("{ready}/{slots} nodes still ready{}", message::lag(attempt))
}

impl Desired {
    /// A verdict that adds nothing to the pods.
    fn new(state: Verdict, message: impl Into<String>) -> Self {
        Self { state, message: message.into(), updates: Vec::new() }
    }

    /// This entry, with Pending in place of a verdict that evicts.
    fn without_eviction(self) -> Self {
        match self.state {
            Verdict::Retry | Verdict::Rejected => {
                Self { state: Verdict::Pending, updates: Vec::new(), ..self }
            }
            Verdict::Pending | Verdict::Ready => self,
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
