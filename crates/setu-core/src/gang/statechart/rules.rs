//! The rules of one step: what the policy says about retries, deadlines and lost nodes.

use crate::api::Workload;
use crate::api::parameters::{Compat, OnExhausted, OnNodeLost};
use crate::policy::{Policy, RetryStrategy};
use jiff::{SignedDuration, Timestamp};

/// The inputs of a step besides the journal and the event.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The time of this step.
    pub now: Timestamp,
    /// A number in `0.0..1.0` that spreads the waits of different gangs.
    pub jitter: f64,
    /// Time limit of one attempt, and of the validation before it.
    pub attempt_timeout: SignedDuration,
    /// Retries while the quota is held.
    pub in_check: RetryStrategy,
    /// Retries after the quota was given back.
    pub yielding: RetryStrategy,
    /// The longest wait that either of them can give.
    pub wait_bound: SignedDuration,
    /// Action to take once both are used up.
    pub on_exhausted: OnExhausted,
    /// Reaction to the loss of a node before the gang runs.
    pub on_node_lost: OnNodeLost,
    /// Whether the nodes of one gang may come from several tiers.
    pub mixed_tiers: bool,
    /// The controller whose retry behaviour is kept.
    pub compat: Compat,
    /// Whether the Workload may be evicted to give its quota back.
    pub eviction: Eviction,
}

/// Whether a Workload may be evicted to give its quota back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Yes: none of its pods run, or those that run are recreated.
    #[default]
    Harmless,
    /// No: that would also stop the pods of the slice it replaces.
    StopsOthers,
}

impl Rules {
    /// The rules of a policy at a given time.
    pub fn new(policy: &Policy, now: Timestamp, jitter: f64) -> Self {
        Self {
            now,
            // The first Setu waited without jitter.
            jitter: if policy.compat == Compat::Setu { 0.0 } else { jitter },
            attempt_timeout: policy.deadlines.gang.signed(),
            in_check: policy.in_check,
            yielding: policy.yielding,
            wait_bound: policy.wait_bound(),
            on_exhausted: policy.on_exhausted,
            on_node_lost: policy.on_node_lost,
            mixed_tiers: policy.mixed_tiers,
            compat: policy.compat,
            eviction: Eviction::default(),
        }
    }
}

impl Eviction {
    /// Whether this Workload may be evicted. A slice that was evicted once has stopped the pods of the slice before it, too.
    pub fn of(workload: &Workload) -> Self {
        let may_stop = workload.replaces().is_some() && workload.evictions() == 0;
        if may_stop { Self::StopsOthers } else { Self::Harmless }
    }
}

/// Whether a time is further ahead than the policy's longest wait.
pub(in crate::gang) fn is_too_far(until: Timestamp, now: Timestamp, longest: SignedDuration) -> bool {
    later(now, longest).is_some_and(|bound| until > bound)
}

pub(super) fn later(now: Timestamp, by: SignedDuration) -> Option<Timestamp> {
    now.checked_add(by).ok()
}
