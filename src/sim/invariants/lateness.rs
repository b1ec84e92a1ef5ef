//! How old what a replica knows may be when what it sends arrives.

use jiff::{SignedDuration, Timestamp};

/// How late requests are in a run.
#[derive(Default)]
pub struct Lateness {
    /// How much longer than usual a request may be on its way.
    pub delay: SignedDuration,
    /// From when to when a replica stood still.
    sleeps: Vec<(Timestamp, Timestamp)>,
}

impl Lateness {
    /// A replica that stood still since then goes on.
    pub fn woke(&mut self, since: Timestamp, now: Timestamp) {
        self.sleeps.push((since, now));
    }

    /// The time so long before `now`, if what was slept through does not count.
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
    fn who_has_slept_knows_what_was_before_and_who_is_long_awake_does_not() {
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
