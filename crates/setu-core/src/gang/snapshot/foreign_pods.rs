//! Pods of others on a gang's nodes: no taint keeps them off, or they tolerate it.
//!
//! Rule: they never fail a gang. They may leave, and then its nodes are ready.
//!
//! A claim records what the pods take that its node is for. DaemonSets and static pods may take the rest, more or less than was
//! planned for them. Claims of earlier releases record nothing: then one pod of the smallest kind must fit.

use super::claims::ClaimView;
use super::health::Health;
use super::waits::WaitsFor;
use crate::api::parameters::Allocatable;
use crate::api::pod::ResourceList;
use crate::api::{Node, NodeClaim, Pod};
use crate::plan::resources::{self, Defaults};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// When a crowded node is checked again: nothing watches the pods on it.
const NEXT_CHECK: SignedDuration = SignedDuration::from_secs(10);

/// Resources that pods take from one node.
#[derive(Clone, Debug, Default)]
pub struct PodUsage {
    /// Pods that no claim's requests include.
    others: ResourceList,
    /// Pods of DaemonSets, which the claim's requests include, except those that could not be foreseen; and static pods.
    daemons: ResourceList,
}

/// Resources that pods take from each node, by the name of the Node.
pub fn usage_by_node(pods: &[Pod]) -> BTreeMap<String, PodUsage> {
    let mut taken: BTreeMap<String, PodUsage> = BTreeMap::new();
    for pod in pods.iter().filter(|p| !p.is_over()) {
        // A running pod has requests that the API server accepted; unreadable ones count as nothing.
        let Ok(needs) = resources::of_pod(&pod.spec.pod, Defaults::default()) else { continue };
        let of_node = taken.entry(pod.spec.node_name.clone()).or_default();
        let is_part_of_node = pod.is_of("DaemonSet") || pod.is_of("Node");
        let sum = if is_part_of_node { &mut of_node.daemons } else { &mut of_node.others };
        *sum = resources::sum(sum, &needs);
    }
    taken
}

/// Nodes with pods other than static ones and those of DaemonSets.
pub fn nodes_with_pods(pods: &[Pod]) -> BTreeSet<&str> {
    let counts = |p: &&Pod| !p.is_over() && !p.is_of("DaemonSet") && !p.is_of("Node");
    pods.iter().filter(counts).map(|pod| pod.spec.node_name.as_str()).collect()
}

/// Amounts to compare with the room on a node.
#[derive(Clone, Copy, Debug)]
pub struct RoomCheck<'a> {
    /// Resources that the pods on the node take.
    pub taken: &'a PodUsage,
    /// Resources that one pod of each pod set of the gang takes.
    pub each: &'a [ResourceList],
    /// How the policy compares a node with what was asked for. Only with `Exact` all pods of the node must fit.
    pub allocatable: Allocatable,
}

/// Makes a node wait if other pods leave too little for the pods of its claim.
pub fn wait_for_room(
    view: &mut ClaimView,
    claim: &NodeClaim,
    node: &Node,
    RoomCheck { taken, each, allocatable: comparison }: RoomCheck<'_>,
    now: Timestamp,
) {
    if !matches!(view.health, Health::Ready { .. }) {
        return;
    }
    let name = || node.metadata.name.clone().unwrap_or_default();
    let allocatable = &node.status.allocatable;
    let left = resources::minus(allocatable, &taken.others);
    let by_others = |wanted: &ResourceList| {
        // What the node never had is not for other pods to free.
        let mut wanted = wanted.clone();
        wanted
            .retain(|key, amount| taken.others.contains_key(key) && resources::has(allocatable, key, amount));
        Some(WaitsFor::OtherPods { node: name(), resource: resources::shortage(&wanted, &left)? })
    };
    let recorded = if comparison == Allocatable::Exact { claim.pod_requests() } else { None };
    let pods = recorded.or_else(|| least(claim, each));
    let by_daemons = |pods: &ResourceList| {
        let left = resources::minus(&left, &taken.daemons);
        Some(WaitsFor::DaemonSets { node: name(), resource: resources::shortage(pods, &left)? })
    };
    let for_pods = |pods: &ResourceList| by_others(pods).or_else(|| by_daemons(pods));
    let waits_for = by_others(&claim.needs()).or_else(|| for_pods(pods.as_ref()?));
    if let Some(waits_for) = waits_for {
        view.health = Health::Coming { waits_for, until: now.checked_add(NEXT_CHECK).ok() };
    }
}

/// The least that the pods on the node of a claim may take if it records nothing: one pod of any pod set that fits and needs the
/// same devices. `None` if no pod set does. Devices that the claim records in its annotation instead of requesting them do not
/// count.
fn least(claim: &NodeClaim, each: &[ResourceList]) -> Option<ResourceList> {
    let requests = &*claim.needs();
    let is_recorded = !claim.devices().is_empty();
    let reported = |pod: &ResourceList| {
        let mut pod = pod.clone();
        pod.retain(|key, _| !is_recorded || !resources::is_device(key) || requests.contains_key(key));
        pod
    };
    let devices = |list: &ResourceList| -> BTreeSet<String> {
        list.keys().filter(|key| resources::is_device(key)).cloned().collect()
    };
    let asked = devices(requests);
    let may_be =
        |pod: &ResourceList| devices(pod) == asked && resources::first_insufficient(pod, requests).is_none();
    each.iter().map(reported).filter(may_be).reduce(|a, b| {
        let mut least = resources::min(&a, &b);
        least.retain(|key, _| a.contains_key(key) && b.contains_key(key));
        least
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(change: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "p", "namespace": "other"},
            "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "3"}}}]},
            "status": {"phase": "Running"},
        });
        for (key, value) in change.as_object().unwrap() {
            *pod.pointer_mut(key).unwrap() = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn of(kind: &str) -> Value {
        let owner = json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u"});
        json!({"/metadata": {"name": "p", "ownerReferences": [owner]}})
    }

    /// The health of a node with 8 CPUs for a pod that takes 5.
    fn health(pods: &[Pod]) -> Health {
        health_among(pods, &[json!({"cpu": "5", "pods": "1"})])
    }

    /// The health of that node if a pod of each pod set takes this.
    fn health_among(pods: &[Pod], each: &[Value]) -> Health {
        health_of(&json!({}), pods, each)
    }

    /// The health of that node if its claim has these annotations.
    fn health_of(annotations: &Value, pods: &[Pod], each: &[Value]) -> Health {
        health_with("6", annotations, pods, each)
    }

    /// The health of that node if its claim requests so many CPUs and has these annotations. With more than 6, the policy compares
    /// only devices.
    fn health_with(cpus: &str, annotations: &Value, pods: &[Pod], each: &[Value]) -> Health {
        let each: Vec<ResourceList> =
            each.iter().map(|e| serde_json::from_value(e.clone()).unwrap()).collect();
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "c", "annotations": annotations},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"cpu": cpus, "pods": "3"}},
            },
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "pods": "110"}},
        }))
        .unwrap();
        let mut view = ClaimView::new("c", 1, 0, Health::Ready { since: Timestamp::UNIX_EPOCH });
        let taken = usage_by_node(pods).remove("n1").unwrap_or_default();
        let allocatable = if cpus == "6" { Allocatable::Exact } else { Allocatable::Devices };
        let room = RoomCheck { taken: &taken, each: &each, allocatable };
        wait_for_room(&mut view, &claim, &node, room, Timestamp::UNIX_EPOCH);
        view.health
    }

    #[test]
    fn room_for_daemon_sets_counts_too_where_the_pods_get_devices_by_claims() {
        let devices = json!([{"deviceClass": "gpu", "driver": "gpu", "count": 1}]).to_string();
        let each = [json!({"cpu": "5", "pods": "1", "nvidia.com/gpu": "1"})];
        let daemon = [pod(&of("DaemonSet")), pod(&of("DaemonSet"))];
        let waits =
            |annotations: Value| matches!(health_of(&annotations, &daemon, &each), Health::Coming { .. });
        assert!(waits(json!({crate::names::DEVICES: devices})));
        assert!(!waits(json!({})), "its node is not for these pods");
    }

    #[test]
    fn a_foreign_pod_that_leaves_too_little_is_waited_for() {
        assert!(matches!(health(&[]), Health::Ready { .. }));
        let Health::Coming { waits_for, until } = health(&[pod(&json!({}))]) else { panic!("ready") };
        assert_eq!(waits_for.to_string(), "other pods to free cpu (5 of 6) on node n1");
        assert!(until.is_some(), "nothing else would check again");
    }

    #[test]
    fn only_active_pods_that_the_claim_does_not_include_count() {
        for change in [
            json!({"/status/phase": "Succeeded"}),
            json!({"/status/phase": "Failed"}),
            json!({"/spec/nodeName": "n2"}),
            json!({"/spec/containers/0/resources/requests/cpu": "2"}),
            of("DaemonSet"),
            of("Node"),
        ] {
            assert!(matches!(health(&[pod(&change)]), Health::Ready { .. }), "{change}");
        }
        assert!(matches!(health(&[pod(&of("Job"))]), Health::Coming { .. }));
        let small = json!({"/spec/containers/0/resources/requests/cpu": "2"});
        assert!(matches!(health(&[pod(&small), pod(&small)]), Health::Coming { .. }), "together they do");
    }

    fn daemon(cpus: &str) -> Pod {
        let mut change = of("DaemonSet");
        change["/spec/containers/0/resources/requests/cpu"] = json!(cpus);
        pod(&change)
    }

    #[test]
    fn daemon_sets_that_leave_too_little_for_the_pod_of_a_node_are_waited_for() {
        assert!(matches!(health(&[daemon("2"), daemon("1")]), Health::Ready { .. }));
        let Health::Coming { waits_for, .. } = health(&[daemon("2"), daemon("2")]) else { panic!("ready") };
        assert_eq!(
            waits_for.to_string(),
            "more cpu (4 of 5) on node n1, whose DaemonSet and static pods take too much"
        );
        let stranger = pod(&json!({"/spec/containers/0/resources/requests/cpu": "2"}));
        assert!(matches!(health(&[daemon("1500m"), stranger]), Health::Coming { .. }), "together they do");
    }

    #[test]
    fn a_node_needs_room_for_all_pods_that_its_claim_records() {
        let recorded = json!({crate::names::POD_REQUESTS: json!({"cpu": "6", "pods": "12"}).to_string()});
        let each = [json!({"cpu": "500m", "pods": "1"})];
        let with = |cpus: &str| health_of(&recorded, &[daemon(cpus)], &each);
        assert!(matches!(with("2"), Health::Ready { .. }));
        let Health::Coming { waits_for, .. } = with("2500m") else { panic!("ready") };
        assert!(waits_for.to_string().starts_with("more cpu (5.5 of 6) on node n1"), "{waits_for}");
    }

    #[test]
    fn static_pods_take_room_as_daemon_sets_do() {
        let with = |cpus: &str| {
            let mut change = of("Node");
            change["/spec/containers/0/resources/requests/cpu"] = json!(cpus);
            health(&[pod(&change)])
        };
        assert!(matches!(with("3"), Health::Ready { .. }));
        assert!(matches!(with("3500m"), Health::Coming { .. }));
    }

    #[test]
    fn other_pods_are_not_waited_for_to_free_what_the_node_never_had() {
        let each = [json!({"cpu": "5", "pods": "1"})];
        let small = pod(&json!({"/spec/containers/0/resources/requests/cpu": "1"}));
        let recorded = json!({crate::names::POD_REQUESTS: json!({"cpu": "9", "pods": "2"}).to_string()});
        let of = |pods: &[Pod]| health_with("9", &recorded, pods, &each);
        assert!(
            matches!(of(std::slice::from_ref(&small)), Health::Ready { .. }),
            "the policy let it pass, and the pod fits"
        );
        let Health::Coming { waits_for, .. } = of(&[small.clone(), small.clone(), small.clone(), small])
        else {
            panic!("ready")
        };
        assert_eq!(waits_for.to_string(), "other pods to free cpu (4 of 5) on node n1");
    }

    #[test]
    fn the_smallest_pod_set_that_a_node_may_be_for_counts() {
        let ready =
            |cpus: &str, each: &[Value]| matches!(health_among(&[daemon(cpus)], each), Health::Ready { .. });
        let of = |cpus: &str| json!({"cpu": cpus, "pods": "1"});
        assert!(ready("4", &[of("5"), of("4")]) && !ready("4500m", &[of("5"), of("4")]));
        // The node is not for a pod that takes more than its claim requests, nor for one with other devices.
        assert!(!ready("4", &[of("5"), json!({"cpu": "1", "nvidia.com/gpu": "1"})]));
        assert!(ready("7", &[of("7")]));
    }

    #[test]
    fn daemon_static_and_finished_pods_do_not_occupy_a_node() {
        let over = json!({"/status/phase": "Succeeded"});
        assert_eq!(nodes_with_pods(&[pod(&of("DaemonSet")), pod(&of("Node")), pod(&over)]), BTreeSet::new());
        // A pod without requests is still lost with its node.
        let small = json!({"/spec/containers/0/resources": {}});
        assert_eq!(nodes_with_pods(&[pod(&small)]), BTreeSet::from(["n1"]));
    }
}
