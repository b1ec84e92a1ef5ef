//! The health of each claim of a gang.
//!
//! Rule: `Initialized` is reset only while Karpenter reboots a node, so it alone proves nothing. A node is ready only when
//! the claim, the Node, its taints and its allocatable all say so.

use super::failure::{Failure, FailureClass};
use super::phase::{ClaimPhase, slot_of};
use super::waits::{Lack, WaitsFor};
use crate::api::parameters::{Allocatable, NodeConditionWanted};
use crate::api::{Node, NodeClaim};
use crate::names;
use crate::plan::resources;
use crate::policy::{NodeReadiness, Policy};
use jiff::{SignedDuration, Timestamp};

/// How long the deletion of a NodeClaim may take before nothing waits for it any longer. A finalizer or a
/// PodDisruptionBudget can block it forever. Every attempt uses new names, so it blocks nothing.
pub const STUCK_AFTER: SignedDuration = SignedDuration::from_mins(10);

/// One claim of a gang in one snapshot.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimView {
    /// Name of the NodeClaim.
    pub name: String,
    /// UID, the precondition of its deletion.
    pub uid: String,
    /// Attempt it belongs to.
    pub attempt: u32,
    /// Slot it fills.
    pub slot: u32,
    /// Its generation; 0 for the start of the attempt.
    pub generation: u32,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// When its hold ends; `None` if it has none.
    pub held_until: Option<Timestamp>,
    /// Whether it has failed and a search found no pods on its Node except those of DaemonSets.
    pub vacant: bool,
    /// Whether its deletion has taken longer than [`STUCK_AFTER`]: nothing waits for it any longer.
    pub stuck: bool,
    /// When the last reboot of its node ended.
    pub rebooted: Option<Timestamp>,
    /// When it was created, if that is known.
    pub created: Option<Timestamp>,
    /// Its phase by Karpenter's conditions.
    pub phase: ClaimPhase,
    /// Whether Karpenter is disrupting it or rebooting its node.
    pub disrupted: bool,
    /// Its health.
    pub health: Health,
}

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

impl ClaimView {
    /// A claim of generation 0 with only its health known.
    pub fn new(name: &str, attempt: u32, slot: u32, health: Health) -> Self {
        Self {
            name: name.to_owned(),
            uid: name.to_owned(),
            attempt,
            slot,
            generation: 0,
            deleting: false,
            held_until: None,
            vacant: false,
            stuck: false,
            rebooted: None,
            created: None,
            phase: ClaimPhase::default(),
            disrupted: false,
            health,
        }
    }

    /// Reads one claim and its Node. `launch_error` is when a launch error was first seen; `None` counts as now.
    pub fn of(
        claim: &NodeClaim,
        node: Option<&Node>,
        policy: &Policy,
        now: Timestamp,
        launch_error: Option<Timestamp>,
    ) -> Self {
        Self {
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            attempt: claim.label(names::ATTEMPT).parse().unwrap_or_default(),
            slot: claim.slot().unwrap_or(u32::MAX),
            generation: claim.generation(),
            deleting: claim.metadata.deletion_timestamp.is_some(),
            held_until: claim.annotation(names::HOLD_UNTIL).parse().ok(),
            vacant: false,
            stuck: claim.metadata.deletion_timestamp.as_ref().is_some_and(|t| is_stuck(t.0, now)),
            rebooted: claim.rebooted(),
            created: claim.metadata.creation_timestamp.as_ref().map(|t| t.0),
            phase: ClaimPhase::of(claim),
            disrupted: claim.is("DisruptionReason") || claim.is_rebooting(),
            health: health(claim, node, policy, now, launch_error),
        }
    }

    /// Why it has failed permanently; `None` if it may still come up.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.health {
            Health::Failed(failure) => Some(failure),
            Health::Ready { .. } | Health::Coming { .. } => None,
        }
    }

    /// Whether it has failed permanently.
    pub fn has_failed(&self) -> bool {
        self.failure().is_some()
    }

    /// Whether it may have a Node that pods run on, ready or not.
    pub fn may_have_pods(&self) -> bool {
        if self.vacant {
            return false;
        }
        match &self.health {
            Health::Ready { .. } => true,
            Health::Coming { waits_for, .. } => waits_for.may_have_node(),
            Health::Failed(failure) => failure.reason.may_have_had_node(),
        }
    }

    /// Whether it has failed permanently and has no pods.
    pub(super) fn is_doomed(&self) -> bool {
        self.has_failed() && !self.may_have_pods()
    }

    /// Whether its node can run its pods.
    pub fn is_ready(&self) -> bool {
        !self.deleting && matches!(self.health, Health::Ready { .. })
    }
}

/// Whether a deletion that began at `since` has taken longer than [`STUCK_AFTER`].
pub fn is_stuck(since: Timestamp, now: Timestamp) -> bool {
    since.checked_add(STUCK_AFTER).is_ok_and(|end| end <= now)
}

fn health(
    claim: &NodeClaim,
    node: Option<&Node>,
    policy: &Policy,
    now: Timestamp,
    launch_error: Option<Timestamp>,
) -> Health {
    if let Some(health) = ClaimPhase::of(claim).health(claim, policy, now, launch_error) {
        return health;
    }
    let name = claim.node_name().unwrap_or_default().to_owned();
    if claim.is_rebooting() {
        return Health::Coming { waits_for: WaitsFor::Reboot(name), until: None };
    }
    let Some(node) = node else {
        return Health::Coming { waits_for: WaitsFor::Node, until: None };
    };
    if let Some(lack) = lacks(claim, node, &policy.readiness) {
        return Health::Coming { waits_for: WaitsFor::Readiness { node: name_of(node), lack }, until: None };
    }
    match lack(claim, node, policy.readiness.allocatable) {
        Some((key, short)) if resources::is_device(&key) => {
            // A device plugin may still be starting, or restarting.
            return Health::Coming {
                waits_for: WaitsFor::Devices { node: name_of(node), short },
                until: None,
            };
        }
        Some((_, short)) => return Health::Failed(too_small(claim, node, &short)),
        None => {}
    }
    // A node that went away and came back starts its buffer time again.
    // Its clock may be ahead of ours.
    let back = node.ready_since().filter(|t| *t <= now);
    let known = [claim.since("Initialized"), back, claim.taken_over()];
    let since = known.into_iter().flatten().max().unwrap_or(now);
    match since.checked_add(policy.buffer_time.signed()) {
        Ok(settled) if settled > now => {
            Health::Coming { waits_for: WaitsFor::BufferTime, until: Some(settled) }
        }
        _ => Health::Ready { since },
    }
}

fn name_of(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

/// What a Node still lacks to run the pods of its claim.
fn lacks(claim: &NodeClaim, node: &Node, readiness: &NodeReadiness) -> Option<Lack> {
    if node.metadata.deletion_timestamp.is_some() {
        return Some(Lack::Deleted);
    }
    if !node.is_ready() {
        return Some(Lack::NotReady);
    }
    if node.spec.unschedulable {
        return Some(Lack::Cordoned);
    }
    let own = |taint: &k8s_openapi::api::core::v1::Taint| {
        claim.spec.taints.iter().any(|t| t.key == taint.key && t.effect == taint.effect)
    };
    if let Some(taint) = node.spec.taints.iter().find(|t| t.effect != "PreferNoSchedule" && !own(t)) {
        return Some(Lack::Taint(taint.key.clone()));
    }
    let labels = node.metadata.labels.as_ref();
    let labelled = |key: &String, wanted: &String| {
        labels.and_then(|l| l.get(key)).is_some_and(|value| wanted.is_empty() || value == wanted)
    };
    if let Some((key, value)) = readiness.node_labels.iter().find(|(key, value)| !labelled(key, value)) {
        return Some(Lack::Label(key.clone(), value.clone()));
    }
    let reported = |wanted: &NodeConditionWanted| {
        node.status.conditions.iter().any(|c| c.kind == wanted.kind && c.status == wanted.status)
    };
    let missing = readiness.node_conditions.iter().find(|c| !reported(c))?;
    Some(Lack::Condition(missing.kind.clone(), missing.status.clone()))
}

/// The first resource that is too short on a Node for its claim's pods and DaemonSets, with the figures.
fn lack(claim: &NodeClaim, node: &Node, compared: Allocatable) -> Option<(String, String)> {
    let mut wanted = claim.spec.resources.requests.clone();
    match compared {
        Allocatable::Exact => {}
        Allocatable::Devices => wanted.retain(|resource, _| resources::is_device(resource)),
        Allocatable::None => wanted.clear(),
    }
    let key = resources::first_short(&wanted, &node.status.allocatable)?.to_owned();
    Some((key, resources::shortage(&wanted, &node.status.allocatable)?))
}

/// The failure of a node that can never run all pods planned on it, because a node does not grow.
fn too_small(claim: &NodeClaim, node: &Node, short: &str) -> Failure {
    let labels = node.metadata.labels.as_ref();
    let instance_type = labels.and_then(|l| l.get(names::INSTANCE_TYPE)).map_or("unknown", String::as_str);
    let message = format!(
        "the node of slot {}, of type {instance_type}, has too little {short} for the pods planned on it",
        slot_of(claim)
    );
    Failure::new(FailureClass::NodeTooSmall, message)
}
