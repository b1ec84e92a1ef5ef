//! The phases that a NodeClaim goes through until its Node is initialized, each with its deadline.

use super::claims::Health;
use super::failure::{Failure, FailureClass};
use super::waits::WaitsFor;
use crate::api::duration::Span;
use crate::api::{NodeClaim, condition};
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};

/// How long a launch error may stand, from when it was first seen, before it counts: Karpenter repeats the call after
/// about 1, 3, 7 and 15 seconds.
const LAUNCH_ERROR_GRACE: SignedDuration = SignedDuration::from_secs(20);
/// Reasons of a condition that only say "not yet".
const NOT_YET: [&str; 3] = ["", "AwaitingReconciliation", "NodeNotFound"];

/// What a claim has to go through until its Node is initialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Launch,
    Register,
    Initialize,
}

impl Phase {
    /// The phase that a claim is in; `None` once it is through all of them. A reboot is none.
    pub(super) fn of(claim: &NodeClaim) -> Option<Self> {
        let all = [Self::Launch, Self::Register, Self::Initialize];
        let missing = all.into_iter().find(|phase| !claim.is(phase.condition()));
        missing.filter(|phase| *phase != Self::Initialize || !claim.is_rebooting())
    }

    const fn condition(self) -> &'static str {
        match self {
            Self::Launch => "Launched",
            Self::Register => "Registered",
            Self::Initialize => "Initialized",
        }
    }

    fn limit(self, policy: &Policy) -> Span {
        match self {
            Self::Launch => policy.deadlines.launch,
            Self::Register => policy.deadlines.register,
            Self::Initialize => policy.deadlines.initialize,
        }
    }

    fn waits_for(self, why: String) -> WaitsFor {
        match self {
            Self::Launch => WaitsFor::Launch(why),
            Self::Register => WaitsFor::Registration(why),
            Self::Initialize => WaitsFor::Initialization(why),
        }
    }

    const fn timeout(self) -> FailureClass {
        match self {
            Self::Launch => FailureClass::LaunchTimeout,
            Self::Register => FailureClass::RegistrationTimeout,
            Self::Initialize => FailureClass::InitializationTimeout,
        }
    }

    /// How a claim in this phase does, whose launch error was first seen at that time.
    pub(super) fn health(
        self,
        claim: &NodeClaim,
        policy: &Policy,
        now: Timestamp,
        launch_error: Option<Timestamp>,
    ) -> Health {
        let after = |time: Timestamp, span: SignedDuration| time.checked_add(span).unwrap_or(Timestamp::MAX);
        let created = claim.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        // A node that was rebooted is initialized anew.
        let begun = claim.rebooted().filter(|_| self == Self::Initialize).map_or(created, |t| t.max(created));
        let until = after(begun, self.limit(policy).signed());
        let (slot, why) = (slot_of(claim), detail(claim, self.condition()));
        if self == Self::Launch && !why.is_empty() {
            let until = until.min(after(launch_error.unwrap_or(now), LAUNCH_ERROR_GRACE));
            if until <= now {
                let message = format!("the provider did not launch slot {slot}: {why}");
                return Health::Failed(Failure::new(FailureClass::LaunchFailed, message));
            }
            return Health::Coming { waits_for: WaitsFor::Launch(why), until: Some(until) };
        }
        if until > now {
            return Health::Coming { waits_for: self.waits_for(why), until: Some(until) };
        }
        let verb = self.waits_for(String::new());
        let message = format!("slot {slot} did not {verb} within {}{}", self.limit(policy), dotted(&why));
        Health::Failed(Failure::new(self.timeout(), message))
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
