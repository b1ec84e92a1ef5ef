//! Workloads that wait for quota: the checks of Setu's that they will get, and the current holders of the quota.
//!
//! Rule: if LocalQueues and ClusterQueues may not be read, nothing is reported about them.

use super::cluster::ClusterObjects;
use crate::api::Workload;
use crate::controllers::board::Holder;
use kube::ResourceExt;
use std::collections::BTreeMap;

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

/// Workloads with reserved quota of this ClusterQueue, those with the most pods first.
pub fn holders(objects: &ClusterObjects, cluster_queue: &str) -> Vec<Holder> {
    let holds = |workload: &&Workload| {
        workload.front_end().holds_quota()
            && workload.is("QuotaReserved")
            && !workload.is("Finished")
            && workload.admission().is_some_and(|admission| admission.cluster_queue == cluster_queue)
    };
    let all = objects.workloads.iter().chain(&objects.elsewhere).filter(holds);
    let by_name: BTreeMap<String, u32> =
        all.map(|workload| (workload.full_name(), workload.pods())).collect();
    Holder::largest_first(by_name)
}

/// What to do if the queue never has enough quota.
pub const NEEDS_MORE_QUOTA: &str = "it will not fit when others end: ask for less, or have the quota raised";

/// Whether Kueue says that not even an empty queue has enough quota. The words are those of Kueue's flavor assigner.
pub fn needs_more_quota(kueue_says: &str) -> bool {
    kueue_says.contains("> maximum capacity") && !kueue_says.contains("insufficient unused quota")
}

/// A clause naming the holders; `None` if there are none.
pub fn in_words(cluster_queue: &str, holders: &[Holder]) -> Option<String> {
    let (first, more) = holders.split_first()?;
    let more = match more.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "quota of ClusterQueue {cluster_queue} is held by {} ({} pods){more}",
        first.workload, first.pods
    ))
}
