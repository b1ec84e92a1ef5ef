//! How long a gang waits for a gate on a tier that is not the first of its round.
//!
//! Called by `observe` and `explain`. What opens the gate wakes the gang there too; but an earlier tier may have capacity
//! again meanwhile, so it waits no longer than before any next try.

use super::journal::Journal;
use super::snapshot::Snapshot;
use crate::plan::{Obstacle, Outcome};
use jiff::Timestamp;

/// When a new round begins, though the gate may be closed still; `None` where no gate is waited for on a later tier.
pub(super) fn next(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let Some(Outcome::Wait(Obstacle { gate: Some(_), .. })) = snapshot.plan else { return None };
    let wait = snapshot.policy.in_check.wait(journal.memory.tries.saturating_add(1)).signed();
    let begins = journal.entered_at.checked_add(wait).ok();
    begins.filter(|_| journal.memory.option.index > 0)
}

/// Whether what is left of the tiers is closed, and there is no gate to wait for any longer: the end of this round.
pub(super) fn is_through(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.memory.option.index > 0 && next(journal, snapshot).is_none_or(|begins| begins <= snapshot.now)
}
