//! Whether a plan may be bought now. Each gate allows, or says with figures what is in the way.
//!
//! Karpenter checks NodePool limits only for claims it makes itself, so they are checked here, with
//! everything counted that exists or is about to.

use super::resources::{first_short, shown, sum};
use super::{Cluster, Obstacle, ObstacleReason, Plan, Request, Reservation};
use crate::api::parameters::Gate;
use crate::api::pod::ResourceList;
use crate::api::{NodeClaim, NodePool};
use crate::names;
use crate::policy::Policy;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// The key under which a NodePool limits the number of its nodes.
const NODES: &str = "nodes";

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
    let key = first_short(&total, limits)?;
    Some(format!(
        "NodePool {} has a limit of {} {key}: {} in use and {} more for the gang are over it; raise spec.limits or \
         wait until nodes go",
        wanted.node_pool,
        shown(limits, key),
        shown(&used, key),
        shown(&more, key)
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
    list.insert(NODES.to_owned(), Quantity(nodes.to_string()));
    list
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{World, object, pool};
    use super::*;
    use serde_json::{Value, json};

    fn world(limits: &Value) -> World {
        World { pools: vec![pool("gpu", &json!({"spec": {"limits": limits}}))], ..World::new() }
    }

    fn claim(gang: &str, change: &Value) -> NodeClaim {
        let base = json!({
            "metadata": {"name": "c", "labels": {(names::NODEPOOL): "gpu", (names::GANG): gang}},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"nvidia.com/gpu": "1"}},
            },
        });
        object(super::super::fixtures::patched(base, change))
    }

    #[test]
    fn a_limit_is_not_exceeded_by_filling_it() {
        assert_eq!(
            world(&json!({"nvidia.com/gpu": "2", "nodes": "2", "cpu": "4"})).provisioned().slots.len(),
            2
        );
    }

    #[test]
    fn every_key_of_the_limits_counts_nodes_too() {
        let (reason, message) = world(&json!({"cpu": "100", "nodes": "1"})).obstacle();
        assert_eq!(reason, ObstacleReason::LimitExceeded);
        assert_eq!(
            message,
            "NodePool gpu has a limit of 1 nodes: 0 in use and 2 more for the gang are over it; raise spec.limits or \
             wait until nodes go"
        );
        assert_eq!(world(&json!({"nvidia.com/gpu": "1"})).obstacle().0, ObstacleReason::LimitExceeded);
    }

    #[test]
    fn claims_count_with_what_they_have_and_before_launch_with_what_they_ask_for() {
        let mut world = world(&json!({"nvidia.com/gpu": "4"}));
        world.claims = vec![claim("g2", &json!({})), claim("g3", &json!({}))];
        assert_eq!(world.provisioned().slots.len(), 2);
        world.claims.push(claim("g4", &json!({"status": {"capacity": {"nvidia.com/gpu": "8"}}})));
        assert!(world.obstacle().1.contains("limit of 4 nvidia.com/gpu: 10 in use and 2 more"));
    }

    #[test]
    fn claims_that_go_that_are_ours_or_of_another_pool_do_not_count() {
        let mut world = world(&json!({"nodes": "2"}));
        world.claims = vec![
            claim("g1", &json!({})),
            claim("g2", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            claim("g2", &json!({"metadata": {"labels": {(names::NODEPOOL): "cpu"}}})),
        ];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn what_other_gangs_are_about_to_create_counts_and_what_this_one_is_does_not() {
        let mut world = world(&json!({"nodes": "3"}));
        let reserved = |gang: &str, node_pool: &str, nodes| Reservation {
            gang: gang.into(),
            node_pool: node_pool.into(),
            nodes,
            requests: ResourceList::new(),
        };
        world.reserved = vec![reserved("g1", "gpu", 9), reserved("g2", "cpu", 9), reserved("g2", "gpu", 1)];
        assert_eq!(world.provisioned().slots.len(), 2);
        world.reserved.push(reserved("g3", "gpu", 1));
        assert_eq!(world.obstacle().0, ObstacleReason::LimitExceeded);
    }

    #[test]
    fn a_gate_that_warns_lets_the_plan_pass_with_a_note_and_one_that_is_off_without() {
        let mut world = world(&json!({"memory": "1Gi", "nodes": "1"}));
        world.policy.capacity_gate = Gate::Warn;
        assert!(world.provisioned().notes[0].contains("limit of 1 nodes"));
        world.policy.capacity_gate = Gate::Off;
        assert!(world.provisioned().notes.is_empty());
    }

    #[test]
    fn a_gang_may_have_as_many_nodes_as_allowed_and_not_one_more() {
        let mut world = World::new();
        world.policy.gang_nodes = 2;
        assert_eq!(world.provisioned().slots.len(), 2);
        world.policy.gang_nodes = 1;
        let expected = "the gang needs 2 nodes, and guards.gangNodes allows 1; ask the administrator";
        assert_eq!(world.obstacle(), (ObstacleReason::TooManyNodes, expected.to_owned()));
    }
}
