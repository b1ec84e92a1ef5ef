//! Whether Setu lets a Workload into Kueue's queue: not while a gang of it is refused.
//!
//! Called by the controller, which writes the condition. Rule: a condition of another installation of Setu is not taken back.

use super::other_installations::OtherInstallations;
use crate::api::workload::{CheckState, Verdict};
use crate::api::{Workload, condition};
use crate::gang::snapshot::Snapshot;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::Reservation;
use crate::gang::statechart::rules::Eviction;
use crate::gang::statechart::state::State;
use crate::names;

/// Whether Setu lets a Workload into Kueue's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// It may be queued.
    Allowed,
    /// It is kept out.
    KeptOut,
}

impl Queueing {
    /// Reads it from the Workload's conditions.
    pub fn of(workload: &Workload) -> Self {
        let found = condition::find(workload.conditions(), names::REQUEUED);
        let is_kept_out = found.is_some_and(|c| c.status == "False" && c.reason == names::REFUSED);
        if is_kept_out { Self::KeptOut } else { Self::Allowed }
    }

    /// Status, reason and message of the condition that [`Self::of`] reads it from.
    pub const fn condition(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Allowed => ("True", names::ALLOWED, "what it was refused for may have changed"),
            Self::KeptOut => ("False", names::REFUSED, "Setu refuses it; the message of its check says why"),
        }
    }

    /// Whether `Requeued` lags behind the check: the replica that reported Retry stopped before writing it. Write it
    /// before the check changes, because only its change requeues the Workload.
    pub fn condition_is_due(
        self,
        journal: &Journal,
        snapshot: &Snapshot<'_>,
        reported: Option<&CheckState>,
    ) -> bool {
        self == Self::Allowed && reported.is_some_and(|entry| may_requeue(journal, snapshot, entry))
    }

    /// The queueing that one gang requires. `condition_is_due` is from [`Self::condition_is_due`].
    pub fn of_gang(journal: &Journal, snapshot: &Snapshot<'_>, condition_is_due: bool) -> Self {
        let is_kept_out = condition_is_due || must_stay_out(journal, snapshot);
        if is_kept_out { Self::KeptOut } else { Self::Allowed }
    }

    /// The queueing to write, given what each gang of ours requires; `None` if nothing is to change.
    pub fn change(
        workload: &Workload,
        of_gangs: impl IntoIterator<Item = Self>,
        others: OtherInstallations,
    ) -> Option<Self> {
        let is_kept_out = of_gangs.into_iter().any(|of_gang| of_gang == Self::KeptOut);
        let wanted = if is_kept_out { Self::KeptOut } else { Self::Allowed };
        // Another Setu that keeps it out also puts it back.
        let may_write = is_kept_out || !others.may_refuse;
        (workload.front_end().holds_quota() && may_write && wanted != Self::of(workload)).then_some(wanted)
    }
}

/// Whether the check may stop keeping the gang out of Kueue's queue. Kueue requeues only when `Requeued` changes, so
/// that condition must be False first.
pub fn may_requeue(journal: &Journal, snapshot: &Snapshot<'_>, reported: &CheckState) -> bool {
    snapshot.reservation.retry_blocks_requeue(reported.state) && !is_refused(journal, snapshot)
}

/// Whether the gang has given back its quota over a refusal that still stands.
pub fn is_refused(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    journal.state == State::Yielded && snapshot.refusal.is_some()
}

/// Whether to keep a refused gang out of Kueue's queue: its quota is given back, and the refusal still stands.
fn must_stay_out(journal: &Journal, snapshot: &Snapshot<'_>) -> bool {
    snapshot.eviction == Eviction::Harmless
        && is_refused(journal, snapshot)
        && snapshot.reservation.retry_blocks_requeue(Verdict::Retry)
}

/// Whether a check with this verdict keeps a refused gang out of Kueue's queue.
pub fn is_out_after_refusal(journal: &Journal, reservation: &Reservation, reported: Verdict) -> bool {
    journal.state == State::Yielded && reservation.retry_blocks_requeue(reported)
}

#[cfg(test)]
mod tests {
    use super::Queueing::{Allowed, KeptOut};
    use super::*;
    use serde_json::json;

    fn workload(status: &str, reason: &str) -> Workload {
        let condition = json!({
            "type": "Requeued", "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(
            json!({"metadata": {"name": "w"}, "spec": {}, "status": {"conditions": [condition]}}),
        )
        .unwrap()
    }

    #[test]
    fn a_workload_is_kept_out_only_by_setus_own_condition() {
        let never: Workload = serde_json::from_value(json!({"metadata": {"name": "w"}, "spec": {}})).unwrap();
        assert_eq!(Queueing::of(&never), Allowed);
        for (status, reason, of) in [
            ("False", names::REFUSED, KeptOut),
            ("True", names::REFUSED, Allowed),
            ("False", "Deactivated", Allowed),
            ("False", "ClusterQueueStopped", Allowed),
        ] {
            assert_eq!(Queueing::of(&workload(status, reason)), of, "{status} {reason}");
        }
    }

    #[test]
    fn one_refused_gang_keeps_a_workload_out_and_another_setu_puts_back_what_it_keeps_out() {
        let (out, queued) = (workload("False", names::REFUSED), workload("True", names::ALLOWED));
        let alone = OtherInstallations { may_refuse: false, may_have_nodes: false };
        let others = OtherInstallations { may_refuse: true, ..alone };
        for (workload, of_gangs, others, change) in [
            (&queued, vec![Allowed, KeptOut], alone, Some(KeptOut)),
            (&queued, vec![KeptOut], others, Some(KeptOut)),
            (&queued, vec![Allowed], alone, None),
            (&out, vec![KeptOut], alone, None),
            (&out, vec![Allowed], alone, Some(Allowed)),
            (&out, vec![], alone, Some(Allowed)),
            (&out, vec![Allowed], others, None),
        ] {
            assert_eq!(Queueing::change(workload, of_gangs.clone(), others), change, "{of_gangs:?}");
        }
        let mut request = queued.clone();
        request.metadata.name = Some(format!("{}r", names::REQUEST_PREFIX));
        assert_eq!(Queueing::change(&request, [KeptOut], alone), None);
    }
}
