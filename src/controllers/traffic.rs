//! What is going on besides one gang, as the guards of the whole controller and of its LocalQueue count it.

use super::context::Context;
use super::ledger::LedgerPages;
use super::memory::workload_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::StateName;
use crate::gang::identity::gang_of;
use crate::names;
use crate::plan::gates::guards::{Created, Traffic};
use crate::plan::gates::local_queue::Held;
use jiff::{SignedDuration, Timestamp};
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;

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
    let entered = |queue| pages.held_by_others(gang, queue);
    let by_queue = counts_by_queue(context);
    let mut traffic = Traffic {
        in_flight: entered(None).map(|held| held.nodes).fold(0, u32::saturating_add),
        look_again: now.checked_add(LOOK_AGAIN).ok(),
        last_minute: pages.created(None, minute, now),
        queue: if by_queue { entered(Some(&queue)).cloned().collect() } else { Vec::new() },
        queue_last_hour: pages.created(Some(&queue), hour, now),
    };
    for claim in context.stores.claims.state() {
        let id = gang_of(&claim);
        // Looked up only where it counts: there may be thousands of claims.
        let same_queue = by_queue && queue_of(context, &claim).is_some_and(|of| of == queue);
        if id != gang && !pages.is_entered(&id) && claim.metadata.deletion_timestamp.is_none() {
            traffic.in_flight += u32::from(!claim.is("Initialized"));
            if same_queue {
                traffic.queue.push(Held::of_claim(Arc::clone(&claim)));
            }
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

/// Whether anything is bounded by LocalQueue.
pub fn counts_by_queue(context: &Context) -> bool {
    context.policies.settings().file.guards.per_local_queue.is_bounded()
}

/// `namespace/name` of the LocalQueue that a claim is held for, where its Workload is still known.
fn queue_of(context: &Context, claim: &NodeClaim) -> Option<String> {
    let kept_for = claim.annotation(names::WARM_QUEUE);
    if !kept_for.is_empty() {
        return Some(kept_for.to_owned());
    }
    Some(context.stores.workloads.get(&workload_of(claim)?)?.local_queue())
}

impl Context {
    /// A node is not held any more: whoever waits for what its LocalQueue may hold looks again.
    pub(super) fn let_go(&self, claim: &NodeClaim) {
        let gone = || self.stores.claims.get(&ObjectRef::from_obj(claim)).is_none();
        if !counts_by_queue(self) || (claim.metadata.deletion_timestamp.is_none() && !gone()) {
            return;
        }
        let queue = queue_of(self, claim);
        for object in self.board.in_state(StateName::Validating) {
            let waits = self.stores.workloads.get(&object).map(|workload| workload.local_queue());
            // Of a Workload that is gone, nobody can say any more which LocalQueue it was in.
            if queue.is_none() || waits == queue {
                self.wake_workload(object);
            }
        }
    }
}

/// Counts one claim more, until it does not count any more.
fn count(created: &mut Created, until: Timestamp, now: Timestamp) {
    if until > now {
        created.claims = created.claims.saturating_add(1);
        created.frees_at = created.frees_at.into_iter().chain([until]).min();
    }
}
