//! How long to wait before something that failed is tried again.
//!
//! Rule: no randomness. A replica holds one watch per kind, too few to need spreading, and a run of the embedded cluster
//! must be repeatable to the last byte.

use kube::runtime::utils::Backoff;
use std::time::Duration;
use tokio::time::Instant;

/// The wait after this many failures in a row, each of which doubles it.
pub fn doubled(first: Duration, longest: Duration, failures: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

/// The first wait of a watch.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(5);
/// A failure this long after the previous one starts with the first wait again.
const QUIET: Duration = Duration::from_secs(20);

/// Waits of a watch that double, from half a second to five.
///
/// A stream resets its backoff with each event, and a watch that starts over reports its start as an event. So a reset
/// does nothing here; only time without a failure starts over.
#[derive(Debug, Default)]
pub struct Doubling(Option<(Instant, Duration)>);

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let wait = match self.0 {
            Some((at, wait)) if now.duration_since(at) < QUIET => wait.saturating_mul(2).min(LONGEST),
            _ => FIRST,
        };
        self.0 = Some((now, wait));
        Some(wait)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_a_bound_and_start_over_after_time_without_a_failure() {
        let mut waits = Doubling::default();
        for millis in [500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            let wait = waits.next().unwrap();
            assert_eq!(wait.as_millis(), millis);
            waits.reset();
            tokio::time::advance(wait).await;
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(waits.next(), Some(FIRST));
    }
}
