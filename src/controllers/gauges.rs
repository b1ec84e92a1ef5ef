//! Measures changed NodeClaims, and sets the gauges: what is held, and what was wasted.
//!
//! Rule: nothing is decided on them.

use super::context::Context;
use super::money::Launched;
use crate::api::{Node, NodeClaim};
use crate::gang::release::custody::HeldFor;
use crate::gang::snapshot::phase::ClaimPhase;
use crate::names;
use crate::telemetry::metrics;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

impl Context {
    /// Measures a changed claim.
    pub(super) fn measure(&self, claim: &NodeClaim) {
        let now = self.now();
        // Every replica records them, so that the next leader has estimates too.
        let ready = claim.is_initialized().then(|| claim.since("Initialized")).flatten();
        if let Some(ready) = ready.filter(|_| claim.taken_over().is_none()) {
            self.estimates.note(claim, ready);
        }
        let name = claim.name_any();
        let current = self.stores.claims.entry(&ObjectRef::from_obj(claim));
        // Counted once, by the leader of the first shard.
        let is_gone = current.is_none();
        let waits = self.shards.first().leads() && current.as_ref().is_some_and(|c| c.waits_for_provider);
        self.stall.note(&name, waits, now);
        let launched = claim.is_launched().then(|| claim.since("Launched")).flatten();
        let launched = launched.max(claim.taken_over());
        if let (None, Some(launched)) = (current, launched)
            && let Some(reason) = self.gang_state.registry.taken_back(claim)
        {
            let lived = Duration::try_from(now.duration_since(launched)).unwrap_or_default();
            let reason = reason.to_string();
            metrics::wasted(&reason, lived.as_secs());
            self.count_wasted_cost(claim, &reason, lived);
        }
        let workload = claim.label(names::WORKLOAD_UID);
        if is_gone {
            self.gang_state.registry.forget_orphaned(workload, &name);
        }
    }

    /// Sets every gauge from the current state.
    pub fn set_gauges(&self) {
        let now = self.now();
        metrics::gangs(&self.gang_state.registry.by_state(now));
        metrics::gangs_with_unbound_pods(self.gang_state.board.with_unbound_pods());
        let counts = self.shards.first().leads();
        let waits = |name: &str| {
            counts && self.stores.claims.entry(&ObjectRef::new(name)).is_some_and(|c| c.waits_for_provider)
        };
        self.stall.tick(waits, now);
        // The replica that acts for a gang counts its nodes, so that the sum over all replicas is right.
        let gangs = self.gang_state.registry.states();
        let (mut claims, mut held, mut launched) = (BTreeMap::new(), BTreeMap::new(), Launched::default());
        let known = self.stores.claims.entries();
        let undeletable = self.claim_records.undeletable(now);
        for claim in known.iter().filter(|c| self.acts_for(&c.workload_uid)) {
            let gang = gangs.get(&claim.gang);
            let is_admitted = || {
                let workload = gang.and_then(|(_, workload)| self.stores.workloads.entry(workload));
                workload.is_some_and(|known| known.is_admitted)
            };
            let state = gang.map(|(state, _)| *state);
            let held_for = HeldFor::of(claim.is_deleting(), claim.is_warm, state, is_admitted);
            if claim.phase == ClaimPhase::Initialized && !claim.is_deleting() {
                *held.entry((claim.node_pool.clone(), held_for.name())).or_default() += 1;
            }
            if !claim.waits_for_provider {
                launched.add(claim, held_for.name());
            }
            let since = undeletable.get(&claim.uid).copied();
            *claims.entry((claim.node_pool.clone(), claim.state(since, now))).or_default() += 1;
        }
        let named: BTreeSet<&str> = known.iter().map(|c| c.node_name.as_str()).collect();
        for pool in self.stray_nodes(&named) {
            *held.entry((pool, HeldFor::Stray.name())).or_default() += 1;
        }
        metrics::claims(&claims);
        metrics::held_nodes(&held);
        self.set_costs(launched);
    }

    /// NodePools of our Nodes whose NodeClaim is gone. Karpenter ends their machines. A machine that stays with a live
    /// kubelet costs money for no gang, and an administrator has to check it.
    fn stray_nodes(&self, named: &BTreeSet<&str>) -> Vec<String> {
        let stray_nodes = self.stores.nodes.named(|node| !named.contains(node));
        let ours =
            |node: &Node| self.acts_for(node.labels().get(names::WORKLOAD_UID).map_or("", String::as_str));
        let stray_nodes = stray_nodes.iter().filter(|node| ours(node));
        stray_nodes.filter_map(|node| node.labels().get(names::NODEPOOL).cloned()).collect()
    }
}
