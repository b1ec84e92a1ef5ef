//! The admission that a plan starts from: Kueue's own, or the one that Kueue would probably make.
//!
//! Rule: the output states what is assumed. The first flavor of a queue that fits the labels and quota of the
//! pods is assigned, as Kueue does in an empty queue.

use super::objects::Objects;
use crate::api::pod::ResourceList;
use crate::api::quantity::Amount;
use crate::api::queue::ResourceGroup;
use crate::api::workload::{Admission, PodSet, PodSetAssignment, WorkloadStatus};
use crate::api::{ClusterQueue, ResourceFlavor, Workload};
use crate::cli::Failure;
use crate::names;
use crate::plan::resources::{self, Defaults};
use k8s_openapi::api::core::v1::LimitRange;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The admitted Workload to plan for.
pub struct Admitted {
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

/// Admits the Workload, unless Kueue has. Checks with this `spec.controllerName` are Setu's.
pub fn admit(
    objects: &Objects,
    check: Option<&str>,
    flavor: Option<&str>,
    controller_name: &str,
) -> Result<Admitted, Failure> {
    let mut workload = objects.workload.clone().ok_or_else(|| {
        Failure::Invalid(
            "nothing to plan for: give a Workload, Job, JobSet or Pod with -f, or name a Workload".to_owned(),
        )
    })?;
    let found = queue_of(objects, &workload)?;
    let mut flavors = objects.flavors.clone();
    if let Some(name) = flavor
        && !flavors.iter().any(|f| f.metadata.name.as_deref() == Some(name))
    {
        return Err(Failure::Invalid(format!("there is no ResourceFlavor {name}; give it with -f")));
    }
    if flavors.is_empty() {
        flavors.push(Arc::new(ResourceFlavor::new("any", crate::api::flavor::ResourceFlavorSpec::default())));
    }
    let queue = found.cloned().unwrap_or_else(|| made_up(check.unwrap_or(names::DEFAULT_CHECK)));
    let is_guess = workload.admission().is_none();
    let namespace = workload.metadata.namespace.clone().unwrap_or_default();
    let limit_ranges = objects.limit_ranges_of(&namespace);
    if is_guess {
        let assignments: Result<Vec<PodSetAssignment>, Failure> = workload
            .spec
            .pod_sets
            .iter()
            .map(|set| {
                let assigned =
                    assign((objects, &limit_ranges), &queue.spec.resource_groups, &flavors, flavor, set)?;
                Ok(PodSetAssignment {
                    name: set.name.clone(),
                    flavors: assigned,
                    ..PodSetAssignment::default()
                })
            })
            .collect();
        let cluster_queue = queue.metadata.name.clone().unwrap_or_default();
        let admission = Admission { cluster_queue, pod_set_assignments: assignments? };
        workload.status.get_or_insert_with(WorkloadStatus::default).admission = Some(admission);
    }
    let mut our_checks = our_checks(objects, &queue, check, controller_name);
    let check = check.map_or_else(|| check_of(&our_checks, &queue, &workload), str::to_owned);
    our_checks.push(check.clone());
    our_checks.sort();
    our_checks.dedup();
    Ok(Admitted { workload, check, our_checks, queue, flavors, queue_is_made_up: found.is_none(), is_guess })
}

/// The ClusterQueue of the admission or of the LocalQueue, or the only one.
fn queue_of<'a>(objects: &'a Objects, workload: &Workload) -> Result<Option<&'a ClusterQueue>, Failure> {
    let local = objects.local_queues.iter().find(|q| {
        q.metadata.name.as_ref() == Some(&workload.spec.queue_name)
            && q.metadata.namespace.as_ref().is_none_or(|n| Some(n) == workload.metadata.namespace.as_ref())
    });
    let named = workload.admission().map(|a| a.cluster_queue.as_str());
    let Some(name) = named.or(local.map(|q| q.spec.cluster_queue.as_str())) else {
        return match objects.cluster_queues.as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            _ if workload.spec.queue_name.is_empty() => Err(Failure::Invalid(format!(
                "no LocalQueue is named, and there are several ClusterQueues; name one by the label {} of the Job",
                crate::names::QUEUE
            ))),
            _ => Err(Failure::Invalid(format!(
                "LocalQueue {:?} of the Workload was not found, so its ClusterQueue is not known; give it with -f, or \
                 submit to one that exists",
                workload.spec.queue_name
            ))),
        };
    };
    let found = objects.cluster_queues.iter().find(|q| q.metadata.name.as_deref() == Some(name));
    found
        .map(|q| Some(q.as_ref()))
        .ok_or_else(|| Failure::Invalid(format!("there is no ClusterQueue {name}; give it with -f")))
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

/// Assigns a flavor to each resource that the pods request.
fn assign(
    (objects, limit_ranges): (&Objects, &[Arc<LimitRange>]),
    groups: &[ResourceGroup],
    flavors: &[Arc<ResourceFlavor>],
    named: Option<&str>,
    set: &PodSet,
) -> Result<BTreeMap<String, String>, Failure> {
    let defaults = Defaults { limit_ranges, runtime_classes: &objects.runtime_classes };
    let each = resources::of_pod(&set.template.spec, defaults)
        .map_err(|e| Failure::Invalid(format!("pod set {}: {e}", set.name)))?;
    let total = resources::times(&each, u32::try_from(set.count).unwrap_or(0));
    let fits = |name: &str| {
        let labels =
            flavors.iter().find(|f| f.metadata.name.as_deref() == Some(name)).map(|f| &f.spec.node_labels);
        let asked = &set.template.spec.node_selector;
        labels
            .is_some_and(|labels| asked.iter().all(|(key, value)| labels.get(key).is_none_or(|v| v == value)))
    };
    let mut assigned = BTreeMap::new();
    let covered_anywhere =
        |key: &str| groups.iter().flat_map(|g| &g.flavors).flat_map(|f| &f.resources).any(|q| q.name == key);
    if let Some(key) = total.keys().find(|key| *key != "pods" && !groups.is_empty() && !covered_anywhere(key))
    {
        return Err(Failure::Failed(format!(
            "pod set {} requests {key}, which no resource group of the ClusterQueue covers: Kueue would never reserve \
             quota for it",
            set.name
        )));
    }
    if let Some(name) = named.or(if groups.is_empty() { first(flavors) } else { None }) {
        assigned.extend(total.keys().filter(|key| *key != "pods").map(|key| (key.clone(), name.to_owned())));
        return Ok(assigned);
    }
    for group in groups {
        let enough = |flavor: &&crate::api::queue::FlavorQuotas| {
            let quota =
                |q: &crate::api::queue::ResourceQuota| Amount::parse(&q.nominal_quota.0).unwrap_or_default();
            fits(&flavor.name)
                && flavor.resources.iter().all(|q| resources::amount(&total, &q.name) <= quota(q))
        };
        let covered = group.flavors.iter().flat_map(|f| &f.resources).any(|q| total.contains_key(&q.name));
        let Some(flavor) = group.flavors.iter().find(enough) else {
            if covered {
                return Err(Failure::Failed(no_flavor(group, &total, fits, &set.name)));
            }
            continue;
        };
        let keys = flavor.resources.iter().map(|q| &q.name).filter(|key| total.contains_key(*key));
        assigned.extend(keys.map(|key| (key.clone(), flavor.name.clone())));
    }
    Ok(assigned)
}

/// Why each flavor of a group cannot take a pod set.
fn no_flavor(
    group: &ResourceGroup,
    total: &ResourceList,
    fits: impl Fn(&str) -> bool,
    pod_set: &str,
) -> String {
    let why = |flavor: &crate::api::queue::FlavorQuotas| {
        if !fits(&flavor.name) {
            return format!("{} has other labels than its node selector asks for", flavor.name);
        }
        let quota: ResourceList =
            flavor.resources.iter().map(|q| (q.name.clone(), q.nominal_quota.clone())).collect();
        let asked: ResourceList = total
            .iter()
            .filter(|(key, _)| quota.contains_key(*key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let short = resources::first_short(&asked, &quota).unwrap_or_default();
        let (asked, quota) = (resources::shown(&asked, short), resources::shown(&quota, short));
        format!("{} has a nominal quota of {quota} {short} and it requests {asked}", flavor.name)
    };
    let why: Vec<String> = group.flavors.iter().map(why).collect();
    format!(
        "no flavor of the ClusterQueue takes pod set {pod_set}: {}. Ask for less, have the quota raised, or plan for a \
         flavor of your choice with --flavor",
        why.join("; ")
    )
}

fn first(flavors: &[Arc<ResourceFlavor>]) -> Option<&str> {
    flavors.first().and_then(|f| f.metadata.name.as_deref())
}
