//! The gates' last answer about each gang, and how many gangs each obstacle holds up.

use crate::plan::ObstacleReason;
use std::collections::BTreeMap;

/// The answers about all gangs since each moved.
#[derive(Debug, Default)]
pub struct Answers {
    /// `None` if the gates let the gang pass.
    by_gang: BTreeMap<String, Option<ObstacleReason>>,
    held_up: BTreeMap<ObstacleReason, usize>,
}

impl Answers {
    /// Whether an obstacle with this reason holds up any gang. Does not depend on the number of gangs.
    pub fn hold_up_any(&self, reason: ObstacleReason) -> bool {
        self.held_up.contains_key(&reason)
    }

    /// Records what a gang waits for, or that it waits for nothing. Returns whether that is new.
    pub fn note(&mut self, gang: &str, obstacle: Option<ObstacleReason>) -> bool {
        let before = self.by_gang.insert(gang.to_owned(), obstacle);
        if let Some(reason) = obstacle {
            *self.held_up.entry(reason).or_default() += 1;
        }
        self.lose(before.flatten());
        before != Some(obstacle)
    }

    /// Forgets the answer about a gang.
    pub fn forget(&mut self, gang: &str) {
        let before = self.by_gang.remove(gang);
        self.lose(before.flatten());
    }

    /// How many gangs have an answer.
    pub fn count(&self) -> usize {
        self.by_gang.len()
    }

    fn lose(&mut self, reason: Option<ObstacleReason>) {
        let Some(reason) = reason else { return };
        if let Some(gangs) = self.held_up.get_mut(&reason) {
            *gangs -= 1;
            if *gangs == 0 {
                self.held_up.remove(&reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_holds_up_gangs_until_the_last_one_has_another_answer() {
        let (limit, guard) = (ObstacleReason::LimitExceeded, ObstacleReason::Guarded);
        let mut answers = Answers::default();
        assert!(answers.note("a", Some(limit)) && answers.note("b", Some(limit)));
        assert!(!answers.note("a", Some(limit)), "it is not new");
        assert!(answers.hold_up_any(limit) && !answers.hold_up_any(guard));
        assert!(answers.note("a", Some(guard)));
        answers.forget("b");
        assert!(!answers.hold_up_any(limit) && answers.hold_up_any(guard));
        assert!(answers.note("a", None));
        answers.forget("c");
        assert_eq!((answers.hold_up_any(guard), answers.count()), (false, 1));
    }
}
