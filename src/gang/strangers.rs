//! Pods that are not the gang's on its nodes: no taint keeps them off, or they tolerate it.
//!
//! Rule: they never make a gang fail. They may leave, so its nodes are ready once they have.

use super::claims::{ClaimView, Health};
use super::waits::WaitsFor;
use crate::api::pod::ResourceList;
use crate::api::{Node, NodeClaim, Pod};
use crate::plan::resources::{self, Defaults};
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// When a crowded node is looked at again: nobody watches the pods on it.
const NEXT_LOOK: SignedDuration = SignedDuration::from_secs(10);

/// What pods take from each node for which its claim has not reckoned: those of DaemonSets are in its
/// requests, and static ones are taken off its allocatable.
pub fn taken(pods: &[Pod]) -> BTreeMap<String, ResourceList> {
    let mut taken: BTreeMap<String, ResourceList> = BTreeMap::new();
    for pod in pods.iter().filter(|p| !p.is_over() && !p.is_of("DaemonSet") && !p.is_of("Node")) {
        // A pod runs with what the API server has accepted; what cannot be read takes nothing.
        let Ok(needs) = resources::of_pod(&pod.spec.pod, Defaults::default()) else { continue };
        let sum = taken.entry(pod.spec.node_name.clone()).or_default();
        *sum = resources::sum(sum, &needs);
    }
    taken
}

/// Nodes with any pod on them that not every node has.
pub fn occupied(pods: &[Pod]) -> BTreeSet<&str> {
    let counts = |p: &&Pod| !p.is_over() && !p.is_of("DaemonSet") && !p.is_of("Node");
    pods.iter().filter(counts).map(|pod| pod.spec.node_name.as_str()).collect()
}

/// Makes a node wait on which strangers leave too little for the pods of its claim.
pub fn crowd(view: &mut ClaimView, claim: &NodeClaim, node: &Node, taken: &ResourceList, now: Timestamp) {
    if !matches!(view.health, Health::Ready { .. }) {
        return;
    }
    let left = resources::minus(&node.status.allocatable, taken);
    let Some(short) = resources::shortage(&claim.spec.resources.requests, &left) else {
        return;
    };
    let name = node.metadata.name.clone().unwrap_or_default();
    view.health = Health::Coming {
        waits_for: WaitsFor::OtherPods { node: name, short },
        until: now.checked_add(NEXT_LOOK).ok(),
    };
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

    fn health(pods: &[Pod]) -> Health {
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
        let mut view = ClaimView {
            name: "c".into(),
            uid: "u".into(),
            attempt: 1,
            slot: 0,
            generation: 0,
            deleting: false,
            held_until: None,
            vacant: false,
            stuck: false,
            health: Health::Ready { since: Timestamp::UNIX_EPOCH },
        };
        let nothing = ResourceList::new();
        let taken = taken(pods);
        crowd(&mut view, &claim, &node, taken.get("n1").unwrap_or(&nothing), Timestamp::UNIX_EPOCH);
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

    #[test]
    fn a_node_is_without_pods_where_those_are_that_every_node_has_or_that_are_over() {
        let over = json!({"/status/phase": "Succeeded"});
        assert_eq!(occupied(&[pod(&of("DaemonSet")), pod(&of("Node")), pod(&over)]), BTreeSet::new());
        // One that asks for nothing is lost with its node all the same.
        let small = json!({"/spec/containers/0/resources": {}});
        assert_eq!(occupied(&[pod(&small)]), BTreeSet::from(["n1"]));
    }
}
