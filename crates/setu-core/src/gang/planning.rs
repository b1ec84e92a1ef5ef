//! How a gang is planned for: which options it may take, how long it waits for what may come, and which outcomes end something.
//!
//! Rule: decisions only. `plan` computes the outcome, and the controller reads what it needs.

use super::journal::Journal;
use super::observed::Observed;
use super::state::{Nodes, State};
use crate::api::{NodeClaim, NodePool};
use crate::plan::{Edited, Obstacle, ObstacleReason, OptionSelection, Outcome};
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};

/// How long a gang waits for an edited NodePool before it takes another one, and for a missing object before it is refused.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// How often a gang that is refused for volumes that are not there yet is tried again: nothing says that they have come.
const VOLUMES: SignedDuration = SignedDuration::from_mins(1);

/// What a gang's planning depends on, besides the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Planning<'a> {
    /// Where the gang is.
    pub journal: &'a Journal,
    /// Its policy.
    pub policy: &'a Policy,
    /// Its claims.
    pub observed: &'a Observed,
    /// The time.
    pub now: Timestamp,
}

impl<'a> Planning<'a> {
    /// The claims that stay while the rest of the gang's nodes come from other options.
    pub fn kept(&self) -> Vec<NodeClaim> {
        let claims = self.observed.staying(self.journal.memory.attempt);
        if self.is_mixed() { claims.cloned().collect() } else { Vec::new() }
    }

    fn is_mixed(&self) -> bool {
        self.journal.is_mixed(self.policy)
    }

    /// Which options may be taken. `accepted` is the one of the entered plan, and `kinds` has a claim of each kind of nodes that
    /// the attempt has.
    pub fn selection<'s>(&self, accepted: Option<u32>, kinds: &'s [NodeClaim]) -> OptionSelection<'s>
    where
        'a: 's,
    {
        match (&self.journal.state, accepted) {
            (State::Provisioning, Some(option_index)) => {
                let plan = self.journal.memory.plan.as_deref();
                OptionSelection::Accepted { option_index, plan, begun: kinds }
            }
            // Replaced nodes are like the lost ones, whatever their tier.
            (State::Provisioning | State::Approved { .. }, _) if !self.is_mixed() && !kinds.is_empty() => {
                OptionSelection::Like(kinds)
            }
            _ => OptionSelection::From(self.journal.memory.option.index),
        }
    }

    /// Whether the missing nodes come from an option that has capacity now, or not at all. A gang that has nodes already does
    /// not ask in vain for the others: it would do so without a pause.
    pub fn needs_capacity_now(&self, selection: OptionSelection<'_>) -> bool {
        self.is_mixed()
            && self.journal.state == State::Provisioning
            && matches!(selection, OptionSelection::From(_))
    }

    /// Until when a gang that has nothing yet waits for edited NodePools and for what may come; `None` once it has begun.
    fn patience(&self) -> Option<Timestamp> {
        let begins = self.journal.state == State::Validating;
        self.journal.entered_at.checked_add(PATIENCE).ok().filter(|_| begins)
    }

    /// What is done about NodePools that were edited and not seen by Karpenter since.
    pub fn edited(&self) -> Edited {
        let is_over = self.patience().is_some_and(|until| until <= self.now);
        if is_over { Edited::PassedOver } else { Edited::Awaited }
    }

    /// The outcome with a wait for what is about to come, or with the time at which a refused gang is tried again.
    pub fn with_patience(&self, outcome: Outcome) -> Outcome {
        let until = self.patience().filter(|until| *until > self.now);
        match outcome {
            Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NodePoolEdited => {
                Outcome::Wait(Obstacle { until: until.or(obstacle.until), ..obstacle })
            }
            // What a Job needs is often made together with it. That is waited for once.
            Outcome::Refuse(obstacle)
                if obstacle.reason.may_appear() && !self.was_refused_for(&obstacle) && until.is_some() =>
            {
                Outcome::Wait(Obstacle { until, ..obstacle })
            }
            Outcome::Refuse(obstacle) if obstacle.reason == ObstacleReason::VolumeNotReady => {
                Outcome::Refuse(Obstacle { until: Some(self.now + VOLUMES), ..obstacle })
            }
            other => other,
        }
    }

    /// Whether the gang was refused for the same before.
    fn was_refused_for(&self, obstacle: &Obstacle) -> bool {
        let last = self.journal.memory.last_failure.as_ref();
        last.is_some_and(|last| last.obstacle == Some(obstacle.reason))
    }

    /// Whether this is the plan that the attempt was begun with, whichever instance types are listed now.
    pub fn is_begun_with(&self, outcome: &Outcome) -> bool {
        let hash = self.journal.memory.plan.as_ref();
        outcome.plan().is_some_and(|plan| hash.is_some_and(|hash| plan.is_hashed_but_for_types(hash)))
    }

    /// Whether a gang whose pods need these nodes now has fewer, and the plan is not the one it began with.
    pub fn is_short_of(&self, outcome: &Outcome) -> bool {
        let staying = || self.observed.staying(self.journal.memory.attempt).count();
        !self.is_begun_with(outcome) && outcome.plan().is_some_and(|plan| plan.slots.len() > staying())
    }

    /// Whether an outcome gives the gang up, ends its attempt, or passes over one of these NodePools for having been edited too
    /// long ago.
    pub fn ends_something(
        &self,
        outcome: &Outcome,
        pools: impl FnOnce() -> Vec<std::sync::Arc<NodePool>>,
    ) -> bool {
        match (&self.journal.state, outcome) {
            (State::Validating, Outcome::Provision(_)) => {
                self.edited() == Edited::PassedOver && pools().iter().any(|pool| self.passes_over(pool))
            }
            (State::Provisioning, Outcome::Provision(plan)) => !self.journal.is_begun_with(plan),
            (State::Validating | State::Provisioning, _) => true,
            (State::Approved { .. }, Outcome::NothingNeeded(_)) => false,
            (State::Approved { nodes }, _) => *nodes == Nodes::Unneeded,
            _ => false,
        }
    }

    /// Whether a NodePool that any tier could use is passed over because Karpenter has not seen its last edit.
    fn passes_over(&self, pool: &NodePool) -> bool {
        let tiers = &self.policy.tiers;
        // A tier that names no NodePool takes any.
        let may_use = |name: &Option<String>| name.is_none() || *name == pool.metadata.name;
        pool.is_unseen() && (tiers.is_empty() || tiers.iter().any(|tier| may_use(&tier.node_pool_name)))
    }
}
