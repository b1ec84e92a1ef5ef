//! Lanes that take turns: what waits in one does not hold up what waits in another.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// What waits, each in its lane, first come first served within it.
#[derive(Debug)]
pub struct Lanes<T> {
    waiting: BTreeMap<String, VecDeque<T>>,
    /// The lane that had its turn last.
    last: String,
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), last: String::new() }
    }
}

impl<T> Lanes<T> {
    /// Has `item` wait at the end of a lane.
    pub fn push(&mut self, lane: String, item: T) {
        self.waiting.entry(lane).or_default().push_back(item);
    }

    /// The first of the next lane that has room, counted from the one that had its turn last.
    pub fn next(&mut self, has_room: impl Fn(&str) -> bool) -> Option<(String, T)> {
        let after = (Bound::Excluded(&self.last), Bound::Unbounded);
        let upto = (Bound::Unbounded, Bound::Included(&self.last));
        let in_turn = self.waiting.range::<String, _>(after).chain(self.waiting.range::<String, _>(upto));
        let lane = in_turn.map(|(lane, _)| lane).find(|lane| has_room(lane)).cloned()?;
        let items = self.waiting.get_mut(&lane)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            self.waiting.remove(&lane);
        }
        self.last.clone_from(&lane);
        Some((lane, item))
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_take_turns_and_one_without_room_is_passed_over() {
        let mut lanes = Lanes::default();
        for (lane, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5)] {
            lanes.push(lane.to_owned(), item);
        }
        let mut order = Vec::new();
        for full in ["", "b", "", "", ""] {
            order.extend(lanes.next(|lane| lane != full).map(|(_, item)| item));
        }
        assert_eq!(order, [1, 5, 2, 4, 3]);
        assert!(lanes.is_empty() && lanes.next(|_| true).is_none());
    }
}
