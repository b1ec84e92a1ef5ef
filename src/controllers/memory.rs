//! What a replica remembers besides the cluster. All of it may be lost at any time.
//!
//! Rule: nothing here decides alone. It fills the gaps of caches, or spreads what one gang learnt to
//! the others; a new leader starts with none of it.

use super::board::Shortage;
use crate::api::{NodeClaim, Workload};
use crate::gang::claims::Obituary;
use crate::names;
use crate::plan::Reservation;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How long a shortage of capacity is remembered, as long as AWS' own cache.
const SHORTAGE: SignedDuration = SignedDuration::from_mins(3);
/// How long what is known of a vanished claim is kept.
const OBITUARY_LIFE: SignedDuration = SignedDuration::from_mins(30);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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

/// What gangs are about to create, and where capacity was short lately. Plans are made and entered
/// under one lock, so that two gangs never take the same room.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<LedgerPages>);

/// The inside of [`Ledger`].
#[derive(Debug, Default)]
pub struct LedgerPages {
    reserved: BTreeMap<String, Vec<Reservation>>,
    short_until: BTreeMap<String, Timestamp>,
}

impl Ledger {
    /// Opens the ledger; nobody else plans until the guard is dropped.
    pub fn open(&self) -> MutexGuard<'_, LedgerPages> {
        lock(&self.0)
    }
}

impl LedgerPages {
    /// What all gangs but this one are about to create.
    pub fn others(&self, gang: &str) -> Vec<Reservation> {
        self.reserved.iter().filter(|(id, _)| *id != gang).flat_map(|(_, r)| r.clone()).collect()
    }

    /// Enters a plan.
    pub fn enter(&mut self, gang: &str, plan: Vec<Reservation>) {
        self.reserved.insert(gang.to_owned(), plan);
    }

    /// Strikes a gang out. Returns whether others may now have their turn.
    pub fn strike(&mut self, gang: &str) -> bool {
        self.reserved.remove(gang).is_some()
    }

    /// Notes that the NodePools of this gang ran out of capacity.
    pub fn note_shortage(&mut self, gang: &str, now: Timestamp) {
        let pools = self.reserved.get(gang).into_iter().flatten().map(|r| r.node_pool.clone());
        for pool in pools.collect::<Vec<_>>() {
            self.short_until.insert(pool, now + SHORTAGE);
        }
    }

    /// NodePools that ran out of capacity lately, and whose turn it is there.
    pub fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        let holds = |pool: &str| {
            self.reserved
                .iter()
                .find(|(_, r)| r.iter().any(|r| r.node_pool == pool))
                .map(|(id, _)| id.clone())
        };
        self.short_until
            .iter()
            .filter(|(_, until)| **until > now)
            .map(|(pool, until)| Shortage { node_pool: pool.clone(), until: *until, turn: holds(pool) })
            .collect()
    }

    /// The gang that has its turn on one of these NodePools while capacity is short there.
    ///
    /// Without turns two gangs that each fit would take half of what is left from each other, again
    /// and again.
    pub fn whose_turn(&self, gang: &str, pools: &[Reservation], now: Timestamp) -> Option<(&str, &str)> {
        pools
            .iter()
            .filter(|p| self.short_until.get(&p.node_pool).is_some_and(|until| *until > now))
            .find_map(|pool| {
                let (other, _) = self
                    .reserved
                    .iter()
                    .find(|(id, r)| *id != gang && r.iter().any(|r| r.node_pool == pool.node_pool))?;
                self.reserved
                    .get(other)?
                    .iter()
                    .find(|r| r.node_pool == pool.node_pool)
                    .map(|r| (other.as_str(), r.node_pool.as_str()))
            })
    }
}

/// What is known of claims that may be gone.
#[derive(Debug, Default)]
pub struct Necrology(Mutex<BTreeMap<String, Record>>);

#[derive(Debug, Default)]
struct Record {
    obituary: Obituary,
    node_pool: String,
    workload: Option<ObjectRef<Workload>>,
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
            record.workload = workload_of(claim);
        });
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

    /// What is known of a claim that is missing or going, and its NodePool.
    pub fn missed(&self, claim: &str, now: Timestamp) -> (Obituary, String) {
        self.with(claim, now, |record| {
            record.obituary.noticed.get_or_insert(now);
            (record.obituary.clone(), record.node_pool.clone())
        })
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

/// The Workload a claim was made for, by its annotation.
pub fn workload_of(claim: &NodeClaim) -> Option<ObjectRef<Workload>> {
    let (namespace, name) = claim.annotation(names::WORKLOAD).split_once('/')?;
    Some(ObjectRef::new(name).within(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(gang: &str) -> Reservation {
        Reservation { gang: gang.into(), node_pool: "gpu".into(), nodes: 4, requests: BTreeMap::default() }
    }

    #[test]
    fn while_capacity_is_short_one_gang_tries_and_the_others_wait() {
        let now = Timestamp::UNIX_EPOCH;
        let ledger = Ledger::default();
        let mut pages = ledger.open();
        pages.enter("a", vec![reservation("a")]);
        assert_eq!(pages.whose_turn("b", &[reservation("b")], now), None);
        pages.note_shortage("a", now);
        assert_eq!(pages.whose_turn("b", &[reservation("b")], now), Some(("a", "gpu")));
        assert_eq!(pages.whose_turn("a", &[reservation("a")], now), None);
        assert_eq!(pages.whose_turn("b", &[reservation("b")], now + SHORTAGE), None);
        assert!(pages.strike("a") && !pages.strike("a"));
        assert_eq!(pages.whose_turn("b", &[reservation("b")], now), None);
    }
}
