//! The phases of a NodeClaim until its Node is initialized.

use crate::api::{NodeClaim, condition};
use jiff::SignedDuration;

/// Reasons of a condition that only say "not yet".
const NOT_YET: [&str; 3] = ["", "AwaitingReconciliation", "NodeNotFound"];

/// Age at which Karpenter itself gives up a claim whose Node has not registered.
const KARPENTER_REGISTRATION_LIMIT: SignedDuration = SignedDuration::from_mins(15);

/// The phase of a NodeClaim, in life-cycle order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimPhase {
    /// The provider has not launched the instance yet.
    #[default]
    Launching,
    /// The instance runs; its Node has not registered yet.
    Registering,
    /// The Node is not initialized yet, devices included.
    Initializing,
    /// Karpenter has initialized the Node.
    Initialized,
}

impl ClaimPhase {
    /// The phase that a claim's conditions show.
    pub fn of(claim: &NodeClaim) -> Self {
        let phases = [
            ("Launched", Self::Launching),
            ("Registered", Self::Registering),
            ("Initialized", Self::Initializing),
        ];
        let missing = phases.into_iter().find(|(condition, _)| !claim.is(condition));
        missing.map_or(Self::Initialized, |(_, phase)| phase)
    }
}

/// Whether a launched claim without a Node was deleted when it was as old as Karpenter lets such claims become.
pub fn is_unregistered(claim: &NodeClaim) -> bool {
    let (created, deleted) = (&claim.metadata.creation_timestamp, &claim.metadata.deletion_timestamp);
    let age =
        created.as_ref().zip(deleted.as_ref()).map(|(created, deleted)| deleted.0.duration_since(created.0));
    ClaimPhase::of(claim) == ClaimPhase::Registering
        && age.is_some_and(|age| age >= KARPENTER_REGISTRATION_LIMIT)
}

/// Whether the provider answered the launch with an error.
pub fn has_launch_error(claim: &NodeClaim) -> bool {
    !claim.is_launched() && !detail(claim, "Launched").is_empty()
}

/// Why a condition is not True yet; empty if its reason only says "not yet". For a launch it names the NodeClass. The
/// provider's own text stays on the NodeClaim: it may name accounts and networks that a tenant should not see.
pub(super) fn detail(claim: &NodeClaim, kind: &str) -> String {
    match condition::find(claim.conditions(), kind) {
        Some(c) if NOT_YET.contains(&c.reason.as_str()) => String::new(),
        Some(c) if kind == "Launched" => {
            let class = &claim.spec.node_class_ref;
            format!("{} with {} {}", c.reason, class.kind, class.name)
        }
        Some(c) => format!("{} {}", c.reason, c.message).trim_end().to_owned(),
        None => String::new(),
    }
}
