//! The only source of time. It starts at wall time or at a virtual time, and then follows tokio's clock, which cannot be
//! set.
//!
//! Deadlines are based on times that the API server gave to objects. Where this machine's clock disagrees with the API
//! server's, the API server's is followed.

use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::time::Instant;

/// Granularity of the API server's time.
const GRAIN: SignedDuration = SignedDuration::from_secs(1);

/// A source of time. Clones share what is learnt about the API server's time.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The time that it showed at a fixed instant.
    origin: (Timestamp, Instant),
    /// Milliseconds by which it was moved since.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// The machine's clock as it is now. Later changes to that clock have no effect.
    pub fn wall() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// A clock that shows `origin` now and then follows tokio's, which tests may pause.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self { origin: (origin, Instant::now()), ahead: Arc::default() }
    }

    /// Another machine's clock, wrong by `skew`.
    #[must_use]
    pub fn skewed(&self, skew: SignedDuration) -> Self {
        let other = Self { origin: self.origin, ahead: Arc::default() };
        other.jump(skew);
        other
    }

    /// Moves forward or back by this much at once, as after a sleep of the whole machine.
    pub fn jump(&self, by: SignedDuration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap_or_default(), Ordering::Relaxed);
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        let (origin, started) = self.origin;
        let elapsed = SignedDuration::try_from(started.elapsed()).unwrap_or(SignedDuration::MAX);
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed));
        origin.checked_add(elapsed).and_then(|now| now.checked_add(ahead)).unwrap_or(Timestamp::MAX)
    }

    /// Notes that the API server is asked now.
    pub fn ask(&self) -> Asked {
        Asked { ahead: self.ahead.load(Ordering::Relaxed), at: self.now() }
    }

    /// Adjusts the clock to an answer of the API server, which was given within the second after `date` and is received now.
    /// Returns the correction of the clock. It is zero if the clock was moved since the question: another answer corrected it.
    pub fn adjust(&self, asked: Asked, date: Timestamp) -> SignedDuration {
        let late = date.duration_since(self.now());
        let early = asked.at.duration_since(date) - GRAIN;
        let step = if late.is_positive() {
            late
        } else if early.is_positive() {
            -early
        } else {
            return SignedDuration::ZERO;
        };
        let moved = asked.ahead.saturating_add(i64::try_from(step.as_millis()).unwrap_or_default());
        let swapped = self.ahead.compare_exchange(asked.ahead, moved, Ordering::Relaxed, Ordering::Relaxed);
        if swapped.is_ok() { step } else { SignedDuration::ZERO }
    }
}

/// When the API server was asked, by a clock that may have been moved since.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: Timestamp,
    ahead: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn origin() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_follows_tokios_clock() {
        let clock = Clock::starting_at(origin());
        let late = clock.skewed(SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), origin() + SignedDuration::from_secs(90));
        assert_eq!(late.now(), origin() + SignedDuration::from_secs(90 - 3600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_disagrees_with_the_api_server_is_corrected_once() {
        for skew in [-3_600, -2, 2, 3_600] {
            let clock = Clock::starting_at(origin()).skewed(SignedDuration::from_secs(skew));
            let copy = clock.clone();
            // Three calls at once, as at the start.
            let asked = [clock.ask(), clock.ask(), clock.ask()];
            let steps = asked.map(|asked| clock.adjust(asked, origin()));
            assert!(!steps[0].is_zero() && steps[1].is_zero() && steps[2].is_zero(), "{skew}: {steps:?}");
            let off = copy.now().duration_since(origin()).abs();
            assert!(off <= GRAIN, "{skew}: {off:?}");
            assert!(clock.adjust(clock.ask(), origin()).is_zero());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_or_a_clock_right_to_the_second_changes_nothing() {
        let clock = Clock::starting_at(origin());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(clock.adjust(clock.ask(), origin()).is_zero());
        let asked = clock.ask();
        tokio::time::advance(Duration::from_secs(40)).await;
        let given = origin() + SignedDuration::from_secs(30);
        assert!(clock.adjust(asked, given).is_zero());
    }
}
