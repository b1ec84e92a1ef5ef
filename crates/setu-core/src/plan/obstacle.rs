//! What stands in the way of a plan, of which kind it is, and how long that stays.

use super::gates::Gate;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Its kind.
    pub reason: ObstacleReason,
    /// What is wrong and what to do about it, for the user.
    pub message: String,
    /// When time alone may clear it.
    pub until: Option<Timestamp>,
    /// The gate that is closed, and for what, if it is one.
    pub gate: Option<(Gate, String)>,
    /// Whether it says what is in each of several ways.
    pub is_of_several: bool,
}

/// Kinds of obstacles.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
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
    NotAllowed,
    NoPolicy,
    OtherChecks,
    DryRun,
}

impl fmt::Display for ObstacleReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How long an obstacle stays, and what is done meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stay {
    /// It may clear by itself: it is waited for until the gang's deadline.
    Deadline,
    /// It is waited for without a deadline.
    Unbounded,
    /// Something is broken or being changed, and nothing is known of how the plan would be otherwise.
    PlanHidden,
    /// Until something is changed: quota is not held for it.
    Refused,
    /// Until something is there, or known, that is not yet: quota is not held for it either.
    Missing,
}

impl ObstacleReason {
    /// The one place where a kind says how long it stays.
    const fn stay(self) -> Stay {
        match self {
            Self::NodePoolNotReady
            | Self::QueueUnknown
            | Self::ReservationFull
            | Self::ReservationNotOpen
            | Self::LimitExceeded
            | Self::ResourceClaims
            | Self::BadQuantity
            | Self::CapacityShort
            | Self::OthersFirst
            | Self::QuotaExceeded
            | Self::Guarded
            | Self::NotAllowed => Stay::Deadline,
            Self::OtherChecks | Self::DryRun => Stay::Unbounded,
            Self::NoPolicy | Self::NodePoolEdited => Stay::PlanHidden,
            Self::NodePoolMissing
            | Self::FlavorMissing
            | Self::RuntimeClassMissing
            | Self::AmountUnknown
            | Self::VolumeNotReady => Stay::Missing,
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
            | Self::DeviceClass
            | Self::VolumeUnusable
            | Self::VolumeUnreadable => Stay::Refused,
        }
    }

    /// Whether it is waited for as long as it lasts: no deadline of the gang's runs out meanwhile.
    pub fn has_no_deadline(self) -> bool {
        self.stay() == Stay::Unbounded
    }

    /// Whether it says nothing of how the plan would be without it.
    pub fn hides_plan(self) -> bool {
        self.stay() == Stay::PlanHidden
    }

    /// Whether something is not there, or not known yet, that may come: the Workload itself may be right.
    pub fn may_appear(self) -> bool {
        self.stay() == Stay::Missing
    }

    /// Whether it lasts until something is changed or made, so that quota need not be held for it.
    pub(super) fn is_refusal(self) -> bool {
        matches!(self.stay(), Stay::Refused | Stay::Missing)
    }
}

impl Obstacle {
    /// An obstacle of this kind.
    pub fn new(reason: ObstacleReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), until: None, gate: None, is_of_several: false }
    }
}
