//! What a replica remembers besides the cluster. All of it may be lost at any time.
//!
//! Rule: nothing here decides alone. It fills the gaps of caches, or spreads what one gang learnt to
//! the others; a new leader starts with none of it.

use crate::api::node_claim::Requirement;
use crate::api::{NodeClaim, Workload};
pub(super) use crate::cluster::lock;
use crate::gang::identity::gang_of;
use crate::gang::loss::Tombstone;
use crate::gang::phase::has_launch_error;
use crate::names;
use crate::plan::offering::Offering;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// How long what is known of a vanished claim is kept.
const TOMBSTONE_LIFE: Duration = Duration::from_mins(30);
/// A delete that was not tried again for so long says nothing of the next one.
const RETRIED: Duration = Duration::from_mins(5);
/// How often what was kept for longer is searched for.
const WEEDING: Duration = Duration::from_mins(1);

/// How long a cache may lag behind a write of ours before the Workload is read by its name. A watch takes milliseconds;
/// one that is silent takes a minute until it is noticed, and a gang must not stand still for that long.
const CACHE_LAG: Duration = Duration::from_secs(3);

/// resourceVersions of our own writes, and of those of others that refused ours, so that a cache that lags behind them is
/// not acted on.
#[derive(Debug, Default)]
pub struct OwnWrites(Mutex<BTreeMap<String, OwnWrite>>);

#[derive(Clone, Copy, Debug)]
struct OwnWrite {
    version: u64,
    /// When it was written, or the Workload was read last because the cache did not show it.
    since: Instant,
}

/// How a cached Workload compares with our last write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLag {
    /// It shows that write.
    Current,
    /// It does not show it yet.
    Behind,
    /// It has not shown it for so long that the Workload is to be read by its name, once per [`CACHE_LAG`].
    Overdue,
}

impl OwnWrites {
    /// Notes the Workload as a write of ours returned it.
    pub fn note(&self, workload: &Workload) {
        if let (Some(uid), Some(version)) = (workload.uid(), version(workload)) {
            lock(&self.0).insert(uid, OwnWrite { version, since: Instant::now() });
        }
    }

    /// Notes that a write to the Workload was refused since somebody else wrote it: unless the cache shows that by the next
    /// look, the Workload is read by its name. Without that the same would be tried in vain for as long as the watch is
    /// silent.
    pub fn refused(&self, workload: &Workload) {
        let (Some(uid), Some(seen)) = (workload.uid(), version(workload)) else { return };
        let overdue = Instant::now().checked_sub(CACHE_LAG).unwrap_or_else(Instant::now);
        let mut writes = lock(&self.0);
        let known = writes.get(&uid).map_or(seen, |written| written.version.max(seen));
        writes.insert(uid, OwnWrite { version: known.saturating_add(1), since: overdue });
    }

    /// Notes the Workload as it was read by its name: the cache is to show nothing older, and nothing newer is known.
    pub fn was_read(&self, workload: &Workload) {
        if let (Some(uid), Some(version)) = (workload.uid(), version(workload))
            && let Some(written) = lock(&self.0).get_mut(&uid)
        {
            written.version = version;
        }
    }

    /// How this view of the Workload compares with our last write to it.
    pub fn cache_lag(&self, workload: &Workload) -> CacheLag {
        let (Some(uid), Some(seen)) = (workload.uid(), version(workload)) else {
            return CacheLag::Current;
        };
        let mut writes = lock(&self.0);
        match writes.get_mut(&uid) {
            Some(written) if written.version > seen && written.since.elapsed() < CACHE_LAG => {
                CacheLag::Behind
            }
            Some(written) if written.version > seen => {
                written.since = Instant::now();
                CacheLag::Overdue
            }
            Some(_) => {
                writes.remove(&uid);
                CacheLag::Current
            }
            None => CacheLag::Current,
        }
    }

    /// How many writes are waited for.
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }

    /// Forgets a Workload that is gone.
    pub fn forget(&self, uid: &str) {
        lock(&self.0).remove(uid);
    }
}

fn version(workload: &Workload) -> Option<u64> {
    workload.resource_version().and_then(|v| v.parse().ok())
}

/// What is known of claims that are gone, or may be before the stores show it.
#[derive(Debug, Default)]
pub struct ClaimTombstones(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    records: BTreeMap<String, Record>,
    /// Names of the claims that took places over.
    places: BTreeMap<Place, String>,
    /// When what is too old was last searched for, on a clock that nobody can set.
    weeded: Option<Instant>,
}

/// A place under the name it had before it was taken over: gang, attempt and slot.
type Place = (String, String, String);

#[derive(Debug, Default)]
struct Record {
    tombstone: Tombstone,
    node_pool: String,
    requirements: Vec<Requirement>,
    workload: Option<ObjectRef<Workload>>,
    place: Option<Place>,
    /// UID under which we have deleted it.
    deleted: Option<String>,
    /// Under which UID it could not be deleted.
    undeletable: Option<Undeletable>,
    /// When an error of its launch was first seen; absent while there is none.
    launch_error: Option<Timestamp>,
    /// When it was last seen, alive or dying.
    seen: Option<Timestamp>,
    /// When something was last noted of it, on that clock.
    touched: Option<Instant>,
}

/// A claim that the API server did not delete, on a clock that nobody can set.
#[derive(Clone, Debug)]
struct Undeletable {
    uid: String,
    since: Instant,
    /// When that was tried last.
    last: Instant,
}

impl Record {
    /// Whether it says anything that the claim itself does not.
    fn says_anything(&self) -> bool {
        self.tombstone.event.is_some()
            || self.deleted.is_some()
            || self.undeletable.is_some()
            || self.launch_error.is_some()
    }
}

impl ClaimTombstones {
    /// Notes a claim as its watch or a write showed it, alive or dying.
    pub fn saw(&self, claim: &NodeClaim, now: Timestamp) {
        let (name, place) = (claim.name_any(), claim.taken_over().map(|_| place_of(claim)));
        let mut book = lock(&self.0);
        let record = book.record(&name);
        record.tombstone.launched |= claim.is("Launched");
        claim.label(names::NODEPOOL).clone_into(&mut record.node_pool);
        record.requirements.clone_from(&claim.spec.requirements);
        record.workload = workload_of(claim);
        record.seen = Some(now);
        let first = record.launch_error.unwrap_or(now);
        record.launch_error = has_launch_error(claim).then_some(first);
        let before = std::mem::replace(&mut record.place, place.clone());
        if before != place {
            book.leave(before, &name);
        }
        if let Some(place) = place {
            book.places.insert(place, name);
        }
    }

    /// Notes that a claim is alive, and in the store: what that shows of it need not be remembered too.
    pub fn lives(&self, claim: &NodeClaim, now: Timestamp) {
        let mut book = lock(&self.0);
        let name = claim.name_any();
        match book.records.get(&name).map(Record::says_anything) {
            None | Some(false) if !has_launch_error(claim) => book.forget(&name),
            _ => {
                drop(book);
                self.saw(claim, now);
            }
        }
    }

    /// When an error of this claim's launch was first seen; `None` while there is none.
    pub fn launch_error(&self, claim: &str) -> Option<Timestamp> {
        lock(&self.0).records.get(claim)?.launch_error
    }

    /// Name of the claim that took over this place in a gang.
    pub fn taken_over(&self, gang: &str, attempt: u32, slot: u32) -> Option<String> {
        let place = (gang.to_owned(), attempt.to_string(), slot.to_string());
        lock(&self.0).places.get(&place).cloned()
    }

    /// Notes a Warning event on a claim; returns the Workload to reconcile, if it is known.
    pub fn on_warning_event(&self, claim: &str, reason: &str, message: &str) -> Option<ObjectRef<Workload>> {
        self.with(claim, |record| {
            record.tombstone.event = Some((reason.to_owned(), message.to_owned()));
            record.workload.clone()
        })
    }

    /// Notes that we have deleted a claim, which caches may still show for a while.
    pub fn deleted(&self, claim: &str, uid: &str) {
        self.with(claim, |record| (record.deleted, record.undeletable) = (Some(uid.to_owned()), None));
    }

    /// Notes that the API server did not delete these claims now, but for those that it did.
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

    /// UIDs of the claims that could not be deleted, and since when by a clock that shows `now`.
    pub fn undeletable(&self, now: Timestamp) -> BTreeMap<String, Timestamp> {
        let book = lock(&self.0);
        let all = book.records.values().filter_map(|record| record.undeletable.as_ref());
        all.map(|one| (one.uid.clone(), now.checked_sub(one.since.elapsed()).unwrap_or(now))).collect()
    }

    /// Whether we have deleted this very claim.
    pub fn is_deleted(&self, claim: &NodeClaim) -> bool {
        let book = lock(&self.0);
        let record = book.records.get(&claim.name_any());
        record.is_some_and(|r| r.deleted.is_some() && r.deleted == claim.uid())
    }

    /// Whether anything is known of a claim but that it is missed.
    pub fn knows(&self, claim: &str) -> bool {
        lock(&self.0).records.get(claim).is_some_and(|r| r.workload.is_some() || r.says_anything())
    }

    /// Whether a claim of this name was seen at this time or later, alive or dying.
    pub fn saw_since(&self, claim: &str, time: Timestamp) -> bool {
        lock(&self.0).records.get(claim).and_then(|r| r.seen).is_some_and(|seen| seen >= time)
    }

    /// What is known of a claim that is missing or going, and its NodePool.
    pub fn missed(&self, claim: &str, now: Timestamp) -> (Tombstone, String) {
        self.with(claim, |record| {
            record.tombstone.noticed.get_or_insert(now);
            let given_up = record.deleted.is_some();
            (Tombstone { given_up, ..record.tombstone.clone() }, record.node_pool.clone())
        })
    }

    /// What a claim that is gone might have become, with places told apart by these labels.
    pub fn offerings(&self, claim: &str, place_keys: &[String]) -> BTreeSet<Offering> {
        let book = lock(&self.0);
        let record = book.records.get(claim);
        record.map(|r| Offering::among(&r.node_pool, &r.requirements, place_keys)).unwrap_or_default()
    }

    fn with<T>(&self, claim: &str, act: impl FnOnce(&mut Record) -> T) -> T {
        act(lock(&self.0).record(claim))
    }
}

impl Book {
    /// What is known of a claim, to be added to.
    fn record(&mut self, claim: &str) -> &mut Record {
        let now = Instant::now();
        if self.weeded.is_none_or(|last| now.duration_since(last) > WEEDING) {
            self.weeded = Some(now);
            self.records
                .retain(|_, r| r.touched.is_some_and(|last| now.duration_since(last) < TOMBSTONE_LIFE));
            let records = &self.records;
            self.places.retain(|_, name| records.contains_key(name));
        }
        let record = self.records.entry(claim.to_owned()).or_default();
        record.touched = Some(now);
        record
    }

    fn forget(&mut self, claim: &str) {
        let place = self.records.remove(claim).and_then(|record| record.place);
        self.leave(place, claim);
    }

    /// Another claim may have taken the place over meanwhile.
    fn leave(&mut self, place: Option<Place>, claim: &str) {
        if let Some(place) = place.filter(|place| self.places.get(place).is_some_and(|name| name == claim)) {
            self.places.remove(&place);
        }
    }
}

fn place_of(claim: &NodeClaim) -> Place {
    let slot = claim.slot().map_or_else(String::new, |slot| slot.to_string());
    (gang_of(claim), claim.label(names::ATTEMPT).to_owned(), slot)
}

/// The Workload a claim was made for, by its annotation.
pub fn workload_of(claim: &NodeClaim) -> Option<ObjectRef<Workload>> {
    workload_named(claim.annotation(names::WORKLOAD))
}

/// Namespace, name and UID of the Workload that owns the ProvisioningRequest that a claim was made for, if it was made for one.
pub fn owner_of(claim: &NodeClaim) -> Option<(&str, &str, &str)> {
    let mut parts = claim.annotation(names::OWNER).split('/');
    Some((parts.next()?, parts.next()?, parts.next()?))
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

    #[tokio::test(start_paused = true)]
    async fn a_cache_that_lags_for_three_seconds_is_overdue_once_per_three_seconds() {
        let view = |version: &str| -> Workload {
            let metadata = json!({"name": "w", "namespace": "n", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
        };
        let writes = OwnWrites::default();
        writes.note(&view("7"));
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.push(writes.cache_lag(&view("6")) == CacheLag::Overdue);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(seen, [false, false, false, true, false, false, true, false]);
        assert_eq!(writes.cache_lag(&view("7")), CacheLag::Current);
        assert_eq!(writes.cache_lag(&view("6")), CacheLag::Current, "what was shown is not waited for again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cache_that_does_not_show_why_a_write_was_refused_is_overdue_at_once_until_it_shows_what_was_read()
     {
        tokio::time::advance(Duration::from_mins(1)).await;
        let view = |version: &str| -> Workload {
            let metadata = json!({"name": "w", "namespace": "n", "uid": "u", "resourceVersion": version});
            serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()
        };
        let writes = OwnWrites::default();
        writes.was_read(&view("9"));
        assert_eq!(writes.count(), 0, "nothing is waited for");
        writes.refused(&view("6"));
        assert_eq!(writes.cache_lag(&view("6")), CacheLag::Overdue);
        writes.was_read(&view("9"));
        assert_eq!(writes.cache_lag(&view("8")), CacheLag::Behind);
        assert_eq!(writes.cache_lag(&view("9")), CacheLag::Current);
        writes.note(&view("7"));
        writes.refused(&view("6"));
        assert_eq!(writes.cache_lag(&view("7")), CacheLag::Overdue, "it was refused after our own write");
        writes.was_read(&view("7"));
        assert_eq!(writes.cache_lag(&view("7")), CacheLag::Current, "nobody has written it after all");
    }

    #[test]
    fn nothing_is_remembered_of_a_claim_that_lives_but_what_it_does_not_say_itself() {
        let tombstones = ClaimTombstones::default();
        for name in ["plain", "heard", "deleted"] {
            tombstones.saw(&claim(name, false, false), START);
        }
        tombstones.on_warning_event("heard", "InsufficientCapacity", "none");
        tombstones.deleted("deleted", "deleted");
        for name in ["plain", "heard", "deleted"] {
            tombstones.lives(&claim(name, true, false), START);
        }
        assert_eq!(["plain", "heard", "deleted"].map(|name| tombstones.knows(name)), [false, true, true]);
        assert!(tombstones.is_deleted(&claim("deleted", true, false)));
        assert!(tombstones.missed("heard", START).0.launched, "what it became is noted while it lives");
        tombstones.saw(&claim("plain", true, false), START);
        assert!(tombstones.missed("plain", START).0.launched, "what goes is seen once more");
    }

    #[test]
    fn a_launch_error_is_remembered_from_its_first_sight_until_it_is_over() {
        let at = |second| START + jiff::SignedDuration::from_secs(second);
        let erring = |reason: &str| {
            let mut claim = claim("c", true, false);
            let condition = &mut claim.status.as_mut().unwrap().conditions[0];
            (condition.status, condition.reason) = ("Unknown".to_owned(), reason.to_owned());
            claim
        };
        let tombstones = ClaimTombstones::default();
        let seen = |claim: &NodeClaim, second| {
            tombstones.lives(claim, at(second));
            tombstones.launch_error("c")
        };
        assert_eq!(seen(&erring("AwaitingReconciliation"), 0), None);
        assert_eq!(seen(&erring("LaunchFailed"), 60), Some(at(60)));
        assert_eq!(seen(&erring("Unauthorized"), 70), Some(at(60)));
        assert_eq!(seen(&claim("c", true, false), 76), None);
        assert_eq!(seen(&erring("LaunchFailed"), 90), Some(at(90)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_found_by_whoever_took_it_over_last_until_that_is_forgotten() {
        let tombstones = ClaimTombstones::default();
        let (old, new) = (claim("old", true, true), claim("new", true, true));
        let gang = gang_of(&old);
        let found = || tombstones.taken_over(&gang, 1, 0);
        tombstones.saw(&old, START);
        tombstones.saw(&new, START);
        assert_eq!(found().as_deref(), Some("new"));
        tombstones.lives(&old, START);
        assert_eq!(found().as_deref(), Some("new"));
        tokio::time::advance(Duration::from_mins(31)).await;
        tombstones.missed("another", START);
        assert_eq!((found(), tombstones.knows("new")), (None, false), "both have become too old");
    }

    #[test]
    fn a_claim_that_is_only_missed_is_not_known() {
        let tombstones = ClaimTombstones::default();
        tombstones.missed("c", START);
        assert!(!tombstones.knows("c") && !tombstones.saw_since("c", START));
        tombstones.on_warning_event("c", "r", "m");
        assert!(tombstones.knows("c"));
    }
}
