//! The admission that a plan starts from: Kueue's own, or the one that Kueue would probably make.
//!
//! Rule: the output states what is assumed. The first flavor of a queue that fits the labels and quota of the
//! pods is assigned, as Kueue does in an empty queue. If none has quota for all pods, it may be for fewer of them.

use super::flavors::FlavorChoice;
use super::objects::Objects;
use crate::api::workload::{Admission, PodSet, PodSetAssignment, WorkloadStatus};
use crate::api::{AdmissionCheck, ClusterQueue, FrontEnd, ResourceFlavor, Workload};
use crate::cli::CliError;
use crate::gang::workload::request::name_as_workload;
use crate::names;
use crate::plan::demand;
use serde_json::json;
use std::sync::Arc;

/// The admitted Workload to plan for.
pub struct Admitted {
    /// Its namespace and name.
    pub title: String,
    /// For a check that ProvisioningRequests answer, as the mirror of the first request.
    pub workload: Workload,
    pub check: String,
    /// All checks of the queue that are Setu's, and the check that is planned for; sorted.
    pub our_checks: Vec<String>,
    pub queue: ClusterQueue,
    pub flavors: Vec<Arc<ResourceFlavor>>,
    /// Whether no ClusterQueue was given, so that quota is unknown.
    pub queue_is_made_up: bool,
    /// Whether the flavors are a guess, because Kueue has not reserved quota.
    pub is_guess: bool,
}

impl Admitted {
    /// A note if the nodes come by a ProvisioningRequest.
    pub fn by_request(&self) -> Option<String> {
        let is_request = self.workload.front_end() == FrontEnd::ProvisioningRequest;
        is_request.then(|| {
            format!(
                "check {} is Kueue's own: its ProvisioningRequestConfig must name class {}",
                self.check,
                names::REQUEST_CLASS
            )
        })
    }

    /// Notes on the other checks of Setu's that also give nodes to the Workload.
    pub fn other_checks(&self) -> Vec<String> {
        let note = |check: &String| {
            let sets = demand::covered(Some(&self.queue), &self.workload, check, &self.our_checks);
            let sets: Vec<String> = sets.into_iter().collect();
            (*check != self.check && !sets.is_empty()).then(|| {
                format!(
                    "check {check} also provides nodes, for pod sets {}: plan them with --check {check}",
                    sets.join(", ")
                )
            })
        };
        self.our_checks.iter().filter_map(note).collect()
    }

    /// Notes on the pod sets that Kueue would place on existing nodes, where Setu creates none.
    pub fn on_existing_nodes(&self) -> Vec<String> {
        let placed = |name: &&String| {
            let flavor = self.flavors.iter().find(|flavor| flavor.metadata.name.as_ref() == Some(*name));
            flavor.is_some_and(|flavor| flavor.spec.topology_name.is_some())
        };
        let note = |assigned: &PodSetAssignment| {
            let flavor = assigned.flavors.values().find(placed)?;
            Some(format!(
                "ResourceFlavor {flavor} has a topologyName: with Setu's own check, Kueue places the pods of pod set {} on \
                 existing nodes, and Setu creates none for them; for new nodes use a flavor without it, or \
                 ProvisioningRequests",
                assigned.name
            ))
        };
        let covered = demand::covered(Some(&self.queue), &self.workload, &self.check, &self.our_checks);
        let is_meant = self.is_guess && self.workload.front_end() == FrontEnd::Workload;
        let assigned = self.workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
        assigned.filter(|set| is_meant && covered.contains(&set.name)).filter_map(note).collect()
    }

    /// Notes on the pod sets of which Kueue would not admit all pods.
    pub fn fewer(&self) -> Vec<String> {
        let note = |set: &PodSet| {
            let granted = demand::granted(&self.workload, set);
            (granted < set.count).then(|| {
                format!(
                    "Kueue would admit {granted} of the {} pods of pod set {}, as no flavor has quota for all of them",
                    set.count, set.name
                )
            })
        };
        let guessed = self.workload.spec.pod_sets.iter().filter(|_| self.is_guess);
        guessed.filter_map(note).collect()
    }
}

/// Admits the Workload, unless Kueue has. Checks with this `spec.controllerName` are Setu's.
pub fn admit(
    objects: &Objects,
    check: Option<&str>,
    flavor: Option<&str>,
    controller_name: &str,
) -> Result<Admitted, CliError> {
    let mut workload = objects.workload.clone().ok_or_else(|| {
        CliError::Invalid(
            "nothing to plan for: give a Workload, a Job or another kind that Kueue knows with -f, or name a Workload".to_owned(),
        )
    })?;
    let found = queue_of(objects, &workload)?;
    let mut flavors = objects.plan.flavors.clone();
    if let Some(name) = flavor
        && !flavors.iter().any(|f| f.metadata.name.as_deref() == Some(name))
    {
        return Err(CliError::Invalid(format!("there is no ResourceFlavor {name}; give it with -f")));
    }
    if flavors.is_empty() {
        flavors.push(Arc::new(ResourceFlavor::new("any", crate::api::flavor::ResourceFlavorSpec::default())));
    }
    let queue = found.cloned().unwrap_or_else(|| made_up(check.unwrap_or(names::DEFAULT_CHECK)));
    let is_guess = workload.admission().is_none();
    if is_guess {
        let pod_set_assignments =
            FlavorChoice::of(&queue, &flavors, flavor).assign_all(objects, &workload)?;
        let cluster_queue = queue.metadata.name.clone().unwrap_or_default();
        let admission = Admission { cluster_queue, pod_set_assignments };
        workload.status.get_or_insert_with(WorkloadStatus::default).admission = Some(admission);
    }
    let mut our_checks = our_checks(objects, &queue, check, controller_name);
    let metadata = &workload.metadata;
    let name = metadata.name.clone().unwrap_or_default();
    let title = format!("{}/{name}", metadata.namespace.as_deref().unwrap_or_default());
    let by_request = by_request(objects, &queue, check, &our_checks)?;
    if let Some(check) = &by_request {
        workload.metadata.name = Some(name_as_workload(&format!("{name}-{check}-1")));
    }
    let check =
        by_request.or(check.map(str::to_owned)).unwrap_or_else(|| check_of(&our_checks, &queue, &workload));
    our_checks.push(check.clone());
    our_checks.sort();
    our_checks.dedup();
    let queue_is_made_up = found.is_none();
    Ok(Admitted { title, workload, check, our_checks, queue, flavors, queue_is_made_up, is_guess })
}

/// The ClusterQueue of the admission or of the LocalQueue, or the only one.
fn queue_of<'a>(objects: &'a Objects, workload: &Workload) -> Result<Option<&'a ClusterQueue>, CliError> {
    let local = objects.local_queues.iter().find(|q| {
        q.metadata.name.as_ref() == Some(&workload.spec.queue_name)
            && q.metadata.namespace.as_ref().is_none_or(|n| Some(n) == workload.metadata.namespace.as_ref())
    });
    let named = workload.admission().map(|a| a.cluster_queue.as_str());
    let Some(name) = named.or(local.map(|q| q.spec.cluster_queue.as_str())) else {
        return match objects.plan.cluster_queues.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            _ if workload.spec.queue_name.is_empty() => Err(CliError::Invalid(format!(
                "no LocalQueue is named, and there are several ClusterQueues; name one by the label {} of the Job",
                crate::names::QUEUE
            ))),
            _ => Err(CliError::Invalid(format!(
                "LocalQueue {:?} of the Workload was not found, so its ClusterQueue is not known; give it with -f, or \
                 submit to one that exists",
                workload.spec.queue_name
            ))),
        };
    };
    let found = objects.plan.cluster_queues.iter().find(|q| q.metadata.name.as_deref() == Some(name));
    found
        .map(|q| Some(q.as_ref()))
        .ok_or_else(|| CliError::Invalid(format!("there is no ClusterQueue {name}; give it with -f")))
}

/// Checks of the queue that are Setu's, sorted. A check without an AdmissionCheck object counts as Setu's only if
/// no check was named and none is known to be Setu's.
fn our_checks(
    objects: &Objects,
    queue: &ClusterQueue,
    named: Option<&str>,
    controller_name: &str,
) -> Vec<String> {
    let controller_of = |name: &str| {
        let check = objects.checks.iter().find(|c| c.metadata.name.as_deref() == Some(name));
        check.map(|c| c.spec.controller_name.as_str())
    };
    let with = |controller: Option<&str>| -> Vec<String> {
        let rules = queue.spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks);
        rules.map(|r| &r.name).filter(|name| controller_of(name) == controller).cloned().collect()
    };
    let known = with(Some(controller_name));
    let mut ours = if known.is_empty() && named.is_none() { with(None) } else { known };
    ours.sort();
    ours
}

/// The check of Kueue's own that ProvisioningRequests answer, if it is named, or if the queue has none of Setu's.
fn by_request(
    objects: &Objects,
    queue: &ClusterQueue,
    named: Option<&str>,
    our_checks: &[String],
) -> Result<Option<String>, CliError> {
    let rules = queue.spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks);
    let of_queue: Vec<&str> = rules.map(|rule| rule.name.as_str()).collect();
    let is_meant = |check: &AdmissionCheck| match (check.metadata.name.as_deref(), named) {
        (Some(name), Some(named)) => name == named,
        (Some(name), None) => our_checks.is_empty() && of_queue.contains(&name),
        (None, _) => false,
    };
    let mut found: Vec<&AdmissionCheck> = objects
        .checks
        .iter()
        .map(|check| &**check)
        .filter(|check| check.is_by_request() && is_meant(check))
        .collect();
    found.sort_by_key(|check| &check.metadata.name);
    let foreign = |check: &AdmissionCheck| {
        objects.request_class_of(check).filter(|class| *class != names::REQUEST_CLASS)
    };
    if let Some(ours) = found.iter().find(|check| foreign(check).is_none()) {
        return Ok(ours.metadata.name.clone());
    }
    match (named, found.first().and_then(|check| foreign(check))) {
        (Some(named), Some(class)) => Err(CliError::Invalid(format!(
            "check {named} asks for ProvisioningRequests of class {class}, and Setu answers only {}",
            names::REQUEST_CLASS
        ))),
        _ => Ok(None),
    }
}

/// The first of these checks, by name, that covers a flavor of the Workload.
fn check_of(our_checks: &[String], queue: &ClusterQueue, workload: &Workload) -> String {
    let assignments = || workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
    let covers = |check: &&String| {
        assignments().flat_map(|a| a.flavors.values()).any(|f| queue.check_covers(check, f))
    };
    let check = our_checks.iter().find(covers).or(our_checks.first());
    check.cloned().unwrap_or_else(|| names::DEFAULT_CHECK.to_owned())
}

fn made_up(check: &str) -> ClusterQueue {
    let strategy = json!({"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}});
    ClusterQueue::new("none", serde_json::from_value(strategy).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plan::manifest;
    use serde_json::Value;
    use std::collections::BTreeMap;

    /// The admission of a Job with four pods of two CPUs each, in a queue with this quota of CPU.
    fn admitted(quota: u32, annotations: &Value) -> Result<Admitted, CliError> {
        let containers = json!([{"name": "main", "resources": {"requests": {"cpu": "2"}}}]);
        let job = json!({
            "kind": "Job", "metadata": {"name": "train", "annotations": annotations},
            "spec": {"parallelism": 4, "template": {"spec": {"containers": containers}}},
        });
        let resources = json!([{"name": "cpu", "nominalQuota": quota.to_string()}]);
        let queue = json!({"resourceGroups": [{"flavors": [{"name": "any", "resources": resources}]}]});
        let queue = ClusterQueue::new("training", serde_json::from_value(queue).unwrap());
        let mut objects = Objects::default();
        objects.plan.cluster_queues.push(Arc::new(queue));
        objects.workload = Some(manifest::workload(job, &[]).unwrap());
        admit(&objects, None, None, names::CONTROLLER_NAME)
    }

    #[test]
    fn where_quota_is_short_the_most_pods_are_planned_that_kueue_would_admit() {
        let two_are_enough = json!({(names::MIN_PARALLELISM): "2"});
        for (quota, granted) in [(8, None), (7, Some(3)), (4, Some(2))] {
            let admitted = admitted(quota, &two_are_enough).unwrap();
            assert_eq!(
                admitted.workload.admission().unwrap().pod_set_assignments[0].count,
                granted,
                "{quota}"
            );
            let words = |granted: i32| {
                format!(
                    "Kueue would admit {granted} of the 4 pods of pod set main, as no flavor has quota for all of them"
                )
            };
            assert_eq!(admitted.fewer(), granted.map(words).into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn pod_sets_that_kueue_would_place_on_existing_nodes_are_named() {
        let queue = json!({
            "resourceGroups": [{"flavors": [{"name": "any", "resources": [{"name": "cpu", "nominalQuota": "8"}]}]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": "prov"}]},
        });
        let notes_on = |flavor: &Value, controller: &str| {
            let mut objects = Objects::default();
            let queue = ClusterQueue::new("training", serde_json::from_value(queue.clone()).unwrap());
            objects.plan.cluster_queues.push(Arc::new(queue));
            let flavor = json!({"metadata": {"name": "any"}, "spec": flavor});
            objects.plan.flavors.push(Arc::new(serde_json::from_value(flavor).unwrap()));
            let check = json!({"metadata": {"name": "prov"}, "spec": {"controllerName": controller}});
            objects.checks.push(Arc::new(serde_json::from_value(check).unwrap()));
            let containers = json!([{"name": "main", "resources": {"requests": {"cpu": "2"}}}]);
            let job = json!({
                "kind": "Job", "metadata": {"name": "train"}, "spec": {"template": {"spec": {"containers": containers}}},
            });
            objects.workload = Some(manifest::workload(job, &[]).unwrap());
            admit(&objects, None, None, names::CONTROLLER_NAME).unwrap().on_existing_nodes()
        };
        let racks = json!({"topologyName": "racks"});
        let said = notes_on(&racks, names::CONTROLLER_NAME);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].starts_with("ResourceFlavor any has a topologyName: with Setu's own check"),
            "{said:?}"
        );
        assert!(said[0].contains("pod set main on existing nodes"), "{said:?}");
        assert!(notes_on(&racks, names::PROVISIONING_REQUEST).is_empty(), "Kueue waits for the nodes");
        assert!(notes_on(&json!({}), names::CONTROLLER_NAME).is_empty());
    }

    #[test]
    fn another_check_that_provides_for_some_pod_sets_is_named() {
        let set = |name: &str| json!({"name": name, "count": 1, "template": {"spec": {"containers": []}}});
        let assigned = |name: &str| json!({"name": name, "flavors": {"cpu": name}});
        let workload = json!({
            "metadata": {"name": "two"}, "spec": {"podSets": [set("head"), set("worker")]},
            "status": {"admission": {
                "clusterQueue": "training", "podSetAssignments": [assigned("head"), assigned("worker")],
            }},
        });
        let rules = [("a", "head"), ("b", "worker"), ("c", "other")];
        let rules = rules.map(|(check, flavor)| json!({"name": check, "onFlavors": [flavor]}));
        let queue = json!({"admissionChecksStrategy": {"admissionChecks": rules}});
        let mut objects = Objects::default();
        let queue = ClusterQueue::new("training", serde_json::from_value(queue).unwrap());
        objects.plan.cluster_queues.push(Arc::new(queue));
        objects.workload = Some(serde_json::from_value(workload).unwrap());
        for name in ["a", "b", "c"] {
            let check =
                json!({"metadata": {"name": name}, "spec": {"controllerName": names::CONTROLLER_NAME}});
            objects.checks.push(Arc::new(serde_json::from_value(check).unwrap()));
        }
        let noted =
            |check| admit(&objects, Some(check), None, names::CONTROLLER_NAME).unwrap().other_checks();
        let note = |check: &str, set: &str| {
            format!("check {check} also provides nodes, for pod sets {set}: plan them with --check {check}")
        };
        assert_eq!(noted("a"), [note("b", "worker")]);
        assert_eq!(noted("b"), [note("a", "head")]);
    }

    #[test]
    fn pod_sets_share_the_quota_of_a_flavor_and_what_the_queue_may_borrow_counts() {
        let set = |name: &str| {
            let containers = json!([{"name": "main", "resources": {"requests": {"cpu": "8"}}}]);
            json!({"name": name, "count": 1, "template": {"spec": {"containers": containers}}})
        };
        let workload = json!({
            "kind": "Workload", "metadata": {"name": "two"}, "spec": {"podSets": [set("head"), set("worker")]},
        });
        let admitted = |cohort: &str, quota: Value| {
            let quota = json!({"resourceGroups": [{"flavors": [{"name": "any", "resources": [quota]}]}], "cohortName": cohort});
            let mut objects = Objects::default();
            let queue = ClusterQueue::new("training", serde_json::from_value(quota).unwrap());
            objects.plan.cluster_queues.push(Arc::new(queue));
            objects.plan.flavors.push(Arc::new(
                serde_json::from_value(json!({"metadata": {"name": "any"}, "spec": {}})).unwrap(),
            ));
            objects.workload = Some(serde_json::from_value(workload.clone()).unwrap());
            admit(&objects, None, None, names::CONTROLLER_NAME).map(drop).map_err(|error| error.to_string())
        };
        let cpu = |quota: &str| json!({"name": "cpu", "nominalQuota": quota});
        let limited = json!({"name": "cpu", "nominalQuota": "0", "borrowingLimit": "12"});
        assert_eq!(admitted("", cpu("16")), Ok(()));
        assert_eq!(admitted("all", cpu("0")), Ok(()), "its cohort may lend it");
        for (cohort, quota, words) in [
            ("", cpu("10"), "any has a nominal quota of 10 cpu, gives 8 to other pod sets and it requests 8"),
            (
                "all",
                limited,
                "a nominal quota of 0 cpu, may borrow 12, gives 8 to other pod sets and it requests 8",
            ),
        ] {
            let why = admitted(cohort, quota).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn pods_that_request_nothing_but_devices_get_the_flavor_that_counts_devices() {
        let mut pods = json!({
            "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        });
        let quota = |name: &str| json!({"name": name, "nominalQuota": "8"});
        let flavors = |pods: &Value| {
            let groups = json!({"resourceGroups": [
                {"flavors": [{"name": "cpus", "resources": [quota("cpu")]}]},
                {"flavors": [{"name": "gpus", "resources": [quota("gpu.example.com")]}]},
            ]});
            let mut objects = Objects::default();
            let queue = ClusterQueue::new("training", serde_json::from_value(groups).unwrap());
            objects.plan.cluster_queues.push(Arc::new(queue));
            for name in ["cpus", "gpus"] {
                let spec = crate::api::flavor::ResourceFlavorSpec::default();
                objects.plan.flavors.push(Arc::new(ResourceFlavor::new(name, spec)));
            }
            let job =
                json!({"kind": "Job", "metadata": {"name": "train"}, "spec": {"template": {"spec": pods}}});
            objects.workload = Some(manifest::workload(job, &[]).unwrap());
            let admitted = admit(&objects, None, None, names::CONTROLLER_NAME).unwrap();
            admitted.workload.admission().unwrap().pod_set_assignments[0].flavors.clone()
        };
        assert_eq!(flavors(&pods), BTreeMap::from([("gpu.example.com".to_owned(), "gpus".to_owned())]));
        pods["resourceClaims"] = json!([]);
        assert_eq!(flavors(&pods), BTreeMap::new(), "without devices nothing is counted");
    }

    #[test]
    fn without_quota_for_the_fewest_pods_that_the_job_allows_there_is_no_plan() {
        for (quota, annotations) in [(3, json!({(names::MIN_PARALLELISM): "2"})), (7, json!({}))] {
            let refused = admitted(quota, &annotations).err().unwrap().to_string();
            assert!(
                refused.contains(&format!("any has a nominal quota of {quota} cpu and it requests 8")),
                "{refused}"
            );
        }
    }
}
