//! What follows when an object was touched: what is noted of it, and who looks at what.

use super::context::Context;
use super::glance::Phase;
use super::memory::{lock, workload_of};
use super::queue::Key;
use super::terms::gangs_of;
use crate::api::{Node, NodeClaim, Workload};
use crate::gang::Journal;
use crate::gang::identity::{gang_of, pin};
use crate::gang::reservation::Ending;
use crate::gang::trace::{Claims, CutOff, Subject, cut_off};
use crate::names;
use crate::plan::shapes::Shape;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

impl Context {
    /// A NodeClaim was touched: note it, and look at its Workload and at the claim itself.
    pub fn claim_touched(&self, claim: &NodeClaim) {
        let known = self.stores.claims.glimpse(&ObjectRef::from_obj(claim));
        if known.is_some_and(|k| claim.uid().is_some_and(|uid| k.uid == uid) && k.phase != Phase::Deleting) {
            self.necrology.lives(claim, self.now());
        } else {
            self.necrology.saw(claim, self.now());
        }
        self.measure(claim);
        self.learn_shape(claim);
        if let Some(workload) = workload_of(claim) {
            self.wake_workload(workload);
        }
        self.wake_waiters_of(claim);
    }

    /// A Node was touched: note its shape, or that it is gone, and look at its gang.
    pub fn node_touched(&self, node: &Node) {
        if self.stores.nodes.glimpse(&ObjectRef::from_obj(node)).is_none() {
            self.ledger.open().unlearn(&node.name_any(), self.now());
        } else if let Some(shape) = Shape::of_node(node, self.now()) {
            self.ledger.open().learn(shape);
        }
        let annotation = node.metadata.annotations.as_ref().and_then(|a| a.get(names::WORKLOAD));
        if let Some((namespace, name)) = annotation.and_then(|a| a.split_once('/')) {
            self.wake_workload(ObjectRef::new(name).within(namespace));
        }
    }

    fn learn_shape(&self, claim: &NodeClaim) {
        if let Some(shape) = Shape::of_claim(claim, self.now()) {
            self.ledger.open().learn(shape);
        }
    }

    /// A Warning event on a NodeClaim was seen.
    pub fn heard_of_claim(&self, claim: &str, reason: &str, message: &str) {
        self.remember_claim(claim);
        if let Some(workload) = self.necrology.heard(claim, reason, message) {
            self.wake_workload(workload);
        }
    }

    /// Notes what the store shows of a claim that may soon not be there any more.
    pub(super) fn remember_claim(&self, claim: &str) {
        if let Some(claim) = self.stores.claims.get(&ObjectRef::new(claim)) {
            self.necrology.saw(&claim, self.now());
        }
    }

    /// A Workload was touched: if it is gone, its claims are looked at.
    pub fn workload_touched(&self, workload: &Workload) {
        let object = ObjectRef::from_obj(workload);
        self.waiting.note(Key::of(workload));
        let uid = workload.uid().unwrap_or_default();
        if workload.line() != uid {
            self.wake_claims_of_slices(workload);
        }
        if workload.queued_since().is_some() {
            self.wake_refused_for(workload);
        }
        let gone = self.stores.workloads.glimpse(&object).is_none_or(|current| current.uid != uid);
        if !gone || !self.gates.closed().is_empty() {
            return;
        }
        self.policies.forget_notices(&uid);
        self.seen.forget_writes(&object);
        self.own_writes.forget(&uid);
        lock(&self.failures).remove(&uid);
        for gang in self.board.forget(&object) {
            self.estimates.forget(&gang);
            if let Some((journal, subject)) = self.seen.forget(&gang, workload.is("Admitted")) {
                self.trace_cut_off(&gang, &journal, &subject);
            }
            self.policies.forget(&gang);
        }
        // One that no look ever got to the end of has a plan in the ledger all the same.
        let mut pages = self.ledger.open();
        let mut freed = false;
        for gang in gangs_of(workload) {
            pages.went_on(&gang, None);
            pages.given_back.forget(&gang);
            pages.refused.forget(&gang);
            freed |= pages.strike(&gang);
        }
        drop(pages);
        if freed {
            self.next_turn();
        }
        for claim in self.stores.claims.those_of(&uid) {
            let _ = self.wake.claim.send(claim);
        }
    }

    /// Sends the spans of a gang whose Workload is gone, with what its NodeClaims had come to.
    fn trace_cut_off(&self, gang: &str, journal: &Journal, subject: &Subject) {
        if !self.telemetry.traces.is_on() {
            return;
        }
        let all = self.stores.claims.of(&journal.workload_uid).into_iter();
        let claims: Vec<NodeClaim> =
            all.filter(|claim| gang_of(claim) == gang).map(Arc::unwrap_or_clone).collect();
        let end = CutOff { at: self.now(), why: Ending::Deleted, by: &self.telemetry.instance };
        self.telemetry.traces.send(cut_off(journal, end, Claims::Then(&claims), subject));
    }

    /// An elastic Job may be over, and with it what the nodes of its earlier slices were kept for.
    fn wake_claims_of_slices(&self, workload: &Workload) {
        let pins: Vec<String> = workload.checks().iter().map(|c| pin(workload, &c.name)).collect();
        for claim in self.stores.claims.those(|claim| pins.contains(&claim.pin)) {
            let _ = self.wake.claim.send(claim);
        }
    }

    /// Checks were added, changed or removed: their parameters say by whom they are used.
    pub fn checks_touched(&self) {
        for parameters in self.stores.parameters.state() {
            let _ = self.wake.parameters.send(ObjectRef::from_obj(&*parameters));
        }
    }

    /// The policy has changed: checks and whoever waits for a plan look again.
    pub fn policy_changed(&self) {
        for check in self.stores.checks.state() {
            let _ = self.wake.check.send(ObjectRef::from_obj(&*check));
        }
        self.next_turn();
    }
}
