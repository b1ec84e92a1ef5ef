//! Where a gang is, as last committed, and what of it is still to be reported: the source of spans, Events and gauges.
//!
//! Rule: nothing is decided on it.

use super::board::uid_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::statechart::event::Reason;
use crate::gang::trace::Subject;
use crate::gang::{Ending, Journal};
use crate::plan::Outcome;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The most unanswered journal writes kept of one gang. The newest count: an older one arrives late, if ever.
const UNANSWERED_KEPT: usize = 4;

/// Why gangs are forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgetReason<'k> {
    /// Their Workload is gone.
    Deleted {
        /// Whether it was admitted.
        ran: bool,
    },
    /// Their AdmissionChecks are gone, or no longer ours.
    CheckGone {
        /// The gangs of the Workload's other checks, which are not forgotten.
        kept: &'k BTreeSet<String>,
        /// Whether the Workload is admitted.
        ran: bool,
    },
    /// This replica no longer leads their shard, or begins a new term.
    TermOver,
}

impl ForgetReason<'_> {
    /// How the gangs ended, and whether they may have run; `None` if they go on.
    pub const fn end(self) -> Option<(Ending, bool)> {
        match self {
            Self::Deleted { ran } => Some((Ending::Deleted, ran)),
            Self::CheckGone { ran, .. } => Some((Ending::CheckRemoved, ran)),
            Self::TermOver => None,
        }
    }
}

/// The record of a gang that nothing reconciles any more while its NodeClaims still exist.
#[derive(Debug)]
pub struct OrphanedGang {
    /// UID of the Workload.
    pub workload: String,
    /// Names of its NodeClaims that are not measured yet.
    claims: BTreeSet<String>,
    /// The attempt that they were made in.
    pub attempt: u32,
    /// Why that attempt was wasted.
    pub reason: Reason,
}

impl OrphanedGang {
    /// Records that one of the NodeClaims was measured. Returns whether any is left.
    pub fn measured(&mut self, claim: &str) -> bool {
        !self.claims.remove(claim) || !self.claims.is_empty()
    }
}

/// Where a gang is, as committed.
#[derive(Debug)]
pub struct GangEntry {
    /// The Workload.
    pub object: ObjectRef<Workload>,
    /// The journal.
    pub journal: Journal,
    /// The gang, for spans.
    pub subject: Subject,
    /// The last wait notice for the gang's owner, and after which transition.
    reported: (u64, String),
    /// Whether its wait has no deadline: for another check, or an administrator.
    lasts: bool,
}

impl GangEntry {
    /// Where a gang is. `lasts` says that its wait has no deadline.
    pub fn new(workload: &Workload, journal: &Journal, subject: Subject, lasts: bool) -> Self {
        let object = ObjectRef::from_obj(workload);
        Self { object, journal: journal.clone(), subject, reported: <(u64, String)>::default(), lasts }
    }

    /// This entry in place of an earlier one. Reported notices stay reported.
    #[must_use]
    pub fn after(self, before: Option<Self>) -> Self {
        Self { reported: before.map(|before| before.reported).unwrap_or_default(), ..self }
    }

    /// Records the wait notice for the gang's owner; returns whether it is new.
    pub fn note_wait(&mut self, seq: u64, topic: &str) -> bool {
        let reported = (seq, topic.to_owned());
        let is_new = self.reported != reported;
        self.reported = reported;
        is_new
    }

    /// For how long the gang has been in its state; zero if its wait has no deadline.
    pub fn age(&self, now: Timestamp) -> Duration {
        let age = Duration::try_from(now.duration_since(self.journal.entered_at)).unwrap_or_default();
        if self.lasts { Duration::ZERO } else { age }
    }

    /// The record to keep after nothing reconciles the gang any more, until these NodeClaims are measured: why its attempt was
    /// wasted. An approved attempt that `ran` was not wasted.
    pub fn orphaned(&self, end: (Ending, bool), claims: &BTreeSet<String>) -> Option<OrphanedGang> {
        let (ending, ran) = end;
        let reason = self.journal.wasted_by(ending, ran).filter(|_| !claims.is_empty())?;
        let workload = uid_of(&self.object).to_owned();
        Some(OrphanedGang { workload, claims: claims.clone(), attempt: self.journal.memory.attempt, reason })
    }
}

/// Unanswered journal writes of one gang, the oldest first.
#[derive(Debug, Default)]
pub struct UnansweredWrites(Vec<Unanswered>);

impl UnansweredWrites {
    /// Keeps one more.
    pub fn keep(&mut self, write: Unanswered) {
        if self.0.len() == UNANSWERED_KEPT {
            self.0.remove(0);
        }
        self.0.push(write);
    }

    /// Takes the write that led to this journal. `seq` is the number of the journal's last transition. Forgets writes that can
    /// no longer appear.
    pub fn take_applied(&mut self, journal: Option<&str>, seq: u64) -> Option<Unanswered> {
        let (mut happened, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|write| Some(write.journal.as_str()) == journal);
        self.0 = others.into_iter().filter(|write| write.seq > seq).collect();
        happened.pop()
    }
}

/// A journal write without a reply, with everything to report if it did happen.
#[derive(Debug)]
pub struct Unanswered {
    /// The journal that was written.
    pub journal: String,
    /// Number of the last transition in it.
    pub seq: u64,
    /// Where the gang was then, for users.
    pub sentence: String,
    /// Its transitions: the journal before each, and after it.
    pub steps: Vec<(Journal, Journal)>,
    /// The gang's claims as they were then.
    pub claims: Vec<Arc<NodeClaim>>,
    /// The plan at that time.
    pub plan: Option<Outcome>,
}
