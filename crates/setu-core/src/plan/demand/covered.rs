//! Which pod sets of a Workload a check provides for, and why it has none.

use crate::api::workload::{PodSet, PodSetAssignment};
use crate::api::{ClusterQueue, Workload};
use crate::plan::PlanRequest;
use crate::plan::{devices, resources};
use std::collections::BTreeSet;

/// Why a check has no pod set although it is on the queue.
pub(super) fn provided_elsewhere(queue: &ClusterQueue, request: &PlanRequest<'_>) -> String {
    let provides =
        |check: &str| !covered(Some(queue), request.workload, check, request.our_checks).is_empty();
    let is_meant = |assigned: &&PodSetAssignment| {
        assigned.flavors.values().any(|flavor| queue.check_covers(request.check, flavor))
    };
    let meant: Vec<&PodSetAssignment> = assignments(request.workload).iter().filter(is_meant).collect();
    if let Some(placed) = meant.iter().find(|assigned| is_on_existing_nodes(request.workload, assigned)) {
        return format!(
            "Kueue placed the pods of pod set {} on existing nodes, by the topology of their ResourceFlavor; for new nodes \
             use a flavor without topologyName, or ProvisioningRequests",
            placed.name
        );
    }
    let others: Vec<&str> = request.our_checks.iter().map(String::as_str).filter(|c| provides(c)).collect();
    if !meant.is_empty() && !others.is_empty() {
        return format!("check {} provides the nodes", others.join(", "));
    }
    format!("no pod set is on a flavor that check {} provides for", request.check)
}

/// Names of the pod sets that `check` provides for: it covers one of their assigned flavors, and no check of Setu's that comes
/// earlier in the alphabet does. Pods that Kueue placed on existing nodes could use no other node. A request of Kueue's is for all
/// pod sets that it lists, because Kueue pins the pods of all of them.
pub fn covered(
    queue: Option<&ClusterQueue>,
    workload: &Workload,
    check: &str,
    our_checks: &[String],
) -> BTreeSet<String> {
    let covers = |check: &str, flavor: &String| queue.is_some_and(|q| q.check_covers(check, flavor));
    let has_own_checks = workload.front_end().has_own_checks();
    let is_covered = |assigned: &&PodSetAssignment| {
        if !has_own_checks {
            return true;
        }
        let ours = our_checks.iter().filter(|ours| assigned.flavors.values().any(|f| covers(ours, f)));
        ours.min().is_some_and(|first| first == check) && !is_on_existing_nodes(workload, assigned)
    };
    assignments(workload).iter().filter(is_covered).map(|assigned| assigned.name.clone()).collect()
}

/// Whether Kueue placed the pods of a pod set on existing nodes. It does if their flavor has a topology, unless its own provisioning
/// check makes it wait for new nodes. It does not place the pods that a client starts.
fn is_on_existing_nodes(workload: &Workload, assigned: &PodSetAssignment) -> bool {
    workload.has_pods_of_kueue() && assigned.is_on_existing_nodes()
}

fn assignments(workload: &Workload) -> &[PodSetAssignment] {
    workload.admission().map_or(&[], |admission| &admission.pod_set_assignments)
}

/// Names of the pod sets whose pods are held to the gang's nodes, in the order of the spec: those
/// covered that request a managed resource. Pods that are done change nothing in it.
pub fn pinned(queue: Option<&ClusterQueue>, request: &PlanRequest<'_>) -> Vec<String> {
    let covered = covered(queue, request.workload, request.check, request.our_checks);
    let managed = |p: &&PodSet| is_managed(p, request);
    let sets = request.workload.spec.pod_sets.iter().filter(managed);
    sets.map(|p| p.name.clone()).filter(|name| covered.contains(name)).collect()
}

/// Why the pods of no pod set come to the nodes of a gang; `None` if its check still provides for one.
pub fn none_left(queue: &ClusterQueue, request: &PlanRequest<'_>) -> Option<String> {
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let is_left = !pinned(Some(queue), request).is_empty();
    (!is_left)
        .then(|| format!("ClusterQueue {name} has check {} provide for no pod set any more", request.check))
}

/// Whether the pods ask for one of the policy's managed resources, in a request or a limit, or for devices by claims where the
/// policy states devices. No list of resources means yes, and so does a ProvisioningRequest, which lists what needs nodes.
pub(super) fn is_managed(pod_set: &PodSet, request: &PlanRequest<'_>) -> bool {
    if request.workload.front_end().is_request() {
        return true;
    }
    let (spec, policy) = (&pod_set.template.spec, request.policy);
    let managed = &policy.managed_resources;
    let containers = spec.containers.iter().chain(&spec.init_containers).filter_map(|c| c.resources.as_ref());
    let lists = containers.chain(&spec.resources).flat_map(|r| [&r.requests, &r.limits]).flatten();
    let mut asked =
        lists.flatten().filter(|(_, amount)| resources::is_positive(amount)).map(|(name, _)| name);
    let states_devices = !policy.devices.is_empty();
    managed.is_empty()
        || (states_devices && !spec.resource_claims.is_empty())
        || asked.any(|name| managed.contains(name) || (states_devices && devices::class_of(name).is_some()))
}
