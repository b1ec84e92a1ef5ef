//! The slices of an elastic Job: their pods run together, on the nodes of all slices.

use crate::api::Workload;
use crate::plan::demand::pods_of;
use std::borrow::Borrow;

/// Whether an elastic Job with these slices has more pods than nodes. Then the nodes that a replaced slice has lost are
/// replaced, because no other slice creates nodes instead.
pub fn needs_more_nodes(slices: impl Iterator<Item = impl Borrow<Workload>>, nodes: usize) -> bool {
    let pods = slices.filter(|slice| runs(slice.borrow())).map(|slice| pods_of(slice.borrow())).max();
    pods.is_some_and(|pods| usize::try_from(pods).is_ok_and(|pods| pods > nodes))
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
}
