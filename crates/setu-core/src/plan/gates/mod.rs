//! Decides whether a plan may be bought now: each gate allows it, warns, makes it wait or refuses it, with figures.
//!
//! Rule: gates are pure. A gate that makes a plan wait names what has to change; a watch, or the time in `Obstacle::until`, wakes the
//! gang. A gate that refuses names how the policy or the Workload would have to change. The first closed gate counts, so a gate whose
//! wait has no deadline comes before the others.
//!
//! Each file is a gate, except `report` (what a gate answers) and what gates count with: `cohorts`, `inflight` and `unknown`.

pub mod budget;
pub mod capacity;
mod cohorts;
pub mod guards;
pub mod inflight;
pub mod local_queue;
pub mod placement;
pub mod quota;
pub mod readiness;
mod report;
pub mod reservations;
mod unknown;

pub use super::obstacle::Gate;
use super::{Obstacle, Plan, PlanRequest, PlanSnapshot};
use crate::api::parameters::GateMode;
pub use report::{GateAnswer, GateReport, GateResult};

/// The answers of all gates that the policy has not switched off.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: &Plan) -> Vec<GateReport> {
    let policy = request.policy;
    let mut reports = placement::reports_of(cluster, request);
    reports.extend(readiness::reports_of(cluster, policy, plan));
    reports.extend(reservations::reports_of(cluster, request, plan));
    reports.push(budget::size(policy, plan));
    reports.extend(budget::reports_of(policy, plan));
    reports.extend(guards::reports_of(cluster, plan));
    reports.extend(local_queue::reports_of(cluster, request, plan));
    if policy.capacity_gate != GateMode::Off {
        reports.extend(capacity::reports_of(cluster, request, plan));
    }
    if policy.quota_gate != GateMode::Off {
        reports
            .extend(quota::reports_of(cluster, request).into_iter().map(|r| r.limited_by(policy.quota_gate)));
    }
    reports
}

/// Returns a plan that was accepted before, if Karpenter can still create nodes from its NodePools.
pub fn require_ready_pools(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    plan: Plan,
) -> Result<Plan, Obstacle> {
    let reports = readiness::reports_of(cluster, request.policy, &plan);
    reports.iter().find(|r| r.is_closed()).map_or(Ok(plan), |closed| Err(closed.obstacle()))
}

/// Returns the plan with the gates' reports if every gate lets it pass. Warnings become notes.
pub fn require_open(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    mut plan: Plan,
) -> Result<Plan, Obstacle> {
    let reports = reports_of(cluster, request, &plan);
    // Report refusals before gates that may open later.
    let refused = reports.iter().find(|r| r.answer == GateAnswer::Refuse);
    if let Some(closed) = refused.or_else(|| reports.iter().find(|r| r.is_closed())) {
        return Err(closed.obstacle());
    }
    plan.notes.extend(reports.iter().filter(|r| r.answer == GateAnswer::Warn).map(|r| r.message.clone()));
    plan.reports = reports.into();
    Ok(plan)
}
