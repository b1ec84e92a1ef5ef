//! The time, from one place: the wall's, or a virtual one that follows tokio's clock.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Where the time comes from.
#[derive(Clone, Debug)]
pub struct Clock {
    origin: Option<(Timestamp, Instant)>,
    skew: SignedDuration,
}

impl Clock {
    /// The machine's clock.
    pub const fn wall() -> Self {
        Self { origin: None, skew: SignedDuration::ZERO }
    }

    /// A clock that shows `origin` now and then goes as tokio's does, which tests may pause.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self { origin: Some((origin, Instant::now())), skew: SignedDuration::ZERO }
    }

    /// The same clock, wrong by `skew`.
    #[must_use]
    pub const fn skewed(mut self, skew: SignedDuration) -> Self {
        self.skew = skew;
        self
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        let now = match &self.origin {
            None => Timestamp::now(),
            Some((origin, started)) => {
                let elapsed = SignedDuration::try_from(started.elapsed()).unwrap_or(SignedDuration::MAX);
                origin.checked_add(elapsed).unwrap_or(Timestamp::MAX)
            }
        };
        now.checked_add(self.skew).unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_goes_as_tokios_does() {
        let origin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::starting_at(origin);
        let late = clock.clone().skewed(SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), origin + SignedDuration::from_secs(90));
        assert_eq!(late.now(), origin + SignedDuration::from_secs(90 - 3600));
    }
}
