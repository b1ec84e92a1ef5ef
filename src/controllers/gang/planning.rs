//! How a gang comes to its plan: the options that it may take, what it has already, and what others take.

use super::{Gang, Planned};
use crate::api::{NodeClaim, Workload};
use crate::controllers::board::{ShortageEntry, ShortageSource};
use crate::controllers::ledger::LedgerPages;
use crate::controllers::plans;
use crate::gang::loss::{Loss, last_known};
use crate::gang::planning::Planning;
use crate::gang::refused::Causes;
use crate::gang::{Failure, Refusal, State};
use crate::plan::offering::Offering;
use crate::plan::{Outcome, Request, strategy};
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
        let pools = || self.scope.context.stores.plan.node_pools.state();
        let is_plan = outcome.as_ref().is_some_and(|outcome| outcome.plan().is_some());
        Planned {
            outcome,
            refusal,
            passes_over_edited: is_plan && self.planning().passes_over_edited(pools),
            capacity_back: pages.capacity_returns.is_enough(&self.scope.id),
        }
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
        let outcome = planning.of_replacement(workload, outcome, |workload, shapes| {
            plan(workload, plans::ReadInputs { shapes, ..read })
        });
        let named = |wanted: &BTreeSet<Offering>| what_is_short(wanted, &pages.shortages(now));
        planning.among_others(outcome, awaited, exhausted.as_ref(), named)
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
            let outcome = self.make_plan(&refused, pages);
            pages.refused.replanned(id, causes, &outcome);
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
        let (store, records) = (&self.scope.context.claim_records, self.records(workload));
        self.planning().exhausted(failure, losses, |slot, keys| {
            let (_, name) = last_known(&self.journal().memory, &self.scope.identity, &records, slot);
            store.offerings(&name, keys)
        })
    }
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
