//! What is going on besides one gang, as the guards of the whole controller count it.

use super::context::Context;
use super::ledger::LedgerPages;
use super::memory::workload_of;
use crate::api::{NodeClaim, Workload};
use crate::names;
use crate::plan::gates::guards::Traffic;
use jiff::{SignedDuration, Timestamp};

/// How soon a gang that waits for claims to become ready looks again.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// What the guards are compared with when this gang is planned.
pub fn of(
    context: &Context,
    workload: &Workload,
    gang: &str,
    pages: &LedgerPages,
    now: Timestamp,
) -> Traffic {
    let queue = workload.local_queue();
    let is_other = |claim: &NodeClaim| {
        let id = claim.label(names::GANG);
        id != gang && !pages.is_entered(id) && claim.metadata.deletion_timestamp.is_none()
    };
    let claims = context.stores.claims.state();
    let others: Vec<_> = claims.iter().filter(|c| is_other(c)).collect();
    let same_queue = |claim: &NodeClaim| {
        let workload = workload_of(claim).and_then(|object| context.stores.workloads.get(&object));
        workload.is_some_and(|w| w.local_queue() == queue)
    };
    let entered = |queue: Option<&str>| pages.nodes_of_others(gang, queue);
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Traffic {
        in_flight: entered(None)
            .saturating_add(count(others.iter().filter(|c| !c.is("Initialized")).count())),
        look_again: now.checked_add(LOOK_AGAIN).ok(),
        last_minute: pages.created(None, SignedDuration::from_mins(1), now),
        queue_nodes: entered(Some(&queue))
            .saturating_add(count(others.iter().filter(|c| same_queue(c)).count())),
        queue_last_hour: pages.created(Some(&queue), SignedDuration::from_hours(1), now),
    }
}
