//! Kueue's Workload: the gang's demand, its quota reservation and the state of its checks.

use super::condition;
use super::pod::PodTemplate;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// `spec` of a Workload.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    status = "WorkloadStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// Groups of like pods.
    #[serde(default)]
    pub pod_sets: Vec<PodSet>,
    /// LocalQueue it was submitted to.
    #[serde(default)]
    pub queue_name: String,
    /// How long it may run at most, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_execution_time_seconds: Option<u32>,
    /// `false` deactivates it: evicted and never queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<bool>,
}

/// A group of like pods.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSet {
    /// Name within the Workload.
    pub name: String,
    /// Number of pods.
    #[serde(default)]
    pub count: i32,
    /// The least number of pods that Kueue may admit instead of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_count: Option<i32>,
    /// Where Kueue's topology-aware scheduling is to place its pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<TopologyRequest>,
    /// Template of its pods.
    #[serde(default)]
    pub template: PodTemplate,
}

/// A pod set's topology request, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TopologyRequest {
    /// Pod sets with the same name are placed together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_set_group_name: Option<String>,
}

/// `status` of a Workload.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadStatus {
    /// The quota that was reserved; absent without a reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admission: Option<Admission>,
    /// One entry per check of the queue.
    #[serde(default)]
    pub admission_checks: Vec<CheckState>,
    /// QuotaReserved, Admitted, Evicted, Finished and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Pods that are done and need no node any more.
    #[serde(default)]
    pub reclaimable_pods: Vec<ReclaimablePod>,
    /// Counters of evictions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_stats: Option<SchedulingStats>,
}

/// The quota that Kueue reserved, as ClusterQueue, flavors and pod counts.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Admission {
    /// The queue that granted it.
    #[serde(default)]
    pub cluster_queue: String,
    /// Flavors and count per pod set.
    #[serde(default)]
    pub pod_set_assignments: Vec<PodSetAssignment>,
}

/// Flavors and pod count that one pod set was granted.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSetAssignment {
    /// Name of the pod set.
    pub name: String,
    /// Flavor by resource name.
    #[serde(default)]
    pub flavors: BTreeMap<String, String>,
    /// Pods granted; absent means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i32>,
    /// Whether Kueue places its pods only after the nodes exist: `Pending` until it has. It changes within one
    /// reservation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub delayed_topology_request: String,
    /// Where Kueue placed its pods in a topology; absent if it has not. It changes within one reservation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_assignment: Option<TopologyAssignment>,
}

/// Where Kueue placed pods in a topology, reduced to whether it has. Versions of Kueue's API state the places in different ways.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopologyAssignment {}

impl PodSetAssignment {
    /// Whether Kueue placed its pods on nodes that existed when it reserved the quota: each pod selects one of these by its host name.
    pub fn is_on_existing_nodes(&self) -> bool {
        self.topology_assignment.is_some() && self.delayed_topology_request.is_empty()
    }
}

/// Pods of a pod set that are done.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ReclaimablePod {
    /// Name of the pod set.
    pub name: String,
    /// How many are done.
    #[serde(default)]
    pub count: i32,
}

/// Counters that Kueue keeps per Workload.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SchedulingStats {
    /// Evictions by reason.
    #[serde(default)]
    pub evictions: Vec<EvictionStat>,
}

/// Evictions for one reason.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct EvictionStat {
    /// How many.
    #[serde(default)]
    pub count: i64,
}

/// State of one check, as in `status.admissionChecks`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckState {
    /// Name of the AdmissionCheck.
    pub name: String,
    /// The verdict.
    #[serde(default)]
    pub state: Verdict,
    /// When `state` last changed; whole seconds.
    #[serde(default = "epoch_start")]
    pub last_transition_time: Timestamp,
    /// Text for users.
    #[serde(default)]
    pub message: String,
    /// Seconds to wait before Kueue acts on `Retry`. It holds the quota meanwhile, so Setu only ever writes 0.
    #[serde(default)]
    pub requeue_after_seconds: Option<i32>,
    /// Additions that Kueue makes to the pods, by pod set.
    #[serde(default)]
    pub pod_set_updates: Vec<PodSetUpdate>,
}

fn epoch_start() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

/// A check's verdict.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Not yet.
    #[default]
    Pending,
    /// The gang may start.
    Ready,
    /// Evict and queue again.
    Retry,
    /// Deactivate. This cannot be undone.
    Rejected,
}

/// Additions that Kueue makes to the pods of one pod set.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSetUpdate {
    /// Name of the pod set.
    pub name: String,
    /// Labels to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Node selector to add.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations to add.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

impl Workload {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        let of = |part: &Option<String>| part.clone().unwrap_or_default();
        format!("{}/{}", of(&self.metadata.namespace), of(&self.metadata.name))
    }

    /// Name of the ProvisioningRequest that is mirrored as this Workload; `None` for a Workload of Kueue's.
    pub fn request_name(&self) -> Option<&str> {
        self.metadata.name.as_deref()?.strip_prefix(names::REQUEST_PREFIX)
    }

    /// How many pods it has.
    pub fn pods(&self) -> u32 {
        let counts = self.spec.pod_sets.iter().map(|set| u32::try_from(set.count).unwrap_or_default());
        counts.fold(0, u32::saturating_add)
    }

    /// `namespace/name` of its LocalQueue.
    pub fn local_queue(&self) -> String {
        format!("{}/{}", self.metadata.namespace.as_deref().unwrap_or_default(), self.spec.queue_name)
    }

    /// Conditions as last reported.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }

    /// State of the named check, if Kueue has listed it.
    pub fn check(&self, name: &str) -> Option<&CheckState> {
        self.checks().iter().find(|c| c.name == name)
    }

    /// States of all checks.
    pub fn checks(&self) -> &[CheckState] {
        self.status.as_ref().map_or(&[], |s| &s.admission_checks)
    }

    /// The quota that Kueue reserved, if any.
    pub fn admission(&self) -> Option<&Admission> {
        self.status.as_ref().and_then(|s| s.admission.as_ref())
    }

    /// Whether Kueue has not yet placed some of the pods in the topology.
    pub fn is_unplaced(&self) -> bool {
        let assigned = self.admission().into_iter().flat_map(|admission| &admission.pod_set_assignments);
        assigned.into_iter().any(|set| set.delayed_topology_request == "Pending")
    }

    /// Whether the condition of this type is True.
    pub fn is(&self, condition_type: &str) -> bool {
        condition::is_true(self.conditions(), condition_type)
    }

    /// Whether Kueue has reserved quota for it.
    pub fn has_quota(&self) -> bool {
        self.is("QuotaReserved")
    }

    /// When its condition `QuotaReserved` last changed, whatever it says now.
    pub fn reserved_since(&self) -> Option<Timestamp> {
        condition::since(self.conditions(), "QuotaReserved")
    }

    /// Whether Kueue has admitted it. Of an evicted Workload, Kueue clears this once its pods are gone.
    pub fn is_admitted(&self) -> bool {
        self.is("Admitted")
    }

    /// Whether Kueue takes its quota back.
    pub fn is_evicted(&self) -> bool {
        self.is("Evicted")
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.is("Finished")
    }

    /// Whether its pods may run. Of an evicted Workload, Kueue clears Admitted once they are gone.
    pub fn runs(&self) -> bool {
        self.is_admitted() && !self.is_finished()
    }

    /// Whether it waits in its queue for quota.
    pub fn is_queued(&self) -> bool {
        self.spec.active != Some(false) && !self.has_quota() && !self.is_finished()
    }

    /// The admission under which it holds quota; `None` if it holds none.
    pub fn held_admission(&self) -> Option<&Admission> {
        self.admission().filter(|_| self.has_quota() && !self.is_finished())
    }

    /// The checks that it lists or has a journal for.
    pub fn checks_of_gangs(&self) -> BTreeSet<&str> {
        let listed = self.checks().iter().map(|check| check.name.as_str());
        let annotations = self.metadata.annotations.iter().flat_map(BTreeMap::keys);
        let journalled = annotations.filter_map(|key| key.strip_prefix(names::JOURNAL_PREFIX));
        listed.chain(journalled).collect()
    }

    /// Number of evictions so far, for any reason.
    pub fn evictions(&self) -> i64 {
        self.status
            .as_ref()
            .and_then(|s| s.scheduling_stats.as_ref())
            .map_or(0, |s| s.evictions.iter().map(|e| e.count).sum())
    }

    /// `Kind/name` of its owner, or of the standalone ProvisioningRequest that it was created for; empty if it has neither.
    pub fn owner(&self) -> String {
        let owner = self.metadata.owner_references.iter().flatten().next();
        let request = || self.standalone_request().map(|(name, _)| format!("ProvisioningRequest/{name}"));
        owner.map(|o| format!("{}/{}", o.kind, o.name)).or_else(request).unwrap_or_default()
    }

    /// A value that all Workloads of one elastic Job, its slices, share; for other Workloads the UID. It is unique across
    /// namespaces.
    pub fn elastic_job(&self) -> String {
        let owner = self.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
        match owner.filter(|_| self.is_elastic()) {
            Some(owner) => {
                format!("{}/{}", self.metadata.namespace.as_deref().unwrap_or_default(), owner.uid)
            }
            None => self.metadata.uid.clone().unwrap_or_default(),
        }
    }

    /// Name of the Workload in the same namespace that this slice replaces while the pods of the replaced one keep running. An
    /// eviction of this slice would stop the whole Job (KEP-77).
    pub fn replaces(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        let (namespace, name) = annotations.get(names::SLICE_REPLACES)?.split_once('/')?;
        let here = self.metadata.namespace.as_deref() == Some(namespace);
        (here && self.is_elastic()).then_some(name)
    }

    /// Whether another slice has replaced it: it counts as finished, and its pods keep running. Kueue 0.18 gives a reason for that
    /// which it also gives for Workloads that no longer fit their Job.
    pub fn is_replaced(&self) -> bool {
        let finished = condition::find(self.conditions(), "Finished").filter(|c| c.status == "True");
        finished.is_some_and(|c| {
            c.reason == "WorkloadSliceReplaced" || (c.reason == "OutOfSync" && self.is_elastic())
        })
    }

    /// Whether it is a slice of a Job that may grow and shrink while it runs.
    pub fn is_elastic(&self) -> bool {
        let annotation = self.metadata.annotations.as_ref().and_then(|a| a.get(names::ELASTIC_JOB));
        annotation.is_some_and(|value| value == "true")
    }

    /// Whether its pods already exist and are only gated, so that an eviction would delete them.
    pub fn is_plain_pods(&self) -> bool {
        self.metadata.owner_references.iter().flatten().any(|o| o.kind == "Pod")
    }
}
