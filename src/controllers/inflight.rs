//! The counts, beyond one gang, that the guards of the whole controller and of the gang's LocalQueue check.

use super::context::Context;
use super::summary::{BY_FLIGHT, BY_KEPT_FOR, BY_OWNER, BY_WORKLOAD, ClaimSummary, IN_FLIGHT};
use crate::api::{NodeClaim, Workload};
use crate::cluster::store::StoreEntry;
use crate::gang::ledger::Ledger;
use crate::plan::gates::inflight::InflightNodes;
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};

/// The counts that the guards check when this gang is planned. Their cost depends on the claims in flight and, if a guard bounds a
/// LocalQueue, on what that queue holds. All claims are gone through only if the ledger may lack recent creates.
pub fn of(
    context: &Context,
    workload: &Workload,
    gang: &str,
    ledger: &Ledger,
    now: Timestamp,
) -> InflightNodes {
    let queue = Some(workload.local_queue()).filter(|_| counts_by_queue(context));
    let mut inflight = ledger.inflight(gang, queue.as_deref(), now);
    let is_other = |claim: &ClaimSummary| claim.gang != gang && !ledger.is_entered(&claim.gang);
    for claim in context.stores.claims.entries_of(BY_FLIGHT, IN_FLIGHT) {
        if is_other(&claim) {
            inflight.add_in_flight();
        }
    }
    let of_queue = queue.map_or_else(Vec::new, |queue| held_for(context, &queue));
    for claim in of_queue.iter().filter(|claim| is_other(claim) && !claim.is_deleting()) {
        if let Some(object) = claim.object() {
            inflight.add_held(object);
        }
    }
    if context.shards.count() == 1 && !ledger.may_lack_creates(now) {
        return inflight;
    }
    let of_queue: BTreeSet<&str> = of_queue.iter().map(|claim| claim.uid.as_str()).collect();
    for claim in context.stores.claims.entries() {
        let made = claim.created.unwrap_or(now);
        // Created by another replica or before a restart, and so not in this ledger.
        let earlier = !ledger.is_entered(&claim.gang) && ledger.is_older(made);
        if earlier || !context.acts_for(&claim.workload_uid) {
            inflight.add_created(made, of_queue.contains(claim.uid.as_str()), now);
        }
    }
    inflight
}

/// Whether any guard bounds a LocalQueue.
fn counts_by_queue(context: &Context) -> bool {
    context.policies.settings().file.guards.per_local_queue.is_bounded()
}

/// The claims held for a LocalQueue: those of its Workloads, and those kept for it.
fn held_for(context: &Context, queue: &str) -> Vec<StoreEntry<NodeClaim, ClaimSummary>> {
    let claims = &context.stores.claims;
    // Claims made for a request outlive it, but not the Workload that owns it.
    let of_workloads = context.stores.workloads.of_local_queue(queue).into_iter().flat_map(|workload| {
        let made = [BY_WORKLOAD, BY_OWNER].map(|index| claims.entries_of(index, &workload.uid));
        made.into_iter().flatten().filter(|claim| claim.kept_for.is_empty())
    });
    let all = of_workloads.chain(claims.entries_of(BY_KEPT_FOR, queue));
    let by_uid: BTreeMap<String, _> = all.map(|claim| (claim.uid.clone(), claim)).collect();
    by_uid.into_values().collect()
}
