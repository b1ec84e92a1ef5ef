//! Forgets gangs: everything this replica keeps about them, in one way for every reason.
//!
//! Rule: all of it is kept in [`OfGangs`] and forgotten here. A reconcile may add to it at any await, but the end of a
//! Workload or of a term clears only what is there by then. So each reconcile ends with [`Context::forget_if_over`],
//! which clears the rest.

use super::board::Board;
use super::context::Context;
use super::leadership::gangs_of;
use super::ledger::Ledger;
use super::memory::{OwnWrites, lock};
use super::meters::Estimates;
use super::policies::{Attempts, Notices};
use super::progress::Progress;
use super::registry::GangRegistry;
use super::waiting::Waiting;
use crate::api::{NodeClaim, Workload};
use crate::gang::Journal;
use crate::gang::identity::gang_of;
use crate::gang::reservation::Ending;
use crate::gang::trace::{Claims, CutOff, Subject, cut_off};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Everything this replica keeps about gangs and their Workloads. Forgetting and counting take it apart whole, so that a
/// field that is not handled there does not compile.
#[derive(Debug, Default)]
pub struct OfGangs {
    /// The gangs that any other field may hold something about.
    pub(super) index: GangIndex,
    /// The policies of their attempts.
    pub(super) attempts: Attempts,
    /// What users and metrics see.
    pub(super) board: Board,
    /// The estimates of when their nodes are ready, as reported.
    pub(super) estimates: Estimates,
    /// How many reconciles of a Workload have failed in a row, by UID.
    pub(super) failures: Mutex<BTreeMap<String, u32>>,
    /// What they take and wait for.
    pub(super) ledger: Ledger,
    /// Notices that Workloads got about their policies.
    pub(super) notices: Notices,
    /// Our writes to Workloads that the cache does not show yet.
    pub(super) own_writes: OwnWrites,
    /// When progress was reported to Workloads.
    pub(super) progress: Progress,
    /// Where each gang was last seen.
    pub(super) registry: GangRegistry,
    /// Since when Workloads wait to be reconciled.
    pub(super) waiting: Waiting,
}

/// The gangs that this replica may keep something about, by the UIDs of their Workloads.
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
    /// This replica no longer leads their shard, or begins a new term.
    TermOver,
}

/// What was known about the gangs of one Workload.
struct Forgotten {
    /// Each gang with where it was last seen.
    last_seen: Vec<(String, Journal, Subject)>,
    /// Whether gangs that waited for them may have their turn.
    freed: bool,
}

impl OfGangs {
    /// Forgets the gangs of one Workload. `claims` names its NodeClaims that still exist.
    fn forget(&self, uid: &str, cause: Cause, claims: impl Fn() -> BTreeSet<String>) -> Forgotten {
        let Self {
            index,
            attempts,
            board,
            estimates,
            failures,
            ledger,
            notices,
            own_writes,
            progress,
            registry,
            // Removed by the reconcile that finds the object gone. Another of its name may wait already.
            waiting: _,
        } = self;
        let gangs = index.take(uid);
        lock(failures).remove(uid);
        board.forget(&gangs);
        if matches!(cause, Cause::Deleted { .. }) {
            // Notices and writes stay valid for any leader.
            notices.forget(uid);
            own_writes.forget(uid);
            progress.forget(uid);
        }
        let mut last_seen = Vec::new();
        for gang in &gangs {
            estimates.forget(gang);
            attempts.forget(gang);
            let last = match cause {
                Cause::Deleted { ran } => registry.forget(gang, ran, claims()),
                Cause::TermOver => registry.forget_term(gang),
            };
            last_seen.extend(last.map(|(journal, subject)| (gang.clone(), journal, subject)));
        }
        let mut pages = ledger.open();
        let freed = gangs.iter().filter(|gang| pages.forget(gang)).count() > 0;
        Forgotten { last_seen, freed }
    }

    /// How many entries there are of each kind. Empty once all gangs are forgotten.
    fn counts(&self) -> BTreeMap<&'static str, usize> {
        let Self {
            index,
            attempts,
            board,
            estimates,
            failures,
            ledger,
            notices,
            own_writes,
            progress,
            registry,
            waiting,
        } = self;
        let counts = [
            ("index", lock(&index.0).len()),
            ("attempts", attempts.count()),
            ("board", board.gangs().len()),
            ("estimates", estimates.count()),
            ("failures", lock(failures).len()),
            ("notices", notices.count()),
            ("own writes", own_writes.count()),
            ("progress", progress.count()),
            ("waiting", waiting.count()),
        ];
        let all = counts.into_iter().chain(registry.counts()).chain(ledger.open().counts());
        all.filter(|(_, count)| *count > 0).collect()
    }
}

impl Context {
    /// Forgets a deleted Workload, and its gangs.
    pub(super) fn forget_deleted(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        self.of_gangs.index.add(&uid, gangs_of(workload));
        let forgotten = self.forget(&uid, Cause::Deleted { ran: workload.is("Admitted") });
        for (gang, journal, subject) in &forgotten.last_seen {
            self.trace_cut_off(gang, journal, subject);
        }
        if forgotten.freed {
            self.next_turn();
        }
    }

    /// Forgets the gangs of all Workloads whose UID fits, because their term is over.
    pub(super) fn forget_term(&self, fits: impl Fn(&str) -> bool) {
        let mut freed = false;
        for uid in self.of_gangs.index.uids(&fits) {
            freed |= self.forget(&uid, Cause::TermOver).freed;
        }
        if freed {
            self.next_turn();
        }
        self.of_gangs.registry.forget_orphaned_where(fits);
        if !self.shards.any_led() || self.shards.count() == 1 {
            // Shortages and creations were recorded for these gangs alone.
            self.of_gangs.ledger.open().forget_gangs();
        }
    }

    /// Forgets a Workload that was just reconciled if it is gone by now, or if this replica no longer acts for it.
    pub fn forget_if_over(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        let known = self.stores.workloads.entry(&ObjectRef::from_obj(workload));
        if known.is_none_or(|known| known.uid != uid) {
            self.forget_deleted(workload);
        } else if !self.acts_for(&uid) {
            self.forget(&uid, Cause::TermOver);
        }
    }

    fn forget(&self, uid: &str, cause: Cause) -> Forgotten {
        let claims = || self.stores.claims.those_of(uid).into_iter().map(|claim| claim.name).collect();
        self.of_gangs.forget(uid, cause, claims)
    }

    /// How many entries about gangs there are of each kind. Empty once all gangs are forgotten.
    pub fn remembered_gangs(&self) -> BTreeMap<&'static str, usize> {
        self.of_gangs.counts()
    }

    /// Sends the spans of a gang whose Workload is gone, with the last state of its NodeClaims.
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
