//! Since when each Workload waits for a reconcile that gets to its end.
//!
//! Rule: nothing is decided on it; it is what the delay of verdicts is measured from.

use super::memory::lock;
use super::queue::Key;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Workloads that something was seen of since their last whole reconcile.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<BTreeMap<Key, Wait>>);

#[derive(Clone, Copy, Debug)]
struct Wait {
    /// Since when.
    since: Instant,
    /// When something was seen last.
    latest: Instant,
}

impl Waiting {
    fn open(&self) -> MutexGuard<'_, BTreeMap<Key, Wait>> {
        lock(&self.0)
    }

    /// Notes that something was seen.
    pub fn note(&self, workload: Key) {
        let now = Instant::now();
        self.open().entry(workload).or_insert(Wait { since: now, latest: now }).latest = now;
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.open().len()
    }

    /// Since when it waits; now if nothing was seen.
    pub fn since(&self, workload: &Key) -> Instant {
        self.open().get(workload).map_or_else(Instant::now, |wait| wait.since)
    }

    /// Notes that a reconcile that began then got to its end, or that there was nothing to reconcile. What was seen meanwhile
    /// waits for the next.
    pub fn served(&self, workload: &Key, began: Instant) {
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
    async fn what_is_seen_during_a_look_waits_for_the_next() {
        let (waiting, second) = (Waiting::default(), Duration::from_secs(1));
        let key = Key::of(&Workload::new("train", WorkloadSpec::default()));
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
