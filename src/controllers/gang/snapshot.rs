//! The snapshot of a gang: its claims, what happened to lost ones, and everything else that a step depends on.

use super::Gang;
use super::scope::GangScope;
use crate::api::{Node, NodeClaim, Workload};
use crate::controllers::Context;
use crate::controllers::plans;
use crate::controllers::summary::BY_WORKLOAD;
use crate::gang::snapshot::loss::{ClaimRecords, GoneClaim, pool_fault};
use crate::gang::workload::elastic_job::needs_more_nodes;
use crate::gang::{ClaimView, Failure, Forecast, Snapshot, SnapshotParts, State};
use crate::plan::PlanRequest;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Gang<'_> {
    /// The data that its snapshot borrows. Losses that nothing has shown before are dated now.
    pub(super) fn parts(&self, workload: &Workload) -> SnapshotParts {
        let (identity, now) = (&self.scope.identity, self.scope.now());
        let parts = SnapshotParts::of(workload, &identity.check, self.views(now), now);
        let parts =
            parts.with_records(self.journal(), identity, &self.records(), || self.needs_nodes(workload));
        parts.with_misplaced(self.misplaced(workload))
    }

    /// Why the pods would not get to the gang's nodes; `None` if nothing sends them away, or if the gang is admitted already.
    fn misplaced(&self, workload: &Workload) -> Option<String> {
        let nodes = self.observed.nodes_before_admission(self.journal(), workload);
        if nodes.is_empty() {
            return None;
        }
        let read = self.live_reads.plan_objects.as_ref();
        plans::misplaced(self.scope.context, &self.request(workload), read, &nodes)
    }

    pub(super) fn snapshot<'f>(&'f self, parts: &'f SnapshotParts, workload: &Workload) -> Snapshot<'f> {
        let planned = &self.planned;
        Snapshot {
            is_substitute: self.stored.loaded.is_substitute,
            plan: planned.outcome.as_ref(),
            freshness: self.observed.freshness,
            plan_freshness: self.live_reads.freshness(),
            passes_over_edited: planned.passes_over_edited,
            capacity_back: planned.capacity_back,
            create_refused: self.observed.create_refused.as_deref(),
            refusal: planned.refusal,
            policy_source: self.effective.source(),
            jitter: self.scope.identity.jitter(self.journal().memory.attempt),
            forecast: Forecast { unplaced: workload.is_unplaced(), ..self.forecast() },
            ..parts.snapshot(&self.effective.policy)
        }
    }

    fn forecast(&self) -> Forecast<'_> {
        let journal = self.journal();
        let ready_by = match journal.state {
            State::WaitingReady => {
                let current: Vec<&NodeClaim> = self.observed.of_attempt(journal.memory.attempt).collect();
                let estimate = || self.scope.context.estimates.ready_by(&current);
                self.scope.context.gang_state.registry.fix_ready_by(&self.scope.id, journal.seq, estimate)
            }
            _ => None,
        };
        let tier = self.observed.capacity_type.as_deref();
        let unbound = self.observed.pod_check.as_ref().and_then(|check| check.found.as_ref());
        Forecast { ready_by, tier, unbound, ..Forecast::default() }
    }

    /// Taints on the gang's nodes that all its pods tolerate.
    pub(super) fn tolerated(&self, workload: &Workload) -> Vec<Taint> {
        let added = self.observed.added_taints();
        if added.is_empty() {
            return added;
        }
        plans::tolerated(self.scope.context, &self.request(workload), added)
    }

    /// The plan request of this gang; any option may be chosen.
    pub(super) fn request<'r>(&'r self, workload: &'r Workload) -> PlanRequest<'r> {
        self.scope.request(workload, &self.effective.policy)
    }

    pub(super) fn views(&self, now: Timestamp) -> Vec<ClaimView> {
        let records = &self.scope.context.claim_records;
        let launch_error = |claim: &str| records.launch_error(claim);
        self.observed.views(self.journal(), &self.effective.policy, now, launch_error)
    }

    /// This replica's records of the gang's claims.
    pub(super) fn records(&self) -> Records<'_> {
        Records { scope: &self.scope }
    }

    /// Whether the gang needs the nodes that it has lost. A replaced slice of an elastic Job needs none if the pods of later slices
    /// do without them.
    fn needs_nodes(&self, workload: &Workload) -> bool {
        !workload.is_replaced() || {
            let (stores, elastic_job) = (&self.scope.context.stores, workload.elastic_job());
            let slices = stores.workloads.those(|workload| workload.elastic_job() == elastic_job);
            let slices = slices.iter().filter_map(|slice| stores.workloads.get(slice));
            let nodes =
                stores.claims.those(|claim| !claim.is_deleting() && claim.gang_label == self.scope.label);
            needs_more_nodes(slices, nodes.len())
        }
    }
}

/// This replica's records of a gang's claims.
pub(super) struct Records<'a> {
    scope: &'a GangScope<'a>,
}

impl ClaimRecords for Records<'_> {
    fn refresh(&self, name: &str) {
        self.scope.context.remember_claim(name);
    }

    fn saw_since(&self, name: &str, since: Timestamp) -> bool {
        self.scope.context.claim_records.saw_since(name, since)
    }

    fn knows(&self, name: &str) -> bool {
        self.scope.context.claim_records.knows(name)
    }

    fn taken_over(&self, attempt: u32, slot: u32) -> Option<String> {
        self.scope.context.claim_records.taken_over(&self.scope.id, attempt, slot)
    }

    fn note_missing(&self, name: &str, now: Timestamp) -> (GoneClaim, Option<Failure>) {
        let (gone_claim, pool) = self.scope.context.claim_records.note_missing(name, now);
        let pool = self.scope.context.stores.plan.node_pools.get(&ObjectRef::new(&pool));
        (gone_claim, pool.and_then(|pool| pool_fault(&pool)))
    }
}

/// A gang's claims from the cache. Those that this replica deleted count as being deleted.
pub(super) fn claims_of(scope: &GangScope<'_>) -> Vec<Arc<NodeClaim>> {
    let (context, now) = (scope.context, scope.now());
    let mut own = context.stores.claims.of(BY_WORKLOAD, &scope.identity.uid);
    own.retain(|claim| scope.identity.is_of_gang(claim));
    for claim in own.iter_mut().filter(|claim| context.claim_records.is_deleted(claim)) {
        Arc::make_mut(claim).metadata.deletion_timestamp.get_or_insert(Time(now));
    }
    own
}

/// The known Nodes of these claims.
pub(super) fn nodes_of(context: &Context, claims: &[Arc<NodeClaim>]) -> BTreeMap<String, Arc<Node>> {
    let named = claims.iter().filter_map(|claim| claim.node_name());
    named
        .filter_map(|name| Some((name.to_owned(), context.stores.nodes.get(&ObjectRef::new(name))?)))
        .collect()
}
