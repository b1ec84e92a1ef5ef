//! How replicas share the shards: who takes a free one first, who asks whom for one, and who gives one away.
//!
//! Rule: what is known about the others is read only from the leases. A replica asks for a shard by an annotation on its
//! lease, and only its holder hands it over; no shard is taken away.

use crate::cluster::lock;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Who holds each shard, as last seen by this replica; `None` if it has no holder or that is not known.
#[derive(Debug)]
pub struct Share(Mutex<Vec<Option<String>>>);

impl Share {
    /// A share of this many shards, with nothing known yet.
    pub fn new(shards: usize) -> Self {
        Self(Mutex::new(vec![None; shards]))
    }

    fn holders(&self) -> MutexGuard<'_, Vec<Option<String>>> {
        lock(&self.0)
    }

    /// Records who holds a shard.
    pub fn note(&self, shard: usize, holder: Option<&str>) {
        if let Some(known) = self.holders().get_mut(shard) {
            *known = holder.map(str::to_owned);
        }
    }

    /// How many shards a replica holds.
    pub fn held(&self, by: &str) -> usize {
        count(&self.holders(), by)
    }

    /// The shard that this replica should ask for.
    pub fn wanted(&self, me: &str) -> Option<usize> {
        wanted(&self.holders(), me)
    }

    /// Whether this replica should hand one of its shards to the one that asks.
    pub fn grants(&self, me: &str, asker: &str) -> bool {
        let holders = self.holders();
        count(&holders, me) >= count(&holders, asker) + 2
    }
}

/// How long a replica that holds this many shards leaves a free one to those that hold fewer. At most a fifth of `retry`,
/// because no replica acts for the shard until then.
pub fn takeover_delay(held: usize, retry: Duration) -> Duration {
    let held = u32::try_from(held).unwrap_or(u32::MAX);
    (retry / 5).mul_f64(f64::from(held) / (f64::from(held) + 2.0))
}

fn count(holders: &[Option<String>], who: &str) -> usize {
    holders.iter().flatten().filter(|h| *h == who).count()
}

/// The last shard of the replica that holds most, if that replica would still hold no fewer than `me` after handing it over.
/// `None` while a shard is free: a free one is taken first.
fn wanted(holders: &[Option<String>], me: &str) -> Option<usize> {
    let all: Vec<&str> = holders.iter().map(Option::as_deref).collect::<Option<_>>()?;
    let richest = all.iter().max_by_key(|who| (count(holders, who), **who))?;
    let enough = count(holders, richest) >= count(holders, me) + 2;
    all.iter().rposition(|who| enough && who == richest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holders: &str) -> Vec<Option<String>> {
        holders.chars().map(|c| (c != '-').then(|| c.to_string())).collect()
    }

    #[test]
    fn a_replica_asks_the_largest_holder_only_while_that_evens_out_the_shares() {
        for (holders, me, shard) in [
            ("a", "b", None),
            ("aa", "b", Some(1)),
            ("ab", "c", None),
            ("aab", "b", None),
            ("aaab", "b", Some(2)),
            ("abbb", "c", Some(3)),
            ("aa-", "b", None),
            ("aaa", "a", None),
            ("", "a", None),
        ] {
            assert_eq!(wanted(&held_by(holders), me), shard, "{holders} {me}");
        }
    }

    #[test]
    fn shares_settle_with_a_difference_of_at_most_one() {
        for (shards, replicas) in [(1_usize, 3_usize), (3, 3), (5, 2), (16, 5), (7, 4)] {
            let names: Vec<String> = (0..replicas).map(|i| i.to_string()).collect();
            let share = Share(Mutex::new(vec![names.first().cloned(); shards]));
            let mut moves = 0;
            while let Some((who, shard)) = names.iter().find_map(|who| Some((who, share.wanted(who)?))) {
                let holder = share.holders()[shard].clone().unwrap();
                assert!(share.grants(&holder, who));
                share.note(shard, Some(who));
                moves += 1;
                assert!(moves <= shards * replicas, "shards go round and round");
            }
            let held: Vec<usize> = names.iter().map(|who| share.held(who)).collect();
            assert!(held.iter().max().unwrap() - held.iter().min().unwrap() <= 1, "{held:?}");
        }
    }

    #[test]
    fn a_replica_without_shards_takes_a_free_one_first() {
        let retry = Duration::from_secs(2);
        assert_eq!(takeover_delay(0, retry), Duration::ZERO);
        assert!(takeover_delay(1, retry) < takeover_delay(2, retry));
        assert!(
            takeover_delay(usize::MAX, retry) <= retry / 5,
            "a free shard is taken soon, however many there are"
        );
    }
}
