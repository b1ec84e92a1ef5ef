//! The snapshot of a gang: its claims, what happened to lost ones, and everything else that a step depends on.

use super::Gang;
use super::scope::GangScope;
use crate::api::workload::Verdict;
use crate::api::{Node, NodeClaim, Workload};
use crate::controllers::Context;
use crate::controllers::plans;
use crate::gang::elastic_job::needs_more_nodes;
use crate::gang::loss::{ClaimRecords, Loss, Tombstone, losses, pool_fault};
use crate::gang::{ClaimView, Eviction, Failure, Forecast, Reservation, Snapshot, State};
use crate::plan::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;

/// The data of a gang at one instant. Its [`Snapshot`] borrows from it.
pub(super) struct SnapshotParts {
    pub now: Timestamp,
    reservation: Reservation,
    reported: Verdict,
    unplaced: bool,
    eviction: Eviction,
    passes_over_edited: bool,
    /// Whether other gangs have given back what it ran short of. Set from the ledger.
    pub capacity_back: bool,
    views: Vec<ClaimView>,
    pub losses: BTreeMap<u32, Loss>,
}

impl Gang<'_> {
    pub(super) fn parts(&self, workload: &Workload) -> SnapshotParts {
        let (now, identity) = (self.scope.now(), &self.scope.identity);
        let views = self.views(now);
        let losses = losses(self.journal(), identity, &views, &self.records(workload), now);
        SnapshotParts {
            now,
            reservation: Reservation::of(workload, &identity.check),
            reported: workload.check(&identity.check).map(|c| c.state).unwrap_or_default(),
            unplaced: workload.is_unplaced(),
            eviction: Eviction::of(workload),
            passes_over_edited: self.planned.plan().is_some()
                && self.planning().passes_over_edited(|| self.scope.context.stores.plan.node_pools.state()),
            capacity_back: false,
            views,
            losses,
        }
    }

    pub(super) fn snapshot<'f>(&'f self, parts: &'f SnapshotParts) -> Snapshot<'f> {
        Snapshot {
            now: parts.now,
            fresh: self.stored.opened.fresh,
            reservation: &parts.reservation,
            reported: parts.reported,
            plan: self.planned.outcome.as_ref(),
            claims: &parts.views,
            losses: &parts.losses,
            freshness: self.observed.freshness,
            grounds: self.inputs.freshness(),
            passes_over_edited: parts.passes_over_edited,
            capacity_back: parts.capacity_back,
            create_refused: self.observed.create_refused.as_deref(),
            refusal: self.planned.refusal,
            policy: &self.judgement.policy,
            judged_by: self.judgement.by(),
            eviction: parts.eviction,
            jitter: self.scope.identity.jitter(self.journal().memory.attempt),
            forecast: Forecast { unplaced: parts.unplaced, ..self.forecast() },
        }
    }

    fn forecast(&self) -> Forecast<'_> {
        let journal = self.journal();
        let ready_by = match journal.state {
            State::WaitingReady => {
                let current: Vec<&NodeClaim> = self.observed.of_attempt(journal.memory.attempt).collect();
                let estimate = || self.scope.context.estimates.ready_by(&current);
                self.scope.context.of_gangs.registry.ready_by(&self.scope.id, journal.seq, estimate)
            }
            _ => None,
        };
        let tier = Some(self.observed.capacity_type.as_str()).filter(|tier| !tier.is_empty());
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

    /// Whom to plan for, with every option open.
    pub(super) fn request<'r>(&'r self, workload: &'r Workload) -> Request<'r> {
        self.scope.request(workload, &self.judgement.policy)
    }

    pub(super) fn views(&self, now: Timestamp) -> Vec<ClaimView> {
        let tombstones = &self.scope.context.tombstones;
        let launch_error = |claim: &str| tombstones.launch_error(claim);
        self.observed.views(self.journal(), &self.judgement.policy, now, launch_error)
    }

    /// This replica's records of the gang's claims.
    pub(super) fn records<'r>(&'r self, workload: &'r Workload) -> Records<'r> {
        Records { scope: &self.scope, workload }
    }
}

/// This replica's records of a gang's claims.
pub(super) struct Records<'a> {
    scope: &'a GangScope<'a>,
    workload: &'a Workload,
}

impl ClaimRecords for Records<'_> {
    fn saw_since(&self, name: &str, since: Timestamp) -> bool {
        // The watch may not have shown the deletion yet.
        self.scope.context.remember_claim(name);
        self.scope.context.tombstones.saw_since(name, since)
    }

    fn knows(&self, name: &str) -> bool {
        self.scope.context.tombstones.knows(name)
    }

    fn taken_over(&self, attempt: u32, slot: u32) -> Option<String> {
        self.scope.context.tombstones.taken_over(&self.scope.id, attempt, slot)
    }

    fn missed(&self, name: &str, now: Timestamp) -> (Tombstone, Option<Failure>) {
        self.scope.context.remember_claim(name);
        let (tombstone, pool) = self.scope.context.tombstones.missed(name, now);
        let pool = self.scope.context.stores.plan.node_pools.get(&ObjectRef::new(&pool));
        (tombstone, pool.and_then(|pool| pool_fault(&pool)))
    }

    fn needs_nodes(&self) -> bool {
        // A replaced slice lost nothing if the pods of later slices do without its nodes.
        !self.workload.is_replaced() || {
            let (stores, elastic_job) = (&self.scope.context.stores, self.workload.elastic_job());
            let slices = stores.workloads.those(|workload| workload.elastic_job() == elastic_job);
            let slices = slices.iter().filter_map(|slice| stores.workloads.get(slice));
            let nodes =
                stores.claims.those(|claim| !claim.is_deleting() && claim.gang_label == self.scope.label);
            needs_more_nodes(slices, nodes.len())
        }
    }
}

/// A gang's claims from the cache. Those that this replica deleted count as being deleted.
pub(super) fn claims_of(scope: &GangScope<'_>) -> Vec<NodeClaim> {
    let (context, now) = (scope.context, scope.now());
    let all = context.stores.claims.of(&scope.identity.uid);
    let own = all.iter().filter(|c| scope.identity.made(c));
    own.map(|claim| {
        let mut claim = (**claim).clone();
        if context.tombstones.is_deleted(&claim) {
            claim.metadata.deletion_timestamp.get_or_insert(Time(now));
        }
        claim
    })
    .collect()
}

/// The known Nodes of these claims.
pub(super) fn nodes_of(context: &Context, claims: &[NodeClaim]) -> BTreeMap<String, Node> {
    let named = claims.iter().filter_map(NodeClaim::node_name);
    let found = named.filter_map(|name| {
        context.stores.nodes.get(&ObjectRef::new(name)).map(|n| (name.to_owned(), (*n).clone()))
    });
    found.collect()
}
