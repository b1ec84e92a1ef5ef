//! Facts about one NodeClaim of a gang and its Node, for the gang's decisions.

use super::health::Health;
use super::phase::{ClaimPhase, is_unregistered};
use crate::api::{Node, NodeClaim};
use crate::gang::statechart::failure::Failure;
use crate::names;
use crate::policy::Policy;
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
    /// The pod sets that its node was planned for, as its label says; empty if it has none.
    pub pod_sets: String,
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
    /// Whether it was deleted when Karpenter gives up claims whose Node has not registered.
    pub unregistered: bool,
    /// Whether Karpenter is disrupting it or rebooting its node.
    pub disrupted: bool,
    /// Its health.
    pub health: Health,
}

impl ClaimView {
    /// A claim of generation 0 with only its health known.
    pub fn new(name: &str, attempt: u32, slot: u32, health: Health) -> Self {
        Self {
            name: name.to_owned(),
            uid: name.to_owned(),
            attempt,
            slot,
            pod_sets: String::new(),
            generation: 0,
            deleting: false,
            held_until: None,
            vacant: false,
            stuck: false,
            rebooted: None,
            created: None,
            phase: ClaimPhase::default(),
            unregistered: false,
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
            pod_sets: claim.label(names::POD_SETS).to_owned(),
            generation: claim.generation(),
            deleting: claim.is_deleting(),
            held_until: claim.annotation(names::HOLD_UNTIL).parse().ok(),
            vacant: false,
            stuck: claim.metadata.deletion_timestamp.as_ref().is_some_and(|t| is_stuck(t.0, now)),
            rebooted: claim.rebooted(),
            created: claim.metadata.creation_timestamp.as_ref().map(|t| t.0),
            phase: ClaimPhase::of(claim),
            unregistered: is_unregistered(claim),
            disrupted: claim.is("DisruptionReason") || claim.is_rebooting(),
            health: Health::of(claim, node, policy, now, launch_error),
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
    pub(in crate::gang) fn is_doomed(&self) -> bool {
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
