//! What is going on besides one gang, as the guards of the whole controller count it.

use super::context::Context;
use super::ledger::LedgerPages;
use super::memory::workload_of;
use crate::api::Workload;
use crate::names;
use crate::plan::gates::guards::{Created, Traffic};
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
    let (minute, hour) = (SignedDuration::from_mins(1), SignedDuration::from_hours(1));
    let guards = &context.policies.settings().file.guards.per_local_queue;
    let by_queue = guards.nodes.is_some() || guards.creates_per_hour.is_some();
    let mut traffic = Traffic {
        in_flight: pages.nodes_of_others(gang, None),
        look_again: now.checked_add(LOOK_AGAIN).ok(),
        last_minute: pages.created(None, minute, now),
        queue_nodes: pages.nodes_of_others(gang, Some(&queue)),
        queue_last_hour: pages.created(Some(&queue), hour, now),
    };
    for claim in context.stores.claims.state() {
        let id = claim.label(names::GANG);
        // Looked up only where it counts: there may be thousands of claims.
        let same_queue = by_queue && {
            let workload = workload_of(&claim).and_then(|object| context.stores.workloads.get(&object));
            workload.is_some_and(|w| w.local_queue() == queue)
        };
        if id != gang && !pages.is_entered(id) && claim.metadata.deletion_timestamp.is_none() {
            traffic.in_flight += u32::from(!claim.is("Initialized"));
            traffic.queue_nodes += u32::from(same_queue);
        }
        if !context.acts_for(claim.label(names::WORKLOAD_UID)) {
            // Another replica's doing, which is in its ledger and not in this one.
            let made = claim.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
            count(&mut traffic.last_minute, made + minute, now);
            if same_queue {
                count(&mut traffic.queue_last_hour, made + hour, now);
            }
        }
    }
    traffic
}

/// Counts one claim more, until it does not count any more.
fn count(created: &mut Created, until: Timestamp, now: Timestamp) {
    if until > now {
        created.claims = created.claims.saturating_add(1);
        created.frees_at = created.frees_at.into_iter().chain([until]).min();
    }
}
