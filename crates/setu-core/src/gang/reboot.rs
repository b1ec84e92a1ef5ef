//! What a reboot of a node changes in a gang's times.

use super::claims::{ClaimView, Health};
use super::journal::Journal;
use super::losses::live;
use super::snapshot::Snapshot;
use super::waits::WaitsFor;
use jiff::Timestamp;

/// Whether one of the attempt's nodes reboots, or has a while left to be ready again after that. No deadline of the gang's
/// ends that: Karpenter bounds the reboot.
pub fn reboots(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    let is_down = |c: &ClaimView| matches!(c.health, Health::Coming { waits_for: WaitsFor::Reboot(_), .. });
    live(journal, snapshot).any(is_down) || restarted_by(journal, snapshot).is_some()
}

/// When the first of the attempt's nodes that are not ready again after a reboot has had the time for that: as long as a
/// node has to be initialized, and the buffer time.
pub fn restarted_by(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let span =
        snapshot.policy.deadlines.initialize.signed().saturating_add(snapshot.policy.buffer_time.signed());
    let coming = live(journal, snapshot).filter(|c| matches!(c.health, Health::Coming { .. }));
    let ends = coming.filter_map(|c| c.rebooted?.checked_add(span).ok());
    ends.filter(|end| *end > snapshot.now).min()
}

/// When a gang that is approved has waited too long for its admission: counted from when all nodes were ready, after the
/// last reboot of one. `None` while one reboots.
pub fn admit_ends(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let rebooted = live(journal, snapshot).filter_map(|c| c.rebooted).max();
    let begun = rebooted.map_or(journal.entered_at, |t| t.max(journal.entered_at));
    begun.checked_add(snapshot.policy.deadlines.admit.signed()).ok().filter(|_| !reboots(journal, snapshot))
}
