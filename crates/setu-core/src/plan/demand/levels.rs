//! By which topologies Kueue places the pods that a check provides for.

use super::covered::pinned;
use crate::api::{ClusterQueue, ResourceFlavor, Topology};
use crate::plan::PlanRequest;
use crate::policy::TopologyLevels;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The levels of the topologies of the flavors, for the pod sets that get nodes. If the queue of a check of Setu's is not known, for
/// all pod sets. `find` gives a Topology by its name.
pub fn topology_levels(
    queue: Option<&ClusterQueue>,
    request: &PlanRequest<'_>,
    all_flavors: &[Arc<ResourceFlavor>],
    find: impl Fn(&str) -> Option<Arc<Topology>>,
) -> Vec<TopologyLevels> {
    let workload = request.workload;
    let is_known = queue.is_some() || !workload.front_end().has_own_checks();
    let held = pinned(queue, request);
    let mut by_flavor: BTreeMap<&String, BTreeSet<String>> = BTreeMap::new();
    for assigned in workload.admission().into_iter().flat_map(|admission| &admission.pod_set_assignments) {
        if is_known && !held.contains(&assigned.name) {
            continue;
        }
        for flavor in assigned.flavors.values() {
            by_flavor.entry(flavor).or_default().insert(assigned.name.clone());
        }
    }
    let levels = |(name, pod_sets): (&String, BTreeSet<String>)| {
        let flavor = all_flavors.iter().find(|flavor| flavor.metadata.name.as_ref() == Some(name))?;
        let topology = find(flavor.spec.topology_name.as_deref()?)?;
        let labels = topology.spec.levels.iter().map(|level| level.node_label.clone()).collect();
        Some(TopologyLevels { labels, pod_sets, node_labels: flavor.spec.node_labels.clone() })
    };
    by_flavor.into_iter().filter_map(levels).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;
    use crate::plan::fixtures::{Fixture, flavor, object, pod_set, queue};
    use serde_json::json;

    #[test]
    fn only_pod_sets_that_get_nodes_on_a_flavor_with_a_topology_need_its_levels() {
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": [pod_set("head", 1), pod_set("main", 2), pod_set("other", 1)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "head", "flavors": {"cpu": "cpu"}},
                {"name": "main", "flavors": {"cpu": "gpu", "nvidia.com/gpu": "gpu"}},
                {"name": "other", "flavors": {"cpu": "tpu"}},
            ]}},
        }));
        let placed = |name: &str| {
            let mut placed = (*flavor(name, &json!({"pool": name}))).clone();
            placed.spec.topology_name = Some("racks".to_owned());
            Arc::new(placed)
        };
        let flavors = [flavor("cpu", &json!({"pool": "cpu"})), placed("gpu"), placed("tpu")];
        let racks: Arc<Topology> = Arc::new(object(json!({
            "metadata": {"name": "racks"}, "spec": {"levels": [{"nodeLabel": "rack"}, {"nodeLabel": "host"}]},
        })));
        let of = |world: &Fixture| {
            let find = |name: &str| (name == "racks").then(|| Arc::clone(&racks));
            topology_levels(world.queue.as_ref(), &world.request(), &flavors, find)
        };
        let of_pool = |pool: &str, pod_set: &str| TopologyLevels {
            labels: vec!["rack".to_owned(), "host".to_owned()],
            pod_sets: [pod_set.to_owned()].into(),
            node_labels: [("pool".to_owned(), pool.to_owned())].into(),
        };
        let (gpu, tpu) = (of_pool("gpu", "main"), of_pool("tpu", "other"));
        world.queue = Some(queue(&json!([{"name": "prov", "onFlavors": ["cpu", "gpu"]}])));
        assert_eq!(of(&world), std::slice::from_ref(&gpu));
        world.queue = None;
        assert_eq!(of(&world), [gpu.clone(), tpu.clone()], "it is not known yet which are meant");
        world.workload.metadata.name = Some(format!("{}w-prov-1", names::REQUEST_PREFIX));
        assert_eq!(of(&world), [gpu.clone(), tpu]);
        world.workload.spec.pod_sets.pop();
        assert_eq!(of(&world), [gpu], "the request does not list the other");
    }
}
