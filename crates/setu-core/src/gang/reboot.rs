//! What a reboot of a node changes in a gang's times.

use super::claims::Health;
use super::slot::{Attempt, SlotStatus};
use super::waits::WaitsFor;
use jiff::Timestamp;

impl Attempt<'_> {
    /// Whether one of the attempt's nodes reboots, or has a while left to be ready again after that. No deadline of the
    /// gang's ends that: Karpenter bounds the reboot.
    pub(super) fn reboots(&self) -> bool {
        let is_down = |slot| matches!(slot, SlotStatus::Coming(_, WaitsFor::Reboot(_)));
        self.slots().any(|(_, slot)| is_down(slot)) || self.restarted_by().is_some()
    }

    /// When the first of the attempt's nodes that are not ready again after a reboot has had the time for that: as long as
    /// a node has to be initialized, and the buffer time.
    pub(super) fn restarted_by(&self) -> Option<Timestamp> {
        let policy = self.snapshot.policy;
        let span = policy.deadlines.initialize.signed().saturating_add(policy.buffer_time.signed());
        let coming = self.claims().filter(|c| matches!(c.health, Health::Coming { .. }));
        let ends = coming.filter_map(|c| c.rebooted?.checked_add(span).ok());
        ends.filter(|end| *end > self.snapshot.now).min()
    }

    /// When a gang that is approved has waited too long for its admission: counted from when all nodes were ready, after
    /// the last reboot of one. `None` while one reboots.
    pub(super) fn admit_ends(&self) -> Option<Timestamp> {
        let entered_at = self.journal.entered_at;
        let rebooted = self.claims().filter_map(|c| c.rebooted).max();
        let begun = rebooted.map_or(entered_at, |t| t.max(entered_at));
        let limit = self.snapshot.policy.deadlines.admit.signed();
        begun.checked_add(limit).ok().filter(|_| !self.reboots())
    }
}
