//! Every move.
//!
//! What a tenant could try (the attacks of `docs/security.md`) and nobody plays here, and why:
//!
//! | attack | why not |
//! |---|---|
//! | a NodeClaim of a coming name that bears Setu's labels (A15) | takes rights over the cluster, and the chart's policy refuses it; without the labels it is the move `SquatName` |
//! | names that two gangs would share (A14), text that drives terminals or metrics (A21, A22) | text alone, which nothing is decided by |
//! | pods that ask for other nodes, or for very many (A16, A17) | decided once, by the plan and its guards, whatever happens after |
//! | very many Workloads (A19) | `tests/dramas/fixed.rs` has thirty, `benches/big` ten thousand |
//! | changes between a read and a write, or between two leaders (A23, A24) | no move: every drama has them, by lag, faults and a second replica |
//! | Setu's own token is stolen (A25), a kubelet lies (A27) | who has that is no tenant |
//! | parameters are deleted or replaced (A28) | dramas have none; scene `Policy` changes what they would say |

use serde::{Deserialize, Serialize};

/// Something that somebody does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Move {
    /// Kueue evicts a Workload, and may reserve for it again in the same second.
    Evict,
    /// Kueue takes the quota away without an eviction.
    LoseQuota,
    /// Kueue's scheduler puts back entries as they were a while ago.
    StaleEntries,
    /// The queue stops taking and keeping Workloads for a while.
    HoldQueue,
    /// The check is taken off the queue for a while.
    RemoveCheck,
    /// Somebody deletes the AdmissionCheck; it is made again after a while.
    DeleteCheck,
    /// A tenant deletes a Job.
    DeleteJob,
    /// A tenant deletes a Job and makes one of the same name.
    RecreateJob,
    /// A tenant deletes a Workload under its Job.
    DeleteWorkload,
    /// A tenant suspends a Job that Kueue has let go.
    SuspendJob,
    /// A tenant erases a journal.
    EraseJournal,
    /// A tenant writes that everything is approved.
    ForgeApproved,
    /// A tenant writes a journal that takes everything back.
    ForgeRollback,
    /// A tenant puts an old journal back.
    ReplayJournal,
    /// A tenant writes a journal whose times lie far away and whose count is at its end.
    ForgeTimes,
    /// A tenant gives a Workload the journal of another.
    CopyJournal,
    /// A tenant writes something that is no journal.
    GarbleJournal,
    /// A tenant writes that its gang has another number of nodes.
    ForgeSlots,
    /// A tenant writes that its gang belongs to another trace.
    ForgeTrace,
    /// A tenant fills the annotations of a Workload up.
    FillAnnotations,
    /// A tenant's pod that bears a gang's labels and tolerates everything takes room on its nodes for a while.
    StrayPod,
    /// Somebody deletes a NodeClaim.
    DeleteClaim,
    /// The finalizer of somebody else holds a NodeClaim for a while.
    HoldFinalizer,
    /// Somebody makes a NodeClaim of the name that a gang's next one will have.
    SquatName,
    /// A node that nobody asked for stands free.
    FreeNode,
    /// Others take what is left of the NodePool's limits for a while.
    TakeLimit,
    /// A Node stops being ready for a while.
    FlapNode,
    /// The cloud runs short.
    Shortage,
    /// The cloud is slow.
    SlowCloud,
    /// The cloud refuses one slot.
    RefuseSlot,
    /// Nodes come up without their devices.
    HideDevices,
    /// The weather clears.
    FairWeather,
    /// The NodeClass is not ready for a while.
    BreakNodeClass,
    /// A replica of the API server falls behind.
    FreezeReplica,
    /// The API server forgets its history.
    Compact,
    /// Every watch is cut.
    CutWatches,
    /// The API server is away for a while.
    ApiServerDown,
    /// Setu may create no NodeClaim for a while.
    DenyCreates,
    /// A policy refuses the NodeClaim of one slot for a while.
    DenySlot,
    /// A webhook that is asked about the NodeClaim of one slot does not answer for a while.
    HangWebhook,
    /// Setu may delete no NodeClaim for a while.
    DenyDeletes,
    /// A policy lets Setu change no NodeClaim and no Node for a while.
    DenyPatches,
    /// Setu may not write the annotations of Workloads for a while.
    DenyJournals,
    /// A webhook refuses Setu's writes to the status of Workloads for a while.
    DenyVerdicts,
    /// Setu may publish no Events for a while.
    DenyEvents,
    /// Somebody deletes the NodePool; it is made again after a while.
    DeletePool,
    /// Somebody deletes the NodeClass; it is made again after a while.
    DeleteClass,
    /// Somebody changes the template of the NodePool.
    ChangePool,
    /// Kueue stands still for a while.
    StopKueue,
    /// The queue demands another check, which nobody answers, for a while.
    SecondCheck,
    /// The controller of another check rejects a Workload.
    OtherRejects,
    /// A newer Setu writes a journal that this one does not know, and comes back after a while.
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
        Self::StrayPod,
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

    /// Whether what the tenant does to the journal may make it leave the chart.
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
