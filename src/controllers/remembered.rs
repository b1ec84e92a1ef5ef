//! What this replica keeps about gangs, in one place, so that all of it is forgotten together.

use super::board::Board;
use super::ledger::Ledger;
use super::memory::{OwnWrites, lock};
use super::meters::Estimates;
use super::policies::{Attempts, Notices};
use super::progress::Progress;
use super::registry::GangRegistry;
use super::waiting::Waiting;
use crate::gang::Journal;
use crate::gang::trace::Subject;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

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

    pub(super) fn uids(&self, fits: impl Fn(&str) -> bool) -> Vec<String> {
        lock(&self.0).keys().filter(|uid| fits(uid)).cloned().collect()
    }
}

/// Why gangs are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Their Workload is gone.
    Deleted {
        /// Whether it was admitted.
        ran: bool,
    },
    /// This replica no longer leads their shard, or begins a new term.
    TermOver,
}

/// What was known about the gangs of one Workload.
pub(super) struct Forgotten {
    /// Each gang with where it was last seen.
    pub last_seen: Vec<(String, Journal, Subject)>,
    /// Whether gangs that waited for them may have their turn.
    pub freed: bool,
}

impl OfGangs {
    /// Forgets the gangs of one Workload. `claims` names its NodeClaims that still exist.
    pub(super) fn forget(&self, uid: &str, cause: Cause, claims: impl Fn() -> BTreeSet<String>) -> Forgotten {
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
    pub(super) fn counts(&self) -> BTreeMap<&'static str, usize> {
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
