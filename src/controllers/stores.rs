//! The watched kinds, as their watches show them.

use super::plan_kinds::PlanStores;
use super::summary::ClaimSummary;
use super::workload_store::{Requests, Workloads};
use crate::api::{AdmissionCheck, Cohort, LocalQueue, Namespace, Node, NodeClaim, RawParameters, Topology};
use crate::cluster::store::{Object, Store};
use crate::cluster::watch::Listed;
use k8s_openapi::api::core::v1::LimitRange;
use std::sync::Arc;

/// Every watched kind.
#[derive(Clone)]
pub struct Stores {
    /// Workloads of both front-ends.
    pub workloads: Workloads,
    /// ProvisioningRequests; empty without `--provisioning-requests`.
    pub requests: Arc<Requests>,
    /// The objects that plans are made from.
    pub plan: PlanStores,
    /// AdmissionChecks.
    pub checks: Store<AdmissionCheck>,
    /// Topologies of flavors; empty without `--tas-compat` and `--provisioning-requests`.
    pub topologies: Store<Topology>,
    /// NodeClaims of ours, also found by the UID of their Workload.
    pub claims: Store<NodeClaim, ClaimSummary>,
    /// Nodes of ours.
    pub nodes: Store<Node>,
    /// LimitRanges.
    pub limit_ranges: Store<LimitRange>,
    /// ProvisioningParameters; empty while their CRD is not installed.
    pub parameters: Store<RawParameters>,
    /// LocalQueues.
    pub local_queues: Optional<LocalQueue>,
    /// Cohorts.
    pub cohorts: Optional<Cohort>,
    /// Namespaces.
    pub namespaces: Optional<Namespace>,
}

/// A kind that the controller can do without.
#[derive(Clone)]
pub struct Optional<K> {
    /// The objects read so far.
    pub store: Store<K>,
    /// Whether all of them were read.
    pub listed: Listed,
}

impl<K: Object> Optional<K> {
    /// Every object, or `None` if they cannot be read.
    pub fn all(&self) -> Option<Vec<Arc<K>>> {
        self.listed.is_done().then(|| self.store.state())
    }
}
