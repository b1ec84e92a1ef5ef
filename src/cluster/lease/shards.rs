//! Which gangs a replica acts for: every gang belongs to one shard, and the holder of a shard's Lease acts for its gangs.
//!
//! Rule: the shard follows only from the Workload's UID, the same on every replica and release. What exists once, such as
//! the status of an AdmissionCheck, belongs to shard 0.

use super::Leadership;
use std::sync::Arc;

/// Shard of the Workload with this UID: its FNV-1a hash of 64 bits, modulo the number of shards.
pub fn shard_of(uid: &str, count: usize) -> usize {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let hash = uid.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    let count = u64::try_from(count).unwrap_or(u64::MAX).max(1);
    usize::try_from(hash % count).unwrap_or_default()
}

/// Which shards this replica leads. Cheap to ask and to clone.
#[derive(Clone, Debug)]
pub struct Shards {
    first: Leadership,
    others: Arc<[Leadership]>,
}

impl Shards {
    /// The only shard of a sole replica.
    pub fn sole() -> Self {
        Self::new(Leadership::sole(), Vec::new())
    }

    /// Shard 0 and those after it.
    pub fn new(first: Leadership, others: Vec<Leadership>) -> Self {
        Self { first, others: others.into() }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// The shard of what exists once.
    pub const fn first(&self) -> &Leadership {
        &self.first
    }

    /// All, in order.
    pub fn all(&self) -> impl Iterator<Item = &Leadership> {
        std::iter::once(&self.first).chain(self.others.iter())
    }

    /// The shard of the Workload with this UID.
    pub fn of(&self, uid: &str) -> &Leadership {
        shard_of(uid, self.count()).checked_sub(1).and_then(|i| self.others.get(i)).unwrap_or(&self.first)
    }

    /// Whether this replica leads any shard.
    pub fn any_led(&self) -> bool {
        self.all().any(Leadership::leads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_of_a_uid_never_changes() {
        let uids = [
            "0b2a6b1e-5c1c-4f6e-9d3b-8f6f7a1c2d3e",
            "3f6d9f9e-8a54-4be4-a0a6-0c1d2e3f4a5b",
            "c0ffee00-1234-4abc-8def-001122334455",
            "",
        ];
        assert_eq!(uids.map(|u| shard_of(u, 1)), [0, 0, 0, 0]);
        assert_eq!(uids.map(|u| shard_of(u, 3)), [2, 1, 0, 2]);
        assert_eq!(uids.map(|u| shard_of(u, 16)), [11, 12, 11, 5]);
        // The published test vector of FNV-1a 64: "foobar" hashes to 0x85944171f73967e8.
        assert_eq!(shard_of("foobar", 1 << 32), 0xf739_67e8);
    }

    #[test]
    fn gangs_spread_over_all_shards_alike() {
        for count in [2_usize, 3, 7, 16] {
            let mut sizes = vec![0_usize; count];
            for i in 0..10_000 {
                let uid = crate::digest::hex_digest(&[&i.to_string()], 16);
                sizes[shard_of(&uid, count)] += 1;
            }
            let fair = 10_000 / count;
            assert!(sizes.iter().all(|s| s.abs_diff(fair) < fair / 5), "{sizes:?}");
        }
    }

    #[test]
    fn only_the_leader_of_its_shard_acts_for_a_workload() {
        let until = tokio::time::Instant::now() + std::time::Duration::from_mins(1);
        let (_first, first) = Leadership::channel(None);
        let (_second, second) =
            Leadership::channel(Some(crate::cluster::lease::Term { number: 1, until, after: None }));
        let shards = Shards::new(first, vec![second]);
        assert!(shards.any_led() && !shards.first().leads());
        for uid in ["a", "b", "c", "d"] {
            assert_eq!(shards.of(uid).leads(), shard_of(uid, 2) == 1, "{uid}");
        }
    }
}
