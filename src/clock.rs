//! The time, from one place: it starts as the wall's, or as a virtual one, and then goes as tokio's clock does,
//! which nobody can set.
//!
//! Deadlines are told by times that the API server gave to objects, so where this machine's clock
//! disagrees with the API server's, the latter is followed.

use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tokio::time::Instant;

/// How finely the API server tells its time.
const GRAIN: SignedDuration = SignedDuration::from_secs(1);

/// Where the time comes from. Clones share what is learnt of the API server's time.
#[derive(Clone, Debug)]
pub struct Clock {
    /// What it showed at a moment that does not move.
    origin: (Timestamp, Instant),
    /// Milliseconds by which it has been put on since.
    ahead: Arc<AtomicI64>,
}

impl Clock {
    /// The machine's clock as it is now. If somebody sets that anew later, this one goes on as before.
    pub fn wall() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// A clock that shows `origin` now and then goes as tokio's does, which tests may pause.
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

    /// Goes on or back by so much at once, as after a sleep of the whole machine.
    pub fn jump(&self, by: SignedDuration) {
        self.ahead.fetch_add(i64::try_from(by.as_millis()).unwrap_or_default(), Ordering::Relaxed);
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        let (origin, started) = self.origin;
        let elapsed = SignedDuration::try_from(started.elapsed()).unwrap_or(SignedDuration::MAX);
        let ahead = SignedDuration::from_millis(self.ahead.load(Ordering::Relaxed));
        origin.checked_add(elapsed).and_then(|now| now.checked_add(ahead)).unwrap_or(Timestamp::MAX)
    }

    /// Learns from an answer that was asked for and came in at these times of this clock and says that
    /// it was given within the second after `date`. Returns by how much the clock is put right.
    pub fn heard(&self, asked: Timestamp, date: Timestamp, received: Timestamp) -> SignedDuration {
        let late = date.duration_since(received);
        let early = asked.duration_since(date) - GRAIN;
        let step = if late.is_positive() {
            late
        } else if early.is_positive() {
            -early
        } else {
            return SignedDuration::ZERO;
        };
        self.jump(step);
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn origin() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_virtual_clock_goes_as_tokios_does() {
        let clock = Clock::starting_at(origin());
        let late = clock.skewed(SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now(), origin() + SignedDuration::from_secs(90));
        assert_eq!(late.now(), origin() + SignedDuration::from_secs(90 - 3600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_disagrees_with_the_api_server_is_put_right_and_stays_so() {
        for skew in [-3_600, -2, 2, 3_600] {
            let clock = Clock::starting_at(origin()).skewed(SignedDuration::from_secs(skew));
            let copy = clock.clone();
            let asked = clock.now();
            assert!(!clock.heard(asked, origin(), clock.now()).is_zero());
            let off = copy.now().duration_since(origin()).abs();
            assert!(off <= GRAIN, "{skew}: {off:?}");
            assert!(clock.heard(clock.now(), origin(), clock.now()).is_zero());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_and_a_clock_that_is_right_to_the_second_change_nothing() {
        let clock = Clock::starting_at(origin());
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(clock.heard(clock.now(), origin(), clock.now()).is_zero());
        let asked = clock.now();
        tokio::time::advance(Duration::from_secs(40)).await;
        let given = origin() + SignedDuration::from_secs(30);
        assert!(clock.heard(asked, given, clock.now()).is_zero());
    }
}
