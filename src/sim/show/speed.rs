//! Slows virtual time down to a speed that users can follow.

use std::time::Duration;
use tokio::time::Instant;

/// Virtual time between two checks of the wall clock.
const TICK: Duration = Duration::from_millis(20);

/// Slows virtual time down to `speed` times the wall clock. Runs forever.
///
/// It blocks the thread on purpose: paused time cannot advance while the thread sleeps.
pub async fn keep(speed: f64) {
    let (started, wall) = (Instant::now(), std::time::Instant::now());
    loop {
        tokio::time::sleep(TICK).await;
        let due = started.elapsed().div_f64(speed);
        std::thread::sleep(due.saturating_sub(wall.elapsed()));
    }
}
