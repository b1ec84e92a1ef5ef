//! Drives one gang until nothing moves: observe → decide → commit → act.
//!
//! Rule: the journal is durable before its effects run. A failed journal write holds up creates, and deletes only while
//! quota is reserved. Decisions that rest on absence need a quorum read.

mod act;
mod elastic_job;
mod judgement;
mod planning;
mod pods;
mod quorum_read;
mod replay_reports;
mod report;
mod view;
mod warm;

use super::context::Context;
use super::ledger::LedgerPages;
use super::plans;
use super::refused::Causes;
use crate::api::Workload;
use crate::api::parameters::Compat;
use crate::api::workload::CheckState;
use crate::effects::requeued::Queueing;
use crate::error::Error;
use crate::gang::identity::pin;
use crate::gang::journal::JournalError;
use crate::gang::loss::Loss;
use crate::gang::open::{is_possible, opened, rebuilt};
use crate::gang::request::{Details, owner_ref};
use crate::gang::{
    Event, Failure, Freshness, GangIdentity, Journal, Moved, PodCheck, Refusal, Reservation, Rules, State,
    Step, step, verdict,
};
use crate::names;
use crate::plan::{Outcome, strategy};
use jiff::Timestamp;
use judgement::Judgement;
use kube::{Client, ResourceExt};
use planning::PlanInputs;
use std::collections::BTreeMap;
use std::time::Duration;
use view::Observed;

/// Upper bound on the steps of one reconcile. A gang needs at most five.
const STEPS: usize = 16;

/// One gang while it is reconciled.
pub struct Gang<'a> {
    context: &'a Context,
    /// Writes only while this replica leads the gang's shard.
    client: &'a Client,
    identity: GangIdentity,
    id: String,
    /// Value of the gang's label on its nodes.
    pin: String,
    /// The Workload that owns the ProvisioningRequest, where the gang is that of one.
    owner: Option<String>,
    our_checks: &'a [String],
    judgement: Judgement,
    journal: Journal,
    /// The annotation as last read or written.
    stored: Option<String>,
    /// The option index in the journal as read, and the one that this replica knows.
    option_index: (u32, u32),
    fresh: bool,
    observed: Observed,
    inputs: PlanInputs,
    /// Committed transitions that are not reported yet: the journal before and after each.
    unreported: Vec<(Journal, Journal)>,
    /// What is reported about the plan of the attempt.
    accepted: report::Accepted,
    /// Why the API server refused a NodeClaim, if it did.
    create_refused: Option<String>,
    /// The current refusal.
    refusal: Option<Refusal>,
    /// Tier of the attempt, for display.
    tier: String,
    plan: Option<Outcome>,
    /// The context's count of turns when the reconcile began.
    turns: u64,
    /// The last check of the gang's pods, once it is admitted.
    pod_check: Option<PodCheck>,
}

/// What a ProvisioningRequest says of its gang besides the state of the check.
#[derive(Debug, Default)]
pub struct InRequest {
    /// Its nodes.
    pub details: Details,
    /// Why the last attempt failed.
    pub failure: Option<Failure>,
}

/// The result of reconciling a gang.
pub struct Reconciled {
    /// The entry to write, if it differs.
    pub entry: Option<CheckState>,
    /// Whether that entry only reports progress.
    pub progress: bool,
    /// What is said of its nodes, and why its last attempt failed, in a ProvisioningRequest.
    pub in_request: InRequest,
    /// Whether Kueue may queue the Workload, judged by this gang alone.
    pub queueing: Queueing,
    /// Whether the gang has at least one slot.
    pub has_nodes: bool,
    /// Whether it has claims, or may still get some.
    pub holds: bool,
    /// When to reconcile again if no change is seen.
    pub net: Duration,
    /// When time alone may change something.
    pub wake: Option<Timestamp>,
}

/// A gang that a newer release manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAlone;

impl<'a> Gang<'a> {
    /// Opens a gang; `None` if there is nothing to do.
    ///
    /// # Errors
    /// A newer release wrote its journal and decides about its nodes.
    pub fn open(
        context: &'a Context,
        workload: &Workload,
        check: &str,
        our_checks: &'a [String],
    ) -> Result<Option<Self>, LeftAlone> {
        let now = context.now();
        let identity = GangIdentity {
            namespace: workload.namespace().unwrap_or_default(),
            workload: workload.name_any(),
            uid: workload.uid().unwrap_or_default(),
            check: check.to_owned(),
        };
        let id = identity.id();
        let stored = workload.annotations().get(&names::journal_key(check)).cloned();
        let created = workload.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let decoded = match &stored {
            None => Ok(None),
            Some(text) => Journal::decode(text, &identity.uid, created, now).map(Some),
        };
        let known = match decoded {
            Ok(known) => known,
            Err(error @ JournalError::Newer(_)) => {
                judgement::warn_of_newer(context, workload, check, &error);
                return Err(LeftAlone);
            }
            Err(error) => {
                tracing::warn!(workload = identity.workload_ref(), check, error = %error, "ignored an unreadable journal, rebuilding from the cluster");
                None
            }
        };
        let claims = view::claims_of(context, &identity, now);
        let known = known.filter(|journal| is_possible(journal, workload, &claims));
        let reservation = Reservation::of(workload, check);
        let is_held_back =
            workload.check(check).is_some_and(|reported| verdict::is_held_back(&reservation, reported.state));
        let is_awaited = !claims.is_empty() || is_held_back;
        let Some((mut journal, fresh)) = opened(known, &identity.uid, reservation, is_awaited, now) else {
            return Ok(None);
        };
        let nodes = view::nodes_of(context, &claims);
        let tier = view::tier_of(&claims);
        // Tenants can write the journal, so it does not decide which tier to buy from.
        let reported = journal.memory.option.index;
        journal.memory.option.index =
            context.of_gangs.ledger.open().option(&id).map_or(0, |option| option.index);
        let option_index = (reported, journal.memory.option.index);
        let observed = Observed { searched: context.board().searched(&id), ..Observed::of(claims, nodes) };
        let mut gang = Self {
            context,
            client: context.client_of(&identity.uid),
            id,
            pin: pin(workload, check),
            owner: owner_ref(workload),
            our_checks,
            judgement: Judgement::default(),
            journal,
            stored,
            fresh,
            observed,
            option_index,
            inputs: PlanInputs::default(),
            unreported: Vec::new(),
            accepted: report::Accepted::default(),
            create_refused: None,
            refusal: None,
            tier,
            plan: None,
            turns: 0,
            pod_check: None,
            identity,
        };
        gang.settle_policy(workload);
        gang.bound_deadline();
        gang.overlook_taints(workload);
        Ok(Some(gang))
    }

    /// Starts over without a journal: the one that was read cannot be ours.
    fn rebuild_journal(&mut self, workload: &Workload) {
        let reservation = Reservation::of(workload, &self.identity.check);
        self.fresh = true;
        self.journal = rebuilt(&self.identity.uid, reservation, self.context.now());
    }

    /// Drives the gang as far as it can go, and returns what to report to Kueue.
    pub async fn reconcile(mut self, workload: &mut Workload) -> Result<Reconciled, Error> {
        self.turns = self.context.turns();
        let before = self.catch_up(workload);
        // A failure to mark Nodes must not hold up the gang's deadlines. Such Nodes count as not ready.
        let marked = self.mark_nodes().await;
        let waiting = self.journal.seq;
        if self.is_to_be_searched_again(workload) {
            self.read_quorum(workload).await?;
            self.observed.searched = Some(self.context.now());
        }
        for _ in 0..STEPS {
            let refused_by = self.refused_by(workload);
            self.fetch_pool_claims(workload).await?;
            self.fetch_storage(workload, refused_by).await?;
            match self.step(workload, refused_by) {
                Step::Still => break,
                Step::NeedsQuorumRead => self.read_quorum(workload).await?,
                Step::Moved(moved) => self.commit_and_act(workload, moved.effects).await?,
            }
        }
        self.commit(workload).await?;
        if self.journal.seq == waiting {
            marked?;
        }
        self.check_pods(workload).await;
        Ok(self.report(workload, before))
    }

    /// Plans, takes one step and updates the ledger, all under the ledger's lock.
    fn step(&mut self, workload: &Workload, refused_by: Option<Causes>) -> Step {
        let context = self.context;
        let now = context.now();
        self.settle_policy(workload);
        let mut pages = context.of_gangs.ledger.open();
        // Only here, where the journal is stored: if the write that ends the wait failed, the wait would start over.
        if !self.journal.state.awaits_next_try() {
            pages.given_back.forget(&self.id);
        }
        self.plan = self.journal.state.needs_plan().then(|| self.make_plan(workload, &mut pages));
        if self.journal.state == State::Validating {
            self.count_gates(workload, &mut pages);
            // An attempt that has begun is carried through, whatever the other checks say by then.
            self.plan = self.plan.take().map(|plan| strategy::timed(plan, &self.request(workload)));
        }
        if !self.rests_on_grounds() {
            self.observed.freshness = Freshness::Cached;
        }
        if matches!(self.plan, Some(Outcome::Provision(_))) {
            pages.refused.forget(&self.id);
        }
        self.refusal = refused_by.and_then(|causes| self.refusal(workload, causes, &mut pages));
        let mut parts = self.parts(workload);
        parts.capacity_back = pages.given_back.is_enough(&self.id);
        let taken = step(&self.journal, &self.snapshot(&parts), self.judgement.by, &self.rules(workload));
        match &taken {
            Step::NeedsQuorumRead => return taken,
            Step::Moved(moved) => self.follow(moved, workload, &parts.losses, &mut pages),
            Step::Still => {}
        }
        let freed = match (&self.journal.state, &self.plan) {
            (State::Provisioning, Some(Outcome::Provision(plan))) => {
                if !pages.is_entered(&self.id) {
                    let settled = plans::settled(context, &self.request(workload));
                    pages.enter(&self.id, &workload.local_queue(), settled, plan, now);
                }
                pages.came_back(&self.id)
            }
            (State::Provisioning, _) => false,
            // All its claims exist.
            (State::WaitingReady, _) => pages.came_back(&self.id),
            _ => pages.strike(&self.id),
        };
        drop(pages);
        if freed {
            context.next_turn();
        }
        taken
    }

    /// Applies a step, and updates the ledger.
    fn follow(
        &mut self,
        moved: &Moved,
        workload: &Workload,
        losses: &BTreeMap<u32, Loss>,
        pages: &mut LedgerPages,
    ) {
        let now = self.context.now();
        let begun = self.journal.state != State::Validating;
        let (option, generation) = (self.journal.memory.option, self.journal.memory.generation);
        self.take(moved.journal.clone());
        let memory = &self.journal.memory;
        let falls = self.journal.is_mixed(&self.judgement.policy) && memory.generation != generation;
        let elsewhere =
            begun && self.journal.state == State::Provisioning && (falls || memory.option != option);
        if moved.cause.is_some() || elsewhere {
            let option = (!self.journal.state.is_over()).then_some(memory.option);
            pages.went_on(&self.id, option);
        }
        if elsewhere {
            // The plan accepted for the previous option does not apply to the next.
            pages.strike(&self.id);
            self.plan = None;
        }
        if let (Some(Event::Refused(_)), Some(causes)) = (&moved.cause, self.inputs.causes) {
            let memory = &self.journal.memory;
            let times = memory.yields.saturating_add(memory.waits);
            let again = now + self.rules(workload).yielding.wait(times).signed();
            let until = self.plan.as_ref().map_or(again, |plan| plan.refused_until(again));
            pages.refused.refuse(&self.id, workload, causes, (now, until));
        }
        if let Some(Event::Failed(failure) | Event::Lost { failure, .. }) = &moved.cause {
            pages.note_shortage(self.exhausted(workload, failure, losses), now);
            // `compat: Setu` never ends back-off early, like the first Setu.
            if failure.reason.counts_as_short() && self.judgement.policy.compat == Compat::None {
                pages.await_nodes(&self.id, workload);
            }
        }
    }

    fn rules(&self, workload: &Workload) -> Rules {
        let jitter = self.identity.jitter(self.journal.memory.attempt);
        Rules::new(&self.judgement.policy, self.context.now(), jitter).of(workload)
    }

    /// Adopts this journal.
    fn take(&mut self, next: Journal) {
        let before = std::mem::replace(&mut self.journal, next);
        let stepped = self.journal.seq != before.seq;
        if stepped {
            self.note_accepted();
            self.journal.sign(&self.context.telemetry.instance);
        }
        let tier = self.journal.memory.option.tier;
        if (stepped || tier != before.memory.option.tier) && self.judgement.fault.is_none() {
            self.journal.name_tier(self.judgement.policy.tier_name(tier));
        }
        self.settle_terms(&before.memory);
        if stepped || self.journal.memory.admission != before.memory.admission {
            self.unreported.push((before, self.journal.clone()));
        }
    }
}
