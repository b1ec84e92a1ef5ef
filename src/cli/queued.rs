//! Workloads that wait for quota: the checks of Setu's that they will get, and the current holders of the quota.
//!
//! Rule: if LocalQueues and ClusterQueues may not be read, nothing is reported about them.

use super::cluster::ClusterObjects;
use super::workload_phase::WorkloadPhase;
use crate::api::Workload;
use crate::controllers::board::Holder;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// The most holders of a ClusterQueue's quota that are named, as on the board.
const NAMED: usize = 5;

/// Name of a Workload's ClusterQueue, from its admission or its LocalQueue; empty if neither is known.
pub fn cluster_queue<'s>(objects: &'s ClusterObjects, workload: &'s Workload) -> &'s str {
    if let Some(admission) = workload.admission() {
        return &admission.cluster_queue;
    }
    let is_its = |queue: &&crate::api::LocalQueue| {
        queue.name_any() == workload.spec.queue_name && queue.namespace() == workload.namespace()
    };
    objects.local_queues.iter().find(is_its).map_or("", |queue| &queue.spec.cluster_queue)
}

/// Names of the checks that the ClusterQueue will add to the Workload when it reserves quota.
pub fn checks_to_come<'s>(
    objects: &'s ClusterObjects,
    workload: &'s Workload,
) -> impl Iterator<Item = &'s str> + use<'s> {
    let name = cluster_queue(objects, workload);
    let queue = objects.cluster_queues.iter().find(|queue| queue.name_any() == name);
    let strategy = queue.and_then(|queue| queue.spec.admission_checks_strategy.as_ref());
    strategy.into_iter().flat_map(|s| &s.admission_checks).map(|rule| rule.name.as_str())
}

/// The Workloads that hold quota of each ClusterQueue.
#[derive(Debug)]
pub struct QuotaHolders<'o> {
    /// By ClusterQueue, those with the most pods first.
    queues: BTreeMap<&'o str, Vec<Holder>>,
    /// Whether only one namespace was read.
    is_partial: bool,
}

impl<'o> QuotaHolders<'o> {
    /// All of them, in one pass. `is_partial` is whether `objects.workloads` are those of one namespace.
    pub fn of(objects: &'o ClusterObjects, is_partial: bool) -> Self {
        let uids: BTreeSet<&str> =
            objects.workloads.iter().filter_map(|workload| workload.metadata.uid.as_deref()).collect();
        // What was read of all namespaces may be older.
        let is_other =
            |workload: &&Workload| workload.metadata.uid.as_deref().is_none_or(|uid| !uids.contains(uid));
        let all = objects.workloads.iter().chain(objects.elsewhere.iter().filter(is_other));
        let mut found: BTreeMap<&str, BTreeMap<String, u32>> = BTreeMap::new();
        for workload in all.filter(|workload| workload.front_end().holds_quota()) {
            if let Some(admission) = workload.held_admission() {
                let holders = found.entry(admission.cluster_queue.as_str()).or_default();
                holders.insert(workload.full_name(), workload.pods());
            }
        }
        let queues =
            found.into_iter().map(|(queue, holders)| (queue, Holder::largest_first(holders))).collect();
        Self { queues, is_partial: is_partial && objects.elsewhere.is_empty() }
    }

    /// The holders for the report of one Workload. If all objects are in its namespace, only that one was read.
    pub fn around(objects: &'o ClusterObjects, workload: &Workload) -> Self {
        let is_here = |other: &Workload| other.metadata.namespace == workload.metadata.namespace;
        Self::of(objects, objects.workloads.iter().all(is_here))
    }

    /// Those of the ClusterQueue that a Workload in this phase waits for; none if it does not wait for quota.
    pub fn of_queued(&self, phase: WorkloadPhase, cluster_queue: &str) -> QueueHolders<'_> {
        let all = self.queues.get(cluster_queue).filter(|_| phase == WorkloadPhase::Queued);
        QueueHolders { all: all.map(Vec::as_slice).unwrap_or_default(), is_partial: self.is_partial }
    }
}

/// The Workloads that hold quota of one ClusterQueue, those with the most pods first.
#[derive(Clone, Copy, Debug)]
pub struct QueueHolders<'h> {
    all: &'h [Holder],
    /// Whether only one namespace was read.
    is_partial: bool,
}

impl QueueHolders<'_> {
    /// Those with the most pods.
    pub fn named(&self) -> Vec<Holder> {
        self.all.iter().take(NAMED).cloned().collect()
    }

    /// How many there are besides; `None` if there are no others.
    pub fn others(&self) -> Option<usize> {
        self.all.len().checked_sub(NAMED).filter(|others| *others > 0)
    }

    /// A clause naming the largest one; `None` if there are none.
    pub fn in_words(&self, cluster_queue: &str) -> Option<String> {
        let (first, more) = self.all.split_first()?;
        let place = if self.is_partial { " in this namespace" } else { "" };
        let more = match more.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "quota of ClusterQueue {cluster_queue} is held{place} by {} ({} pods){more}",
            first.workload, first.pods
        ))
    }
}

/// The remedy if the queue never has enough quota.
pub const NEEDS_MORE_QUOTA: &str = "it will not fit when others end: ask for less, or have the quota raised";

/// Whether Kueue says that not even an empty queue has enough quota. The words are those of Kueue's flavor assigner.
pub fn needs_more_quota(kueue_says: &str) -> bool {
    kueue_says.contains("> maximum capacity") && !kueue_says.contains("insufficient unused quota")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A Workload that holds quota of ClusterQueue gpu.
    fn holder(namespace: &str, name: &str, pods: u32) -> Workload {
        serde_json::from_value(json!({
            "metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}/{name}")},
            "spec": {"podSets": [{"name": "main", "count": pods}]},
            "status": {
                "admission": {"clusterQueue": "gpu"},
                "conditions": [{
                    "type": "QuotaReserved", "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn five_holders_of_a_queue_are_named_and_the_others_are_counted() {
        let workloads: Vec<Workload> =
            (1..=7).map(|pods| holder("a", &format!("job-{pods}"), pods)).collect();
        let objects = ClusterObjects { workloads, ..ClusterObjects::default() };
        let holders = QuotaHolders::of(&objects, false);
        let queue = holders.of_queued(WorkloadPhase::Queued, "gpu");
        let pods: Vec<u32> = queue.named().iter().map(|holder| holder.pods).collect();
        assert_eq!((pods, queue.others()), (vec![7, 6, 5, 4, 3], Some(2)));
        let words = "quota of ClusterQueue gpu is held by a/job-7 (7 pods) and 6 more";
        assert_eq!(queue.in_words("gpu").as_deref(), Some(words));
        for (phase, name) in [(WorkloadPhase::Reserved, "gpu"), (WorkloadPhase::Queued, "cpu")] {
            let none = holders.of_queued(phase, name);
            assert_eq!((none.named(), none.others(), none.in_words(name)), (Vec::new(), None, None));
        }
    }

    #[test]
    fn where_one_namespace_was_read_the_holder_is_said_to_be_of_it() {
        let waiting = holder("a", "small", 1);
        let mut objects = ClusterObjects { workloads: vec![waiting.clone()], ..ClusterObjects::default() };
        let words = |holders: &QuotaHolders<'_>| {
            holders.of_queued(WorkloadPhase::Queued, "gpu").in_words("gpu").unwrap()
        };
        let here = "quota of ClusterQueue gpu is held in this namespace by a/small (1 pods)";
        assert_eq!(words(&QuotaHolders::of(&objects, true)), here);
        assert_eq!(words(&QuotaHolders::around(&objects, &waiting)), here);
        // An older copy of a Workload that was read since does not count.
        objects.elsewhere = vec![holder("a", "small", 9), holder("b", "large", 8)];
        let everywhere = "quota of ClusterQueue gpu is held by b/large (8 pods) and 1 more";
        assert_eq!(words(&QuotaHolders::around(&objects, &waiting)), everywhere);
    }
}
