//! Summaries of Workloads and NodeClaims, for passes over all of them. Unpacking thousands of whole objects would be slow.

use super::claim_records::workload_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::gang_of;
use crate::gang::snapshot::claims::is_stuck;
use crate::gang::snapshot::phase::ClaimPhase;
use crate::gang::workload::request::owner_of;
use crate::names;
use crate::plan::cost::priced_as;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

/// The summary of a Workload for queues, gauges and the sweep.
#[derive(Debug)]
pub struct WorkloadSummary {
    /// Its UID.
    pub uid: String,
    /// `namespace/name` of its LocalQueue.
    pub local_queue: String,
    /// The key that the slices of an elastic Job share; `None` if that is its UID.
    elastic_job: Option<String>,
    /// Whether it is admitted.
    pub is_admitted: bool,
    /// Whether it is admitted, and has a journal of a check that it does not have any more.
    pub left_a_check: bool,
    /// Whether it is over.
    pub is_finished: bool,
    /// Since when it exists, if it waits for quota.
    pub queued_since: Option<Timestamp>,
    /// The ClusterQueue whose quota it holds, and for how many pods.
    pub holds: Option<(Box<str>, u32)>,
}

impl WorkloadSummary {
    /// The summary of a Workload.
    pub fn of(workload: &Workload) -> Self {
        let uid = workload.metadata.uid.clone().unwrap_or_default();
        Self {
            local_queue: workload.local_queue(),
            elastic_job: Some(workload.elastic_job()).filter(|job| *job != uid),
            is_admitted: workload.is_admitted(),
            left_a_check: workload.is_admitted()
                && workload.checks_of_gangs().len() > workload.checks().len(),
            is_finished: workload.is_finished(),
            queued_since: workload
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|t| t.0)
                .filter(|_| workload.is_queued() && workload.front_end().holds_quota()),
            holds: workload
                .held_admission()
                .filter(|_| workload.front_end().holds_quota())
                .map(|admission| (admission.cluster_queue.as_str().into(), workload.pods())),
            uid,
        }
    }

    /// The key that the slices of an elastic Job share; its UID if it is not elastic.
    pub fn elastic_job(&self) -> &str {
        self.elastic_job.as_deref().unwrap_or(&self.uid)
    }
}

/// The index of NodeClaims by the UIDs of their Workloads.
pub const BY_WORKLOAD: usize = 0;
/// The index of NodeClaims by the UIDs of the Workloads that own their requests.
pub const BY_OWNER: usize = 1;
/// The index of NodeClaims whose nodes are to come: they have the value [`IN_FLIGHT`].
pub const BY_FLIGHT: usize = 2;
/// See [`BY_FLIGHT`].
pub const IN_FLIGHT: &str = "in flight";

/// The index of NodeClaims by the LocalQueues that they are kept warm for.
pub const BY_KEPT_FOR: usize = 3;

/// The summary of a NodeClaim for guards, gauges and the sweep.
#[derive(Debug)]
pub struct ClaimSummary {
    /// Its UID.
    pub uid: String,
    /// Id of its gang.
    pub gang: String,
    /// UID of its Workload.
    pub workload_uid: String,
    /// UID of the Workload that owns the ProvisioningRequest it was made for; empty where it was made for none.
    pub owner: String,
    /// Its Workload, by its annotation; the last one if it is kept warm.
    pub workload: Option<ObjectRef<Workload>>,
    /// Its NodePool.
    pub node_pool: String,
    /// Its Node; empty until it is registered.
    pub node_name: String,
    /// The LocalQueue it is kept warm for; empty if it is not.
    pub kept_for: String,
    /// Value of its gang's label. The slices of an elastic Job share one.
    pub gang_label: String,
    /// Whether it is kept warm.
    pub is_warm: bool,
    /// Whether Karpenter shows no instance for it yet.
    pub waits_for_provider: bool,
    /// Whether its node is initialized.
    pub is_initialized: bool,
    /// A hash that claims with the same price share.
    pub priced_as: u64,
    /// How far it has come.
    pub phase: ClaimPhase,
    /// When its deletion began.
    pub deleting_since: Option<Timestamp>,
    /// Since when it exists.
    pub created: Option<Timestamp>,
}

impl ClaimSummary {
    /// The summary of a claim.
    pub fn of(claim: &NodeClaim) -> Self {
        Self {
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            gang: gang_of(claim),
            workload_uid: claim.label(names::WORKLOAD_UID).to_owned(),
            owner: owner_of(claim).map_or_else(String::new, |(_, _, uid)| uid.to_owned()),
            workload: workload_of(claim),
            node_pool: claim.label(names::NODEPOOL).to_owned(),
            node_name: claim.node_name().unwrap_or_default().to_owned(),
            kept_for: claim.annotation(names::WARM_QUEUE).to_owned(),
            gang_label: claim.label(names::GANG).to_owned(),
            is_warm: claim.is_warm(),
            waits_for_provider: claim.status.as_ref().is_none_or(|s| s.provider_id.is_empty()),
            is_initialized: claim.is_initialized(),
            priced_as: priced_as(claim),
            phase: ClaimPhase::of(claim),
            deleting_since: claim.metadata.deletion_timestamp.as_ref().map(|t| t.0),
            created: claim.metadata.creation_timestamp.as_ref().map(|t| t.0),
        }
    }

    /// Its state, for metrics. A claim that is stuck in deletion, or undeletable since `undeletable`, counts separately.
    pub fn state(&self, undeletable: Option<Timestamp>, now: Timestamp) -> &'static str {
        let stuck = self.deleting_since.or(undeletable).is_some_and(|since| is_stuck(since, now));
        match self.phase {
            _ if stuck => "stuck",
            _ if self.is_deleting() => "deleting",
            ClaimPhase::Launching => "launching",
            ClaimPhase::Registering => "registering",
            ClaimPhase::Initializing => "initializing",
            ClaimPhase::Initialized => "ready",
        }
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deleting_since.is_some()
    }

    /// The values by which it is found, in the order of the indexes.
    pub fn indexes(&self) -> Vec<&str> {
        let flight = if self.is_initialized || self.is_deleting() { "" } else { IN_FLIGHT };
        vec![&self.workload_uid, &self.owner, flight, &self.kept_for]
    }
}
