//! Everything that this replica keeps about gangs, in one place, so that all of it is forgotten together.
//!
//! Most of it is in the registry. Kept apart are the board, which readers take as a whole; the ledger, under whose lock plans
//! are made; and the turns for messages and the waits of the queue, which are about all Workloads together.
//!
//! Rule: no lock is held across an await. The ledger's may be held while another one is taken. Under the others,
//! only stores are read.

use super::board::Board;
use super::gang_entry::ForgetReason;
use super::progress::ProgressLimiter;
use super::registry::{GangRegistry, LastJournal};
use super::waiting::Waiting;
use crate::cluster::lock;
use crate::gang::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// Everything this replica keeps about gangs and their Workloads. Forgetting and counting take it apart whole, so that a
/// field that is not handled there does not compile.
#[derive(Debug, Default)]
pub struct GangState {
    /// The memory of each gang and of each Workload.
    pub(super) registry: GangRegistry,
    /// The gangs as users and metrics see them.
    pub(super) board: Board,
    /// The plans of gangs that are carried out, and the capacity that gangs wait for.
    ledger: Mutex<Ledger>,
    /// When progress was reported to Workloads.
    pub(super) progress: ProgressLimiter,
    /// Since when Workloads wait to be reconciled.
    pub(super) waiting: Waiting,
}

/// The last known facts about the forgotten gangs of one Workload.
pub(super) struct Forgotten {
    /// Each gang with its last journal.
    pub last_journals: Vec<LastJournal>,
    /// Whether gangs that waited for them may have their turn.
    pub freed: bool,
}

impl GangState {
    /// Locks the ledger. No other gang is planned until the guard is dropped.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Forgets the gangs of one Workload. `claims` names its NodeClaims that still exist.
    pub(super) fn forget(&self, uid: &str, cause: ForgetReason<'_>, claims: &BTreeSet<String>) -> Forgotten {
        let Self {
            registry,
            board,
            ledger,
            progress,
            // Removed by the reconcile that finds the object gone. Another of its name may wait already.
            waiting: _,
        } = self;
        let (gangs, last_journals) = registry.forget(uid, cause, claims);
        board.forget(&gangs);
        if matches!(cause, ForgetReason::Deleted { .. }) {
            progress.forget(uid);
        }
        let mut ledger = lock(ledger);
        let freed = gangs.iter().filter(|gang| ledger.forget(gang)).count() > 0;
        Forgotten { last_journals, freed }
    }

    /// How many entries there are of each kind. Empty once all gangs are forgotten.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let Self { registry, board, ledger, progress, waiting } = self;
        let counts =
            [("board", board.gangs().len()), ("progress", progress.count()), ("waiting", waiting.count())];
        let all = counts.into_iter().chain(registry.counts()).chain(lock(ledger).counts());
        all.filter(|(_, count)| *count > 0).collect()
    }
}
