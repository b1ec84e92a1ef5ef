//! Reports on a gang: logs, metrics, spans and Events for committed transitions, and the verdict for Kueue.

use super::{Gang, InRequest, Reconciled};
use crate::api::workload::PodSetUpdate;
use crate::api::{NodeClaim, Workload};
use crate::controllers::board::BoardEntry;
use crate::controllers::ledger::LedgerPages;
use crate::controllers::plans;
use crate::controllers::registry::GangEntry;
use crate::effects::events::Moment;
use crate::effects::requeued::Queueing;
use crate::gang::event::Reason;
use crate::gang::journal::Step;
use crate::gang::notice::Notice;
use crate::gang::request::Details;
use crate::gang::reservation::{Ending, Reservation};
use crate::gang::trace::{Claims, CutOff, Subject, cut_off, spans};
use crate::gang::wake_at;
use crate::gang::{Explanation, Journal, StateName, message, notice, verdict};
use crate::names;
use crate::plan::cost::Cost;
use crate::plan::gates::{Answer, Gate};
use crate::plan::passed_over::PassedOver;
use crate::plan::{Obstacle, ObstacleReason, Outcome};
use crate::telemetry::metrics::{self, Checked, Counted};
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use std::sync::Arc;
use std::time::Duration;

/// How often a gang is reconciled without a change.
const SAFETY_NET: Duration = Duration::from_mins(1);
/// The same for gangs at rest. There may be thousands.
const REST_NET: Duration = Duration::from_mins(10);

/// What is reported about an accepted plan.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// The plan's drawbacks.
    drawbacks: Vec<String>,
    /// NodePools that provide none of its nodes.
    pub(super) passed_over: Arc<Vec<PassedOver>>,
}

impl Gang<'_> {
    /// Logs, counts, traces and publishes the committed transitions.
    pub(super) fn report_transitions(&mut self, workload: &Workload, sentence: &str) {
        // From then on, whoever sees the Workload deleted can report the gang's last state.
        let is_there = self.note(workload);
        for (before, after) in std::mem::take(&mut self.unreported) {
            if is_there {
                self.trace(workload, &before, &after);
            }
            let Some(step) = after.history.last().filter(|_| after.seq != before.seq) else {
                continue;
            };
            self.log(step, &after);
            self.count(step, &before, &after);
            let moment = Moment { check: &self.identity.check, seq: after.seq, at: step.at };
            let reported =
                notice::of_step(&after, sentence, &self.cost(), &self.accepted.passed_over).into_iter();
            for notice in reported.chain(self.drawbacks(step)) {
                self.context.events.publish(workload, moment, &notice);
            }
        }
    }

    /// The cost of the gang's nodes: of its claims, or of its plan while there are none.
    pub(super) fn cost(&self) -> Cost {
        match &self.plan {
            Some(Outcome::Provision(plan)) if self.observed.claims.is_empty() => (*plan.cost).clone(),
            _ => self
                .context
                .cost(&self.judgement.policy.budget, self.observed.claims.iter().map(|claim| (claim, 1))),
        }
    }

    fn log(&self, step: &Step, after: &Journal) {
        let failure = after.memory.last_failure.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(
            workload = self.identity.workload_ref(), check = self.identity.check, seq = after.seq, from = %step.from,
            to = %step.to, reason = %step.reason, attempt = after.memory.attempt, slots = after.memory.slots,
            last_failure = failure, "gang changed state"
        );
        for note in self.accepted.drawbacks.iter().filter(|_| step.to == StateName::Provisioning) {
            tracing::warn!(workload = self.identity.workload_ref(), note, "a plan has a drawback");
        }
    }

    /// Records what is reported about the plan when a step moves to Provisioning. Only this plan has the gates' warnings:
    /// gates are not asked again about an accepted plan.
    pub(super) fn note_accepted(&mut self) {
        if let (StateName::Provisioning, Some(Outcome::Provision(plan))) =
            (self.journal.state.name(), &self.plan)
        {
            self.accepted =
                Accepted { drawbacks: plan.notes.clone(), passed_over: Arc::clone(&plan.passed_over) };
        }
    }

    /// The drawbacks as an Event, once per attempt and not for each replacement.
    fn drawbacks(&self, step: &Step) -> Option<Notice> {
        let begins = (step.from, step.to) == (StateName::Validating, StateName::Provisioning);
        let drawbacks = &self.accepted.drawbacks;
        (begins && !drawbacks.is_empty()).then(|| notice::of_plan(drawbacks))
    }

    fn count(&self, step: &Step, before: &Journal, after: &Journal) {
        let stayed = elapsed(before.entered_at, step.at);
        let reason = step.reason.to_string();
        metrics::transition(Counted { from: step.from, to: step.to, reason: &reason, stayed });
        let memory = &after.memory;
        match (step.from, step.to) {
            (StateName::RollingBack | StateName::Validating, StateName::BackingOff) => {
                metrics::attempt_retried("in_check", memory.tries);
            }
            (_, StateName::Provisioning) if memory.option.index > before.memory.option.index => {
                metrics::attempt_retried("tier", memory.option.index);
            }
            // Part of the gang falls to the next tier that has capacity.
            (StateName::Provisioning | StateName::WaitingReady, StateName::Provisioning) if matches!(step.reason, Reason::Failed(class) if class.is_shortage()) =>
            {
                metrics::attempt_retried("tier", memory.option.index.saturating_add(1));
            }
            (_, StateName::Yielded) => metrics::attempt_retried("yield", memory.yields),
            (StateName::Provisioning | StateName::WaitingReady, StateName::RollingBack) => {
                for claim in self.observed.claims.iter().filter(|c| !c.is("Initialized")) {
                    metrics::claim_failed(
                        claim.label(names::NODEPOOL),
                        elapsed(created(claim, step.at), step.at),
                    );
                }
            }
            _ => {}
        }
    }

    /// Sends the spans that a transition or a new admission completed.
    fn trace(&self, workload: &Workload, before: &Journal, after: &Journal) {
        let telemetry = &self.context.telemetry;
        if !telemetry.traces.is_on() {
            return;
        }
        let subject = self.subject(workload);
        if before.trace_context() != after.trace_context() {
            let end = CutOff { at: after.trace.since, why: Ending::Superseded, by: &telemetry.instance };
            telemetry.traces.send(cut_off(before, end, Claims::Then(&self.observed.claims), &subject));
        }
        telemetry.traces.send(spans(after, Claims::Then(&self.observed.claims), &subject, before.seq));
    }

    /// Records the gang's state unless its Workload is gone. Returns whether the Workload exists.
    fn note(&self, workload: &Workload) -> bool {
        let lasts = match &self.plan {
            Some(Outcome::Wait(obstacle)) => obstacle.reason.has_no_deadline(),
            Some(Outcome::Refuse(_)) => true,
            _ => false,
        };
        let entry = GangEntry::new(workload, &self.journal, self.subject(workload), lasts);
        self.context.of_gangs.registry.note(entry, || self.is_there(workload))
    }

    /// Whether the Workload still exists in the cache.
    pub(super) fn is_there(&self, workload: &Workload) -> bool {
        let known = self.context.stores.workloads.entry(&ObjectRef::from_obj(workload));
        known.is_some_and(|known| known.uid == self.identity.uid)
    }

    pub(super) fn subject(&self, workload: &Workload) -> Subject {
        Subject::of(workload, &self.id, &self.identity.check)
    }

    /// Counts the gates' answers for this gang each time they change.
    pub(super) fn count_gates(&self, workload: &Workload, pages: &mut LedgerPages) {
        let queue = workload.admission().map_or("", |a| a.cluster_queue.as_str());
        match &self.plan {
            Some(Outcome::Provision(plan))
                if self.observed.claims.is_empty() && pages.note_answer(&self.id, None) =>
            {
                for report in &plan.reports {
                    let result = match report.answer {
                        Answer::Warn => Checked::Warned,
                        Answer::Unknown => Checked::Unknown,
                        _ => Checked::Passed,
                    };
                    metrics::gate(report.gate, &report.subject, result);
                }
            }
            Some(outcome @ (Outcome::Wait(obstacle) | Outcome::Refuse(obstacle)))
                if pages.note_answer(&self.id, Some(obstacle.reason)) =>
            {
                let waits = matches!(outcome, Outcome::Wait(_));
                let result = if waits { Checked::Waiting } else { Checked::Refused };
                match &obstacle.gate {
                    Some((gate, subject)) => metrics::gate(*gate, subject, result),
                    None if obstacle.reason == ObstacleReason::QueueUnknown => {
                        metrics::gate(Gate::Quota, queue, Checked::Unknown);
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// Updates the board, publishes waits, and returns what to report to Kueue.
    pub(super) fn report(&self, workload: &Workload, before: StateName) -> Reconciled {
        let parts = self.parts(workload);
        let snapshot = self.snapshot(&parts);
        let state = self.journal.state.name();
        let explanation = Explanation::of(&self.journal, &snapshot, &self.observed.claims);
        let waits = matches!(self.plan, Some(Outcome::Wait(_) | Outcome::Refuse(_)));
        let journal = (&self.journal, waits);
        let entry = BoardEntry::new(&self.id, workload, &self.identity.check, journal, explanation)
            .costing(
                &self
                    .context
                    .cost(&self.judgement.policy.budget, self.observed.claims.iter().map(|claim| (claim, 1))),
            )
            .checked(self.pod_check.clone(), self.observed.searched);
        let is_known_to = self.context.board().waits(&self.id);
        self.context.board().note(entry, || self.is_there(workload));
        if waits && !is_known_to && self.context.turns() != self.turns {
            // No one could know yet that this gang has to be woken.
            self.context.wake_workload(ObjectRef::from_obj(workload));
        }
        self.note(workload);
        let text = message::explain(&self.journal, &snapshot);
        let unbound = || snapshot.outlook.unbound.map(notice::of_unbound);
        if let Some(notice) = notice::of_wait(&self.journal, &snapshot, &text).or_else(unbound)
            && self.context.of_gangs.registry.is_news(&self.id, self.journal.seq, &notice.topic)
        {
            let moment = Moment { check: &self.identity.check, seq: self.journal.seq, at: parts.now };
            self.context.events.publish(workload, moment, &notice);
        }
        if state == StateName::Approved && before != StateName::Approved {
            self.count_ready();
        }
        let holds = !self.journal.state.is_over() || !self.observed.claims.is_empty();
        // A gang that was admitted, or is over without nodes, does not change by itself. A replaced slice may: its nodes
        // may be needed again when the Job grows.
        let runs = workload.is("Admitted") && !workload.is_replaced();
        let rests = if state == StateName::Approved { runs } else { !holds };
        let net = if rests { REST_NET } else { SAFETY_NET };
        let next_check = self.pod_check.as_ref().and_then(|check| check.next);
        let wake = wake_at(&self.journal, &snapshot).into_iter().chain(next_check).min();
        let reported = workload.check(&self.identity.check);
        // The replica that reported this ended before it kept the Workload out.
        let is_unsettled = reported
            .is_some_and(|reported| verdict::comes_back(&self.journal, &snapshot, reported))
            && Queueing::of(workload) == Queueing::Allowed;
        let keeps_out = verdict::keeps_out(&self.journal, &snapshot) && workload.replaces().is_none();
        let result = Reconciled {
            entry: None,
            progress: false,
            in_request: self.in_request(),
            queueing: if keeps_out || is_unsettled { Queueing::KeptOut } else { Queueing::Allowed },
            has_nodes: self.journal.memory.slots > 0,
            holds,
            net,
            wake,
        };
        let Some(old) = reported.filter(|_| !is_unsettled) else {
            return result;
        };
        if self.is_undecided() && matches!(snapshot.reservation, Reservation::Held { .. }) {
            // The verdict under the earlier policy stands until that policy is known again.
            return result;
        }
        let Some(desired) = verdict::desired(&self.journal, &snapshot, old, self.updates(workload)) else {
            return result;
        };
        let desired = desired.of(workload);
        Reconciled { progress: desired.is_progress(old), entry: desired.entry(old, parts.now), ..result }
    }

    fn updates(&self, workload: &Workload) -> Result<Vec<PodSetUpdate>, Obstacle> {
        if self.journal.memory.slots == 0 {
            return Ok(Vec::new());
        }
        let updates = plans::updates(self.context, &self.request(workload), self.journal.memory.pinning)?;
        // The pods of a request get what its ProvisioningRequestConfig says.
        Ok(if self.owner.is_some() { Vec::new() } else { updates })
    }

    fn in_request(&self) -> InRequest {
        if self.owner.is_none() {
            return InRequest::default();
        }
        let mut node_pools: Vec<String> =
            self.staying().map(|claim| claim.label(names::NODEPOOL).to_owned()).collect();
        node_pools.sort();
        node_pools.dedup();
        let details = Details { gang: self.pin.clone(), node_pools, nodes: self.journal.memory.slots };
        InRequest { details, failure: self.journal.memory.last_failure.clone() }
    }

    pub(super) fn count_ready(&self) {
        // The others were counted when they became ready.
        let latest = self.journal.memory.generation;
        let made = |c: &&NodeClaim| c.generation() == latest && c.taken_over().is_none();
        for claim in self.observed.claims.iter().filter(made) {
            if let Some(ready) = claim.since("Initialized") {
                let took = elapsed(created(claim, ready), ready);
                metrics::claim_ready(claim.label(names::NODEPOOL), took);
            }
        }
    }
}

fn created(claim: &NodeClaim, otherwise: Timestamp) -> Timestamp {
    claim.metadata.creation_timestamp.as_ref().map_or(otherwise, |t| t.0)
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
