//! The inputs of a plan: the objects, what follows from them for one Workload, and Karpenter's metrics.

use super::admission::Admitted;
use super::objects::Objects;
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::gang_of;
use crate::plan::gates::inflight::InflightNodes;
use crate::plan::limit_ranges::LimitRanges;
use crate::plan::market::Market;
use crate::plan::offering::Offering;
use crate::plan::pool_claims::PoolClaims;
use crate::plan::shape::Shape;
use crate::plan::volumes::Storage;
use crate::plan::{Edited, PlanObjects, PlanRequest, PlanSnapshot};
use crate::policy::file::Guards;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Everything that is not borrowed from the objects.
pub struct Inputs {
    objects: PlanObjects,
    namespace_labels: BTreeMap<String, String>,
    limit_ranges: LimitRanges,
    storage: Storage,
    pool_claims: PoolClaims,
    shapes: Vec<Shape>,
    inflight: InflightNodes,
    warm: Vec<NodeClaim>,
    now: Timestamp,
    predecessors: Vec<Arc<Workload>>,
    shared_domain: Option<String>,
    market: Option<Market>,
    exhausted: Option<BTreeSet<Offering>>,
}

impl Inputs {
    /// Derives them.
    pub fn of(
        objects: &Objects,
        admitted: &Admitted,
        request: &PlanRequest<'_>,
        market: Option<Market>,
    ) -> Self {
        let (workload, now) = (request.workload, Timestamp::now());
        let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
        Self {
            objects: PlanObjects { flavors: admitted.flavors.clone(), ..objects.plan.clone() },
            namespace_labels: objects.labels_of(namespace),
            limit_ranges: objects.limit_ranges_for(namespace),
            storage: objects.storage_of(namespace),
            pool_claims: PoolClaims::of(objects.node_claims.iter().cloned(), gang_of),
            shapes: objects.shapes(),
            inflight: objects.inflight(workload, now),
            warm: objects.warm(request, now),
            now,
            predecessors: objects.predecessors(workload, request.check, now),
            shared_domain: objects.shared_domain(request),
            exhausted: market.as_ref().map(Market::exhausted),
            market,
        }
    }

    /// The cluster as the planner reads it.
    pub fn cluster<'a>(
        &'a self,
        objects: &'a Objects,
        admitted: &'a Admitted,
        guards: &'a Guards,
    ) -> PlanSnapshot<'a> {
        PlanSnapshot {
            cluster_queue: Some(&admitted.queue),
            checks: &objects.checks,
            objects: &self.objects,
            limit_ranges: &self.limit_ranges,
            storage: Some(&self.storage),
            pool_claims: &self.pool_claims,
            warm: &self.warm,
            staying: &[],
            pending: &[],
            shapes: &self.shapes,
            market: self.market.as_ref(),
            exhausted: self.exhausted.as_ref(),
            cohorts: &objects.cohorts,
            local_queues: Some(&objects.local_queues),
            namespace_labels: Some(&self.namespace_labels),
            guards: Some(guards),
            inflight: Some(&self.inflight),
            predecessors: &self.predecessors,
            shared_domain: self.shared_domain.as_deref(),
            edited: Edited::Awaited,
            now: self.now,
        }
    }
}
