//! Makes virtual time go at a speed that people can follow.

use std::time::Duration;
use tokio::time::Instant;

/// Virtual time between two looks at the wall clock.
const TICK: Duration = Duration::from_millis(20);

/// Holds virtual time back so that it goes `speed` times as fast as the wall clock. Runs for ever.
///
/// The thread is put to sleep on purpose: as long as it sleeps, paused time cannot go on.
pub async fn keep(speed: f64) {
    let (started, wall) = (Instant::now(), std::time::Instant::now());
    loop {
        tokio::time::sleep(TICK).await;
        let due = started.elapsed().div_f64(speed);
        std::thread::sleep(due.saturating_sub(wall.elapsed()));
    }
}
