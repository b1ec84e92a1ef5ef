//! Whether the main loop still runs. Elections have a thread of their own, so a process whose loop hangs would lead on: its
//! liveness probe fails instead, and the kubelet restarts it.

use crate::cluster::lock;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time between two beats.
const PERIOD: Duration = Duration::from_secs(5);
/// How long no beat may come. The longest plans take a few seconds.
const LIMIT: Duration = Duration::from_mins(1);

/// The last sign of life of the main loop. Clones share it.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Heartbeat {
    /// A heartbeat whose first beat is now.
    pub fn start() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// Beats as long as it is polled. To be polled on the same task as the loop.
    pub async fn beat(&self) {
        loop {
            *lock(&self.0) = Instant::now();
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Whether the last beat is recent.
    pub fn is_alive(&self) -> bool {
        lock(&self.0).elapsed() < LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_hangs_is_noticed_within_a_minute() {
        let heartbeat = Heartbeat::start();
        let mut beats = heartbeat.beat().boxed();
        assert!(timeout(Duration::from_mins(10), &mut beats).await.is_err());
        assert!(heartbeat.is_alive());
        // Nothing polls it any more.
        sleep(Duration::from_mins(1)).await;
        assert!(!heartbeat.is_alive());
    }
}
