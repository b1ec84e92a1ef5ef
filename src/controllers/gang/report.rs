//! Tells of a gang: logs, metrics and events for what was committed, the verdict for Kueue.

use super::{Gang, Looked};
use crate::api::Workload;
use crate::api::workload::PodSetUpdate;
use crate::controllers::board::BoardEntry;
use crate::controllers::ledger::LedgerPages;
use crate::controllers::plans;
use crate::gang::journal::Step;
use crate::gang::observe::wake_at;
use crate::gang::{Explanation, Reservation, StateName, verdict};
use crate::names;
use crate::plan::gates::{Answer, Gate};
use crate::plan::{Obstacle, ObstacleReason, Outcome};
use crate::telemetry::{events, metrics};
use jiff::Timestamp;
use std::time::Duration;

impl Gang<'_> {
    /// Logs, counts and publishes what was committed.
    pub(super) fn tell(&mut self, workload: &Workload, headline: &str) {
        let mut since = None;
        for journal in std::mem::take(&mut self.untold) {
            let Some(Step { from, to, at, reason, .. }) = journal.history.last() else {
                continue;
            };
            let stayed = since.replace(*at).map_or(Duration::ZERO, |s| elapsed(s, *at));
            metrics::transition(*from, *to, reason.to_string(), stayed);
            let failure = journal.memory.last_failure.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::info!(
                workload = self.identity.workload_ref(), check = self.identity.check, seq = journal.seq, from = %from,
                to = %to, reason = %reason, attempt = journal.memory.attempt, slots = journal.memory.slots,
                last_failure = failure, "a gang moved on"
            );
            if *to == StateName::Provisioning
                && let Some(Outcome::Provision(plan)) = &self.plan
            {
                for note in &plan.notes {
                    tracing::warn!(workload = self.identity.workload_ref(), note, "a plan has a drawback");
                }
            }
            let text = headline.split_once(": ").map_or(headline, |(_, text)| text);
            events::publish(&self.context.recorder, workload, &journal, text);
        }
    }

    /// Counts what the gates say of this gang, each time that it is something else.
    pub(super) fn count_gates(&self, workload: &Workload, pages: &mut LedgerPages) {
        let queue = workload.admission().map_or("", |a| a.cluster_queue.as_str());
        match &self.plan {
            Some(Outcome::Provision(plan)) if self.claims.is_empty() => {
                pages.note_obstacle(&self.id, None);
                for report in &plan.reports {
                    let result = if report.answer == Answer::Warn { "warned" } else { "allowed" };
                    metrics::gate(report.gate, &report.subject, result);
                }
            }
            Some(Outcome::Wait(obstacle) | Outcome::Refuse(obstacle))
                if pages.note_obstacle(&self.id, Some(obstacle.reason)) =>
            {
                match &obstacle.gate {
                    Some((gate, subject)) => metrics::gate(*gate, subject, "closed"),
                    None if obstacle.reason == ObstacleReason::QueueUnknown => {
                        metrics::gate(Gate::Quota, queue, "unknown");
                    }
                    None => {}
                }
            }
            _ => {}
        }
    }

    /// What Kueue and the board are to be told.
    pub(super) fn report(&self, workload: &Workload, before: StateName) -> Looked {
        let now = self.context.now();
        let reservation = Reservation::of(workload, &self.identity.check);
        let (views, losses) = (self.views(now), self.losses(now));
        let facts = self.facts(now, &reservation, &views, &losses);
        let state = self.journal.state.name();
        let explanation = Explanation::of(&self.journal, &facts, &self.claims);
        let entry = BoardEntry::new(&self.id, workload, &self.identity.check, &self.journal, explanation);
        self.context.board().note(entry);
        let approved = state == StateName::Approved && before != StateName::Approved;
        if approved {
            self.count_ready();
        }
        let looked = Looked { entry: None, progress: false, approved, wake: wake_at(&self.journal, &facts) };
        let Some(old) = workload.check(&self.identity.check) else {
            return looked;
        };
        let Some(desired) = verdict::desired(&self.journal, &facts, old, self.updates(workload)) else {
            return looked;
        };
        Looked { progress: desired.is_progress(old), entry: desired.entry(old, now), ..looked }
    }

    fn updates(&self, workload: &Workload) -> Result<Vec<PodSetUpdate>, Obstacle> {
        if self.journal.memory.slots == 0 {
            return Ok(Vec::new());
        }
        plans::updates(self.context, &self.request(workload), self.journal.memory.pinning)
    }

    pub(super) fn count_ready(&self) {
        for claim in &self.claims {
            let created = claim.metadata.creation_timestamp.as_ref().map(|t| t.0);
            if let (Some(created), Some(ready)) = (created, claim.since("Initialized")) {
                metrics::claim_ready(claim.label(names::NODEPOOL), elapsed(created, ready));
            }
        }
    }
}

fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}
