//! The counts, beyond one gang, that the guards of the whole controller and of the gang's LocalQueue check.

use super::context::Context;
use super::summary::ClaimSummary;
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::gang_of;
use crate::gang::ledger::Ledger;
use crate::names;
use crate::plan::gates::inflight::{HeldNodes, InflightNodes};
use crate::plan::{ClaimChange, ObstacleReason};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

/// The counts that the guards check when this gang is planned.
pub fn of(
    context: &Context,
    workload: &Workload,
    gang: &str,
    ledger: &Ledger,
    now: Timestamp,
) -> InflightNodes {
    let queue = Some(workload.local_queue()).filter(|_| counts_by_queue(context));
    let mut inflight = ledger.inflight(gang, queue.as_deref(), now);
    for claim in context.stores.claims.entries() {
        // Looked up only if needed: there may be thousands of claims.
        let is_of_queue = queue.is_some() && queue_of(context, &claim) == queue;
        if claim.gang != gang && !claim.is_deleting() && !ledger.is_entered(&claim.gang) {
            let object = is_of_queue.then(|| claim.object()).flatten();
            inflight.add_claim(claim.is_initialized, object.map(HeldNodes::of_claim));
        }
        let made = claim.created.unwrap_or(now);
        // Created by another replica or before a restart, and so not in this ledger.
        let earlier = !ledger.is_entered(&claim.gang) && ledger.is_older(made);
        if earlier || !context.acts_for(&claim.workload_uid) {
            inflight.add_created(made, is_of_queue, now);
        }
    }
    inflight
}

/// Whether any guard bounds a LocalQueue.
pub fn counts_by_queue(context: &Context) -> bool {
    context.policies.settings().file.guards.per_local_queue.is_bounded()
}

/// `namespace/name` of the LocalQueue that a claim is held for, if its Workload is still known.
fn queue_of(context: &Context, claim: &ClaimSummary) -> Option<String> {
    if !claim.kept_for.is_empty() {
        return Some(claim.kept_for.clone());
    }
    Some(context.stores.workloads.entry(claim.workload.as_ref()?)?.local_queue.clone())
}

impl Context {
    /// Wakes the gangs that wait for what this claim brings or frees: a ready node, or one that is no longer held.
    pub(super) fn wake_waiters_of(&self, claim: &NodeClaim) {
        let left = self.stores.claims.entry(&ObjectRef::from_obj(claim)).is_none();
        let gone = left || claim.metadata.deletion_timestamp.is_some();
        // A node that was never ready says nothing about capacity, and one that was handed back runs on.
        if left && claim.metadata.deletion_timestamp.is_some() && claim.is("Initialized") {
            let mut ledger = self.of_gangs.ledger();
            let served = ledger.capacity_returns.take(claim.label(names::NODEPOOL), &gang_of(claim));
            drop(ledger);
            if let Some((namespace, name)) = served {
                self.wake_workload(ObjectRef::new(&name).within(&namespace));
            }
        }
        if gone {
            self.count_change();
        }
        let change = match gone {
            _ if left => Some(ClaimChange::Left),
            true => Some(ClaimChange::Leaving),
            false => claim.is("Initialized").then_some(ClaimChange::Initialized),
        };
        let is_waited_for = |reason: &ObstacleReason| self.of_gangs.ledger().is_waited_for(*reason);
        if change.is_some_and(|change| change.clears().iter().any(is_waited_for)) {
            self.wake_waiting();
            return;
        }
        if !counts_by_queue(self) || !gone {
            return;
        }
        let queue = queue_of(self, &ClaimSummary::of(claim));
        self.wake_waiting_where(|object| {
            let waits = self.stores.workloads.entry(object).map(|known| known.local_queue.clone());
            // The LocalQueue of a Workload that is gone is unknown.
            queue.is_none() || waits == queue
        });
    }
}
