//! How a gang comes to its plan: the options that it may take, what it has already, and what others take.

use super::{Gang, Planned};
use crate::api::{NodeClaim, Workload};
use crate::controllers::board::{ShortageEntry, ShortageSource};
use crate::controllers::ledger::LedgerPages;
use crate::controllers::plans;
use crate::controllers::refused::Causes;
use crate::gang::loss::{Loss, last_known};
use crate::gang::planning::Planning;
use crate::gang::{Failure, FailureClass, Nodes, Refusal, State};
use crate::plan::demand::as_granted;
use crate::plan::offering::{Offering, domain_keys};
use crate::plan::{Obstacle, ObstacleReason, Outcome, Request, strategy};
use crate::words::to_the_second;
use std::collections::{BTreeMap, BTreeSet};

/// Most combinations that are named to people.
const NAMED: usize = 2;

impl Gang<'_> {
    pub(super) fn planning(&self) -> Planning<'_> {
        Planning {
            journal: self.journal(),
            policy: &self.judgement.policy,
            observed: &self.observed,
            now: self.scope.now(),
        }
    }

    /// What the next step is taken by: the plan, if the state needs one, and the refusal that stands.
    pub(super) fn plan(
        &self,
        workload: &Workload,
        refused_by: Option<Causes>,
        pages: &mut LedgerPages,
    ) -> Planned {
        let state = &self.journal().state;
        let mut outcome = state.needs_plan().then(|| self.make_plan(workload, pages));
        if *state == State::Validating {
            self.count_gates(outcome.as_ref(), workload, pages);
            // An attempt that has begun is carried through, whatever the other checks say by then.
            outcome = outcome.map(|plan| strategy::timed(plan, &self.request(workload)));
        }
        if matches!(outcome, Some(Outcome::Provision(_))) {
            pages.refused.forget(&self.scope.id);
        }
        let refusal = refused_by.and_then(|causes| self.refusal(workload, causes, pages));
        Planned { outcome, refusal }
    }

    fn make_plan(&self, workload: &Workload, pages: &mut LedgerPages) -> Outcome {
        if let Some(fault) = &self.judgement.fault {
            return Outcome::Wait(fault.clone());
        }
        let (planning, now) = (self.planning(), self.scope.now());
        let (kept, kinds) = (planning.kept(), self.observed.kinds(self.journal().memory.attempt));
        let accepted = pages.accepted(&self.scope.id).map(|accepted| accepted.option_index);
        let selection = planning.selection(accepted, &kinds);
        let request = Request { selection, ..self.request(workload) };
        let read = plans::ReadInputs {
            claims: &self.inputs.pool_claims,
            warm: self.inputs.warm.as_deref().unwrap_or_default(),
            kept: &kept,
            shapes: None,
            storage: self.inputs.storage.as_ref(),
            edited: planning.edited(),
            grounds: self.inputs.grounds.as_ref(),
        };
        let awaited = pages.awaits_others(now);
        let exhausted = planning.needs_capacity_now(selection).then(|| pages.exhausted(now));
        let mut plan = |workload: &Workload, read| {
            plans::outcome(self.scope.context, &Request { workload, ..request }, &self.scope.id, pages, read)
        };
        let outcome = planning.with_patience(plan(workload, read));
        match (&self.journal().state, &outcome) {
            (State::Approved { nodes: Nodes::Replacing }, _) => {
                self.plan_of_replacement(workload, outcome, |workload, shapes| {
                    plan(workload, plans::ReadInputs { shapes, ..read })
                })
            }
            (_, Outcome::Provision(plan)) if plan.is_exhausted(exhausted.as_ref()) => {
                Outcome::Wait(no_capacity(&plan.offerings(), &pages.shortages(now)))
            }
            (State::Validating, Outcome::Provision(_)) if awaited.is_some() => {
                let message =
                    "gangs whose nodes were being created when this replica began to lead come first";
                let obstacle = Obstacle::new(ObstacleReason::OthersFirst, message);
                Outcome::Wait(Obstacle { until: awaited, ..obstacle })
            }
            _ => outcome,
        }
    }

    /// The plan that the attempt began with, if it can still be made, and else the current one.
    fn plan_of_replacement(
        &self,
        workload: &Workload,
        current: Outcome,
        mut plan: impl FnMut(&Workload, Option<&'static [crate::plan::shape::Shape]>) -> Outcome,
    ) -> Outcome {
        let planning = self.planning();
        // Pods that are done have moved the slots of the others: only all of them give the first plan.
        let all = as_granted(workload);
        let counts_more = workload.is_replaced() || planning.is_short_of(&current);
        let found = if counts_more { plan(&all, None) } else { current };
        if self.journal().memory.plan.is_none() || planning.is_begun_with(&found) {
            return found;
        }
        // Before another replica led it, the gang may have been planned when no shape was learnt yet.
        let mut before = [workload, &all].into_iter().map(|workload| plan(workload, Some(&[])));
        before.find(|plan| planning.is_begun_with(plan)).unwrap_or(found)
    }

    /// What the refusal of a gang that is refused may be due to now.
    pub(super) fn refused_by(&self, workload: &Workload) -> Option<Causes> {
        let context = self.scope.context;
        let is_refused = context.of_gangs.ledger.open().refused.has(&self.scope.id);
        is_refused.then(|| context.causes_of_refusal(workload))
    }

    /// The refusal that stands. It ends if the gang has a plan by what has changed since.
    fn refusal(&self, workload: &Workload, causes: Causes, pages: &mut LedgerPages) -> Option<Refusal> {
        let id = &self.scope.id;
        if let Some(refused) = pages.refused.changed(id, causes) {
            match self.make_plan(&refused, pages) {
                Outcome::Refuse(_) => pages.refused.stays(id, causes),
                // That will be over, and may not help then.
                Outcome::Wait(obstacle) if obstacle.reason.hides_plan() => {}
                _ => pages.refused.forget(id),
            }
        }
        pages.refused.refusal(id, workload, causes, self.scope.now())
    }

    /// Claims of the current attempt that are not going.
    pub(super) fn staying(&self) -> impl Iterator<Item = &NodeClaim> {
        self.observed.staying(self.journal().memory.attempt)
    }

    /// What this failure shows to be out of capacity.
    pub(super) fn exhausted(
        &self,
        workload: &Workload,
        failure: &Failure,
        losses: &BTreeMap<u32, Loss>,
    ) -> BTreeSet<Offering> {
        let (memory, policy) = (&self.journal().memory, &self.judgement.policy);
        let keys = domain_keys(policy);
        if !failure.reason.counts_as_short() {
            return BTreeSet::new();
        }
        if failure.reason == FailureClass::LaunchTimeout {
            let limit = policy.deadlines.launch.signed();
            let late = self.observed.launched_late(memory.attempt, limit, self.scope.now());
            return late.flat_map(|claim| Offering::of(claim, &keys)).collect();
        }
        let recorded = |slot| last_known(memory, &self.scope.identity, &self.records(workload), slot);
        let lost =
            losses.iter().filter(|(_, loss)| loss.failure().is_some_and(|f| f.reason == failure.reason));
        lost.flat_map(|(slot, _)| self.scope.context.tombstones.offerings(&recorded(*slot).1, &keys))
            .collect()
    }
}

/// The wait of a gang whose missing nodes no tier has now.
fn no_capacity(wanted: &BTreeSet<Offering>, shortages: &[ShortageEntry]) -> Obstacle {
    let message = "no tier has capacity now for the nodes that are missing".to_owned();
    Obstacle::new(ObstacleReason::CapacityShort, message + &what_is_short(wanted, shortages))
}

/// What of these offerings ran out, and until when that is remembered; empty if nothing of them is.
fn what_is_short(wanted: &BTreeSet<Offering>, shortages: &[ShortageEntry]) -> String {
    let is_wanted = |exhausted: &&ShortageEntry| {
        let exhausted = BTreeSet::from([exhausted.offering.clone()]);
        wanted.iter().any(|offering| offering.is_in(&exhausted))
    };
    let those: Vec<&ShortageEntry> = shortages.iter().filter(is_wanted).collect();
    let Some(until) = those.iter().map(|s| s.until).min() else { return String::new() };
    let named: Vec<String> = those.iter().take(NAMED).map(|s| s.offering.to_string()).collect();
    let more = those.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let who = if those.iter().all(|s| s.source == ShortageSource::Karpenter) {
        "by Karpenter's metrics "
    } else {
        ""
    };
    format!(
        ": {who}{}{more} ran out lately, and is not asked for until {}",
        named.join(", "),
        to_the_second(until)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;
    use serde_json::json;

    #[test]
    fn what_ran_out_is_named_with_the_first_time_at_which_it_is_asked_for_again() {
        let of = |pool: &str| {
            let spot = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot"]}]);
            Offering::among(pool, &serde_json::from_value::<Vec<_>>(spot).unwrap(), &[])
        };
        let exhausted = |pool: &str, until: &str| {
            let offering = of(pool).pop_first().unwrap();
            ShortageEntry {
                offering,
                until: until.parse().unwrap(),
                source: ShortageSource::Launch,
                turn: None,
            }
        };
        let all = [exhausted("gpu", "2026-11-21T10:15:02Z"), exhausted("other", "2026-11-21T10:14:00Z")];
        assert_eq!(
            what_is_short(&of("gpu"), &all),
            ": NodePool gpu (spot capacity in any zone) ran out lately, and is not asked for until 2026-11-21T10:15:02Z"
        );
        assert_eq!(what_is_short(&of("gpu"), &all[1..]), "");
    }
}
