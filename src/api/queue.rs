//! Kueue's ClusterQueue (cluster-scoped): which checks guard which flavors.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of a ClusterQueue.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ClusterQueue",
    plural = "clusterqueues",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ClusterQueueSpec {
    /// The checks of this queue.
    #[serde(default)]
    pub admission_checks_strategy: Option<ChecksStrategy>,
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

impl ClusterQueue {
    /// Whether `check` covers `flavor` on this queue. A check the queue does not list covers none.
    pub fn check_covers(&self, check: &str, flavor: &str) -> bool {
        self.spec.admission_checks_strategy.iter().flat_map(|s| &s.admission_checks).any(|rule| {
            rule.name == check && (rule.on_flavors.is_empty() || rule.on_flavors.iter().any(|f| f == flavor))
        })
    }
}
