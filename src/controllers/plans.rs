//! Makes the plan of a gang from the stores, under the ledger's lock.

use super::context::Context;
use super::inflight;
use super::plan_objects::GangPlanObjects;
use super::summary::BY_WORKLOAD;
use crate::api::pod::ResourceList;
use crate::api::workload::PodSetUpdate;
use crate::api::{AdmissionCheck, ClusterQueue, Cohort, LocalQueue, Node, NodeClaim, NodePool, Workload};
use crate::gang::CurrentPolicy;
use crate::gang::ledger::Ledger;
use crate::gang::ledger::known_capacity::KnownCapacity;
use crate::gang::statechart::journal::Memory;
use crate::gang::workload::elastic_job::nodes_of_slice;
use crate::plan::catalogue;
use crate::plan::gates::inflight::InflightNodes;
use crate::plan::limit_ranges::LimitRanges;
use crate::plan::offering::Offering;
use crate::plan::pool_claims::PoolClaims;
use crate::plan::resources::Defaults;
use crate::plan::shape::Shape;
use crate::plan::volumes::Storage;
use crate::plan::{self, Edited, Obstacle, Outcome, PendingNodes, PlanObjects, PlanRequest, PlanSnapshot};
use crate::policy::{Settings, TopologyLevels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Once};

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

/// The policy of a Workload's next attempt.
pub fn policy(context: &Context, workload: &Workload, check: &str) -> CurrentPolicy {
    let policies = &context.policies;
    CurrentPolicy::of(&policies.settings(), workload, check, policies.parameters(check))
}

/// The levels of the topologies by which Kueue places the pods of a gang. It uses no node without their labels.
pub fn topologies(context: &Context, request: &PlanRequest<'_>) -> Vec<TopologyLevels> {
    let workload = request.workload;
    if !context.options.tas_compat && !workload.front_end().delays_topology() {
        return Vec::new();
    }
    let (queue, stores) = (queue_of(context, workload), &context.stores);
    let find = |name: &str| stores.topologies.get(&ObjectRef::new(name));
    plan::demand::topology_levels(queue.as_deref(), request, &stores.plan.flavors.state(), find)
}

/// NodeClaims read from the API server, for plans that depend on claims of others.
#[derive(Clone, Copy, Debug)]
pub struct LiveReads<'a> {
    /// Claims of the NodePools whose live claims must all be known.
    pub claims: &'a PoolClaims,
    /// Claims that the gang may take over.
    pub warm: &'a [NodeClaim],
    /// Claims that the gang keeps while other options supply the rest of its nodes.
    pub staying: &'a [NodeClaim],
    /// Shapes to use instead of those known when the gang was planned, or now.
    pub shapes: Option<&'a [Shape]>,
    /// Storage objects that the pods' volumes depend on.
    pub storage: Option<&'a Storage>,
    /// How planning treats NodePools that were just edited.
    pub edited: Edited,
    /// The plan objects, if they were read past the caches for this gang.
    pub plan_objects: Option<&'a GangPlanObjects>,
}

/// Plans for the gang of this id, as if it were its turn: `gang::step::planning::in_turn` decides that.
pub fn outcome(
    context: &Context,
    request: &PlanRequest<'_>,
    gang: &str,
    ledger: &mut Ledger,
    read: LiveReads<'_>,
) -> Outcome {
    let inputs = PlanSnapshotParts::of(context, request, gang, ledger, read);
    let outcome = plan::plan(&inputs.cluster(request.workload, read), request);
    warn_if_outdated(&inputs.plan_objects.cluster.node_pools, inputs.now);
    outcome
}

/// Records the shapes that these claims show.
pub fn learn(context: &Context, claims: &[Arc<NodeClaim>]) {
    let (now, mut ledger) = (context.now(), context.gang_state.ledger());
    // A claim that was read before its deletion would be kept forever.
    let is_there =
        |claim: &&Arc<NodeClaim>| context.stores.claims.entry(&ObjectRef::from_obj(&***claim)).is_some();
    for claim in claims.iter().filter(is_there) {
        if let Some(shape) = Shape::of_claim(claim)
            && ledger.observed_shapes().note(shape, now)
        {
            context.count_better_offer();
        }
    }
}

/// The inputs of a plan at one instant, from the stores and the ledger.
struct PlanSnapshotParts {
    plan_objects: GangPlanObjects,
    checks: Vec<Arc<AdmissionCheck>>,
    cohorts: Vec<Arc<Cohort>>,
    local_queues: Option<Vec<Arc<LocalQueue>>>,
    settings: Arc<Settings>,
    predecessors: Vec<Arc<Workload>>,
    shared_domain: Option<String>,
    pending: Vec<PendingNodes>,
    capacity: KnownCapacity,
    exhausted: BTreeSet<Offering>,
    inflight: InflightNodes,
    now: Timestamp,
}

impl PlanSnapshotParts {
    fn of(
        context: &Context,
        request: &PlanRequest<'_>,
        gang: &str,
        ledger: &mut Ledger,
        read: LiveReads<'_>,
    ) -> Self {
        let (workload, stores, now) = (request.workload, &context.stores, context.now());
        let accepted = ledger.accepted(gang);
        let capacity = ledger.capacity_for(gang, request.selection, now);
        let pending = ledger.others(gang);
        Self {
            plan_objects: read
                .plan_objects
                .cloned()
                .unwrap_or_else(|| GangPlanObjects::cached(stores, workload)),
            checks: stores.checks.state(),
            cohorts: stores.cohorts.all().unwrap_or_default(),
            local_queues: stores.local_queues.all(),
            settings: context.policies.settings(),
            predecessors: predecessors(context, request),
            shared_domain: accepted
                .map_or_else(|| shared_domain(context, request), |accepted| accepted.shared_domain),
            pending,
            capacity: KnownCapacity { shapes: read.shapes.map_or(capacity.shapes, Arc::from), ..capacity },
            exhausted: ledger.exhausted(now),
            inflight: inflight::of(context, workload, gang, ledger, now),
            now,
        }
    }

    fn cluster<'c>(&'c self, workload: &Workload, read: LiveReads<'c>) -> PlanSnapshot<'c> {
        let objects = &*self.plan_objects.cluster;
        let namespace = self.plan_objects.namespace.as_deref();
        PlanSnapshot {
            cluster_queue: self.plan_objects.queue_of(workload).map(|queue| &**queue),
            checks: &self.checks,
            objects,
            limit_ranges: &self.plan_objects.limit_ranges,
            storage: read.storage,
            pool_claims: read.claims,
            warm: read.warm,
            staying: read.staying,
            pending: &self.pending,
            shapes: &self.capacity.shapes,
            market: self.capacity.market.as_deref(),
            exhausted: Some(&self.exhausted),
            cohorts: &self.cohorts,
            local_queues: self.local_queues.as_deref(),
            namespace_labels: namespace.map(|n| n.metadata.labels.as_ref().unwrap_or(&NO_LABELS)),
            guards: Some(&self.settings.file.guards),
            inflight: Some(&self.inflight),
            predecessors: &self.predecessors,
            shared_domain: self.shared_domain.as_deref(),
            edited: read.edited,
            now: self.now,
        }
    }
}

/// Logs, once, that the catalogue of a NodePool's provider is old.
fn warn_if_outdated(pools: &[Arc<NodePool>], now: Timestamp) {
    static LOGGED: Once = Once::new();
    if !LOGGED.is_completed()
        && let Some(outdated) = catalogue::outdated_of(pools, now).next()
    {
        LOGGED.call_once(|| tracing::warn!("{outdated}"));
    }
}

/// The pod set updates for Kueue. An obstacle if Kueue cannot merge them with its other additions to the pods.
pub fn updates(
    context: &Context,
    request: &PlanRequest<'_>,
    memory: &Memory,
) -> Result<Vec<PodSetUpdate>, Obstacle> {
    let queue = queue_of(context, request.workload);
    let flavors = context.stores.plan.flavors.state();
    plan::updates(queue.as_deref(), &flavors, request, memory.pinning, &memory.pod_sets)
}

/// Why the pods of a gang would not get to these nodes of its claims; `None` if nothing sends them away. `read` has the objects
/// that were read past the caches.
pub fn misplaced(
    context: &Context,
    request: &PlanRequest<'_>,
    read: Option<&GangPlanObjects>,
    nodes: &[(&NodeClaim, &Node)],
) -> Option<String> {
    let workload = request.workload;
    let queue = read.map_or_else(|| queue_of(context, workload), |read| read.queue_of(workload).cloned());
    if let Some(why) = queue.as_deref().and_then(|queue| plan::demand::none_left(queue, request)) {
        return Some(why);
    }
    let objects = read.map_or_else(|| Arc::new(of_pods(context)), |read| Arc::clone(&read.cluster));
    let pod_sets = plan::demand::pinned(queue.as_deref(), request);
    plan::merge::misplaced(&objects, request, &pod_sets, nodes)
}

/// The objects that decide on which nodes pods may run.
fn of_pods(context: &Context) -> PlanObjects {
    let stores = &context.stores.plan;
    let (flavors, runtime_classes) = (stores.flavors.state(), stores.runtime_classes.state());
    PlanObjects { flavors, runtime_classes, ..PlanObjects::default() }
}

/// The resources of a pod, for each pod set that is pinned to the gang's nodes. Empty if they are unknown.
pub fn each(context: &Context, request: &PlanRequest<'_>) -> Vec<ResourceList> {
    let queue = queue_of(context, request.workload);
    let held = plan::demand::pinned(queue.as_deref(), request);
    let namespace = request.workload.namespace().unwrap_or_default();
    let ranges = LimitRanges::for_plan(context.stores.limit_ranges.state(), &namespace, &[]);
    let defaults = Defaults {
        limit_ranges: ranges.of(Some(&namespace)),
        runtime_classes: &context.stores.plan.runtime_classes.state(),
    };
    let sets = request.workload.spec.pod_sets.iter().filter(|set| held.contains(&set.name));
    sets.map(|set| plan::demand::each(defaults, set)).collect::<Result<_, _>>().unwrap_or_default()
}

/// The ClusterQueue that a Workload is admitted to.
fn queue_of(context: &Context, workload: &Workload) -> Option<Arc<ClusterQueue>> {
    let name = workload.admission().map_or("", |a| a.cluster_queue.as_str());
    context.stores.plan.cluster_queues.get(&ObjectRef::new(name))
}

/// The taints among these that all pods of the gang tolerate.
pub fn tolerated(context: &Context, request: &PlanRequest<'_>, taints: Vec<Taint>) -> Vec<Taint> {
    let queue = queue_of(context, request.workload);
    plan::taints::tolerated(&PlanSnapshot::with(queue.as_deref(), &of_pods(context)), request, taints)
}

/// Earlier slices of the same elastic Job that were admitted and whose pods have nodes, Setu's or others.
fn predecessors(context: &Context, request: &PlanRequest<'_>) -> Vec<Arc<Workload>> {
    let workload = request.workload;
    let namespace = workload.namespace().unwrap_or_default();
    let find = |name: &str| context.stores.workloads.get(&ObjectRef::new(name).within(&namespace));
    let claims = &context.stores.claims;
    let nodes_of = |slice: &Workload| {
        let claims = claims.entries_of(BY_WORKLOAD, &slice.uid().unwrap_or_default());
        let has_nodes = claims.iter().any(|claim| !claim.is_deleting());
        nodes_of_slice(slice, request.check, has_nodes, context.now())
    };
    plan::slices::predecessors(workload, find, nodes_of)
}

/// Value of the shared label on the nodes of earlier slices.
pub fn shared_domain(context: &Context, request: &PlanRequest<'_>) -> Option<String> {
    plan::slices::shared_domain(request, |own| {
        let mut claims = context.stores.claims.entries();
        claims.retain(|c| {
            c.gang_label == request.gang_label && c.workload_uid != own && !c.node_name.is_empty()
        });
        let node = |name: &str| context.stores.nodes.get(&ObjectRef::new(name));
        claims.iter().filter_map(|claim| node(&claim.node_name)).collect()
    })
}
