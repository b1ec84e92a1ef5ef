//! The deadlines of a gang, and how a reboot of a node changes them.

use super::attempt::{Attempt, SlotStatus};
use super::health::Health;
use super::waits::WaitsFor;
use jiff::Timestamp;

impl Attempt<'_> {
    /// The gang's deadline; `None` while a reboot extends it.
    pub(in crate::gang) fn deadline(&self) -> Option<Timestamp> {
        self.journal.memory.deadline.filter(|_| !self.reboots())
    }

    /// Whether a node of the attempt is rebooting, or still has time to become ready afterwards. The gang's deadline is
    /// suspended meanwhile: Karpenter limits the reboot.
    pub(in crate::gang) fn reboots(&self) -> bool {
        let is_down = |slot| matches!(slot, SlotStatus::Coming(_, WaitsFor::Reboot(_)));
        self.slots().any(|(_, slot)| is_down(slot)) || self.restarted_by().is_some()
    }

    /// When the first rebooted node that is not ready again runs out of time: the initialization limit plus the buffer
    /// time.
    pub(in crate::gang) fn restarted_by(&self) -> Option<Timestamp> {
        let policy = self.snapshot.policy;
        let span = policy.deadlines.initialize.signed().saturating_add(policy.buffer_time.signed());
        let coming = self.claims().filter(|c| matches!(c.health, Health::Coming { .. }));
        let ends = coming.filter_map(|c| c.rebooted?.checked_add(span).ok());
        ends.filter(|end| *end > self.snapshot.now).min()
    }

    /// When an approved gang has waited too long for its admission. The time starts when all nodes are ready, or at the last
    /// reboot. `None` while a node reboots.
    pub(in crate::gang) fn admit_ends(&self) -> Option<Timestamp> {
        let entered_at = self.journal.entered_at;
        let rebooted = self.claims().filter_map(|c| c.rebooted).max();
        let begun = rebooted.map_or(entered_at, |t| t.max(entered_at));
        let limit = self.snapshot.policy.deadlines.admit.signed();
        begun.checked_add(limit).ok().filter(|_| !self.reboots())
    }
}
