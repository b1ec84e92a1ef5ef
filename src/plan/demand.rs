//! Which pod sets of a Workload need nodes from a check, and for how many pods.
//!
//! Rule: counts come from the admission, never from `resourceUsage`, which covers quota alone.

use super::{Cluster, Obstacle, ObstacleReason, Outcome, Request};
use crate::api::pod::PodSpec;
use crate::api::workload::PodSet;
use crate::api::{ClusterQueue, ResourceFlavor, Workload};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One pod set's need.
#[derive(Clone, Debug)]
pub struct PodSetDemand<'a> {
    /// The pod set.
    pub pod_set: &'a PodSet,
    /// Pods that need a place.
    pub pods: u32,
    /// Flavors it was assigned, each once.
    pub flavors: Vec<&'a ResourceFlavor>,
}

/// The needs of all pod sets that this check provides for, or why there is nothing to provide.
pub fn demand<'a>(cluster: &Cluster<'a>, request: &Request<'a>) -> Result<Vec<PodSetDemand<'a>>, Outcome> {
    let covered = covered(cluster.cluster_queue, request.workload, request.check, request.our_checks);
    let mut needs = Vec::new();
    let mut unmanaged = 0;
    for pod_set in request.workload.spec.pod_sets.iter().filter(|p| covered.contains(&p.name)) {
        let pods = pods(request.workload, pod_set);
        if pods == 0 {
            continue;
        }
        if !is_managed(&pod_set.template.spec, &request.policy.managed_resources) {
            unmanaged += 1;
            continue;
        }
        if !pod_set.template.spec.resource_claims.is_empty() {
            return Err(Outcome::Never(Obstacle::new(
                ObstacleReason::ResourceClaims,
                format!(
                    "pod set {} uses resourceClaims, whose devices no NodeClaim can ask for; request the devices as \
                     extended resources, or take the check off this queue",
                    pod_set.name
                ),
            )));
        }
        let flavors = flavors(cluster.flavors, request.workload, &pod_set.name).map_err(Outcome::Wait)?;
        needs.push(PodSetDemand { pod_set, pods, flavors });
    }
    if needs.is_empty() {
        let managed = request.policy.managed_resources.join(", ");
        return Err(Outcome::NothingNeeded(match (covered.is_empty(), unmanaged) {
            (true, _) => format!("no pod set is on a flavor that check {} provides for", request.check),
            (false, 0) => "no pod is left that needs a place".to_owned(),
            (false, _) => format!("no pod set requests a managed resource ({managed})"),
        }));
    }
    Ok(needs)
}

/// Names of the pod sets that `check` provides for: those with an assigned flavor that it covers, and
/// that no check of ours before it in the alphabet covers.
pub fn covered(
    queue: Option<&ClusterQueue>,
    workload: &Workload,
    check: &str,
    our_checks: &[String],
) -> BTreeSet<String> {
    let covers = |check: &str, flavor: &String| queue.is_some_and(|q| q.check_covers(check, flavor));
    let assignments = workload.admission().map_or(&[][..], |a| &a.pod_set_assignments);
    assignments
        .iter()
        .filter(|psa| {
            let first = our_checks.iter().find(|ours| psa.flavors.values().any(|f| covers(ours, f)));
            first.is_some_and(|first| first == check)
        })
        .map(|psa| psa.name.clone())
        .collect()
}

/// Pods that need a place: those granted, without those that are done.
fn pods(workload: &Workload, pod_set: &PodSet) -> u32 {
    let granted = workload
        .admission()
        .and_then(|a| a.pod_set_assignments.iter().find(|psa| psa.name == pod_set.name))
        .and_then(|psa| psa.count)
        .unwrap_or(pod_set.count);
    let done = workload
        .status
        .iter()
        .flat_map(|s| &s.reclaimable_pods)
        .find(|r| r.name == pod_set.name)
        .map_or(0, |r| r.count);
    u32::try_from(granted.min(pod_set.count.saturating_sub(done))).unwrap_or(0)
}

/// Whether the pods ask for one of these resources, in a request or a limit. No list means yes.
fn is_managed(spec: &PodSpec, managed: &[String]) -> bool {
    let asks = |name: &String| {
        let containers =
            spec.containers.iter().chain(&spec.init_containers).filter_map(|c| c.resources.as_ref());
        containers
            .chain(&spec.resources)
            .flat_map(|r| [&r.requests, &r.limits])
            .flatten()
            .any(|list| list.get(name).is_some_and(super::resources::is_positive))
    };
    managed.is_empty() || managed.iter().any(asks)
}

/// The flavors a pod set was assigned.
pub fn flavors<'a>(
    all: &'a [Arc<ResourceFlavor>],
    workload: &Workload,
    pod_set: &str,
) -> Result<Vec<&'a ResourceFlavor>, Obstacle> {
    let assigned: BTreeSet<&String> = workload
        .admission()
        .iter()
        .flat_map(|a| &a.pod_set_assignments)
        .filter(|psa| psa.name == pod_set)
        .flat_map(|psa| psa.flavors.values())
        .collect();
    assigned
        .into_iter()
        .map(|name| {
            let found = all.iter().find(|f| f.metadata.name.as_ref() == Some(name));
            found.map(AsRef::as_ref).ok_or_else(|| {
                Obstacle::new(
                    ObstacleReason::FlavorMissing,
                    format!("ResourceFlavor {name} does not exist; create it"),
                )
            })
        })
        .collect()
}
