//! Kueue's queues: which checks apply to which flavors, and the quota of each.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of a ClusterQueue.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ClusterQueue",
    plural = "clusterqueues",
    status = "ClusterQueueStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterQueueSpec {
    /// Quota by flavor and resource.
    #[serde(default)]
    pub resource_groups: Vec<ResourceGroup>,
    /// The cohort that it lends to and borrows from; empty means none.
    #[serde(default)]
    pub cohort_name: String,
    /// The checks of this queue.
    #[serde(default)]
    pub admission_checks_strategy: Option<ChecksStrategy>,
}

/// Resources that are granted together, by flavor.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ResourceGroup {
    /// The flavors, in the order they are tried.
    #[serde(default)]
    pub flavors: Vec<FlavorQuotas>,
}

/// Quota of one flavor.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct FlavorQuotas {
    /// Name of the ResourceFlavor.
    pub name: String,
    /// Quota by resource.
    #[serde(default)]
    pub resources: Vec<ResourceQuota>,
}

/// Quota of one resource in one flavor.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceQuota {
    /// The resource.
    pub name: String,
    /// Its own quota, without what it borrows.
    #[serde(default = "nothing")]
    pub nominal_quota: Quantity,
    /// Most it may borrow from its cohort; `None` means everything there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Quantity>,
    /// Most it lends to its cohort; `None` means everything it does not use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Quantity>,
}

/// `status` of a ClusterQueue, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClusterQueueStatus {
    /// Reserved amounts by flavor.
    #[serde(default)]
    pub flavors_reservation: Vec<FlavorUsage>,
}

/// Reserved amounts of one flavor.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct FlavorUsage {
    /// Name of the ResourceFlavor.
    pub name: String,
    /// Amounts by resource.
    #[serde(default)]
    pub resources: Vec<ResourceUsage>,
}

/// Reserved amount of one resource.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ResourceUsage {
    /// The resource.
    pub name: String,
    /// Everything that is reserved, borrowed quota included.
    #[serde(default = "nothing")]
    pub total: Quantity,
}

fn nothing() -> Quantity {
    Quantity("0".to_owned())
}

/// `spec` of a Cohort: quota that several queues share.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Cohort",
    plural = "cohorts",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct CohortSpec {
    /// The cohort above it; empty means none.
    #[serde(default)]
    pub parent_name: String,
    /// Quota that belongs to the cohort itself.
    #[serde(default)]
    pub resource_groups: Vec<ResourceGroup>,
}

/// `spec` of a LocalQueue: where the Jobs of a namespace are submitted.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "LocalQueue",
    plural = "localqueues",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct LocalQueueSpec {
    /// The ClusterQueue behind it.
    #[serde(default)]
    pub cluster_queue: String,
}

/// List of checks with the flavors each covers.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ChecksStrategy {
    /// One entry per check.
    #[serde(default)]
    pub admission_checks: Vec<CheckRule>,
}

/// One check on a queue.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckRule {
    /// Name of the AdmissionCheck.
    pub name: String,
    /// Flavors the check covers; empty means all.
    #[serde(default)]
    pub on_flavors: Vec<String>,
}

/// Quota of one resource in one flavor, if these groups have any.
pub fn quota_of<'a>(groups: &'a [ResourceGroup], flavor: &str, resource: &str) -> Option<&'a ResourceQuota> {
    let flavors = groups.iter().flat_map(|g| &g.flavors).filter(|f| f.name == flavor);
    flavors.flat_map(|f| &f.resources).find(|r| r.name == resource)
}

impl ClusterQueue {
    /// The reserved amount of one resource in one flavor; `None` until Kueue reports it.
    pub fn reserved(&self, flavor: &str, resource: &str) -> Option<&Quantity> {
        let flavors = self.status.iter().flat_map(|s| &s.flavors_reservation).filter(|f| f.name == flavor);
        flavors.flat_map(|f| &f.resources).find(|r| r.name == resource).map(|r| &r.total)
    }

    /// Whether `check` covers `flavor` on this queue. A check the queue does not list covers none.
    pub fn check_covers(&self, check: &str, flavor: &str) -> bool {
        self.spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks).any(|rule| {
            rule.name == check && (rule.on_flavors.is_empty() || rule.on_flavors.iter().any(|f| f == flavor))
        })
    }
}
