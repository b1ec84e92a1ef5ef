//! Reacts to changed objects: records what they show, and wakes what depends on them.

use super::claim_records::{workload_named, workload_of};
use super::context::Context;
use super::queue::QueueKey;
use super::summary::{BY_WORKLOAD, ClaimSummary};
use crate::api::{AdmissionCheck, Node, NodeClaim, Workload};
use crate::gang::identity::{gang_label, gang_of};
use crate::gang::ledger::capacity_returns::gives_back;
use crate::gang::snapshot::expectation::ClaimEvent;
use crate::names;
use crate::plan::PlanChange;
use crate::plan::shape::Shape;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// How long a change of a NodeClaim or Node may stay unreconciled if its gang is not waiting for that change. Each node changes
/// a dozen times until it is ready, and a reconcile goes through all of them.
const TOGETHER: Duration = Duration::from_secs(1);

impl Context {
    /// Records a changed NodeClaim, and wakes its Workload and the gangs that wait for it.
    pub fn claim_touched(&self, claim: &NodeClaim) {
        let known = self.stores.claims.entry(&ObjectRef::from_obj(claim));
        let exists = known.as_ref().filter(|known| claim.uid().is_some_and(|uid| known.uid == uid));
        if exists.is_some_and(|known| !known.is_deleting()) {
            self.claim_records.lives(claim, self.now());
        } else {
            self.claim_records.saw(claim, self.now());
        }
        self.measure(claim);
        if known.is_none() {
            self.gang_state.ledger().observed_shapes().forget_claim(&claim.name_any(), self.now());
        } else if let Some(shape) = Shape::of_claim(claim) {
            self.learn(shape);
        }
        if let Some(workload) = workload_of(claim) {
            let event = exists.map_or(ClaimEvent::Gone, |known| self.event_of(known));
            self.wake_as_due(workload, &gang_of(claim), &claim.name_any(), event);
        }
        self.wake_waiters_of(known.is_none(), claim);
    }

    /// Wakes the gangs that wait for what this claim brings or frees: a ready node, or one that is no longer held.
    fn wake_waiters_of(&self, is_gone: bool, claim: &NodeClaim) {
        if gives_back(is_gone, claim) {
            let mut ledger = self.gang_state.ledger();
            let served = ledger.capacity_returns.take(claim.label(names::NODEPOOL), &gang_of(claim));
            drop(ledger);
            if let Some((namespace, name)) = served {
                self.wake_workload(ObjectRef::new(&name).within(&namespace));
            }
        }
        if let Some(change) = PlanChange::of_claim(is_gone, claim) {
            self.plans_may_change(change);
        }
    }

    /// Records a changed Node's shape, or that it is gone, and wakes its gang.
    pub fn node_touched(&self, node: &Node) {
        let is_gone = self.stores.nodes.entry(&ObjectRef::from_obj(node)).is_none();
        if is_gone {
            self.gang_state.ledger().observed_shapes().forget_node(&node.name_any(), self.now());
        } else if let Some(shape) = Shape::of_node(node, self.now()) {
            self.learn(shape);
        }
        let named = node.annotations().get(names::WORKLOAD).and_then(|value| workload_named(value));
        let Some(workload) = named else { return };
        let claim = |name| Some((name, self.stores.claims.entry(&ObjectRef::new(name))?));
        let Some((name, claim)) = node.claim_name().and_then(claim) else {
            self.wake_workload_within(workload, TOGETHER);
            return;
        };
        let event = if is_gone {
            ClaimEvent::Ending
        } else {
            ClaimEvent::of(claim.is_deleting(), claim.is_initialized, Some(node))
        };
        self.wake_as_due(workload, &claim.gang, name, event);
    }

    /// The state of a NodeClaim that exists, as the stores show it.
    fn event_of(&self, claim: &ClaimSummary) -> ClaimEvent {
        let node =
            claim.is_initialized.then(|| self.stores.nodes.get(&ObjectRef::new(&claim.node_name))).flatten();
        ClaimEvent::of(claim.is_deleting(), claim.is_initialized, node.as_deref())
    }

    /// Wakes a Workload after an event of its NodeClaim: at once if its gang waits for that event, and otherwise with other
    /// changes.
    fn wake_as_due(&self, workload: ObjectRef<Workload>, gang: &str, claim: &str, event: ClaimEvent) {
        let is_due = self.gang_state.registry.note_event(gang, claim, event);
        self.wake_workload_within(workload, if is_due { Duration::ZERO } else { TOGETHER });
    }

    /// Records a shape. A gang may wait for a type that is better known now.
    fn learn(&self, shape: Shape) {
        let is_more = self.gang_state.ledger().observed_shapes().note(shape, self.now());
        if is_more {
            self.count_better_offer();
            self.wake_waiting(PlanChange::Other);
        }
    }

    /// Handles a Warning event on a NodeClaim.
    pub fn on_claim_warning(&self, claim: &str, reason: &str, message: &str) {
        self.remember_claim(claim);
        if let Some(workload) = self.claim_records.on_warning_event(claim, reason, message) {
            self.wake_workload(workload);
        }
    }

    /// Records what the store shows of a claim that may soon be gone.
    pub(super) fn remember_claim(&self, claim: &str) {
        if let Some(claim) = self.stores.claims.get(&ObjectRef::new(claim)) {
            self.claim_records.saw(&claim, self.now());
        }
    }

    /// Handles a changed Workload. If it is gone, its claims are reconciled.
    pub fn workload_touched(&self, workload: &Workload) {
        let object = ObjectRef::from_obj(workload);
        self.gang_state.waiting.note(QueueKey::of(workload));
        let uid = workload.uid().unwrap_or_default();
        self.wake_standalone(workload);
        let may_own_requests = workload.front_end().may_own_requests();
        if may_own_requests {
            self.mirror_requests_of(&uid);
        }
        if workload.elastic_job() != uid {
            self.wake_claims_of_slices(workload);
        }
        let gone = self.stores.workloads.entry(&object).is_none_or(|current| current.uid != uid);
        if may_own_requests && (gone || !workload.runs()) {
            self.wake_claims_of_requests(&uid);
        }
        if !gone || !self.first_lists.missing().is_empty() {
            return;
        }
        self.forget_deleted(workload);
        for claim in self.stores.claims.those_of(BY_WORKLOAD, &uid) {
            self.wake.claim(claim);
        }
    }

    /// The elastic Job may be over, and then the nodes of its earlier slices are not needed any more.
    fn wake_claims_of_slices(&self, workload: &Workload) {
        let labels: Vec<String> = workload.checks().iter().map(|c| gang_label(workload, &c.name)).collect();
        for claim in self.stores.claims.those(|claim| labels.contains(&claim.gang_label)) {
            self.wake.claim(claim);
        }
    }

    /// Wakes all parameters after a check changed: their status lists the checks that use them. The Workloads of a check that is
    /// gone are woken too.
    pub fn check_touched(&self, check: &AdmissionCheck) {
        self.mirror_requests();
        let current = self.stores.checks.get(&ObjectRef::from_obj(check));
        if current.is_none_or(|current| current.metadata.uid != check.metadata.uid) {
            self.wake_all_of(&check.name_any());
        }
        for parameters in self.stores.parameters.state() {
            self.wake.parameters(&parameters);
        }
    }

    /// Wakes the checks, and the Workloads that wait for a plan, after the policy changed.
    pub fn policy_changed(&self) {
        for check in self.stores.checks.state() {
            self.wake.check(&check);
        }
        self.wake_waiting(PlanChange::Other);
    }
}
