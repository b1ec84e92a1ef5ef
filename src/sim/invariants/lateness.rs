//! How old a replica's knowledge may be when its request arrives.

use jiff::{SignedDuration, Timestamp};

/// The delays of requests in a run.
#[derive(Default)]
pub struct Lateness {
    /// Maximum additional delay of a request.
    pub delay: SignedDuration,
    /// Periods in which a replica was paused.
    sleeps: Vec<(Timestamp, Timestamp)>,
}

impl Lateness {
    /// A replica that was paused since then resumes.
    pub fn woke(&mut self, since: Timestamp, now: Timestamp) {
        self.sleeps.push((since, now));
    }

    /// The time this long before `now`, not counting time while a replica was paused.
    pub fn before(&self, now: Timestamp, mut awake: SignedDuration) -> Timestamp {
        let mut at = now;
        for (since, until) in self.sleeps.iter().rev().filter(|(since, _)| *since < now) {
            let passed = at.duration_since(*until);
            if passed > awake {
                break;
            }
            awake -= passed.max(SignedDuration::ZERO);
            at = at.min(*since);
        }
        at.checked_sub(awake).unwrap_or(Timestamp::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn paused_time_does_not_count_as_age() {
        let mut late = Lateness::default();
        let ten = SignedDuration::from_secs(10);
        assert_eq!(late.before(at(1_000), ten), at(990));
        late.woke(at(100), at(700));
        late.woke(at(300), at(705));
        assert_eq!(late.before(at(1_000), ten), at(990));
        assert_eq!(late.before(at(707), ten), at(92), "asleep from 100 to 705, and awake for 2 s since");
        assert_eq!(late.before(at(50), ten), at(40), "asleep later");
    }
}
