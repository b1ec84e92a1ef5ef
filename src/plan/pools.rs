//! From which NodePool a pod set gets its nodes.
//!
//! The one the administrator named, or else every usable one that fits flavors and pods, by weight as
//! Karpenter orders them. What does not fit is said of each candidate.

use super::claim::Draft;
use super::demand::PodSetDemand;
use super::{Cluster, Obstacle, ObstacleReason, Request};
use crate::api::NodePool;
use crate::api::parameters::Gate;
use std::cmp::Reverse;
use std::sync::Arc;

/// Most candidates whose reasons are told one by one.
const TOLD: usize = 4;

/// The draft from the first NodePool that will do.
pub fn choose(
    cluster: &Cluster<'_>,
    request: &Request<'_>,
    wanted: &PodSetDemand<'_>,
) -> Result<Draft, Obstacle> {
    if let Some(name) = &request.policy.node_pool {
        let pool = cluster.node_pools.iter().find(|p| p.metadata.name.as_ref() == Some(name)).ok_or_else(|| {
            Obstacle::new(
                ObstacleReason::NodePoolMissing,
                format!("NodePool {name} does not exist; create it, or name another one in the policy or parameters"),
            )
        })?;
        usable(pool, request)?;
        return Draft::new(pool, request, wanted);
    }
    let mut pools: Vec<&Arc<NodePool>> = cluster.node_pools.iter().collect();
    pools.sort_by_key(|p| Reverse((p.spec.weight.unwrap_or_default(), p.metadata.name.clone())));
    let mut reasons = Vec::new();
    for pool in &pools {
        match Draft::new(pool, request, wanted).and_then(|draft| usable(pool, request).map(|()| draft)) {
            Ok(draft) => return Ok(draft),
            Err(obstacle) => reasons.push(obstacle),
        }
    }
    // Nearest first: a pool that fits but is not ready, then one of the right flavor, then the rest.
    let nearest = reasons.iter().map(distance).min();
    reasons.retain(|o| Some(distance(o)) == nearest);
    Err(none_fits(wanted, &reasons))
}

/// How far a NodePool is from being the right one.
fn distance(obstacle: &Obstacle) -> u8 {
    match obstacle.reason {
        ObstacleReason::NodePoolNotReady => 0,
        ObstacleReason::FlavorNotOffered => 2,
        _ => 1,
    }
}

fn none_fits(wanted: &PodSetDemand<'_>, reasons: &[Obstacle]) -> Obstacle {
    if reasons.is_empty() {
        return Obstacle::new(ObstacleReason::NodePoolMissing, "there is no NodePool; create one");
    }
    if let [only] = reasons {
        return only.clone();
    }
    let told: Vec<&str> = reasons.iter().take(TOLD).map(|o| o.message.as_str()).collect();
    let more = reasons.len().saturating_sub(TOLD);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let message = format!("no NodePool fits pod set {}: {}{more}", wanted.pod_set.name, told.join("; "));
    Obstacle::new(ObstacleReason::NoNodePoolFits, message)
}

fn usable(pool: &NodePool, request: &Request<'_>) -> Result<(), Obstacle> {
    let only_the_class = || {
        crate::api::condition::find(pool.conditions(), "NodeClassReady").is_some_and(|c| c.status != "True")
            && pool.spec.replicas.is_none()
            && pool.metadata.deletion_timestamp.is_none()
    };
    match pool.unusable() {
        Some(_) if request.policy.node_class_gate != Gate::Enforce && only_the_class() => Ok(()),
        Some(why) => Err(Obstacle::new(ObstacleReason::NodePoolNotReady, why)),
        None => Ok(()),
    }
}
