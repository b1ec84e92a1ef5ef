//! The health of a NodeClaim: whether its node comes up, can run its pods, or never will.
//!
//! Rule: `Initialized` is reset only while Karpenter reboots a node, so it alone proves nothing. A node is ready only when
//! the claim, the Node, its taints and its allocatable all say so.

use super::phase::{ClaimPhase, detail};
use super::waits::{NodeProblem, UNTOUCHED, WaitsFor};
use crate::api::node_claim::RequestedDevices;
use crate::api::parameters::{Allocatable, NodeConditionWanted};
use crate::api::{Node, NodeClaim, condition};
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::names;
use crate::plan::pod_set_labels::is_for;
use crate::plan::resources;
use crate::policy::{NodeReadiness, Policy, TopologyLevels};
use jiff::{SignedDuration, Timestamp};

/// How long a launch error may last, from when it was first seen, before it counts: Karpenter retries the call after about
/// 1, 3, 7 and 15 seconds.
const LAUNCH_ERROR_GRACE: SignedDuration = SignedDuration::from_secs(20);

/// Karpenter writes the first conditions of a claim within this time, even when it is busy.
const TAKEN_UP: SignedDuration = SignedDuration::from_secs(30);

/// Karpenter's reason for a Node that is not initialized because a driver has not published its devices.
const UNPUBLISHED: &str = "DRADriverPoolsNotPublished";

/// The health of a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Health {
    /// Coming up.
    Coming {
        /// Why it is not ready yet.
        waits_for: WaitsFor,
        /// When that times out; `None` if only the gang's deadline counts.
        until: Option<Timestamp>,
    },
    /// Its node can run its pods.
    Ready {
        /// When its node became ready.
        since: Timestamp,
    },
    /// Failed permanently.
    Failed(Failure),
}

impl Health {
    /// Reads the health of a claim and its Node. `launch_error` is when a launch error was first seen; `None` counts as now.
    pub(super) fn of(
        claim: &NodeClaim,
        node: Option<&Node>,
        policy: &Policy,
        now: Timestamp,
        launch_error: Option<Timestamp>,
    ) -> Self {
        if let Some(health) = before_initialized(claim, policy, now, launch_error) {
            return health;
        }
        let name = claim.node_name().unwrap_or_default().to_owned();
        if claim.is_rebooting() {
            return Self::Coming { waits_for: WaitsFor::Reboot(name), until: None };
        }
        let Some(node) = node else {
            return Self::Coming { waits_for: WaitsFor::Node, until: None };
        };
        if let Some(lack) = node_problem(claim, node, &policy.readiness) {
            return Self::Coming {
                waits_for: WaitsFor::Readiness { node: name_of(node), lack },
                until: None,
            };
        }
        match insufficient_resource(claim, node, policy.readiness.allocatable) {
            Some((key, resource)) if resources::is_device(&key) => {
                // A device plugin may still be starting, or restarting.
                return Self::Coming {
                    waits_for: WaitsFor::Devices { node: name_of(node), resource },
                    until: None,
                };
            }
            Some((_, resource)) => return Self::Failed(too_small(claim, node, &resource)),
            None => {}
        }
        // A node that went away and came back starts its buffer time again.
        // Its clock may be ahead of ours.
        let back = node.ready_since().filter(|t| *t <= now);
        let known = [claim.since("Initialized"), back, claim.taken_over()];
        let since = known.into_iter().flatten().max().unwrap_or(now);
        match since.checked_add(policy.buffer_time.signed()) {
            Ok(settled) if settled > now => {
                Self::Coming { waits_for: WaitsFor::BufferTime, until: Some(settled) }
            }
            _ => Self::Ready { since },
        }
    }
}

/// The health of a claim that is not initialized yet, by the deadline of its phase; `None` if it depends on the Node.
fn before_initialized(
    claim: &NodeClaim,
    policy: &Policy,
    now: Timestamp,
    launch_error: Option<Timestamp>,
) -> Option<Health> {
    let (phase, limits) = (ClaimPhase::of(claim), &policy.deadlines);
    let (condition, limit, verb, timeout) = match phase {
        ClaimPhase::Launching => ("Launched", limits.launch, "launch", FailureClass::LaunchTimeout),
        ClaimPhase::Registering => {
            ("Registered", limits.register, "register", FailureClass::RegistrationTimeout)
        }
        ClaimPhase::Initializing if !claim.is_rebooting() => {
            ("Initialized", limits.initialize, "initialize", FailureClass::InitializationTimeout)
        }
        ClaimPhase::Initializing | ClaimPhase::Initialized => return None,
    };
    let after = |time: Timestamp, span: SignedDuration| time.checked_add(span).unwrap_or(Timestamp::MAX);
    let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
    // A node that was rebooted is initialized again.
    let begun =
        claim.rebooted().filter(|_| phase == ClaimPhase::Initializing).map_or(created, |t| t.max(created));
    let until = after(begun, limit.signed());
    let is_untouched = claim.conditions().is_empty() && after(created, TAKEN_UP) <= now;
    let (slot, why) = (slot_of(claim), detail(claim, condition));
    if phase == ClaimPhase::Launching && !why.is_empty() {
        let until = until.min(after(launch_error.unwrap_or(now), LAUNCH_ERROR_GRACE));
        if until <= now {
            let message = format!("the provider did not launch slot {slot}: {why}");
            return Some(Health::Failed(Failure::new(FailureClass::LaunchFailed, message)));
        }
        return Some(Health::Coming { waits_for: WaitsFor::Launch(why), until: Some(until) });
    }
    if until > now {
        let waits_for = match phase {
            ClaimPhase::Launching if is_untouched => WaitsFor::Karpenter,
            ClaimPhase::Launching => WaitsFor::Launch(why),
            ClaimPhase::Registering => WaitsFor::Registration(why),
            _ => unpublished(claim).unwrap_or(WaitsFor::Initialization(why)),
        };
        return Some(Health::Coming { waits_for, until: Some(until) });
    }
    let why = if is_untouched { format!("Karpenter {UNTOUCHED}") } else { why };
    let message = format!("slot {slot} did not {verb} within {limit}{}", dotted(&why));
    Some(Health::Failed(Failure::new(timeout, message)))
}

/// The wait for the driver that Karpenter names as the one that has not published its devices. Karpenter does so where it handles
/// dynamic resource allocation.
fn unpublished(claim: &NodeClaim) -> Option<WaitsFor> {
    let condition = condition::find(claim.conditions(), "Initialized")?;
    let is_named = |devices: &RequestedDevices| condition.message.contains(&format!("{:?}", devices.driver));
    let devices = claim.devices().into_iter().filter(|_| condition.reason == UNPUBLISHED);
    let driver = devices.into_iter().find(is_named)?.driver;
    let node = claim.node_name().unwrap_or_default().to_owned();
    Some(WaitsFor::ResourceSlices {
        lack: format!("driver {driver} to publish its ResourceSlices, on node {node}"),
        node,
    })
}

/// The slot of a claim, for messages; empty if it has none.
fn slot_of(claim: &NodeClaim) -> String {
    claim.slot().map_or_else(String::new, |slot| slot.to_string())
}

fn dotted(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

fn name_of(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

/// The problem that keeps a Node from running the pods of its claim; `None` if there is none.
fn node_problem(claim: &NodeClaim, node: &Node, readiness: &NodeReadiness) -> Option<NodeProblem> {
    if node.metadata.deletion_timestamp.is_some() {
        return Some(NodeProblem::Deleted);
    }
    if !node.is_ready() {
        return Some(NodeProblem::NotReady);
    }
    if node.spec.unschedulable {
        return Some(NodeProblem::Cordoned);
    }
    let own = |taint: &k8s_openapi::api::core::v1::Taint| {
        claim.spec.taints.iter().any(|t| t.key == taint.key && t.effect == taint.effect)
    };
    if let Some(taint) = node.spec.taints.iter().find(|t| t.effect != "PreferNoSchedule" && !own(t)) {
        return Some(NodeProblem::Taint(taint.key.clone()));
    }
    let labels = node.metadata.labels.as_ref();
    let labelled = |key: &String, wanted: &String| {
        labels.and_then(|l| l.get(key)).is_some_and(|value| wanted.is_empty() || value == wanted)
    };
    if let Some((key, value)) = readiness.node_labels.iter().find(|(key, value)| !labelled(key, value)) {
        return Some(NodeProblem::Label(key.clone(), value.clone()));
    }
    let topologies = readiness.topologies.iter().filter(|levels| is_placed_by(levels, claim, node));
    // Any value will do.
    let any = String::new();
    if let Some(key) = topologies.flat_map(|levels| &levels.labels).find(|key| !labelled(key, &any)) {
        return Some(NodeProblem::Label(key.clone(), any));
    }
    let reported = |wanted: &NodeConditionWanted| {
        node.status.conditions.iter().any(|c| c.kind == wanted.kind && c.status == wanted.status)
    };
    let missing = readiness.node_conditions.iter().find(|c| !reported(c))?;
    Some(NodeProblem::Condition(missing.kind.clone(), missing.status.clone()))
}

/// Whether Kueue places pods on a node by these levels. A claim that names no pod set shows by the flavor's labels which it is for.
fn is_placed_by(levels: &TopologyLevels, claim: &NodeClaim, node: &Node) -> bool {
    let has = |(key, value): (&String, &String)| node.label(key) == value;
    is_for(claim, &levels.pod_sets).unwrap_or_else(|| levels.node_labels.iter().all(has))
}

/// The first insufficient resource of a Node for its claim's pods and DaemonSets, with the figures.
fn insufficient_resource(claim: &NodeClaim, node: &Node, compared: Allocatable) -> Option<(String, String)> {
    let mut wanted = claim.needs().into_owned();
    match compared {
        Allocatable::Exact => {}
        Allocatable::Devices => wanted.retain(|resource, _| resources::is_device(resource)),
        Allocatable::None => wanted.clear(),
    }
    let key = resources::first_insufficient(&wanted, &node.status.allocatable)?.to_owned();
    Some((key, resources::shortage(&wanted, &node.status.allocatable)?))
}

/// The failure of a node that can never run all pods planned on it, because a node does not grow.
fn too_small(claim: &NodeClaim, node: &Node, resource: &str) -> Failure {
    let labels = node.metadata.labels.as_ref();
    let instance_type = labels.and_then(|l| l.get(names::INSTANCE_TYPE)).map_or("unknown", String::as_str);
    let message = format!(
        "the node of slot {}, of type {instance_type}, has too little {resource} for the pods planned on it",
        slot_of(claim)
    );
    Failure::new(FailureClass::NodeTooSmall, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_levels_of_a_topology_are_required_on_the_nodes_of_its_pod_sets_alone() {
        let racks = TopologyLevels {
            labels: vec!["rack".to_owned()],
            pod_sets: ["worker".to_owned()].into(),
            node_labels: [(names::ZONE.to_owned(), "a".to_owned())].into(),
        };
        let readiness = NodeReadiness { topologies: vec![racks], ..NodeReadiness::default() };
        let problem = |pod_sets: &str, labels: serde_json::Value| {
            let claim = serde_json::from_value(json!({
                "metadata": {"name": "c", "labels": {(names::POD_SETS): pod_sets}},
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            }));
            let node = serde_json::from_value(json!({
                "metadata": {"name": "n", "labels": labels},
                "status": {"conditions": [{"type": "Ready", "status": "True"}]},
            }));
            node_problem(&claim.unwrap(), &node.unwrap(), &readiness)
        };
        let lacks = Some(NodeProblem::Label("rack".to_owned(), String::new()));
        assert_eq!(problem("worker", json!({})), lacks);
        assert_eq!(problem("driver.worker", json!({})), lacks);
        assert_eq!(problem("worker", json!({"rack": "r1"})), None);
        assert_eq!(problem("head", json!({(names::ZONE): "a"})), None);
        assert_eq!(problem("", json!({(names::ZONE): "a"})), lacks, "it is on the flavor's nodes");
        assert_eq!(problem("", json!({(names::ZONE): "b"})), None, "it is on those of another flavor");
        assert_eq!(problem("", json!({})), None);
    }

    #[test]
    fn a_claim_waits_for_the_driver_that_karpenter_names() {
        let devices = json!([
            {"deviceClass": "nic", "driver": "nic.example.com", "count": 1},
            {"deviceClass": "gpu", "driver": "gpu.example.com", "count": 2},
        ]);
        let condition = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let message = "DRA driver \"gpu.example.com\" has not published a complete resource pool";
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "annotations": {names::DEVICES: devices.to_string()}},
            "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            "status": {"nodeName": "n", "conditions": [
                condition("Launched", "True", "Launched", ""), condition("Registered", "True", "Registered", ""),
                condition("Initialized", "Unknown", UNPUBLISHED, message),
            ]},
        }))
        .unwrap();
        let health = Health::of(&claim, None, &Policy::default(), Timestamp::UNIX_EPOCH, None);
        let Health::Coming { waits_for, .. } = health else { panic!("{health:?}") };
        assert_eq!(waits_for.to_string(), "driver gpu.example.com to publish its ResourceSlices, on node n");
    }

    #[test]
    fn a_node_must_have_what_its_claim_could_not_request() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        let conditions = ["Launched", "Registered", "Initialized"].map(condition);
        let unrequested = json!({"hugepages-2Mi": "2Gi", "rdma/hca": "1"}).to_string();
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "annotations": {names::UNREQUESTED: unrequested}},
            "spec": {
                "nodeClassRef": {"group": "", "kind": "", "name": ""}, "resources": {"requests": {"cpu": "4"}},
            },
            "status": {"nodeName": "n", "conditions": conditions},
        }))
        .unwrap();
        let health = |allocatable: &serde_json::Value| {
            let node: Node = serde_json::from_value(json!({
                "metadata": {"name": "n"},
                "status": {"allocatable": allocatable, "conditions": [condition("Ready")]},
            }))
            .unwrap();
            Health::of(&claim, Some(&node), &Policy::default(), Timestamp::UNIX_EPOCH, None)
        };
        let Health::Coming { waits_for, .. } = health(&json!({"cpu": "8", "hugepages-2Mi": "2Gi"})) else {
            panic!("it has no device")
        };
        assert!(waits_for.to_string().contains("rdma/hca"), "{waits_for}");
        let Health::Failed(failure) = health(&json!({"cpu": "8", "rdma/hca": "1"})) else {
            panic!("it has no huge pages")
        };
        assert_eq!(failure.reason, FailureClass::NodeTooSmall);
        let all = health(&json!({"cpu": "8", "rdma/hca": "1", "hugepages-2Mi": "2Gi"}));
        assert!(matches!(all, Health::Ready { .. }), "{all:?}");
    }
}
