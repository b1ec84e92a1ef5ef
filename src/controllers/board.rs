//! Every gang as this replica knows it, for users: `/debug/gangs`, the board page, gauges.
//!
//! Rule: only the gangs' reconciles write it, everyone may read it, and it decides only which gangs to wake. A gang that
//! did not change keeps its revision, so that readers get only changes.

use crate::api::Workload;
use crate::api::amount::{Currency, Price};
use crate::cluster::lock;
use crate::gang::ledger::shortage::ShortageEntry;
use crate::gang::statechart::transition::Transition;
use crate::gang::{Explanation, Journal};
use crate::plan::cost::Cost;
use crate::plan::{ObstacleReason, PlanChange};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// One gang.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BoardEntry {
    /// The gang's id.
    pub gang: String,
    /// `namespace/name` of the Workload.
    pub workload: String,
    /// `Kind/name` of the Workload's owner; empty if it has none.
    pub owner: String,
    /// The LocalQueue.
    pub queue: String,
    /// The AdmissionCheck.
    pub check: String,
    /// When quota was reserved.
    pub reserved: Option<Timestamp>,
    /// Where it is, why, and what comes next.
    #[serde(flatten)]
    pub explanation: Explanation,
    /// The most that its nodes cost per hour, if all prices are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_per_hour: Option<Price>,
    /// The currency of the cost.
    pub currency: Currency,
    /// The cost as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<String>,
    /// The missing prices as text; `None` if none is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_price: Option<String>,
    /// Its last transitions, newest last.
    pub history: Vec<Transition>,
    /// Id of the trace of this admission.
    pub trace_id: String,
    #[serde(skip)]
    object: ObjectRef<Workload>,
    #[serde(skip)]
    waits_for: BTreeSet<ObstacleReason>,
}

impl BoardEntry {
    /// The entry of a gang.
    pub fn new(
        gang: &str,
        workload: &Workload,
        check: &str,
        journal: &Journal,
        explanation: Explanation,
    ) -> Self {
        Self {
            gang: gang.to_owned(),
            workload: workload.full_name(),
            owner: workload.owner(),
            queue: workload.spec.queue_name.clone(),
            check: check.to_owned(),
            reserved: workload.reserved_since().filter(|_| workload.has_quota()),
            explanation,
            cost_per_hour: None,
            currency: Currency::default(),
            cost: None,
            no_price: None,
            history: journal.history.clone(),
            trace_id: journal.trace_id().unwrap_or_default().to_owned(),
            object: ObjectRef::from_obj(workload),
            waits_for: BTreeSet::new(),
        }
    }

    /// This entry, for a gang that may get a plan if one of these obstacles clears.
    #[must_use]
    pub fn waiting_for(self, waits_for: BTreeSet<ObstacleReason>) -> Self {
        Self { waits_for, ..self }
    }

    /// This entry, with the cost of its nodes.
    #[must_use]
    pub fn costing(self, cost: &Cost) -> Self {
        let shown = cost.shown().map(|money| money.to_string());
        let no_price = cost.unpaid();
        Self { cost_per_hour: cost.known(), currency: cost.currency, cost: shown, no_price, ..self }
    }
}

/// A gang with the number of its last change.
#[derive(Clone, Debug)]
pub struct NumberedEntry {
    /// Grows whenever the entry changes.
    pub revision: u64,
    /// The entry.
    pub entry: Arc<BoardEntry>,
}

/// The most Workloads of a LocalQueue that are named.
const NAMED: usize = 5;

/// Workloads of a LocalQueue that wait for quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Queued {
    /// `namespace/name` of the LocalQueue.
    pub local_queue: String,
    /// The ClusterQueue behind it.
    pub cluster_queue: String,
    /// How many.
    pub workloads: usize,
    /// The oldest of them: creation time and name.
    pub oldest: Vec<(Timestamp, String)>,
    /// How many Workloads hold quota of that ClusterQueue.
    pub holders: usize,
    /// Those with the most pods.
    pub quota_held_by: Vec<Holder>,
}

/// A Workload that has quota reserved.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    /// Namespace and name.
    pub workload: String,
    /// Pods it asks for.
    pub pods: u32,
}

impl Holder {
    /// These Workloads with their pods, those with the most pods first.
    pub fn largest_first(workloads: impl IntoIterator<Item = (String, u32)>) -> Vec<Self> {
        let mut holders: Vec<Self> =
            workloads.into_iter().map(|(workload, pods)| Self { workload, pods }).collect();
        holders.sort_by_key(|holder| std::cmp::Reverse(holder.pods));
        holders
    }
}

impl Queued {
    /// These Workloads of a LocalQueue, and those that hold quota of its ClusterQueue.
    pub fn new(
        local_queue: &str,
        cluster_queue: &str,
        mut workloads: Vec<(Timestamp, String)>,
        holders: &[Holder],
    ) -> Self {
        workloads.sort();
        let count = workloads.len();
        workloads.truncate(NAMED);
        Self {
            holders: holders.len(),
            quota_held_by: holders.iter().take(NAMED).cloned().collect(),
            local_queue: local_queue.to_owned(),
            cluster_queue: cluster_queue.to_owned(),
            workloads: count,
            oldest: workloads,
        }
    }
}

/// Everything the board page shows, at one instant.
#[derive(Clone, Debug, Default)]
pub struct BoardSnapshot {
    /// The instant.
    pub at: Timestamp,
    /// Grows whenever any gang changes or is removed.
    pub revision: u64,
    /// Every gang, by its id.
    pub gangs: Arc<BTreeMap<String, NumberedEntry>>,
    /// Where capacity is short and who waits, beside the gangs.
    pub around: BoardContext,
}

/// The content of the board beside the gangs.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct BoardContext {
    /// Where capacity is short.
    pub shortages: Vec<ShortageEntry>,
    /// Who waits for quota, by LocalQueue.
    pub queued: Vec<Queued>,
    /// How much this replica acts for.
    pub acting: LedShards,
}

/// How many shards a replica acts for. Other replicas act for the rest, and show it on their boards.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedShards {
    /// Shards that it leads.
    pub shards: usize,
    /// The number of all shards; 0 if it is not known yet.
    pub of: usize,
}

/// Every gang this replica has reconciled, by gang id. Kept apart from the registry, because viewers read all of it.
#[derive(Debug, Default)]
pub struct Board(Mutex<Pages>);

#[derive(Debug, Default)]
struct Pages {
    revision: u64,
    /// Shared with readers, and copied only if it changes meanwhile.
    gangs: Arc<BTreeMap<String, NumberedEntry>>,
    /// The gangs that wait, by what they wait for.
    waiting: BTreeMap<ObstacleReason, BTreeSet<String>>,
}

impl Pages {
    /// Replaces or removes a gang's entry.
    fn set(&mut self, gang: &str, entry: Option<&Arc<BoardEntry>>) {
        self.revision += 1;
        let gangs = Arc::make_mut(&mut self.gangs);
        let before = match entry {
            Some(entry) => {
                let noted = NumberedEntry { revision: self.revision, entry: Arc::clone(entry) };
                gangs.insert(gang.to_owned(), noted)
            }
            None => gangs.remove(gang),
        };
        for reason in before.iter().flat_map(|noted| &noted.entry.waits_for) {
            if let Some(gangs) = self.waiting.get_mut(reason) {
                gangs.remove(gang);
            }
        }
        for reason in entry.into_iter().flat_map(|entry| &entry.waits_for) {
            self.waiting.entry(*reason).or_default().insert(gang.to_owned());
        }
    }
}

impl Board {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.0)
    }

    /// Records where a gang is, if its Workload `is_there`. That is checked under the lock, because a deletion forgets
    /// the gangs only once.
    pub fn note(&self, entry: BoardEntry, is_there: impl FnOnce() -> bool) {
        let mut pages = self.pages();
        if !is_there() || pages.gangs.get(&entry.gang).is_some_and(|noted| *noted.entry == entry) {
            return;
        }
        let entry = Arc::new(entry);
        pages.set(&entry.gang, Some(&entry));
    }

    /// Forgets these gangs.
    pub fn forget(&self, gangs: &BTreeSet<String>) {
        let mut pages = self.pages();
        for gang in gangs {
            if pages.gangs.contains_key(gang) {
                pages.set(gang, None);
            }
        }
    }

    /// The reasons why a gang is known to wait.
    pub fn waits_for(&self, gang: &str) -> BTreeSet<ObstacleReason> {
        self.pages().gangs.get(gang).map(|noted| noted.entry.waits_for.clone()).unwrap_or_default()
    }

    /// How many gangs may run but have pods that are not bound to a node.
    pub fn with_unbound_pods(&self) -> usize {
        self.pages().gangs.values().filter(|noted| noted.entry.explanation.unbound_pods.is_some()).count()
    }

    /// Workloads of the gangs that wait for something that this change may clear. The cost does not depend on other gangs.
    pub fn waiting_for(&self, change: PlanChange) -> Vec<ObjectRef<Workload>> {
        let pages = self.pages();
        let meant = pages.waiting.iter().filter(|(reason, _)| change.may_clear(**reason));
        let gangs: BTreeSet<&String> = meant.flat_map(|(_, gangs)| gangs).collect();
        gangs.into_iter().filter_map(|gang| Some(pages.gangs.get(gang)?.entry.object.clone())).collect()
    }

    /// All gangs.
    pub fn gangs(&self) -> Arc<BTreeMap<String, NumberedEntry>> {
        Arc::clone(&self.pages().gangs)
    }

    /// All gangs at this instant, with what is shown beside them.
    pub fn snapshot(&self, at: Timestamp, around: BoardContext) -> BoardSnapshot {
        let pages = self.pages();
        BoardSnapshot { at, revision: pages.revision, gangs: Arc::clone(&pages.gangs), around }
    }
}

/// The UID in a reference to a Workload.
pub(super) fn uid_of(object: &ObjectRef<Workload>) -> &str {
    object.extra.uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::WorkloadSpec;
    use crate::gang::{AdmissionId, Ending, Reservation, Snapshot};
    use crate::policy::Policy;

    fn entry(name: &str, seconds: i64) -> BoardEntry {
        entry_of(name, seconds, [ObstacleReason::Guarded].into())
    }

    fn entry_of(name: &str, seconds: i64, waits_for: BTreeSet<ObstacleReason>) -> BoardEntry {
        let mut workload = Workload::new(name, WorkloadSpec::default());
        workload.metadata.namespace = Some("team".into());
        let now = Timestamp::from_second(seconds).unwrap();
        let journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
        let reservation = Reservation::Gone(Ending::Evicted);
        let policy = Policy::default();
        let snapshot = Snapshot::of(now, &reservation, &policy);
        BoardEntry::new(name, &workload, "check", &journal, Explanation::of(&journal, &snapshot, &[]))
            .waiting_for(waits_for)
    }

    #[test]
    fn a_waiting_gang_is_found_by_each_of_its_reasons_until_it_waits_for_something_else() {
        use ObstacleReason::{Guarded, LimitExceeded};
        use PlanChange::{ClaimInitialized, NodePoolUsage, Other};
        let board = Board::default();
        let found = |change| -> Vec<String> {
            board.waiting_for(change).into_iter().map(|object| object.name).collect()
        };
        board.note(entry_of("a", 1, [Guarded, LimitExceeded].into()), || true);
        board.note(entry_of("b", 1, [Guarded].into()), || true);
        assert_eq!(
            (found(NodePoolUsage), found(ClaimInitialized)),
            (vec!["a".into()], vec!["a".into(), "b".into()])
        );
        board.note(entry_of("a", 2, [LimitExceeded].into()), || true);
        assert_eq!((found(ClaimInitialized), found(Other).len()), (vec!["b".into()], 2));
        board.note(entry_of("b", 2, BTreeSet::new()), || true);
        assert!(found(ClaimInitialized).is_empty());
    }

    #[test]
    fn only_a_change_gives_a_gang_a_new_revision() {
        let board = Board::default();
        board.note(entry("a", 1), || true);
        board.note(entry("b", 1), || true);
        let before = board.gangs();
        board.note(entry("a", 1), || true);
        assert_eq!(board.gangs()["a"].revision, before["a"].revision);
        board.note(entry("a", 2), || true);
        assert!(board.gangs()["a"].revision > before["b"].revision);
        board.note(entry("c", 1), || false);
        assert!(!board.gangs().contains_key("c"), "its Workload is gone");
    }

    #[test]
    fn the_gangs_of_a_deleted_workload_are_removed() {
        let board = Board::default();
        board.note(entry("a", 1), || true);
        board.note(entry("b", 1), || true);
        board.forget(&BTreeSet::from(["a".to_owned(), "unknown".to_owned()]));
        assert_eq!(board.gangs().keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(board.waiting_for(PlanChange::Other).len(), 1);
    }
}
