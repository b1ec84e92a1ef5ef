//! Which pod sets of a Workload need nodes from a check, and for how many pods.
//!
//! Rule: counts come from the admission, never from `resourceUsage`, which covers quota alone.

use super::affinity::{NODE_NAME, constrained, keys};
use super::host_anti_affinity;
use super::resources::{self, Defaults};
use super::volumes::{self, VolumeTopology};
use super::{Obstacle, ObstacleReason, Outcome, PlanObjects, PlanRequest, PlanSnapshot};
use super::{devices, runtime};
use crate::api::pod::{PodSpec, ResourceList};
use crate::api::queue::CheckRule;
use crate::api::requirements::{Requirements, Values};
use crate::api::workload::{CheckState, PodSet};
use crate::api::{ClusterQueue, FrontEnd, ResourceFlavor, Workload};
use crate::names;
use k8s_openapi::api::core::v1::Toleration;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

mod covered;
mod levels;

pub use covered::{covered, none_left, pinned};
use covered::{is_managed, provided_elsewhere};
pub use levels::topology_levels;

/// One pod set's need.
#[derive(Clone, Debug)]
pub struct PodSetDemand<'a> {
    /// The pod set.
    pub pod_set: &'a PodSet,
    /// The spec of its pods, with what their RuntimeClass adds.
    pub spec: Cow<'a, PodSpec>,
    /// Pods that need a place.
    pub pods: u32,
    /// Flavors it was assigned, each once.
    pub flavors: Vec<&'a ResourceFlavor>,
    /// Whether its pods get what those flavors say.
    pub gets_flavors: bool,
    /// Where the volumes of its pods can be used.
    pub reach: Vec<VolumeTopology>,
    /// Resources that each pod takes from a node.
    pub each: ResourceList,
    /// Most of its pods that may share a node.
    pub per_node: u32,
}

impl PodSetDemand<'_> {
    /// Whether a pod asks for devices that a Node reports.
    pub fn asks_devices(&self) -> bool {
        let is_reported = |key: &str| resources::is_device(key) && devices::class_of(key).is_none();
        self.each.iter().any(|(key, quantity)| is_reported(key) && resources::is_positive(quantity))
    }

    /// Tolerations of its pods, their own and those of its flavors.
    pub fn tolerations(&self) -> impl Iterator<Item = &Toleration> {
        all_tolerations(&self.spec, &self.flavors, self.gets_flavors)
    }
}

/// The needs of all pod sets that this check provides for, or why there is nothing to provide.
pub fn demand<'a>(
    cluster: &PlanSnapshot<'a>,
    request: &PlanRequest<'a>,
) -> Result<Vec<PodSetDemand<'a>>, Outcome> {
    let queue = queue(cluster, request).map_err(Outcome::Wait)?;
    if let Some(check) = sent_away(cluster, queue, request.workload) {
        let why = format!("check {check} sends the pods to another cluster, where their nodes are created");
        return Err(Outcome::NothingNeeded(why));
    }
    if let Some(obstacle) = elastic_request(queue, request.workload) {
        return Err(Outcome::Never(obstacle));
    }
    let covered = covered(Some(queue), request.workload, request.check, request.our_checks);
    let mut needs = Vec::new();
    let mut unmanaged = 0;
    for pod_set in request.workload.spec.pod_sets.iter().filter(|p| covered.contains(&p.name)) {
        let pods = pods(request.workload, pod_set).saturating_sub(placed(cluster, &pod_set.name));
        if pods == 0 {
            continue;
        }
        if is_managed(pod_set, request) {
            needs.push(of_pod_set(cluster, request, pod_set, pods)?);
        } else {
            unmanaged += 1;
        }
    }
    if needs.is_empty() {
        let managed = request.policy.managed_resources.join(", ");
        return Err(Outcome::NothingNeeded(match (covered.is_empty(), unmanaged) {
            (true, _) => provided_elsewhere(queue, request),
            (false, 0) => "no pod is left that needs a place".to_owned(),
            (false, _) => format!("no pod set requests a managed resource ({managed})"),
        }));
    }
    Ok(needs)
}

/// The need of so many pods of a pod set, or why no node can serve them.
fn of_pod_set<'a>(
    cluster: &PlanSnapshot<'a>,
    request: &PlanRequest<'a>,
    pod_set: &'a PodSet,
    pods: u32,
) -> Result<PodSetDemand<'a>, Outcome> {
    let (spec, flavors) = as_started(cluster.objects, request, pod_set)?;
    let namespace = request.workload.metadata.namespace.as_deref();
    let limit_ranges = cluster.limit_ranges.of(namespace);
    let defaults = Defaults { limit_ranges, runtime_classes: &cluster.objects.runtime_classes };
    let each = each(defaults, pod_set).map_err(Outcome::Wait)?;
    let each = devices::device_requests::with_devices(cluster, request, pod_set, each)?;
    let reach = cluster.storage.map(|storage| volumes::reach(storage, request.workload, pod_set, pods));
    let reach = reach.transpose()?.unwrap_or_default();
    let per_node = host_anti_affinity::per_node(pod_set);
    let gets_flavors = request.workload.has_pods_of_kueue();
    Ok(PodSetDemand { pod_set, spec, pods, flavors, gets_flavors, reach, each, per_node })
}

/// The spec of a pod set's pods as they will be created, and the flavors that the pod set was assigned.
fn as_started<'a>(
    objects: &'a PlanObjects,
    request: &PlanRequest<'a>,
    pod_set: &'a PodSet,
) -> Result<(Cow<'a, PodSpec>, Vec<&'a ResourceFlavor>), Outcome> {
    let spec = runtime::completed(&pod_set.template.spec, &objects.runtime_classes, &pod_set.name)?;
    if let Some(obstacle) = contradiction(&pod_set.name, &spec) {
        // A RuntimeClass, unlike the pods, may be changed.
        let by_class = matches!(spec, Cow::Owned(_));
        return Err(if by_class { Outcome::Refuse(obstacle) } else { Outcome::Never(obstacle) });
    }
    let flavors = flavors(&objects.flavors, request.workload, &pod_set.name).map_err(Outcome::Refuse)?;
    Ok((with_updates(spec, request, &pod_set.name, &flavors), flavors))
}

/// Tolerations of the pods of each pod set that is held to the gang's nodes. They do not depend on the pods' requests.
///
/// # Errors
/// Why the pods of a pod set cannot be created.
pub fn tolerations(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
) -> Result<Vec<Vec<Toleration>>, Outcome> {
    let pinned = pinned(cluster.cluster_queue, request);
    let pod_sets = request.workload.spec.pod_sets.iter().filter(|pod_set| pinned.contains(&pod_set.name));
    pod_sets.map(|pod_set| tolerations_of(cluster.objects, request, pod_set)).collect()
}

/// Tolerations of the pods of a pod set: their own, those of its flavors, and those that other checks add.
///
/// # Errors
/// Why the pods cannot be created.
pub fn tolerations_of(
    objects: &PlanObjects,
    request: &PlanRequest<'_>,
    pod_set: &PodSet,
) -> Result<Vec<Toleration>, Outcome> {
    let (spec, flavors) = as_started(objects, request, pod_set)?;
    let gets_flavors = request.workload.has_pods_of_kueue();
    Ok(all_tolerations(&spec, &flavors, gets_flavors).cloned().collect())
}

/// Tolerations of pods of this spec and these flavors.
fn all_tolerations<'t>(
    spec: &'t PodSpec,
    flavors: &'t [&ResourceFlavor],
    gets_flavors: bool,
) -> impl Iterator<Item = &'t Toleration> {
    let flavors = flavors.iter().filter(move |_| gets_flavors);
    spec.tolerations.iter().chain(flavors.flat_map(|flavor| &flavor.spec.tolerations))
}

/// The spec with what the checks of other controllers add to the pods of this set, besides these flavors and the gang's own
/// selector. [`super::merge`] finds what clashes with them.
fn with_updates<'a>(
    mut spec: Cow<'a, PodSpec>,
    request: &PlanRequest<'_>,
    pod_set: &str,
    flavors: &[&ResourceFlavor],
) -> Cow<'a, PodSpec> {
    let is_set = |key: &String| {
        [names::GANG, names::POD_SETS].contains(&key.as_str())
            || flavors.iter().any(|flavor| flavor.spec.node_labels.contains_key(key))
    };
    let is_others =
        |check: &&CheckState| check.name != request.check && !request.our_checks.contains(&check.name);
    let updates = request.workload.checks().iter().filter(is_others).flat_map(|check| &check.pod_set_updates);
    for update in updates.filter(|update| update.name == pod_set) {
        if update.node_selector.is_empty() && update.tolerations.is_empty() {
            continue;
        }
        let spec = spec.to_mut();
        for (key, value) in update.node_selector.iter().filter(|(key, _)| !is_set(key)) {
            spec.node_selector.entry(key.clone()).or_insert_with(|| value.clone());
        }
        spec.tolerations.extend(update.tolerations.iter().cloned());
    }
    spec
}

/// The queue that granted the quota, known to list this check. Without it, it is unknown which pod
/// sets are meant, and "none" would start the gang without nodes.
fn queue<'a>(cluster: &PlanSnapshot<'a>, request: &PlanRequest<'_>) -> Result<&'a ClusterQueue, Obstacle> {
    let name = request.workload.admission().map_or("", |a| a.cluster_queue.as_str());
    let unknown = |what: &str| {
        Obstacle::new(
            ObstacleReason::QueueUnknown,
            format!("ClusterQueue {name} {what}, as far as is known yet"),
        )
    };
    let queue = cluster.cluster_queue.ok_or_else(|| unknown("does not exist"))?;
    let lists = |rule: &CheckRule| rule.name == request.check;
    let listed = queue.spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks).any(lists);
    if listed { Ok(queue) } else { Err(unknown(&format!("does not list check {}", request.check))) }
}

/// Name of the check by which MultiKueue takes the Workload to another cluster: here its pods never run.
fn sent_away(cluster: &PlanSnapshot<'_>, queue: &ClusterQueue, workload: &Workload) -> Option<String> {
    let flavors = || {
        let assignments = workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
        assignments.flat_map(|psa| psa.flavors.values())
    };
    let sends = cluster.checks.iter().filter(|c| c.spec.controller_name == names::MULTIKUEUE);
    let mut names = sends.filter_map(|c| c.metadata.name.clone());
    names.find(|check| flavors().any(|flavor| queue.check_covers(check, flavor)))
}

/// Why an elastic Job gets no nodes by a request of Kueue's: its new pods would select the nodes of another request than those that
/// run, and Kueue never starts such pods.
fn elastic_request(queue: &ClusterQueue, workload: &Workload) -> Option<Obstacle> {
    let is_elastic = workload.front_end() == FrontEnd::ProvisioningRequest && workload.is_elastic();
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    is_elastic.then(|| {
        Obstacle::new(
            ObstacleReason::UpdatesClash,
            format!(
                "elastic Jobs cannot get nodes by ProvisioningRequests; use a check of Setu's own in ClusterQueue {name}, \
                 or remove the annotation {} from the Job",
                names::ELASTIC_JOB
            ),
        )
    })
}

/// Pods of the whole Workload that need a place.
pub fn pods_of(workload: &Workload) -> u32 {
    workload.spec.pod_sets.iter().map(|pod_set| pods(workload, pod_set)).fold(0, u32::saturating_add)
}

/// The Workload as it was when its quota was granted: before any of its pods finished, or an elastic Job gave any up.
pub fn as_granted(workload: &Workload) -> Workload {
    let mut all = workload.clone();
    for pod_set in &mut all.spec.pod_sets {
        pod_set.count = granted(workload, pod_set);
    }
    if let Some(status) = &mut all.status {
        status.reclaimable_pods.clear();
    }
    all
}

/// The number of pods that quota was granted for. If an elastic Job shrinks, Kueue lowers only the count in the pod set.
pub fn granted(workload: &Workload, pod_set: &PodSet) -> i32 {
    let assignments = workload.admission().map_or(&[][..], |a| &a.pod_set_assignments);
    let assigned = assignments.iter().find(|psa| psa.name == pod_set.name);
    assigned.and_then(|psa| psa.count).unwrap_or(pod_set.count)
}

/// Pods that need a place: those granted, without those that are done.
fn pods(workload: &Workload, pod_set: &PodSet) -> u32 {
    let granted = granted(workload, pod_set);
    let done = workload
        .status
        .iter()
        .flat_map(|s| &s.reclaimable_pods)
        .find(|r| r.name == pod_set.name)
        .map_or(0, |r| r.count);
    u32::try_from(granted.min(pod_set.count.saturating_sub(done))).unwrap_or(0)
}

/// Pods of a pod set that earlier slices have nodes for. Each slice got nodes only for pods that it had more than the slices before
/// it, and keeps them while the Job runs.
fn placed(cluster: &PlanSnapshot<'_>, pod_set: &str) -> u32 {
    let of = |slice: &Arc<Workload>| {
        let same = slice.spec.pod_sets.iter().find(|p| p.name == pod_set)?;
        u32::try_from(granted(slice, same)).ok()
    };
    cluster.predecessors.iter().filter_map(of).max().unwrap_or(0)
}

/// Resources that one pod takes.
///
/// # Errors
/// The request that cannot be read.
pub fn each(defaults: Defaults<'_>, pod_set: &PodSet) -> Result<ResourceList, Obstacle> {
    resources::of_pod(&pod_set.template.spec, defaults)
        .map_err(|e| super::bad_quantity(&format!("pod set {}", pod_set.name), &e))
}

/// The obstacle that no node can ever meet the node selector and the node affinity of a pod together, whatever NodePools offer: no
/// term of the affinity can be met.
fn contradiction(pod_set: &str, spec: &PodSpec) -> Option<Obstacle> {
    let mut asked = Requirements::default();
    for key in keys(spec) {
        // A key that nothing is asked of yet can always be narrowed.
        let _ = asked.add(key, &Values::any_or_none());
    }
    let clash = constrained(&asked, spec).err()?;
    if clash.key == NODE_NAME {
        // Another policy may let the pods run on nodes that exist.
        return None;
    }
    Some(Obstacle::new(
        ObstacleReason::RequirementsClash,
        format!(
            "pod set {pod_set} contradicts itself: nodeSelector and node affinity want {} {}, and also {}; correct the pods",
            clash.key, clash.offered, clash.asked
        ),
    ))
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

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, flavor, patched, pod_set, queue};
    use super::super::slices::{SliceNodes, predecessors};
    use super::*;
    use crate::api::provisioning_request::name_of_standalone;
    use serde_json::{Value, json};

    fn needs(world: &Fixture) -> Vec<(String, u32)> {
        world.demand().unwrap().iter().map(|d| (d.pod_set.name.clone(), d.pods)).collect()
    }

    fn nothing(world: &Fixture) -> String {
        match world.demand() {
            Err(Outcome::NothingNeeded(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    fn assigned(assignments: &Value) -> Value {
        json!({
            "spec": {"podSets": [pod_set("lead", 1), pod_set("main", 4)]},
            "status": {"admission": {"podSetAssignments": assignments}},
        })
    }

    #[test]
    fn partial_admission_and_pods_that_are_done_lower_the_count_and_neither_adds_to_the_other() {
        for (granted, done, expected) in
            [(json!(null), 0, 4), (json!(3), 0, 3), (json!(3), 2, 2), (json!(2), 1, 2)]
        {
            let mut change =
                assigned(&json!([{"name": "main", "flavors": {"cpu": "gpu"}, "count": granted}]));
            change["status"]["reclaimablePods"] = json!([{"name": "main", "count": done}]);
            let world = Fixture::new().workload(&change);
            assert_eq!(needs(&world), [("main".to_owned(), expected)], "{granted} {done}");
        }
    }

    #[test]
    fn a_workload_that_another_cluster_runs_needs_no_node_here() {
        let mut world = Fixture::new();
        world.queue = Some(queue(&json!([{"name": "prov"}, {"name": "away"}])));
        let check = |controller: &str| {
            let check = json!({"metadata": {"name": "away"}, "spec": {"controllerName": controller}});
            vec![Arc::new(serde_json::from_value(check).unwrap())]
        };
        world.all_checks = check("example.com/other");
        assert_eq!(needs(&world), [("main".to_owned(), 2)]);
        world.all_checks = check(names::MULTIKUEUE);
        assert_eq!(
            nothing(&world),
            "check away sends the pods to another cluster, where their nodes are created"
        );
        // Here it is on no queue, or on flavors that the Workload was not given.
        world.queue = Some(queue(&json!([{"name": "prov"}, {"name": "away", "onFlavors": ["remote"]}])));
        assert_eq!(needs(&world).len(), 1);
        world.queue = Some(queue(&json!([{"name": "prov"}])));
        assert_eq!(needs(&world).len(), 1);
    }

    #[test]
    fn a_gang_that_is_all_done_needs_nothing() {
        let mut change = assigned(&json!([{"name": "main", "flavors": {"cpu": "gpu"}}]));
        change["status"]["reclaimablePods"] = json!([{"name": "main", "count": 9}]);
        assert_eq!(nothing(&Fixture::new().workload(&change)), "no pod is left that needs a place");
    }

    #[test]
    fn a_check_on_one_flavor_takes_the_pod_sets_that_have_it_for_any_resource() {
        let mut world = Fixture::new().workload(&assigned(&json!([
            {"name": "lead", "flavors": {"cpu": "cpu"}},
            {"name": "main", "flavors": {"cpu": "cpu", "nvidia.com/gpu": "gpu"}},
        ])));
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["gpu"]}])));
        world.objects.flavors.push(flavor("cpu", &json!({})));
        assert_eq!(needs(&world), [("main".to_owned(), 4)]);
        assert_eq!(world.demand().unwrap()[0].flavors.len(), 2, "the node has to suit both");
    }

    #[test]
    fn a_pod_set_without_a_flavor_is_not_ours() {
        let change =
            assigned(&json!([{"name": "lead", "flavors": {}}, {"name": "main", "flavors": {"cpu": "gpu"}}]));
        assert_eq!(needs(&Fixture::new().workload(&change)), [("main".to_owned(), 4)]);
    }

    #[test]
    fn of_two_checks_of_ours_the_first_by_name_takes_a_pod_set_and_the_other_says_so() {
        let mut world = Fixture::new();
        world.queue = Some(queue(&json!([{"name": "prov"}, {"name": "alpha"}])));
        world.checks = vec!["prov".to_owned(), "alpha".to_owned()];
        assert_eq!(nothing(&world), "check alpha provides the nodes");
        world.checks = vec!["prov".to_owned(), "zeta".to_owned()];
        assert_eq!(needs(&world).len(), 1);
    }

    #[test]
    fn a_check_on_other_flavors_needs_nothing() {
        let mut world = Fixture::new();
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["tpu"]}])));
        assert_eq!(nothing(&world), "no pod set is on a flavor that check prov provides for");
    }

    #[test]
    fn pods_that_kueue_placed_on_existing_nodes_get_no_new_ones() {
        let placed = |name: &str, more: Value| {
            let domains = json!({"levels": ["kubernetes.io/hostname"], "slices": [{"domainCount": 1}]});
            patched(json!({"name": name, "flavors": {"cpu": "gpu"}, "topologyAssignment": domains}), &more)
        };
        let lead = json!({"name": "lead", "flavors": {"cpu": "gpu"}});
        let both = assigned(&json!([lead, placed("main", json!({}))]));
        let world = Fixture::new().workload(&both);
        assert_eq!(needs(&world), [("lead".to_owned(), 1)]);
        assert_eq!(pinned(world.queue.as_ref(), &world.request()), ["lead"]);
        let first_version = json!({"topologyAssignment": {"domains": [{"values": ["n1"], "count": 4}]}});
        let alone = Fixture::new().workload(&assigned(&json!([placed("main", first_version)])));
        assert_eq!(
            nothing(&alone),
            "Kueue placed the pods of pod set main on existing nodes, by the topology of their ResourceFlavor; for new nodes \
             use a flavor without topologyName, or ProvisioningRequests"
        );
        // Kueue waited for the nodes that Setu made.
        let delayed = json!({"delayedTopologyRequest": "Ready"});
        let mut later = Fixture::new().workload(&assigned(&json!([placed("main", delayed)])));
        assert_eq!(needs(&later), [("main".to_owned(), 4)]);
        // A client of a standalone request starts the pods where it likes.
        later.workload = alone.workload;
        later.workload.metadata.name = Some(name_of_standalone("r"));
        later.workload.metadata.annotations = Some([(names::REQUEST.to_owned(), "r/uid".to_owned())].into());
        assert_eq!(needs(&later), [("main".to_owned(), 4)]);
    }

    #[test]
    fn a_queue_that_is_not_known_or_does_not_list_the_check_is_waited_for() {
        for queue in [None, Some(queue(&json!([])))] {
            let world = Fixture { queue, ..Fixture::new() };
            assert_eq!(world.obstacle().0, ObstacleReason::QueueUnknown);
        }
    }

    #[test]
    fn only_pod_sets_that_request_or_limit_a_managed_resource_get_nodes() {
        let mut world = Fixture::new();
        world.policy.managed_resources = vec!["nvidia.com/gpu".to_owned()];
        assert_eq!(needs(&world).len(), 1, "a limit is a request");
        world.policy.managed_resources = vec!["google.com/tpu".to_owned()];
        assert_eq!(nothing(&world), "no pod set requests a managed resource (google.com/tpu)");
    }

    #[test]
    fn a_request_gets_nodes_for_all_pod_sets_that_it_lists() {
        let mut world = Fixture::new().workload(&assigned(&json!([
            {"name": "lead", "flavors": {"cpu": "cpu"}}, {"name": "main", "flavors": {"nvidia.com/gpu": "gpu"}},
        ])));
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["gpu"]}])));
        world.objects.flavors.push(flavor("cpu", &json!({})));
        world.policy.managed_resources = vec!["google.com/tpu".to_owned()];
        assert_eq!(nothing(&world), "no pod set requests a managed resource (google.com/tpu)");
        world.workload.metadata.name = Some(format!("{}w-prov-1", names::REQUEST_PREFIX));
        assert_eq!(needs(&world), [("lead".to_owned(), 1), ("main".to_owned(), 4)]);
        assert_eq!(pinned(world.queue.as_ref(), &world.request()), ["lead", "main"]);
        let elastic = [(names::ELASTIC_JOB.to_owned(), "true".to_owned())];
        world.workload.metadata.annotations = Some(elastic.into());
        let Outcome::Never(obstacle) = world.plan() else { panic!("not rejected") };
        assert!(obstacle.message.starts_with("elastic Jobs cannot get nodes by ProvisioningRequests"));
    }

    #[test]
    fn a_pod_set_that_gets_no_nodes_is_not_held_to_them() {
        let mut change = assigned(&json!([
            {"name": "main", "flavors": {"cpu": "gpu"}}, {"name": "lead", "flavors": {"cpu": "gpu"}},
        ]));
        change["spec"]["podSets"][0]["template"]["spec"]["containers"] = json!([{"name": "cpu-only"}]);
        let mut world = Fixture::new().workload(&change);
        assert_eq!(pinned(world.queue.as_ref(), &world.request()), ["lead", "main"]);
        world.policy.managed_resources = vec!["nvidia.com/gpu".to_owned()];
        assert_eq!(pinned(world.queue.as_ref(), &world.request()), ["main"]);
    }

    #[test]
    fn pods_that_contradict_themselves_are_refused_whatever_the_node_pools_offer() {
        let affinity = |terms: &[&[(&str, &str, &[&str])]]| {
            let term = |expressions: &&[(&str, &str, &[&str])]| {
                let all: Vec<Value> = expressions
                    .iter()
                    .map(
                        |(key, operator, values)| json!({"key": key, "operator": operator, "values": values}),
                    )
                    .collect();
                json!({"matchExpressions": all})
            };
            let terms: Vec<Value> = terms.iter().map(term).collect();
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}})
        };
        let old = "failure-domain.beta.kubernetes.io/zone";
        let (a, b): (&[&str], &[&str]) = (&["a"], &["b"]);
        let never = |spec: Value| match Fixture::new().pods(&spec).plan() {
            Outcome::Never(obstacle) => obstacle.message,
            other => panic!("{spec}: {other:?}"),
        };
        for spec in [
            json!({"affinity": affinity(&[&[(names::ZONE, "In", a), (names::ZONE, "In", b)]])}),
            json!({"nodeSelector": {(old): "a"}, "affinity": affinity(&[&[(names::ZONE, "In", b)]])}),
            json!({"nodeSelector": {(names::ZONE): "a"}, "affinity": affinity(&[&[(names::ZONE, "In", b)], &[(names::ZONE, "NotIn", a)]])}),
            json!({"affinity": affinity(&[&[("team", "In", a), ("team", "DoesNotExist", &[])]])}),
            json!({"affinity": affinity(&[&[("team", "Exists", &[]), ("team", "DoesNotExist", &[])]])}),
            json!({"affinity": affinity(&[&[("team", "DoesNotExist", &[]), ("team", "Exists", &[])]])}),
        ] {
            let message = never(spec);
            assert!(message.starts_with("pod set main contradicts itself"), "{message}");
        }
        for spec in [
            json!({"affinity": affinity(&[&[(names::ZONE, "In", a), (names::ZONE, "In", b)], &[(names::ZONE, "In", b)]])}),
            json!({"affinity": affinity(&[&[("team", "DoesNotExist", &[]), ("team", "NotIn", a)]])}),
            json!({"nodeSelector": {(names::ZONE): "c"}}),
        ] {
            assert!(!matches!(Fixture::new().pods(&spec).plan(), Outcome::Never(_)), "{spec}");
        }
    }

    #[test]
    fn a_flavor_that_does_not_exist_is_waited_for() {
        let mut world = Fixture::new();
        world.objects.flavors.clear();
        assert_eq!(
            world.obstacle(),
            (ObstacleReason::FlavorMissing, "ResourceFlavor gpu does not exist; create it".into())
        );
    }

    #[test]
    fn a_slice_gets_nodes_for_the_pods_that_the_one_before_it_has_not() {
        let slice = |count: i32, more: &Value| {
            let mut change = json!({
                "metadata": {
                    "uid": format!("u{count}"), "annotations": {(names::ELASTIC_JOB): "true"},
                    "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true}],
                },
                "spec": {"podSets": [super::super::fixtures::pod_set("main", count)]},
            });
            change["metadata"]["annotations"][names::SLICE_REPLACES] = more.clone();
            Fixture::new().workload(&change)
        };
        let before = slice(2, &Value::Null).workload;
        let mut world = slice(5, &json!("ns/before"));
        // The template of a running Job has what was added to the pods of the first slice.
        let spec = &mut world.workload.spec.pod_sets[0].template.spec;
        spec.node_selector.insert(names::GANG.to_owned(), "g1".to_owned());
        let plan = |predecessors: &[Arc<Workload>]| {
            let cluster = PlanSnapshot { predecessors, ..world.cluster() };
            match super::super::plan(&cluster, &world.request()) {
                Outcome::Provision(plan) => plan,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(plan(&[Arc::new(before.clone())]).slots.len(), 3);
        assert_eq!(plan(&[]).slots.len(), 5);
        // It was four, and two of them were given up while their nodes stayed.
        let mut shrunk = slice(4, &Value::Null).workload;
        shrunk.spec.pod_sets[0].count = 2;
        let admission = shrunk.status.as_mut().and_then(|s| s.admission.as_mut()).unwrap();
        admission.pod_set_assignments[0].count = Some(4);
        let slices = [Arc::new(before.clone()), Arc::new(shrunk)];
        assert_eq!(plan(&slices).slots.len(), 1);
        let on_others = |slice: &Workload| {
            let find = |_: &str| Some(Arc::new(slice.clone()));
            predecessors(&world.workload, find, |_| SliceNodes::Others)
        };
        let mut admitted = before.clone();
        let condition = super::super::fixtures::condition("Admitted", "True");
        let status = admitted.status.as_mut().unwrap();
        status.conditions.push(super::super::fixtures::object(condition));
        assert_eq!(plan(&on_others(&admitted)).slots.len(), 3, "two pods run on nodes that are not Setu's");
        admitted.spec.pod_sets[0].count = 1;
        assert_eq!(plan(&on_others(&admitted)).slots.len(), 4, "one of them was given up");
        // Kueue adds no toleration to pods that come later.
        assert_eq!(plan(&[]).pinning, crate::api::parameters::Pinning::Selector);
        let labels = [&before, &world.workload].map(|w| crate::gang::identity::gang_label(w, "prov"));
        assert_eq!(labels[0], labels[1]);
    }
}
