//! Whether a plan may be bought now. Each gate allows, or says with figures what is in the way.
//!
//! Karpenter checks NodePool limits only for claims it makes itself, so they are checked here, with
//! everything counted that exists or is about to.

use super::resources::{self, shortage, sum};
use super::{Cluster, Obstacle, ObstacleReason, Plan, Request, Reservation};
use crate::api::parameters::Gate;
use crate::api::pod::ResourceList;
use crate::api::{NodeClaim, NodePool};
use crate::names;
use crate::policy::Policy;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The gang is not larger than the administrator allows.
pub fn size(nodes: u32, policy: &Policy) -> Result<(), Obstacle> {
    if nodes <= policy.gang_nodes {
        return Ok(());
    }
    Err(Obstacle::new(
        ObstacleReason::TooManyNodes,
        format!(
            "the gang needs {nodes} nodes, and guards.gangNodes allows {}; ask the administrator",
            policy.gang_nodes
        ),
    ))
}

/// No NodePool goes over its limits. With the gate at `Warn` the plan carries a note instead.
pub fn limits(cluster: &Cluster<'_>, request: &Request<'_>, mut plan: Plan) -> Result<Plan, Obstacle> {
    if request.policy.capacity_gate == Gate::Off {
        return Ok(plan);
    }
    for wanted in plan.reservations(request.gang) {
        let Some(pool) =
            cluster.node_pools.iter().find(|p| p.metadata.name.as_ref() == Some(&wanted.node_pool))
        else {
            continue;
        };
        if let Some(message) = over_limit(cluster, pool, &wanted) {
            if request.policy.capacity_gate == Gate::Enforce {
                return Err(Obstacle::new(ObstacleReason::LimitExceeded, message));
            }
            plan.notes.push(message);
        }
    }
    Ok(plan)
}

fn over_limit(cluster: &Cluster<'_>, pool: &NodePool, wanted: &Reservation) -> Option<String> {
    let limits = pool.spec.limits.as_ref().filter(|l| !l.is_empty())?;
    let mut used = ResourceList::new();
    for claim in cluster.pool_claims.iter().filter(|c| counts(c, wanted)) {
        used = sum(&used, &with_nodes(capacity(claim), 1));
    }
    for other in cluster.reserved.iter().filter(|r| r.node_pool == wanted.node_pool && r.gang != wanted.gang)
    {
        used = sum(&used, &with_nodes(&other.requests, other.nodes));
    }
    let more = with_nodes(&wanted.requests, wanted.nodes);
    let total: ResourceList =
        sum(&used, &more).into_iter().filter(|(key, _)| limits.contains_key(key)).collect();
    let short = shortage(&total, limits)?;
    let key = short.split(' ').next().unwrap_or_default();
    let figure = |list: &ResourceList| list.get(key).map_or_else(|| "0".to_owned(), |q| q.0.clone());
    Some(format!(
        "NodePool {} has a limit of {} {key}: {} are in use and the gang needs {} more",
        wanted.node_pool,
        figure(limits),
        figure(&used),
        figure(&more)
    ))
}

fn counts(claim: &NodeClaim, wanted: &Reservation) -> bool {
    claim.metadata.deletion_timestamp.is_none()
        && claim.label(names::NODEPOOL) == wanted.node_pool
        && claim.label(names::GANG) != wanted.gang
}

/// What a claim's node has in all; before launch, what it asks for.
fn capacity(claim: &NodeClaim) -> &ResourceList {
    let known = claim.status.as_ref().map(|s| &s.capacity).filter(|c| !c.is_empty());
    known.unwrap_or(&claim.spec.resources.requests)
}

fn with_nodes(list: &ResourceList, nodes: u32) -> ResourceList {
    let mut list = list.clone();
    list.insert("nodes".to_owned(), Quantity(nodes.to_string()));
    debug_assert!(resources::validate(&list).is_ok(), "amounts were validated before");
    list
}
