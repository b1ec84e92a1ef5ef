//! Known bugs that tests can switch on, to see whether they would be found.
//!
//! Rule: without the feature `planted-bugs`, which no release has, [`planted!`] is the constant
//! `false` and this module holds nothing else. A bug is planted for one thread at a time.
//!
//! The first column says who finds it: `model` is the model in `tests/model`,
//! `names` and `journal` are the checks that `tests/fuzz.rs` shares with the fuzz targets, and
//! `client` and `simulator` are a real connection and the embedded cluster in `tests/planted.rs`.
//!
//! | found by | bug |
//! |---|---|
//! | model | `DeleteWithoutUid`, `ReadyBeforeGate`, `DeadlineOnCache`, `VerdictBeforeCleanup`, `CreateWithoutJournal`, `RandomClaimNames`, `ActOnStaleJournal`, `ActOnConflict`, `EpochIgnored`, `AttemptFromJournalOnly`, `DeleteWhileAdmitted`, `ReadyFromJournalAlone`, `PlanOnCachedAbsence`, `ReadyStandsWhileDeleting`, `ReleasedForGood`, `JudgedUnread` |
//! | names | `NameWithoutUid` |
//! | journal | `JournalUnbound` |
//! | client | `RetryInClient` |
//! | simulator | `AdoptStranger`, `SweepBeforeStores`, `SelectorMissing`, `VerdictBeforeCleanup`, `DeleteWithoutUid`, `CreateWithoutJournal`, `ActOnStaleJournal`, `ActOnConflict` |
//!
//! The last five are hooks in the order of requests, of which the model has a copy; so both must find them.

pub use crate::planted;
#[cfg(feature = "planted-bugs")]
pub use switch::{Planted, is_planted, plant, salt};

/// Whether this bug is planted in this thread.
#[cfg(feature = "planted-bugs")]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::is_planted($crate::planted::Planted::$bug)
    };
}

/// Whether this bug is planted: never, in a build that is not a test of tests.
#[cfg(not(feature = "planted-bugs"))]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::never()
    };
}

/// What every hook says in a build without the feature.
#[cfg(not(feature = "planted-bugs"))]
pub const fn never() -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use std::cell::Cell;

    /// A known bug.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Planted {
        /// A claim is deleted by its name, whatever bears it by then.
        DeleteWithoutUid,
        /// Readiness is decided on a cache.
        ReadyBeforeGate,
        /// A deadline is decided on a cache.
        DeadlineOnCache,
        /// Kueue is told Retry while claims are still being deleted.
        VerdictBeforeCleanup,
        /// Claims are created before the journal says so.
        CreateWithoutJournal,
        /// Names of claims cannot be derived again.
        RandomClaimNames,
        /// A claim of that name is taken over whoever made it.
        AdoptStranger,
        /// A claim is swept because a cache does not show its Workload.
        SweepBeforeStores,
        /// Names of claims follow from the Workload's name instead of its UID.
        NameWithoutUid,
        /// A journal copied from another Workload is believed.
        JournalUnbound,
        /// What a cached journal asks for is done without making sure that it still stands.
        ActOnStaleJournal,
        /// What was decided is done although another replica's journal was written first.
        ActOnConflict,
        /// Pods are not led to the gang's nodes.
        SelectorMissing,
        /// All admissions look alike, so a Ready outlives the one it was given for.
        EpochIgnored,
        /// Without a journal, claims that exist are not asked for their attempt.
        AttemptFromJournalOnly,
        /// An eviction that has only begun takes the nodes from under running pods.
        DeleteWhileAdmitted,
        /// Ready is told on the word of the journal, without a look at the claims.
        ReadyFromJournalAlone,
        /// An attempt starts because a cache shows no claim of the last one.
        PlanOnCachedAbsence,
        /// Nodes are taken back while Kueue may still admit on the Ready it was told.
        ReadyStandsWhileDeleting,
        /// A gang that was released never notices that its reservation stands after all.
        ReleasedForGood,
        /// An attempt is judged by defaults while what it is judged by cannot be read.
        JudgedUnread,
        /// A write that failed is sent again by the client, whatever has happened since.
        RetryInClient,
    }

    impl Planted {
        /// Every known bug.
        pub const ALL: [Self; 22] = [
            Self::DeleteWithoutUid,
            Self::ReadyBeforeGate,
            Self::DeadlineOnCache,
            Self::VerdictBeforeCleanup,
            Self::CreateWithoutJournal,
            Self::RandomClaimNames,
            Self::AdoptStranger,
            Self::SweepBeforeStores,
            Self::NameWithoutUid,
            Self::JournalUnbound,
            Self::ActOnStaleJournal,
            Self::ActOnConflict,
            Self::SelectorMissing,
            Self::EpochIgnored,
            Self::AttemptFromJournalOnly,
            Self::DeleteWhileAdmitted,
            Self::ReadyFromJournalAlone,
            Self::PlanOnCachedAbsence,
            Self::ReadyStandsWhileDeleting,
            Self::ReleasedForGood,
            Self::JudgedUnread,
            Self::RetryInClient,
        ];
    }

    thread_local! {
        static BUG: Cell<Option<Planted>> = const { Cell::new(None) };
        static SALT: Cell<u32> = const { Cell::new(0) };
    }

    /// Plants a bug in this thread in place of the one before; `None` mends it.
    pub fn plant(bug: Option<Planted>) {
        BUG.set(bug);
    }

    /// Whether this bug is planted in this thread.
    pub fn is_planted(bug: Planted) -> bool {
        BUG.get() == Some(bug)
    }

    /// A number that differs at every call, for what ought to be derived.
    pub fn salt() -> u32 {
        SALT.set(SALT.get().wrapping_add(1));
        SALT.get()
    }
}
