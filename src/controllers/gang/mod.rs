//! Drives one gang until nothing moves: read → plan → step → commit → act → report. `gang::step::reconcile` of the core decides the order.
//!
//! Each part of [`Gang`] is one value. A step reads all of them and returns what changes, or changes one of them.
//!
//! Rule: the journal is durable before its effects run. A failed journal write holds up creates, and deletes only while
//! quota is reserved. Decisions that rest on absence need a quorum read.

mod act;
mod live_reads;
mod open;
mod planning;
mod pod_check;
mod quorum_read;
mod reconciled;
mod replay_reports;
mod report;
mod scope;
mod snapshot;
mod transitions;
mod warm;

use super::plans;
use crate::api::Workload;
use crate::effects::journal::{self as journal_write, Entry};
use crate::error::Error;
use crate::gang::ledger::Ledger;
use crate::gang::ledger::refused::Causes;
use crate::gang::snapshot::loss::Loss;
use crate::gang::snapshot::observed::Observed;
use crate::gang::step::consequences::{Consequences, LedgerChange, OptionChange};
use crate::gang::step::reconcile::{Next, STEPS};
use crate::gang::workload::stored::StoredJournal;
use crate::gang::{Commit, EffectivePolicy, Journal, Refusal, Step, report::message, step};
use crate::plan::{Outcome, Plan, PlanChange};
use crate::telemetry::traces::own;
use live_reads::OwnedLiveReads;
use open::judge;
pub use reconciled::{LeftAlone, Reconciled};
use scope::GangScope;
use std::collections::BTreeMap;
use transitions::Transitions;

/// One gang while it is reconciled.
pub struct Gang<'a> {
    scope: GangScope<'a>,
    /// Its journal. Only a step changes its state.
    stored: StoredJournal,
    /// The data read about it.
    observed: Observed,
    /// The policy that it is judged by.
    effective: EffectivePolicy,
    /// Inputs of its plan, besides the stores.
    live_reads: OwnedLiveReads,
    /// The basis of the last step.
    planned: Planned,
    /// The changes of the ledger that rest on a journal which is not written yet.
    unwritten: Unwritten,
}

/// Changes of the ledger by steps whose journal is not written yet.
#[derive(Default)]
struct Unwritten {
    /// The change of the option to record once it is written.
    option: OptionChange,
    /// Whether a plan was entered, which is removed if the journal cannot be written.
    is_entered: bool,
}

/// The basis of a step, besides what was observed.
#[derive(Default)]
struct Planned {
    /// The plan, if the state needs one.
    outcome: Option<Outcome>,
    /// The refusal that stands.
    refusal: Option<Refusal>,
    /// Whether the plan passes over a NodePool whose last edit Karpenter has not seen.
    passes_over_edited: bool,
    /// Whether other gangs have given back as many nodes as this gang needs, since it ran short of capacity.
    capacity_back: bool,
}

impl Planned {
    fn plan(&self) -> Option<&Plan> {
        self.outcome.as_ref()?.plan()
    }
}

impl Gang<'_> {
    /// Drives the gang as far as it can go, and returns what to report to Kueue.
    pub async fn reconcile(mut self, workload: &mut Workload) -> Result<Reconciled, Error> {
        own::link(&self.scope.id, &self.journal().trace_context());
        let before = self.replay_reports(workload);
        // A failure to mark Nodes must not hold up the gang's deadlines. Such Nodes count as not ready.
        let marked = warm::mark_nodes(&self.scope, &self.stored.loaded.journal, &mut self.observed).await;
        let seq = self.journal().seq;
        if self.pod_listing(workload).is_due() {
            self.read_quorum(workload).await?;
            self.observed.pods_listed = Some(self.scope.now());
        }
        for _ in 0..STEPS {
            let refused_by = self.refused_by(workload);
            let (state, policy) = (&self.stored.loaded.journal.state, &self.effective.policy);
            self.live_reads.read_claims(&self.scope, state, policy, workload).await?;
            self.live_reads.read_storage(&self.scope, state, workload, refused_by).await?;
            let step = self.step(workload, refused_by);
            match Next::after(step, self.observed.freshness) {
                Next::ReadGang => self.read_quorum(workload).await?,
                Next::ReadPlanObjects => self.read_plan_objects(workload).await?,
                Next::Step => {}
                Next::Commit(effects) => self.commit_and_act(workload, effects).await?,
                Next::Report => break,
            }
        }
        self.commit(workload).await?;
        if self.journal().seq == seq {
            marked?;
        }
        self.observed.pod_check = self.check_pods(workload).await;
        Ok(self.report(workload, before))
    }

    fn journal(&self) -> &Journal {
        &self.stored.loaded.journal
    }

    /// Plans, takes one step and updates the ledger, all under the ledger's lock.
    fn step(&mut self, workload: &Workload, refused_by: Option<Causes>) -> Step {
        self.effective = judge(&self.scope, self.journal(), &self.observed.claims, workload);
        let mut ledger = tracing::info_span!(target: own::TARGET, "wait for the ledger")
            .in_scope(|| self.scope.context.gang_state.ledger());
        // The end of the wait is in the journal by now. If it were forgotten before, a failed write would start the wait anew.
        if !self.journal().state.awaits_next_try() {
            ledger.capacity_returns.forget(&self.scope.id);
        }
        self.planned = tracing::info_span!(target: own::TARGET, "plan")
            .in_scope(|| self.plan(workload, refused_by, &mut ledger));
        let parts = self.parts(workload);
        let snapshot = self.snapshot(&parts, workload);
        let taken = step(self.journal(), &snapshot);
        match &taken {
            Step::NeedsQuorumRead | Step::NeedsPlanRead => return taken,
            Step::Moved(moved) => {
                let follows = Consequences::of(self.journal(), moved, &snapshot);
                self.follow(&follows, workload, &parts.losses, &mut ledger);
            }
            Step::Still => {}
        }
        let freed = self.enter(workload, &mut ledger);
        drop(ledger);
        if freed {
            self.scope.context.plans_may_change(PlanChange::Other);
        }
        taken
    }

    /// Adopts the journal of a step, and updates the ledger.
    fn follow(
        &mut self,
        follows: &Consequences<'_>,
        workload: &Workload,
        losses: &BTreeMap<u32, Loss>,
        ledger: &mut Ledger,
    ) {
        let (now, id) = (self.scope.now(), &self.scope.id);
        if follows.lacks_terms {
            tracing::warn!(
                workload = self.scope.identity.workload_ref(),
                "readiness asks for more than a journal takes: another replica would judge this attempt by the policy of that time"
            );
        }
        let replica = &self.scope.context.telemetry.instance;
        self.stored.adopt(follows.journal.clone(), replica, self.planned.plan());
        if follows.option != OptionChange::Unchanged {
            self.unwritten.option = follows.option;
        }
        if follows.is_elsewhere {
            ledger.remove(id);
            self.planned.outcome = None;
        }
        if let (Some(causes), Some(until)) = (self.live_reads.causes, follows.refused_until) {
            ledger.refused.refuse(id, workload, causes, (now, until));
        }
        if let Some(failure) = follows.failure {
            ledger.note_shortage(self.exhausted(failure, losses), now);
        }
        if follows.awaits_nodes {
            ledger.await_nodes(id, workload);
        }
    }

    /// Enters the plan that is being carried out, or removes one that is not. Returns whether others may have their turn.
    fn enter(&mut self, workload: &Workload, ledger: &mut Ledger) -> bool {
        let id = &self.scope.id;
        match LedgerChange::of(&self.journal().state, self.planned.plan()) {
            LedgerChange::Enter(plan) => {
                if !ledger.is_entered(id) {
                    let domain = plans::shared_domain(self.scope.context, &self.request(workload));
                    ledger.enter(id, &workload.local_queue(), domain, plan, self.scope.now());
                    self.unwritten.is_entered = true;
                }
                ledger.note_reentered(id)
            }
            LedgerChange::Keep => false,
            LedgerChange::Complete => ledger.note_reentered(id),
            LedgerChange::Remove => ledger.remove(id),
        }
    }

    /// Records which option the gang has reached: its journal is written.
    fn confirm_ledger(&mut self) {
        let option = match std::mem::take(&mut self.unwritten).option {
            OptionChange::Unchanged => return,
            OptionChange::Reached(option) => Some(option),
            OptionChange::Forgotten => None,
        };
        self.scope.context.gang_state.ledger().note_option(&self.scope.id, option);
    }

    /// Takes back what steps changed in the ledger: their journal could not be written, and the gang decides again from the last one.
    fn revert_ledger(&mut self) {
        let context = self.scope.context;
        let entered = std::mem::take(&mut self.unwritten).is_entered;
        if entered && context.gang_state.ledger().remove(&self.scope.id) {
            context.plans_may_change(PlanChange::Other);
        }
    }

    /// The entry to write, with this text of the journal and this line for users.
    fn entry_of<'e>(&'e self, journal: &'e str, headline: &'e str) -> Entry<'e> {
        let precondition = self.journal().precondition(self.stored.seq());
        Entry { check: &self.scope.identity.check, old: self.stored.text(), journal, headline, precondition }
    }

    /// Writes the journal if it changed, and reports its transitions.
    async fn commit(&mut self, workload: &mut Workload) -> Result<Commit, Error> {
        let Some(text) = self.stored.unsaved() else {
            self.confirm_ledger();
            return Ok(Commit::Unneeded);
        };
        let sentence =
            message::check_message(self.journal(), &self.snapshot(&self.parts(workload), workload));
        let headline = message::headline(self.journal(), &sentence);
        let entry = self.entry_of(&text, &headline);
        let written = journal_write::commit(self.scope.client, workload, &entry).await;
        let steps = self.stored.take_unreported();
        match written {
            Ok(written) => *workload = written,
            Err(error) => {
                self.revert_ledger();
                self.keep_unreported(workload, steps, text, sentence);
                return Err(error);
            }
        }
        self.scope.context.gang_state.registry.wrote(workload);
        self.stored.saved(text);
        self.confirm_ledger();
        let (claims, plan) = (self.observed.claims.as_slice(), self.planned.outcome.as_ref());
        self.report_transitions(workload, &Transitions { steps, sentence, claims, plan });
        Ok(Commit::Written)
    }
}
