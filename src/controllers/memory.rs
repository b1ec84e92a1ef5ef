//! What a replica remembers besides the cluster. All of it may be lost at any time.
//!
//! Rule: nothing here decides alone. It fills the gaps of caches, or spreads what one gang learnt to
//! the others; a new leader starts with none of it.

use crate::api::node_claim::Requirement;
use crate::api::{NodeClaim, Workload};
use crate::gang::claims::Obituary;
use crate::gang::identity::gang_of;
use crate::names;
use crate::plan::offering::Offering;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long what is known of a vanished claim is kept.
const OBITUARY_LIFE: SignedDuration = SignedDuration::from_mins(30);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// resourceVersions of our own writes, so that a cache that lags behind them is not acted on.
#[derive(Debug, Default)]
pub struct OwnWrites(Mutex<BTreeMap<String, u64>>);

impl OwnWrites {
    /// Notes the Workload as a write of ours returned it.
    pub fn note(&self, workload: &Workload) {
        if let (Some(uid), Some(version)) = (workload.uid(), version(workload)) {
            lock(&self.0).insert(uid, version);
        }
    }

    /// Whether this view of the Workload is older than our last write to it.
    pub fn is_behind(&self, workload: &Workload) -> bool {
        let (Some(uid), Some(seen)) = (workload.uid(), version(workload)) else {
            return false;
        };
        let mut writes = lock(&self.0);
        match writes.get(&uid) {
            Some(written) if *written > seen => true,
            Some(_) => {
                writes.remove(&uid);
                false
            }
            None => false,
        }
    }
}

fn version(workload: &Workload) -> Option<u64> {
    workload.resource_version().and_then(|v| v.parse().ok())
}

/// What is known of claims that may be gone.
#[derive(Debug, Default)]
pub struct Necrology(Mutex<BTreeMap<String, Record>>);

#[derive(Debug, Default)]
struct Record {
    obituary: Obituary,
    node_pool: String,
    requirements: Vec<Requirement>,
    workload: Option<ObjectRef<Workload>>,
    /// The place it took over, under the name it had before: gang, attempt and slot.
    place: Option<(String, String, String)>,
    /// UID under which we have deleted it.
    deleted: Option<String>,
    touched: Timestamp,
}

impl Necrology {
    /// Notes a claim as its watch showed it, alive or dying.
    pub fn saw(&self, claim: &NodeClaim, now: Timestamp) {
        self.with(&claim.name_any(), now, |record| {
            record.obituary.launched |= claim.is("Launched");
            claim.label(names::NODEPOOL).clone_into(&mut record.node_pool);
            record.requirements.clone_from(&claim.spec.requirements);
            record.workload = workload_of(claim);
            record.place = claim.taken_over().map(|_| place_of(claim));
        });
    }

    /// Name of the claim that took over this place in a gang.
    pub fn taken_over(&self, gang: &str, attempt: u32, slot: u32) -> Option<String> {
        let place = Some((gang.to_owned(), attempt.to_string(), slot.to_string()));
        lock(&self.0).iter().find(|(_, record)| record.place == place).map(|(name, _)| name.clone())
    }

    /// Notes a Warning event on a claim; returns the Workload to look at, if it is known.
    pub fn heard(
        &self,
        claim: &str,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) -> Option<ObjectRef<Workload>> {
        self.with(claim, now, |record| {
            record.obituary.event = Some((reason.to_owned(), message.to_owned()));
            record.workload.clone()
        })
    }

    /// Notes that we have deleted a claim, which caches may still show for a while.
    pub fn deleted(&self, claim: &str, uid: &str, now: Timestamp) {
        self.with(claim, now, |record| record.deleted = Some(uid.to_owned()));
    }

    /// Whether we have deleted this very claim.
    pub fn is_deleted(&self, claim: &NodeClaim) -> bool {
        let records = lock(&self.0);
        records.get(&claim.name_any()).is_some_and(|r| r.deleted.is_some() && r.deleted == claim.uid())
    }

    /// Whether anything is known of a claim.
    pub fn knows(&self, claim: &str) -> bool {
        lock(&self.0).contains_key(claim)
    }

    /// What is known of a claim that is missing or going, and its NodePool.
    pub fn missed(&self, claim: &str, now: Timestamp) -> (Obituary, String) {
        self.with(claim, now, |record| {
            record.obituary.noticed.get_or_insert(now);
            (record.obituary.clone(), record.node_pool.clone())
        })
    }

    /// What a claim that is gone might have become.
    pub fn offerings(&self, claim: &str) -> BTreeSet<Offering> {
        let records = lock(&self.0);
        records.get(claim).map(|r| Offering::among(&r.node_pool, &r.requirements)).unwrap_or_default()
    }

    fn with<T>(&self, claim: &str, now: Timestamp, act: impl FnOnce(&mut Record) -> T) -> T {
        let mut records = lock(&self.0);
        if records.len() > 1_000 && records.len().is_multiple_of(500) {
            records.retain(|_, r| r.touched + OBITUARY_LIFE > now);
        }
        let record = records.entry(claim.to_owned()).or_default();
        record.touched = now;
        act(record)
    }
}

fn place_of(claim: &NodeClaim) -> (String, String, String) {
    (gang_of(claim), claim.label(names::ATTEMPT).to_owned(), claim.label(names::SLOT).to_owned())
}

/// The Workload a claim was made for, by its annotation.
pub fn workload_of(claim: &NodeClaim) -> Option<ObjectRef<Workload>> {
    let (namespace, name) = claim.annotation(names::WORKLOAD).split_once('/')?;
    Some(ObjectRef::new(name).within(namespace))
}
