//! The phases that a NodeClaim goes through until its Node is initialized, each with its deadline.

use super::claims::Health;
use super::failure::{Failure, FailureClass};
use super::waits::WaitsFor;
use crate::api::{NodeClaim, condition};
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};

/// How long a launch error may stand, from when it was first seen, before it counts: Karpenter repeats the call after
/// about 1, 3, 7 and 15 seconds.
const LAUNCH_ERROR_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// Reasons of a condition that only say "not yet".
const NOT_YET: [&str; 3] = ["", "AwaitingReconciliation", "NodeNotFound"];

/// How far a NodeClaim has come, in the order of a node's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClaimPhase {
    /// The provider is to launch the instance.
    #[default]
    Launching,
    /// The instance runs; its Node is to register.
    Registering,
    /// The Node is to be initialized, devices included.
    Initializing,
    /// Karpenter calls the Node complete.
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

    /// How a claim in this phase does, whose launch error was first seen at that time; `None` where its Node tells.
    pub(super) fn health(
        self,
        claim: &NodeClaim,
        policy: &Policy,
        now: Timestamp,
        launch_error: Option<Timestamp>,
    ) -> Option<Health> {
        let limits = &policy.deadlines;
        let (condition, limit, waits_for, timeout): (_, _, fn(String) -> WaitsFor, _) = match self {
            Self::Launching => ("Launched", limits.launch, WaitsFor::Launch, FailureClass::LaunchTimeout),
            Self::Registering => {
                ("Registered", limits.register, WaitsFor::Registration, FailureClass::RegistrationTimeout)
            }
            Self::Initializing if !claim.is_rebooting() => (
                "Initialized",
                limits.initialize,
                WaitsFor::Initialization,
                FailureClass::InitializationTimeout,
            ),
            Self::Initializing | Self::Initialized => return None,
        };
        let after = |time: Timestamp, span: SignedDuration| time.checked_add(span).unwrap_or(Timestamp::MAX);
        let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        // A node that was rebooted is initialized anew.
        let begun =
            claim.rebooted().filter(|_| self == Self::Initializing).map_or(created, |t| t.max(created));
        let until = after(begun, limit.signed());
        let (slot, why) = (slot_of(claim), detail(claim, condition));
        if self == Self::Launching && !why.is_empty() {
            let until = until.min(after(launch_error.unwrap_or(now), LAUNCH_ERROR_GRACE));
            if until <= now {
                let message = format!("the provider did not launch slot {slot}: {why}");
                return Some(Health::Failed(Failure::new(FailureClass::LaunchFailed, message)));
            }
            return Some(Health::Coming { waits_for: WaitsFor::Launch(why), until: Some(until) });
        }
        if until > now {
            return Some(Health::Coming { waits_for: waits_for(why), until: Some(until) });
        }
        let verb = waits_for(String::new());
        let message = format!("slot {slot} did not {verb} within {limit}{}", dotted(&why));
        Some(Health::Failed(Failure::new(timeout, message)))
    }
}

/// The slot of a claim, for messages; empty where it does not say.
pub(super) fn slot_of(claim: &NodeClaim) -> String {
    claim.slot().map_or_else(String::new, |slot| slot.to_string())
}

/// Whether its provider has answered the launch with an error.
pub fn has_launch_error(claim: &NodeClaim) -> bool {
    !claim.is("Launched") && !detail(claim, "Launched").is_empty()
}

/// Why a condition is not yet True, without what only says "not yet"; of a launch with the NodeClass that says how. The
/// provider's own text stays on the NodeClaim: it may name accounts and networks that are not the tenant's business.
fn detail(claim: &NodeClaim, kind: &str) -> String {
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

fn dotted(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}
