//! The inputs of a plan: the cluster at one instant, and the Workload to plan for.

use super::cost::Prices;
use super::gates::inflight::InflightNodes;
use super::kinds::PlanObjects;
use super::limit_ranges::LimitRanges;
use super::market::Market;
use super::offering::Offering;
use super::pending_nodes::PendingNodes;
use super::pool_claims::{NO_CLAIMS, PoolClaims};
use super::shape::Shape;
use super::volumes::Storage;
use crate::api::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue, NodeClaim, Workload};
use crate::policy::Policy;
use crate::policy::file::Guards;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything that a plan is made from besides the request: a snapshot.
///
/// The controller and `setu plan` state every field, so that the compiler names both when one is added.
#[derive(Clone, Copy, Debug)]
pub struct PlanSnapshot<'a> {
    /// The queue that granted the quota.
    pub cluster_queue: Option<&'a ClusterQueue>,
    /// Every AdmissionCheck.
    pub checks: &'a [Arc<AdmissionCheck>],
    /// Every object of the kinds that are read whole.
    pub objects: &'a PlanObjects,
    /// LimitRanges of the namespaces of the Workload and of DaemonSets.
    pub limit_ranges: &'a LimitRanges,
    /// The storage objects that the pods' volumes depend on. `None` if they were not read: then volumes restrict
    /// nothing.
    pub storage: Option<&'a Storage>,
    /// Live claims of the NodePools that have limits.
    pub pool_claims: &'a PoolClaims,
    /// Warm claims of the gang's LocalQueue, which it may take over.
    pub warm: &'a [NodeClaim],
    /// Nodes that other gangs are about to create, without this gang.
    pub pending: &'a [PendingNodes],
    /// Shapes learnt from existing nodes.
    pub shapes: &'a [Shape],
    /// Offerings from Karpenter's metrics, if they are read.
    pub market: Option<&'a Market>,
    /// Offerings that were out of capacity lately.
    pub exhausted: Option<&'a BTreeSet<Offering>>,
    /// Every Cohort.
    pub cohorts: &'a [Arc<Cohort>],
    /// LocalQueues, if they can be read.
    pub local_queues: Option<&'a [Arc<LocalQueue>]>,
    /// Labels of the Workload's namespace, if it can be read.
    pub namespace_labels: Option<&'a BTreeMap<String, String>>,
    /// Bounds of the whole controller.
    pub guards: Option<&'a Guards>,
    /// Counts to compare with these bounds.
    pub inflight: Option<&'a InflightNodes>,
    /// Claims that the gang keeps, whichever option supplies its other nodes.
    pub staying: &'a [NodeClaim],
    /// Earlier slices of the elastic Job that have nodes.
    pub predecessors: &'a [Arc<Workload>],
    /// Value of the shared label on those nodes.
    pub shared_domain: Option<&'a str>,
    /// How planning treats NodePools that were just edited.
    pub edited: Edited,
    /// The current time. Capacity reservations open and close by it.
    pub now: Timestamp,
}

impl<'a> PlanSnapshot<'a> {
    /// A cluster with only these objects: for questions that depend on nothing else, benches and tests.
    pub const fn with(cluster_queue: Option<&'a ClusterQueue>, objects: &'a PlanObjects) -> Self {
        Self {
            cluster_queue,
            checks: &[],
            objects,
            limit_ranges: LimitRanges::NONE,
            storage: None,
            pool_claims: &NO_CLAIMS,
            warm: &[],
            pending: &[],
            shapes: &[],
            market: None,
            exhausted: None,
            cohorts: &[],
            local_queues: None,
            namespace_labels: None,
            guards: None,
            inflight: None,
            staying: &[],
            predecessors: &[],
            shared_domain: None,
            edited: Edited::Awaited,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// Where prices come from under a policy.
    pub fn prices(&self, policy: &'a Policy) -> Prices<'a> {
        Prices { budget: &policy.budget, market: self.market }
    }
}

/// How planning treats a NodePool that Karpenter has not reconciled since its last edit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Planning waits for Karpenter before it takes a later option.
    Awaited,
    /// It is passed over, because Karpenter may never reconcile it.
    PassedOver,
}

/// The gang to plan for.
#[derive(Clone, Copy, Debug)]
pub struct PlanRequest<'a> {
    /// The Workload, with its admission.
    pub workload: &'a Workload,
    /// Our check.
    pub check: &'a str,
    /// All of Setu's checks on this Workload, sorted.
    pub our_checks: &'a [String],
    /// All checks of this Workload that Setu answers, itself or through ProvisioningRequests.
    pub answered_checks: &'a [String],
    /// Value of the gang's label on its nodes.
    pub gang_label: &'a str,
    /// The gang's policy.
    pub policy: &'a Policy,
    /// Which provisioning options are allowed.
    pub selection: OptionSelection<'a>,
}

/// Which provisioning options are allowed, by their index in [`options`](super::tiers::options).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionSelection<'a> {
    /// The first option from this index on whose gates are open. An exhausted one only if all are exhausted.
    From(u32),
    /// The option that was accepted before. Of its gates, only the readiness of its NodePools is checked again.
    Accepted {
        /// Its index when it was accepted.
        option_index: u32,
        /// Hash of the plan that was accepted. It identifies the plan if NodePools that became ready or unusable have
        /// changed its index. `None` if the nodes are not of a single plan: then the index alone counts.
        plan: Option<&'a str>,
        /// One claim of each kind of the gang's nodes. They identify the option if prices have changed since.
        begun: &'a [NodeClaim],
    },
    /// The option that gives nodes like those that the gang has already. It counts as accepted.
    Like {
        /// One claim of each kind of the gang's nodes.
        begun: &'a [NodeClaim],
        /// Hash of the plan that was accepted, as far as it is known. Of several options, it tells which one gave the nodes that
        /// are missing now.
        plan: Option<&'a str>,
    },
}
