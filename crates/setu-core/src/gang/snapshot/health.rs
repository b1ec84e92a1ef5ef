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
use crate::plan::resources;
use crate::policy::{NodeReadiness, Policy};
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
        /// What it waits for.
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

/// What a Node still lacks to run the pods of its claim.
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
    let reported = |wanted: &NodeConditionWanted| {
        node.status.conditions.iter().any(|c| c.kind == wanted.kind && c.status == wanted.status)
    };
    let missing = readiness.node_conditions.iter().find(|c| !reported(c))?;
    Some(NodeProblem::Condition(missing.kind.clone(), missing.status.clone()))
}

/// The first insufficient resource of a Node for its claim's pods and DaemonSets, with the figures.
fn insufficient_resource(claim: &NodeClaim, node: &Node, compared: Allocatable) -> Option<(String, String)> {
    let mut wanted = claim.spec.resources.requests.clone();
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
}
