//! The part of a policy that judges an attempt in flight, as it was when the attempt began.
//!
//! Rule: a journal holds it, so that a new leader does not need the old policy.

use super::{NodeReadiness, Policy, ResolvedDeadlines, RetryStrategy};
use crate::api::duration::Span;
use crate::api::parameters::{Compat, OnExhausted, OnNodeLost, Release};
use crate::digest::hex_digest;
use crate::planted::planted;
use serde::{Deserialize, Serialize};

/// Largest size of terms in a journal, in bytes of JSON.
pub const TERMS_LIMIT: usize = 2 * 1024;

/// No limit: longer than any gang lives, and short enough for arithmetic with times.
const UNLIMITED: Span = Span::minutes(100 * 365 * 24 * 60);

/// The terms that judge an attempt in flight.
///
/// The digest covers the written form. So a field that a later release adds must be omitted while it has its default.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Terms {
    /// Limits of each phase.
    pub deadlines: ResolvedDeadlines,
    /// The launch timeout of the attempt's tier, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_launch: Option<Span>,
    /// How long every node must be ready before the gang is.
    pub buffer_time: Span,
    /// Criteria that a node must meet before it counts as ready.
    pub readiness: NodeReadiness,
    /// Retries while the quota is held.
    pub in_check: RetryStrategy,
    /// Retries after the quota was given back.
    pub yielding: RetryStrategy,
    /// Action to take once both are used up.
    pub on_exhausted: OnExhausted,
    /// The controller whose retry behaviour is kept.
    pub compat: Compat,
    /// Whether the nodes of the gang may come from several tiers.
    pub mixed_tiers: bool,
    /// Reaction to the loss of a node.
    pub on_node_lost: OnNodeLost,
    /// How the nodes are given up once the gang has ended.
    pub release: Release,
    /// How long nodes are kept with `Release::Warm`.
    pub warm_for: Span,
    /// The longest hold on a node.
    pub hold_limit: Span,
}

impl Terms {
    /// The terms of an attempt on this tier under a policy; `None` if they are larger than [`TERMS_LIMIT`], which no usable
    /// policy reaches.
    pub fn of(policy: &Policy, tier: u32) -> Option<Self> {
        let stated = usize::try_from(tier).ok().and_then(|tier| policy.tiers.get(tier));
        let terms = Self {
            deadlines: policy.deadlines,
            tier_launch: stated.and_then(|tier| tier.launch_timeout),
            buffer_time: policy.buffer_time,
            readiness: policy.readiness.clone(),
            in_check: policy.in_check,
            yielding: policy.yielding,
            on_exhausted: policy.on_exhausted,
            compat: policy.compat,
            mixed_tiers: policy.mixed_tiers,
            on_node_lost: policy.on_node_lost,
            release: policy.release,
            warm_for: policy.warm_for,
            hold_limit: policy.hold_limit,
        };
        terms.is_small().then_some(terms)
    }

    /// A policy with these terms applied, for an attempt on this tier.
    #[must_use]
    pub fn over(&self, policy: Policy, tier: u32) -> Policy {
        let mut policy = Policy {
            deadlines: self.deadlines,
            buffer_time: self.buffer_time,
            readiness: self.readiness.clone(),
            in_check: self.in_check,
            yielding: self.yielding,
            on_exhausted: self.on_exhausted,
            compat: self.compat,
            mixed_tiers: self.mixed_tiers,
            on_node_lost: self.on_node_lost,
            release: self.release,
            warm_for: self.warm_for,
            hold_limit: self.hold_limit,
            ..policy
        };
        match usize::try_from(tier).ok().and_then(|tier| policy.tiers.get_mut(tier)) {
            Some(stated) => stated.launch_timeout = self.tier_launch,
            None => policy.deadlines.launch = self.tier_launch.unwrap_or(self.deadlines.launch),
        }
        policy
    }

    /// The digest on a NodeClaim that was created under these terms.
    pub fn digest(&self) -> String {
        hex_digest(&[&self.text()], 8)
    }

    /// Whether they fit into a journal.
    pub fn is_small(&self) -> bool {
        self.text().len() <= TERMS_LIMIT
    }

    fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The policy of an attempt with unknown terms: no phase times out.
pub fn without_timeouts(policy: Policy) -> Policy {
    if planted!(JudgedUnread) { policy } else { unlimited(policy) }
}

/// A policy under which no phase times out.
pub fn unlimited(policy: Policy) -> Policy {
    let deadlines = ResolvedDeadlines {
        launch: UNLIMITED,
        register: UNLIMITED,
        initialize: UNLIMITED,
        gang: UNLIMITED,
        admit: UNLIMITED,
    };
    Policy { deadlines, ..policy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::Tier;

    fn policy() -> Policy {
        let mut policy = Policy { release: Release::HandBack, ..Policy::default() };
        policy.deadlines.initialize = Span::minutes(30);
        policy
    }

    #[test]
    fn terms_override_their_fields_in_any_policy() {
        let terms = Terms::of(&policy(), 0).unwrap();
        let over = terms.over(Policy { gang_nodes: 3, ..Policy::default() }, 0);
        assert_eq!(over, Policy { gang_nodes: 3, ..policy() });
    }

    #[test]
    fn terms_include_the_launch_timeout_of_the_tier() {
        let tier = |launch| Tier { name: "t".into(), launch_timeout: launch, ..Tier::default() };
        let own = Some(Span::minutes(1));
        let tiers = vec![tier(None), tier(own)];
        let terms = Terms::of(&Policy { tiers: tiers.clone(), ..Policy::default() }, 1).unwrap();
        assert_eq!(terms.over(Policy::default(), 1).deadlines.launch, Span::minutes(1));
        let changed = Policy { tiers: vec![tier(None), tier(Some(Span::minutes(9)))], ..Policy::default() };
        assert_eq!(terms.over(changed, 1).tiers, tiers);
    }

    #[test]
    fn terms_too_large_for_a_journal_are_rejected() {
        let mut policy = policy();
        policy.readiness.node_labels =
            (0..64).map(|n| (format!("example.com/label-{n}"), "x".repeat(63))).collect();
        assert_eq!(Terms::of(&policy, 0), None);
    }
}
