//! A gang that may run: why it must not be admitted after all, and which of its nodes are lost.
//!
//! Used by `observe` and `report/verdict`, so that Ready is withdrawn for the same reason that ends the attempt.

use super::attempting::sent_elsewhere;
use super::observation::Observation;
use super::replacement;
use crate::api::parameters::OnNodeLost;
use crate::api::workload::Verdict;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::{Freshness, Snapshot};
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::gang::statechart::reservation::AdmissionPhase;
use crate::gang::statechart::state::{Nodes, State};
use crate::plan::Outcome;
use crate::planted::planted;

/// Observation about a gang that may run; `None` if there is nothing to do.
pub(super) fn approved(attempt: &Attempt<'_>) -> Option<Observation> {
    let snapshot = attempt.snapshot;
    if !attempt.awaits_admission() {
        return replacement::replace_lost(attempt);
    }
    if let Some(failure) = loss_before_admission(attempt) {
        let lost = Event::Lost { failure: failure.clone(), phase: AdmissionPhase::Reserved };
        return Some(Observation::confirmed(snapshot, lost));
    }
    if let Some(failure) = failure_before_admission(attempt) {
        return Some(Observation::failed(snapshot, failure));
    }
    if !attempt.journal.state.holds_nodes() {
        return None;
    }
    let unsure = snapshot.reported != Verdict::Ready && !planted!(ReadyFromJournalAlone);
    let doubtful = unsure || has_lost_readiness(attempt) || !attempt.is_filled();
    (snapshot.freshness == Freshness::Cached && doubtful).then_some(Observation::NeedsQuorumRead)
}

/// Whether a node is not ready any more while the check is Ready and Kueue may admit. That only delays the gang: the node
/// may come back.
pub(in crate::gang) fn has_lost_readiness(attempt: &Attempt<'_>) -> bool {
    attempt.may_be_admitted()
        && attempt.journal.state.is_approved()
        && attempt.snapshot.policy.on_node_lost != OnNodeLost::Ignore
        && !attempt.is_ready()
}

/// The loss that forbids the admission of an approved gang, if it is not admitted yet.
fn loss_before_admission<'a>(attempt: &Attempt<'a>) -> Option<&'a Failure> {
    let minds = attempt.journal.state.is_approved()
        && attempt.awaits_admission()
        && attempt.snapshot.policy.on_node_lost != OnNodeLost::Ignore;
    minds.then(|| attempt.first_loss())?
}

/// Why an approved gang that is not admitted yet must not run.
pub fn failure_before_admission(attempt: &Attempt<'_>) -> Option<Failure> {
    let State::Approved { nodes } = attempt.journal.state else { return None };
    if !attempt.awaits_admission() {
        return None;
    }
    if nodes == Nodes::Unneeded {
        return needs_nodes(attempt.snapshot);
    }
    let loss = loss_before_admission(attempt).cloned();
    loss.or_else(|| sent_elsewhere(attempt)).or_else(|| admitted_too_late(attempt))
}

/// The failure of a gang that was approved without nodes, if its plan has some.
fn needs_nodes(snapshot: &Snapshot<'_>) -> Option<Failure> {
    let needed =
        matches!(snapshot.plan, Some(Outcome::Provision(_) | Outcome::Refuse(_) | Outcome::Never(_)));
    let message = "the gang was approved without nodes, and needs some";
    needed.then(|| Failure::new(FailureClass::PlanChanged, message))
}

/// The failure of a gang that Kueue did not admit in time.
fn admitted_too_late(attempt: &Attempt<'_>) -> Option<Failure> {
    let snapshot = attempt.snapshot;
    let message = if attempt.hold_is_over() {
        "every node was ready, but the Workload was not admitted while they were held".to_owned()
    } else {
        let limit = snapshot.policy.deadlines.admit;
        attempt.admit_ends().filter(|end| *end <= snapshot.now)?;
        let why = if snapshot.forecast.unplaced {
            ": Kueue found no place for its pods in the topology"
        } else {
            ""
        };
        format!("every node was ready, but the Workload was not admitted within {limit}{why}")
    };
    Some(Failure::new(FailureClass::NotAdmitted, message))
}
