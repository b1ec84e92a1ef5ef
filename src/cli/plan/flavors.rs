//! Which flavors Kueue would likely assign to the pod sets of a Workload that it has not admitted.

use super::misfit::misfit;
use super::objects::Objects;
use crate::api::pod::ResourceList;
use crate::api::queue::{FlavorQuotas, ResourceGroup, ResourceQuota};
use crate::api::workload::{PodSet, PodSetAssignment};
use crate::api::{ClusterQueue, ResourceFlavor, Workload};
use crate::cli::CliError;
use crate::plan::devices::device_requests::templates_of;
use crate::plan::resources::{self, Defaults};
use crate::plan::shape::OF_EVERY_NODE;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The flavors that Kueue may choose from.
pub(super) struct FlavorChoice<'a> {
    /// Of the ClusterQueue; none if it is not known.
    groups: &'a [ResourceGroup],
    flavors: &'a [Arc<ResourceFlavor>],
    /// The flavor that the user names.
    named: Option<&'a str>,
    /// Whether the ClusterQueue is in a cohort.
    may_borrow: bool,
}

/// Resources that pod sets take of each flavor.
type FlavorUse = BTreeMap<String, ResourceList>;

impl<'a> FlavorChoice<'a> {
    /// The choice that a ClusterQueue offers. The user may have named a flavor.
    pub(super) fn of(
        queue: &'a ClusterQueue,
        flavors: &'a [Arc<ResourceFlavor>],
        named: Option<&'a str>,
    ) -> Self {
        let may_borrow = !queue.spec.cohort_name.is_empty();
        Self { groups: &queue.spec.resource_groups, flavors, named, may_borrow }
    }

    /// Assigns flavors to every pod set: for all of its pods, or where quota is short, for the most that Kueue would admit.
    pub(super) fn assign_all(
        &self,
        objects: &Objects,
        workload: &Workload,
    ) -> Result<Vec<PodSetAssignment>, CliError> {
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        let ranges = objects.limit_ranges_for(namespace);
        let limit_ranges = ranges.of(Some(namespace));
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
            let mut used = FlavorUse::new();
            let mut assignment = |(set, each): &(&PodSet, ResourceList)| {
                let fewer = spare(set).saturating_mul(step).checked_div(steps).unwrap_or(0);
                let count = set.count.saturating_sub(i32::try_from(fewer).unwrap_or(0));
                let total = resources::times(each, u32::try_from(count).unwrap_or(0));
                let flavors = self.assign(set, &total, &used)?;
                for (key, flavor) in &flavors {
                    let taken = total.get_key_value(key).map(|(key, amount)| (key.clone(), amount.clone()));
                    let of_flavor = used.entry(flavor.clone()).or_default();
                    *of_flavor = resources::sum(of_flavor, &taken.into_iter().collect());
                }
                let count = (count < set.count).then_some(count);
                Ok(PodSetAssignment { name: set.name.clone(), flavors, count, ..PodSetAssignment::default() })
            };
            sets.iter().map(&mut assignment).collect()
        };
        after(0).or_else(|full| (1..=steps).find_map(|step| after(step).ok()).ok_or(full))
    }

    /// Assigns a flavor to each resource that the pods request in total, and to those that may count their devices.
    fn assign(
        &self,
        set: &PodSet,
        total: &ResourceList,
        used: &FlavorUse,
    ) -> Result<BTreeMap<String, String>, CliError> {
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
            let takes_all = |flavor: &&FlavorQuotas| {
                self.misfit(flavor, group, set).is_none() && self.lacks(flavor, total, used).is_none()
            };
            match group.flavors.iter().find(takes_all) {
                Some(flavor) => {
                    let keys = flavor.resources.iter().map(|q| &q.name).filter(takes);
                    assigned.extend(keys.map(|key| (key.clone(), flavor.name.clone())));
                }
                None if total.keys().any(|key| covers(group, key)) => {
                    return Err(CliError::Failed(self.no_flavor(group, total, set, used)));
                }
                None => {}
            }
        }
        Ok(assigned)
    }

    /// Why the nodes of a flavor do not suit a pod set; `None` if they do.
    fn misfit(&self, flavor: &FlavorQuotas, group: &ResourceGroup, set: &PodSet) -> Option<String> {
        let named = |name: &String| self.flavors.iter().find(|f| f.metadata.name.as_ref() == Some(name));
        let Some(known) = named(&flavor.name) else { return Some("does not exist".to_owned()) };
        let all = group.flavors.iter().filter_map(|flavor| named(&flavor.name));
        let keys = all.flat_map(|flavor| flavor.spec.node_labels.keys()).map(String::as_str).collect();
        misfit(known, set, &keys)
    }

    /// The first quota of a flavor that is not enough for these resources beside what is used. What a cohort lends is not known, so
    /// a queue that may borrow without a limit has enough.
    fn lacks<'q>(
        &self,
        flavor: &'q FlavorQuotas,
        total: &ResourceList,
        used: &FlavorUse,
    ) -> Option<&'q ResourceQuota> {
        let all = used.get(&flavor.name).map_or_else(|| total.clone(), |used| resources::sum(total, used));
        let one = |quota: &ResourceQuota, amount: &Quantity| -> ResourceList {
            [(quota.name.clone(), amount.clone())].into()
        };
        let is_lacking = |quota: &&ResourceQuota| {
            let nominal = one(quota, &quota.nominal_quota);
            let most = match (self.may_borrow, &quota.borrowing_limit) {
                (false, _) => nominal,
                (true, Some(limit)) => resources::sum(&nominal, &one(quota, limit)),
                (true, None) => return false,
            };
            total.contains_key(&quota.name)
                && resources::amount(&all, &quota.name) > resources::amount(&most, &quota.name)
        };
        flavor.resources.iter().find(is_lacking)
    }

    /// Why each flavor of a group cannot take a pod set.
    fn no_flavor(
        &self,
        group: &ResourceGroup,
        total: &ResourceList,
        set: &PodSet,
        used: &FlavorUse,
    ) -> String {
        let why = |flavor: &FlavorQuotas| {
            if let Some(misfit) = self.misfit(flavor, group, set) {
                return format!("{} {misfit}", flavor.name);
            }
            let Some(quota) = self.lacks(flavor, total, used) else {
                return format!("{} is taken", flavor.name);
            };
            let (asked, key) = (resources::shown(total, &quota.name), &quota.name);
            let borrowed = quota.borrowing_limit.as_ref().filter(|_| self.may_borrow);
            let borrowed = borrowed.map_or_else(String::new, |limit| format!(", may borrow {}", limit.0));
            let others = used.get(&flavor.name).filter(|used| used.contains_key(key));
            let others = others.map_or_else(String::new, |used| {
                format!(", gives {} to other pod sets", resources::shown(used, key))
            });
            format!(
                "{} has a nominal quota of {} {key}{borrowed}{others} and it requests {asked}",
                flavor.name, quota.nominal_quota.0
            )
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

fn first(flavors: &[Arc<ResourceFlavor>]) -> Option<&str> {
    flavors.first().and_then(|f| f.metadata.name.as_deref())
}
