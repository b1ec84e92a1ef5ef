//! Every move.
//!
//! Attacks from `docs/security.md` that have no move here, and why:
//!
//! | attack | why not |
//! |---|---|
//! | a NodeClaim with a future name and Setu's labels (A15) | needs cluster-wide rights, and the chart's policy refuses it; without the labels it is the move `SquatName` |
//! | names that two gangs would share (A14), text that drives terminals or metrics (A21, A22) | only text, which no decision depends on |
//! | pods that request other nodes, or very many (A16, A17) | decided once, by the plan and its guards, whatever happens later |
//! | very many Workloads (A19) | `tests/dramas/fixed.rs` has thirty, `benches/big` ten thousand |
//! | changes between a read and a write, or between two leaders (A23, A24) | no move: every drama has them, through lag, faults and a second replica |
//! | Setu's token is stolen (A25), a kubelet lies (A27) | not possible for a tenant |
//! | parameters are deleted or replaced (A28) | dramas have none; the scene `Policy` changes the same settings |

use serde::{Deserialize, Serialize};

/// An action by a user, Kueue, the cloud or the network.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Move {
    /// Kueue evicts a Workload, and may reserve quota again in the same second.
    Evict,
    /// Kueue takes the quota away without an eviction.
    LoseQuota,
    /// Kueue's scheduler writes back stale check entries.
    StaleEntries,
    /// The queue is on hold for a while.
    HoldQueue,
    /// The check is removed from the queue for a while.
    RemoveCheck,
    /// A user deletes the AdmissionCheck; it is recreated after a while.
    DeleteCheck,
    /// A tenant deletes a Job.
    DeleteJob,
    /// A tenant deletes a Job and creates another one with the same name.
    RecreateJob,
    /// A tenant deletes the Workload of a Job.
    DeleteWorkload,
    /// A tenant suspends a Job that Kueue has started.
    SuspendJob,
    /// A tenant erases a journal.
    EraseJournal,
    /// A tenant writes a journal in state Approved.
    ForgeApproved,
    /// A tenant writes a journal in state RollingBack.
    ForgeRollback,
    /// A tenant restores an old journal.
    ReplayJournal,
    /// A tenant writes a journal with extreme times and the maximum `seq`.
    ForgeTimes,
    /// A tenant copies the journal of another Workload.
    CopyJournal,
    /// A tenant writes an invalid journal.
    GarbleJournal,
    /// A tenant writes a journal with another slot count.
    ForgeSlots,
    /// A tenant writes a journal with another trace.
    ForgeTrace,
    /// A tenant fills up the annotations of a Workload.
    FillAnnotations,
    /// A tenant's pod with a gang's labels that tolerates everything takes room on the gang's nodes for a while.
    ForeignPod,
    /// A user deletes a NodeClaim.
    DeleteClaim,
    /// A foreign finalizer blocks the deletion of a NodeClaim for a while.
    HoldFinalizer,
    /// A user creates a NodeClaim with the name of a gang's next one.
    SquatName,
    /// An idle node is available.
    FreeNode,
    /// Others use up the NodePool's limits for a while.
    TakeLimit,
    /// A Node stops being ready for a while.
    FlapNode,
    /// The cloud runs out of capacity.
    Shortage,
    /// The cloud is slow.
    SlowCloud,
    /// The cloud refuses one slot.
    RefuseSlot,
    /// Nodes start without their devices.
    HideDevices,
    /// All weather rules are removed.
    FairWeather,
    /// The NodeClass is not ready for a while.
    BreakNodeClass,
    /// A replica of the API server falls behind.
    FreezeReplica,
    /// The API server drops its history.
    Compact,
    /// Every watch is closed.
    CutWatches,
    /// The API server is unreachable for a while.
    ApiServerDown,
    /// Setu may not create NodeClaims for a while.
    DenyCreates,
    /// A policy refuses the NodeClaim of one slot for a while.
    DenySlot,
    /// A webhook for the NodeClaim of one slot does not answer for a while.
    HangWebhook,
    /// Setu may not delete NodeClaims for a while.
    DenyDeletes,
    /// A policy prevents Setu from changing NodeClaims and Nodes for a while.
    DenyPatches,
    /// Setu may not write the annotations of Workloads for a while.
    DenyJournals,
    /// A webhook refuses Setu's writes to the status of Workloads for a while.
    DenyVerdicts,
    /// Setu may not publish Events for a while.
    DenyEvents,
    /// A user deletes the NodePool; it is recreated after a while.
    DeletePool,
    /// A user deletes the NodeClass; it is recreated after a while.
    DeleteClass,
    /// A user changes the template of the NodePool.
    ChangePool,
    /// Kueue is paused for a while.
    StopKueue,
    /// The queue requires another check, which has no controller, for a while.
    SecondCheck,
    /// The controller of another check rejects a Workload.
    OtherRejects,
    /// A newer Setu writes a journal that this version cannot read; the old journal is restored after a while.
    NewerJournal,
}

impl Move {
    /// Every move.
    pub const ALL: [Self; 52] = [
        Self::Evict,
        Self::LoseQuota,
        Self::StaleEntries,
        Self::HoldQueue,
        Self::RemoveCheck,
        Self::DeleteCheck,
        Self::DeleteJob,
        Self::RecreateJob,
        Self::DeleteWorkload,
        Self::SuspendJob,
        Self::EraseJournal,
        Self::ForgeApproved,
        Self::ForgeRollback,
        Self::ReplayJournal,
        Self::ForgeTimes,
        Self::CopyJournal,
        Self::GarbleJournal,
        Self::ForgeSlots,
        Self::ForgeTrace,
        Self::FillAnnotations,
        Self::ForeignPod,
        Self::DeleteClaim,
        Self::HoldFinalizer,
        Self::SquatName,
        Self::FreeNode,
        Self::TakeLimit,
        Self::FlapNode,
        Self::Shortage,
        Self::SlowCloud,
        Self::RefuseSlot,
        Self::HideDevices,
        Self::FairWeather,
        Self::BreakNodeClass,
        Self::FreezeReplica,
        Self::Compact,
        Self::CutWatches,
        Self::ApiServerDown,
        Self::DenyCreates,
        Self::DenySlot,
        Self::HangWebhook,
        Self::DenyDeletes,
        Self::DenyPatches,
        Self::DenyJournals,
        Self::DenyVerdicts,
        Self::DenyEvents,
        Self::DeletePool,
        Self::DeleteClass,
        Self::ChangePool,
        Self::StopKueue,
        Self::SecondCheck,
        Self::OtherRejects,
        Self::NewerJournal,
    ];

    /// Whether the move rewrites a journal, so that it may leave the chart.
    pub const fn touches_journal(self) -> bool {
        matches!(
            self,
            Self::EraseJournal
                | Self::ForgeApproved
                | Self::ForgeRollback
                | Self::ReplayJournal
                | Self::ForgeTimes
                | Self::CopyJournal
                | Self::GarbleJournal
                | Self::ForgeSlots
                | Self::ForgeTrace
                | Self::NewerJournal
        )
    }
}
