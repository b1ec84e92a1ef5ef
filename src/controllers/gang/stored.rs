//! The journal of a gang while it is reconciled: as it is stored, as the steps have left it, and what of it is not reported yet.

use super::scope::GangScope;
use crate::api::Workload;
use crate::effects::journal::Entry;
use crate::gang::initial_journal::{has_possible_slots, initial_journal, substitute_journal};
use crate::gang::journal::JournalError;
use crate::gang::{Journal, Reservation, StateName, verdict};
use crate::names;
use crate::plan::Plan;
use crate::plan::passed_over::PassedOver;
use kube::ResourceExt;
use std::sync::Arc;

/// A journal, and how it is stored.
pub(super) struct StoredJournal {
    pub journal: Journal,
    /// The annotation as last read or written.
    text: Option<String>,
    /// The number of its last transition.
    seq: u64,
    /// The option index in the journal as read.
    written_index: u32,
    /// The option index that this replica knows.
    own_index: u32,
    /// Whether the Workload has no journal of this gang that can be used.
    pub fresh: bool,
    /// Committed transitions that are not reported yet: the journal before and after each.
    unreported: Vec<(Journal, Journal)>,
    /// What is reported about the plan of the attempt.
    pub accepted: PlanNotes,
}

/// What is reported about an accepted plan. Only this plan has the gates' warnings: gates are not asked again about it.
#[derive(Debug, Default)]
pub(super) struct PlanNotes {
    /// The plan's drawbacks.
    pub drawbacks: Vec<String>,
    /// NodePools that provide none of its nodes.
    pub passed_over: Arc<Vec<PassedOver>>,
}

impl StoredJournal {
    /// The journal to start with, for a gang with or without claims; `None` if there is nothing to do.
    ///
    /// # Errors
    /// A newer release wrote the journal.
    pub(super) fn open(
        scope: &GangScope<'_>,
        workload: &Workload,
        claims: &[crate::api::NodeClaim],
    ) -> Result<Option<Self>, JournalError> {
        let (now, check) = (scope.now(), scope.identity.check.as_str());
        let text = workload.annotations().get(&names::journal_key(check)).cloned();
        let created = workload.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0);
        let read = match text.as_deref().map(|text| Journal::decode(text, &scope.identity.uid, created, now))
        {
            Some(Err(error @ JournalError::Newer(_))) => return Err(error),
            Some(Err(error)) => {
                tracing::warn!(workload = scope.identity.workload_ref(), check, error = %error, "ignored an unreadable journal, rebuilding from the cluster");
                None
            }
            Some(Ok(journal)) => {
                Some(journal).filter(|journal| has_possible_slots(journal, workload, claims))
            }
            None => None,
        };
        let reservation = Reservation::of(workload, check);
        let is_held_back =
            workload.check(check).is_some_and(|reported| verdict::is_held_back(&reservation, reported.state));
        let is_awaited = !claims.is_empty() || is_held_back;
        let Some((mut journal, fresh)) =
            initial_journal(read, &scope.identity.uid, reservation, is_awaited, now)
        else {
            return Ok(None);
        };
        // Tenants can write the journal, so it does not decide which tier to buy from.
        let own_index =
            scope.context.of_gangs.ledger.open().option(&scope.id).map_or(0, |option| option.index);
        let written_index = std::mem::replace(&mut journal.memory.option.index, own_index);
        let (seq, unreported, accepted) = (journal.seq, Vec::new(), PlanNotes::default());
        Ok(Some(Self { journal, text, seq, written_index, own_index, fresh, unreported, accepted }))
    }

    /// The annotation as last read or written.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Starts over without a journal: the one that was read cannot be the gang's.
    pub(super) fn rebuild(&mut self, scope: &GangScope<'_>, workload: &Workload) {
        let reservation = Reservation::of(workload, &scope.identity.check);
        (self.fresh, self.seq) = (true, 0);
        self.journal = substitute_journal(&scope.identity.uid, reservation, scope.now());
    }

    /// Adopts the journal of a step that was taken by this plan.
    pub(super) fn adopt(&mut self, next: Journal, scope: &GangScope<'_>, plan: Option<&Plan>) {
        let before = std::mem::replace(&mut self.journal, next);
        let stepped = self.journal.seq != before.seq;
        if stepped {
            if let (StateName::Provisioning, Some(plan)) = (self.journal.state.name(), plan) {
                let passed_over = Arc::clone(&plan.passed_over);
                self.accepted = PlanNotes { drawbacks: plan.notes.clone(), passed_over };
            }
            self.journal.sign(&scope.context.telemetry.instance);
        }
        if stepped || self.journal.memory.admission != before.memory.admission {
            self.unreported.push((before, self.journal.clone()));
        }
    }

    /// The journal's text, if it is to be written.
    pub(super) fn unsaved(&self) -> Option<String> {
        let text = self.journal.encode();
        (self.journal.is_stored() && !self.is_stored(&text)).then_some(text)
    }

    /// Whether the Workload already has this journal, apart from the option index. Each replica uses its own index, so
    /// two replicas that both believe they lead would overwrite each other forever.
    fn is_stored(&self, text: &str) -> bool {
        let is_same_but_for_index = || {
            let mut journal = self.journal.clone();
            journal.memory.option.index = self.written_index;
            self.text() == Some(&journal.encode())
        };
        self.text() == Some(text)
            || (self.written_index != self.own_index
                && self.journal.memory.option.index == self.own_index
                && is_same_but_for_index())
    }

    /// What to write.
    pub(super) fn entry<'e>(&'e self, check: &'e str, journal: &'e str, headline: &'e str) -> Entry<'e> {
        Entry { check, old: self.text(), journal, headline, guard: self.journal.guard(self.seq) }
    }

    /// Records that this text was written.
    pub(super) fn saved(&mut self, text: String) {
        (self.text, self.seq) = (Some(text), self.journal.seq);
        self.fresh = false;
    }

    /// Takes the transitions that are not reported yet.
    pub(super) fn take_unreported(&mut self) -> Vec<(Journal, Journal)> {
        std::mem::take(&mut self.unreported)
    }
}
