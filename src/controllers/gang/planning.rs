//! Plans a gang from its options, its own nodes and what other gangs reserve.

use super::{Gang, Planned};
use crate::api::{NodeClaim, Workload};
use crate::controllers::plans;
use crate::gang::ledger::refused::Causes;
use crate::gang::ledger::{Ledger, shortage};
use crate::gang::snapshot::loss::{Loss, last_known};
use crate::gang::step::planning::{Planning, in_turn};
use crate::gang::{Failure, Refusal, State};
use crate::plan::offering::Offering;
use crate::plan::pool_claims::NO_CLAIMS;
use crate::plan::{Outcome, PlanRequest, strategy};
use std::collections::{BTreeMap, BTreeSet};

impl Gang<'_> {
    pub(super) fn planning(&self) -> Planning<'_> {
        Planning {
            front_end: self.scope.front_end,
            journal: self.journal(),
            policy: &self.effective.policy,
            observed: &self.observed,
            now: self.scope.now(),
        }
    }

    /// The basis of the next step: the plan, if the state needs one, and the refusal that stands.
    pub(super) fn plan(
        &self,
        workload: &Workload,
        refused_by: Option<Causes>,
        ledger: &mut Ledger,
    ) -> Planned {
        let state = &self.journal().state;
        let mut outcome = state.needs_plan().then(|| self.make_plan(workload, ledger));
        if *state == State::Validating {
            self.count_gates(outcome.as_ref(), workload, ledger);
            // Other checks no longer delay an attempt that has begun.
            outcome = outcome.map(|plan| strategy::timed(plan, &self.request(workload)));
        }
        if matches!(outcome, Some(Outcome::Provision(_))) {
            ledger.refused.forget(&self.scope.id);
        }
        let refusal = refused_by.and_then(|causes| self.refusal(workload, causes, ledger));
        let pools = || self.scope.context.stores.plan.node_pools.state();
        let is_plan = outcome.as_ref().is_some_and(|outcome| outcome.plan().is_some());
        Planned {
            outcome,
            refusal,
            passes_over_edited: is_plan && self.planning().passes_over_edited(pools),
            capacity_back: ledger.capacity_returns.is_enough(&self.scope.id),
        }
    }

    fn make_plan(&self, workload: &Workload, ledger: &mut Ledger) -> Outcome {
        if let Some(fault) = &self.effective.fault {
            return Outcome::Wait(fault.clone());
        }
        let (planning, now) = (self.planning(), self.scope.now());
        let (staying, kinds) = (planning.staying(), self.observed.kinds(self.journal().memory.attempt));
        let accepted = ledger.accepted(&self.scope.id).map(|accepted| accepted.option_index);
        let selection = planning.selection(accepted, &kinds);
        let request = PlanRequest { selection, ..self.request(workload) };
        let read = plans::LiveReads {
            claims: self.live_reads.pool_claims.as_deref().unwrap_or(&NO_CLAIMS),
            warm: self.live_reads.warm.as_deref().unwrap_or_default(),
            staying: &staying,
            shapes: None,
            storage: self.live_reads.storage.as_ref(),
            edited: planning.edited(),
            plan_objects: self.live_reads.plan_objects.as_ref(),
        };
        let awaited = ledger.reentry_deadline(now);
        let exhausted = planning.needs_capacity_now(selection).then(|| ledger.exhausted(now));
        let mut plan = |workload: &Workload, read| {
            let request = PlanRequest { workload, ..request };
            let outcome = plans::outcome(self.scope.context, &request, &self.scope.id, ledger, read);
            in_turn(outcome, selection, |plan| ledger.tried_by_others(&self.scope.id, plan, now))
        };
        let outcome = planning.with_start_wait(plan(workload, read));
        let outcome = planning.of_replacement(workload, outcome, |workload, shapes| {
            plan(workload, plans::LiveReads { shapes, ..read })
        });
        let named = |wanted: &BTreeSet<Offering>| shortage::named(wanted, &ledger.shortages(now));
        planning.among_others(outcome, awaited, exhausted.as_ref(), named)
    }

    /// The causes that the gang's refusal may have now; `None` if it is not refused.
    pub(super) fn refused_by(&self, workload: &Workload) -> Option<Causes> {
        let context = self.scope.context;
        let is_refused = context.gang_state.ledger().refused.has(&self.scope.id);
        is_refused.then(|| context.causes_of_refusal(workload))
    }

    /// The refusal that stands. It ends if the changes since then give the gang a plan.
    fn refusal(&self, workload: &Workload, causes: Causes, ledger: &mut Ledger) -> Option<Refusal> {
        let id = &self.scope.id;
        if let Some(refused) = ledger.refused.changed(id, causes) {
            let outcome = self.make_plan(&refused, ledger);
            ledger.refused.replanned(id, causes, &outcome);
        }
        ledger.refused.refusal(id, workload, causes, self.scope.now())
    }

    /// Claims of the current attempt that are not going.
    pub(super) fn staying(&self) -> impl Iterator<Item = &NodeClaim> {
        self.observed.staying(self.journal().memory.attempt)
    }

    /// Offerings that this failure shows to be out of capacity.
    pub(super) fn exhausted(&self, failure: &Failure, losses: &BTreeMap<u32, Loss>) -> BTreeSet<Offering> {
        let (store, records) = (&self.scope.context.claim_records, self.records());
        self.planning().exhausted(failure, losses, |slot, keys| {
            let (_, name) = last_known(&self.journal().memory, &self.scope.identity, &records, slot);
            store.offerings(&name, keys)
        })
    }
}
