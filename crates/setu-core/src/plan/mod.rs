//! From a Workload's admission to the NodeClaims it needs, as pure functions.
//!
//! Read in this order: `outcome` (the result of planning) → `demand` (which pod sets, how many pods) → `tiers` and `pools` (the
//! options for getting nodes) → `claim` (the NodeClaim of an option; uses `affinity`, `labels`, `taints`) → `slots` (how many
//! nodes; uses `shapes`, `catalogue`, `daemons`, `packing`) → `gates` (whether they may be bought now) → `tried` (why earlier
//! options were not taken) → `merge` (whether Kueue can start the pods there).
//!
//! Rule: sizes, shapes and pools come from the admission, the pod sets and the administrator's
//! objects alone. Nothing a tenant annotates has a say.

pub mod affinity;
pub mod catalogue;
pub mod claim;
pub mod cost;
pub mod daemons;
pub mod demand;
pub mod devices;
pub mod gates;
pub mod host_anti_affinity;
mod input;
mod kinds;
mod labels;
pub mod lifetime;
pub mod limit_ranges;
pub mod market;
mod matching;
pub mod merge;
pub mod observed_shapes;
mod obstacle;
pub mod offering;
pub mod outcome;
pub mod packing;
pub mod passed_over;
mod pending_nodes;
pub mod pod_set_labels;
pub mod policy_warnings;
pub mod pool_claims;
pub mod pools;
mod recorded;
pub mod reservations;
pub mod resources;
pub mod runtime;
pub mod shape;
pub mod shapes;
pub mod slices;
pub mod slots;
pub mod source;
pub mod strategy;
pub mod taints;
pub mod tiers;
pub mod topology;
mod tried;
pub mod volumes;
pub mod warm;

use crate::api::parameters::Pinning;
use crate::api::workload::PodSetUpdate;
use crate::api::{ClusterQueue, NodeClaim, ResourceFlavor};
use crate::names;
use crate::planted::planted;
use demand::PodSetDemand;
pub use input::{Edited, OptionSelection, PlanRequest, PlanSnapshot};
use k8s_openapi::api::core::v1::Toleration;
pub use kinds::PlanObjects;
pub use obstacle::{Obstacle, ObstacleReason, PlanChange};
pub use outcome::{NodeMaximum, Outcome, Plan, PodShare, Slot};
use passed_over::PassedOver;
pub use pending_nodes::PendingNodes;
use pod_set_labels::PodSetLabels;
use reservations::held;
use std::sync::Arc;
use tiers::ProvisioningOption;
use topology::Topology;
use tried::TriedOptions;

/// Additions to the pods for Kueue to make, so that they find their nodes and nobody else does.
fn pod_set_updates(
    pod_sets: &[String],
    gang: &str,
    pinning: Pinning,
    labels: &PodSetLabels,
) -> Vec<PodSetUpdate> {
    if pinning == Pinning::None || planted!(SelectorMissing) {
        return Vec::new();
    }
    let toleration = Toleration {
        key: Some(names::GANG.to_owned()),
        operator: Some("Equal".to_owned()),
        value: Some(gang.to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    // Nodes that were taken over without a journal may have the taint or not.
    let may_be_tainted = matches!(pinning, Pinning::SelectorAndTaint | Pinning::Auto);
    let tolerations = if may_be_tainted { vec![toleration] } else { Vec::new() };
    let node_selector = |pod_set: &str| {
        let own = labels.of_pod_set(pod_set).map(|value| (names::POD_SETS, value));
        let all = [(names::GANG, gang)].into_iter().chain(own);
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    pod_sets
        .iter()
        .map(|name| PodSetUpdate {
            name: name.clone(),
            node_selector: node_selector(name),
            tolerations: tolerations.clone(),
            ..PodSetUpdate::default()
        })
        .collect()
}

/// The pod set updates of a gang that has its nodes. An obstacle if no pod set would get to them, or if Kueue cannot merge the updates
/// with its other additions to the pods.
pub fn updates(
    queue: Option<&ClusterQueue>,
    flavors: &[Arc<ResourceFlavor>],
    request: &PlanRequest<'_>,
    pinning: Pinning,
    labels: &PodSetLabels,
) -> Result<Vec<PodSetUpdate>, Obstacle> {
    let name = request.workload.admission().map_or("", |a| a.cluster_queue.as_str());
    let unknown = |what| Obstacle::new(ObstacleReason::QueueUnknown, what);
    let queue = queue.ok_or_else(|| unknown(format!("ClusterQueue {name} was not found")))?;
    let pod_sets = demand::pinned(Some(queue), request);
    if pod_sets.is_empty() {
        // Nodes were made for some pod set. Without an update no pod would get to them.
        return Err(unknown(format!(
            "ClusterQueue {name} has check {} provide for no pod set any more",
            request.check
        )));
    }
    let updates = pod_set_updates(&pod_sets, request.gang_label, pinning, labels);
    merge::check(flavors, request, &updates)?;
    Ok(updates)
}

/// The needs of a gang, whatever way its nodes come.
struct Needs<'a> {
    demand: Vec<PodSetDemand<'a>>,
    topology: Topology,
}

impl<'a> Needs<'a> {
    fn of(cluster: &PlanSnapshot<'a>, request: &PlanRequest<'a>) -> Result<Self, Outcome> {
        let demand = demand::demand(cluster, request)?;
        let topology = Topology::of(cluster, request, &demand).map_err(Outcome::Refuse)?;
        Ok(Self { demand, topology })
    }

    /// Whether volumes narrow the nodes, and may do so more once they are bound.
    fn narrows(&self) -> bool {
        self.demand.iter().any(|wanted| !wanted.reach.is_empty())
    }

    fn options(&self, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Vec<ProvisioningOption> {
        tiers::options(cluster, request, &self.demand, &self.topology)
    }
}

/// Plans the nodes of a gang.
pub fn plan(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Outcome {
    let needs = match Needs::of(cluster, request) {
        Ok(needs) => needs,
        Err(stop) => return stop,
    };
    let options = needs.options(cluster, request);
    let last = u32::try_from(options.len()).unwrap_or(u32::MAX).saturating_sub(1);
    let plan_of = |index, option: &ProvisioningOption| {
        let plan = gated(cluster, request, &needs, option)?;
        Ok(Plan { option_index: index, option_count: last.saturating_add(1), ..plan })
    };
    let like = |plan: Plan, claims: &[NodeClaim]| {
        let plan = plan.with_types_of(claims, needs.narrows())?;
        Some(priced(cluster, request, plan))
    };
    if let OptionSelection::Accepted { option_index, plan, begun } = request.selection {
        return matching::accepted(&options, option_index.min(last), plan, plan_of, |plan| like(plan, begun));
    }
    let first = if let OptionSelection::From(first) = request.selection { first } else { 0 };
    let mut tried = TriedOptions::none(&options);
    let (mut second_best, mut alike, mut similar) = (None, None, None);
    for (index, option) in (0..).zip(&options).skip(usize::try_from(first.min(last)).unwrap_or(usize::MAX)) {
        let plan = match plan_of(index, option) {
            Ok(plan) => plan,
            // Another option would be taken only because this one was planned too early.
            Err(obstacle) if is_awaited(cluster, &obstacle) => return Outcome::Wait(obstacle),
            Err(obstacle) => {
                tried.closed.push((option, obstacle));
                continue;
            }
        };
        if is_taken(cluster, request, &plan) {
            return Outcome::Provision(tried.recorded_in(plan, cluster, request.policy));
        }
        let shortage = tried::shortage(cluster, &plan);
        alike = alike.or_else(|| is_alike(request, &plan).then(|| plan.clone()));
        similar = similar.or_else(|| is_similar(request, &plan).then(|| plan.clone()));
        let next = match request.selection {
            OptionSelection::Like { begun, .. } => like(plan, begun),
            // Capacity that ran out lately is tried again, unless Karpenter's metrics report that it is out.
            _ => Some(plan).filter(|_| shortage.as_ref().is_none_or(|s| s.reported_until.is_none())),
        };
        tried.exhausted.extend(shortage.map(|shortage| (option, shortage)));
        second_best = second_best.or(next);
    }
    match alike.or(second_best).or(similar) {
        Some(plan) => Outcome::Provision(tried.recorded_in(plan, cluster, request.policy)),
        None => outcome::closed(&tried.obstacles()),
    }
}

/// Whether no later option is tried.
fn is_taken(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: &Plan) -> bool {
    match request.selection {
        OptionSelection::Like { begun, plan: hash } => {
            plan.has_like_in_slots(begun) && hash.is_none_or(|hash| plan.replaces(hash))
        }
        OptionSelection::From(_) | OptionSelection::Accepted { .. } => !plan.is_exhausted(cluster.exhausted),
    }
}

/// Whether a plan for a gang with nodes gives nodes like them, maybe in other slots.
fn is_alike(request: &PlanRequest<'_>, plan: &Plan) -> bool {
    matches!(request.selection, OptionSelection::Like { begun, .. } if plan.has_like(begun))
}

/// Whether a plan for a gang with nodes gives nodes like them, of which DaemonSets may take more by now.
fn is_similar(request: &PlanRequest<'_>, plan: &Plan) -> bool {
    matches!(request.selection, OptionSelection::Like { begun, .. } if plan.has_similar(begun))
}

/// Whether planning waits a moment for the obstacle to clear, instead of taking another option.
fn is_awaited(cluster: &PlanSnapshot<'_>, obstacle: &Obstacle) -> bool {
    obstacle.reason == ObstacleReason::NodePoolEdited && cluster.edited == Edited::Awaited
}

/// One provisioning option, planned whatever the gates say.
#[derive(Clone, Debug)]
pub struct OptionReport {
    /// Tier, NodePool and place, as far as there is a choice of each.
    pub name: String,
    /// Its nodes, or why there are none.
    pub plan: Result<Plan, Obstacle>,
    /// The report of each gate.
    pub reports: Vec<gates::GateReport>,
    /// NodePools that are not eligible for it.
    pub passed_over: Vec<PassedOver>,
    /// The shortage and its source, if some of its nodes have no capacity anywhere.
    pub shortage: Option<String>,
}

/// Every provisioning option, with what each gate says.
///
/// # Errors
/// The outcome of planning, if it ends before there are options.
pub fn option_reports(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
) -> Result<Vec<OptionReport>, Outcome> {
    let needs = Needs::of(cluster, request)?;
    let option_report = |option: ProvisioningOption| {
        let plan = nodes(cluster, request, &needs, &option);
        let plan = plan.map(|plan| warm::reusing(plan, cluster.warm));
        let plan = plan.map(|plan| held::to_reservations(plan, cluster, request));
        let plan = plan.map(|plan| priced(cluster, request, plan));
        let reports = plan.as_ref().map(|plan| gates::reports_of(cluster, request, plan)).unwrap_or_default();
        let shortage = plan.as_ref().ok().and_then(|plan| tried::shortage(cluster, plan));
        let shortage = shortage.map(|shortage| shortage.words);
        OptionReport { name: option.name, plan, reports, passed_over: option.passed_over, shortage }
    };
    Ok(needs.options(cluster, request).into_iter().map(option_report).collect())
}

/// The plan of one option, if every gate lets it pass.
fn gated(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    needs: &Needs<'_>,
    option: &ProvisioningOption,
) -> Result<Plan, Obstacle> {
    let plan = nodes(cluster, request, needs, option)?;
    needs.topology.allows_staying(&plan, cluster.staying)?;
    let most = |claim: &NodeClaim| gates::capacity::most_of(claim, cluster, request.policy);
    let plan = warm::reusing(plan.keeping(cluster.staying, most), cluster.warm);
    let plan = held::to_reservations(plan, cluster, request);
    let plan = priced(cluster, request, plan);
    match request.selection {
        OptionSelection::Accepted { .. } | OptionSelection::Like { .. } => {
            gates::require_ready_pools(cluster, request, plan)
        }
        OptionSelection::From(_) => gates::require_open(cluster, request, plan),
    }
}

/// The plan with what its nodes cost.
fn priced(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: Plan) -> Plan {
    Plan { cost: Arc::new(cluster.prices(request.policy).of_nodes(plan.claims())), ..plan }
}

/// The plan of one option, whatever the gates say.
fn nodes(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    needs: &Needs<'_>,
    option: &ProvisioningOption,
) -> Result<Plan, Obstacle> {
    let arrangement = option.arrangement.as_ref().map_err(Clone::clone)?;
    let portions = needs.topology.portions(&needs.demand, arrangement)?;
    let (demand, drafts): (Vec<_>, Vec<_>) =
        portions.iter().filter_map(|portion| portion.of(&needs.demand)).unzip();
    let plan = slots::plan(cluster, request, &demand, &drafts).map_err(|o| option.with_passed_over(o))?;
    needs.topology.allows_hosts(&plan)?;
    let plan = Plan { tier: option.tier, option_name: option.title(request.policy).into(), ..plan };
    let pinned = demand::pinned(cluster.cluster_queue, request);
    let labels = PodSetLabels::of(&plan.slots);
    let updates = pod_set_updates(&pinned, request.gang_label, plan.pinning, &labels);
    merge::check(&cluster.objects.flavors, request, &updates)?;
    Ok(plan)
}

/// Requests that cannot be read.
fn bad_quantity(who: &str, error: &resources::BadQuantity) -> Obstacle {
    let message = format!("{who} requests {error}; write an amount such as 500m, 2 or 4Gi");
    Obstacle::new(ObstacleReason::BadQuantity, message)
}

#[cfg(test)]
pub(crate) mod fixtures;

#[cfg(test)]
mod tests {
    use super::fixtures::{Fixture, daemon_set, pod_set, pool, queue};
    use super::*;
    use serde_json::json;

    fn two_sets() -> Fixture {
        Fixture::new().workload(&json!({
            "spec": {"podSets": [pod_set("lead", 1), pod_set("main", 2)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "main", "flavors": {"cpu": "gpu"}}, {"name": "lead", "flavors": {"cpu": "gpu"}},
            ]}},
        }))
    }

    #[test]
    fn slots_are_numbered_over_the_pod_sets_in_the_order_of_the_spec() {
        let plan = two_sets().provisioned();
        let slots: Vec<(u32, &str)> =
            plan.slots.iter().map(|s| (s.index, s.pods[0].pod_set.as_str())).collect();
        assert_eq!(slots, [(0, "lead"), (1, "main"), (2, "main")]);
        assert!(Arc::ptr_eq(&plan.slots[1].template, &plan.slots[2].template));
        assert_eq!(plan.pod_sets(), ["lead", "main"]);
    }

    #[test]
    fn the_hash_follows_the_shape_and_not_the_hash_of_the_node_pool() {
        let hash = |world: &Fixture| world.provisioned().hash();
        let mut world = Fixture::new();
        let first = hash(&world);
        assert_eq!((first.len(), hash(&world)), (33, first.clone()));
        let rehashed = json!({"metadata": {"annotations": {(names::NODEPOOL_HASH): "9"}}});
        world.objects.node_pools = vec![pool("gpu", &rehashed)];
        assert_eq!(hash(&world), first);
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}))];
        assert_ne!(hash(&world), first);
        assert_ne!(hash(&two_sets()), first);
    }

    #[test]
    fn a_reservation_holds_all_nodes_of_the_gang_in_a_pool() {
        let all = two_sets().provisioned().reservations("g1");
        assert_eq!((all.len(), all[0].nodes, all[0].node_pool.as_str()), (1, 3, "gpu"));
        assert_eq!((all[0].most["cpu"].0.as_str(), all[0].most["nvidia.com/gpu"].0.as_str()), ("6", "3"));
    }

    #[test]
    fn updates_pin_the_covered_pod_sets_alone() {
        let mut world = two_sets();
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["gpu"]}])));
        let plan = world.provisioned();
        let updates_of = |pinning| pod_set_updates(&plan.pod_sets(), "g1", pinning, &PodSetLabels::default());
        let updates = updates_of(plan.pinning);
        assert_eq!(updates.len(), 2);
        assert_eq!(updates[0].node_selector, [(names::GANG.to_owned(), "g1".to_owned())].into());
        assert!(taints::tolerates(&updates[0].tolerations, &taints::gang_taint("g1")));
        assert!(!taints::tolerates(&updates[0].tolerations, &taints::gang_taint("g2")));
        assert!(updates_of(Pinning::Selector)[0].tolerations.is_empty());
        assert!(updates_of(Pinning::None).is_empty());
        let taken_over = updates_of(Pinning::Auto);
        assert!(taints::tolerates(&taken_over[0].tolerations, &taints::gang_taint("g1")));
    }

    #[test]
    fn one_taint_or_none_for_the_whole_gang() {
        let mut world = two_sets();
        world.objects.daemon_sets = vec![daemon_set("logs", &json!({}))];
        let plan = world.provisioned();
        assert_eq!(plan.pinning, Pinning::Selector);
        assert!(plan.slots.iter().all(|s| s.template.spec.taints.is_empty()));
    }
}
