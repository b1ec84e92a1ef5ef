//! How long a gang waits for a gate on a tier after the first.
//!
//! Used by `validating`, `wake` and `report/explain`. An opened gate also wakes the gang. An earlier tier may regain
//! capacity unnoticed, so the wait is never longer than before any other try.

use crate::gang::snapshot::Snapshot;
use crate::gang::statechart::journal::Journal;
use crate::plan::{Obstacle, Outcome};
use jiff::Timestamp;

/// When a new round starts even if the gate is still closed; `None` unless the gang waits for a gate on a later tier.
pub(in crate::gang) fn next_round(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Timestamp> {
    let Some(Outcome::Wait(Obstacle { gate: Some(_), .. })) = snapshot.plan else { return None };
    let wait = snapshot.policy.in_check.wait(journal.memory.tries.saturating_add(1)).signed();
    let begins = journal.entered_at.checked_add(wait).ok();
    begins.filter(|_| journal.memory.option.index > 0)
}

/// Whether the remaining tiers are closed and the wait for a gate is over: the end of this round.
pub(super) fn is_round_over(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.memory.option.index > 0
        && next_round(journal, snapshot).is_none_or(|begins| begins <= snapshot.now)
}
