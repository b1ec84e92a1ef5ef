//! The admission that a plan starts from: Kueue's own, or the one that Kueue would probably make.
//!
//! Rule: the output states what is assumed. The first flavor of a queue that fits the labels and quota of the
//! pods is assigned, as Kueue does in an empty queue. If none has quota for all pods, it may be for fewer of them.

use super::objects::Objects;
use crate::api::pod::ResourceList;
use crate::api::quantity::Amount;
use crate::api::queue::{FlavorQuotas, ResourceGroup, ResourceQuota};
use crate::api::workload::{Admission, PodSet, PodSetAssignment, WorkloadStatus};
use crate::api::{AdmissionCheck, ClusterQueue, FrontEnd, ResourceFlavor, Workload};
use crate::cli::CliError;
use crate::gang::workload::request::name_as_workload;
use crate::names;
use crate::plan::demand;
use crate::plan::devices::asked::templates_of;
use crate::plan::resources::{self, Defaults};
use crate::plan::shape::OF_EVERY_NODE;
use serde_json::json;
use std::collections::BTreeMap;
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
        let choice = FlavorChoice { groups: &queue.spec.resource_groups, flavors: &flavors, named: flavor };
        let pod_set_assignments = choice.assign_all(objects, &workload)?;
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

/// What Kueue may choose flavors from.
struct FlavorChoice<'a> {
    /// Of the ClusterQueue; none if it is not known.
    groups: &'a [ResourceGroup],
    flavors: &'a [Arc<ResourceFlavor>],
    /// The flavor that the user names.
    named: Option<&'a str>,
}

impl FlavorChoice<'_> {
    /// Assigns flavors to every pod set: for all of its pods, or where quota is short, for the most that Kueue would admit.
    fn assign_all(&self, objects: &Objects, workload: &Workload) -> Result<Vec<PodSetAssignment>, CliError> {
        let limit_ranges =
            &objects.limit_ranges_of(workload.metadata.namespace.as_deref().unwrap_or_default());
        let defaults = Defaults { limit_ranges, runtime_classes: &objects.plan.runtime_classes };
        let mut sets = Vec::new();
        for set in &workload.spec.pod_sets {
            let each = resources::of_pod(&set.template.spec, defaults)
                .map_err(|e| CliError::Invalid(format!("pod set {}: {e}", set.name)))?;
            sets.push((set, each));
        }
        // Kueue takes pods away step by step, from each pod set in proportion to what it can spare.
        let steps: i64 = sets.iter().map(|(set, _)| spare(set)).sum();
        let after = |step: i64| -> Result<Vec<PodSetAssignment>, CliError> {
            let assignment = |(set, each): &(&PodSet, ResourceList)| {
                let fewer = spare(set).saturating_mul(step).checked_div(steps).unwrap_or(0);
                let count = set.count.saturating_sub(i32::try_from(fewer).unwrap_or(0));
                let total = resources::times(each, u32::try_from(count).unwrap_or(0));
                let flavors = self.assign(set, &total)?;
                let count = (count < set.count).then_some(count);
                Ok(PodSetAssignment { name: set.name.clone(), flavors, count, ..PodSetAssignment::default() })
            };
            sets.iter().map(assignment).collect()
        };
        after(0).or_else(|full| (1..=steps).find_map(|step| after(step).ok()).ok_or(full))
    }

    /// Assigns a flavor to each resource that the pods request in total, and to those that may count their devices.
    fn assign(&self, set: &PodSet, total: &ResourceList) -> Result<BTreeMap<String, String>, CliError> {
        let covered = |key: &str| self.groups.iter().any(|group| covers(group, key));
        let uncovered = total.keys().find(|key| *key != "pods" && !covered(key));
        if let Some(key) = uncovered.filter(|_| !self.groups.is_empty()) {
            return Err(CliError::Failed(format!(
                "pod set {} requests {key}, which no resource group of the ClusterQueue covers: Kueue would never reserve \
                 quota for it",
                set.name
            )));
        }
        let only = if self.groups.is_empty() { first(self.flavors) } else { None };
        let takes = |key: &&String| total.contains_key(*key) || may_count_devices(set, key);
        if let Some(name) = self.named.or(only) {
            let counted =
                self.groups.iter().flat_map(|g| &g.flavors).flat_map(|f| &f.resources).map(|q| &q.name);
            let keys = total.keys().chain(counted.filter(takes)).filter(|key| *key != "pods");
            return Ok(keys.map(|key| (key.clone(), name.to_owned())).collect());
        }
        let mut assigned = BTreeMap::new();
        for group in self.groups {
            match group.flavors.iter().find(|flavor| self.suits(flavor, set) && has_quota(flavor, total)) {
                Some(flavor) => {
                    let keys = flavor.resources.iter().map(|q| &q.name).filter(takes);
                    assigned.extend(keys.map(|key| (key.clone(), flavor.name.clone())));
                }
                None if total.keys().any(|key| covers(group, key)) => {
                    return Err(CliError::Failed(self.no_flavor(group, total, set)));
                }
                None => {}
            }
        }
        Ok(assigned)
    }

    /// Whether the labels of a flavor suit the pods' node selector.
    fn suits(&self, flavor: &FlavorQuotas, set: &PodSet) -> bool {
        let known = self.flavors.iter().find(|f| f.metadata.name.as_ref() == Some(&flavor.name));
        known.is_some_and(|known| {
            let differs = |(key, value)| known.spec.node_labels.get(key).is_some_and(|label| label != value);
            !set.template.spec.node_selector.iter().any(differs)
        })
    }

    /// Why each flavor of a group cannot take a pod set.
    fn no_flavor(&self, group: &ResourceGroup, total: &ResourceList, set: &PodSet) -> String {
        let why = |flavor: &FlavorQuotas| {
            if !self.suits(flavor, set) {
                return format!("{} has other labels than its node selector asks for", flavor.name);
            }
            let quota: ResourceList =
                flavor.resources.iter().map(|q| (q.name.clone(), q.nominal_quota.clone())).collect();
            let asked: ResourceList = total
                .iter()
                .filter(|(key, _)| quota.contains_key(*key))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect();
            let insufficient = resources::first_insufficient(&asked, &quota).unwrap_or_default();
            let (asked, quota) =
                (resources::shown(&asked, insufficient), resources::shown(&quota, insufficient));
            format!("{} has a nominal quota of {quota} {insufficient} and it requests {asked}", flavor.name)
        };
        let why: Vec<String> = group.flavors.iter().map(why).collect();
        format!(
            "no flavor of the ClusterQueue takes pod set {}: {}. Ask for less, have the quota raised, or plan for a \
             flavor of your choice with --flavor",
            set.name,
            why.join("; ")
        )
    }
}

/// How many of its pods a pod set can do without.
fn spare(set: &PodSet) -> i64 {
    let least = set.min_count.unwrap_or(set.count);
    i64::from(set.count.saturating_sub(least).max(0))
}

/// Whether Kueue may count the devices that pods claim by templates as this resource. Its name is in Kueue's own configuration,
/// which is not read.
fn may_count_devices(set: &PodSet, resource: &str) -> bool {
    !OF_EVERY_NODE.contains(&resource) && templates_of(&set.template.spec).next().is_some()
}

/// Whether a group has quota of a resource.
fn covers(group: &ResourceGroup, key: &str) -> bool {
    group.flavors.iter().flat_map(|f| &f.resources).any(|q| q.name == key)
}

/// Whether the nominal quota of a flavor is enough for these resources.
fn has_quota(flavor: &FlavorQuotas, total: &ResourceList) -> bool {
    let quota = |q: &ResourceQuota| Amount::parse(&q.nominal_quota.0).unwrap_or_default();
    flavor.resources.iter().all(|q| resources::amount(total, &q.name) <= quota(q))
}

fn first(flavors: &[Arc<ResourceFlavor>]) -> Option<&str> {
    flavors.first().and_then(|f| f.metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plan::manifest;
    use serde_json::Value;

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
