//! Flows that take turns: items that wait in one flow do not hold up those in another.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Waiting items, each in its flow, first come first served within it.
#[derive(Debug)]
pub struct FairQueue<T> {
    waiting: BTreeMap<String, VecDeque<T>>,
    /// The flow that had its turn last.
    last: String,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), last: String::new() }
    }
}

impl<T> FairQueue<T> {
    /// Adds `item` at the end of a flow.
    pub fn push(&mut self, flow: String, item: T) {
        self.waiting.entry(flow).or_default().push_back(item);
    }

    /// The first item of the next flow that has room, counted from the one that had its turn last.
    pub fn next(&mut self, has_room: impl Fn(&str) -> bool) -> Option<(String, T)> {
        let after = (Bound::Excluded(&self.last), Bound::Unbounded);
        let upto = (Bound::Unbounded, Bound::Included(&self.last));
        let in_turn = self.waiting.range::<String, _>(after).chain(self.waiting.range::<String, _>(upto));
        let flow = in_turn.map(|(flow, _)| flow).find(|flow| has_room(flow)).cloned()?;
        let items = self.waiting.get_mut(&flow)?;
        let item = items.pop_front()?;
        if items.is_empty() {
            self.waiting.remove(&flow);
        }
        self.last.clone_from(&flow);
        Some((flow, item))
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
    fn flows_take_turns_and_a_flow_without_room_is_skipped() {
        let mut flows = FairQueue::default();
        for (flow, item) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5)] {
            flows.push(flow.to_owned(), item);
        }
        let mut order = Vec::new();
        for full in ["", "b", "", "", ""] {
            order.extend(flows.next(|flow| flow != full).map(|(_, item)| item));
        }
        assert_eq!(order, [1, 5, 2, 4, 3]);
        assert!(flows.is_empty() && flows.next(|_| true).is_none());
    }
}
