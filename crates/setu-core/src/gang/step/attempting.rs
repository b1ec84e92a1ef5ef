//! A gang whose nodes come up: NodeClaims are created, and then their nodes are waited for.
//!
//! Used by `observe`.

use super::observation::Observation;
use super::replacement;
use super::validating::planned;
use crate::api::parameters::{OnNodeLost, Release};
use crate::gang::snapshot::Freshness;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::gang::statechart::reservation::AdmissionPhase;
use crate::plan::{Obstacle, ObstacleReason, Outcome};
use crate::planted::planted;

/// Observation about a gang whose NodeClaims are being created; `None` if there is nothing to do.
pub(super) fn provisioning(attempt: &Attempt<'_>) -> Option<Observation> {
    let Attempt { journal, snapshot, .. } = attempt;
    // If pods may run on other nodes, a refused claim ends nothing and is created later.
    if let Some(reason) = snapshot.create_refused.filter(|_| !attempt.pods_may_run()) {
        return Some(Observation::failed(snapshot, Failure::refused_claim(reason)));
    }
    if let Some(failure) = attempt.first_failure() {
        let failure = failure.clone();
        return Some(if replacement::moves_lost_slots(attempt, &failure) {
            let phase = AdmissionPhase::Reserved;
            Observation::confirmed(snapshot, Event::Lost { failure, phase })
        } else {
            Observation::failed(snapshot, failure)
        });
    }
    if snapshot.freshness == Freshness::Cached && attempt.has_losses() {
        // One seems to be gone already.
        return Some(Observation::NeedsQuorumRead);
    }
    let missing = attempt.missing();
    // A journal with a different slot count cannot be distinguished from one that a tenant wrote.
    let recounted =
        matches!(snapshot.plan, Some(Outcome::Provision(plan)) if !journal.has_as_many_slots(plan));
    if missing.is_empty() && journal.memory.plan.is_some() && !recounted {
        return Some(Observation::of(Event::ClaimsExist));
    }
    if attempt.has_expired() {
        let message =
            format!("{} of {} NodeClaims could not be created in time", missing.len(), journal.memory.slots);
        return Some(Observation::failed(snapshot, Failure::new(FailureClass::GangTimeout, message)));
    }
    if snapshot.create_refused.is_some() {
        return None;
    }
    with_plan(attempt, snapshot.plan?, missing)
}

/// Observation that follows from the current plan for an attempt that lacks the claims of these slots.
fn with_plan(attempt: &Attempt<'_>, plan: &Outcome, missing: Vec<u32>) -> Option<Observation> {
    let Attempt { journal, snapshot, .. } = attempt;
    let changed =
        |message: &str| Some(Observation::failed(snapshot, Failure::new(FailureClass::PlanChanged, message)));
    match plan {
        Outcome::Provision(plan) if !journal.matches_attempt(plan) => {
            changed("NodePool, flavor or policy changed while the NodeClaims were being created")
        }
        Outcome::Provision(plan) if journal.changes_option(plan, snapshot.policy) => {
            Some(Observation::of(planned(plan)))
        }
        Outcome::Provision(_) if missing.is_empty() => Some(Observation::of(Event::ClaimsExist)),
        // A replacement and a node that is taken over have a different name, so only a quorum read shows that the slot has
        // no other claim.
        Outcome::Provision(_) if renames(attempt) => {
            Some(Observation::confirmed(snapshot, Event::ClaimsMissing(missing)))
        }
        Outcome::Provision(_) => Some(Observation::of(Event::ClaimsMissing(missing))),
        Outcome::Wait(obstacle) if journal.is_mixed(snapshot.policy) => {
            // No tier has the missing capacity. Any other obstacle may clear before the deadline.
            let failure = || Failure::new(FailureClass::InsufficientCapacity, &obstacle.message);
            let is_exhausted = obstacle.reason == ObstacleReason::CapacityShort;
            is_exhausted.then(|| Observation::of(Event::Failed(failure())))
        }
        // Once Karpenter has reconciled the edit, it is known whether it changes what is created. Without the parameters no
        // plan can be made, so none has changed.
        Outcome::Wait(Obstacle {
            reason: ObstacleReason::NodePoolEdited | ObstacleReason::NoPolicy, ..
        }) => None,
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

/// The failure of a gang whose pods would not come to its nodes.
pub(super) fn sent_elsewhere(attempt: &Attempt<'_>) -> Option<Failure> {
    let message = attempt.snapshot.misplaced.filter(|_| attempt.awaits_admission())?;
    Some(Failure::new(FailureClass::PlanChanged, message))
}

/// Observation about a gang whose NodeClaims all exist; `None` if there is nothing to do.
pub(super) fn waiting_ready(attempt: &Attempt<'_>) -> Option<Observation> {
    let snapshot = attempt.snapshot;
    let quorum = snapshot.freshness == Freshness::Quorum || planted!(ReadyBeforeGate);
    let confirmed = |event| if quorum { Observation::of(event) } else { Observation::NeedsQuorumRead };
    if let Some(failure) = attempt.first_failure() {
        let is_ignored = failure.reason.is_node_loss() && snapshot.policy.on_node_lost == OnNodeLost::Ignore;
        if !is_ignored {
            return Some(match replacement::lost_or_failed(attempt, failure) {
                Event::Failed(failure) => Observation::failed(snapshot, failure),
                event => confirmed(event),
            });
        }
    }
    if let Some(failure) = sent_elsewhere(attempt) {
        return Some(Observation::failed(snapshot, failure));
    }
    if !attempt.is_filled() && !quorum {
        return Some(Observation::NeedsQuorumRead);
    }
    if attempt.is_ready() {
        return Some(confirmed(Event::NodesReady));
    }
    (attempt.has_expired() || attempt.hold_is_over()).then(|| {
        let message = match attempt.first_unready() {
            Some((slot, what)) => format!("the gang was not ready in time: slot {slot} waits for {what}"),
            None => "the gang was not ready in time".to_owned(),
        };
        Observation::failed(snapshot, Failure::new(FailureClass::GangTimeout, message))
    })
}
