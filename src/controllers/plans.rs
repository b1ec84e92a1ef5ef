//! Makes the plan of a gang from the stores, under the ledger's lock.

use super::context::Context;
use super::memory::LedgerPages;
use crate::api::{NodeClaim, Workload};
use crate::names;
use crate::plan::{self, Cluster, Obstacle, ObstacleReason, Outcome, Request};
use crate::policy::Policy;
use k8s_openapi::api::core::v1::LimitRange;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

/// The policy of a check, or why there is none that can be used.
pub fn policy(context: &Context, check: &str) -> (Policy, Result<(), Obstacle>) {
    let fallback = || context.policy_file.policy(check, None);
    match context.parameters(check) {
        Some(Ok(parameters)) => (context.policy_file.policy(check, parameters.as_ref()), Ok(())),
        Some(Err(why)) => (fallback(), Err(Obstacle::new(ObstacleReason::NoPolicy, why))),
        None => {
            let why = format!("the parameters of check {check} have not been read yet");
            (fallback(), Err(Obstacle::new(ObstacleReason::NoPolicy, why)))
        }
    }
}

/// NodePools whose limits count, and for which all live claims must therefore be known.
pub fn limited_pools(context: &Context) -> Vec<String> {
    let pools = context.stores.pools.state();
    let limited = pools.iter().filter(|p| p.spec.limits.as_ref().is_some_and(|l| !l.is_empty()));
    limited.map(|p| p.name_any()).collect()
}

/// Plans, with the turn on short NodePools respected.
pub fn outcome(
    context: &Context,
    request: &Request<'_>,
    pages: &LedgerPages,
    pool_claims: &[NodeClaim],
) -> Outcome {
    let workload = request.workload;
    let reserved = pages.others(request.gang);
    let counted: Vec<NodeClaim> = pool_claims
        .iter()
        .filter(|c| !reserved.iter().any(|r| r.gang == c.label(names::GANG)))
        .cloned()
        .collect();
    let queue =
        workload.admission().and_then(|a| context.stores.queues.get(&ObjectRef::new(&a.cluster_queue)));
    let cluster = Cluster {
        cluster_queue: queue.as_deref(),
        flavors: &context.stores.flavors.state(),
        node_pools: &context.stores.pools.state(),
        daemon_sets: &context.stores.daemon_sets.state(),
        limit_ranges: &limit_ranges(context, workload),
        runtime_classes: &context.stores.runtime_classes.state(),
        pool_claims: &counted,
        reserved: &reserved,
    };
    match plan::plan(&cluster, request) {
        Outcome::Provision(plan) => {
            let wanted = plan.reservations(request.gang);
            match pages.whose_turn(request.gang, &wanted, context.now()) {
                None => Outcome::Provision(plan),
                Some((other, pool)) => Outcome::Wait(Obstacle::new(
                    ObstacleReason::CapacityShort,
                    format!("NodePool {pool} ran out of capacity lately, and gang {other} tries there first"),
                )),
            }
        }
        other => other,
    }
}

/// Names of the pod sets a check provides for, in the order of the Workload.
pub fn covered(context: &Context, workload: &Workload, check: &str, our_checks: &[String]) -> Vec<String> {
    let queue =
        workload.admission().and_then(|a| context.stores.queues.get(&ObjectRef::new(&a.cluster_queue)));
    let covered = plan::demand::covered(queue.as_deref(), workload, check, our_checks);
    let sets = workload.spec.pod_sets.iter().map(|p| p.name.clone());
    sets.filter(|name| covered.contains(name)).collect()
}

fn limit_ranges(context: &Context, workload: &Workload) -> Vec<Arc<LimitRange>> {
    let namespace = workload.namespace();
    context.stores.limit_ranges.state().into_iter().filter(|r| r.metadata.namespace == namespace).collect()
}
