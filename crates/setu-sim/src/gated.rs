//! Pausing a replica: its work is polled only while its line is up.
//!
//! All decisions, and all writes except Events, run within [`Gated`]. The replica's watches and its publishing of
//! Events run outside. They continue until they block on the wire.

use super::wire::Wire;
use futures::future::BoxFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A replica's work. After a pause it continues with its old knowledge. Timers that expired during the pause fire then.
pub struct Gated {
    does: BoxFuture<'static, ()>,
    wire: Arc<Wire>,
}

impl Gated {
    /// Runs a future only while the line of this wire is up.
    pub fn new(wire: Arc<Wire>, does: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { does: Box::pin(does), wire }
    }
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.wire.may_act(cx.waker()) { self.does.as_mut().poll(cx) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;
    use crate::wire::Line;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    use tokio::sync::mpsc::unbounded_channel;

    #[tokio::test(start_paused = true)]
    async fn a_paused_replica_does_nothing_and_continues_at_once_on_resume() {
        let wire = Wire::new(Chance::new(1, "test"), unbounded_channel().0, Arc::new(|_, _| {}));
        let steps = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&steps);
        tokio::spawn(Gated::new(Arc::clone(&wire), async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }));
        let so_far = async |millis| {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            steps.load(Ordering::Relaxed)
        };
        assert_eq!(so_far(3_500).await, 3);
        wire.set_line(Line::Paused);
        assert_eq!(so_far(600_000).await, 3);
        wire.set_line(Line::Up);
        tokio::task::yield_now().await;
        assert_eq!(so_far(0).await, 4, "the timer has ended meanwhile");
        assert_eq!(so_far(3_500).await, 7);
        wire.set_line(Line::Dead);
        assert_eq!(so_far(600_000).await, 7);
    }
}
