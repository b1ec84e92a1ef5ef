//! NodePool limits. Karpenter checks them only for claims that it creates itself. This gate checks them for the gang's claims and
//! counts everything that exists or is about to be created.

use super::unknown::UnknownAmounts;
use super::{Gate, GateAnswer, GateReport};
use crate::api::pod::ResourceList;
use crate::api::quantity::Amount;
use crate::api::requirements::Requirements;
use crate::api::{NodeClaim, NodePool};
use crate::names;
use crate::plan::resources::{
    NODES, amount, first_insufficient, is_device, max, minus, shown, sum, times, with_nodes,
};
use crate::plan::shape::Shape;
use crate::plan::shapes::{KnownTypes, Sources, known};
use crate::plan::{ObstacleReason, PendingNodes, Plan, PlanRequest, PlanSnapshot, Slot, warm};
use crate::policy::Policy;
use crate::words::counted;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One report for each NodePool of the plan.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: &Plan) -> Vec<GateReport> {
    let taken_over = warm::of_plan(plan, cluster.warm);
    let taken_over: BTreeSet<&str> =
        taken_over.values().filter_map(|claim| claim.metadata.name.as_deref()).collect();
    let pool =
        |name: &String| cluster.objects.node_pools.iter().find(|p| p.metadata.name.as_ref() == Some(name));
    plan.reservations(request.gang_label)
        .iter()
        .filter_map(|wanted| {
            let report = GateReport::of(Gate::Capacity, &wanted.node_pool, ObstacleReason::LimitExceeded);
            let pool = pool(&wanted.node_pool)?;
            Some(match over_limit(cluster, &taken_over, pool, wanted, (request, plan)) {
                Some(Over { figures, whose: whose @ (Whose::Gang | Whose::Types) }) => {
                    let remedy = remedy(pool.spec.limits.as_ref()?, wanted, plan, (cluster, request.policy));
                    let (answer, alone, reason) = if whose == Whose::Gang {
                        (GateAnswer::Refuse, ", and so is the gang alone", ObstacleReason::LimitTooSmall)
                    } else {
                        (GateAnswer::Wait, "", ObstacleReason::LimitExceeded)
                    };
                    report.answer(answer, format!("{figures}{alone}; {remedy}")).because(reason)
                }
                Some(Over { figures, whose: Whose::Others { smaller_fit } }) => {
                    let remedy = if smaller_fit {
                        "raise spec.limits, list smaller types in NodePool or tier, which would fit beside the others, or wait until \
                         nodes go"
                    } else {
                        "raise spec.limits or wait until nodes go"
                    };
                    let message = format!("{figures}; {remedy}");
                    report.answer(GateAnswer::Wait, message)
                }
                None => allowed(report, pool, wanted, request.policy),
            })
        })
        .map(|report| report.limited_by(request.policy.capacity_gate))
        .collect()
}

/// A limit that would be exceeded.
struct Over {
    /// The figures, in words.
    figures: String,
    whose: Whose,
}

/// Who would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The gang alone, even if its nodes are of their smallest types.
    Gang,
    /// The gang alone, if its nodes are of their largest types.
    Types,
    /// The gang together with others.
    Others {
        /// Whether the gang would fit beside the others with its smallest types.
        smaller_fit: bool,
    },
}

fn allowed(report: GateReport, pool: &NodePool, wanted: &PendingNodes, policy: &Policy) -> GateReport {
    let more = format!("{} of NodePool {}", counted(wanted.nodes, "more node"), wanted.node_pool);
    let Some(limits) = pool.spec.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return report.allow(format!("{more}, which has no limits"));
    };
    let report = report.allow(format!("{more}, within its limits"));
    let unknown = UnknownAmounts::of(std::slice::from_ref(wanted), limits, |key| key != NODES);
    unknown.qualify(report, pool.spec.template.spec.node_class_ref.is_kwok(), policy.unknown)
}

fn over_limit(
    cluster: &PlanSnapshot<'_>,
    taken_over: &BTreeSet<&str>,
    pool: &NodePool,
    wanted: &PendingNodes,
    (request, plan): (&PlanRequest<'_>, &Plan),
) -> Option<Over> {
    let limits = pool.spec.limits.as_ref().filter(|l| !l.is_empty())?;
    let used = in_use(cluster, taken_over, pool, wanted, request);
    let more = with_nodes(&wanted.most, wanted.nodes);
    let over = |list: &ResourceList| limits.keys().find(|key| amount(list, key) > amount(limits, key));
    let least = |key: &String| least(key, wanted, plan, (cluster, request.policy));
    let alone = over(&more).map(|key| {
        let is_over = |key: &&String| least(key) > amount(limits, key);
        limits.keys().find(is_over).map_or((key, Whose::Types), |key| (key, Whose::Gang))
    });
    let with_others = || {
        let key = over(&sum(&used, &more))?;
        let smaller_fit = limits.keys().all(|key| amount(&used, key).plus(least(key)) <= amount(limits, key));
        Some((key, Whose::Others { smaller_fit }))
    };
    let (key, whose) = alone.or_else(with_others)?;
    let figures = format!(
        "NodePool {} has a limit of {}: {} in use and {} more for the gang are over it",
        wanted.node_pool,
        limit(limits, key),
        shown(&used, key),
        shown(&more, key)
    );
    Some(Over { figures, whose })
}

/// The usage of a NodePool by others, now or soon: the larger of the sum of its NodeClaims and of the NodePool's status. Excludes
/// the gang's own nodes, nodes it takes over, and nodes that are being deleted. Files may hold a NodePool without the NodeClaims
/// that its status counts.
fn in_use(
    cluster: &PlanSnapshot<'_>,
    taken_over: &BTreeSet<&str>,
    pool: &NodePool,
    wanted: &PendingNodes,
    request: &PlanRequest<'_>,
) -> ResourceList {
    let uid = request.workload.metadata.uid.as_deref().unwrap_or_default();
    let add = |all: ResourceList, more: &ResourceList, nodes| sum(&all, &with_nodes(more, nodes));
    let claims = cluster.pool_claims.beside(&wanted.node_pool, (request.gang_label, uid), cluster.pending);
    let is_taken_over =
        |c: &NodeClaim| c.metadata.name.as_deref().is_some_and(|name| taken_over.contains(name));
    let stays = |c: &&Arc<NodeClaim>| !c.is_deleting() && !is_taken_over(c);
    let (staying, going): (Vec<_>, Vec<_>) = claims.unsettled.into_iter().partition(stays);
    let used =
        staying.into_iter().fold(claims.settled, |all, c| add(all, &most_of(c, cluster, request.policy), 1));
    let gangs = cluster.pending.iter().filter(|r| r.node_pool == wanted.node_pool);
    let used = gangs.fold(used, |all, other| add(all, &other.most, other.nodes));
    let Some(status) = pool.status.as_ref() else { return used };
    let rest = going.into_iter().chain(claims.own);
    let rest = rest.fold(ResourceList::new(), |all, c| add(all, c.counts_with(), 1));
    max(&used, &minus(&status.resources, &rest))
}

/// Groups of identical slots on a NodePool, with the size of each group.
fn groups<'p>(plan: &'p Plan, wanted: &PendingNodes) -> Vec<(&'p Slot, u32)> {
    plan.groups().into_iter().filter(|(slot, _)| slot.node_pool == wanted.node_pool).collect()
}

/// The least amount of a resource that the gang's nodes on a NodePool can count as: each node as its smallest possible type.
fn least(
    key: &str,
    wanted: &PendingNodes,
    plan: &Plan,
    (cluster, policy): (&PlanSnapshot<'_>, &Policy),
) -> Amount {
    if key == NODES {
        return amount(&with_nodes(&ResourceList::new(), wanted.nodes), NODES);
    }
    let of_slot = |(slot, count): (&Slot, u32)| {
        let asked = amount(&slot.template.needs(), key);
        let of_types = types_of(slot, cluster, policy);
        let smallest = of_types.iter().map(|shape| amount(&shape.counts_with(), key)).min();
        smallest.unwrap_or(asked).times(count)
    };
    groups(plan, wanted).into_iter().map(of_slot).fold(Amount::default(), Amount::plus)
}

/// The types that a node of this slot may be of and that hold its pods. Empty unless all types are known.
fn types_of(slot: &Slot, cluster: &PlanSnapshot<'_>, policy: &Policy) -> Vec<Arc<Shape>> {
    let known = known_of(&slot.template, &slot.node_pool, cluster, policy).filter(|known| !known.others);
    let shapes = known.into_iter().flat_map(|known| known.shapes);
    let needs = slot.template.needs();
    shapes.filter(|shape| holds(shape, &needs)).collect()
}

/// The known types that a node of this claim may be of. `None` if its requirements cannot be read.
fn known_of(
    claim: &NodeClaim,
    pool: &str,
    cluster: &PlanSnapshot<'_>,
    policy: &Policy,
) -> Option<KnownTypes> {
    let mut asked = Requirements::default();
    asked.add_all(&claim.spec.requirements).ok()?;
    Some(known(from(cluster, policy, claim), &asked, pool))
}

/// Whether a node of this shape has room for the requests.
fn holds(shape: &Shape, requests: &ResourceList) -> bool {
    first_insufficient(requests, &shape.room(&ResourceList::new())).is_none()
}

/// The remedy where the gang alone exceeds the limits. Smaller types help if the pods ask for less.
fn remedy(
    limits: &ResourceList,
    wanted: &PendingNodes,
    plan: &Plan,
    (cluster, policy): (&PlanSnapshot<'_>, &Policy),
) -> String {
    let groups = groups(plan, wanted);
    let asked = groups
        .iter()
        .fold(ResourceList::new(), |all, (slot, count)| sum(&all, &times(&slot.template.needs(), *count)));
    let over = |list: &ResourceList, key: &String| amount(list, key) > amount(limits, key);
    let Some(key) = limits.keys().find(|key| over(&wanted.most, key) && !over(&asked, key)) else {
        return "raise spec.limits or ask for less".to_owned();
    };
    let such = groups.iter().find_map(|(slot, _)| largest(slot, key, cluster, policy)).unwrap_or_default();
    let nodes = counted(wanted.nodes, "node");
    let (verb, they) = if wanted.nodes == 1 { ("counts", "it") } else { ("count", "they") };
    format!(
        "raise spec.limits, or list smaller types in NodePool or tier: {nodes} {verb} as the largest type that {they} may be of{such}"
    )
}

/// Names the type that a node of this slot counts as for a resource, with the amount. `None` if that is no more than the node asks
/// for, or if no known type has it.
fn largest(slot: &Slot, key: &str, cluster: &PlanSnapshot<'_>, policy: &Policy) -> Option<String> {
    let asked = amount(&slot.template.needs(), key);
    let most = amount(&slot.most.resources, key);
    let known = known_of(&slot.template, &slot.node_pool, cluster, policy)?;
    let has = |shape: &&Arc<Shape>| amount(&shape.counts_with(), key) == most;
    let shape = known.shapes.iter().filter(|_| most > asked).find(has)?;
    Some(format!(", {} with {} {key}", shape.instance_type, shown(&slot.most.resources, key)))
}

fn from<'a>(cluster: &PlanSnapshot<'a>, policy: &'a Policy, claim: &'a NodeClaim) -> Sources<'a> {
    Sources {
        stated: &policy.shapes,
        learnt: cluster.shapes,
        group: &claim.spec.node_class_ref.group,
        market: cluster.market,
        asks_devices: claim.needs().keys().any(|key| is_device(key)),
    }
}

/// The amounts that a claim counts as. Before launch, those of the largest type that it may become.
pub(in crate::plan) fn most_of(
    claim: &NodeClaim,
    cluster: &PlanSnapshot<'_>,
    policy: &Policy,
) -> ResourceList {
    let counted = claim.counts_with().clone();
    if claim.status.as_ref().is_some_and(|status| !status.capacity.is_empty()) {
        return counted;
    }
    let known = known_of(claim, claim.label(names::NODEPOOL), cluster, policy);
    let shapes = known.iter().filter(|known| known.is_bounded).flat_map(|known| &known.shapes);
    let holding = shapes.filter(|shape| holds(shape, &counted));
    holding.fold(counted.clone(), |most, shape| max(&most, &shape.counts_with()))
}

/// A limit with its resource, for messages.
pub fn limit(limits: &ResourceList, key: &str) -> String {
    match (key, shown(limits, key).as_str()) {
        (NODES, "1") => counted(1, "node"),
        (_, amount) => format!("{amount} {key}"),
    }
}

/// Whether this number of nodes alone exceeds the limits.
pub fn are_too_many(nodes: u32, limits: &ResourceList) -> bool {
    limits.contains_key(NODES)
        && amount(&with_nodes(&ResourceList::new(), nodes), NODES) > amount(limits, NODES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::{Budget, GateMode, PackingMode, StatedShape, Unknown};
    use crate::plan::Outcome;
    use crate::plan::fixtures::{Fixture, market, object, offer, patched, pool};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn world(limits: &Value) -> Fixture {
        Fixture::new().pools(vec![pool("gpu", &json!({"spec": {"limits": limits}}))])
    }

    fn claim(gang: &str, change: &Value) -> Arc<NodeClaim> {
        let base = json!({
            "metadata": {"name": "c", "labels": {(names::NODEPOOL): "gpu", (names::GANG): gang}},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"nvidia.com/gpu": "1"}},
            },
        });
        object(patched(base, change))
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
        assert_eq!(reason, ObstacleReason::LimitTooSmall);
        assert_eq!(
            message,
            "NodePool gpu has a limit of 1 node: 0 in use and 2 more for the gang are over it, and so is the \
             gang alone; raise spec.limits or ask for less"
        );
        assert_eq!(world(&json!({"nvidia.com/gpu": "1"})).obstacle().0, ObstacleReason::LimitTooSmall);
    }

    #[test]
    fn a_gang_waits_for_others_and_is_refused_if_it_alone_exceeds_a_limit() {
        let mut world = world(&json!({"nodes": "2", "nvidia.com/gpu": "2"}));
        world.claims = vec![claim("g2", &json!({}))];
        let Outcome::Wait(obstacle) = world.plan() else { panic!("{:?}", world.plan()) };
        assert_eq!(obstacle.reason, ObstacleReason::LimitExceeded);
        assert_eq!(
            obstacle.message,
            "NodePool gpu has a limit of 2 nodes: 1 in use and 2 more for the gang are over it; raise spec.limits or \
             wait until nodes go"
        );
        // One limit is exceeded together with the others; the second by the gang alone.
        world.objects.node_pools =
            super::tests::world(&json!({"nodes": "2", "nvidia.com/gpu": "1"})).objects.node_pools;
        let Outcome::Refuse(obstacle) = world.plan() else { panic!("{:?}", world.plan()) };
        assert_eq!(obstacle.reason, ObstacleReason::LimitTooSmall);
        assert!(obstacle.message.contains("limit of 1 nvidia.com/gpu: 1 in use and 2 more"), "{obstacle:?}");
        world.policy.capacity_gate = GateMode::Warn;
        assert!(world.provisioned().notes[0].contains("limit of 1 nvidia.com/gpu"));
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
    fn node_pool_status_counts_as_in_use_without_the_nodes_of_the_gang() {
        let mut world = world(&json!({}));
        let with_status = |gpus: &str, nodes: &str| {
            let limits = json!({"nvidia.com/gpu": "11", "nodes": "4"});
            let status = json!({"resources": {"nvidia.com/gpu": gpus, "nodes": nodes}});
            vec![pool("gpu", &json!({"spec": {"limits": limits}, "status": status}))]
        };
        world.objects.node_pools = with_status("10", "2");
        assert!(world.obstacle().1.contains("limit of 11 nvidia.com/gpu: 10 in use and 2 more"));
        world.objects.node_pools = with_status("8", "3");
        assert!(world.obstacle().1.contains("limit of 4 nodes: 3 in use and 2 more"));
        world.objects.node_pools = with_status("8", "2");
        assert_eq!(world.provisioned().slots.len(), 2);
        let of = |gang: &str, change: &Value| {
            claim(gang, &patched(json!({"status": {"capacity": {"nvidia.com/gpu": "8"}}}), change))
        };
        let going = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        world.objects.node_pools = with_status("10", "2");
        for left_out in [of("g1", &json!({})), of("g2", &going)] {
            world.claims = vec![left_out];
            assert_eq!(world.provisioned().slots.len(), 2, "2 are in use");
        }
        world.claims = vec![of("g2", &json!({}))];
        assert!(world.obstacle().1.contains("limit of 11 nvidia.com/gpu: 10 in use and 2 more"));
    }

    /// A NodePool of EC2 with these requirements and limits.
    fn ec2(requirements: &Value, limits: &Value) -> std::sync::Arc<NodePool> {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let template = json!({"spec": {"requirements": requirements, "nodeClassRef": class}});
        pool("gpu", &json!({"spec": {"limits": limits, "template": template}}))
    }

    /// Sixteen pods of one GPU on a NodePool with one 8-GPU type. The limit allows eight nodes' worth of GPUs.
    fn sixteen(limit: &str) -> Fixture {
        let mut world = Fixture::new()
            .workload(&json!({"spec": {"podSets": [crate::plan::fixtures::pod_set("main", 16)]}}));
        let types = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}]);
        world.objects.node_pools = vec![ec2(&types, &json!({"nvidia.com/gpu": limit}))];
        world
    }

    #[test]
    fn a_device_limit_is_enforced_without_stated_shapes() {
        let mut world = sixteen("64");
        world.policy.packing = PackingMode::PerPod;
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::LimitTooSmall);
        assert!(message.contains("0 in use and 128 more"), "{message}");
        world.policy.packing = PackingMode::Auto;
        assert_eq!(world.provisioned().slots.len(), 2);
        assert_eq!(sixteen("15").obstacle().0, ObstacleReason::LimitTooSmall);
    }

    #[test]
    fn a_family_counts_with_the_largest_type_that_its_claims_list() {
        let family =
            json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["g6"]}]);
        let mut world = Fixture::new().pools(vec![ec2(&family, &json!({"nvidia.com/gpu": "2"}))]);
        world.policy.packing = PackingMode::PerPod;
        let plan = world.provisioned();
        assert_eq!(plan.reservations("g1")[0].most["nvidia.com/gpu"].0, "2", "larger types are left out");
        assert!(
            plan.notes.iter().any(|n| n.contains("are left out: 2 nodes of such a type are over the limits")),
            "{:?}",
            plan.notes
        );
    }

    #[test]
    fn an_unknown_amount_waits_or_warns_and_never_counts_as_small() {
        let unknown_type = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p9.huge"]}]);
        let elsewhere = |requirements: &Value, limits: &Value| {
            let template = json!({"spec": {"requirements": requirements, "nodeClassRef": {"group": "karpenter.gcp.io", "kind": "GCPNodeClass", "name": "default"}}});
            pool("gpu", &json!({"spec": {"limits": limits, "template": template}}))
        };
        let of = |limits: &Value| Fixture::new().pools(vec![elsewhere(&unknown_type, limits)]);
        let mut world = of(&json!({"nvidia.com/gpu": "64", "nodes": "9"}));
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::AmountUnknown);
        assert!(message.contains("so nvidia.com/gpu cannot be compared"), "{message}");
        let reports = crate::plan::option_reports(&world.cluster(), &world.request()).unwrap();
        let report = reports[0].reports.iter().find(|r| r.gate == Gate::Capacity).unwrap();
        assert_eq!((report.answer, report.is_closed()), (GateAnswer::Unknown, true));
        world.policy.unknown = Unknown::Warn;
        let plan = world.provisioned();
        assert!(plan.notes.iter().any(|note| note.contains("cannot be compared")), "{:?}", plan.notes);
        assert_eq!(of(&json!({"nodes": "9"})).provisioned().slots.len(), 2, "nodes are counted");
        for (resource, answer) in [("nvidia.com/gpu", GateAnswer::Warn), ("cpu", GateAnswer::Allow)] {
            let limits = json!({"spec": {"limits": {resource: "64"}}});
            let of_nothing = Fixture::new().pools(vec![pool("gpu", &limits)]);
            let report = of_nothing.provisioned().reports.iter().find(|r| r.gate == Gate::Capacity).cloned();
            assert_eq!(report.unwrap().answer, answer, "{resource} of nodes of kwok");
        }
        let count = json!({"key": names::DEVICE_COUNTS[0], "operator": "In", "values": ["8"]});
        let counted = json!([unknown_type[0], count]);
        let world = Fixture::new().pools(vec![elsewhere(&counted, &json!({"nvidia.com/gpu": "64"}))]);
        assert_eq!(
            world.provisioned().reservations("g1")[0].most["nvidia.com/gpu"].0,
            "16",
            "the count is stated"
        );
    }

    #[test]
    fn disk_and_pods_count_only_where_a_shape_states_them() {
        let is = |name: &str| json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": [name]}]);
        let of = |group: &str, name: &str, limits: &Value| {
            let class = json!({"group": group, "kind": "any", "name": "default"});
            let template = json!({"spec": {"requirements": is(name), "nodeClassRef": class}});
            let pools = vec![pool("gpu", &json!({"spec": {"limits": limits, "template": template}}))];
            Fixture::new().pools(pools)
        };
        let (aws, azure) = ("karpenter.k8s.aws", "karpenter.azure.com");
        let one = "Standard_NC4as_T4_v3";
        for (group, name, resource) in
            [(aws, "g6.xlarge", "ephemeral-storage"), (azure, one, "ephemeral-storage"), (azure, one, "pods")]
        {
            let mut world = of(group, name, &json!({resource: "500", "cpu": "500"}));
            let (reason, message) = world.obstacle();
            assert_eq!(reason, ObstacleReason::AmountUnknown, "{resource} of {name}");
            let words = format!("the amount of {resource} on 2 nodes is unknown and cannot be compared");
            assert!(message.contains(&words), "{message}");
            let reports = crate::plan::option_reports(&world.cluster(), &world.request()).unwrap();
            let report = reports[0].reports.iter().find(|r| r.gate == Gate::Capacity).unwrap();
            assert_eq!((report.answer, report.is_closed()), (GateAnswer::Unknown, true));
            world.policy.unknown = Unknown::Warn;
            assert!(world.provisioned().notes.iter().any(|note| note.contains(&words)));
        }
        let counted = of(aws, "g6.xlarge", &json!({"pods": "115"})).obstacle();
        assert_eq!(
            counted.0,
            ObstacleReason::LimitTooSmall,
            "the catalogue knows EC2's types: {}",
            counted.1
        );
        let mut stated = of(azure, one, &json!({"pods": "60"}));
        let shape = json!({"instanceType": one,
            "allocatable": {"cpu": 3, "memory": "20Gi", "pods": 30, "nvidia.com/gpu": 1}});
        stated.policy.shapes = serde_json::from_value(json!([shape])).unwrap();
        stated.policy.packing = PackingMode::PerPod;
        assert_eq!(stated.provisioned().slots.len(), 2);
        stated.objects.node_pools = of(azure, one, &json!({"pods": "59"})).objects.node_pools;
        assert_eq!(stated.obstacle().0, ObstacleReason::LimitTooSmall);
    }

    /// A NodePool of two types with this limit of GPUs.
    fn typed(limit: &str) -> std::sync::Arc<NodePool> {
        let requirement = json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5", "p5"]});
        let template = json!({"spec": {"requirements": [requirement]}});
        pool("gpu", &json!({"spec": {"limits": {"nvidia.com/gpu": limit}, "template": template}}))
    }

    /// Shapes of these types: `p5` has 8 GPUs, any other 1.
    fn shapes(types: &[&str]) -> Vec<StatedShape> {
        let gpus = |t: &str| if t == "p5" { "8" } else { "1" };
        let all = types
            .iter()
            .map(|t| json!({"instanceType": t, "allocatable": {"cpu": "64", "nvidia.com/gpu": gpus(t)}}));
        serde_json::from_value(all.collect()).unwrap()
    }

    #[test]
    fn a_type_whose_nodes_would_exceed_the_limits_is_left_out() {
        let mut world = world(&json!({}));
        world.policy.packing = PackingMode::PerPod;
        world.policy.shapes = shapes(&["g5", "p5"]);
        let types = |world: &Fixture| {
            let plan = world.provisioned();
            let requirements = plan.slots[0].template.spec.requirements.clone();
            let types = requirements.iter().find(|r| r.key == names::INSTANCE_TYPE).unwrap().values.join(" ");
            (types, plan.notes)
        };
        let left_out = vec!["type p5 is left out: 2 nodes of such a type are over the limits".to_owned()];
        world.objects.node_pools = vec![typed("16")];
        assert_eq!(types(&world), ("g5 p5".into(), vec![]));
        world.objects.node_pools = vec![typed("15")];
        assert_eq!(types(&world), ("g5".into(), left_out.clone()));
        world.objects.node_pools = vec![typed("16")];
        world.policy.budget =
            serde_json::from_value(json!({"maxResources": {"nvidia.com/gpu": 15}})).unwrap();
        assert_eq!(types(&world), ("g5".into(), left_out));
        world.policy.budget = Budget::default();
        world.objects.node_pools = vec![typed("1")];
        assert_eq!(world.obstacle().0, ObstacleReason::LimitTooSmall, "all are too large");
    }

    #[test]
    fn a_claim_that_has_not_launched_counts_with_the_largest_type_that_it_lists() {
        let mut world = world(&json!({"nvidia.com/gpu": "9"}));
        world.policy.packing = PackingMode::PerPod;
        world.policy.shapes = shapes(&["g5", "p5"]);
        let listing = |types: &[&str]| {
            let requirement = json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": types});
            claim("g2", &json!({"spec": {"requirements": [requirement]}}))
        };
        world.claims = vec![listing(&["g5"])];
        assert_eq!(world.provisioned().slots.len(), 2);
        world.claims = vec![listing(&["g5", "p5"])];
        assert!(world.obstacle().1.contains("8 in use and 2 more"), "{}", world.obstacle().1);
    }

    #[test]
    fn the_message_says_if_smaller_types_would_fit_beside_the_others() {
        let mut world = world(&json!({}));
        world.policy.packing = PackingMode::PerPod;
        world.policy.shapes = shapes(&["g5", "p5"]);
        world.objects.node_pools = vec![typed("16")];
        let others =
            |gpus: &str| vec![claim("g2", &json!({"status": {"capacity": {"nvidia.com/gpu": gpus}}}))];
        let remedy = "list smaller types in NodePool or tier, which would fit beside the others";
        for (gpus, fits) in [("14", true), ("15", false)] {
            world.claims = others(gpus);
            let (reason, message) = world.obstacle();
            assert_eq!(reason, ObstacleReason::LimitExceeded);
            assert_eq!(message.contains(remedy), fits, "{message}");
        }
    }

    #[test]
    fn a_type_that_exceeds_the_limits_by_itself_is_named() {
        let mut world = world(&json!({}));
        world.policy.packing = PackingMode::PerPod;
        world.policy.shapes = shapes(&["p5"]);
        let requirement = json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]});
        let template = json!({"spec": {"requirements": [requirement]}});
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"limits": {"nvidia.com/gpu": "15"}, "template": template}}))];
        let message = world.obstacle().1;
        let named = "2 nodes count as the largest type that they may be of, p5 with 8 nvidia.com/gpu";
        assert!(message.contains(named), "{message}");
    }

    #[test]
    fn a_node_counts_with_the_largest_type_that_it_may_become() {
        let mut world = world(&json!({"nvidia.com/gpu": "15"}));
        world.objects.node_pools = vec![typed("16")];
        // One node belongs to another gang.
        world.claims = vec![claim("g2", &json!({}))];
        for mode in [PackingMode::PerPod, PackingMode::Fill] {
            world.policy.packing = mode;
            world.policy.shapes = shapes(&["g5", "p5"]);
            let (nodes, gpus) = if mode == PackingMode::Fill { (1, "8") } else { (2, "16") };
            let wanted = match world.plan() {
                Outcome::Provision(plan) => plan.reservations("g1").remove(0),
                Outcome::Wait(obstacle) => {
                    assert!(obstacle.message.contains("1 in use and 16 more"), "{}", obstacle.message);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(
                (wanted.nodes, wanted.most["nvidia.com/gpu"].0.as_str(), wanted.or_more),
                (nodes, gpus, 0)
            );
        }
        world.policy.packing = PackingMode::PerPod;
        assert_eq!(world.obstacle().0, ObstacleReason::LimitExceeded);
        world.policy.shapes = shapes(&["g5"]);
        let report =
            |plan: &Plan| plan.reports.iter().find(|r| r.gate == Gate::Capacity).unwrap().message.clone();
        let report_text = report(&world.provisioned());
        assert!(
            report_text.contains("for 2 nodes of unknown instance type Setu counts only what"),
            "{report_text}"
        );
    }

    /// `pods` pods of one GPU on EC2's family g5, with this GPU limit.
    fn family(pods: i32, gpus: &str) -> Fixture {
        let sets = json!([crate::plan::fixtures::pod_set("main", pods)]);
        let mut world = Fixture::new().workload(&json!({"spec": {"podSets": sets}}));
        let family =
            json!([{"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["g5"]}]);
        world.objects.node_pools = vec![ec2(&family, &json!({"nvidia.com/gpu": gpus}))];
        world
    }

    #[test]
    fn types_are_narrowed_to_the_limits_and_a_gang_that_fits_smaller_types_is_not_refused() {
        let Outcome::Provision(plan) = family(2, "2").plan() else { panic!("{:?}", family(2, "2").plan()) };
        assert_eq!(plan.slots.len(), 2, "of one GPU each");
        for slot in &plan.slots {
            let shape = &slot.shape.as_ref().unwrap().instance_type;
            let types = &slot.template.spec.requirements;
            let types = types.iter().find(|r| r.key == names::INSTANCE_TYPE).unwrap();
            assert!(
                types.values.contains(shape) && !types.values.contains(&"g5.12xlarge".to_owned()),
                "{types:?}"
            );
        }
        assert_eq!(family(2, "64").provisioned().slots.len(), 1);
        assert_eq!(family(5, "5").provisioned().slots.len(), 2, "of four GPUs and of one");
        assert_eq!(family(5, "4").obstacle().0, ObstacleReason::LimitTooSmall);
    }

    #[test]
    fn types_out_of_capacity_are_left_out_if_other_types_hold_the_pods() {
        let world = family(8, "64");
        let page = |types: &[(&str, u8)]| {
            let line = |(name, value): &(&str, u8)| offer("available", [name, "on-demand", "a"], value);
            market(&types.iter().map(line).collect::<String>())
        };
        let nodes = |types: &[(&str, u8)]| {
            let market = page(types);
            let cluster = PlanSnapshot { market: Some(&market), ..world.cluster() };
            match crate::plan::plan(&cluster, &world.request()) {
                Outcome::Provision(plan) => plan.slots.len(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(nodes(&[("g5.48xlarge", 1)]), 1);
        assert_eq!(nodes(&[("g5.48xlarge", 0), ("g5.12xlarge", 1)]), 2);
    }

    #[test]
    fn nodes_count_with_machine_capacity_as_karpenter_counts() {
        let mut world = Fixture::new().pods(
            &json!({"containers": [{"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "1500m"}}}]}),
        );
        let pool_of = |limit: &str| {
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let listed = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["m5.large"]}]);
            let spec = json!({"nodeClassRef": class, "requirements": listed});
            vec![pool("gpu", &json!({"spec": {"limits": {"cpu": limit}, "template": {"spec": spec}}}))]
        };
        world.objects.node_pools = pool_of("3900m");
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::LimitTooSmall);
        assert!(message.contains("0 in use and 4 more"), "pods can use 1930m of each: {message}");
        world.objects.node_pools = pool_of("4");
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    /// Two pods without devices, each on its own node of this EC2 type. The limit allows eight GPUs.
    fn plain(instance_type: &str) -> Fixture {
        let mut world = Fixture::new().pods(
            &json!({"containers": [{"resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": "1500m"}}}]}),
        );
        let listed = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": [instance_type]}]);
        world.objects.node_pools = vec![ec2(&listed, &json!({"nvidia.com/gpu": "8"}))];
        world.policy.packing = PackingMode::PerPod;
        world
    }

    #[test]
    fn a_stated_shape_without_devices_counts_with_those_of_the_catalogue() {
        let mut world = plain("p5.48xlarge");
        let shape = json!([{"instanceType": "p5.48xlarge", "allocatable": {"cpu": "190"}}]);
        world.policy.shapes = serde_json::from_value(shape).unwrap();
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::LimitTooSmall, "{message}");
        assert!(message.contains("0 in use and 16 more"), "{message}");
    }

    #[test]
    fn devices_of_a_type_known_only_from_metrics_do_not_count_as_zero() {
        let world = plain("m99.huge");
        let size = |what: &str, value: &str| {
            format!("karpenter_cloudprovider_instance_type_{what}{{instance_type=\"m99.huge\"}} {value}\n")
        };
        let offered = offer("available", ["m99.huge", "on-demand", "a"], 1);
        let market =
            market(&[offered, size("cpu_cores", "64"), size("memory_bytes", "274877906944")].concat());
        let cluster = PlanSnapshot { market: Some(&market), ..world.cluster() };
        match crate::plan::plan(&cluster, &world.request()) {
            Outcome::Wait(obstacle) | Outcome::Refuse(obstacle) => {
                assert_eq!(obstacle.reason, ObstacleReason::AmountUnknown, "{obstacle:?}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn devices_missing_from_the_catalogue_are_unknown_until_policy_or_nodes_state_them() {
        let of = |key: &str| {
            let mut world = plain("p4d.24xlarge");
            let listed = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p4d.24xlarge"]}]);
            world.objects.node_pools = vec![ec2(&listed, &json!({key: "16"}))];
            world
        };
        let mut world = of("example.com/foo");
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::AmountUnknown, "{message}");
        assert!(message.contains("the amount of example.com/foo on 2 nodes is unknown"), "{message}");
        world.policy.unknown = Unknown::Warn;
        assert!(world.provisioned().notes[0].contains("the amount of example.com/foo"));
        world.policy.unknown = Unknown::Wait;
        for foo in ["8", "9"] {
            let allocatable = json!({"cpu": "90", "memory": "1000Gi", "example.com/foo": foo});
            let shape = json!([{"instanceType": "p4d.24xlarge", "allocatable": allocatable}]);
            world.policy.shapes = serde_json::from_value(shape).unwrap();
            assert_eq!(matches!(world.plan(), Outcome::Provision(_)), foo == "8", "{:?}", world.plan());
        }
        assert_eq!(of("amd.com/gpu").provisioned().slots.len(), 2, "a p4d has none of what others have");
    }

    #[test]
    fn stated_devices_of_a_node_count_if_its_type_is_unknown() {
        let counted = json!({"spec": {"limits": {"nvidia.com/gpu": "8"}, "template": {"spec": {"requirements":
            [{"key": names::DEVICE_COUNTS[0], "operator": "In", "values": ["4", "8"]}]}}}});
        let mut world = world(&json!({}));
        world.objects.node_pools = vec![pool("gpu", &counted)];
        let message = world.obstacle().1;
        assert!(message.contains("limit of 8 nvidia.com/gpu: 0 in use and 16 more"), "{message}");
        let remedy = "; raise spec.limits, or list smaller types in NodePool or tier: 2 nodes count as the largest type that they may be of";
        assert!(message.contains(remedy), "{message}");
    }

    #[test]
    fn deleted_claims_own_claims_and_claims_of_other_pools_do_not_count() {
        let mut world = world(&json!({"nodes": "2"}));
        world.claims = vec![
            claim("g1", &json!({})),
            claim("g2", &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
            claim("g2", &json!({"metadata": {"labels": {(names::NODEPOOL): "cpu"}}})),
        ];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn reservations_of_other_gangs_count() {
        let mut world = world(&json!({"nodes": "3"}));
        let pending = |gang: &str, node_pool: &str, nodes| PendingNodes {
            gang: gang.into(),
            node_pool: node_pool.into(),
            nodes,
            most: ResourceList::new(),
            or_more: 0,
            counted: BTreeSet::new(),
            unknown: BTreeSet::new(),
            drawn: BTreeMap::new(),
        };
        world.pending = vec![pending("g2", "cpu", 9), pending("g2", "gpu", 1)];
        assert_eq!(world.provisioned().slots.len(), 2);
        world.pending.push(pending("g3", "gpu", 1));
        assert_eq!(world.obstacle().0, ObstacleReason::LimitExceeded);
    }

    #[test]
    fn a_warning_gate_passes_the_plan_with_a_note_and_a_gate_that_is_off_without_one() {
        let mut world = world(&json!({"memory": "1Gi", "nodes": "1"}));
        world.policy.capacity_gate = GateMode::Warn;
        assert!(world.provisioned().notes[0].contains("limit of 1 node:"));
        world.policy.capacity_gate = GateMode::Off;
        assert!(world.provisioned().notes.is_empty());
    }
}
