//! The phases of a NodeClaim until its Node is initialized, each with its deadline.

use super::claims::Health;
use super::failure::{Failure, FailureClass};
use super::waits::WaitsFor;
use crate::api::{NodeClaim, condition};
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};

/// How long a launch error may last, from when it was first seen, before it counts: Karpenter retries the call after about
/// 1, 3, 7 and 15 seconds.
const LAUNCH_ERROR_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// Reasons of a condition that only say "not yet".
const NOT_YET: [&str; 3] = ["", "AwaitingReconciliation", "NodeNotFound"];

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

    /// The health of a claim in this phase; `None` if it depends on the Node. `launch_error` is when that error was first seen.
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
        // A node that was rebooted is initialized again.
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

/// The slot of a claim, for messages; empty if it has none.
pub(super) fn slot_of(claim: &NodeClaim) -> String {
    claim.slot().map_or_else(String::new, |slot| slot.to_string())
}

/// Whether the provider answered the launch with an error.
pub fn has_launch_error(claim: &NodeClaim) -> bool {
    !claim.is("Launched") && !detail(claim, "Launched").is_empty()
}

/// Why a condition is not True yet; empty if its reason only says "not yet". For a launch it names the NodeClass. The
/// provider's own text stays on the NodeClaim: it may name accounts and networks that a tenant should not see.
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
