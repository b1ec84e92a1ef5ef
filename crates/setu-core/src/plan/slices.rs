//! The earlier slices of an elastic Job: those whose pods have nodes, which a new slice does not plan again, and where these nodes
//! are.

use super::PlanRequest;
use super::demand::granted;
use crate::api::{Node, Workload};
use std::sync::Arc;

/// Most earlier slices of one Job that are considered.
const SLICES: usize = 64;

/// Where the pods of an earlier slice run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceNodes {
    /// On nodes that were made for them, which stay while the Job runs.
    Own,
    /// On other nodes: the slice needed none.
    Others,
    /// On nodes that are lost.
    Lost,
    /// Nowhere that is known.
    Unknown,
}

/// The slices before this one that were admitted and whose pods have nodes. Workloads of its namespace are found by name. `nodes_of`
/// says where the pods of a slice run. A slice that needed no node counts with the pods that it has now, unless another slice has lost
/// its nodes: the pods of both may have run there.
pub fn predecessors(
    workload: &Workload,
    find: impl Fn(&str) -> Option<Arc<Workload>>,
    nodes_of: impl Fn(&Workload) -> SliceNodes,
) -> Vec<Arc<Workload>> {
    let before = |slice: &Workload| {
        find(slice.replaces()?).filter(|found| found.elastic_job() == workload.elastic_job())
    };
    let slices = std::iter::successors(before(workload), |slice| before(slice));
    let admitted = slices.take(SLICES).filter(|slice| slice.is_admitted());
    let all: Vec<(SliceNodes, Arc<Workload>)> = admitted.map(|slice| (nodes_of(&slice), slice)).collect();
    let some_are_lost = all.iter().any(|(nodes, _)| *nodes == SliceNodes::Lost);
    let counted = |(nodes, slice): (SliceNodes, Arc<Workload>)| match nodes {
        SliceNodes::Own => Some(slice),
        SliceNodes::Others if !some_are_lost => Some(Arc::new(with_pods_of_now(&slice))),
        SliceNodes::Others | SliceNodes::Lost | SliceNodes::Unknown => None,
    };
    all.into_iter().filter_map(counted).collect()
}

/// Value of the shared label on the nodes of earlier slices; `None` if no label is shared, or there is no earlier slice.
/// `nodes_of_job` finds the nodes of claims with the gang's label, except those made for the Workload with this UID: the gang's own first
/// node must not change the order of options while its other nodes are being created.
pub fn shared_domain(
    request: &PlanRequest<'_>,
    nodes_of_job: impl FnOnce(&str) -> Vec<Arc<Node>>,
) -> Option<String> {
    let key = &request.policy.colocation.as_ref()?.topology_key;
    request.workload.replaces()?;
    let nodes = nodes_of_job(request.workload.metadata.uid.as_deref().unwrap_or_default());
    nodes.iter().filter_map(|node| node.metadata.labels.as_ref()?.get(key)).min().cloned()
}

/// A slice with quota for no more pods than it has now.
fn with_pods_of_now(slice: &Workload) -> Workload {
    let mut now = slice.clone();
    let admission = now.status.as_mut().and_then(|status| status.admission.as_mut());
    for assigned in admission.into_iter().flat_map(|admission| &mut admission.pod_set_assignments) {
        let pod_set = slice.spec.pod_sets.iter().find(|pod_set| pod_set.name == assigned.name);
        assigned.count = pod_set.map_or(assigned.count, |of| Some(granted(slice, of).min(of.count)));
    }
    now
}
