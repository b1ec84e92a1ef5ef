//! Reports where a gang is at the end of its reconcile: on the board, in Events, and to Kueue.

use super::Gang;
use super::reconciled::{InRequest, Reconciled};
use super::transitions::{created, elapsed};
use crate::api::workload::{CheckState, PodSetUpdate};
use crate::api::{NodeClaim, Workload};
use crate::controllers::board::BoardEntry;
use crate::controllers::plans;
use crate::gang::ledger::Ledger;
use crate::gang::snapshot::expectation::Expectation;
use crate::gang::step::wake::{holds_claims, rests, wake_at};
use crate::gang::workload::queueing::Queueing;
use crate::gang::workload::request::Details;
use crate::gang::{Explanation, Snapshot, StateName, report::message, report::notice, report::verdict};
use crate::names;
use crate::plan::{Obstacle, Outcome};
use crate::telemetry::metrics;
use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// How often a gang is reconciled without a change.
const SAFETY_NET: Duration = Duration::from_mins(1);
/// How often a gang at rest is reconciled without a change. There may be thousands.
const REST_NET: Duration = Duration::from_mins(10);

impl Gang<'_> {
    /// Counts the gates' answers for this gang each time they change.
    pub(super) fn count_gates(&self, outcome: Option<&Outcome>, workload: &Workload, ledger: &mut Ledger) {
        let Some(outcome) = outcome else { return };
        let is_new = outcome.plan().is_some() && self.observed.claims.is_empty();
        let reason = outcome.awaited().map(|obstacle| obstacle.reason);
        if (is_new || reason.is_some()) && ledger.note_answer(&self.scope.id, reason) {
            let queue = workload.admission().map_or("", |a| a.cluster_queue.as_str());
            for (gate, subject, result) in outcome.gate_results(queue) {
                metrics::gate(gate, subject, result);
            }
        }
    }

    /// Updates the board, publishes waits, and returns what to report to Kueue. `before` is the state that the reconcile began
    /// in.
    pub(super) fn report(&self, workload: &Workload, before: StateName) -> Reconciled {
        let parts = self.parts(workload);
        let snapshot = self.snapshot(&parts, workload);
        self.note_on_board(workload, &snapshot);
        self.note(workload, self.planned.outcome.as_ref());
        let registry = &self.scope.context.gang_state.registry;
        registry.note_pods(&self.scope.id, self.observed.pod_check.clone(), self.observed.pods_listed);
        self.expect(workload, &snapshot);
        self.publish_wait(workload, &snapshot);
        let is_approved = self.journal().state.is_approved();
        if is_approved && before != StateName::Approved {
            self.count_ready();
        }
        let claims = self.observed.claims.as_slice();
        let next_check = self.observed.pod_check.as_ref().and_then(|check| check.next);
        let reported = workload.check(&self.scope.identity.check);
        let condition_is_due = Queueing::of(workload).condition_is_due(self.journal(), &snapshot, reported);
        let entry =
            reported.filter(|_| !condition_is_due).and_then(|old| self.entry(workload, &snapshot, old));
        let (entry, progress) = entry.map_or((None, false), |(entry, progress)| (Some(entry), progress));
        Reconciled {
            entry,
            progress,
            in_request: self.in_request(),
            queueing: Queueing::of_gang(self.journal(), &snapshot, condition_is_due),
            has_nodes: self.journal().state.holds_nodes(),
            holds: holds_claims(self.journal(), claims),
            net: if rests(self.journal(), workload, claims) { REST_NET } else { SAFETY_NET },
            wake: wake_at(self.journal(), &snapshot).into_iter().chain(next_check).min(),
        }
    }

    /// Records which events of its NodeClaims the gang waits for.
    fn expect(&self, workload: &Workload, snapshot: &Snapshot<'_>) {
        let expectation = Expectation::of(self.journal(), snapshot, &self.observed.claims);
        if self.scope.context.gang_state.registry.expect(&self.scope.id, expectation) {
            self.scope.context.wake_workload(ObjectRef::from_obj(workload));
        }
    }

    fn note_on_board(&self, workload: &Workload, snapshot: &Snapshot<'_>) {
        let (context, scope) = (self.scope.context, &self.scope);
        let explanation = Explanation::of(self.journal(), snapshot, &self.observed.claims);
        // A gang that runs without nodes waits for nothing, whatever nodes its plan would have now.
        let may_wait = self.journal().state.holds_nodes() || !workload.is_admitted();
        let outcome = self.planned.outcome.as_ref().filter(|_| may_wait);
        let waits_for = outcome.map(Outcome::reasons).unwrap_or_default();
        let known = context.board().waits_for(&scope.id);
        let is_new = !waits_for.is_subset(&known);
        let entry = BoardEntry::new(&scope.id, workload, &scope.identity.check, self.journal(), explanation)
            .waiting_for(waits_for)
            .costing(&self.cost_of(&self.observed.claims));
        context.board().note(entry, || scope.is_there(workload));
        if is_new && context.changes() != scope.changes {
            // No one could know yet what this gang waits for.
            context.wake_workload(ObjectRef::from_obj(workload));
        }
    }

    /// Publishes what the gang waits for, once for each.
    fn publish_wait(&self, workload: &Workload, snapshot: &Snapshot<'_>) {
        let (journal, registry) = (self.journal(), &self.scope.context.gang_state.registry);
        let text = message::check_message(journal, snapshot);
        let unbound = || snapshot.forecast.unbound.map(notice::of_unbound);
        let refused = notice::of_refused(journal, snapshot);
        if let Some(notice) = refused.or_else(|| notice::of_wait(journal, snapshot, &text)).or_else(unbound)
            && registry.note_wait(&self.scope.id, journal.seq, &notice.topic)
        {
            self.scope.publish(workload, journal.seq, snapshot.now, &notice);
        }
    }

    /// The entry of the check to write, if it differs from `old`, and whether it only reports progress.
    fn entry(
        &self,
        workload: &Workload,
        snapshot: &Snapshot<'_>,
        old: &CheckState,
    ) -> Option<(CheckState, bool)> {
        let desired = verdict::desired(self.journal(), snapshot, old, self.updates(workload))?;
        Some((desired.entry(old, snapshot.now)?, desired.is_progress(old)))
    }

    /// Additions to the pods for Kueue to make, if they get nodes of the gang; otherwise empty.
    fn updates(&self, workload: &Workload) -> Result<Vec<PodSetUpdate>, Obstacle> {
        if !self.journal().state.holds_nodes() {
            return Ok(Vec::new());
        }
        let memory = &self.journal().memory;
        let updates = plans::updates(self.scope.context, &self.request(workload), memory)?;
        // The pods of a request get what its ProvisioningRequestConfig says.
        Ok(if self.scope.owner.is_some() { Vec::new() } else { updates })
    }

    fn in_request(&self) -> InRequest {
        if self.scope.owner.is_none() {
            return InRequest::default();
        }
        let memory = &self.journal().memory;
        let details = Details::of_gang(&self.scope.label, memory.slots, self.staying());
        InRequest { details, failure: memory.last_failure.clone() }
    }

    fn count_ready(&self) {
        // The others were counted when they became ready.
        let memory = &self.journal().memory;
        let made = |c: &&NodeClaim| c.generation() == memory.generation && c.taken_over().is_none();
        for claim in self.observed.of_attempt(memory.attempt).filter(made) {
            if let Some(ready) = claim.since("Initialized") {
                let took = elapsed(created(claim, ready), ready);
                metrics::claim_ready(claim.label(names::NODEPOOL), took);
            }
        }
    }
}
