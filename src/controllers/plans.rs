//! Makes the plan of a gang from the stores, under the ledger's lock.

use super::context::Context;
use super::memory::LedgerPages;
use crate::api::parameters::Pinning;
use crate::api::workload::PodSetUpdate;
use crate::api::{NodeClaim, Workload};
use crate::names;
use crate::plan::{self, Cluster, Obstacle, ObstacleReason, Outcome, Request};
use crate::policy::Policy;
use crate::policy::overrides::{self, Ignored};
use crate::telemetry::events;
use k8s_openapi::api::core::v1::LimitRange;
use kube::ResourceExt;
use kube::runtime::events::EventType;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

/// The policy of a Workload's next attempt, or why there is none that can be used.
pub fn policy(context: &Context, workload: &Workload, check: &str) -> (Policy, Result<(), Obstacle>) {
    let settings = context.policies.settings();
    let no_policy = |why| Err(Obstacle::new(ObstacleReason::NoPolicy, why));
    let (parameters, fault) = match context.policies.parameters(check) {
        Some(Ok(parameters)) => (parameters, Ok(())),
        Some(Err(why)) => (None, no_policy(why)),
        None => (None, no_policy(format!("the parameters of check {check} have not been read yet"))),
    };
    let policy = settings.policy(check, parameters.as_ref());
    let (policy, ignored) = overrides::apply(policy, &settings.file.job_overrides, workload.annotations());
    for Ignored { key, why } in ignored {
        let note = format!("annotation {key} is ignored: {why}");
        if context.policies.is_news(&workload.uid().unwrap_or_default(), &note) {
            events::send(&context.recorder, workload, "JobOverrideIgnored", EventType::Warning, &note);
        }
    }
    (policy, fault)
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

/// What Kueue is to add to the pods, once it is sure that Kueue can merge it with all else it adds.
pub fn updates(
    context: &Context,
    request: &Request<'_>,
    pinning: Pinning,
) -> Result<Vec<PodSetUpdate>, Obstacle> {
    let name = request.workload.admission().map_or("", |a| a.cluster_queue.as_str());
    let queue = context.stores.queues.get(&ObjectRef::new(name)).ok_or_else(|| {
        Obstacle::new(ObstacleReason::QueueUnknown, format!("ClusterQueue {name} is not to be found"))
    })?;
    let pod_sets = plan::demand::pinned(Some(&queue), request);
    let updates = plan::pod_set_updates(&pod_sets, request.gang, pinning);
    let cluster = Cluster { flavors: &context.stores.flavors.state(), ..Cluster::default() };
    plan::merge::check(&cluster, request, &updates)?;
    Ok(updates)
}

fn limit_ranges(context: &Context, workload: &Workload) -> Vec<Arc<LimitRange>> {
    let namespace = workload.namespace();
    context.stores.limit_ranges.state().into_iter().filter(|r| r.metadata.namespace == namespace).collect()
}
