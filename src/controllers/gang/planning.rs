//! How a gang comes to its plan: the way that it may take, what it has already, and what it must read for it.

use super::Gang;
use crate::api::{NodeClaim, NodePool, Workload};
use crate::controllers::board::{Shortage, ShortageSource};
use crate::controllers::grounds::Grounds;
use crate::controllers::ledger::LedgerPages;
use crate::controllers::refused::Causes;
use crate::controllers::{inflight, plans, storage};
use crate::effects::claims;
use crate::error::Error;
use crate::gang::loss::{Loss, last_known};
use crate::gang::{Attempt, Failure, FailureClass, Nodes, Refusal, State};
use crate::names;
use crate::plan::demand::as_granted;
use crate::plan::offering::{Offering, place_keys};
use crate::plan::volumes::Storage;
use crate::plan::{Edited, OptionSelection, Outcome, Request};
use crate::plan::{Obstacle, ObstacleReason};
use crate::words::to_the_second;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How long a NodePool that was edited is waited for before another one is taken, and what may come before the gang is refused.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// How often a gang that is refused for volumes that are not there yet is tried again: nothing says that they have come.
const VOLUMES: SignedDuration = SignedDuration::from_mins(1);

/// Most combinations that are named to people.
const TOLD: usize = 2;

/// What a plan is made from besides what the stores hold, once it was read.
#[derive(Default)]
pub(super) struct PlanInputs {
    pub pool_claims: Arc<[NodeClaim]>,
    /// What the volumes of its pods depend on.
    pub storage: Option<Storage>,
    /// What the caches hold, read past them.
    pub grounds: Option<Grounds>,
    /// Kept nodes that the gang may take over.
    pub warm: Option<Vec<NodeClaim>>,
    /// What a refusal may be due to, as of before `grounds` was read.
    pub causes: Option<Causes>,
}

impl Gang<'_> {
    pub(super) fn make_plan(&self, workload: &Workload, pages: &mut LedgerPages) -> Outcome {
        if let Some(fault) = &self.judgement.fault {
            return Outcome::Wait(fault.clone());
        }
        let mixed = self.journal.is_mixed(&self.judgement.policy);
        let kept: Vec<NodeClaim> = if mixed { self.staying().cloned().collect() } else { Vec::new() };
        let begun = self.begun();
        let selection = match (&self.journal.state, pages.accepted(&self.id)) {
            (State::Provisioning, Some(accepted)) => {
                let plan = self.journal.memory.plan.as_deref();
                OptionSelection::Accepted { option_index: accepted.option_index, plan, begun: &begun }
            }
            // What is mended stays what it was, on whatever tier.
            (State::Provisioning | State::Approved { .. }, _) if !mixed && !begun.is_empty() => {
                OptionSelection::Like(&begun)
            }
            _ => OptionSelection::From(self.journal.memory.option.index),
        };
        let goes_on = mixed
            && self.journal.state == State::Provisioning
            && matches!(selection, OptionSelection::From(_));
        let request = Request { selection, ..self.request(workload) };
        let patience = self.patience();
        let edited = patience
            .filter(|until| *until <= self.context.now())
            .map_or(Edited::Awaited, |_| Edited::PassedOver);
        let known = plans::Known {
            claims: &self.inputs.pool_claims,
            warm: self.inputs.warm.as_deref().unwrap_or_default(),
            kept: &kept,
            shapes: None,
            storage: self.inputs.storage.as_ref(),
            edited,
            grounds: self.inputs.grounds.as_ref(),
        };
        let awaited = pages.awaits_others(self.context.now());
        let short = goes_on.then(|| pages.short(self.context.now()));
        let mut plan = |workload, known| {
            plans::outcome(self.context, &Request { workload, ..request }, &self.id, pages, known)
        };
        let now = self.with_patience(plan(workload, known), patience);
        if let Outcome::Provision(plan) = &now
            && plan.is_short(short.as_ref())
        {
            // A gang that has nodes already does not ask in vain for the others: it would do so without a pause.
            let message = "no tier has capacity now for the nodes that are missing".to_owned();
            let message = message + &what_is_short(&plan.offerings(), &pages.shortages(self.context.now()));
            return Outcome::Wait(Obstacle::new(ObstacleReason::CapacityShort, message));
        }
        if let (State::Validating, Outcome::Provision(_), Some(until)) = (&self.journal.state, &now, awaited)
        {
            let message = "gangs whose nodes were being created when this replica began to lead come first";
            let obstacle = Obstacle::new(ObstacleReason::OthersFirst, message);
            return Outcome::Wait(Obstacle { until: Some(until), ..obstacle });
        }
        if !matches!(self.journal.state, State::Approved { nodes: Nodes::Replacing }) {
            return now;
        }
        // Pods that are done have moved the slots of the others: only all of them give the first plan.
        let all = as_granted(workload);
        let counts_more = workload.is_replaced() || self.is_short_of(&now);
        let found = if counts_more { plan(&all, known) } else { now };
        if self.journal.memory.plan.is_none() || self.is_begun_with(&found) {
            return found;
        }
        // Before another replica led it, the gang may have been planned when no shape was learnt yet.
        let known = plans::Known { shapes: Some(&[]), ..known };
        let mut before = [workload, &all].into_iter().map(|workload| plan(workload, known));
        before.find(|plan| self.is_begun_with(plan)).unwrap_or(found)
    }

    /// What the refusal of a gang that is refused may be due to now.
    pub(super) fn refused_by(&self, workload: &Workload) -> Option<Causes> {
        let is_refused = self.context.of_gangs.ledger.open().refused.has(&self.id);
        is_refused.then(|| self.context.causes_of_refusal(workload))
    }

    /// The refusal that stands. It ends if the gang has a plan by what has changed since.
    pub(super) fn refusal(
        &self,
        workload: &Workload,
        causes: Causes,
        pages: &mut LedgerPages,
    ) -> Option<Refusal> {
        if let Some(refused) = pages.refused.changed(&self.id, causes) {
            match self.make_plan(&refused, pages) {
                Outcome::Refuse(_) => pages.refused.stays(&self.id, causes),
                // That will be over, and may not help then.
                Outcome::Wait(obstacle) if obstacle.reason.hides_plan() => {}
                _ => pages.refused.forget(&self.id),
            }
        }
        pages.refused.refusal(&self.id, workload, causes, self.context.now())
    }

    /// The outcome with what is about to come waited for until this time, if there is any.
    fn with_patience(&self, outcome: Outcome, patience: Option<Timestamp>) -> Outcome {
        let until = patience.filter(|until| *until > self.context.now());
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
                Outcome::Refuse(Obstacle { until: Some(self.context.now() + VOLUMES), ..obstacle })
            }
            other => other,
        }
    }

    /// Whether the gang was refused for the same before.
    fn was_refused_for(&self, obstacle: &Obstacle) -> bool {
        let last = self.journal.memory.last_failure.as_ref();
        last.is_some_and(|last| last.obstacle == Some(obstacle.reason))
    }

    /// Until when a gang that has nothing yet waits for NodePools that were edited, and for what may come; for ever once it has.
    fn patience(&self) -> Option<Timestamp> {
        let begins = self.journal.state == State::Validating;
        self.journal.entered_at.checked_add(PATIENCE).ok().filter(|_| begins)
    }

    /// A claim of the current attempt for each kind of nodes that it has.
    fn begun(&self) -> Vec<NodeClaim> {
        let attempt = self.journal.memory.attempt.to_string();
        let mut kinds: Vec<NodeClaim> = Vec::new();
        for claim in self.observed.claims.iter().filter(|claim| claim.label(names::ATTEMPT) == attempt) {
            let is_known = |kind: &NodeClaim| {
                kind.spec == claim.spec && kind.label(names::NODEPOOL) == claim.label(names::NODEPOOL)
            };
            if !kinds.iter().any(is_known) {
                kinds.push(claim.clone());
            }
        }
        kinds
    }

    /// Whether this is the plan that the attempt was begun with, whichever instance types are listed now.
    fn is_begun_with(&self, plan: &Outcome) -> bool {
        let hash = self.journal.memory.plan.as_ref();
        matches!(plan, Outcome::Provision(plan) if hash.is_some_and(|hash| plan.is_hashed_but_for_types(hash)))
    }

    /// Whether a gang whose pods need these nodes now has fewer, and the plan is not the one it began with.
    fn is_short_of(&self, outcome: &Outcome) -> bool {
        let Outcome::Provision(plan) = outcome else { return false };
        !self.is_begun_with(outcome) && plan.slots.len() > self.staying().count()
    }

    /// Claims of the current attempt that are not going.
    pub(super) fn staying(&self) -> impl Iterator<Item = &NodeClaim> {
        let attempt = self.journal.memory.attempt.to_string();
        let claims = self.observed.claims.iter().filter(|c| c.metadata.deletion_timestamp.is_none());
        claims.filter(move |c| c.label(names::ATTEMPT) == attempt)
    }

    /// What this failure shows to be out of capacity.
    pub(super) fn exhausted(
        &self,
        workload: &Workload,
        failure: &Failure,
        losses: &BTreeMap<u32, Loss>,
    ) -> BTreeSet<Offering> {
        let attempt = self.journal.memory.attempt;
        let keys = place_keys(&self.judgement.policy);
        if !failure.reason.counts_as_short() {
            return BTreeSet::new();
        }
        if failure.reason == FailureClass::LaunchTimeout {
            let (limit, now) = (self.judgement.policy.deadlines.launch.signed(), self.context.now());
            let is_late = |c: &&NodeClaim| {
                let created = c.metadata.creation_timestamp.as_ref();
                !c.is("Launched") && created.is_some_and(|created| created.0 + limit <= now)
            };
            let all = self.observed.claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt.to_string());
            return all.filter(is_late).flat_map(|claim| Offering::of(claim, &keys)).collect();
        }
        let last = |slot| last_known(&self.journal.memory, &self.identity, &self.records(workload), slot);
        losses
            .iter()
            .filter(|(_, loss)| loss.failure().is_some_and(|f| f.reason == failure.reason))
            .flat_map(|(slot, _)| self.context.tombstones.offerings(&last(*slot).1, &keys))
            .collect()
    }

    pub(super) fn request<'r>(&'r self, workload: &'r Workload) -> Request<'r> {
        Request {
            workload,
            check: &self.identity.check,
            our_checks: self.our_checks,
            gang: &self.pin,
            policy: &self.judgement.policy,
            selection: OptionSelection::From(0),
        }
    }

    /// Reads what the volumes of the pods depend on, once for each reconcile that plans.
    pub(super) async fn fetch_storage(
        &mut self,
        workload: &Workload,
        refused_by: Option<Causes>,
    ) -> Result<(), Error> {
        // A refused gang is planned anew where something has changed.
        let has_changed =
            |causes| self.context.of_gangs.ledger.open().refused.changed(&self.id, causes).is_some();
        if self.inputs.storage.is_none()
            && (self.journal.state.needs_plan() || refused_by.is_some_and(has_changed))
        {
            self.inputs.storage = Some(storage::read(self.client, workload).await?);
        }
        Ok(())
    }

    /// Whether nothing ends by the gang's plan, or what that plan rests on was read past the caches. What was read of its claims
    /// says nothing of it.
    pub(super) fn rests_on_grounds(&self) -> bool {
        !self.needs_grounds() || self.inputs.grounds.is_some()
    }

    /// Reads past the caches what the gang is to be given up, ended or refused for.
    pub(super) async fn fetch_grounds(&mut self, workload: &Workload) -> Result<(), Error> {
        if !self.needs_grounds() {
            return Ok(());
        }
        // What changes from now on may allow a gang that is refused.
        self.inputs.causes = Some(self.context.causes_of_refusal(workload));
        let read =
            Box::pin(Grounds::read(self.context, &self.identity.check, &self.identity.namespace)).await;
        self.inputs.grounds = Some(match read {
            // Nodes are not held for what cannot be read.
            Err(error) if self.journal.state == State::Provisioning && self.is_overdue(workload) => {
                tracing::warn!(workload = self.identity.workload_ref(), error = %error.in_full(), "ended by what the caches show");
                Grounds::cached(self.context, workload)
            }
            read => read?,
        });
        self.settle_policy(workload);
        Ok(())
    }

    /// Whether its plan gives the gang up, ends its attempt, or passes over a NodePool for having been edited too long ago.
    fn needs_grounds(&self) -> bool {
        let Some(plan) = &self.plan else { return false };
        match (&self.journal.state, plan) {
            (State::Validating, Outcome::Provision(_)) => self.passes_over_edited(),
            (State::Provisioning, Outcome::Provision(plan)) => !self.journal.is_begun_with(plan),
            (State::Validating | State::Provisioning, _) => true,
            (State::Approved { .. }, Outcome::NothingNeeded(_)) => false,
            (State::Approved { nodes }, _) => *nodes == Nodes::Unneeded,
            _ => false,
        }
    }

    /// Whether the attempt's time is over.
    fn is_overdue(&self, workload: &Workload) -> bool {
        Attempt::of(&self.journal, &self.snapshot(&self.parts(workload))).has_expired()
    }

    /// Whether NodePools that were edited, and not seen by Karpenter since, are not waited for any more.
    fn passes_over_edited(&self) -> bool {
        if self.patience().is_none_or(|until| until > self.context.now()) {
            return false;
        }
        let tiers = &self.judgement.policy.tiers;
        // A tier that names no NodePool takes any.
        let comes_into_question = |pool: &NodePool| {
            tiers.is_empty()
                || tiers
                    .iter()
                    .any(|tier| tier.node_pool_name.as_ref().is_none_or(|name| *name == pool.name_any()))
        };
        let pools = self.context.stores.plan.pools.state();
        pools.iter().any(|pool| pool.is_unseen() && comes_into_question(pool))
    }

    pub(super) async fn fetch_pool_claims(&mut self, workload: &Workload) -> Result<(), Error> {
        let planning = matches!(self.journal.state, State::Validating | State::Provisioning);
        let accepted = self.context.of_gangs.ledger.open().accepted(&self.id).is_some();
        if planning && !accepted && self.inputs.pool_claims.is_empty() {
            let pools = plans::pools_to_read(self.context, &self.judgement.policy);
            if !pools.is_empty() {
                let read = async { claims::of_pools(self.client, &pools).await.map(Arc::from) };
                self.inputs.pool_claims = self.context.pool_claims.read(pools.clone(), read).await?;
            }
            // A bound counts nodes once that the gang takes over.
            if !pools.is_empty() || inflight::counts_by_queue(self.context) {
                self.fetch_warm(workload).await?;
            }
        }
        Ok(())
    }
}

/// What of these offerings ran out, and until when that is remembered; empty if nothing of them is.
fn what_is_short(wanted: &BTreeSet<Offering>, shortages: &[Shortage]) -> String {
    let is_wanted = |short: &&Shortage| {
        let short = BTreeSet::from([short.offering.clone()]);
        wanted.iter().any(|offering| offering.is_in(&short))
    };
    let those: Vec<&Shortage> = shortages.iter().filter(is_wanted).collect();
    let Some(until) = those.iter().map(|s| s.until).min() else { return String::new() };
    let reported: Vec<String> = those.iter().take(TOLD).map(|s| s.offering.to_string()).collect();
    let more = those.len().saturating_sub(TOLD);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let who = if those.iter().all(|s| s.source == ShortageSource::Karpenter) {
        "by Karpenter's metrics "
    } else {
        ""
    };
    format!(
        ": {who}{}{more} ran out lately, and is not asked for until {}",
        reported.join(", "),
        to_the_second(until)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_ran_out_is_named_with_the_first_time_at_which_it_is_asked_for_again() {
        let of = |pool: &str| {
            let spot = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot"]}]);
            Offering::among(pool, &serde_json::from_value::<Vec<_>>(spot).unwrap(), &[])
        };
        let short = |pool: &str, until: &str| {
            let offering = of(pool).pop_first().unwrap();
            Shortage { offering, until: until.parse().unwrap(), source: ShortageSource::Launch, turn: None }
        };
        let all = [short("gpu", "2026-11-21T10:15:02Z"), short("other", "2026-11-21T10:14:00Z")];
        assert_eq!(
            what_is_short(&of("gpu"), &all),
            ": NodePool gpu (spot capacity in any zone) ran out lately, and is not asked for until 2026-11-21T10:15:02Z"
        );
        assert_eq!(what_is_short(&of("gpu"), &all[1..]), "");
    }
}
