//! How a gang is planned: which options it may take, how long it waits for what may still appear, and what an outcome means for it.
//!
//! Rule: decisions only. `plan` computes the outcome, and the controller reads what it needs.

use crate::api::{FrontEnd, NodeClaim, NodePool, Workload};
use crate::gang::snapshot::loss::Loss;
use crate::gang::snapshot::observed::Observed;
use crate::gang::statechart::failure::{Failure, FailureClass};
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::{Nodes, State};
use crate::names;
use crate::plan::demand::as_granted;
use crate::plan::offering::{Offering, domain_keys};
use crate::plan::shape::Shape;
use crate::plan::{Edited, Obstacle, ObstacleReason, OptionSelection, Outcome, Plan};
use crate::policy::Policy;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How long a gang waits for an edited NodePool before it takes another one, and for a missing object before it is refused.
const START_WAIT: SignedDuration = SignedDuration::from_secs(30);

/// How often a gang that is refused for missing volumes or ResourceClaimTemplates is tried again: nothing watches them.
const UNWATCHED: SignedDuration = SignedDuration::from_mins(1);

/// Inputs of a gang's planning, besides the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Planning<'a> {
    /// The gang's front-end.
    pub front_end: FrontEnd,
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
    pub fn staying(&self) -> Vec<NodeClaim> {
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
                OptionSelection::Like { begun: kinds, plan: self.journal.memory.plan.as_deref() }
            }
            _ => OptionSelection::From(self.journal.memory.option.index),
        }
    }

    /// Whether the missing nodes may come only from an option that has capacity now. Otherwise a gang that already has nodes would
    /// ask for the others again and again, without a pause.
    pub fn needs_capacity_now(&self, selection: OptionSelection<'_>) -> bool {
        self.is_mixed()
            && self.journal.state == State::Provisioning
            && matches!(selection, OptionSelection::From(_))
    }

    /// Until when a gang that has nothing yet waits for edited NodePools and for what may appear; `None` once it has begun.
    fn start_wait_until(&self) -> Option<Timestamp> {
        let begins = self.journal.state == State::Validating;
        self.journal.entered_at.checked_add(START_WAIT).ok().filter(|_| begins)
    }

    /// How to treat NodePools that were edited and that Karpenter has not seen since.
    pub fn edited(&self) -> Edited {
        let is_over = self.start_wait_until().is_some_and(|until| until <= self.now);
        if is_over { Edited::PassedOver } else { Edited::Awaited }
    }

    /// The outcome with a wait for what is about to come, or with the time at which a refused gang is tried again.
    pub fn with_start_wait(&self, outcome: Outcome) -> Outcome {
        let until = self.start_wait_until().filter(|until| *until > self.now);
        match outcome {
            Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::NodePoolEdited => {
                Outcome::Wait(Obstacle { until: until.or(obstacle.until), ..obstacle })
            }
            // What a Job needs is often created together with it, so the gang waits for it once.
            Outcome::Refuse(obstacle)
                if obstacle.reason.may_appear() && !self.was_refused_for(&obstacle) && until.is_some() =>
            {
                Outcome::Wait(Obstacle { until, ..obstacle })
            }
            // A request that is refused has failed for good, so its gang waits until its deadline.
            Outcome::Refuse(obstacle) if obstacle.reason.may_appear() && self.front_end.is_request() => {
                Outcome::Wait(self.with_next_try(obstacle))
            }
            Outcome::Refuse(obstacle) => Outcome::Refuse(self.with_next_try(obstacle)),
            other => other,
        }
    }

    /// The obstacle with the time of the next try, if nothing watches for what is missing.
    fn with_next_try(&self, obstacle: Obstacle) -> Obstacle {
        use ObstacleReason::{ResourceClaimTemplateMissing, VolumeNotReady};
        let is_unwatched = matches!(obstacle.reason, VolumeNotReady | ResourceClaimTemplateMissing);
        let until = if is_unwatched { Some(self.now + UNWATCHED) } else { obstacle.until };
        Obstacle { until, ..obstacle }
    }

    /// Whether the gang was refused for the same before.
    fn was_refused_for(&self, obstacle: &Obstacle) -> bool {
        let last = self.journal.memory.last_failure.as_ref();
        last.is_some_and(|last| last.obstacle == Some(obstacle.reason))
    }

    /// Whether nodes of this plan can replace those of the plan that the attempt was begun with.
    pub fn has_plan_of_attempt(&self, outcome: &Outcome) -> bool {
        let hash = self.journal.memory.plan.as_ref();
        outcome.plan().is_some_and(|plan| hash.is_some_and(|hash| plan.replaces(hash)))
    }

    /// Whether the gang has fewer nodes than this plan, or fewer for some of the pod sets. It is not the plan that it began with.
    pub fn is_short_of(&self, outcome: &Outcome) -> bool {
        let Some(plan) = outcome.plan().filter(|_| !self.has_plan_of_attempt(outcome)) else { return false };
        let labels = &self.journal.memory.pod_sets;
        let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
        for slot in &plan.slots {
            *missing.entry(labels.of_slot(slot).unwrap_or_default()).or_default() += 1;
        }
        for claim in self.observed.staying(self.journal.memory.attempt) {
            let value = if labels.is_empty() { "" } else { claim.label(names::POD_SETS) };
            missing.entry(value).and_modify(|count| *count = count.saturating_sub(1));
        }
        missing.into_values().any(|count| count > 0)
    }

    /// The outcome of a gang that replaces lost nodes: the plan that its attempt began with, if it can still be made, or else
    /// the current one. `plan` plans for a Workload with the given shapes; with `None`, with the known ones.
    pub fn of_replacement(
        &self,
        workload: &Workload,
        current: Outcome,
        mut plan: impl FnMut(&Workload, Option<&'static [Shape]>) -> Outcome,
    ) -> Outcome {
        if self.journal.state != (State::Approved { nodes: Nodes::Replacing }) {
            return current;
        }
        // Once some pods are done, the others are planned into other slots: only all pods together give the first plan.
        let all = as_granted(workload);
        let counts_more = workload.is_replaced() || self.is_short_of(&current);
        let found = if counts_more { plan(&all, None) } else { current };
        if self.journal.memory.plan.is_none() || self.has_plan_of_attempt(&found) {
            return found;
        }
        // An earlier leader may have planned the gang before any shape was learnt.
        let all = Some(&all).filter(|_| counts_more);
        let mut before = [workload].into_iter().chain(all).map(|workload| plan(workload, Some(&[])));
        before.find(|plan| self.has_plan_of_attempt(plan)).unwrap_or(found)
    }

    /// Adjusts this outcome for the other gangs. A plan waits while its offerings are exhausted, and until `awaited`
    /// for gangs that come first. `named` lists the exhausted ones among the plan's offerings.
    pub fn among_others(
        &self,
        outcome: Outcome,
        awaited: Option<Timestamp>,
        exhausted: Option<&BTreeSet<Offering>>,
        named: impl FnOnce(&BTreeSet<Offering>) -> String,
    ) -> Outcome {
        let Outcome::Provision(plan) = &outcome else { return outcome };
        if plan.is_exhausted(exhausted) {
            let message = "no tier has capacity now for the nodes that are missing".to_owned();
            let message = message + &named(&plan.offerings());
            return Outcome::Wait(Obstacle::new(ObstacleReason::CapacityShort, message));
        }
        if awaited.is_some() && self.journal.state == State::Validating {
            let message = "gangs whose nodes were being created when this replica began to lead come first";
            let obstacle = Obstacle::new(ObstacleReason::OthersFirst, message);
            return Outcome::Wait(Obstacle { until: awaited, ..obstacle });
        }
        outcome
    }

    /// Offerings that this failure shows to be out of capacity. `offerings_of` returns those that the last claim of a slot asked for.
    pub fn exhausted(
        &self,
        failure: &Failure,
        losses: &BTreeMap<u32, Loss>,
        offerings_of: impl Fn(u32, &[String]) -> BTreeSet<Offering>,
    ) -> BTreeSet<Offering> {
        let keys = domain_keys(self.policy);
        if !failure.reason.counts_as_short() {
            return BTreeSet::new();
        }
        if failure.reason == FailureClass::LaunchTimeout {
            let limit = self.policy.deadlines.launch.signed();
            let late = self.observed.launched_late(self.journal.memory.attempt, limit, self.now);
            return late.flat_map(|claim| Offering::of(claim, &keys)).collect();
        }
        let is_alike = |loss: &Loss| loss.failure().is_some_and(|known| known.reason == failure.reason);
        let lost = losses.iter().filter(|(_, loss)| is_alike(loss));
        lost.flat_map(|(slot, _)| offerings_of(*slot, &keys)).collect()
    }

    /// Whether a gang that has nothing yet passes over one of these NodePools because Karpenter has not seen its last edit.
    pub fn passes_over_edited(&self, pools: impl FnOnce() -> Vec<std::sync::Arc<NodePool>>) -> bool {
        self.edited() == Edited::PassedOver && pools().iter().any(|pool| self.passes_over(pool))
    }

    /// Whether a NodePool that any tier could use is passed over because Karpenter has not seen its last edit.
    fn passes_over(&self, pool: &NodePool) -> bool {
        let tiers = &self.policy.tiers;
        // A tier that names no NodePool takes any.
        let may_use = |name: &Option<String>| name.is_none() || *name == pool.metadata.name;
        pool.is_unseen() && (tiers.is_empty() || tiers.iter().any(|tier| may_use(&tier.node_pool_name)))
    }
}

/// The outcome of a gang with this selection once gangs take turns. Otherwise two gangs that would each fit alone could each take
/// half of what is left, again and again. `tried` returns an exhausted offering of a plan that another gang is trying.
pub fn in_turn(
    outcome: Outcome,
    selection: OptionSelection<'_>,
    tried: impl FnOnce(&Plan) -> Option<Offering>,
) -> Outcome {
    let may_choose = matches!(selection, OptionSelection::From(_));
    match outcome.plan().filter(|_| may_choose).and_then(tried) {
        Some(offering) => Outcome::Wait(Obstacle::new(
            ObstacleReason::OthersFirst,
            format!("{offering} ran out of capacity lately, and another gang tries there first"),
        )),
        None => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::plan::fixtures::Fixture;

    fn journal(state: State) -> Journal {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
        journal.state = state;
        journal.memory.attempt = 1;
        journal
    }

    fn with<T>(state: State, act: impl FnOnce(&Planning<'_>) -> T) -> T {
        let observed = Observed::cached(Vec::new(), BTreeMap::new());
        let now = Timestamp::UNIX_EPOCH;
        act(&Planning {
            front_end: FrontEnd::Workload,
            journal: &journal(state),
            policy: &Policy::default(),
            observed: &observed,
            now,
        })
    }

    #[test]
    fn a_request_waits_for_what_is_missing_until_its_deadline() {
        let missing = || Outcome::Refuse(Obstacle::new(ObstacleReason::VolumeNotReady, "no claim"));
        let waits = |front_end, reason| {
            with(State::Provisioning, |gang| {
                let gang = Planning { front_end, ..*gang };
                let outcome = Outcome::Refuse(Obstacle::new(reason, "missing"));
                matches!(gang.with_start_wait(outcome), Outcome::Wait(_))
            })
        };
        assert!(!waits(FrontEnd::Workload, ObstacleReason::VolumeNotReady));
        for front_end in [FrontEnd::ProvisioningRequest, FrontEnd::StandaloneRequest] {
            assert!(waits(front_end, ObstacleReason::VolumeNotReady));
            assert!(!waits(front_end, ObstacleReason::RequirementsClash), "somebody must change it");
        }
        let gang = |front_end| {
            with(State::Provisioning, |gang| Planning { front_end, ..*gang }.with_start_wait(missing()))
        };
        let Outcome::Wait(obstacle) = gang(FrontEnd::StandaloneRequest) else { panic!("refused") };
        assert_eq!(obstacle.until, Some(Timestamp::UNIX_EPOCH + UNWATCHED), "nothing watches for it");
    }

    #[test]
    fn a_plan_waits_for_exhausted_offerings_and_a_new_gang_for_gangs_that_come_first() {
        let plan = Fixture::new().provisioned();
        let short = plan.offerings();
        let among = |state: State, awaited, short: Option<&BTreeSet<Offering>>| {
            let plan = Outcome::Provision(plan.clone());
            let outcome = with(state, |gang| gang.among_others(plan, awaited, short, |_| ": all".into()));
            match outcome {
                Outcome::Wait(obstacle) => Some((obstacle.reason, obstacle.until)),
                Outcome::Provision(_) => None,
                other => panic!("{other:?}"),
            }
        };
        let until = Some(Timestamp::from_second(9).unwrap());
        let is_short = Some((ObstacleReason::CapacityShort, None));
        assert_eq!(among(State::Provisioning, None, Some(&short)), is_short);
        assert_eq!(among(State::Provisioning, None, Some(&BTreeSet::new())), None);
        assert_eq!(among(State::Provisioning, until, None), None);
        assert_eq!(among(State::Validating, until, None), Some((ObstacleReason::OthersFirst, until)));
    }

    #[test]
    fn a_gang_that_may_choose_waits_while_another_tries_what_ran_out() {
        let plan = Fixture::new().provisioned();
        let offering = plan.offerings().pop_first();
        let waits = |selection: OptionSelection<'_>, tried: Option<&Offering>| {
            let plan = Outcome::Provision(plan.clone());
            let outcome = in_turn(plan, selection, |_| tried.cloned());
            matches!(outcome, Outcome::Wait(obstacle) if obstacle.reason == ObstacleReason::OthersFirst)
        };
        assert!(waits(OptionSelection::From(0), offering.as_ref()));
        assert!(!waits(OptionSelection::From(0), None));
        assert!(
            !waits(OptionSelection::Like { begun: &[], plan: None }, offering.as_ref()),
            "it has nodes of this kind already"
        );
    }

    #[test]
    fn a_replacement_is_planned_for_all_pods_only_if_the_current_plan_lacks_nodes() {
        let plan = Outcome::Provision(Fixture::new().provisioned());
        let planned = |state: State| {
            let mut times = 0;
            with(state, |gang| {
                gang.of_replacement(&Fixture::new().workload, plan.clone(), |_, _| {
                    times += 1;
                    plan.clone()
                })
            });
            times
        };
        assert_eq!(planned(State::Approved { nodes: Nodes::Replacing }), 1);
        assert_eq!(planned(State::Provisioning), 0);
    }

    #[test]
    fn the_offerings_of_slots_lost_for_the_same_reason_are_exhausted() {
        let of = |class| Failure::new(class, "lost");
        let lost = |class| Loss::Failed(of(class));
        let losses = BTreeMap::from([
            (0, lost(FailureClass::InsufficientCapacity)),
            (1, lost(FailureClass::Interrupted)),
        ]);
        let offerings = Fixture::new().provisioned().offerings();
        let exhausted = |class| {
            let mut slots = std::cell::RefCell::new(Vec::new());
            let of_slot = |slot, _: &[String]| {
                slots.borrow_mut().push(slot);
                offerings.clone()
            };
            let found = with(State::Provisioning, |gang| gang.exhausted(&of(class), &losses, of_slot));
            (found == offerings, std::mem::take(slots.get_mut()))
        };
        assert_eq!(exhausted(FailureClass::InsufficientCapacity), (true, vec![0]));
        assert_eq!(exhausted(FailureClass::Interrupted), (false, vec![]), "it shows no shortage");
    }
}
