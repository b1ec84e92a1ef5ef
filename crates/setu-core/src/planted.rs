//! Known bugs that tests can switch on, to check that they would be found.
//!
//! Rule: without the feature `planted-bugs`, which only tests and benchmarks have, [`planted!`] is the constant `false` and this module
//! has nothing else. A bug is planted for one thread at a time.
//!
//! The first column shows what finds the bug: `model` is the model in `tests/model`,
//! `names` and `journal` are the checks that `tests/core/fuzz.rs` shares with the fuzz targets, and
//! `client` and `simulator` are a real connection and the embedded cluster in `tests/planted.rs`.
//!
//! | found by | bug |
//! |---|---|
//! | model | `DeleteWithoutUid`, `ReadyBeforeGate`, `DeadlineOnCache`, `VerdictBeforeCleanup`, `CreateWithoutJournal`, `RandomClaimNames`, `ActOnStaleJournal`, `ActOnConflict`, `AdmissionIdIgnored`, `AttemptFromJournalOnly`, `DeleteWhileAdmitted`, `ReadyFromJournalAlone`, `PlanOnCachedAbsence`, `ReadyStandsWhileDeleting`, `ReleasedForGood`, `JudgedUnread` |
//! | names | `NameWithoutUid` |
//! | journal | `JournalUnbound` |
//! | client | `RetryInClient` |
//! | simulator | `AdoptStranger`, `SweepBeforeStores`, `SelectorMissing`, `VerdictBeforeCleanup`, `DeleteWithoutUid`, `CreateWithoutJournal`, `ActOnStaleJournal`, `ActOnConflict` |
//!
//! The last five of `simulator` concern the order of requests. The model and the controller make requests in it, so both must find them.

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

/// Whether this bug is planted: never, in a build without the feature.
#[cfg(not(feature = "planted-bugs"))]
#[macro_export]
macro_rules! planted {
    ($bug:ident) => {
        $crate::planted::never()
    };
}

/// The value of every hook in a build without the feature.
#[cfg(not(feature = "planted-bugs"))]
pub const fn never() -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use crate::listed::listed;
    use std::cell::Cell;

    listed! {
        /// A known bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Planted {
            /// A claim is deleted by name, even if another object has that name by then.
            DeleteWithoutUid,
            /// Readiness is decided on a cache.
            ReadyBeforeGate,
            /// A deadline is decided on a cache.
            DeadlineOnCache,
            /// The check becomes Retry while claims are still being deleted.
            VerdictBeforeCleanup,
            /// Claims are created before the journal has them.
            CreateWithoutJournal,
            /// Names of claims cannot be derived again.
            RandomClaimNames,
            /// A claim with that name is adopted, no matter who created it.
            AdoptStranger,
            /// A claim is swept because a cache does not show its Workload.
            SweepBeforeStores,
            /// Names of claims are derived from the Workload's name instead of its UID.
            NameWithoutUid,
            /// A journal copied from another Workload is accepted.
            JournalUnbound,
            /// The action of a cached journal is taken without a check that it is current.
            ActOnStaleJournal,
            /// A decision is carried out although another replica's journal was written first.
            ActOnConflict,
            /// Pods do not select the gang's nodes.
            SelectorMissing,
            /// All admissions have one id, so a Ready outlives its admission.
            AdmissionIdIgnored,
            /// Without a journal, the attempt is not read from existing claims.
            AttemptFromJournalOnly,
            /// An eviction that has only begun deletes the nodes under running pods.
            DeleteWhileAdmitted,
            /// Ready is reported from the journal alone, without a read of the claims.
            ReadyFromJournalAlone,
            /// An attempt starts because a cache shows no claim of the last one.
            PlanOnCachedAbsence,
            /// Nodes are deleted while Kueue may still admit on their Ready.
            ReadyStandsWhileDeleting,
            /// A released gang never notices that its reservation still stands.
            ReleasedForGood,
            /// An attempt is judged by defaults while its policy and terms are unknown.
            JudgedUnread,
            /// The client sends a failed write again, whatever has happened since.
            RetryInClient,
        }
    }

    thread_local! {
        static BUG: Cell<Option<Planted>> = const { Cell::new(None) };
        static SALT: Cell<u32> = const { Cell::new(0) };
    }

    /// Plants a bug in this thread in place of the one before; `None` removes it.
    pub fn plant(bug: Option<Planted>) {
        BUG.set(bug);
    }

    /// Whether this bug is planted in this thread.
    pub fn is_planted(bug: Planted) -> bool {
        BUG.get() == Some(bug)
    }

    /// A number that differs at every call, for values that should be derived.
    pub fn salt() -> u32 {
        SALT.set(SALT.get().wrapping_add(1));
        SALT.get()
    }
}
