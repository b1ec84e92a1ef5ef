//! Devices of dynamic resource allocation, as counts by DeviceClass: which nodes have them, and how their NodeClaims record them.
//!
//! A count is an amount of the extended resource that Kubernetes names after the class, `deviceclass.resource.kubernetes.io/NAME`, so
//! that devices are packed like every other resource.

pub mod device_requests;

use super::resources::{self, amount};
use super::shape::Shape;
use super::{Obstacle, ObstacleReason};
use crate::api::NodeClaim;
use crate::api::node_claim::RequestedDevices;
use crate::api::parameters::NodeDevices;
use crate::api::pod::ResourceList;
use crate::api::quantity::{Amount, ONE};
use crate::api::requirements::Requirements;
use crate::names;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};

/// The most ways to give pods their devices that are tried.
const CHOICES: usize = 64;

/// The extended resource that stands for devices of a class.
pub fn resource_of(class: &str) -> String {
    format!("{}{class}", names::DEVICE_CLASS_PREFIX)
}

/// The class whose devices an extended resource stands for.
pub fn class_of(resource: &str) -> Option<&str> {
    resource.strip_prefix(names::DEVICE_CLASS_PREFIX)
}

/// The devices that a node has by these entries of the policy.
pub fn per_node<'d>(entries: impl IntoIterator<Item = &'d NodeDevices>) -> ResourceList {
    entries
        .into_iter()
        .map(|entry| (resource_of(&entry.device_class), count(entry.per_node.into())))
        .collect()
}

/// The amounts by which such a node counts towards limits and budgets: by class, and by the extended resources that the entries name.
pub fn counts(entries: &[&NodeDevices]) -> ResourceList {
    let named = entries.iter().filter_map(|entry| {
        let name = entry.extended_resource.as_ref()?;
        Some((name.clone(), count(entry.per_node.into())))
    });
    per_node(entries.iter().copied()).into_iter().chain(named).collect()
}

fn count(devices: u64) -> Quantity {
    Quantity(devices.to_string())
}

/// The entries whose devices a node with these requirements has for certain: for each class, the one with the most devices.
pub fn certain<'d>(entries: &'d [NodeDevices], requirements: &Requirements) -> Vec<&'d NodeDevices> {
    let is_met = |entry: &&NodeDevices| {
        let mut all = requirements.clone();
        all.add_all(&entry.requirements).is_ok() && all == *requirements
    };
    let mut by_class: BTreeMap<&str, &NodeDevices> = BTreeMap::new();
    for entry in entries.iter().filter(is_met) {
        let most = by_class.entry(&entry.device_class).or_insert(entry);
        if entry.per_node > most.per_node {
            *most = entry;
        }
    }
    by_class.into_values().collect()
}

/// Adds these devices to what a shape offers. They replace the extended resources that their entries name, because no device plugin
/// serves these where a driver publishes the devices; NodePool limits and budgets still count them. If the shape has fewer of such a
/// resource than its entry states devices, the shape's number counts.
pub fn add_to(shape: &mut Shape, entries: &[&NodeDevices]) {
    shape.capacity = shape.counts_with();
    for entry in entries {
        let stated = ResourceList::from([(resource_of(&entry.device_class), count(entry.per_node.into()))]);
        let known = entry.extended_resource.as_ref().and_then(|name| shape.allocatable.remove(name));
        let known = known.map(|known| [(resource_of(&entry.device_class), known)].into());
        shape
            .allocatable
            .extend(known.map_or_else(|| stated.clone(), |known| resources::min(&stated, &known)));
    }
}

/// The ways to give each pod of a pod set its devices from a node, in the policy's order. Each way has one entry for each class that
/// the pod asks for; if it asks for none, the only way is empty.
///
/// # Errors
/// No entry has enough devices of a class for a pod.
pub fn choices<'d>(
    entries: &'d [NodeDevices],
    pod_set: &str,
    each: &ResourceList,
) -> Result<Vec<Vec<&'d NodeDevices>>, Obstacle> {
    let classes = each.keys().filter_map(|resource| Some((resource, class_of(resource)?)));
    classes.into_iter().try_fold(vec![Vec::new()], |chosen, (resource, class)| {
        let stated = || entries.iter().filter(|entry| entry.device_class == class);
        let asked = amount(each, resource);
        let enough: Vec<&NodeDevices> =
            stated().filter(|entry| amount(&per_node([*entry]), resource) >= asked).collect();
        if enough.is_empty() {
            return Err(too_many(pod_set, class, asked, stated().map(|entry| entry.per_node).max()));
        }
        let with = |chosen: &Vec<&'d NodeDevices>| {
            enough.iter().map(|entry| [chosen.as_slice(), &[*entry]].concat()).collect::<Vec<_>>()
        };
        Ok(chosen.iter().flat_map(with).take(CHOICES).collect())
    })
}

/// These requirements of nodes of a NodePool, narrowed to nodes that have the devices of these entries.
///
/// # Errors
/// The NodePool cannot meet the requirements of an entry.
pub fn narrowed(
    entries: &[&NodeDevices],
    node_pool: &str,
    mut requirements: Requirements,
) -> Result<Requirements, Obstacle> {
    for entry in entries {
        let who = format!("the entry of DeviceClass {} under devices in the policy", entry.device_class);
        requirements.add_all(&entry.requirements).map_err(|clash| {
            Obstacle::new(ObstacleReason::RequirementsClash, clash.in_words(&who, node_pool))
        })?;
    }
    Ok(requirements)
}

/// The obstacle of pods that ask for more devices of a class than a node has by any entry.
fn too_many(pod_set: &str, class: &str, asked: Amount, most: Option<u32>) -> Obstacle {
    let message = format!(
        "a pod of pod set {pod_set} asks for {} devices of DeviceClass {class}, and a node has at most {} by devices in the \
         policy; request fewer per pod",
        asked.in_decimals(),
        most.unwrap_or_default()
    );
    Obstacle::new(ObstacleReason::TooLarge, message)
}

/// The devices that a claim's pods ask for, by the class's resource.
pub fn amounts(requested: &[RequestedDevices]) -> ResourceList {
    requested.iter().map(|one| (resource_of(&one.device_class), count(one.count))).collect()
}

/// Takes devices out of a claim's requests, because no Node reports them, and records them in its annotations. `entries` have one
/// for each class.
pub fn record(claim: &mut NodeClaim, entries: &[&NodeDevices]) {
    let requests = std::mem::take(&mut claim.spec.resources.requests);
    let (devices, requests) = requests.into_iter().partition(|(resource, _)| class_of(resource).is_some());
    claim.spec.resources.requests = requests;
    let devices: ResourceList = devices;
    let requested = entries.iter().filter_map(|entry| {
        let count = amount(&devices, &resource_of(&entry.device_class)).nanos() / ONE;
        let count = u64::try_from(count).ok().filter(|count| *count > 0)?;
        Some(RequestedDevices {
            device_class: entry.device_class.clone(),
            driver: entry.driver.clone(),
            count,
        })
    });
    let requested: Vec<RequestedDevices> = requested.collect();
    if requested.is_empty() {
        return;
    }
    let drivers: BTreeSet<&str> = requested.iter().map(|devices| devices.driver.as_str()).collect();
    let drivers = drivers.into_iter().collect::<Vec<_>>().join(",");
    let listed = serde_json::to_string(&requested).unwrap_or_default();
    let annotations = claim.metadata.annotations.get_or_insert_default();
    annotations.extend([(names::DEVICES.to_owned(), listed), (names::DRA_DRIVERS.to_owned(), drivers)]);
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::fixtures::{Fixture, object, patched, pod_set, pool};
    use super::super::volumes::Lookup;
    use super::super::warm;
    use super::*;
    use crate::api::parameters::PackingMode;
    use crate::api::{Node, NodePool};
    use crate::plan::shape::Shape;
    use jiff::Timestamp;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn world() -> Fixture {
        let class = json!({"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}});
        let mut world = Fixture::new();
        world.objects.device_classes = vec![Arc::new(object(class))];
        world
    }

    #[test]
    fn resource_that_a_device_class_serves_is_refused_until_the_class_is_deleted() {
        let mut world = world();
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::DeviceClass);
        assert!(
            message.contains("requests nvidia.com/gpu, which DeviceClass gpu.nvidia.com serves"),
            "{message}"
        );
        assert!(matches!(world.plan(), Outcome::Refuse(_)));
        world.objects.device_classes.clear();
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn implicit_name_of_a_device_class_is_refused() {
        let limits = json!({"deviceclass.resource.kubernetes.io/tpu": "1"});
        let world = Fixture::new().pods(&json!({"containers": [{"resources": {"limits": limits}}]}));
        assert!(world.obstacle().1.contains("DeviceClass tpu serves"));
    }

    /// Two pods, each with two devices of `gpu.nvidia.com` by a template, on nodes of eight. `change` is put over the template's
    /// request.
    fn by_template(change: &Value) -> Fixture {
        let claims = json!([{"name": "gpus", "resourceClaimTemplateName": "two"}]);
        let containers = json!([{"resources": {"requests": {"cpu": "2"}}}]);
        let mut world = Fixture::new().pods(&json!({"containers": containers, "resourceClaims": claims}));
        let exactly =
            json!({"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2});
        let request = patched(json!({"name": "gpus", "exactly": exactly}), change);
        let spec = json!({"spec": {"devices": {"requests": [request]}}});
        let template = object(json!({"metadata": {"name": "two", "namespace": "ns"}, "spec": spec}));
        world.storage.claim_templates = [("two".to_owned(), Lookup::There(Box::new(template)))].into();
        world.policy.devices = stated(&json!([entry("p5", 8)]));
        world.objects.device_classes =
            vec![Arc::new(object(json!({"metadata": {"name": "gpu.nvidia.com"}, "spec": {}})))];
        world.objects.node_pools = vec![ec2()];
        world
    }

    fn stated(list: &Value) -> Vec<NodeDevices> {
        serde_json::from_value(list.clone()).unwrap()
    }

    /// An entry of the policy: nodes of the family have so many devices.
    fn entry(family: &str, per_node: u32) -> Value {
        let family =
            json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": [family]});
        json!({
            "deviceClass": "gpu.nvidia.com", "driver": "gpu.nvidia.com", "perNode": per_node, "requirements": [family],
        })
    }

    fn ec2() -> Arc<NodePool> {
        let sizes =
            json!({"key": "karpenter.k8s.aws/instance-size", "operator": "In", "values": ["48xlarge"]});
        ec2_of(&json!([sizes]))
    }

    fn ec2_of(requirements: &Value) -> Arc<NodePool> {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let spec = json!({"nodeClassRef": class, "requirements": requirements});
        pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))
    }

    fn refused(world: &Fixture) -> (ObstacleReason, String) {
        match world.plan() {
            Outcome::Refuse(obstacle) => (obstacle.reason, obstacle.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn devices_of_a_template_are_packed_and_not_requested_by_the_claim() {
        let plan = by_template(&json!({})).provisioned();
        assert_eq!((plan.slots.len(), plan.slots[0].pods[0].pods), (1, 2), "{:?}", plan.notes);
        let claim = &plan.slots[0].template;
        let requests: Vec<&str> = claim.spec.resources.requests.keys().map(String::as_str).collect();
        assert_eq!(requests, ["cpu", "pods"]);
        let types: Vec<&String> = plan.slots[0].instance_types().collect();
        assert_eq!(types, ["p5.48xlarge"]);
        assert_eq!(claim.annotation(names::DRA_DRIVERS), "gpu.nvidia.com");
        let expected = r#"[{"deviceClass":"gpu.nvidia.com","driver":"gpu.nvidia.com","count":4}]"#;
        assert_eq!(claim.annotation(names::DEVICES), expected);
    }

    #[test]
    fn a_node_gets_as_many_pods_as_its_devices_allow() {
        for (count, nodes) in [(1, 1), (4, 1), (5, 2), (8, 2)] {
            let mut world = by_template(&json!({"exactly": {"count": count}}));
            let slots = world.provisioned().slots;
            assert_eq!(slots.len(), nodes, "{count} devices a pod");
            // The node count stays the same if no shape is known.
            world.objects.node_pools = vec![pool("gpu", &json!({}))];
            world.policy.devices[0].requirements.clear();
            world.policy.packing = PackingMode::Fill;
            assert_eq!(world.provisioned().slots.len(), nodes, "{count} devices a pod");
        }
    }

    #[test]
    fn a_budget_counts_the_devices_of_nodes_of_unknown_types() {
        let mut world = by_template(&json!({"exactly": {"count": 8}}));
        world.objects.node_pools = vec![pool("gpu", &json!({}))];
        world.policy.devices[0].requirements.clear();
        world.policy.devices[0].extended_resource = Some("nvidia.com/gpu".to_owned());
        for (resource, most, fits) in [
            ("nvidia.com/gpu", "16", true),
            ("nvidia.com/gpu", "15", false),
            ("deviceclass.resource.kubernetes.io/gpu.nvidia.com", "15", false),
        ] {
            world.policy.budget.max_resources = serde_json::from_value(json!({(resource): most})).unwrap();
            match (world.plan(), fits) {
                (Outcome::Provision(plan), true) => assert_eq!(plan.slots.len(), 2),
                (Outcome::Refuse(obstacle), false) => {
                    assert_eq!(obstacle.reason, ObstacleReason::BudgetExceeded, "{resource}");
                }
                (other, _) => panic!("{most} {resource}: {other:?}"),
            }
        }
    }

    #[test]
    fn the_first_entry_counts_that_has_enough_devices_and_that_the_node_pool_meets() {
        let family = |world: &Fixture| {
            let plan = world.provisioned();
            plan.slots[0].instance_types().next().unwrap().split('.').next().unwrap().to_owned()
        };
        let mut world = by_template(&json!({"exactly": {"count": 6}}));
        let metal =
            json!([{"key": "karpenter.k8s.aws/instance-size", "operator": "In", "values": ["metal"]}]);
        let metal = patched(entry("p4d", 8), &json!({ "requirements": metal }));
        world.policy.devices = stated(&json!([entry("g5", 4), metal, entry("p5", 8), entry("p4d", 8)]));
        assert_eq!(family(&world), "p5", "g5 has too few, and the NodePool has no metal");
        world.policy.devices = stated(&json!([entry("g5", 4)]));
        let (reason, message) = refused(&world);
        assert_eq!(reason, ObstacleReason::TooLarge);
        assert!(
            message.contains("asks for 6 devices of DeviceClass gpu.nvidia.com, and a node has at most 4"),
            "{message}"
        );
        let asked = json!([{"key": names::ARCH, "operator": "In", "values": ["arm64"]}]);
        world.policy.devices = stated(&json!([entry("p5", 8)]));
        world.policy.requirements = serde_json::from_value(asked).unwrap();
        world.policy.devices[0].requirements =
            serde_json::from_value(json!([{"key": names::ARCH, "operator": "In", "values": ["amd64"]}]))
                .unwrap();
        let (reason, message) = refused(&world);
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(
            message.contains("the entry of DeviceClass gpu.nvidia.com under devices in the policy"),
            "{message}"
        );
    }

    #[test]
    fn claims_that_no_plan_can_serve_are_refused_each_with_its_remedy() {
        use ObstacleReason::{DeviceClass, ResourceClaimTemplateMissing, ResourceClaims};
        for (change, reason, words) in [
            (
                json!({"exactly": null, "firstAvailable": [{"name": "a"}]}),
                ResourceClaims,
                "has firstAvailable",
            ),
            (
                json!({"exactly": {"allocationMode": "All"}}),
                ResourceClaims,
                "use allocationMode ExactCount with a count",
            ),
            (json!({"exactly": {"adminAccess": true}}), ResourceClaims, "has adminAccess"),
            (
                json!({"exactly": {"deviceClassName": "tpu"}}),
                DeviceClass,
                "add an entry {deviceClass: tpu, driver: DRIVER, perNode: COUNT} to devices",
            ),
        ] {
            let (found, message) = refused(&by_template(&change));
            assert_eq!(found, reason, "{change}");
            assert!(message.contains(words), "{message}");
        }
        let mut world = by_template(&json!({}));
        world.storage.claim_templates = [("two".to_owned(), Lookup::Forbidden)].into();
        assert!(refused(&world).1.contains("grant its ServiceAccount get on resourceclaimtemplates"));
        world.storage.claim_templates.clear();
        let (reason, message) = refused(&world);
        assert_eq!(reason, ResourceClaimTemplateMissing);
        assert!(reason.may_appear() && message.ends_with("which does not exist; create it"), "{message}");
        world.policy.devices.clear();
        assert!(refused(&world).1.contains("the policy states no devices; add an entry"));
        let mut world = by_template(&json!({}));
        world.objects.device_classes.clear();
        assert!(refused(&world).1.contains("and the DeviceClass does not exist; create it"));
        let (reason, message) = refused(&by_template(&json!({"exactly": {"count": 33}})));
        assert_eq!(reason, ResourceClaims);
        assert!(
            message.contains("which asks for 33 devices, more than the 32 that Kubernetes gives"),
            "{message}"
        );
    }

    #[test]
    fn a_claim_by_its_name_is_rejected_because_all_pods_share_it() {
        let world =
            Fixture::new().pods(&json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}));
        let Outcome::Never(obstacle) = world.plan() else { panic!("not rejected") };
        assert_eq!(obstacle.reason, ObstacleReason::ResourceClaims);
        assert!(obstacle.message.contains("use a ResourceClaimTemplate"), "{}", obstacle.message);
    }

    #[test]
    fn expressions_of_a_template_are_noted() {
        let selectors = json!([{"cel": {"expression": "true"}}]);
        let plan = by_template(&json!({"exactly": {"selectors": selectors}})).provisioned();
        assert!(
            plan.notes.iter().any(|note| note.contains("selects devices by expressions")),
            "{:?}",
            plan.notes
        );
    }

    #[test]
    fn pods_with_claims_get_nodes_whichever_resources_are_managed() {
        let mut world = by_template(&json!({}));
        world.policy.managed_resources = vec!["example.com/other".to_owned()];
        assert_eq!(world.provisioned().slots.len(), 1);
    }

    #[test]
    fn an_extended_resource_is_planned_by_devices_if_the_policy_names_it_with_its_class() {
        let mut world = world();
        world.objects.node_pools = vec![ec2()];
        world.policy.devices =
            stated(&json!([patched(entry("p5", 8), &json!({"extendedResource": "nvidia.com/gpu"}))]));
        let slot = world.provisioned().slots[0].clone();
        assert!(!slot.template.spec.resources.requests.contains_key("nvidia.com/gpu"));
        assert_eq!(slot.template.devices()[0].count, 2);
        let most = |resource: &str| slot.most.resources.get(resource).map(|quantity| quantity.0.as_str());
        assert_eq!(most("nvidia.com/gpu"), Some("8"), "limits and budgets of GPUs count them");
        let room = &slot.shape.as_ref().unwrap().allocatable;
        assert_eq!(room[&resource_of("gpu.nvidia.com")].0, "8");
        assert!(!room.contains_key("nvidia.com/gpu"), "its devices are those of the class");
        world.policy.devices[0].extended_resource = None;
        let (reason, message) = refused(&world);
        assert_eq!(reason, ObstacleReason::DeviceClass);
        assert!(
            message.contains(
                "add an entry of the class to devices in the policy with extendedResource nvidia.com/gpu"
            ),
            "{message}"
        );
        let limits = json!({"cpu": "1", "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"});
        let by_its_own_name = world.pods(&json!({"containers": [{"resources": {"limits": limits}}]}));
        assert_eq!(by_its_own_name.provisioned().slots[0].template.devices()[0].count, 2);
    }

    #[test]
    fn of_several_device_classes_that_serve_an_extended_resource_the_newest_counts() {
        let mut world = world();
        let class = |name: &str, created: &str| {
            let metadata = json!({"name": name, "creationTimestamp": created});
            Arc::new(object(
                json!({"metadata": metadata, "spec": {"extendedResourceName": "nvidia.com/gpu"}}),
            ))
        };
        let (old, new) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        world.objects.device_classes =
            vec![class("a", old), class("c", new), class("b", new), class("d", old)];
        let (_, message) = world.obstacle();
        assert!(message.contains("which DeviceClass b serves"), "{message}");
    }

    #[test]
    fn an_extended_resource_that_only_the_policy_gives_to_the_class_is_refused() {
        let mut world = world();
        world.objects.device_classes.clear();
        world.policy.devices =
            stated(&json!([patched(entry("p5", 8), &json!({"extendedResource": "nvidia.com/gpu"}))]));
        let (reason, message) = refused(&world);
        assert_eq!(reason, ObstacleReason::DeviceClass);
        assert!(
            message.contains("but not spec.extendedResourceName of the DeviceClass; set it there"),
            "{message}"
        );
    }

    #[test]
    fn a_type_with_fewer_devices_than_the_policy_states_counts_with_its_own() {
        let mut world = world();
        world.objects.node_pools = vec![ec2_of(&json!([]))];
        world.policy.devices =
            stated(&json!([patched(entry("p5", 8), &json!({"extendedResource": "nvidia.com/gpu"}))]));
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "4"});
        let world = world.pods(&json!({"containers": [{"resources": {"limits": limits}}]}));
        let slot = world.provisioned().slots[0].clone();
        let types: Vec<&String> = slot.instance_types().collect();
        assert_eq!(types, ["p5.48xlarge"], "p5.4xlarge has one GPU");
    }

    #[test]
    fn an_entry_whose_types_the_node_pool_does_not_have_is_passed_over() {
        let mut world = by_template(&json!({}));
        let only = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}]);
        world.objects.node_pools = vec![ec2_of(&only)];
        world.policy.devices = stated(&json!([entry("p4d", 8), entry("p5", 8)]));
        let slot = world.provisioned().slots[0].clone();
        let types: Vec<&String> = slot.instance_types().collect();
        assert_eq!(types, ["p5.48xlarge"]);
    }

    #[test]
    fn a_device_plugin_may_serve_the_extended_resource_on_other_nodes() {
        let mut world = world();
        world.objects.device_classes.clear();
        world.policy.devices =
            stated(&json!([patched(entry("p5", 8), &json!({"extendedResource": "nvidia.com/gpu"}))]));
        let shape = json!([{"instanceType": "own", "allocatable": {"cpu": "8", "nvidia.com/gpu": "2"}}]);
        world.policy.shapes = serde_json::from_value(shape).unwrap();
        let slot = world.provisioned().slots[0].clone();
        assert!(slot.template.spec.resources.requests.contains_key("nvidia.com/gpu"));
        assert!(slot.template.devices().is_empty());
    }

    #[test]
    fn constraints_of_a_template_are_noted() {
        let mut world = by_template(&json!({}));
        let Some(Lookup::There(template)) = world.storage.claim_templates.get_mut("two") else {
            panic!("absent")
        };
        template.spec.spec.devices.constraints = vec![json!({"matchAttribute": "numa"})];
        let notes = world.provisioned().notes;
        assert!(
            notes.iter().any(|note| note.contains("has constraints, which are not evaluated")),
            "{notes:?}"
        );
    }

    #[test]
    fn of_entries_that_both_hold_for_a_node_the_one_with_more_devices_counts() {
        let mut world = by_template(&json!({"exactly": {"count": 6}}));
        let mut everywhere = entry("p5", 2);
        everywhere["requirements"] = json!([]);
        world.policy.devices = stated(&json!([everywhere, entry("p5", 8)]));
        let slots = world.provisioned().slots;
        assert_eq!((slots.len(), slots[0].template.devices()[0].count), (2, 6));
    }

    #[test]
    fn nodes_with_other_devices_are_not_interchangeable() {
        let claim = |count| {
            let template =
                by_template(&json!({"exactly": {"count": count}})).provisioned().slots[0].template.clone();
            let mut claim = (*template).clone();
            claim.metadata.name = Some("kept".to_owned());
            claim
        };
        let (two, four) = (claim(2), claim(4));
        assert_eq!(two.spec, four.spec);
        assert_eq!(warm::matches([(0, &two)], std::slice::from_ref(&two)).len(), 1);
        assert!(warm::matches([(0, &two)], std::slice::from_ref(&four)).is_empty());
        let plan = by_template(&json!({"exactly": {"count": 4}})).provisioned();
        assert!(plan.has_like(&[four]) && !plan.has_like(&[two]));
    }

    /// The shape that a Node with GPUs of this NodePool shows.
    fn shown(node_pool: &str) -> Shape {
        let labels =
            json!({(names::INSTANCE_TYPE): "p5", (names::INITIALIZED): "true", (names::NODEPOOL): node_pool});
        let status = json!({"allocatable": {"cpu": "8", "nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]});
        let node: Node = object(json!({"metadata": {"name": "n", "labels": labels}, "status": status}));
        Shape::of_node(&node, Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn resource_shown_by_nodes_of_a_node_pool_is_planned_if_the_policy_allows_the_pool() {
        let mut world = world();
        world.shapes = vec![shown("old")];
        assert_eq!(world.provisioned().slots.len(), 2, "on whichever NodePool");
        world.policy.node_pool = Some("gpu".to_owned());
        assert_eq!(world.obstacle().0, ObstacleReason::DeviceClass);
        world.shapes = vec![shown("gpu")];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn implicit_name_of_a_device_class_is_refused_with_a_remedy_that_helps() {
        let mut set = pod_set("main", 1);
        set["template"]["spec"]["containers"][0]["resources"] =
            json!({"limits": {"deviceclass.resource.kubernetes.io/gpu.x": "1"}});
        let message = world().workload(&json!({"spec": {"podSets": [set]}})).obstacle().1;
        assert!(
            message.contains("request them by the name under which a device plugin serves them"),
            "{message}"
        );
        assert!(!message.contains("packing.shapes"), "{message}");
    }

    #[test]
    fn resource_that_the_policy_states_for_a_node_is_planned() {
        let mut world = world();
        let shapes = json!([{"instanceType": "p5", "allocatable": {"cpu": 190, "nvidia.com/gpu": 8}}]);
        world.policy.shapes = serde_json::from_value(shapes).unwrap();
        assert_eq!(world.provisioned().slots.len(), 2);
    }
}
