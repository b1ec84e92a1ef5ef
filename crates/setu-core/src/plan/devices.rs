//! Extended resources that a DeviceClass serves, and that a Node does not report itself.
//!
//! Source: KEP-5004. The scheduler turns requests for such a resource into a ResourceClaim. The devices are in ResourceSlices and
//! not in a Node's allocatable, so a NodeClaim that requests them never initializes.

use super::{Cluster, Obstacle, ObstacleReason, Request, resources};
use crate::api::pod::ResourceList;
use crate::names;

/// The obstacle for pods of this pod set with these requests, if a DeviceClass serves one of them.
pub fn obstacle(
    cluster: &Cluster<'_>,
    request: &Request<'_>,
    pod_set: &str,
    each: &ResourceList,
) -> Option<Obstacle> {
    let (resource, class) = each.keys().find_map(|key| Some((key, class_of(cluster, request, key)?)))?;
    let remedy = if resource.starts_with(names::DEVICE_CLASS_PREFIX) {
        "request them by the name under which a device plugin serves them, such as nvidia.com/gpu".to_owned()
    } else {
        format!(
            "where a device plugin serves them, take spec.extendedResourceName off the DeviceClass or state the node's \
             {resource} under packing.shapes"
        )
    };
    let message = format!(
        "pod set {pod_set} requests {resource}, which DeviceClass {class} serves through dynamic resource allocation, and \
         whose devices no NodeClaim can ask for; {remedy}"
    );
    Some(Obstacle::new(ObstacleReason::DeviceClass, message))
}

/// Name of the DeviceClass that serves a resource.
fn class_of(cluster: &Cluster<'_>, request: &Request<'_>, resource: &str) -> Option<String> {
    if let Some(name) = resource.strip_prefix(names::DEVICE_CLASS_PREFIX) {
        return Some(name.to_owned());
    }
    let serves = cluster
        .objects
        .device_classes
        .iter()
        .find(|class| class.spec.extended_resource_name.as_deref() == Some(resource))?;
    // A device plugin may serve the same resource on other nodes.
    let has = |list: &ResourceList| list.get(resource).is_some_and(resources::is_positive);
    let stated = request.policy.shapes.iter().any(|shape| has(&shape.allocatable));
    let mut shown =
        cluster.shapes.iter().filter(|shape| shape.is_shown() && may_be_of(request, &shape.node_pool));
    let shown = shown.any(|shape| has(&shape.allocatable));
    (!stated && !shown).then(|| serves.metadata.name.clone().unwrap_or_default())
}

/// Whether the policy lets nodes come from this NodePool.
fn may_be_of(request: &Request<'_>, node_pool: &str) -> bool {
    let policy = request.policy;
    let of_tiers =
        policy.tiers.iter().map(|tier| tier.node_pool_name.as_deref().or(policy.node_pool.as_deref()));
    let mut named = of_tiers.chain(policy.tiers.is_empty().then_some(policy.node_pool.as_deref()));
    named.any(|name| name.is_none_or(|name| name == node_pool))
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::fixtures::{Fixture, object, pod_set};
    use super::*;
    use crate::api::Node;
    use crate::plan::shape::Shape;
    use jiff::Timestamp;
    use serde_json::json;
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
