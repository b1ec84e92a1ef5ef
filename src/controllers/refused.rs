//! Gangs that are refused until somebody changes something, and for whom they have given their quota back.
//!
//! Kueue has no way to keep a Workload out of its queue: one that gives its quota back gets it again at once if nobody
//! else wants it. And Kueue tries Workloads that did not fit only a second after quota came back. So a refused gang
//! gives its quota back the first time, and then for each Workload that waits: at once, and again when Kueue tries
//! that one.
//!
//! Called by a gang's reconcile, and when a Workload changes. Rule: a hint, which may be lost at any time; then a gang
//! gives its quota back once more.

use super::context::Context;
use crate::api::Workload;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;

/// UIDs of Workloads that wait for quota, with since when each is in its queue.
pub type Waiting = BTreeMap<String, Timestamp>;

/// How long after quota came back Kueue tries the Workloads that did not fit before.
const KUEUE_TRIES_AFTER: SignedDuration = SignedDuration::from_millis(800);
/// Until when the quota is given back again and again for a Workload, so that it is free when Kueue tries that one.
const KUEUE_HAS_TRIED_AFTER: SignedDuration = SignedDuration::from_millis(2_500);

/// Refused gangs, by their ids.
#[derive(Debug, Default)]
pub struct Refused(BTreeMap<String, Entry>);

#[derive(Debug)]
struct Entry {
    workload: ObjectRef<Workload>,
    local_queue: String,
    /// UIDs of the Workloads for which the gang has given its quota back already, with when it did so first.
    served: BTreeMap<String, Timestamp>,
}

impl Refused {
    /// From when on a gang is to give its quota back: at once the first time, then for those that wait and could not
    /// be tried yet. Kueue queues by whole seconds, so only from the next second on the gang comes after them.
    pub fn wanted_at(&self, gang: &str, waiting: &Waiting, now: Timestamp) -> Option<Timestamp> {
        let Some(entry) = self.0.get(gang) else { return Some(now) };
        let at = |(uid, queued): (&String, &Timestamp)| match entry.served.get(uid) {
            None => Some(next_second(*queued)),
            Some(first) if now < later(*first, KUEUE_HAS_TRIED_AFTER) => Some(later(*first, KUEUE_TRIES_AFTER)),
            Some(_) => None,
        };
        waiting.iter().filter_map(at).min()
    }

    /// Notes that a gang gives its quota back for those of these Workloads that come before it.
    pub fn gives_back(&mut self, gang: &str, workload: &Workload, waiting: &Waiting, now: Timestamp) {
        let before = self.0.remove(gang).map(|entry| entry.served).unwrap_or_default();
        let served = waiting.iter().filter(|(_, queued)| next_second(**queued) <= now);
        let first = |uid: &String| before.get(uid).copied().unwrap_or(now);
        let entry = Entry {
            workload: ObjectRef::from_obj(workload),
            local_queue: workload.local_queue(),
            served: served.map(|(uid, _)| (uid.clone(), first(uid))).collect(),
        };
        self.0.insert(gang.to_owned(), entry);
    }

    /// A gang is not refused any more, or is gone.
    pub fn forget(&mut self, gang: &str) {
        self.0.remove(gang);
    }

    /// How many gangs are refused.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The Workloads of the gangs that have not yet given their quota back for the Workload of this UID, with their
    /// LocalQueues.
    fn owing(&self, uid: &str) -> Vec<(ObjectRef<Workload>, String)> {
        let owing = self.0.values().filter(|entry| !entry.served.contains_key(uid));
        owing.map(|entry| (entry.workload.clone(), entry.local_queue.clone())).collect()
    }
}

fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

fn next_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second().saturating_add(1)).unwrap_or(Timestamp::MAX)
}

impl Context {
    /// The Workloads that wait for quota which this one may hold.
    pub(super) fn waiting_for_quota_of(&self, workload: &Workload) -> Waiting {
        let own = workload.local_queue();
        let all = self.stores.workloads.glimpses();
        let others = all.iter().filter(|w| workload.uid().as_ref() != Some(&w.uid));
        let waiting = others.filter_map(|w| Some((w.uid.clone(), w.queued_since?, &w.local_queue)));
        let waiting = waiting.filter(|(_, _, queue)| self.shares_quota(&own, queue));
        waiting.map(|(uid, since, _)| (uid, since)).collect()
    }

    /// A Workload waits for quota: refused gangs that may hold it are reconciled.
    pub(super) fn wake_refused_for(&self, workload: &Workload) {
        let uid = workload.uid().unwrap_or_default();
        let own = workload.local_queue();
        let owing = self.ledger.open().refused.owing(&uid);
        for (refused, _) in owing.into_iter().filter(|(_, queue)| self.shares_quota(&own, queue)) {
            self.wake_workload(refused);
        }
    }

    /// Whether Workloads of two LocalQueues may want the same quota: their ClusterQueues are one, or both are in a
    /// cohort. Where LocalQueues cannot be read, only the same LocalQueue counts.
    fn shares_quota(&self, one: &str, other: &str) -> bool {
        if one == other {
            return true;
        }
        let cluster_queue = |local_queue: &str| {
            let (namespace, name) = local_queue.split_once('/')?;
            let queue = self.stores.local_queues.store.get(&ObjectRef::new(name).within(namespace))?;
            self.stores.queues.get(&ObjectRef::new(&queue.spec.cluster_queue))
        };
        let (Some(one), Some(other)) = (cluster_queue(one), cluster_queue(other)) else { return false };
        let lends = !one.spec.cohort_name.is_empty() && !other.spec.cohort_name.is_empty();
        one.name_any() == other.name_any() || lends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    fn waiting(all: &[(&str, i64)]) -> Waiting {
        all.iter().map(|(uid, since)| ((*uid).to_owned(), at(*since))).collect()
    }

    #[test]
    fn a_refused_gang_gives_its_quota_back_at_first_and_for_each_workload_that_waits_until_kueue_has_tried_it() {
        let workload: Workload = serde_json::from_value(json!({
            "metadata": {"name": "large", "namespace": "ns"}, "spec": {"queueName": "lq"},
        }))
        .unwrap();
        let mut refused = Refused::default();
        assert_eq!(refused.wanted_at("g", &waiting(&[]), at(7)), Some(at(7)), "the first time");
        let one = waiting(&[("a", 0)]);
        refused.gives_back("g", &workload, &one, at(1_000));
        assert_eq!(refused.wanted_at("g", &one, at(1_200)), Some(at(1_800)), "when Kueue tries it");
        refused.gives_back("g", &workload, &one, at(1_800));
        assert_eq!(refused.wanted_at("g", &one, at(2_000)), Some(at(1_800)), "and again");
        assert_eq!(refused.wanted_at("g", &waiting(&[]), at(2_000)), None, "it has its quota");
        assert_eq!(refused.wanted_at("g", &one, at(3_500)), None, "it does not fit all the same");
        let both = waiting(&[("a", 0), ("b", 4_200)]);
        assert_eq!(refused.wanted_at("g", &both, at(4_300)), Some(at(5_000)), "Kueue counts whole seconds");
        assert_eq!((refused.owing("a").len(), refused.owing("b").len()), (0, 1));
        refused.gives_back("g", &workload, &both, at(4_300));
        assert_eq!(refused.owing("b").len(), 1, "it would come before that one");
        refused.forget("g");
        assert_eq!(refused.wanted_at("g", &both, at(9_000)), Some(at(9_000)));
    }
}
