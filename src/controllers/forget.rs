//! Forgets gangs: everything that this replica remembers of them, in one way for every reason.
//!
//! Rule: a reconcile enters what it learns at any of its awaits, and whoever sees a Workload go or a term end forgets
//! only what was entered by then. So each reconcile ends with [`Context::forget_if_over`], and nothing is left.

use super::context::Context;
use super::memory::lock;
use super::terms::gangs_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::Journal;
use crate::gang::identity::gang_of;
use crate::gang::reservation::Ending;
use crate::gang::trace::{Claims, CutOff, Subject, cut_off};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The gangs of which this replica may remember something, by the UIDs of their Workloads.
#[derive(Debug, Default)]
pub struct GangIndex(Mutex<BTreeMap<String, BTreeSet<String>>>);

impl GangIndex {
    /// Adds the gangs of a Workload that is about to be reconciled.
    pub fn add(&self, uid: &str, gangs: impl Iterator<Item = String>) {
        lock(&self.0).entry(uid.to_owned()).or_default().extend(gangs);
    }

    fn take(&self, uid: &str) -> BTreeSet<String> {
        lock(&self.0).remove(uid).unwrap_or_default()
    }

    fn uids(&self, fits: impl Fn(&str) -> bool) -> Vec<String> {
        lock(&self.0).keys().filter(|uid| fits(uid)).cloned().collect()
    }
}

/// Why gangs are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Their Workload is gone.
    Deleted {
        /// Whether it was admitted.
        ran: bool,
    },
    /// This replica no longer leads their shard, or leads it anew.
    TermOver,
}

/// What was known of the gangs of one Workload.
struct Forgotten {
    /// Each gang with where it was last seen.
    last_seen: Vec<(String, Journal, Subject)>,
    /// Whether others that waited for them may have their turn.
    freed: bool,
}

impl Context {
    /// Forgets a Workload that is gone, and its gangs.
    pub(super) fn forget_deleted(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        self.gang_index.add(&uid, gangs_of(workload));
        self.policies.forget_notices(&uid);
        self.own_writes.forget(&uid);
        self.progress.forget(&uid);
        let forgotten = self.forget_gangs(&uid, Cause::Deleted { ran: workload.is("Admitted") });
        for (gang, journal, subject) in &forgotten.last_seen {
            self.trace_cut_off(gang, journal, subject);
        }
        if forgotten.freed {
            self.next_turn();
        }
    }

    /// Forgets the gangs of all Workloads whose UID fits: their term is over.
    pub(super) fn forget_term(&self, fits: impl Fn(&str) -> bool) {
        let mut freed = false;
        for uid in self.gang_index.uids(&fits) {
            freed |= self.forget_gangs(&uid, Cause::TermOver).freed;
        }
        if freed {
            self.next_turn();
        }
        self.seen.forget_orphaned_where(fits);
        if !self.shards.any_led() || self.shards.count() == 1 {
            // What ran out and what was created was learnt for these gangs alone.
            self.ledger.open().forget_gangs();
        }
    }

    /// Forgets a Workload that was just reconciled if it is gone by now, or if this replica no longer acts for it.
    pub fn forget_if_over(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        let known = self.stores.workloads.glimpse(&ObjectRef::from_obj(workload));
        if known.is_none_or(|known| known.uid != uid) {
            self.forget_deleted(workload);
        } else if !self.acts_for(&uid) {
            self.forget_gangs(&uid, Cause::TermOver);
        }
    }

    /// Forgets the gangs of one Workload.
    fn forget_gangs(&self, uid: &str, cause: Cause) -> Forgotten {
        let gangs = self.gang_index.take(uid);
        lock(&self.failures).remove(uid);
        self.board.forget(&gangs);
        let mut last_seen = Vec::new();
        for gang in &gangs {
            self.estimates.forget(gang);
            self.policies.forget(gang);
            let seen = match cause {
                Cause::Deleted { ran } => self.seen.forget(gang, ran, self.claims_of(uid)),
                Cause::TermOver => self.seen.forget_term(gang),
            };
            last_seen.extend(seen.map(|(journal, subject)| (gang.clone(), journal, subject)));
        }
        let mut pages = self.ledger.open();
        let freed = gangs.iter().filter(|gang| pages.forget(gang)).count() > 0;
        Forgotten { last_seen, freed }
    }

    /// Names of the NodeClaims of a Workload that are there.
    fn claims_of(&self, uid: &str) -> BTreeSet<String> {
        self.stores.claims.those_of(uid).into_iter().map(|claim| claim.name).collect()
    }

    /// How many entries this replica has of gangs, by what they tell: none once all gangs are forgotten.
    pub fn remembered_gangs(&self) -> BTreeMap<&'static str, usize> {
        let counts = [
            ("index", lock(&self.gang_index.0).len()),
            ("board", self.board.gangs().len()),
            ("failures", lock(&self.failures).len()),
            ("estimates", self.estimates.count()),
            ("own writes", self.own_writes.count()),
            ("progress", self.progress.count()),
            ("waiting", self.waiting.count()),
        ];
        let all = counts.into_iter().chain(self.policies.counts()).chain(self.seen.counts());
        all.chain(self.ledger.open().counts()).filter(|(_, count)| *count > 0).collect()
    }

    /// Sends the spans of a gang whose Workload is gone, with what its NodeClaims had come to.
    fn trace_cut_off(&self, gang: &str, journal: &Journal, subject: &Subject) {
        if !self.telemetry.traces.is_on() {
            return;
        }
        let all = self.stores.claims.of(&journal.workload_uid).into_iter();
        let claims: Vec<NodeClaim> =
            all.filter(|claim| gang_of(claim) == gang).map(Arc::unwrap_or_clone).collect();
        let end = CutOff { at: self.now(), why: Ending::Deleted, by: &self.telemetry.instance };
        self.telemetry.traces.send(cut_off(journal, end, Claims::Then(&claims), subject));
    }
}
