//! Whether the main loop still runs. Elections have a thread of their own, so a process whose loop hangs would lead on: its
//! liveness probe fails instead, and the kubelet restarts it.

use crate::cluster::lock;
use futures::FutureExt;
use futures::future::select;
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

    /// Runs the main loop to its end, and beats meanwhile: on one task, so that what blocks the loop stops the heartbeat too.
    pub async fn beat_during(&self, work: impl Future<Output = ()> + Send) {
        // The heartbeat is polled first: a busy loop uses up what tokio lets a task do in one poll, and no timer fires after it.
        select(self.beat().boxed(), work.boxed()).await;
    }

    /// Beats as long as it is polled.
    async fn beat(&self) {
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
    use std::future::poll_fn;
    use std::task::Poll;
    use tokio::task::consume_budget;
    use tokio::time::{advance, sleep, timeout};

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

    #[tokio::test(start_paused = true)]
    async fn a_busy_loop_does_not_stop_the_beats() {
        let (heartbeat, mut polls) = (Heartbeat::start(), 0);
        let busy = poll_fn(|context| {
            // All that tokio lets a task do in one poll.
            while consume_budget().boxed().poll_unpin(context).is_ready() {}
            let _ = advance(Duration::from_secs(1)).now_or_never();
            polls += 1;
            if polls == 300 { Poll::Ready(()) } else { Poll::Pending }
        });
        heartbeat.beat_during(busy).await;
        assert!(heartbeat.is_alive());
    }
}
