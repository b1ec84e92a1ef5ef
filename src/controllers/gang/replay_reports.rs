//! Tells of transitions that were committed although nobody heard so: the answer to the write was lost, or the
//! replica that made it is gone.
//!
//! Rule: what is told again is told as before, so that whoever heard it hears nothing new.

use super::Gang;
use crate::api::Workload;
use crate::controllers::registry::Unanswered;
use crate::effects::events::Moment;
use crate::gang::trace::{Claims, spans};
use crate::gang::{StateName, message, notice};
use jiff::{SignedDuration, Timestamp};

/// What happened so long before a replica first sees a gang, or before nobody led, is told again: the replica that should
/// have told it may have died with it. Of two spans, or two Events, that are the same one is kept.
const TOLD_AGAIN: SignedDuration = SignedDuration::from_mins(2);

impl Gang<'_> {
    /// Keeps what is to be told of a journal write that failed: it may have happened all the same.
    pub(super) fn keep_unreported(&mut self, workload: &Workload, journal: String, sentence: String) {
        if self.unreported.is_empty() {
            return;
        }
        let write = Unanswered {
            journal,
            seq: self.journal.seq,
            sentence,
            steps: std::mem::take(&mut self.unreported),
            claims: self.observed.claims.clone(),
            plan: self.plan.clone(),
        };
        self.context.of_gangs.registry.keep(&self.id, write, || self.is_there(workload));
    }

    /// Tells what an earlier reconcile, or another replica, left untold. Returns the state before that.
    pub(super) fn catch_up(&mut self, workload: &Workload) -> StateName {
        let state = self.journal.state.name();
        let seen = &self.context.of_gangs.registry;
        let Some(write) = seen.turned_out(&self.id, self.stored.as_deref(), self.journal.seq) else {
            if !self.fresh && !seen.knows(&self.id) {
                self.trace_again(workload);
                self.publish_again(workload);
            }
            return state;
        };
        let before = write.steps.first().map_or(state, |(before, _)| before.state.name());
        let claims = std::mem::replace(&mut self.observed.claims, write.claims);
        let plan = std::mem::replace(&mut self.plan, write.plan);
        self.unreported = write.steps;
        self.report_transitions(workload, &write.sentence);
        (self.observed.claims, self.plan) = (claims, plan);
        before
    }

    /// Since when transitions may not have been told. While nobody led there were none, however long that was.
    fn untold_since(&self) -> Timestamp {
        let now = self.context.now();
        let led = self.context.shards.of(&self.identity.uid).after();
        let last = led.map_or(now, |led| led.min(now));
        last.checked_sub(TOLD_AGAIN).unwrap_or(last)
    }

    fn trace_again(&self, workload: &Workload) {
        let telemetry = &self.context.telemetry;
        if !telemetry.traces.is_on() {
            return;
        }
        let recent = self.untold_since();
        let history = &self.journal.history;
        let sent = history.iter().filter(|s| s.at < recent).map(|s| s.seq).max().unwrap_or_default();
        // The claims of an attempt that failed may be half gone by now, those of one that succeeded stand.
        let came_up =
            history.last().is_some_and(|s| s.from != StateName::Approved && s.to == StateName::Approved);
        let claims =
            if came_up { Claims::Then(&self.observed.claims) } else { Claims::Left(&self.observed.claims) };
        telemetry.traces.send(spans(&self.journal, claims, &self.subject(workload), sent));
    }

    /// Only of the last transition there are words: they say where the gang is now.
    fn publish_again(&self, workload: &Workload) {
        let recent = self.untold_since();
        let Some(step) = self.journal.history.last().filter(|step| step.at >= recent) else { return };
        let sentence = message::explain(&self.journal, &self.snapshot(&self.parts(workload)));
        let moment = Moment { check: &self.identity.check, seq: self.journal.seq, at: step.at };
        for notice in notice::of_step(&self.journal, &sentence, &self.cost(), &self.accepted.passed_over) {
            self.context.events.publish(workload, moment, &notice);
        }
    }
}
