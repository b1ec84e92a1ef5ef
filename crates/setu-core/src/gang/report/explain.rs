//! Why a gang waits, node by node: one answer for the command line and the board. It contains the check's sentence from `message`.
//!
//! Rule: every text about a gang that users see comes from the snapshot that decides the gang's next step. So all places agree.

use super::message;
use crate::api::{FrontEnd, NodeClaim};
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::claims::ClaimView;
use crate::gang::snapshot::health::Health;
use crate::gang::snapshot::phase::ClaimPhase;
use crate::gang::snapshot::unbound::UnboundPods;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{AdmissionPhase, Reservation};
use crate::gang::statechart::state::{Nodes, State, StateName, Then};
use crate::gang::step::option_retry;
use crate::names;
use crate::plan::Outcome;
use crate::words::to_the_second;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most slots that are listed. The journal's slot count is not trusted: a tenant can write it.
const SLOTS_LISTED: u32 = 1024;

/// The next step of a gang that waits for an obstacle to clear.
pub const WHEN_THAT_CHANGES: &str = "it is checked again as soon as that changes";

/// The state of a gang, what it waits for, and what happens next.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Its state.
    pub state: StateName,
    /// Since when.
    pub since: Timestamp,
    /// The current or last attempt.
    pub attempt: u32,
    /// Index of the tier the attempt uses.
    pub tier: u32,
    /// The tier's name in the policy, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier_name: Option<String>,
    /// Nodes of the attempt.
    pub slots: u32,
    /// NodeClaims of the attempt that exist.
    pub created: u32,
    /// Nodes of the attempt that can run their pods.
    pub ready: u32,
    /// The check's message, with what is wrong with pods that may run.
    pub sentence: String,
    /// The next step.
    pub next: String,
    /// When the next step happens, if known. After the quota was given back, the earliest time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_at: Option<Timestamp>,
    /// The consequence if that takes too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otherwise: Option<Otherwise>,
    /// Pods that may run but are not bound to a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unbound_pods: Option<UnboundPods>,
    /// Why the last attempt failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
    /// Every wanted node and every leftover NodeClaim, by slot.
    pub nodes: Vec<SlotView>,
}

/// Something that happens by itself at a point in time.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct Otherwise {
    /// The point in time.
    pub at: Timestamp,
    /// A description of what happens then.
    pub what: String,
}

/// One node of a gang.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SlotView {
    /// Number within the gang.
    pub slot: u32,
    /// Attempt its NodeClaim belongs to.
    pub attempt: u32,
    /// How far it has come.
    pub phase: SlotPhase,
    /// Reason for its wait or its failure; empty when it is ready.
    pub detail: String,
    /// When that wait times out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Its NodeClaim; empty while there is none.
    pub claim: String,
    /// Its NodePool.
    pub node_pool: String,
    /// Its Node once registered.
    pub node: String,
    /// The instance type once known.
    pub instance_type: String,
    /// The zone once known.
    pub zone: String,
    /// When the NodeClaim was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<Timestamp>,
    /// When the instance was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launched: Option<Timestamp>,
    /// When the Node registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registered: Option<Timestamp>,
    /// When the Node was initialized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initialized: Option<Timestamp>,
}

/// How far a slot has come, in the order of a node's life.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotPhase {
    /// It has no NodeClaim.
    #[default]
    Missing,
    /// The provider has not launched the instance yet.
    Launching,
    /// The instance runs; its Node has not registered yet.
    Registering,
    /// The Node is not initialized yet, devices included.
    Initializing,
    /// Initialized, but something still keeps pods away.
    Settling,
    /// Its node can run its pods.
    Ready,
    /// It has failed permanently.
    Failed,
    /// It is being deleted.
    Going,
}

impl Explanation {
    /// Explains a gang. `snapshot.claims` were made from `claims`.
    pub fn of(journal: &Journal, snapshot: &Snapshot<'_>, claims: &[Arc<NodeClaim>]) -> Self {
        let memory = &journal.memory;
        let attempt = Attempt::of(journal, snapshot);
        Self {
            state: journal.state.name(),
            since: journal.entered_at,
            attempt: memory.attempt,
            tier: memory.option.tier,
            tier_name: memory.tier_name.clone(),
            slots: memory.slots,
            created: attempt.existing(),
            ready: attempt.ready(),
            sentence: sentence(&attempt),
            next: next(&attempt),
            next_at: match &journal.state {
                State::BackingOff { until } => Some(*until),
                State::Yielded => memory.not_before,
                _ => None,
            },
            otherwise: otherwise(&attempt),
            unbound_pods: snapshot.forecast.unbound.cloned(),
            last_failure: memory.last_failure.clone(),
            nodes: slots(journal, snapshot, claims),
        }
    }
}

impl Explanation {
    /// Whether nodes of the attempt exist or are expected.
    pub fn wants_nodes(&self) -> bool {
        use StateName::{Approved, BackingOff, Provisioning, RollingBack, WaitingReady};
        Nodes::of(self.slots) != Nodes::Unneeded
            && matches!(self.state, Provisioning | WaitingReady | Approved | RollingBack | BackingOff)
    }
}

fn after_rollback(then: Then) -> &'static str {
    match then {
        Then::BackingOff => "a short wait with the quota held, then the next attempt",
        Then::Yielded => "the quota goes back to the queue, so that others may run meanwhile",
        Then::Rejected => "the Workload is rejected",
        Then::Released => "nothing more: the gang holds nothing",
    }
}

fn sentence(attempt: &Attempt<'_>) -> String {
    let sentence = message::sentence(attempt);
    match attempt.snapshot.forecast.unbound {
        Some(unbound) => format!("{sentence}; {}", unbound.text(&to_the_second(unbound.since))),
        None => sentence,
    }
}

fn next(attempt: &Attempt<'_>) -> String {
    use AdmissionPhase::{Admitted, AdmittedPods, Running};
    let Attempt { journal, snapshot, .. } = attempt;
    let slots = journal.memory.slots;
    if journal.state.is_approved()
        && let Reservation::Held { phase: Admitted | AdmittedPods | Running, .. } = snapshot.reservation
    {
        let has_nodes = journal.state.holds_nodes();
        let words = if has_nodes {
            "its nodes are given back when the Job has ended"
        } else {
            "nothing: its pods need no nodes of Setu's"
        };
        return words.to_owned();
    }
    match (&journal.state, snapshot.plan) {
        (State::Validating, Some(Outcome::Wait(_))) => WHEN_THAT_CHANGES.to_owned(),
        (State::WaitingReady, _) if slots > 0 && attempt.ready() == slots => {
            "Setu reports this to Kueue at once; if it lasts, see that Setu runs".to_owned()
        }
        (State::Yielded, _) if snapshot.refusal.is_some() && !snapshot.front_end.is_request() => {
            "it waits for quota again as soon as that changes".to_owned()
        }
        _ => next_after(journal, snapshot.front_end),
    }
}

/// The next step if there is no obstacle.
pub(super) fn next_after(journal: &Journal, front_end: FrontEnd) -> String {
    let words = match &journal.state {
        State::Validating => "the NodeClaims of all nodes are created at once",
        State::Provisioning => "the nodes come up",
        State::WaitingReady => "once all nodes are ready the check becomes Ready, and the pods start",
        State::RollingBack { then } => after_rollback(*then),
        State::BackingOff { .. } => {
            return format!("attempt {} starts", journal.memory.attempt.saturating_add(1));
        }
        State::Approved { .. } => "Kueue admits the Workload once every check is Ready; then its pods start",
        State::Yielded => match front_end {
            FrontEnd::Workload => {
                "Kueue reserves quota again when its turn comes; the next attempt starts then"
            }
            FrontEnd::ProvisioningRequest => "Kueue makes another request, or rejects the Workload",
            FrontEnd::StandaloneRequest => "nothing by itself: create another request to ask again",
        },
        State::Rejected => "nothing by itself: change the Job, delete it and create it again",
        State::Released => "nothing, unless quota is reserved again",
    };
    words.to_owned()
}

fn otherwise(attempt: &Attempt<'_>) -> Option<Otherwise> {
    let Attempt { journal, snapshot, .. } = attempt;
    let at = |at: Option<Timestamp>, what: &str| at.map(|at| Otherwise { at, what: what.to_owned() });
    let deadline = journal.memory.deadline;
    match &journal.state {
        State::Validating => match snapshot.plan {
            Some(plan) if plan.waits_without_deadline() => None,
            Some(Outcome::Refuse(_)) => None,
            _ => match option_retry::next_round(journal, snapshot) {
                Some(next) if deadline.is_none_or(|deadline| next < deadline) => {
                    at(Some(next), "begins again with the first tier")
                }
                _ => at(deadline, "stops waiting and gives the quota back"),
            },
        },
        State::Provisioning | State::WaitingReady => {
            at(attempt.deadline(), "gives this attempt up, deletes its nodes and tries again")
        }
        State::Approved { nodes: Nodes::Held | Nodes::Replacing } => {
            let limit = attempt.admit_ends();
            at(
                limit.filter(|t| attempt.awaits_admission() && *t > snapshot.now),
                "gives the nodes back if Kueue has not admitted by then",
            )
        }
        _ => None,
    }
}

/// Every slot of the attempt, and every other NodeClaim that still exists.
fn slots(journal: &Journal, snapshot: &Snapshot<'_>, claims: &[Arc<NodeClaim>]) -> Vec<SlotView> {
    let memory = &journal.memory;
    let wanted = if journal.state.wants_claims() { memory.slots.min(SLOTS_LISTED) } else { 0 };
    let by_name: BTreeMap<Option<&str>, &NodeClaim> =
        claims.iter().map(|c| (c.metadata.name.as_deref(), &**c)).collect();
    let mut all: Vec<SlotView> = snapshot
        .claims
        .iter()
        .map(|view| slot(view, by_name.get(&Some(view.name.as_str())).copied()))
        .collect();
    let present: BTreeSet<u32> = all.iter().filter(|s| s.attempt == memory.attempt).map(|s| s.slot).collect();
    all.extend((0..wanted).filter(|slot| !present.contains(slot)).map(|slot| SlotView {
        slot,
        attempt: memory.attempt,
        detail: "its NodeClaim".to_owned(),
        ..SlotView::default()
    }));
    all.sort_by_key(|s| (s.attempt, s.slot));
    all
}

fn slot(view: &ClaimView, claim: Option<&NodeClaim>) -> SlotView {
    let reached = |kind: &str| claim.filter(|c| c.is(kind)).and_then(|c| c.since(kind));
    let label = |key: &str| claim.map_or("", |c| c.label(key)).to_owned();
    let (phase, detail, until) = match &view.health {
        _ if view.deleting => (SlotPhase::Going, "its deletion".to_owned(), None),
        Health::Ready { .. } => (SlotPhase::Ready, String::new(), None),
        Health::Failed(failure) => (SlotPhase::Failed, failure.to_string(), None),
        Health::Coming { waits_for, until } => {
            let phase = match view.phase {
                ClaimPhase::Launching => SlotPhase::Launching,
                ClaimPhase::Registering => SlotPhase::Registering,
                ClaimPhase::Initializing => SlotPhase::Initializing,
                ClaimPhase::Initialized => SlotPhase::Settling,
            };
            (phase, waits_for.to_string(), *until)
        }
    };
    SlotView {
        slot: view.slot,
        attempt: view.attempt,
        phase,
        detail,
        until,
        claim: view.name.clone(),
        node_pool: label(names::NODEPOOL),
        node: claim.and_then(NodeClaim::node_name).unwrap_or_default().to_owned(),
        instance_type: label(names::INSTANCE_TYPE),
        zone: label(names::ZONE),
        created: claim.and_then(|c| c.metadata.creation_timestamp.as_ref()).map(|t| t.0),
        launched: reached("Launched"),
        registered: reached("Registered"),
        initialized: reached("Initialized"),
    }
}
