//! Access to the API server: the client, one watch per kind, leader election, and the limiter of writes.

pub mod backoff;
pub mod batched;
pub mod client;
pub mod decoded;
pub mod fair_queue;
pub mod fence;
pub mod joined;
pub mod lease;
pub mod outage;
pub mod packed;
pub mod page;
pub mod recent;
pub mod store;
pub mod time;
pub mod watch;
pub mod write_limiter;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked with the lock held.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
