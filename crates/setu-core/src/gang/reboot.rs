//! What a reboot of a node changes in a gang's times.

use super::claims::{ClaimView, Health};
use super::facts::Facts;
use super::journal::Journal;
use super::losses::live;
use super::waits::WaitsFor;
use jiff::Timestamp;

/// Whether one of the attempt's nodes reboots, or has a while left to be ready again after that. No deadline of the gang's
/// ends that: Karpenter bounds the reboot.
pub fn reboots(journal: &Journal, facts: &Facts<'_>) -> bool {
    let is_down = |c: &ClaimView| matches!(c.health, Health::Coming { waits_for: WaitsFor::Reboot(_), .. });
    live(journal, facts).any(is_down) || restarted_by(journal, facts).is_some()
}

/// When the first of the attempt's nodes that are not ready again after a reboot has had the time for that: as long as a
/// node has to be initialized, and the buffer time.
pub fn restarted_by(journal: &Journal, facts: &Facts<'_>) -> Option<Timestamp> {
    let span = facts.policy.deadlines.initialize.signed().saturating_add(facts.policy.buffer_time.signed());
    let coming = live(journal, facts).filter(|c| matches!(c.health, Health::Coming { .. }));
    let ends = coming.filter_map(|c| c.rebooted?.checked_add(span).ok());
    ends.filter(|end| *end > facts.now).min()
}

/// When a gang that is approved has waited too long for its admission: counted from when all nodes were ready, after the
/// last reboot of one. `None` while one reboots.
pub fn admit_ends(journal: &Journal, facts: &Facts<'_>) -> Option<Timestamp> {
    let rebooted = live(journal, facts).filter_map(|c| c.rebooted).max();
    let begun = rebooted.map_or(journal.entered_at, |t| t.max(journal.entered_at));
    begun.checked_add(facts.policy.deadlines.admit.signed()).ok().filter(|_| !reboots(journal, facts))
}
