//! The precondition of a journal write, and the effects that the write permits.
//!
//! Rule: the journal is durable before its effects run. A delete does not wait for it once the reservation is gone, unless
//! someone else has changed the Workload.

use crate::gang::statechart::event::Effect;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::{Ending, Reservation};
use crate::gang::statechart::state::{State, StateName};
use crate::gang::statechart::transition::Transition;
use crate::planted::planted;

/// Precondition of a journal write besides the journal that was read. For a request, the Workload is the one that controls it, read
/// before the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precondition {
    /// Nothing: other writes to the Workload do not matter.
    Journal,
    /// That nothing was written to the Workload since it was read.
    Workload,
}

/// How the write of a step's journal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    /// The Workload had this journal already.
    Unneeded,
    /// It was written.
    Written,
    /// Someone else has changed the Workload.
    Conflict,
    /// It is not known whether it was written.
    Unanswered,
}

/// An effect that knows whether it is a deletion.
pub trait IsDeletion {
    /// Whether it deletes.
    fn is_deletion(&self) -> bool;
}

impl IsDeletion for Effect {
    fn is_deletion(&self) -> bool {
        matches!(self, Self::DeleteClaims(_))
    }
}

/// The effects that may run after the write of their journal. The reconcile ends after them if the write failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Permitted<E> {
    /// These.
    pub effects: Vec<E>,
    /// Whether a request must confirm the journal before: only a write proves that it is current.
    pub needs_confirmation: bool,
}

/// Which effects of a step may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permission {
    /// All.
    All,
    /// Deletions.
    Deletions,
    /// None.
    Nothing,
}

impl Journal {
    /// The condition that must still hold when this journal is written. `stored` is the number of the last stored transition; one
    /// write may store several. A write that revokes an approval or gives up the gang requires an unchanged, unadmitted Workload.
    pub fn precondition(&self, stored: u64) -> Precondition {
        let is_back = matches!(self.state, State::RollingBack { .. } | State::Provisioning);
        let leaves_approval = |t: &Transition| t.seq > stored && t.from == StateName::Approved;
        let revokes = self.revokes() || is_back && self.history.iter().any(leaves_approval);
        let gives_up = matches!(self.state, State::Yielded | State::Rejected);
        if revokes || gives_up { Precondition::Workload } else { Precondition::Journal }
    }

    /// Whether it is written at all. The journal of a gang that never held anything is not.
    pub fn is_worth_storing(&self) -> bool {
        self.seq > 0 || self.state == State::Validating
    }
}

impl Commit {
    /// Which effects may run after it.
    fn permits(self, reservation: &Reservation) -> Permission {
        match self {
            Self::Unneeded | Self::Written => Permission::All,
            Self::Conflict if planted!(ActOnConflict) => Permission::Deletions,
            // The decision is out of date.
            Self::Conflict => Permission::Nothing,
            // Until the journal is durable, another replica may decide otherwise and report Ready to Kueue.
            // A check that was removed may come back to a Workload that still has its quota.
            Self::Unanswered
                if matches!(
                    reservation,
                    Reservation::Held { .. } | Reservation::Gone(Ending::CheckRemoved)
                ) =>
            {
                Permission::Nothing
            }
            Self::Unanswered => Permission::Deletions,
        }
    }

    /// Whether the journal is to be confirmed before effects run: only a write proves that it is current.
    fn needs_confirmation(self) -> bool {
        let skips = planted!(ActOnStaleJournal) || planted!(CreateWithoutJournal) || planted!(ActOnConflict);
        self != Self::Written && !skips
    }
}

impl Permission {
    /// Whether an effect may run, given whether it is a deletion.
    fn allows(self, is_deletion: bool) -> bool {
        match self {
            Self::All => true,
            Self::Deletions => is_deletion,
            Self::Nothing => false,
        }
    }
}

impl<E: IsDeletion> Permitted<E> {
    /// The effects that may run after the write of their journal ended like this, under this reservation.
    pub fn after(commit: Commit, reservation: &Reservation, mut effects: Vec<E>) -> Self {
        let permission = commit.permits(reservation);
        effects.retain(|effect| permission.allows(effect.is_deletion()));
        let needs_confirmation = commit.needs_confirmation() && !effects.is_empty();
        Self { effects, needs_confirmation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::event::{ProgressReason, Reason};
    use crate::gang::statechart::reservation::{AdmissionId, AdmissionPhase};
    use crate::gang::statechart::state::{Nodes, Then};
    use jiff::Timestamp;

    #[test]
    fn a_journal_that_revokes_an_approval_or_gives_up_requires_an_unchanged_workload() {
        let guard = |from: State, to: State| {
            let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), Timestamp::UNIX_EPOCH, None);
            journal.state = from;
            journal.record(to, Reason::Progress(ProgressReason::ClaimsGone), Timestamp::UNIX_EPOCH);
            journal.precondition(0)
        };
        let (approved, back) =
            (State::Approved { nodes: Nodes::Held }, State::RollingBack { then: Then::BackingOff });
        assert_eq!(guard(approved.clone(), back.clone()), Precondition::Workload);
        assert_eq!(guard(approved.clone(), State::Provisioning), Precondition::Workload);
        assert_eq!(guard(back.clone(), State::Yielded), Precondition::Workload);
        assert_eq!(guard(back, State::Rejected), Precondition::Workload);
        assert_eq!(
            guard(State::Provisioning, State::RollingBack { then: Then::BackingOff }),
            Precondition::Journal
        );
        assert_eq!(guard(approved, State::Released), Precondition::Journal);
    }

    #[test]
    fn a_write_that_revokes_an_approval_requires_an_unchanged_workload() {
        let now = Timestamp::UNIX_EPOCH;
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), now, None);
        journal.state = State::Approved { nodes: Nodes::Held };
        let reason = Reason::Progress(ProgressReason::Reserved);
        journal.record(State::Provisioning, reason, now);
        let provisioning = journal.seq;
        journal.record(State::RollingBack { then: Then::Yielded }, reason, now);
        assert_eq!(journal.precondition(0), Precondition::Workload);
        assert_eq!(
            journal.precondition(provisioning),
            Precondition::Journal,
            "the approval was taken back before"
        );
    }

    #[test]
    fn after_a_failed_write_only_deletions_of_a_gang_without_a_reservation_run() {
        let (create, delete) = (Effect::CreateClaims(vec![0]), Effect::DeleteClaims(vec!["c".into()]));
        let held =
            Reservation::Held { admission: AdmissionId("1-0-a".into()), phase: AdmissionPhase::Reserved };
        let gone = Reservation::Gone(Ending::Evicted);
        let unlisted = Reservation::Gone(Ending::CheckRemoved);
        let both = vec![create, delete.clone()];
        for (commit, reservation, runs) in [
            (Commit::Written, &held, both.clone()),
            (Commit::Unneeded, &gone, both.clone()),
            (Commit::Unanswered, &held, vec![]),
            (Commit::Unanswered, &unlisted, vec![]),
            (Commit::Unanswered, &gone, vec![delete]),
            (Commit::Conflict, &held, vec![]),
            (Commit::Conflict, &gone, vec![]),
        ] {
            assert_eq!(commit.needs_confirmation(), commit != Commit::Written);
            let needs_confirmation = commit != Commit::Written && !runs.is_empty();
            let permitted = Permitted::after(commit, reservation, both.clone());
            assert_eq!(
                permitted,
                Permitted { effects: runs, needs_confirmation },
                "{commit:?} {reservation:?}"
            );
        }
    }
}
