//! Obstacles that block a plan: their kind, the gate that found them, and how long they last.

use crate::api::NodeClaim;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Something that blocks a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Its kind.
    pub reason: ObstacleReason,
    /// The problem and its remedy, for the user.
    pub message: String,
    /// When time alone may clear it.
    pub until: Option<Timestamp>,
    /// The closed gate and its subject, if a gate blocks.
    pub gate: Option<(Gate, String)>,
    /// The reason of each option, if the message covers several options.
    pub of_options: BTreeSet<ObstacleReason>,
}

/// The gates, each a condition that must hold before anything is bought.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum Gate {
    /// Where gangs may run.
    Placement,
    /// Readiness of the NodePools and their NodeClasses.
    Readiness,
    /// Opening times and free room of the tier's capacity reservations.
    Reservations,
    /// How large a gang may be.
    Size,
    /// Bounds on the nodes, resources and cost of a gang.
    Budget,
    /// Limits for the whole controller and for one LocalQueue.
    Guards,
    /// Limits of the NodePools.
    Capacity,
    /// Quota of the ClusterQueue. A diagnostic.
    Quota,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Placement => "placement",
            Self::Readiness => "readiness",
            Self::Reservations => "reservations",
            Self::Size => "size",
            Self::Budget => "budget",
            Self::Guards => "guards",
            Self::Capacity => "capacity",
            Self::Quota => "quota",
        })
    }
}

/// Kinds of obstacles.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it, and the messages say more")]
pub enum ObstacleReason {
    NodePoolMissing,
    NodePoolNotReady,
    NodePoolEdited,
    NoNodePoolFits,
    StaticNodePool,
    RequirementsClash,
    FlavorNotOffered,
    TaintNotTolerated,
    FlavorMissing,
    QueueUnknown,
    ReservationFull,
    ReservationTooSmall,
    ReservationNotOpen,
    ReservationOpensLater,
    ReservationClosesFirst,
    LimitExceeded,
    LimitTooSmall,
    AmountUnknown,
    TooManyNodes,
    TooLarge,
    ResourceClaims,
    ResourceClaimTemplateMissing,
    RuntimeClassMissing,
    DeviceClass,
    VolumeNotReady,
    VolumeUnusable,
    VolumeUnreadable,
    TopologyUnmet,
    BadQuantity,
    UpdatesClash,
    CapacityShort,
    OthersFirst,
    BudgetExceeded,
    PlacementForbidden,
    QuotaExceeded,
    Guarded,
    NoPolicy,
    OtherChecks,
    DryRun,
}

impl fmt::Display for ObstacleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A change that may clear obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlanChange {
    /// The node of a NodeClaim came up.
    ClaimInitialized,
    /// A NodeClaim is being deleted.
    ClaimLeaving,
    /// A NodeClaim is gone, or Setu no longer holds it.
    ClaimLeft,
    /// The status of a NodePool counts more or less of its limits as used.
    NodePoolUsage,
    /// The status of a ClusterQueue counts more or less of its quota as reserved.
    QuotaUsage,
    /// Anything else that plans are made from.
    Other,
}

impl PlanChange {
    /// The change that this event of a claim is. `is_gone` says that Setu no longer holds the claim.
    pub fn of_claim(is_gone: bool, claim: &NodeClaim) -> Option<Self> {
        match (is_gone, claim.is_deleting()) {
            (true, _) => Some(Self::ClaimLeft),
            (false, true) => Some(Self::ClaimLeaving),
            (false, false) => claim.is_initialized().then_some(Self::ClaimInitialized),
        }
    }

    /// Whether it may clear such an obstacle. Gangs that wait for that are planned again.
    pub const fn may_clear(self, reason: ObstacleReason) -> bool {
        use ObstacleReason::{Guarded, LimitExceeded, QueueUnknown, QuotaExceeded, ReservationFull};
        match self {
            Self::ClaimInitialized => matches!(reason, Guarded),
            Self::ClaimLeaving => matches!(reason, Guarded | LimitExceeded),
            Self::ClaimLeft => matches!(reason, Guarded | LimitExceeded | ReservationFull),
            Self::NodePoolUsage => matches!(reason, LimitExceeded),
            Self::QuotaUsage => matches!(reason, QuotaExceeded | QueueUnknown),
            Self::Other => true,
        }
    }
}

/// How long an obstacle lasts, and what happens meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasts {
    /// It may clear by itself. The gang waits until its deadline.
    UntilDeadline,
    /// The gang waits without a deadline.
    Unbounded,
    /// Something is broken or being changed, and the plan without it is unknown.
    PlanUnknown,
    /// It lasts until someone changes something. Quota is not held.
    UntilChanged,
    /// It lasts until something missing or unknown appears. Quota is not held.
    UntilCreated,
}

impl ObstacleReason {
    /// The only place that maps a kind to how long it lasts.
    const fn lasts(self) -> Lasts {
        match self {
            Self::NodePoolNotReady
            | Self::QueueUnknown
            | Self::ReservationFull
            | Self::ReservationNotOpen
            | Self::LimitExceeded
            | Self::BadQuantity
            | Self::CapacityShort
            | Self::OthersFirst
            | Self::QuotaExceeded
            | Self::Guarded => Lasts::UntilDeadline,
            Self::OtherChecks | Self::DryRun => Lasts::Unbounded,
            Self::NoPolicy | Self::NodePoolEdited => Lasts::PlanUnknown,
            Self::NodePoolMissing
            | Self::FlavorMissing
            | Self::RuntimeClassMissing
            | Self::ResourceClaimTemplateMissing
            | Self::AmountUnknown
            | Self::VolumeNotReady => Lasts::UntilCreated,
            Self::TooManyNodes
            | Self::TooLarge
            | Self::BudgetExceeded
            | Self::PlacementForbidden
            | Self::LimitTooSmall
            | Self::UpdatesClash
            | Self::ReservationTooSmall
            | Self::ReservationOpensLater
            | Self::ReservationClosesFirst
            | Self::StaticNodePool
            | Self::NoNodePoolFits
            | Self::RequirementsClash
            | Self::FlavorNotOffered
            | Self::TaintNotTolerated
            | Self::TopologyUnmet
            | Self::ResourceClaims
            | Self::DeviceClass
            | Self::VolumeUnusable
            | Self::VolumeUnreadable => Lasts::UntilChanged,
        }
    }

    /// Whether the gang waits as long as it lasts, without a deadline.
    pub fn has_no_deadline(self) -> bool {
        self.lasts() == Lasts::Unbounded
    }

    /// Whether the plan without it is unknown.
    pub fn hides_plan(self) -> bool {
        self.lasts() == Lasts::PlanUnknown
    }

    /// Whether something missing or unknown may still appear. The Workload itself may be correct.
    pub fn may_appear(self) -> bool {
        self.lasts() == Lasts::UntilCreated
    }

    /// Whether it lasts until something is changed or created, so that quota need not be held.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self.lasts(), Lasts::UntilChanged | Lasts::UntilCreated)
    }
}

impl Obstacle {
    /// An obstacle of this kind.
    pub fn new(reason: ObstacleReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), until: None, gate: None, of_options: BTreeSet::new() }
    }

    /// The reasons of all options. If one of them clears, the gang may have a plan.
    pub fn reasons(&self) -> BTreeSet<ObstacleReason> {
        self.of_options.iter().copied().chain([self.reason]).collect()
    }
}
