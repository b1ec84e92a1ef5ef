//! The journal of a gang during a reconcile: as it is stored, as the steps have left it, and which transitions are not reported yet.
//!
//! Rule: the controller writes what [`StoredJournal::unsaved`] gives, and says with [`StoredJournal::saved`] that it did.

use super::journal_load::{LoadedGang, load};
use crate::api::{NodeClaim, Workload};
use crate::gang::identity::GangIdentity;
use crate::gang::statechart::journal::{Journal, JournalError};
use crate::gang::statechart::state::StateName;
use crate::names;
use crate::plan::Plan;
use crate::plan::passed_over::PassedOver;
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::sync::Arc;

/// A journal, and how it is stored.
#[derive(Debug)]
pub struct StoredJournal {
    /// The gang as the steps have left it.
    pub loaded: LoadedGang,
    /// The annotation as last read or written.
    text: Option<String>,
    /// The number of its last transition.
    seq: u64,
    /// The option index in the journal as read.
    written_index: u32,
    /// The option index that this replica knows.
    own_index: u32,
    /// Committed transitions that are not reported yet: the journal before and after each.
    unreported: Vec<(Journal, Journal)>,
    /// Notes to report about the plan of the attempt.
    pub accepted: PlanNotes,
}

/// Notes to report about an accepted plan. Only this plan has the gates' warnings: gates are not asked again about it.
#[derive(Debug, Default)]
pub struct PlanNotes {
    /// The plan's drawbacks.
    pub drawbacks: Vec<String>,
    /// NodePools that provide none of its nodes.
    pub passed_over: Arc<Vec<PassedOver>>,
}

impl StoredJournal {
    /// The journal to start with, for a gang with these claims; `None` if there is nothing to do. The second value is why the
    /// stored journal is ignored, if it cannot be read.
    ///
    /// Tenants can write the journal, so it does not decide which tier to buy from. `own_index`, which this replica knows, does.
    ///
    /// # Errors
    /// A newer release wrote the journal.
    pub fn load(
        workload: &Workload,
        identity: &GangIdentity,
        claims: &[Arc<NodeClaim>],
        own_index: u32,
        now: Timestamp,
    ) -> Result<(Option<Self>, Option<JournalError>), JournalError> {
        let result = load(workload, identity, claims, now)?;
        let text = || workload.annotations().get(&names::journal_key(&identity.check)).cloned();
        let stored = result.gang.map(|loaded| Self::of(loaded, text(), own_index));
        Ok((stored, result.unreadable))
    }

    fn of(mut loaded: LoadedGang, text: Option<String>, own_index: u32) -> Self {
        let written_index = std::mem::replace(&mut loaded.journal.memory.option.index, own_index);
        let (seq, unreported, accepted) = (loaded.journal.seq, Vec::new(), PlanNotes::default());
        Self { loaded, text, seq, written_index, own_index, unreported, accepted }
    }

    /// The annotation as last read or written.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// The number of the last transition that is stored.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Starts over if claims from a quorum read contradict the journal that was read.
    pub fn verify(
        &mut self,
        workload: &Workload,
        identity: &GangIdentity,
        claims: &[Arc<NodeClaim>],
        now: Timestamp,
    ) {
        if self.loaded.verify(workload, identity, claims, now) {
            self.seq = 0;
        }
    }

    /// Adopts the journal of a step that this replica took by this plan.
    pub fn adopt(&mut self, next: Journal, replica: &str, plan: Option<&Plan>) {
        let journal = &mut self.loaded.journal;
        let before = std::mem::replace(journal, next);
        let stepped = journal.seq != before.seq;
        if stepped {
            if let (StateName::Provisioning, Some(plan)) = (journal.state.name(), plan) {
                let passed_over = Arc::clone(&plan.passed_over);
                self.accepted = PlanNotes { drawbacks: plan.notes.clone(), passed_over };
            }
            journal.sign(replica);
        }
        if stepped || journal.memory.admission != before.memory.admission {
            self.unreported.push((before, journal.clone()));
        }
    }

    /// The journal's text, if it is to be written.
    pub fn unsaved(&self) -> Option<String> {
        let text = self.loaded.journal.encode();
        (self.loaded.journal.is_worth_storing() && !self.is_stored(&text)).then_some(text)
    }

    /// Whether the Workload already has this journal, apart from the option index. Each replica uses its own index, so
    /// two replicas that both believe they lead would overwrite each other forever.
    fn is_stored(&self, text: &str) -> bool {
        let is_same_but_for_index = || {
            let mut journal = self.loaded.journal.clone();
            journal.memory.option.index = self.written_index;
            self.text() == Some(&journal.encode())
        };
        self.text() == Some(text)
            || (self.written_index != self.own_index
                && self.loaded.journal.memory.option.index == self.own_index
                && is_same_but_for_index())
    }

    /// Records that this text was written.
    pub fn saved(&mut self, text: String) {
        (self.text, self.seq) = (Some(text), self.loaded.journal.seq);
        self.loaded.is_substitute = false;
    }

    /// Takes the transitions that are not reported yet.
    pub fn take_unreported(&mut self) -> Vec<(Journal, Journal)> {
        std::mem::take(&mut self.unreported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::event::{ProgressReason, Reason};
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::gang::statechart::state::State;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn journal() -> Journal {
        Journal::new("u", AdmissionId("1-0-a".into()), NOW, None)
    }

    /// A gang whose annotation has this option index, at a replica that knows another.
    fn read(written_index: u32, own_index: u32) -> StoredJournal {
        let mut journal = journal();
        journal.memory.option.index = written_index;
        let text = journal.encode();
        StoredJournal::of(LoadedGang { journal, is_substitute: false }, Some(text), own_index)
    }

    #[test]
    fn a_replica_prefers_its_own_option_without_rewriting_the_journal() {
        let mut stored = read(3, 1);
        assert_eq!(stored.loaded.journal.memory.option.index, 1);
        assert_eq!(stored.unsaved(), None);
        let mut next = stored.loaded.journal.clone();
        next.memory.option.index = 2;
        stored.adopt(next, "replica", None);
        let text = stored.unsaved().unwrap();
        stored.saved(text.clone());
        assert_eq!((stored.text(), stored.unsaved()), (Some(text.as_str()), None));
    }

    #[test]
    fn each_transition_is_signed_and_reported_once() {
        let mut stored = read(0, 0);
        let before = stored.loaded.journal.clone();
        stored.adopt(before.clone(), "replica", None);
        assert!(stored.take_unreported().is_empty(), "nothing has changed");
        let mut next = before.clone();
        next.record(State::Provisioning, Reason::Progress(ProgressReason::Reserved), NOW);
        stored.adopt(next, "replica", None);
        let steps = stored.take_unreported();
        assert_eq!(steps.iter().map(|(from, to)| (from.seq, to.seq)).collect::<Vec<_>>(), [(0, 1)]);
        assert_eq!(steps[0].1.history[0].by, "replica");
        assert_eq!((stored.seq(), stored.take_unreported()), (0, vec![]), "it is not written yet");
    }
}
