//! What a plan is made from: the cluster at one instant, and the Workload to plan for.

use super::cost::Prices;
use super::gates::inflight::InflightNodes;
use super::market::Market;
use super::offering::Offering;
use super::reserved::PoolReservation;
use super::shape::Shape;
use super::volumes::Storage;
use crate::api::{
    AdmissionCheck, ClusterQueue, Cohort, DaemonSet, DeviceClass, LocalQueue, NodeClaim, NodePool,
    ResourceFlavor, Workload,
};
use crate::policy::Policy;
use crate::policy::file::Guards;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::LimitRange;
use k8s_openapi::api::node::v1::RuntimeClass;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything that a plan is made from besides the request: a snapshot.
///
/// The controller and `setu plan` state every field, so that the compiler names both when one is added.
#[derive(Clone, Copy, Debug)]
pub struct Cluster<'a> {
    /// The queue that granted the quota.
    pub cluster_queue: Option<&'a ClusterQueue>,
    /// Every AdmissionCheck.
    pub checks: &'a [Arc<AdmissionCheck>],
    /// Every ResourceFlavor.
    pub flavors: &'a [Arc<ResourceFlavor>],
    /// Every NodePool.
    pub node_pools: &'a [Arc<NodePool>],
    /// Every DaemonSet.
    pub daemon_sets: &'a [Arc<DaemonSet>],
    /// LimitRanges of the Workload's namespace.
    pub limit_ranges: &'a [Arc<LimitRange>],
    /// Every RuntimeClass.
    pub runtime_classes: &'a [Arc<RuntimeClass>],
    /// Every DeviceClass, where they are served and can be read.
    pub device_classes: &'a [Arc<DeviceClass>],
    /// What the volumes of the pods depend on; `None` where nobody has read it, so that they narrow nothing.
    pub storage: Option<&'a Storage>,
    /// Live claims of the NodePools that have limits, without those of the gangs in `reserved`.
    pub pool_claims: &'a [NodeClaim],
    /// Claims that are kept for the gang's LocalQueue, and that it may take over.
    pub warm: &'a [NodeClaim],
    /// What other gangs are about to create.
    pub reserved: &'a [PoolReservation],
    /// Shapes of nodes learnt from those seen.
    pub shapes: &'a [Shape],
    /// What Karpenter's own metrics say of offerings, where they are read.
    pub market: Option<&'a Market>,
    /// What was out of capacity lately.
    pub exhausted: Option<&'a BTreeSet<Offering>>,
    /// Every ClusterQueue.
    pub cluster_queues: &'a [Arc<ClusterQueue>],
    /// Every Cohort.
    pub cohorts: &'a [Arc<Cohort>],
    /// LocalQueues, where they can be read.
    pub local_queues: Option<&'a [Arc<LocalQueue>]>,
    /// Labels of the Workload's namespace, where they can be read.
    pub namespace_labels: Option<&'a BTreeMap<String, String>>,
    /// Bounds of the whole controller.
    pub guards: Option<&'a Guards>,
    /// What these bounds are compared with.
    pub inflight: Option<&'a InflightNodes>,
    /// Claims that the gang has and keeps, whatever way the rest of its nodes come.
    pub kept: &'a [NodeClaim],
    /// The slices of an elastic Job that came before this one and have nodes.
    pub predecessors: &'a [Arc<Workload>],
    /// Where those nodes are, by the label that all nodes of the gang are to share.
    pub settled: Option<&'a str>,
    /// What is done about NodePools that were just edited.
    pub edited: Edited,
    /// The time, by which capacity reservations open and close.
    pub now: Timestamp,
}

impl<'a> Cluster<'a> {
    /// A cluster in which only these objects are known, for questions that depend on no others, benches and tests.
    pub const fn with(
        cluster_queue: Option<&'a ClusterQueue>,
        flavors: &'a [Arc<ResourceFlavor>],
        node_pools: &'a [Arc<NodePool>],
    ) -> Self {
        Self {
            cluster_queue,
            checks: &[],
            flavors,
            node_pools,
            daemon_sets: &[],
            limit_ranges: &[],
            runtime_classes: &[],
            device_classes: &[],
            storage: None,
            pool_claims: &[],
            warm: &[],
            reserved: &[],
            shapes: &[],
            market: None,
            exhausted: None,
            cluster_queues: &[],
            cohorts: &[],
            local_queues: None,
            namespace_labels: None,
            guards: None,
            inflight: None,
            kept: &[],
            predecessors: &[],
            settled: None,
            edited: Edited::Awaited,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    /// Where prices come from under a policy.
    pub fn prices(&self, policy: &'a Policy) -> Prices<'a> {
        Prices { budget: &policy.budget, market: self.market }
    }
}

/// What is done about a NodePool that was edited and that Karpenter has not reconciled since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edited {
    /// Planning waits for Karpenter before it takes a later option.
    Awaited,
    /// It is passed over, because Karpenter may never reconcile it.
    PassedOver,
}

/// Whom to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The Workload, with its admission.
    pub workload: &'a Workload,
    /// Our check.
    pub check: &'a str,
    /// Every check of ours on this Workload, sorted.
    pub our_checks: &'a [String],
    /// Value of the gang's label on its nodes.
    pub gang: &'a str,
    /// The gang's policy.
    pub policy: &'a Policy,
    /// Which of the provisioning options may be taken.
    pub selection: OptionSelection<'a>,
}

/// Which of the provisioning options may be taken, by their index in [`tiers::options`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionSelection<'a> {
    /// The first from this one on that is open; one without capacity lately only if all are so.
    From(u32),
    /// This one, which was accepted before: no gate is asked again but whether its NodePools still serve.
    Accepted {
        /// Its index when it was accepted.
        option_index: u32,
        /// Hash of the plan that was accepted. It identifies the plan if NodePools that became ready or unusable have
        /// changed its index. `None` if the nodes are not of a single plan: then the index alone counts.
        plan: Option<&'a str>,
        /// A claim of each kind of nodes that the gang has already, by which it is found where prices have changed since.
        begun: &'a [NodeClaim],
    },
    /// The one that gives nodes like these, which the gang has already: as one that was accepted. One claim of each kind does.
    Like(&'a [NodeClaim]),
}
