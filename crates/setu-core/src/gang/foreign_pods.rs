//! Pods that are not the gang's on its nodes: no taint keeps them off, or they tolerate it.
//!
//! Rule: they never make a gang fail. They may leave, so its nodes are ready once they have.
//!
//! Which DaemonSets a claim has reckoned with is not recorded, nor which pods its node is made for. So its DaemonSets
//! count as too large only where they leave no room for the least that these pods may take.

use super::claims::{ClaimView, Health};
use super::waits::WaitsFor;
use crate::api::pod::ResourceList;
use crate::api::{Node, NodeClaim, Pod};
use crate::plan::resources::{self, Defaults};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// When a crowded node is looked at again: nobody watches the pods on it.
const NEXT_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// What pods take from one node.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// Those that no claim reckons with.
    others: ResourceList,
    /// Those of DaemonSets: what its claim requests includes them, but for those that no one could foresee.
    daemons: ResourceList,
}

/// What pods take from each node; static ones are taken off its allocatable.
pub fn taken(pods: &[Pod]) -> BTreeMap<String, Taken> {
    let mut taken: BTreeMap<String, Taken> = BTreeMap::new();
    for pod in pods.iter().filter(|p| !p.is_over() && !p.is_of("Node")) {
        // A pod runs with what the API server has accepted; what cannot be read takes nothing.
        let Ok(needs) = resources::of_pod(&pod.spec.pod, Defaults::default()) else { continue };
        let of_node = taken.entry(pod.spec.node_name.clone()).or_default();
        let sum = if pod.is_of("DaemonSet") { &mut of_node.daemons } else { &mut of_node.others };
        *sum = resources::sum(sum, &needs);
    }
    taken
}

/// Nodes with any pod on them that not every node has.
pub fn occupied(pods: &[Pod]) -> BTreeSet<&str> {
    let counts = |p: &&Pod| !p.is_over() && !p.is_of("DaemonSet") && !p.is_of("Node");
    pods.iter().filter(counts).map(|pod| pod.spec.node_name.as_str()).collect()
}

/// Makes a node wait on which others leave too little for the pods of its claim. `each` is what a pod takes of each pod
/// set of the gang.
pub fn crowd(
    view: &mut ClaimView,
    claim: &NodeClaim,
    node: &Node,
    (taken, each): (&Taken, &[ResourceList]),
    now: Timestamp,
) {
    if !matches!(view.health, Health::Ready { .. }) {
        return;
    }
    let name = || node.metadata.name.clone().unwrap_or_default();
    let requests = &claim.spec.resources.requests;
    let left = resources::minus(&node.status.allocatable, &taken.others);
    let by_others =
        || Some(WaitsFor::OtherPods { node: name(), short: resources::shortage(requests, &left)? });
    let by_daemons = || {
        let left = resources::minus(&left, &taken.daemons);
        let short = resources::shortage(&least(requests, each)?, &left)?;
        Some(WaitsFor::DaemonSets { node: name(), short })
    };
    if let Some(waits_for) = by_others().or_else(by_daemons) {
        view.health = Health::Coming { waits_for, until: now.checked_add(NEXT_LOOK).ok() };
    }
}

/// The least that the pods take which a node with these requests is made for: one pod of any of the pod sets that it has
/// room and the same devices for. `None` if it has for none.
fn least(requests: &ResourceList, each: &[ResourceList]) -> Option<ResourceList> {
    let devices = |list: &ResourceList| -> BTreeSet<String> {
        list.keys().filter(|key| resources::is_device(key)).cloned().collect()
    };
    let asked = devices(requests);
    let may_be =
        |pod: &&ResourceList| devices(pod) == asked && resources::first_short(pod, requests).is_none();
    each.iter().filter(may_be).cloned().reduce(|a, b| {
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

    /// Of the node of a pod that takes 5 CPUs, which has 8.
    fn health(pods: &[Pod]) -> Health {
        health_among(pods, &[json!({"cpu": "5", "pods": "1"})])
    }

    /// The same where the pods of the gang's pod sets take this.
    fn health_among(pods: &[Pod], each: &[Value]) -> Health {
        let each: Vec<ResourceList> =
            each.iter().map(|e| serde_json::from_value(e.clone()).unwrap()).collect();
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {"name": "c"},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"cpu": "6", "pods": "3"}},
            },
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "pods": "110"}},
        }))
        .unwrap();
        let mut view = ClaimView::new("c", 1, 0, Health::Ready { since: Timestamp::UNIX_EPOCH });
        let taken = taken(pods).remove("n1").unwrap_or_default();
        crowd(&mut view, &claim, &node, (&taken, &each), Timestamp::UNIX_EPOCH);
        view.health
    }

    #[test]
    fn a_strangers_pod_that_leaves_too_little_is_waited_for_with_the_figures() {
        assert!(matches!(health(&[]), Health::Ready { .. }));
        let Health::Coming { waits_for, until } = health(&[pod(&json!({}))]) else { panic!("ready") };
        assert_eq!(
            waits_for.to_string(),
            "other pods to leave node n1, where they leave too little cpu (5 of 6)"
        );
        assert!(until.is_some(), "nobody else would look again");
    }

    #[test]
    fn only_pods_that_are_not_reckoned_with_and_still_take_something_count() {
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
            "room on node n1, where pods of DaemonSets leave too little cpu (4 of 5)"
        );
        let stranger = pod(&json!({"/spec/containers/0/resources/requests/cpu": "2"}));
        assert!(matches!(health(&[daemon("1500m"), stranger]), Health::Coming { .. }), "together they do");
    }

    #[test]
    fn of_several_pod_sets_the_smallest_counts_that_a_node_may_be_made_for() {
        let ready =
            |cpus: &str, each: &[Value]| matches!(health_among(&[daemon(cpus)], each), Health::Ready { .. });
        let of = |cpus: &str| json!({"cpu": cpus, "pods": "1"});
        assert!(ready("4", &[of("5"), of("4")]) && !ready("4500m", &[of("5"), of("4")]));
        // The node is made for no pod that takes more than its claim requests, nor for one with other devices.
        assert!(!ready("4", &[of("5"), json!({"cpu": "1", "nvidia.com/gpu": "1"})]));
        assert!(ready("7", &[of("7")]));
    }

    #[test]
    fn a_node_is_without_pods_where_those_are_that_every_node_has_or_that_are_over() {
        let over = json!({"/status/phase": "Succeeded"});
        assert_eq!(occupied(&[pod(&of("DaemonSet")), pod(&of("Node")), pod(&over)]), BTreeSet::new());
        // One that asks for nothing is lost with its node all the same.
        let small = json!({"/spec/containers/0/resources": {}});
        assert_eq!(occupied(&[pod(&small)]), BTreeSet::from(["n1"]));
    }
}
