//! Reports committed transitions: logs, metrics, spans and Events.

use super::Gang;
use crate::api::{NodeClaim, Workload};
use crate::controllers::gang_entry::GangEntry;
use crate::gang::report::notice::Notice;
use crate::gang::statechart::transition::Transition;
use crate::gang::trace::{CutOff, KnownClaims, cut_off, spans};
use crate::gang::{Ending, Journal, StateName, report::notice};
use crate::names;
use crate::plan::Outcome;
use crate::plan::cost::Cost;
use crate::telemetry::metrics::{self, Counted};
use jiff::Timestamp;
use std::sync::Arc;
use std::time::Duration;

/// Committed transitions, with what was known when they were made.
pub(super) struct Transitions<'a> {
    /// The journal before and after each.
    pub steps: Vec<(Journal, Journal)>,
    /// Where the gang was then, for users.
    pub sentence: String,
    pub claims: &'a [Arc<NodeClaim>],
    pub plan: Option<&'a Outcome>,
}

impl Gang<'_> {
    /// Logs, counts, traces and publishes committed transitions.
    pub(super) fn report_transitions(&self, workload: &Workload, all: &Transitions<'_>) {
        // From then on, whoever sees the Workload deleted can report the gang's last state.
        let is_there = self.note(workload, all.plan);
        for (before, after) in &all.steps {
            if is_there {
                self.trace(workload, before, after, all.claims);
            }
            let Some(step) = after.history.last().filter(|_| after.seq != before.seq) else {
                continue;
            };
            self.log(step, after);
            count(step, before, after, all.claims);
            let cost = self.cost(all.claims, all.plan);
            let passed_over = &self.stored.accepted.passed_over;
            let notices =
                notice::of_transition(after, self.scope.front_end, &all.sentence, &cost, passed_over)
                    .into_iter();
            for notice in notices.chain(self.drawbacks(step)) {
                self.scope.publish(workload, after.seq, step.at, &notice);
            }
        }
    }

    /// The cost of the gang's nodes: of its claims, or of its plan while there are none.
    pub(super) fn cost(&self, claims: &[Arc<NodeClaim>], plan: Option<&Outcome>) -> Cost {
        match plan {
            Some(Outcome::Provision(plan)) if claims.is_empty() => (*plan.cost).clone(),
            _ => self.cost_of(claims),
        }
    }

    pub(super) fn cost_of(&self, claims: &[Arc<NodeClaim>]) -> Cost {
        let nodes = claims.iter().map(|claim| (&**claim, 1));
        self.scope.context.cost(&self.effective.policy.budget, nodes)
    }

    fn log(&self, step: &Transition, after: &Journal) {
        let identity = &self.scope.identity;
        let failure = after.memory.last_failure.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(
            workload = identity.workload_ref(), check = identity.check, seq = after.seq, from = %step.from,
            to = %step.to, reason = %step.reason, attempt = after.memory.attempt, slots = after.memory.slots,
            last_failure = failure, "gang changed state"
        );
        let drawbacks = &self.stored.accepted.drawbacks;
        for note in drawbacks.iter().filter(|_| step.to == StateName::Provisioning) {
            tracing::warn!(workload = identity.workload_ref(), note, "a plan has a drawback");
        }
    }

    /// The drawbacks as an Event, once per attempt and not for each replacement.
    fn drawbacks(&self, step: &Transition) -> Option<Notice> {
        let drawbacks = &self.stored.accepted.drawbacks;
        (step.begins() && !drawbacks.is_empty()).then(|| notice::of_drawbacks(drawbacks))
    }

    /// Sends the spans that a transition or a new admission completed.
    fn trace(&self, workload: &Workload, before: &Journal, after: &Journal, claims: &[Arc<NodeClaim>]) {
        let telemetry = &self.scope.context.telemetry;
        if !telemetry.traces.is_on() {
            return;
        }
        let subject = self.scope.subject(workload);
        if before.trace_context() != after.trace_context() {
            let end = CutOff { at: after.trace.since, why: Ending::Superseded, by: &telemetry.instance };
            telemetry.traces.send(cut_off(before, end, KnownClaims::Then(claims), &subject));
        }
        telemetry.traces.send(spans(after, KnownClaims::Then(claims), &subject, before.seq));
    }

    /// Records the gang's state unless its Workload is gone. Returns whether the Workload exists.
    pub(super) fn note(&self, workload: &Workload, plan: Option<&Outcome>) -> bool {
        let lasts = plan.is_some_and(|plan| plan.waits_without_deadline() || plan.is_refused());
        let entry = GangEntry::new(workload, self.journal(), self.scope.subject(workload), lasts);
        self.scope.context.gang_state.registry.note(entry, || self.scope.is_there(workload))
    }
}

fn count(step: &Transition, before: &Journal, after: &Journal, claims: &[Arc<NodeClaim>]) {
    let stayed = elapsed(before.entered_at, step.at);
    let reason = step.reason.to_string();
    metrics::transition(Counted { from: step.from, to: step.to, reason: &reason, stayed });
    if let Some((kind, number)) = after.retry(step, before) {
        metrics::attempt_retried(kind.name(), number);
    }
    // The claims of an earlier attempt were counted when that attempt failed.
    let attempt = before.memory.attempt.to_string();
    let is_new = |claim: &&Arc<NodeClaim>| claim.label(names::ATTEMPT) == attempt && !claim.is_initialized();
    for claim in claims.iter().filter(|_| step.fails_attempt()).filter(is_new) {
        metrics::claim_failed(claim.label(names::NODEPOOL), elapsed(created(claim, step.at), step.at));
    }
}

pub(super) fn created(claim: &NodeClaim, otherwise: Timestamp) -> Timestamp {
    claim.metadata.creation_timestamp.as_ref().map_or(otherwise, |t| t.0)
}

pub(super) fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
