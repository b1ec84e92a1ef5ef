//! The most recently named keys, in order.
//!
//! A store keeps recently changed objects unpacked, and asks here which one to pack next.

use std::collections::BTreeMap;

/// At most this many keys. A further key pushes out the one that was named longest ago.
#[derive(Debug)]
pub struct Recent<K> {
    most: usize,
    turns: BTreeMap<K, u64>,
    order: BTreeMap<u64, K>,
    count: u64,
}

impl<K: Clone + Ord> Recent<K> {
    /// Keeps none yet, and never more than `most`.
    pub const fn new(most: usize) -> Self {
        Self { most, turns: BTreeMap::new(), order: BTreeMap::new(), count: 0 }
    }

    /// Names a key; returns the one that it pushes out.
    pub fn name(&mut self, key: K) -> Option<K> {
        self.forget(&key);
        self.count = self.count.wrapping_add(1);
        self.order.insert(self.count, key.clone());
        self.turns.insert(key, self.count);
        if self.turns.len() <= self.most {
            return None;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.turns.remove(&oldest);
        Some(oldest)
    }

    /// Forgets a key.
    pub fn forget(&mut self, key: &K) {
        if let Some(turn) = self.turns.remove(key) {
            self.order.remove(&turn);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_named_longest_ago_is_pushed_out() {
        let mut recent = Recent::new(2);
        assert_eq!(
            ["a", "b", "a", "c", "b"].map(|key| recent.name(key)),
            [None, None, None, Some("b"), Some("a")]
        );
        recent.forget(&"c");
        assert_eq!(["d", "e"].map(|key| recent.name(key)), [None, Some("b")]);
        recent.clear();
        assert_eq!(["d", "e"].map(|key| recent.name(key)), [None, None]);
    }
}
