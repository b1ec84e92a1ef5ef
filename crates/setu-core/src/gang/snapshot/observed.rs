//! Data read about a gang: its NodeClaims, its Nodes, and the other pods on them.
//!
//! Rule: data, and what follows from it alone. The controller reads it.

use super::Freshness;
use super::claims::ClaimView;
use super::foreign_pods::{self, PodUsage, RoomCheck, wait_for_room};
use super::health::Health;
use super::resource_slices::{NodeResourceSlices, wait_for_devices};
use super::unbound::PodCheck;
use super::waits::WaitsFor;
use crate::api::pod::ResourceList;
use crate::api::workload::Verdict;
use crate::api::{Node, NodeClaim, Pod, Workload};
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::State;
use crate::names;
use crate::plan::taints::may_stay;
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Taint;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Data read about a gang.
#[derive(Debug)]
pub struct Observed {
    /// Its NodeClaims.
    pub claims: Vec<Arc<NodeClaim>>,
    /// Their Nodes, by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// How both were read.
    pub freshness: Freshness,
    /// The capacity type that all claims share, for display.
    pub capacity_type: Option<String>,
    /// The other pods on the nodes, as of the last quorum read.
    pub others: OtherPods,
    /// The ResourceSlices of the nodes, as of the last quorum read.
    pub resource_slices: NodeResourceSlices,
    /// When the pods on the nodes were last listed.
    pub pods_listed: Option<Timestamp>,
    /// Taken-over claims whose Nodes are not marked yet.
    pub unmarked: BTreeSet<String>,
    /// Why the API server refused a NodeClaim, if it did.
    pub create_refused: Option<String>,
    /// The last check of the gang's pods, once it is admitted.
    pub pod_check: Option<PodCheck>,
}

/// The other pods on a gang's nodes.
#[derive(Debug, Default)]
pub struct OtherPods {
    /// Resources that they use, by node.
    taken: BTreeMap<String, PodUsage>,
    /// Resources that one pod of each pod set of the gang needs on its node.
    each: Vec<ResourceList>,
    /// Nodes without any.
    vacant: BTreeSet<String>,
}

impl OtherPods {
    /// The pods listed on these nodes; `None` if Setu may not list pods, and then no node is known to be free of them. `each` is
    /// what one pod of each pod set of the gang needs.
    pub fn listed(pods: Option<&[Pod]>, nodes: Vec<String>, each: Vec<ResourceList>) -> Self {
        let Some(pods) = pods else { return Self { each, ..Self::default() } };
        let occupied = foreign_pods::nodes_with_pods(pods);
        let vacant = nodes.into_iter().filter(|node| !occupied.contains(node.as_str())).collect();
        Self { taken: foreign_pods::usage_by_node(pods), each, vacant }
    }
}

impl Observed {
    /// Claims and Nodes from the caches, without what only a quorum read shows.
    pub fn cached(claims: Vec<Arc<NodeClaim>>, nodes: BTreeMap<String, Arc<Node>>) -> Self {
        let mut observed = Self {
            claims,
            nodes,
            freshness: Freshness::Cached,
            capacity_type: None,
            others: OtherPods::default(),
            resource_slices: NodeResourceSlices::default(),
            pods_listed: None,
            unmarked: BTreeSet::new(),
            create_refused: None,
            pod_check: None,
        };
        observed.note_capacity_type();
        observed
    }

    /// Replaces the claims and Nodes by these.
    pub fn replace(&mut self, claims: Vec<NodeClaim>, nodes: Vec<Node>) {
        let named = |node: Node| (node.metadata.name.clone().unwrap_or_default(), Arc::new(node));
        self.claims = claims.into_iter().map(Arc::new).collect();
        self.nodes = nodes.into_iter().map(named).collect();
        self.note_capacity_type();
    }

    /// Records a claim that was written.
    pub fn note(&mut self, claim: NodeClaim) {
        self.claims.retain(|c| c.metadata.name != claim.metadata.name);
        self.claims.push(Arc::new(claim));
    }

    /// Records which capacity type the claims share now.
    pub fn note_capacity_type(&mut self) {
        self.capacity_type =
            shared_capacity_type(self.claims.iter().map(|claim| &**claim)).map(str::to_owned);
    }

    /// The claims of an attempt.
    pub fn of_attempt(&self, attempt: u32) -> impl Iterator<Item = &NodeClaim> + use<'_> {
        let attempt = attempt.to_string();
        self.claims.iter().map(|claim| &**claim).filter(move |claim| claim.label(names::ATTEMPT) == attempt)
    }

    /// The claims of an attempt that are not being deleted.
    pub fn staying(&self, attempt: u32) -> impl Iterator<Item = &NodeClaim> + use<'_> {
        self.of_attempt(attempt).filter(|claim| !claim.is_deleting())
    }

    /// The initialized claims of the attempt and their Nodes, if the gang's pods are yet to come to them: from the end of the
    /// creates until the gang is admitted. Otherwise none.
    pub fn nodes_before_admission(&self, journal: &Journal, workload: &Workload) -> Vec<(&NodeClaim, &Node)> {
        let state = &journal.state;
        if workload.is_admitted() || !(state.is_approved() || *state == State::WaitingReady) {
            return Vec::new();
        }
        let initialized = self.staying(journal.memory.attempt).filter(|claim| claim.is_initialized());
        initialized.filter_map(|claim| Some((claim, &**self.nodes.get(claim.node_name()?)?))).collect()
    }

    /// One claim of an attempt for each kind of nodes that it has.
    pub fn kinds(&self, attempt: u32) -> Vec<NodeClaim> {
        let mut kinds: Vec<NodeClaim> = Vec::new();
        for claim in self.of_attempt(attempt) {
            let is_alike = |kind: &NodeClaim| {
                kind.spec == claim.spec
                    && kind.needs() == claim.needs()
                    && kind.label(names::NODEPOOL) == claim.label(names::NODEPOOL)
            };
            if !kinds.iter().any(is_alike) {
                kinds.push(claim.clone());
            }
        }
        kinds
    }

    /// The claims of an attempt that should have been launched within this time.
    pub fn launched_late(
        &self,
        attempt: u32,
        limit: SignedDuration,
        now: Timestamp,
    ) -> impl Iterator<Item = &NodeClaim> + use<'_> {
        let is_late = move |claim: &&NodeClaim| {
            let created = claim.metadata.creation_timestamp.as_ref();
            !claim.is_launched() && created.is_some_and(|created| created.0 + limit <= now)
        };
        self.of_attempt(attempt).filter(is_late)
    }

    /// All claims with the names of their Nodes, if every slot has both and at most `most` were made. Then no decision rests
    /// on absence.
    pub fn complete(&self, journal: &Journal, most: usize) -> Option<Vec<(NodeClaim, String)>> {
        let memory = &journal.memory;
        let waits = matches!(journal.state, State::WaitingReady | State::Approved { .. });
        let filled: BTreeSet<Option<u32>> = self.staying(memory.attempt).map(NodeClaim::slot).collect();
        let whole = usize::try_from(memory.slots).is_ok_and(|slots| filled.len() == slots);
        // A slot that was filled again may have other claims.
        if !waits || !whole || memory.generation > 0 || !(1..=most).contains(&self.claims.len()) {
            return None;
        }
        let node = |claim: &NodeClaim| Some(claim.node_name()?.to_owned());
        self.claims.iter().map(|claim| Some(((**claim).clone(), node(claim)?))).collect()
    }

    /// Whether at least as many Nodes are ready as the gang has slots.
    pub fn has_ready_nodes(&self, journal: &Journal) -> bool {
        let ready = self.nodes.values().filter(|node| node.is_ready()).count();
        u32::try_from(ready).is_ok_and(|nodes| nodes >= journal.memory.slots)
    }

    /// The Nodes whose drivers must have published devices before a gang with this verdict is reported Ready. None once it has been
    /// reported Ready: a driver may be updated then.
    pub fn nodes_with_devices(&self, reported: Verdict) -> Vec<String> {
        let with =
            self.claims.iter().filter(|claim| reported != Verdict::Ready && !claim.devices().is_empty());
        let named = with.filter_map(|claim| claim.node_name()).filter(|name| self.nodes.contains_key(*name));
        named.map(str::to_owned).collect()
    }

    /// Lasting taints that the Nodes have but no claim asked for.
    pub fn added_taints(&self) -> Vec<Taint> {
        let stated: Vec<&Taint> = self.claims.iter().flat_map(|claim| &claim.spec.taints).collect();
        let is_stated =
            |taint: &Taint| stated.iter().any(|s| (&s.key, &s.effect) == (&taint.key, &taint.effect));
        let mut added: Vec<Taint> = Vec::new();
        for taint in self.nodes.values().flat_map(|node| &node.spec.taints).filter(|t| may_stay(t)) {
            if !is_stated(taint) && !added.contains(taint) {
                added.push(taint.clone());
            }
        }
        added
    }

    /// Removes these taints from the Nodes in this view, because all pods of the gang tolerate them.
    pub fn ignore_taints(&mut self, tolerated: &[Taint]) {
        let is_tolerated = |taint: &Taint| tolerated.contains(taint);
        for node in self.nodes.values_mut().filter(|node| node.spec.taints.iter().any(is_tolerated)) {
            Arc::make_mut(node).spec.taints.retain(|taint| !is_tolerated(taint));
        }
    }

    /// The claims as a step takes them, by slot. `launch_error` says since when a claim shows one.
    pub fn views(
        &self,
        journal: &Journal,
        policy: &Policy,
        now: Timestamp,
        launch_error: impl Fn(&str) -> Option<Timestamp>,
    ) -> Vec<ClaimView> {
        let view = |claim: &NodeClaim| {
            let node = claim.node_name().and_then(|name| self.nodes.get(name)).map(|node| &**node);
            let launch_error = launch_error(claim.metadata.name.as_deref().unwrap_or_default());
            let mut view = ClaimView::of(claim, node, policy, now, launch_error);
            // Pods may be placed on a ready node at any time.
            view.vacant =
                view.has_failed() && claim.node_name().is_some_and(|node| self.others.vacant.contains(node));
            let name = node.and_then(|n| n.metadata.name.as_deref()).unwrap_or_default();
            if let (Some(node), Some(taken)) = (node, self.others.taken.get(name)) {
                let allocatable = policy.readiness.allocatable;
                let room = RoomCheck { taken, each: &self.others.each, allocatable };
                wait_for_room(&mut view, claim, node, room, now);
            }
            wait_for_devices(&mut view, claim, node, &self.resource_slices, now);
            // Pods may already run on nodes that were ready before.
            let ready = matches!(view.health, Health::Ready { .. }) && !journal.state.is_approved();
            if ready && self.unmarked.contains(&view.name) {
                view.health = Health::Coming { waits_for: WaitsFor::Mark, until: None };
            }
            view
        };
        let mut views: Vec<ClaimView> = self.claims.iter().map(|claim| view(claim)).collect();
        views.sort_by_key(|v| v.slot);
        views
    }
}

/// Values that the `In` requirement of a claim allows for this label; empty where the provider chooses.
pub fn allowed<'c>(claim: &'c NodeClaim, key: &str) -> &'c [String] {
    let required = claim.spec.requirements.iter().find(|r| r.key == key && r.operator == "In");
    required.map_or(&[], |r| &r.values)
}

/// The capacity type a claim got or is limited to; `None` where the provider chooses.
pub fn capacity_type(claim: &NodeClaim) -> Option<&str> {
    match (claim.label(names::CAPACITY_TYPE), allowed(claim, names::CAPACITY_TYPE)) {
        ("", [only]) => Some(only),
        ("", _) => None,
        (got, _) => Some(got),
    }
}

/// The capacity type that all of these claims share; `None` without one.
pub fn shared_capacity_type<'c>(claims: impl IntoIterator<Item = &'c NodeClaim>) -> Option<&'c str> {
    let mut types = claims.into_iter().map(capacity_type);
    let first = types.next().flatten();
    first.filter(|first| types.all(|t| t == Some(*first)))
}
