//! How long a watch that failed waits before it starts again.
//!
//! Rule: no chance. A replica holds one watch a kind, too few to need spreading, and a run of the
//! embedded cluster must be repeatable to the last byte.

use kube::runtime::utils::Backoff;
use std::time::Duration;

/// The first wait.
const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST: Duration = Duration::from_secs(10);

/// Waits that double, from half a second to ten.
#[derive(Debug)]
pub struct Doubling(Duration);

impl Default for Doubling {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Iterator for Doubling {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = self.0;
        self.0 = wait.saturating_mul(2).min(LONGEST);
        Some(wait)
    }
}

impl Backoff for Doubling {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_bound_and_start_over_after_a_success() {
        let mut waits = Doubling::default();
        let millis: Vec<u128> = waits.by_ref().take(7).map(|w| w.as_millis()).collect();
        assert_eq!(millis, [500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000]);
        waits.reset();
        assert_eq!(waits.next(), Some(FIRST));
    }
}
