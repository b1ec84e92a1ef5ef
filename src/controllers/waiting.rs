//! Since when each Workload waits for a look that gets to its end.
//!
//! Rule: nothing is decided on it; it is what the delay of verdicts is measured from.

use super::queue::Key;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Workloads that something was seen of since their last whole look.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<BTreeMap<Key, Instant>>);

impl Waiting {
    fn open(&self) -> MutexGuard<'_, BTreeMap<Key, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that something was seen.
    pub fn note(&self, workload: Key) {
        self.open().entry(workload).or_insert_with(Instant::now);
    }

    /// Since when it waits; now if nothing was seen.
    pub fn since(&self, workload: &Key) -> Instant {
        self.open().get(workload).copied().unwrap_or_else(Instant::now)
    }

    /// Notes that a look at it got to its end, or that there is nothing to look at.
    pub fn is_served(&self, workload: &Key) {
        self.open().remove(workload);
    }
}
