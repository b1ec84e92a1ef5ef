//! From a Workload's admission to the NodeClaims it needs, as pure functions.
//!
//! Read in this order: `demand` (which pod sets, how many pods) → `pools` (from which NodePool) →
//! `claim` (what the NodeClaim looks like; uses `requirements`, `resources`, `daemons`) → `gates`
//! (may it be bought now) → `merge` (will Kueue be able to start the pods there).
//!
//! Rule: sizes, shapes and pools come from the admission, the pod sets and the administrator's
//! objects alone. Nothing a tenant annotates has a say.

pub mod claim;
pub mod daemons;
pub mod demand;
pub mod gates;
pub mod merge;
pub mod pools;
pub mod quantity;
pub mod requirements;
pub mod resources;
pub mod strategy;

use crate::api::parameters::Pinning;
use crate::api::pod::ResourceList;
use crate::api::workload::PodSetUpdate;
use crate::api::{ClusterQueue, DaemonSet, NodeClaim, NodePool, ResourceFlavor, Workload};
use crate::digest::hex_digest;
use crate::names;
use crate::policy::Policy;
use k8s_openapi::api::core::v1::{LimitRange, Toleration};
use k8s_openapi::api::node::v1::RuntimeClass;
use std::fmt;
use std::sync::Arc;

/// What the planner may look at: a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster<'a> {
    /// The queue that granted the quota.
    pub cluster_queue: Option<&'a ClusterQueue>,
    /// Every ResourceFlavor.
    pub flavors: &'a [Arc<ResourceFlavor>],
    /// Every NodePool.
    pub node_pools: &'a [Arc<NodePool>],
    /// Every DaemonSet.
    pub daemon_sets: &'a [Arc<DaemonSet>],
    /// LimitRanges of the Workload's namespace.
    pub limit_ranges: &'a [Arc<LimitRange>],
    /// Every RuntimeClass.
    pub runtime_classes: &'a [Arc<RuntimeClass>],
    /// Live claims of the NodePools that have limits, without those of the gangs in `reserved`.
    pub pool_claims: &'a [NodeClaim],
    /// What other gangs are about to create.
    pub reserved: &'a [Reservation],
}

/// Whom to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The Workload, with its admission.
    pub workload: &'a Workload,
    /// Our check.
    pub check: &'a str,
    /// Every check of ours on this Workload, sorted.
    pub our_checks: &'a [String],
    /// The gang's id.
    pub gang: &'a str,
    /// The gang's policy.
    pub policy: &'a Policy,
}

/// What planning came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// These nodes.
    Provision(Plan),
    /// No node, because.
    NothingNeeded(String),
    /// Not now: something must change first.
    Wait(Obstacle),
    /// Never, as the Workload is.
    Never(Obstacle),
}

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Its kind.
    pub reason: ObstacleReason,
    /// What is wrong and what to do about it, for the user.
    pub message: String,
}

/// Kinds of obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it, and the messages say more")]
pub enum ObstacleReason {
    NodePoolMissing,
    NodePoolNotReady,
    NoNodePoolFits,
    RequirementsClash,
    FlavorNotOffered,
    TaintNotTolerated,
    FlavorMissing,
    QueueUnknown,
    LimitExceeded,
    TooManyNodes,
    ResourceClaims,
    BadQuantity,
    UpdatesClash,
    CapacityShort,
    NoPolicy,
    OtherChecks,
    DryRun,
}

impl ObstacleReason {
    /// Whether it is waited for as long as it lasts, with no deadline of the gang's running out.
    pub fn may_last(self) -> bool {
        matches!(self, Self::OtherChecks | Self::DryRun)
    }
}

impl fmt::Display for ObstacleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl Obstacle {
    /// An obstacle of this kind.
    pub fn new(reason: ObstacleReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// Nodes of a gang, one slot each.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The slots, numbered from 0 over the pod sets in their order.
    pub slots: Vec<Slot>,
    /// How the pods find their nodes; never `Auto`.
    pub pinning: Pinning,
    /// What the administrator may want to know.
    pub notes: Vec<String>,
}

/// One node to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Number within the gang.
    pub index: u32,
    /// Pod set whose pod it carries.
    pub pod_set: String,
    /// NodePool it comes from.
    pub node_pool: String,
    /// The claim without name and gang labels, shared by all slots of the pod set.
    pub template: Arc<NodeClaim>,
}

/// What a gang is about to create in one NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// The gang.
    pub gang: String,
    /// The NodePool.
    pub node_pool: String,
    /// Nodes.
    pub nodes: u32,
    /// Resources of all of them.
    pub requests: ResourceList,
}

impl Plan {
    /// 16 hexadecimal digits that change when what would be created changes.
    pub fn hash(&self) -> String {
        let shape = |s: &Slot| {
            let shape = (&s.pod_set, &s.node_pool, &s.template.spec, &s.template.metadata.labels);
            serde_json::to_string(&shape).unwrap_or_default()
        };
        let shapes: Vec<String> = self.slots.iter().map(shape).collect();
        hex_digest(&shapes.iter().map(String::as_str).collect::<Vec<_>>(), 8)
    }

    /// What this plan takes from each NodePool.
    pub fn reservations(&self, gang: &str) -> Vec<Reservation> {
        let mut all: Vec<Reservation> = Vec::new();
        for slot in &self.slots {
            let requests = &slot.template.spec.resources.requests;
            match all.iter_mut().find(|r| r.node_pool == slot.node_pool) {
                Some(r) => {
                    r.nodes = r.nodes.saturating_add(1);
                    r.requests = resources::sum(&r.requests, requests);
                }
                None => all.push(Reservation {
                    gang: gang.to_owned(),
                    node_pool: slot.node_pool.clone(),
                    nodes: 1,
                    requests: requests.clone(),
                }),
            }
        }
        all
    }

    /// Names of the pod sets that get nodes.
    pub fn pod_sets(&self) -> Vec<String> {
        let mut names: Vec<String> = self.slots.iter().map(|s| s.pod_set.clone()).collect();
        names.dedup();
        names
    }
}

/// What Kueue is to add to the pods, so that they find their nodes and nobody else does.
pub fn pod_set_updates(pod_sets: &[String], gang: &str, pinning: Pinning) -> Vec<PodSetUpdate> {
    if pinning == Pinning::None {
        return Vec::new();
    }
    let toleration = Toleration {
        key: Some(names::GANG.to_owned()),
        operator: Some("Equal".to_owned()),
        value: Some(gang.to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    let tolerations = if pinning == Pinning::SelectorAndTaint { vec![toleration] } else { Vec::new() };
    pod_sets
        .iter()
        .map(|name| PodSetUpdate {
            name: name.clone(),
            node_selector: [(names::GANG.to_owned(), gang.to_owned())].into(),
            tolerations: tolerations.clone(),
            ..PodSetUpdate::default()
        })
        .collect()
}

/// Plans the nodes of a gang.
pub fn plan(cluster: &Cluster<'_>, request: &Request<'_>) -> Outcome {
    let demand = match demand::demand(cluster, request) {
        Ok(demand) => demand,
        Err(stop) => return stop,
    };
    match provision(cluster, request, &demand) {
        Ok(plan) => Outcome::Provision(plan),
        Err(obstacle) => Outcome::Wait(obstacle),
    }
}

fn provision(
    cluster: &Cluster<'_>,
    request: &Request<'_>,
    demand: &[demand::PodSetDemand<'_>],
) -> Result<Plan, Obstacle> {
    let nodes: u32 = demand.iter().map(|d| d.pods).fold(0, u32::saturating_add);
    gates::size(nodes, request.policy)?;
    let mut drafts = Vec::new();
    for wanted in demand {
        drafts.push((wanted, pools::choose(cluster, request, wanted)?));
    }
    let mut remarks: Vec<String> = drafts.iter().flat_map(|(_, draft)| draft.notes.clone()).collect();
    remarks.dedup();
    let excluded = daemons::kept_off_by_taint(drafts.iter().map(|(_, draft)| draft), cluster, request.gang);
    let names = excluded.join(", ");
    let pinning = match request.policy.pinning {
        Pinning::Auto if excluded.is_empty() => Pinning::SelectorAndTaint,
        Pinning::Auto => {
            remarks.push(format!("the nodes get no taint: DaemonSets {names} would not run on them"));
            Pinning::Selector
        }
        Pinning::SelectorAndTaint if !excluded.is_empty() => {
            remarks.push(format!(
                "DaemonSets {names} do not tolerate taint {} and stay off the nodes",
                names::GANG
            ));
            Pinning::SelectorAndTaint
        }
        fixed => fixed,
    };
    let mut slots: Vec<Slot> = Vec::new();
    for (wanted, draft) in &drafts {
        let template = Arc::new(draft.finish(cluster, wanted, request.gang, pinning)?);
        let first = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        slots.extend((0..wanted.pods).map(|n| Slot {
            index: first.saturating_add(n),
            pod_set: wanted.pod_set.name.clone(),
            node_pool: draft.node_pool.clone(),
            template: Arc::clone(&template),
        }));
    }
    let plan = Plan { slots, pinning, notes: remarks };
    let pinned = demand::pinned(cluster.cluster_queue, request);
    let updates = pod_set_updates(&pinned, request.gang, pinning);
    merge::check(cluster, request, &updates)?;
    gates::limits(cluster, request, plan)
}

#[cfg(test)]
mod fixtures;

#[cfg(test)]
mod tests {
    use super::fixtures::{World, daemon_set, pod_set, pool, queue};
    use super::*;
    use serde_json::json;

    fn two_sets() -> World {
        World::new().workload(&json!({
            "spec": {"podSets": [pod_set("lead", 1), pod_set("main", 2)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "main", "flavors": {"cpu": "gpu"}}, {"name": "lead", "flavors": {"cpu": "gpu"}},
            ]}},
        }))
    }

    #[test]
    fn slots_are_numbered_over_the_pod_sets_in_the_order_of_the_spec() {
        let plan = two_sets().provisioned();
        let slots: Vec<(u32, &str)> = plan.slots.iter().map(|s| (s.index, s.pod_set.as_str())).collect();
        assert_eq!(slots, [(0, "lead"), (1, "main"), (2, "main")]);
        assert!(Arc::ptr_eq(&plan.slots[1].template, &plan.slots[2].template));
        assert_eq!(plan.pod_sets(), ["lead", "main"]);
    }

    #[test]
    fn the_hash_follows_the_shape_and_not_the_hash_of_the_node_pool() {
        let hash = |world: &World| world.provisioned().hash();
        let mut world = World::new();
        let first = hash(&world);
        assert_eq!((first.len(), hash(&world)), (16, first.clone()));
        let rehashed = json!({"metadata": {"annotations": {(names::NODEPOOL_HASH): "9"}}});
        world.pools = vec![pool("gpu", &rehashed)];
        assert_eq!(hash(&world), first);
        world.pools = vec![pool("gpu", &json!({"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}))];
        assert_ne!(hash(&world), first);
        assert_ne!(hash(&two_sets()), first);
    }

    #[test]
    fn a_reservation_holds_all_nodes_of_the_gang_in_a_pool() {
        let all = two_sets().provisioned().reservations("g1");
        assert_eq!((all.len(), all[0].nodes, all[0].node_pool.as_str()), (1, 3, "gpu"));
        assert_eq!(
            (all[0].requests["cpu"].0.as_str(), all[0].requests["nvidia.com/gpu"].0.as_str()),
            ("6", "3")
        );
    }

    #[test]
    fn updates_pin_the_covered_pod_sets_alone() {
        let mut world = two_sets();
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["gpu"]}])));
        let plan = world.provisioned();
        let updates = pod_set_updates(&plan.pod_sets(), "g1", plan.pinning);
        assert_eq!(updates.len(), 2);
        assert_eq!(updates[0].node_selector, [(names::GANG.to_owned(), "g1".to_owned())].into());
        assert!(daemons::tolerates(&updates[0].tolerations, &daemons::gang_taint("g1")));
        assert!(!daemons::tolerates(&updates[0].tolerations, &daemons::gang_taint("g2")));
        assert!(pod_set_updates(&plan.pod_sets(), "g1", Pinning::Selector)[0].tolerations.is_empty());
        assert!(pod_set_updates(&plan.pod_sets(), "g1", Pinning::None).is_empty());
    }

    #[test]
    fn one_taint_or_none_for_the_whole_gang() {
        let mut world = two_sets();
        world.daemon_sets = vec![daemon_set("logs", &json!({}))];
        let plan = world.provisioned();
        assert_eq!(plan.pinning, Pinning::Selector);
        assert!(plan.slots.iter().all(|s| s.template.spec.taints.is_empty()));
    }
}
