//! Counts of the gangs whose plans are entered, for the guards.

use super::Ledger;
use crate::plan::gates::inflight::{HOUR, HeldNodes, InflightNodes, MINUTE, RecentCreates};
use jiff::{SignedDuration, Timestamp};

/// How soon a gang that waits for claims to become ready is reconciled again.
const RECHECK_AFTER: SignedDuration = SignedDuration::from_secs(5);

impl Ledger {
    /// Counts of the other gangs that are entered, for the guards. `queue` is the gang's LocalQueue if a guard is per LocalQueue.
    pub fn inflight(&self, gang: &str, queue: Option<&str>, now: Timestamp) -> InflightNodes {
        let held = self.held_by_others(gang, None).map(|held| held.nodes);
        InflightNodes {
            in_flight: held.fold(0, u32::saturating_add),
            recheck_at: now.checked_add(RECHECK_AFTER).ok(),
            last_minute: self.created(None, MINUTE, now),
            queue: queue.map_or_else(Vec::new, |of| self.held_by_others(gang, Some(of)).cloned().collect()),
            queue_last_hour: queue
                .map_or_else(RecentCreates::default, |of| self.created(Some(of), HOUR, now)),
        }
    }

    /// Nodes entered by all other gangs, or by those of one LocalQueue.
    pub(super) fn held_by_others(&self, gang: &str, queue: Option<&str>) -> impl Iterator<Item = &HeldNodes> {
        let others = self
            .entries
            .iter()
            .filter(move |(id, entry)| *id != gang && queue.is_none_or(|q| q == entry.queue));
        others.flat_map(|(_, entry)| &entry.held)
    }

    /// How many claims were created within a span, in total or for one LocalQueue.
    pub(super) fn created(
        &self,
        queue: Option<&str>,
        within: SignedDuration,
        now: Timestamp,
    ) -> RecentCreates {
        let counts =
            |(at, of, _): &&(Timestamp, String, u32)| *at + within > now && queue.is_none_or(|q| q == of);
        let counted: Vec<_> = self.created.iter().filter(counts).collect();
        RecentCreates {
            claims: counted.iter().map(|(_, _, claims)| *claims).fold(0, u32::saturating_add),
            frees_at: counted.first().map(|(at, ..)| *at + within),
        }
    }
}
