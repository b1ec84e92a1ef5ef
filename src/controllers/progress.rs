//! Limits how often messages that only report progress are written, to one Workload and to all Workloads.
//!
//! Rule: each message wakes Kueue, and with a thousand waiting gangs nothing else would get through. Journals, verdicts
//! and Events do not wait here.

use crate::cluster::lock;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The time between two messages to one Workload.
const INTERVAL: SignedDuration = SignedDuration::from_secs(5);
/// The time between messages to any two Workloads.
const GAP: SignedDuration = SignedDuration::from_millis(200);

/// How long a turn is kept that is not taken.
const KEPT: SignedDuration = SignedDuration::from_mins(1);

/// Past messages and coming turns of Workloads. Kept apart from the registry, because Workloads take turns in it, by time.
#[derive(Debug, Default)]
pub struct ProgressLimiter(Mutex<Turns>);

#[derive(Debug, Default)]
struct Turns {
    /// When Workloads got their last message, by UID.
    reported: BTreeMap<String, Timestamp>,
    /// When waiting Workloads have their turn, by UID.
    due: BTreeMap<String, Timestamp>,
    /// When the next free turn is.
    free: Timestamp,
}

impl ProgressLimiter {
    /// Takes the turn of the Workload with this UID: `None` means that it may get a message now, otherwise when it may.
    pub fn take_turn(&self, uid: &str, now: Timestamp) -> Option<Timestamp> {
        let mut turns = lock(&self.0);
        turns.forget(now);
        if let Some(last) = turns.reported.get(uid) {
            return Some(*last + INTERVAL);
        }
        let turn = turns.due.remove(uid).unwrap_or_else(|| turns.take(now));
        if turn > now {
            turns.due.insert(uid.to_owned(), turn);
            return Some(turn);
        }
        turns.reported.insert(uid.to_owned(), now);
        None
    }
}

impl ProgressLimiter {
    /// Forgets a Workload that is gone.
    pub fn forget(&self, uid: &str) {
        let mut turns = lock(&self.0);
        turns.reported.remove(uid);
        turns.due.remove(uid);
    }

    /// How many entries there are.
    pub fn count(&self) -> usize {
        let turns = lock(&self.0);
        turns.reported.len() + turns.due.len()
    }
}

impl Turns {
    fn take(&mut self, now: Timestamp) -> Timestamp {
        let turn = self.free.max(now);
        self.free = turn + GAP;
        turn
    }

    /// Forgets what no longer counts: old messages, and turns that were not taken. Times too far ahead are from before
    /// the clock was set back.
    fn forget(&mut self, now: Timestamp) {
        self.reported.retain(|_, last| *last <= now && *last + INTERVAL > now);
        let waiting = i32::try_from(self.due.len()).unwrap_or(i32::MAX);
        let latest = now + GAP.saturating_mul(waiting.saturating_add(1));
        self.due.retain(|_, turn| *turn <= latest && *turn + KEPT > now);
        self.free = self.free.min(latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + millis).unwrap()
    }

    #[test]
    fn one_workload_gets_a_message_every_five_seconds() {
        let progress = ProgressLimiter::default();
        assert_eq!(progress.take_turn("a", at(0)), None);
        assert_eq!(progress.take_turn("a", at(10)), Some(at(5_000)));
        assert_eq!(progress.take_turn("a", at(5_000)), None);
    }

    #[test]
    fn many_workloads_get_their_turns_in_order_of_arrival() {
        let progress = ProgressLimiter::default();
        let names: Vec<String> = (0..50).map(|i| format!("{i:02}")).collect();
        let turns: Vec<_> = names.iter().map(|name| progress.take_turn(name, at(0))).collect();
        assert_eq!((turns[0], turns[1], turns[49]), (None, Some(at(200)), Some(at(9_800))));
        assert_eq!(progress.take_turn("25", at(40)), Some(at(5_000)), "whoever asks again keeps his turn");
        assert_eq!(progress.take_turn("25", at(5_003)), None);
    }

    #[test]
    fn an_unused_turn_does_not_block_others_for_long() {
        let progress = ProgressLimiter::default();
        for name in ["a", "b", "c"] {
            let _ = progress.take_turn(name, at(0));
        }
        assert_eq!(progress.take_turn("b", at(9_000)), None, "its turn is kept");
        assert_eq!(progress.take_turn("d", at(70_000)), None);
        assert_eq!(progress.take_turn("c", at(70_050)), Some(at(70_200)), "not for ever");
    }

    #[test]
    fn a_clock_that_is_set_back_blocks_no_workload() {
        let progress = ProgressLimiter::default();
        for name in ["a", "b", "c"] {
            let _ = progress.take_turn(name, at(900_000));
        }
        assert_eq!(progress.take_turn("d", at(0)), Some(at(600)));
        assert!(progress.take_turn("b", at(600)).is_none_or(|due| due <= at(1_200)));
    }
}
