//! The plan that an attempt was begun with, and whether another plan gives the same nodes.

use crate::api::parameters::Pinning;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::option_position::OptionPosition;
use crate::plan::Plan;
use crate::policy::Policy;

/// The plan or plans that the nodes of an attempt come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptPlan<'a> {
    /// One plan, with this hash.
    Single(&'a str),
    /// Plans of several tiers: some slots moved to another tier.
    Mixed,
    /// Unknown: the attempt was adopted from its claims, which do not record it.
    Unknown,
}

impl Journal {
    /// The plan or plans that the attempt's nodes come from, under the policy that judges the attempt.
    pub fn attempt_plan(&self, policy: &Policy) -> AttemptPlan<'_> {
        match &self.memory.plan {
            Some(hash) => AttemptPlan::Single(hash),
            None if policy.mixed_tiers && self.memory.generation > 0 => AttemptPlan::Mixed,
            None => AttemptPlan::Unknown,
        }
    }

    /// Whether the attempt's nodes may come from several options.
    pub fn is_mixed(&self, policy: &Policy) -> bool {
        self.attempt_plan(policy) == AttemptPlan::Mixed
    }

    /// Whether a plan gives the nodes that the attempt was begun with.
    pub fn matches_attempt(&self, plan: &Plan) -> bool {
        self.matches(plan, Plan::is_hashed)
    }

    /// Whether lost nodes of the attempt may be replaced by nodes of this plan.
    pub(in crate::gang) fn is_replaced_by(&self, plan: &Plan) -> bool {
        self.matches(plan, Plan::replaces)
    }

    fn matches(&self, plan: &Plan, has_hash: impl Fn(&Plan, &str) -> bool) -> bool {
        let memory = &self.memory;
        // Kueue adds the same pinning to the pods of all nodes.
        let is_pinned_alike = || {
            (memory.pinning == Pinning::Auto || memory.pinning == plan.pinning)
                && memory.pod_sets.suit(&plan.slots)
        };
        let is_alike = memory.plan.as_ref().map_or_else(is_pinned_alike, |hash| has_hash(plan, hash));
        is_alike && self.has_as_many_slots(plan)
    }

    /// Whether a plan gives as many nodes as the attempt was begun with.
    pub(super) fn has_as_many_slots(&self, plan: &Plan) -> bool {
        u32::try_from(plan.slots.len()) == Ok(self.memory.slots)
    }

    /// Whether the missing nodes of a gang of several tiers come from another option than the journal says.
    pub(super) fn changes_option(&self, plan: &Plan, policy: &Policy) -> bool {
        let OptionPosition { tier, index, .. } = self.memory.option;
        self.is_mixed(policy) && (tier, index) != (plan.tier, plan.option_index)
    }
}
