//! When to reconcile a gang even if nothing else changes, because time alone may cause its next event.

use super::option_retry;
use super::replacement::next_replacement;
use super::ungated_pods;
use crate::api::{NodeClaim, Workload};
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::snapshot::health::Health;
use crate::gang::snapshot::loss::Loss;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::State;
use crate::plan::Outcome;
use jiff::Timestamp;
use std::sync::Arc;

/// When time alone may cause the next event.
pub fn wake_at(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let attempt = &Attempt::of(journal, snapshot);
    let due = |claim: &ClaimView| match &claim.health {
        Health::Coming { until, .. } => *until,
        Health::Ready { .. } | Health::Failed(_) => None,
    };
    let claims = attempt.claims().filter_map(due);
    let losses = snapshot.losses.values().filter_map(|l| match l {
        Loss::Unclear(until) => Some(*until),
        Loss::Failed(_) | Loss::Superseded(_) => None,
    });
    match &journal.state {
        State::Validating => {
            if let (Some(Outcome::Refuse(_)), Some(refusal)) = (snapshot.plan, snapshot.refusal) {
                return Some(refusal.again_at);
            }
            let Some(Outcome::Wait(obstacle)) = snapshot.plan else { return journal.memory.deadline };
            let deadline = journal.memory.deadline.filter(|_| !obstacle.reason.has_no_deadline());
            let round = option_retry::next_round(journal, snapshot).filter(|t| *t > snapshot.now);
            deadline.into_iter().chain(gate_opens(snapshot)).chain(round).min()
        }
        State::BackingOff { until } => Some(*until),
        State::Provisioning | State::WaitingReady => {
            let ends = journal.memory.deadline.into_iter().chain(attempt.hold_ends());
            let ends = ends.chain(claims).chain(gate_opens(snapshot));
            if attempt.reboots() || attempt.pods_may_run() {
                let next = ungated_pods::next_try(attempt).into_iter().chain(attempt.restarted_by());
                let next = next.chain(create_again(journal, snapshot));
                return ends.chain(next).filter(|t| *t > snapshot.now).chain(losses).min();
            }
            ends.chain(losses).min()
        }
        State::Approved { .. } => {
            let ends = attempt.admit_ends().into_iter().chain(attempt.hold_ends());
            let awaited = attempt.claims().filter(|c| attempt.awaits_admission() || c.generation > 0);
            let ends = ends.chain(awaited.filter_map(due));
            let next = next_replacement(attempt).into_iter().chain(attempt.restarted_by());
            let next = next.chain(create_again(journal, snapshot));
            ends.chain(next).filter(|t| *t > snapshot.now).chain(losses).min()
        }
        State::Yielded => snapshot.refusal.map(|refusal| refusal.until),
        State::RollingBack { .. } | State::Rejected | State::Released => None,
    }
}

/// When a NodeClaim that the API server refused in this reconcile is created again, while the pods of the gang may run.
fn create_again(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let wait = snapshot.policy.in_check.wait(journal.memory.tries.max(1));
    snapshot.create_refused.and_then(|_| snapshot.now.checked_add(wait.signed()).ok())
}

/// When the gate that the plan waits for opens, if that is known and still to come.
fn gate_opens(snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let Some(Outcome::Wait(obstacle)) = snapshot.plan else { return None };
    obstacle.until.filter(|until| *until > snapshot.now)
}

/// Whether a gang has claims, or may still get some.
pub fn holds_claims(journal: &Journal, claims: &[Arc<NodeClaim>]) -> bool {
    !journal.state.is_over() || !claims.is_empty()
}

/// Whether a gang stays as it is until an event: it is admitted, or over without nodes. An approved slice that was
/// replaced does not rest: its Job may grow and need the nodes again.
pub fn rests(journal: &Journal, workload: &Workload, claims: &[Arc<NodeClaim>]) -> bool {
    if journal.state.is_approved() {
        return workload.is_admitted() && !workload.is_replaced();
    }
    !holds_claims(journal, claims)
}
