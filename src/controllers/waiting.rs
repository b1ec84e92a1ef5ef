//! Since when each Workload waits for a complete reconcile.
//!
//! Rule: nothing is decided on it. The delay of verdicts is measured from it.

use super::queue::QueueKey;
use crate::cluster::lock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Workloads that changed since their last complete reconcile. Kept apart from the registry, because it also has Workloads without
/// a gang, and the event handlers write it for every change.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<BTreeMap<QueueKey, ReconcileWait>>);

#[derive(Clone, Copy, Debug)]
struct ReconcileWait {
    /// Since when.
    since: Instant,
    /// When the last change was seen.
    latest: Instant,
}

impl Waiting {
    fn open(&self) -> MutexGuard<'_, BTreeMap<QueueKey, ReconcileWait>> {
        lock(&self.0)
    }

    /// Records that a change was seen.
    pub fn note(&self, workload: QueueKey) {
        let now = Instant::now();
        self.open().entry(workload).or_insert(ReconcileWait { since: now, latest: now }).latest = now;
    }

    /// How many Workloads wait.
    pub fn count(&self) -> usize {
        self.open().len()
    }

    /// Since when it waits; now if no change was seen.
    pub fn since(&self, workload: &QueueKey) -> Instant {
        self.open().get(workload).map_or_else(Instant::now, |wait| wait.since)
    }

    /// Records that a reconcile that began then is complete, or that there was nothing to reconcile. Changes seen
    /// meanwhile wait for the next one.
    pub fn served(&self, workload: &QueueKey, began: Instant) {
        let mut all = self.open();
        match all.get_mut(workload) {
            Some(wait) if wait.latest > began => wait.since = wait.latest,
            _ => drop(all.remove(workload)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Workload;
    use crate::api::workload::WorkloadSpec;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn changes_during_a_reconcile_wait_for_the_next_one() {
        let (waiting, second) = (Waiting::default(), Duration::from_secs(1));
        let key = QueueKey::of(&Workload::new("train", WorkloadSpec::default()));
        waiting.note(key.clone());
        let noted = Instant::now();
        tokio::time::sleep(second).await;
        let began = Instant::now();
        assert_eq!(waiting.since(&key), noted);
        tokio::time::sleep(second).await;
        waiting.note(key.clone());
        let meanwhile = Instant::now();
        tokio::time::sleep(second).await;
        waiting.served(&key, began);
        assert_eq!(waiting.since(&key), meanwhile);
        let began = Instant::now();
        tokio::time::sleep(second).await;
        waiting.served(&key, began);
        assert_eq!(waiting.since(&key), Instant::now());
    }
}
