//! When a Workload has the finalizer that `--workload-finalizer` puts on it: while its gangs may have nodes.
//!
//! Called by the controller, which writes it. Rule: it is removed, with or without the flag, once nothing is held and
//! no other installation may need it. A Workload that is being deleted is released after `RELEASE_AFTER` in any case,
//! because its nodes are swept without it.

use super::other_installations::OtherInstallations;
use crate::api::Workload;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

/// How long a Workload that is being deleted waits for its nodes.
const RELEASE_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Whether the finalizer is to be added. `is_on` is the flag.
pub fn is_missing(workload: &Workload, is_on: bool) -> bool {
    is_on && may_get_nodes(workload) && !has_finalizer(workload)
}

/// Whether it is removed now, whatever the Workload holds: a failing gang must not block the deletion of its namespace.
pub fn is_overdue(workload: &Workload, now: Timestamp) -> bool {
    has_finalizer(workload) && release_at(workload).is_some_and(|end| end <= now)
}

/// Whether the finalizer is needed after a reconcile of the Workload. `has_nodes` says whether it has nodes, or may still get some.
pub fn is_needed(workload: &Workload, is_on: bool, has_nodes: bool, others: OtherInstallations) -> bool {
    has_nodes || others.may_have_nodes || is_on && may_get_nodes(workload)
}

/// When a Workload that is being deleted is released, whatever it holds.
pub fn release_at(workload: &Workload) -> Option<Timestamp> {
    workload.metadata.deletion_timestamp.as_ref()?.0.checked_add(RELEASE_AFTER).ok()
}

/// Whether the Workload has the finalizer.
pub fn has_finalizer(workload: &Workload) -> bool {
    workload.finalizers().iter().any(|f| f == names::FINALIZER)
}

fn may_get_nodes(workload: &Workload) -> bool {
    let is_over = workload.metadata.deletion_timestamp.is_some() || workload.is_finished();
    workload.has_quota() && !is_over && workload.front_end().holds_quota()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn workload(is_reserved: bool, has_finalizer: bool, deleted: Option<Timestamp>) -> Workload {
        let status = if is_reserved { "True" } else { "False" };
        let finalizers: Vec<&str> = has_finalizer.then_some(names::FINALIZER).into_iter().collect();
        serde_json::from_value(json!({
            "metadata": {
                "name": "w", "finalizers": finalizers, "deletionTimestamp": deleted.map(|at| at.to_string()),
            },
            "spec": {},
            "status": {"conditions": [{
                "type": "QuotaReserved", "status": status, "reason": "r", "message": "",
                "lastTransitionTime": NOW.to_string(),
            }]},
        }))
        .unwrap()
    }

    #[test]
    fn a_workload_with_quota_gets_the_finalizer_if_the_flag_is_set_and_loses_it_if_its_deletion_takes_too_long()
     {
        for (is_reserved, has_finalizer, deleted, is_on, missing, overdue) in [
            (true, false, None, true, true, false),
            (true, false, None, false, false, false),
            (false, false, None, true, false, false),
            (true, true, None, true, false, false),
            (true, false, Some(NOW), true, false, false),
            (true, true, Some(NOW), true, false, false),
            (true, true, Some(NOW - RELEASE_AFTER), true, false, true),
        ] {
            let workload = workload(is_reserved, has_finalizer, deleted);
            let found = (is_missing(&workload, is_on), is_overdue(&workload, NOW));
            assert_eq!(found, (missing, overdue), "{workload:?} {is_on}");
        }
        assert_eq!(release_at(&workload(true, true, Some(NOW))), Some(NOW + RELEASE_AFTER));
    }

    #[test]
    fn a_workload_that_holds_nothing_needs_no_finalizer_unless_another_setu_may_hold_it() {
        let alone = OtherInstallations { may_refuse: false, may_have_nodes: false };
        let others = OtherInstallations { may_have_nodes: true, ..alone };
        for (is_reserved, is_on, has_nodes, others, needed) in [
            (true, true, false, alone, true),
            (true, false, false, alone, false),
            (false, true, false, alone, false),
            (false, true, true, alone, true),
            (false, true, false, others, true),
        ] {
            let workload = workload(is_reserved, true, None);
            let found = is_needed(&workload, is_on, has_nodes, others);
            assert_eq!(found, needed, "{is_reserved} {is_on} {has_nodes} {others:?}");
        }
    }
}
