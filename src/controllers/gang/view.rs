//! The snapshot of a gang: its claims, what happened to lost ones, and everything else that a step depends on.

use super::Gang;
use super::elastic_job::is_missed;
use crate::api::pod::ResourceList;
use crate::api::workload::Verdict;
use crate::api::{Node, NodeClaim, Workload, condition};
use crate::controllers::Context;
use crate::controllers::meters::capacity_type;
use crate::controllers::plans;
use crate::gang::claims::Health;
use crate::gang::foreign_pods::{Taken, crowd};
use crate::gang::loss::{ClaimRecords, Loss, Tombstone, losses};
use crate::gang::{
    ClaimView, Failure, FailureClass, Freshness, GangIdentity, Outlook, Refusal, Reservation, Snapshot,
    State, WaitsFor,
};
use crate::names;
use crate::plan::taints::may_stay;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};

/// What was read about a gang: its claims, its Nodes, and the other pods on them.
pub(super) struct Observed {
    pub claims: Vec<NodeClaim>,
    pub nodes: BTreeMap<String, Node>,
    pub freshness: Freshness,
    /// Resources that other pods use on the gang's nodes, as of the last quorum read.
    pub taken: BTreeMap<String, Taken>,
    /// Resources that one pod of each pod set needs on its node, as of that read.
    pub each: Vec<ResourceList>,
    /// When the nodes were last searched for other pods.
    pub searched: Option<Timestamp>,
    /// Nodes on which that read found no pod.
    pub vacant: BTreeSet<String>,
    /// Taken-over claims whose Nodes are not marked yet.
    pub unmarked: BTreeSet<String>,
}

impl Observed {
    /// What the caches show.
    pub(super) fn of(claims: Vec<NodeClaim>, nodes: BTreeMap<String, Node>) -> Self {
        Self {
            claims,
            nodes,
            freshness: Freshness::Cached,
            taken: BTreeMap::new(),
            each: Vec::new(),
            searched: None,
            vacant: BTreeSet::new(),
            unmarked: BTreeSet::new(),
        }
    }
}

/// The data of a gang at one instant. Its [`Snapshot`] borrows from it.
pub(super) struct SnapshotParts {
    pub now: Timestamp,
    reservation: Reservation,
    reported: Verdict,
    unplaced: bool,
    /// Whether other gangs have given back what it ran short of. Set from the ledger.
    pub capacity_back: bool,
    refusal: Option<Refusal>,
    views: Vec<ClaimView>,
    pub losses: BTreeMap<u32, Loss>,
}

impl Gang<'_> {
    pub(super) fn parts(&self, workload: &Workload) -> SnapshotParts {
        let now = self.context.now();
        let views = self.views(now);
        let losses = losses(&self.journal, &self.identity, &views, &self.records(workload), now);
        let check = &self.identity.check;
        SnapshotParts {
            now,
            reservation: Reservation::of(workload, check),
            reported: workload.check(check).map(|c| c.state).unwrap_or_default(),
            unplaced: workload.is_unplaced(),
            capacity_back: false,
            refusal: self.refusal,
            views,
            losses,
        }
    }

    pub(super) fn snapshot<'f>(&'f self, parts: &'f SnapshotParts) -> Snapshot<'f> {
        Snapshot {
            now: parts.now,
            fresh: self.fresh,
            reservation: &parts.reservation,
            reported: parts.reported,
            plan: self.plan.as_ref(),
            claims: &parts.views,
            losses: &parts.losses,
            freshness: self.observed.freshness,
            capacity_back: parts.capacity_back,
            create_refused: self.create_refused.as_deref(),
            refusal: parts.refusal,
            policy: &self.judgement.policy,
            outlook: Outlook { unplaced: parts.unplaced, ..self.outlook() },
        }
    }

    fn outlook(&self) -> Outlook<'_> {
        let attempt = self.journal.memory.attempt.to_string();
        let current: Vec<&NodeClaim> =
            self.observed.claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt).collect();
        let ready_by = match self.journal.state {
            State::WaitingReady => {
                self.context.of_gangs.estimates.ready_by(&self.id, self.journal.seq, &current)
            }
            _ => None,
        };
        let tier = Some(self.tier.as_str()).filter(|tier| !tier.is_empty());
        let unbound = self.pod_check.as_ref().and_then(|check| check.found.as_ref());
        Outlook { ready_by, tier, unbound, ..Outlook::default() }
    }

    /// Removes the taints that the gang's pods tolerate from its nodes in this view.
    pub(super) fn overlook_taints(&mut self, workload: &Workload) {
        let stated: Vec<&Taint> = self.observed.claims.iter().flat_map(|claim| &claim.spec.taints).collect();
        let mut others: Vec<Taint> = Vec::new();
        for taint in self.observed.nodes.values().flat_map(|node| &node.spec.taints).filter(|t| may_stay(t)) {
            if !stated.iter().any(|s| (&s.key, &s.effect) == (&taint.key, &taint.effect))
                && !others.contains(taint)
            {
                others.push(taint.clone());
            }
        }
        if others.is_empty() {
            return;
        }
        let tolerated = plans::tolerated(self.context, &self.request(workload), others);
        for node in self.observed.nodes.values_mut() {
            node.spec.taints.retain(|taint| !tolerated.contains(taint));
        }
    }

    pub(super) fn views(&self, now: Timestamp) -> Vec<ClaimView> {
        let node = |c: &NodeClaim| self.observed.nodes.get(c.node_name()?);
        let view = |claim: &NodeClaim| {
            let node = node(claim);
            let launch_error = self.context.tombstones.launch_error(&claim.name_any());
            let mut view = ClaimView::of(claim, node, &self.judgement.policy, now, launch_error);
            let taken =
                node.and_then(|n| self.observed.taken.get(n.metadata.name.as_deref().unwrap_or_default()));
            // Pods may be placed on a ready node at any time.
            let searched = claim.node_name().is_some_and(|node| self.observed.vacant.contains(node));
            view.vacant = view.has_failed() && searched;
            if let (Some(node), Some(taken)) = (node, taken) {
                crowd(&mut view, claim, node, (taken, &self.observed.each), now);
            }
            // Pods may already run on nodes that were ready before.
            let ready = matches!(view.health, Health::Ready { .. }) && !self.journal.state.is_approved();
            if ready && self.observed.unmarked.contains(&view.name) {
                view.health = Health::Coming { waits_for: WaitsFor::Mark, until: None };
            }
            view
        };
        let mut views: Vec<ClaimView> = self.observed.claims.iter().map(view).collect();
        views.sort_by_key(|v| v.slot);
        views
    }

    /// This replica's records of the gang's claims.
    pub(super) fn records<'r>(&'r self, workload: &'r Workload) -> Records<'r> {
        Records { gang: self, workload }
    }

    /// What is wrong with a NodePool's NodeClass, according to the NodePool's condition.
    fn pool_fault(&self, pool: &str) -> Option<Failure> {
        let pool = self.context.stores.plan.pools.get(&ObjectRef::new(pool))?;
        let ready = condition::find(pool.conditions(), "NodeClassReady").filter(|c| c.status == "False")?;
        let class = match ready.reason.as_str() {
            "NodeClassNotFound" => FailureClass::NodeClassMissing,
            _ => FailureClass::NodeClassNotReady,
        };
        // The message may come from a cloud; users read it on the NodePool.
        Some(Failure::new(class, format!("NodePool {}: {}", pool.name_any(), ready.reason)))
    }
}

/// This replica's records of a gang's claims.
pub(super) struct Records<'a> {
    gang: &'a Gang<'a>,
    workload: &'a Workload,
}

impl ClaimRecords for Records<'_> {
    fn saw_since(&self, name: &str, since: Timestamp) -> bool {
        // The watch may not have shown the deletion yet.
        self.gang.context.remember_claim(name);
        self.gang.context.tombstones.saw_since(name, since)
    }

    fn knows(&self, name: &str) -> bool {
        self.gang.context.tombstones.knows(name)
    }

    fn taken_over(&self, attempt: u32, slot: u32) -> Option<String> {
        self.gang.context.tombstones.taken_over(&self.gang.id, attempt, slot)
    }

    fn missed(&self, name: &str, now: Timestamp) -> (Tombstone, Option<Failure>) {
        self.gang.context.remember_claim(name);
        let (tombstone, pool) = self.gang.context.tombstones.missed(name, now);
        (tombstone, self.gang.pool_fault(&pool))
    }

    fn needs_nodes(&self) -> bool {
        let gang = self.gang;
        // A replaced slice lost nothing if the pods of later slices do without its nodes.
        !self.workload.is_replaced() || is_missed(gang.context, self.workload, &gang.pin)
    }
}

/// The capacity type that all claims share; empty if they share none.
pub(super) fn tier_of(claims: &[NodeClaim]) -> String {
    let mut types = claims.iter().map(capacity_type);
    let first = types.next().unwrap_or_default();
    if types.all(|t| t == first) { first.to_owned() } else { String::new() }
}

/// A gang's claims from the cache. Those that this replica deleted count as being deleted.
pub(super) fn claims_of(context: &Context, gang: &GangIdentity, now: Timestamp) -> Vec<NodeClaim> {
    let all = context.stores.claims.of(&gang.uid);
    let own = all.iter().filter(|c| gang.made(c));
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
    claims
        .iter()
        .filter_map(NodeClaim::node_name)
        .filter_map(|name| {
            context.stores.nodes.get(&ObjectRef::new(name)).map(|n| (name.to_owned(), (*n).clone()))
        })
        .collect()
}
