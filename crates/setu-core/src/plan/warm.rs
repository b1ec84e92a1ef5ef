//! Nodes that are kept after their gang ends, for the next gang of the same LocalQueue.
//!
//! Rule: two nodes are interchangeable if the same was requested of Karpenter, but for the capacity reservation. A node never
//! changes its LocalQueue, because data of its last tenant is still on it.

use super::lifetime::{self, lasts};
use super::outcome::Plan;
use super::reservations::ids;
use super::resources;
use crate::api::duration::Span;
use crate::api::node_claim::{NodeClaimSpec, Requirement};
use crate::api::{Node, NodeClaim, Workload};
use crate::digest::digest;
use crate::names;
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A kept node is not taken this shortly before its end, because the sweep may be about to delete it.
const MARGIN: SignedDuration = SignedDuration::from_secs(5);

/// Label value of nodes kept for this LocalQueue (`namespace/name`) under this check.
pub fn key(queue: &str, check: &str) -> String {
    digest(&[queue, check], 16)
}

/// The claims among those kept for a Workload's LocalQueue that its gang may take over now. `node` finds a Node by name.
pub fn free_for<'k>(
    workload: &Workload,
    kept: impl IntoIterator<Item = &'k NodeClaim>,
    node: impl Fn(&str) -> Option<Arc<Node>>,
    now: Timestamp,
) -> Vec<NodeClaim> {
    let job = lifetime::of_job(workload);
    let can_run_pods = |claim: &NodeClaim| {
        let node = claim.node_name().and_then(&node);
        node.is_some_and(|node| node.takes_pods() && has_devices(claim, &node))
    };
    let is_meant = |claim: &&NodeClaim| is_free(claim, job, now) && can_run_pods(claim);
    kept.into_iter().filter(is_meant).cloned().collect()
}

/// Whether a Node still has all devices that its claim needs. One may have failed since its last gang.
fn has_devices(claim: &NodeClaim, node: &Node) -> bool {
    let mut devices = claim.needs().into_owned();
    devices.retain(|resource, _| resources::is_device(resource));
    resources::first_insufficient(&devices, &node.status.allocatable).is_none()
}

/// Who nodes are kept for, and how long.
#[derive(Clone, Debug)]
pub struct KeptFor {
    /// Value of the label [`names::WARM`].
    pub key: String,
    /// `namespace/name` of the LocalQueue.
    pub queue: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

impl KeptFor {
    /// For the next gang of the LocalQueue of this Workload, whose nodes have this check and policy.
    pub fn of(workload: &Workload, check: &str, policy: &Policy, now: Timestamp) -> Self {
        let queue = workload.local_queue();
        let until = now.checked_add(policy.warm_for.signed()).unwrap_or(Timestamp::MAX);
        Self { key: key(&queue, check), queue, since: now, until }
    }
}

/// Whether a kept claim may be taken over now by a Job that may run this long. `None` means that the Job has no limit.
fn is_free(claim: &NodeClaim, job: Option<Span>, now: Timestamp) -> bool {
    let stays = claim.hold_ends().and_then(|end| end.checked_sub(MARGIN).ok()).is_some_and(|end| end > now);
    let spoilt = claim.is("Drifted") || claim.is("DisruptionReason") || claim.is_rebooting();
    let there = !claim.is_deleting() && claim.is_initialized();
    there && stays && !spoilt && lasts(claim, job, now)
}

/// The kept claim for each slot, by slot index. Each claim is used at most once. Slots without one are omitted.
pub fn matches<'w>(
    slots: impl IntoIterator<Item = (u32, &'w NodeClaim)>,
    kept: &'w [NodeClaim],
) -> BTreeMap<u32, &'w NodeClaim> {
    let mut free: BTreeMap<String, VecDeque<&NodeClaim>> = BTreeMap::new();
    for claim in kept {
        free.entry(shape(claim)).or_default().push_back(claim);
    }
    if free.is_empty() {
        return BTreeMap::new();
    }
    let taken = |(slot, wanted)| {
        let (alike, allowed) = (free.get_mut(&shape(wanted))?, ids(wanted));
        let fits = |claim: &&NodeClaim| ids(claim).is_subset(&allowed) && has_type_of(wanted, claim);
        let at = alike.iter().position(fits)?;
        Some((slot, alike.remove(at)?))
    };
    slots.into_iter().filter_map(taken).collect()
}

/// The kept claims for the slots of a plan.
pub fn of_plan<'w>(plan: &'w Plan, kept: &'w [NodeClaim]) -> BTreeMap<u32, &'w NodeClaim> {
    matches(plan.slots.iter().map(|slot| (slot.index, &*slot.template)), kept)
}

/// This plan, with kept claims in the slots that they fit.
pub fn reusing(plan: Plan, kept: &[NodeClaim]) -> Plan {
    let reused: BTreeSet<u32> = of_plan(&plan, kept).into_keys().collect();
    Plan { reused: reused.into(), ..plan }
}

/// Whether the node of a claim is of a type that the wanted one may have. Prices change which types are listed.
fn has_type_of(wanted: &NodeClaim, claim: &NodeClaim) -> bool {
    let listed = |claim: &NodeClaim| {
        let of_types = claim.spec.requirements.iter().filter(|asked| is_list_of_types(asked));
        of_types.flat_map(|asked| asked.values.clone()).collect::<BTreeSet<String>>()
    };
    let (wanted, asked) = (listed(wanted), listed(claim));
    wanted == asked || wanted.contains(claim.label(names::INSTANCE_TYPE))
}

fn is_list_of_types(asked: &Requirement) -> bool {
    asked.key == names::INSTANCE_TYPE && asked.operator == "In"
}

/// Everything that Karpenter decides by, so two nodes with equal shapes are interchangeable. Ignores which gang the taint names,
/// which capacity reservations are allowed, and which instance types are listed.
fn shape(claim: &NodeClaim) -> String {
    let mut spec: NodeClaimSpec = claim.spec.clone();
    for taint in spec.taints.iter_mut().filter(|taint| taint.key == names::GANG) {
        taint.value = None;
    }
    let is_open = |asked: &&mut Requirement| asked.key == names::RESERVATION_ID || is_list_of_types(asked);
    spec.requirements.iter_mut().filter(is_open).for_each(|asked| asked.values.clear());
    let spec = serde_json::to_string(&spec).unwrap_or_default();
    let besides = [names::NODEPOOL_HASH, names::DEVICES, names::UNREQUESTED].map(|key| claim.annotation(key));
    format!("{} {spec} {}", claim.label(names::NODEPOOL), besides.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claim(name: &str, gpus: &str, gang: &str) -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name, "labels": {names::NODEPOOL: "gpu", names::WARM: key("team/queue", "check")},
                "annotations": {names::HOLD_UNTIL: at(100).to_string(), names::NODEPOOL_HASH: "1"},
            },
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"nvidia.com/gpu": gpus}},
                "taints": [{"key": names::GANG, "value": gang, "effect": "NoSchedule"}],
            },
            "status": {"conditions": [
                {"type": "Initialized", "status": "True", "reason": "", "message": "",
                 "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ]},
        }))
        .unwrap()
    }

    fn changed(mut claim: NodeClaim, change: impl FnOnce(&mut Value)) -> NodeClaim {
        let mut value = serde_json::to_value(&claim).unwrap();
        change(&mut value);
        claim = serde_json::from_value(value).unwrap();
        claim
    }

    fn found(wanted: &[NodeClaim], kept: &[NodeClaim]) -> Vec<(u32, String)> {
        let slots = (0..).zip(wanted);
        matches(slots, kept).into_iter().map(|(slot, c)| (slot, c.metadata.name.clone().unwrap())).collect()
    }

    #[test]
    fn each_slot_gets_a_node_of_its_shape_and_no_node_is_used_twice() {
        let wanted = [claim("", "8", "new"), claim("", "1", "new"), claim("", "1", "new")];
        let kept = [claim("a", "1", "old"), claim("b", "4", "old")];
        assert_eq!(found(&wanted, &kept), [(1, "a".to_owned())]);
        assert_eq!(found(&wanted, &[]), []);
    }

    #[test]
    fn a_node_of_another_pool_template_or_spec_is_not_of_the_same_assignment() {
        let wanted = [claim("", "1", "new")];
        for (path, value) in [
            ("/metadata/labels/karpenter.sh~1nodepool", "cpu"),
            ("/metadata/annotations/karpenter.sh~1nodepool-hash", "2"),
            ("/spec/nodeClassRef/name", "other"),
            ("/spec/taints/0/effect", "NoExecute"),
        ] {
            let other = changed(claim("a", "1", "old"), |c| *c.pointer_mut(path).unwrap() = json!(value));
            assert_eq!(found(&wanted, &[other]), [], "{path}");
        }
    }

    #[test]
    fn a_node_fits_while_its_type_is_among_those_that_prices_leave() {
        let listing = |types: &[&str], is: &str| {
            changed(claim("a", "1", "g"), |c| {
                c["metadata"]["labels"][names::INSTANCE_TYPE] = json!(is);
                c["spec"]["requirements"] =
                    json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            })
        };
        let kept = [listing(&["g5.xlarge", "g5.2xlarge"], "g5.xlarge")];
        for (types, fits) in [(&["g5.xlarge", "g6.xlarge"], true), (&["g5.2xlarge", "g6.xlarge"], false)] {
            assert_eq!(found(&[listing(types, "")], &kept).len(), usize::from(fits), "{types:?}");
        }
    }

    #[test]
    fn a_node_that_ends_soon_drifts_or_is_not_initialized_is_not_free() {
        assert!(is_free(&claim("a", "1", "old"), None, at(90)));
        assert!(!is_free(&claim("a", "1", "old"), None, at(95)));
        let going = |c: &mut Value| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let drifts = |c: &mut Value| c["status"]["conditions"][0]["type"] = json!("Drifted");
        let endless = |c: &mut Value| c["metadata"]["annotations"] = json!({});
        assert!(!is_free(&changed(claim("a", "1", "old"), going), None, at(90)));
        assert!(!is_free(&changed(claim("a", "1", "old"), drifts), None, at(90)));
        assert!(!is_free(&changed(claim("a", "1", "old"), endless), None, at(90)));
    }

    #[test]
    fn a_kept_node_that_lost_a_device_is_not_free() {
        let kept = changed(claim("a", "8", "old"), |c| c["status"]["nodeName"] = json!("n"));
        let workload: Workload =
            serde_json::from_value(json!({"metadata": {}, "spec": {"podSets": []}})).unwrap();
        let free = |gpus: &str| {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": "n"},
                "status": {
                    "allocatable": {"nvidia.com/gpu": gpus},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }))
            .unwrap();
            free_for(&workload, [&kept], |_| Some(Arc::new(node.clone())), at(90)).len()
        };
        assert_eq!([free("8"), free("7")], [1, 0]);
    }

    #[test]
    fn a_node_that_expires_before_the_job_limit_is_not_free() {
        let aged = |life: &str| {
            changed(claim("a", "1", "old"), |c| {
                c["metadata"]["creationTimestamp"] = json!("1970-01-01T00:00:00Z");
                c["spec"]["expireAfter"] = json!(life);
            })
        };
        let runs = |seconds| Some(Span::seconds(seconds));
        assert!(is_free(&aged("100s"), runs(10), at(90)));
        assert!(!is_free(&aged("100s"), runs(11), at(90)));
        assert!(is_free(&aged("180s"), None, at(90)), "half of its life is left");
        assert!(!is_free(&aged("179s"), None, at(90)), "nobody knows how long the job runs");
        assert!(is_free(&aged("Never"), None, at(90)) && is_free(&aged("Never"), runs(9_000_000), at(90)));
    }

    #[test]
    fn a_kept_node_is_only_for_its_local_queue_and_check() {
        let keys = [key("a/q", "c"), key("b/q", "c"), key("a/r", "c"), key("a/q", "d")];
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len());
    }
}
