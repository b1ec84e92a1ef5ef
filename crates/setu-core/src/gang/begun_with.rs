//! Which plan the nodes of an attempt come by, and whether another plan gives the same.

use super::journal::Journal;
use super::option_position::OptionPosition;
use crate::api::parameters::Pinning;
use crate::plan::Plan;
use crate::policy::Policy;

/// What the nodes of an attempt come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BegunWith<'a> {
    /// One plan, of this hash.
    Single(&'a str),
    /// Plans of several tiers: some slots were left to the next tier.
    Mixed,
    /// The attempt was adopted from its claims, which do not say.
    Unknown,
}

impl Journal {
    /// What the nodes of the attempt come by, under the policy that it is judged by.
    pub fn begun_with(&self, policy: &Policy) -> BegunWith<'_> {
        match &self.memory.plan {
            Some(hash) => BegunWith::Single(hash),
            None if policy.mixed_tiers && self.memory.generation > 0 => BegunWith::Mixed,
            None => BegunWith::Unknown,
        }
    }

    /// Whether the nodes of the attempt may have come by several ways.
    pub fn is_mixed(&self, policy: &Policy) -> bool {
        self.begun_with(policy) == BegunWith::Mixed
    }

    /// Whether a plan gives the nodes that the attempt was begun with.
    pub fn is_begun_with(&self, plan: &Plan) -> bool {
        self.has_begun(plan, Plan::is_hashed)
    }

    /// The same whichever of the instance types are the cheapest now: a lost node is replaced by one of these.
    pub(super) fn is_begun_with_but_for_types(&self, plan: &Plan) -> bool {
        self.has_begun(plan, Plan::is_hashed_but_for_types)
    }

    fn has_begun(&self, plan: &Plan, has_hash: impl Fn(&Plan, &str) -> bool) -> bool {
        let memory = &self.memory;
        // What Kueue is to add to the pods is one for all nodes.
        let is_pinned_alike = || memory.pinning == Pinning::Auto || memory.pinning == plan.pinning;
        let is_alike = memory.plan.as_ref().map_or_else(is_pinned_alike, |hash| has_hash(plan, hash));
        is_alike && self.has_as_many_slots(plan)
    }

    /// Whether a plan gives as many nodes as the attempt was begun with.
    pub(super) fn has_as_many_slots(&self, plan: &Plan) -> bool {
        u32::try_from(plan.slots.len()) == Ok(self.memory.slots)
    }

    /// Whether what is missing of a gang of several tiers comes by another way than the journal says.
    pub(super) fn goes_another_way(&self, plan: &Plan, policy: &Policy) -> bool {
        let OptionPosition { tier, index, .. } = self.memory.option;
        self.is_mixed(policy) && (tier, index) != (plan.tier, plan.option_index)
    }
}
