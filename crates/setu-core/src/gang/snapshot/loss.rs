//! Losses of NodeClaims that are gone or being deleted.
//!
//! Rule: a deleted claim leaves no status, so the cause is derived from what watches recorded. [`ClaimRecords`] supplies
//! that.

use super::claims::ClaimView;
use super::phase::ClaimPhase;
use crate::api::{NodePool, condition};
use crate::gang::identity::GangIdentity;
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::gang::statechart::journal::{Journal, Memory};
use crate::gang::statechart::state::{Nodes, State};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// How long to wait for another watch to deliver the cause of a vanished claim. Karpenter writes its Events one after the other, so
/// in a busy cluster they come ten seconds after the deletion and more.
const GONE_CLAIM_GRACE: SignedDuration = SignedDuration::from_secs(30);
/// Age at which Karpenter itself gives up a launch.
const KARPENTER_LAUNCH_LIMIT: SignedDuration = SignedDuration::from_mins(5);
/// How many replacements back to search for the last claim of a slot.
const REPLACEMENTS_SEARCHED: usize = 32;

/// Records of watches about a claim that is gone or being deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GoneClaim {
    /// Reason and message of the last Warning event on it.
    pub event: Option<(String, String)>,
    /// Its request in words, for users, if the event names a lack of capacity; empty if that is not known.
    pub asked: String,
    /// Whether it had been launched when last seen.
    pub launched: bool,
    /// Whether it was deleted when Karpenter gives up claims whose Node has not registered.
    pub unregistered: bool,
    /// Whether Setu has deleted it.
    pub given_up: bool,
    /// When this replica first noticed its loss.
    pub noticed: Option<Timestamp>,
}

/// The loss of a slot whose claim is missing, or is being deleted by something else.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// The cause is known.
    Failed(Failure),
    /// The cause is known, but the claim is from before the attempt's last replacement: it says nothing about the current tier.
    Superseded(Failure),
    /// The cause may still arrive until this time.
    Unclear(Timestamp),
}

impl Loss {
    /// The loss of a claim that is missing, or is being deleted although its gang wants it.
    ///
    /// A deleted claim leaves no status, and other watches may deliver the cause later.
    pub fn of(
        slot: u32,
        claim: Option<&ClaimView>,
        gone_claim: &GoneClaim,
        pool_fault: Option<&Failure>,
        now: Timestamp,
    ) -> Self {
        if let Some(failure) = cause(slot, claim, gone_claim, pool_fault, now) {
            return Self::Failed(failure);
        }
        let noticed = gone_claim.noticed.unwrap_or(now);
        if noticed + GONE_CLAIM_GRACE > now {
            return Self::Unclear(noticed + GONE_CLAIM_GRACE);
        }
        let message = format!(
            "the NodeClaim of slot {slot} was deleted before launch and no Event explains it; Setu assumes a lack of \
             capacity"
        );
        Self::Failed(Failure::new(FailureClass::Unknown, message))
    }

    /// Why the claim was lost, if that is known by now.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) | Self::Superseded(failure) => Some(failure),
            Self::Unclear(_) => None,
        }
    }

    /// This loss, of a claim from before the attempt's last replacement.
    #[must_use]
    pub fn superseded(self) -> Self {
        match self {
            Self::Failed(failure) => Self::Superseded(failure),
            other => other,
        }
    }
}

/// A replica's records of NodeClaims that it no longer sees, by name.
pub trait ClaimRecords {
    /// Brings the record of a claim up to date with the caches: a watch may not have shown its deletion yet.
    fn refresh(&self, name: &str);
    /// Whether a claim with this name was seen at `since` or later.
    fn saw_since(&self, name: &str, since: Timestamp) -> bool;
    /// Whether anything is known about a claim with this name.
    fn knows(&self, name: &str) -> bool;
    /// The claim that was taken over for a slot of an attempt, if one was.
    fn taken_over(&self, attempt: u32, slot: u32) -> Option<String>;
    /// Records that a claim is missing. Returns what is known about it, and what is wrong with its NodePool.
    fn note_missing(&self, name: &str, now: Timestamp) -> (GoneClaim, Option<Failure>);
}

/// The loss of each slot whose claim is missing, or is being deleted although the gang wants it. While claims are being created,
/// slots that are not known to have had one are left out.
pub fn losses(
    journal: &Journal,
    identity: &GangIdentity,
    claims: &[ClaimView],
    records: &impl ClaimRecords,
    now: Timestamp,
) -> BTreeMap<u32, Loss> {
    let memory = &journal.memory;
    if !journal.state.wants_claims() {
        return BTreeMap::new();
    }
    let creating = journal.state.creates_claims();
    let mut by_slot: BTreeMap<u32, &ClaimView> = BTreeMap::new();
    for claim in claims.iter().filter(|c| c.attempt == memory.attempt) {
        let rank = |c: &ClaimView| (!c.deleting, c.generation);
        let of_slot = by_slot.entry(claim.slot).or_insert(claim);
        if rank(claim) > rank(of_slot) {
            *of_slot = claim;
        }
    }
    let lost = |slot: u32| {
        let claim = by_slot.get(&slot).copied();
        if claim.is_some_and(|c| !c.deleting) {
            return None;
        }
        let claim = claim.filter(|c| shows_loss(journal, c));
        let had = || {
            let name = identity.replacement_name(memory.attempt, memory.generation, slot);
            records.refresh(&name);
            records.saw_since(&name, journal.entered_at)
        };
        if creating && claim.is_none() && !had() {
            return None;
        }
        let last = || last_known(memory, identity, records, slot);
        let (generation, name) = claim.map_or_else(last, |c| (c.generation, c.name.clone()));
        records.refresh(&name);
        let (mut gone_claim, pool_fault) = records.note_missing(&name, now);
        // Each node of a gang that may run was ready once. A new leader has no record of the claim.
        gone_claim.launched |= journal.state == State::Approved { nodes: Nodes::Held };
        let loss = Loss::of(slot, claim, &gone_claim, pool_fault.as_ref(), now);
        Some((slot, if generation < memory.generation { loss.superseded() } else { loss }))
    };
    (0..memory.slots).filter_map(lost).collect()
}

/// Whether a claim that is being deleted shows what its slot has lost. While claims are created, only one of the latest
/// generation does.
pub(super) fn shows_loss(journal: &Journal, claim: &ClaimView) -> bool {
    !journal.state.creates_claims() || claim.generation >= journal.memory.generation
}

/// Generation and name of the last known claim of a slot; otherwise those under which its loss is recorded.
pub fn last_known(
    memory: &Memory,
    identity: &GangIdentity,
    records: &impl ClaimRecords,
    slot: u32,
) -> (u32, String) {
    let name = |generation| identity.replacement_name(memory.attempt, generation, slot);
    let recent = (0..=memory.generation).rev().take(REPLACEMENTS_SEARCHED);
    let known = recent.map(|g| (g, name(g))).find(|(_, name)| records.knows(name));
    known.unwrap_or_else(|| {
        let taken_over = records.taken_over(memory.attempt, slot);
        (memory.generation, taken_over.unwrap_or_else(|| name(memory.generation)))
    })
}

impl GoneClaim {
    /// Whether Karpenter's event names a lack of capacity.
    pub fn names_capacity(&self) -> bool {
        self.event.as_ref().is_some_and(|(reason, _)| reason.starts_with("InsufficientCapacity"))
    }
}

/// The fault of a NodePool's NodeClass; `None` unless the NodePool's condition `NodeClassReady` is False.
pub fn pool_fault(pool: &NodePool) -> Option<Failure> {
    let ready = condition::find(pool.conditions(), "NodeClassReady").filter(|c| c.status == "False")?;
    let class = match ready.reason.as_str() {
        "NodeClassNotFound" => FailureClass::NodeClassMissing,
        _ => FailureClass::NodeClassNotReady,
    };
    // The message may come from a cloud; users read it on the NodePool.
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    Some(Failure::new(class, format!("NodePool {name}: {}", ready.reason)))
}

/// Why a claim is missing or being deleted, if that is known: from Karpenter's event, from how far the claim had come, or
/// from the state of its NodePool.
fn cause(
    slot: u32,
    claim: Option<&ClaimView>,
    gone_claim: &GoneClaim,
    pool_fault: Option<&Failure>,
    now: Timestamp,
) -> Option<Failure> {
    let failed = |class, message: String| Some(Failure::new(class, message));
    if gone_claim.names_capacity() {
        // Karpenter publishes the same event if the NodeClass is missing; the NodePool shows the difference.
        let missing = pool_fault.filter(|fault| fault.reason == FailureClass::NodeClassMissing).cloned();
        let asked =
            if gone_claim.asked.is_empty() { String::new() } else { format!(": {}", gone_claim.asked) };
        let message = || format!("the provider has no capacity for slot {slot} now{asked}");
        return missing.or_else(|| failed(FailureClass::InsufficientCapacity, message()));
    }
    let has_reached = |phase: ClaimPhase| claim.is_some_and(|c| c.phase >= phase);
    let launched = gone_claim.launched || has_reached(ClaimPhase::Registering);
    if gone_claim.given_up {
        return Some(given_up(slot, launched, has_reached(ClaimPhase::Initializing)));
    }
    if gone_claim.unregistered || claim.is_some_and(|claim| claim.unregistered) {
        let message = format!("Karpenter gave up slot {slot}, whose node did not register in time");
        return failed(FailureClass::RegistrationTimeout, message);
    }
    if launched {
        // Karpenter replaces a node if its reboot fails.
        return if claim.is_some_and(|claim| !claim.disrupted) {
            let message = format!("the NodeClaim of slot {slot} was deleted by somebody else");
            failed(FailureClass::DeletedByOther, message)
        } else {
            failed(FailureClass::Interrupted, format!("the node of slot {slot} went away"))
        };
    }
    if claim.and_then(|c| c.created).is_some_and(|c| c + KARPENTER_LAUNCH_LIMIT <= now) {
        return failed(FailureClass::LaunchTimeout, format!("Karpenter gave up launching slot {slot}"));
    }
    pool_fault.cloned()
}

/// The failure of a claim that Setu deleted because it did not come up in time, by how far it had come.
fn given_up(slot: u32, launched: bool, registered: bool) -> Failure {
    let class = match (launched, registered) {
        (_, true) => FailureClass::InitializationTimeout,
        (true, false) => FailureClass::RegistrationTimeout,
        (false, false) => FailureClass::LaunchTimeout,
    };
    Failure::new(class, format!("Setu gave up the NodeClaim of slot {slot}, which did not come up in time"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeClaim;
    use crate::policy::Policy;
    use serde_json::json;

    #[test]
    fn a_node_that_karpenter_gave_up_unregistered_is_no_lost_node() {
        let loss = |conditions: &[&str], age: i64| {
            let condition = |kind: &&str| json!({"type": kind, "status": "True", "reason": "", "message": "", "lastTransitionTime": "1970-01-01T00:00:01Z"});
            let deleted = Timestamp::from_second(age).unwrap();
            let claim: NodeClaim = serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
                "metadata": {
                    "name": "c", "creationTimestamp": "1970-01-01T00:00:00Z", "deletionTimestamp": deleted.to_string(),
                },
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
                "status": {"conditions": conditions.iter().map(condition).collect::<Vec<_>>()},
            }))
            .unwrap();
            let now = Timestamp::from_second(age + 60).unwrap();
            let view = ClaimView::of(&claim, None, &Policy::default(), now, None);
            let Loss::Failed(failure) = Loss::of(0, Some(&view), &GoneClaim::default(), None, now) else {
                panic!("unclear")
            };
            failure.reason
        };
        assert_eq!(loss(&["Launched"], 899), FailureClass::DeletedByOther);
        assert_eq!(loss(&["Launched"], 900), FailureClass::RegistrationTimeout);
        assert_eq!(loss(&["Launched", "Registered"], 900), FailureClass::DeletedByOther);
        let gone = GoneClaim { launched: true, unregistered: true, ..GoneClaim::default() };
        let Loss::Failed(failure) = Loss::of(0, None, &gone, None, Timestamp::UNIX_EPOCH) else {
            panic!("unclear")
        };
        assert_eq!(failure.reason, FailureClass::RegistrationTimeout);
        assert_eq!(failure.message, "Karpenter gave up slot 0, whose node did not register in time");
    }
}
