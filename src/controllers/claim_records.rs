//! A replica's records of NodeClaims besides its stores.
//!
//! Rule: nothing here decides alone. It fills gaps of the caches, and may be lost at any time: a new leader starts without it.

use crate::api::node_claim::Requirement;
use crate::api::{NodeClaim, Workload};
use crate::cluster::lock;
use crate::gang::identity::gang_of;
use crate::gang::snapshot::loss::GoneClaim;
use crate::gang::snapshot::phase::{has_launch_error, is_unregistered};
use crate::names;
use crate::plan::offering::{Offering, describe_request};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How long the record of a vanished claim is kept.
const RECORD_LIFE: Duration = Duration::from_mins(30);
/// A failed delete that was not retried for this long does not count any more.
const RETRIED: Duration = Duration::from_mins(5);
/// How often expired records are removed.
const CLEANUP: Duration = Duration::from_mins(1);

/// Facts about NodeClaims that the stores may not show: everything about claims that are or may be gone, and about the others what
/// [`ClaimRecord::adds_to_claim`] lists. It is kept apart from the registry, because its keys are NodeClaims: events of claims come
/// before their gang is reconciled, and after it is forgotten.
#[derive(Debug, Default)]
pub struct ClaimRecordStore(Mutex<ClaimRecordMaps>);

#[derive(Debug, Default)]
struct ClaimRecordMaps {
    records: BTreeMap<String, ClaimRecord>,
    /// Names of the claims that took over slots.
    by_slot: BTreeMap<SlotKey, String>,
    /// When expired records were last removed, by a monotonic clock.
    cleaned: Option<Instant>,
}

/// A slot: its gang, attempt and number.
type SlotKey = (String, String, String);

#[derive(Debug, Default)]
struct ClaimRecord {
    gone_claim: GoneClaim,
    node_pool: String,
    requirements: Vec<Requirement>,
    workload: Option<ObjectRef<Workload>>,
    key: Option<SlotKey>,
    /// UID under which we deleted it.
    deleted: Option<String>,
    /// Set if it could not be deleted.
    undeletable: Option<Undeletable>,
    /// When a launch error was first seen; absent while there is none.
    launch_error: Option<Timestamp>,
    /// When it was last seen, alive or being deleted.
    seen: Option<Timestamp>,
    /// When something was last recorded about it, by the monotonic clock.
    touched: Option<Instant>,
}

/// A claim that the API server did not delete, timed by a monotonic clock.
#[derive(Clone, Debug)]
struct Undeletable {
    uid: String,
    since: Instant,
    /// When the last attempt was.
    last: Instant,
}

impl ClaimRecord {
    /// Whether it holds anything that the claim itself does not show.
    fn adds_to_claim(&self) -> bool {
        let Self { gone_claim, deleted, undeletable, launch_error, .. } = self;
        gone_claim.event.is_some() || deleted.is_some() || undeletable.is_some() || launch_error.is_some()
    }
}

impl ClaimRecordStore {
    /// Records a claim as a watch or a write showed it, alive or being deleted.
    pub fn saw(&self, claim: &NodeClaim, now: Timestamp) {
        let (name, key) = (claim.name_any(), claim.taken_over().map(|_| slot_key(claim)));
        let mut records = lock(&self.0);
        let record = records.record(&name);
        record.gone_claim.launched |= claim.is_launched();
        record.gone_claim.unregistered |= is_unregistered(claim);
        claim.label(names::NODEPOOL).clone_into(&mut record.node_pool);
        record.requirements.clone_from(&claim.spec.requirements);
        record.workload = workload_of(claim);
        record.seen = Some(now);
        let first = record.launch_error.unwrap_or(now);
        record.launch_error = has_launch_error(claim).then_some(first);
        let before = std::mem::replace(&mut record.key, key.clone());
        if before != key {
            records.leave(before, &name);
        }
        if let Some(key) = key {
            records.by_slot.insert(key, name);
        }
    }

    /// Records that a claim is alive and in the store. What the store shows need not be kept too.
    pub fn lives(&self, claim: &NodeClaim, now: Timestamp) {
        let mut records = lock(&self.0);
        let name = claim.name_any();
        match records.records.get(&name).map(ClaimRecord::adds_to_claim) {
            None | Some(false) if !has_launch_error(claim) => records.forget(&name),
            _ => {
                drop(records);
                self.saw(claim, now);
            }
        }
    }

    /// When a launch error of this claim was first seen; `None` while there is none.
    pub fn launch_error(&self, claim: &str) -> Option<Timestamp> {
        lock(&self.0).records.get(claim)?.launch_error
    }

    /// Name of the claim that took over this slot of a gang.
    pub fn taken_over(&self, gang: &str, attempt: u32, slot: u32) -> Option<String> {
        let key = (gang.to_owned(), attempt.to_string(), slot.to_string());
        lock(&self.0).by_slot.get(&key).cloned()
    }

    /// Records a Warning event on a claim; returns the Workload to reconcile, if it is known.
    pub fn on_warning_event(&self, claim: &str, reason: &str, message: &str) -> Option<ObjectRef<Workload>> {
        self.with(claim, |record| {
            record.gone_claim.event = Some((reason.to_owned(), message.to_owned()));
            record.workload.clone()
        })
    }

    /// Records that we deleted a claim. Caches may still show it for a while.
    pub fn deleted(&self, claim: &str, uid: &str) {
        self.with(claim, |record| (record.deleted, record.undeletable) = (Some(uid.to_owned()), None));
    }

    /// Records which of these claims the API server did not delete.
    pub fn could_not_delete(&self, claims: &[(String, String)]) {
        let last = Instant::now();
        for (claim, uid) in claims {
            self.with(claim, |record| {
                let goes_on =
                    |before: &Undeletable| before.uid == *uid && last.duration_since(before.last) < RETRIED;
                let since = record.undeletable.take().filter(goes_on).map_or(last, |before| before.since);
                let is_left = record.deleted.as_ref() != Some(uid);
                record.undeletable = is_left.then(|| Undeletable { uid: uid.clone(), since, last });
            });
        }
    }

    /// UIDs of claims that could not be deleted, and since when by a clock that shows `now`.
    pub fn undeletable(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let records = lock(&self.0);
        let all = records.records.values().filter_map(|record| record.undeletable.as_ref());
        all.map(|one| (one.uid.clone(), now.checked_sub(one.since.elapsed()).unwrap_or(now))).collect()
    }

    /// Whether we deleted this claim, by its UID.
    pub fn is_deleted(&self, claim: &NodeClaim) -> bool {
        let records = lock(&self.0);
        let record = records.records.get(&claim.name_any());
        record.is_some_and(|r| r.deleted.is_some() && r.deleted == claim.uid())
    }

    /// Whether anything is known about a claim except that it is missing.
    pub fn knows(&self, claim: &str) -> bool {
        lock(&self.0).records.get(claim).is_some_and(|r| r.workload.is_some() || r.adds_to_claim())
    }

    /// Whether a claim of this name was seen at this time or later, alive or being deleted.
    pub fn saw_since(&self, claim: &str, time: Timestamp) -> bool {
        lock(&self.0).records.get(claim).and_then(|r| r.seen).is_some_and(|seen| seen >= time)
    }

    /// Records that a claim is missing or being deleted. Returns what is known about it, and its NodePool.
    pub fn note_missing(&self, claim: &str, now: Timestamp) -> (GoneClaim, String) {
        self.with(claim, |record| {
            record.gone_claim.noticed.get_or_insert(now);
            let mut gone = GoneClaim { given_up: record.deleted.is_some(), ..record.gone_claim.clone() };
            if gone.names_capacity() {
                gone.asked = describe_request(&record.node_pool, &record.requirements);
            }
            (gone, record.node_pool.clone())
        })
    }

    /// Offerings that a vanished claim may have become. `domain_keys` distinguish topology domains.
    pub fn offerings(&self, claim: &str, domain_keys: &[String]) -> BTreeSet<Offering> {
        let records = lock(&self.0);
        let record = records.records.get(claim).filter(|record| !record.node_pool.is_empty());
        record.map(|r| Offering::among(&r.node_pool, &r.requirements, domain_keys)).unwrap_or_default()
    }

    fn with<T>(&self, claim: &str, act: impl FnOnce(&mut ClaimRecord) -> T) -> T {
        act(lock(&self.0).record(claim))
    }
}

impl ClaimRecordMaps {
    /// The record of a claim, to be changed.
    fn record(&mut self, claim: &str) -> &mut ClaimRecord {
        let now = Instant::now();
        if self.cleaned.is_none_or(|last| now.duration_since(last) > CLEANUP) {
            self.cleaned = Some(now);
            self.records.retain(|_, r| r.touched.is_some_and(|last| now.duration_since(last) < RECORD_LIFE));
            let records = &self.records;
            self.by_slot.retain(|_, name| records.contains_key(name));
        }
        let record = self.records.entry(claim.to_owned()).or_default();
        record.touched = Some(now);
        record
    }

    fn forget(&mut self, claim: &str) {
        let key = self.records.remove(claim).and_then(|record| record.key);
        self.leave(key, claim);
    }

    /// Another claim may have taken over the slot meanwhile.
    fn leave(&mut self, key: Option<SlotKey>, claim: &str) {
        if let Some(key) = key.filter(|key| self.by_slot.get(key).is_some_and(|name| name == claim)) {
            self.by_slot.remove(&key);
        }
    }
}

fn slot_key(claim: &NodeClaim) -> SlotKey {
    let slot = claim.slot().map_or_else(String::new, |slot| slot.to_string());
    (gang_of(claim), claim.label(names::ATTEMPT).to_owned(), slot)
}

/// The Workload a claim was made for, from its annotation.
pub fn workload_of(claim: &NodeClaim) -> Option<ObjectRef<Workload>> {
    workload_named(claim.annotation(names::WORKLOAD))
}

/// The Workload that [`names::WORKLOAD`] names as `namespace/name`.
pub fn workload_named(value: &str) -> Option<ObjectRef<Workload>> {
    let (namespace, name) = value.split_once('/')?;
    Some(ObjectRef::new(name).within(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn claim(name: &str, launched: bool, taken_over: bool) -> NodeClaim {
        let mut claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name, "uid": name,
                "labels": {names::WORKLOAD_UID: "w", names::ATTEMPT: "1"},
                "annotations": {names::WORKLOAD: "team/train", names::CHECK: "c", names::SLOT: "0"},
            },
            "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap();
        let condition = |name: &str| {
            json!({
                "type": name, "status": "True", "reason": name, "message": "",
                "lastTransitionTime": "1970-01-01T00:00:00Z",
            })
        };
        if launched {
            claim.status = serde_json::from_value(json!({"conditions": [condition("Launched")]})).unwrap();
        }
        if taken_over {
            let annotations = claim.metadata.annotations.get_or_insert_default();
            annotations.insert(names::TAKEN_OVER.to_owned(), "1970-01-01T00:00:00Z".to_owned());
        }
        claim
    }

    #[test]
    fn the_record_of_a_living_claim_keeps_only_what_the_claim_does_not_show() {
        let records = ClaimRecordStore::default();
        for name in ["plain", "warned", "deleted"] {
            records.saw(&claim(name, false, false), START);
        }
        records.on_warning_event("warned", "InsufficientCapacity", "none");
        records.deleted("deleted", "deleted");
        for name in ["plain", "warned", "deleted"] {
            records.lives(&claim(name, true, false), START);
        }
        assert_eq!(["plain", "warned", "deleted"].map(|name| records.knows(name)), [false, true, true]);
        assert!(records.is_deleted(&claim("deleted", true, false)));
        assert!(records.note_missing("warned", START).0.launched, "what it became is noted while it lives");
        records.saw(&claim("plain", true, false), START);
        assert!(records.note_missing("plain", START).0.launched, "what goes is seen once more");
        let mut late = claim("late", true, false);
        late.metadata.creation_timestamp = serde_json::from_value(json!("1970-01-01T00:00:00Z")).unwrap();
        late.metadata.deletion_timestamp = serde_json::from_value(json!("1970-01-01T00:15:00Z")).unwrap();
        records.saw(&late, START);
        assert!(records.note_missing("late", START).0.unregistered, "Karpenter waits no longer for a Node");
        assert!(!records.note_missing("plain", START).0.unregistered);
    }

    #[test]
    fn a_launch_error_is_dated_from_its_first_sight_until_it_clears() {
        let at = |second| START + jiff::SignedDuration::from_secs(second);
        let erring = |reason: &str| {
            let mut claim = claim("c", true, false);
            let condition = &mut claim.status.as_mut().unwrap().conditions[0];
            (condition.status, condition.reason) = ("Unknown".to_owned(), reason.to_owned());
            claim
        };
        let records = ClaimRecordStore::default();
        let seen = |claim: &NodeClaim, second| {
            records.lives(claim, at(second));
            records.launch_error("c")
        };
        assert_eq!(seen(&erring("AwaitingReconciliation"), 0), None);
        assert_eq!(seen(&erring("LaunchFailed"), 60), Some(at(60)));
        assert_eq!(seen(&erring("Unauthorized"), 70), Some(at(60)));
        assert_eq!(seen(&claim("c", true, false), 76), None);
        assert_eq!(seen(&erring("LaunchFailed"), 90), Some(at(90)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_claim_that_took_over_a_slot_is_found() {
        let records = ClaimRecordStore::default();
        let (old, new) = (claim("old", true, true), claim("new", true, true));
        let gang = gang_of(&old);
        let found = || records.taken_over(&gang, 1, 0);
        records.saw(&old, START);
        records.saw(&new, START);
        assert_eq!(found().as_deref(), Some("new"));
        records.lives(&old, START);
        assert_eq!(found().as_deref(), Some("new"));
        tokio::time::advance(Duration::from_mins(31)).await;
        records.note_missing("another", START);
        assert_eq!((found(), records.knows("new")), (None, false), "both have become too old");
    }

    #[test]
    fn a_claim_that_is_only_missed_is_not_known() {
        let records = ClaimRecordStore::default();
        records.note_missing("c", START);
        assert!(!records.knows("c") && !records.saw_since("c", START));
        records.on_warning_event("c", "r", "m");
        assert!(records.knows("c"));
    }
}
