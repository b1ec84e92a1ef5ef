//! Nodes of ours without a NodeClaim, and which of them may be deleted.
//!
//! Rule: a Node is deleted only if its kubelet has been silent for a while. Karpenter releases a Node without a NodeClaim at
//! once, whatever its machine does. A machine that still runs would be billed unseen.

use super::orphan::WorkloadRead;
use crate::api::{Node, NodeClaim, Workload};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// How long a kubelet must be silent before its Node may be deleted.
const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// Whether a Node has our labels and a silent kubelet, and is not being deleted.
pub fn is_silent(node: &Node, now: Timestamp) -> bool {
    let quiet = node.silent_since().is_some_and(|since| now.duration_since(since) >= QUIET);
    let ours = node.label(names::MANAGED_BY) == names::SETU && !node.label(names::NODEPOOL).is_empty();
    quiet && ours && node.metadata.deletion_timestamp.is_none()
}

/// Whether the Node belongs to this claim, or may: a claim without a provider ID may have launched it.
pub fn may_own(claim: &NodeClaim, node: &Node) -> bool {
    let provider_id = claim.status.as_ref().map_or("", |status| status.provider_id.as_str());
    if provider_id.is_empty() {
        // Karpenter copies annotations only when the Node registers, but a provider may have set the labels before.
        let may_be_same_slot = node.slot().is_none() || node.slot() == claim.slot();
        return claim.label(names::GANG) == node.label(names::GANG) && may_be_same_slot;
    }
    provider_id == node.spec.provider_id || claim.node_name() == node.metadata.name.as_deref()
}

/// Whether the Node may belong to a claim that cannot be read but has these labels: it may own any Node of its NodePool.
pub fn may_own_unread(labels: Option<&BTreeMap<String, String>>, node: &Node) -> bool {
    let pool = labels.and_then(|labels| labels.get(names::NODEPOOL));
    pool.is_some_and(|pool| pool == node.label(names::NODEPOOL))
}

/// Whether pods of the Node's gang may run there, by what a read of the Workload has found that the Node names.
pub fn may_be_used(node: &Node, read: &WorkloadRead) -> bool {
    match read {
        WorkloadRead::Absent => false,
        WorkloadRead::Unreadable | WorkloadRead::Forbidden => true,
        WorkloadRead::Found(found) => {
            found.metadata.uid.as_deref() == Some(node.label(names::WORKLOAD_UID)) && may_run(found)
        }
    }
}

/// Whether pods of this Workload may still run on its nodes, even if no kubelet reports them.
fn may_run(workload: &Workload) -> bool {
    workload.is_admitted() && (!workload.is_finished() || workload.is_replaced())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn node(ready: &str, gone: bool) -> Node {
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {
                names::MANAGED_BY: names::SETU, names::NODEPOOL: "gpu", names::GANG: "g",
            }, "annotations": {names::SLOT: "1"}},
            "spec": {"providerID": "cloud://1"},
            "status": {"conditions": [
                {"type": "Ready", "status": ready, "lastTransitionTime": at(0).to_string()},
            ]},
        }))
        .unwrap();
        if gone {
            node.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(1)));
        }
        node
    }

    fn claim(provider_id: &str, node: &str, slot: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": {names::GANG: "g"}, "annotations": {names::SLOT: slot}},
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            "status": {"providerID": provider_id, "nodeName": node},
        }))
        .unwrap()
    }

    #[test]
    fn only_our_nodes_with_a_long_silent_kubelet_may_be_deleted() {
        let later = at(0) + QUIET;
        assert!(is_silent(&node("Unknown", false), later));
        assert!(
            !is_silent(&node("Unknown", false), later - SignedDuration::from_secs(1)),
            "it may come back"
        );
        for speaks in ["True", "False"] {
            assert!(!is_silent(&node(speaks, false), later), "its machine runs");
        }
        assert!(!is_silent(&node("Unknown", true), later), "it is going");
        for key in [names::MANAGED_BY, names::NODEPOOL] {
            let mut strange = node("Unknown", false);
            strange.metadata.labels.as_mut().unwrap().remove(key);
            assert!(!is_silent(&strange, later), "without {key} it is nobody's business of ours");
        }
    }

    #[test]
    fn a_node_that_is_silent_since_the_end_of_time_is_not_deleted() {
        let mut node = node("Unknown", false);
        let end = Timestamp::MAX.to_string();
        let conditions = json!([{"type": "Ready", "status": "Unknown", "lastTransitionTime": end}]);
        node.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
        assert!(!is_silent(&node, at(0)));
    }

    #[test]
    fn a_node_belongs_to_the_claim_that_names_it_or_may_have_launched_it() {
        let node = node("Unknown", false);
        assert!(may_own(&claim("cloud://1", "", "1"), &node), "not registered yet");
        assert!(may_own(&claim("cloud://2", "n", "1"), &node), "of the same name");
        assert!(!may_own(&claim("cloud://2", "other", "1"), &node), "the one that replaced it");
        assert!(may_own(&claim("", "", "1"), &node), "its launch is under way");
        assert!(!may_own(&claim("", "", "2"), &node), "the launch of another slot");
        let mut early = node.clone();
        early.metadata.annotations = None;
        assert!(may_own(&claim("", "", "2"), &early), "Karpenter has not yet copied the slot");
        early.metadata.labels.as_mut().unwrap().insert(names::SLOT.to_owned(), "1".to_owned());
        assert!(!may_own(&claim("", "", "2"), &early), "the slot as a label");
    }
}
