//! Forgets gangs: everything that this replica remembers of them, in one way for every reason.
//!
//! Rule: all of it lies in [`OfGangs`], and whatever lies there is forgotten here. A reconcile enters what it learns at any of its awaits, and whoever sees
//! a Workload go or a term end forgets only what was entered by then. So each reconcile ends with
//! [`Context::forget_if_over`], and nothing is left.

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

/// All that this replica remembers of gangs and their Workloads. It is taken apart whole wherever it is forgotten or
/// counted: a field that is not dealt with there does not compile.
#[derive(Debug, Default)]
pub struct OfGangs {
    /// Whose gangs something is remembered of in any of the others.
    pub(super) index: GangIndex,
    /// The policies that their attempts are run by.
    pub(super) attempts: Attempts,
    /// What people and metrics see.
    pub(super) board: Board,
    /// What they were told of when their nodes are ready.
    pub(super) estimates: Estimates,
    /// How many reconciles of a Workload have failed in a row, by UID.
    pub(super) failures: Mutex<BTreeMap<String, u32>>,
    /// What they take and wait for.
    pub(super) ledger: Ledger,
    /// What Workloads were told of their policies.
    pub(super) notices: Notices,
    /// What was written to Workloads and is not in the cache yet.
    pub(super) own_writes: OwnWrites,
    /// When Workloads were told of progress.
    pub(super) progress: Progress,
    /// Where they were seen last.
    pub(super) registry: GangRegistry,
    /// Since when Workloads wait to be reconciled.
    pub(super) waiting: Waiting,
}

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

impl OfGangs {
    /// Forgets the gangs of one Workload, whose NodeClaims `claims` are there.
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
            // Ends with the reconcile of what is not there any more. One of its name may wait already.
            waiting: _,
        } = self;
        let gangs = index.take(uid);
        lock(failures).remove(uid);
        board.forget(&gangs);
        if matches!(cause, Cause::Deleted { .. }) {
            // What was told and written stays so whoever leads.
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

    /// How many entries there are, by what they tell: none once all gangs are forgotten.
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
    /// Forgets a Workload that is gone, and its gangs.
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

    /// Forgets the gangs of all Workloads whose UID fits: their term is over.
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
            // What ran out and what was created was learnt for these gangs alone.
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

    /// How many entries this replica has of gangs, by what they tell: none once all gangs are forgotten.
    pub fn remembered_gangs(&self) -> BTreeMap<&'static str, usize> {
        self.of_gangs.counts()
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
