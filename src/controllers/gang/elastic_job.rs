//! Treats the slices of an elastic Job as one: their pods run together, on the nodes of all slices.

use crate::api::Workload;
use crate::controllers::Context;
use crate::plan::demand::pods_of;
use std::sync::Arc;

/// Whether an elastic Job has more pods than nodes after this replaced slice lost some. No other slice creates nodes
/// instead.
pub(super) fn is_missed(context: &Context, replaced: &Workload, gang_label: &str) -> bool {
    let elastic_job = replaced.elastic_job();
    let slices = context.stores.workloads.those(|w| w.elastic_job() == elastic_job);
    let slices = slices.iter().filter_map(|slice| context.stores.workloads.get(slice));
    let runs = |w: &Arc<Workload>| {
        let ends = w.is("Finished") || w.is("Evicted") || w.metadata.deletion_timestamp.is_some();
        w.is("QuotaReserved") && !ends && w.spec.active != Some(false)
    };
    let pods = slices.filter(runs).map(|slice| pods_of(&slice)).max();
    let nodes = context.stores.claims.those(|c| !c.is_deleting() && c.gang_label == gang_label).len();
    pods.is_some_and(|pods| usize::try_from(pods).is_ok_and(|pods| pods > nodes))
}
