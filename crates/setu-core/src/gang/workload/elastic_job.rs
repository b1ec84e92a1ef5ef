//! The slices of an elastic Job: their pods run together, on the nodes of all slices.

use super::journal_load::stored_journal;
use crate::api::Workload;
use crate::gang::identity::GangIdentity;
use crate::plan::demand::pods_of;
use crate::plan::slices::SliceNodes;
use jiff::Timestamp;
use std::borrow::Borrow;

/// Whether an elastic Job with these slices has more pods than nodes. Then the nodes that a replaced slice has lost are
/// replaced, because no other slice creates nodes instead.
pub fn needs_more_nodes(slices: impl Iterator<Item = impl Borrow<Workload>>, nodes: usize) -> bool {
    let pods = slices.filter(|slice| runs(slice.borrow())).map(|slice| pods_of(slice.borrow())).max();
    pods.is_some_and(|pods| usize::try_from(pods).is_ok_and(|pods| pods > nodes))
}

/// Where the pods of an admitted slice run, as its journal under this check shows. `has_nodes` is whether it has NodeClaims.
pub fn nodes_of_slice(slice: &Workload, check: &str, has_nodes: bool, now: Timestamp) -> SliceNodes {
    if has_nodes {
        return SliceNodes::Own;
    }
    let journal = stored_journal(slice, &GangIdentity::of(slice, check), now).and_then(Result::ok);
    match journal {
        Some(journal) if journal.memory.slots > 0 => SliceNodes::Lost,
        Some(_) if slice.evictions() == 0 => SliceNodes::Others,
        _ => SliceNodes::Unknown,
    }
}

/// Whether this slice may have running pods. An evicted slice has none once they have stopped. A slice without quota
/// may have some: Kueue finishes its predecessor before giving it quota. If no slice of a Job is in use, the Job needs
/// no nodes: a slice that gets quota later plans nodes for all of its pods.
pub fn is_in_use(slice: &Workload) -> bool {
    let is_stopped = slice.is_evicted() || slice.spec.active == Some(false);
    !slice.is_finished() && (slice.has_quota() || slice.is_admitted() || !is_stopped)
}

/// Whether the pods of a slice run and go on. Before that, a slice plans its nodes itself.
fn runs(slice: &Workload) -> bool {
    let ends = slice.is_finished() || slice.is_evicted() || slice.metadata.deletion_timestamp.is_some();
    slice.is_admitted() && !ends && slice.spec.active != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::Journal;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::names;
    use serde_json::{Value, json};

    #[test]
    fn the_largest_slice_that_runs_counts() {
        let slice = |pods: u32, conditions: &[&str]| -> Workload {
            let of = |kind: &&str| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let conditions: Vec<Value> = conditions.iter().map(of).collect();
            serde_json::from_value(json!({
                "metadata": {"name": "w"}, "status": {"conditions": conditions},
                "spec": {"podSets": [{"name": "main", "count": pods, "template": {"spec": {"containers": []}}}]},
            }))
            .unwrap()
        };
        let slices = [
            slice(2, &["QuotaReserved", "Finished"]),
            slice(3, &["QuotaReserved", "Admitted"]),
            slice(9, &["QuotaReserved", "Admitted", "Evicted"]),
            slice(9, &["QuotaReserved"]),
            slice(9, &[]),
            slice(9, &["Evicted"]),
        ];
        let needs = |nodes| needs_more_nodes(slices.iter(), nodes);
        assert_eq!([needs(2), needs(3)], [true, false]);
        assert!(!needs_more_nodes(slices[2..].iter(), 0));
        assert_eq!(slices.each_ref().map(is_in_use), [false, true, true, true, true, false]);
    }

    #[test]
    fn pods_of_a_slice_without_claims_run_elsewhere_only_if_it_needed_no_node() {
        let slice = |slots: u32, evictions: u32| -> Workload {
            let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
            journal.memory.slots = slots;
            serde_json::from_value(json!({
                "metadata": {"name": "w", "uid": "u", "annotations": {(names::journal_key("c")): journal.encode()}},
                "spec": {}, "status": {"schedulingStats": {"evictions": [{"count": evictions}]}},
            }))
            .unwrap()
        };
        let nodes = |slice: &Workload, has| nodes_of_slice(slice, "c", has, Timestamp::UNIX_EPOCH);
        assert_eq!(nodes(&slice(0, 0), false), SliceNodes::Others);
        assert_eq!(nodes(&slice(2, 0), false), SliceNodes::Lost);
        assert_eq!(nodes(&slice(0, 1), false), SliceNodes::Unknown, "its pods were stopped");
        assert_eq!(nodes(&slice(2, 0), true), SliceNodes::Own);
        assert_eq!(nodes_of_slice(&slice(0, 0), "d", false, Timestamp::UNIX_EPOCH), SliceNodes::Unknown);
    }
}
