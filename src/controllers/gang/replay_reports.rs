//! Reports committed transitions that were never reported: the reply to the write was lost, or the replica that made it
//! is gone.
//!
//! Rule: a repeated report is identical to the first, so that its receivers drop the duplicate.

use super::Gang;
use super::transitions::Transitions;
use crate::api::Workload;
use crate::controllers::gang_entry::Unanswered;
use crate::gang::statechart::transition::Transition;
use crate::gang::trace::{KnownClaims, spans};
use crate::gang::{Journal, StateName, report::message, report::notice};
use jiff::{SignedDuration, Timestamp};

/// How far back transitions are reported again when a replica first sees a gang, or after a time without a leader: the
/// previous leader may have died before it reported them. Of two equal spans or Events, one is kept.
const REPLAY_WINDOW: SignedDuration = SignedDuration::from_mins(2);

impl Gang<'_> {
    /// Keeps the reports of a journal write without an answer, because it may have succeeded.
    pub(super) fn keep_unreported(
        &self,
        workload: &Workload,
        steps: Vec<(Journal, Journal)>,
        journal: String,
        sentence: String,
    ) {
        if steps.is_empty() {
            return;
        }
        let write = Unanswered {
            journal,
            seq: self.journal().seq,
            sentence,
            steps,
            claims: self.observed.claims.clone(),
            plan: self.planned.outcome.clone(),
        };
        let is_there = || self.scope.is_there(workload);
        self.scope.context.gang_state.registry.keep(&self.scope.id, write, is_there);
    }

    /// Reports what an earlier reconcile or another replica left unreported. Returns the state before that.
    pub(super) fn replay_reports(&self, workload: &Workload) -> StateName {
        let state = self.journal().state.name();
        let known = &self.scope.context.gang_state.registry;
        let Some(write) = known.take_applied(&self.scope.id, self.stored.text(), self.journal().seq) else {
            if !self.stored.loaded.is_substitute && !known.knows(&self.scope.id) {
                self.trace_again(workload);
                self.publish_again(workload);
            }
            return state;
        };
        let Unanswered { steps, sentence, claims, plan, .. } = write;
        let before = steps.first().map_or(state, |(before, _)| before.state.name());
        let (claims, plan) = (claims.as_slice(), plan.as_ref());
        self.report_transitions(workload, &Transitions { steps, sentence, claims, plan });
        before
    }

    /// The time since which transitions may be unreported. Without a leader there were none, however long that was.
    fn unreported_since(&self) -> Timestamp {
        let now = self.scope.now();
        let led = self.scope.context.shards.of(&self.scope.identity.uid).after();
        let last = led.map_or(now, |led| led.min(now));
        last.checked_sub(REPLAY_WINDOW).unwrap_or(last)
    }

    fn trace_again(&self, workload: &Workload) {
        let telemetry = &self.scope.context.telemetry;
        if !telemetry.traces.is_on() {
            return;
        }
        let recent = self.unreported_since();
        let history = &self.journal().history;
        let sent = history.iter().filter(|s| s.at < recent).map(|s| s.seq).max().unwrap_or_default();
        // Claims of a failed attempt may be half gone by now. Those of a successful one still exist.
        let approved = history.last().is_some_and(Transition::approves);
        let claims = if approved {
            KnownClaims::Then(&self.observed.claims)
        } else {
            KnownClaims::Left(&self.observed.claims)
        };
        telemetry.traces.send(spans(self.journal(), claims, &self.scope.subject(workload), sent));
    }

    /// Reports only the last transition, because the text describes the current state.
    fn publish_again(&self, workload: &Workload) {
        let recent = self.unreported_since();
        let Some(step) = self.journal().history.last().filter(|step| step.at >= recent) else { return };
        let sentence =
            message::check_message(self.journal(), &self.snapshot(&self.parts(workload), workload));
        let cost = self.cost(&self.observed.claims, self.planned.outcome.as_ref());
        for notice in notice::of_transition(
            self.journal(),
            self.scope.front_end,
            &sentence,
            &cost,
            &self.stored.accepted.passed_over,
        ) {
            self.scope.publish(workload, self.journal().seq, step.at, &notice);
        }
    }
}
