//! What was observed of a gang, and what is to be done about it.
//!
//! Events are observations, never commands; effects are data. Both are level-triggered: the same
//! snapshot gives the same events, and an effect may be run twice without harm.

use super::failure::{Failure, FailureClass};
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, Ending};
use crate::api::parameters::Pinning;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Quota is reserved under another admission than the journal's.
    Reserved {
        /// The admission that stands now.
        admission: AdmissionId,
        /// How far Kueue has gone with it.
        phase: AdmissionPhase,
    },
    /// The reservation is ending: pods of an admitted gang may still run.
    Leaving(Ending),
    /// The reservation is gone and no pod runs under it.
    Gone(Ending),
    /// Claims of this gang exist, but the journal does not know of them.
    Found {
        /// Their attempt, from their labels.
        attempt: u32,
        /// The last of their replacements.
        generation: u32,
        /// How many slots they fill.
        slots: u32,
        /// How far Kueue has gone.
        phase: AdmissionPhase,
    },
    /// The plan is made and every gate is open.
    Planned {
        /// Nodes wanted.
        slots: u32,
        /// Hash of the plan's shape.
        plan: String,
        /// How pods will find their nodes.
        pinning: Pinning,
        /// Which of the ways to get nodes it is.
        option: OptionPosition,
    },
    /// No node is needed.
    NothingNeeded,
    /// The check was put on a Workload that runs already.
    AlreadyRunning,
    /// The gang can never be provisioned.
    Impossible(Failure),
    /// The gang is refused until its Workload or the administrator's settings change.
    Refused(Failure),
    /// Slots without a claim.
    ClaimsMissing(Vec<u32>),
    /// Every slot has its claim.
    ClaimsExist,
    /// A claim failed for good, or a phase ran out of time.
    Failed(Failure),
    /// A node of the attempt was there and is lost, seen in a quorum read.
    Lost {
        /// What became of it.
        failure: Failure,
        /// How far Kueue has gone.
        phase: AdmissionPhase,
    },
    /// A claim that an earlier tier gave is gone and nothing says what is short, seen in a quorum read.
    Superseded(Failure),
    /// Every node can run its pods, seen in a quorum read.
    NodesReady,
    /// Claims exist that no state of this gang wants.
    Unwanted(Vec<String>),
    /// No claim of this gang is left, seen in a quorum read.
    ClaimsGone,
    /// The wait is over.
    WaitOver,
    /// The gang had run short of capacity, and others have given back as many nodes as it needs.
    CapacityBack,
}

/// How far Kueue has gone with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionPhase {
    /// Reserved, not admitted.
    Reserved,
    /// Admitted on a Ready of ours.
    Admitted,
    /// Admitted while our entry was Pending: the check came when the pods ran already.
    Running,
    /// Admitted, and an eviction would take pods that nobody makes anew, or that another slice brought.
    AdmittedPods,
}

impl AdmissionPhase {
    /// Whether pods are let go on a Ready of ours.
    pub const fn lets_pods_go(self) -> bool {
        matches!(self, Self::Admitted | Self::AdmittedPods)
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Create the NodeClaims of these slots, in parallel.
    CreateClaims(Vec<u32>),
    /// Delete these NodeClaims.
    DeleteClaims(Vec<String>),
}

/// Why a transition was taken: a closed set, for history, metrics and events.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(untagged)]
pub enum Reason {
    /// Something moved on.
    Progress(Progress),
    /// The reservation ended.
    Ended(Ending),
    /// Something failed.
    Failed(FailureClass),
}

/// Reasons of transitions that move on.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is named after the event that causes it")]
pub enum Progress {
    Reserved,
    StaleReady,
    ClaimsFound,
    PlanAccepted,
    NothingNeeded,
    AlreadyRunning,
    Impossible,
    AllCreated,
    AllReady,
    ClaimsGone,
    WaitOver,
    CapacityBack,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Progress(p) => fmt::Debug::fmt(p, f),
            Self::Ended(e) => fmt::Debug::fmt(e, f),
            Self::Failed(c) => fmt::Debug::fmt(c, f),
        }
    }
}

impl Event {
    /// Whether it takes something away from a gang that waits for its nodes or has them.
    pub(super) fn is_setback(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Lost { .. } | Self::Superseded(_))
    }

    /// The reason a transition caused by this event is recorded with.
    pub fn reason(&self) -> Reason {
        match self {
            Self::AlreadyRunning | Self::Reserved { phase: AdmissionPhase::Running, .. } => {
                Reason::Progress(Progress::AlreadyRunning)
            }
            Self::Reserved { phase: AdmissionPhase::Admitted | AdmissionPhase::AdmittedPods, .. } => {
                Reason::Progress(Progress::StaleReady)
            }
            Self::Reserved { .. } => Reason::Progress(Progress::Reserved),
            Self::Leaving(ending) | Self::Gone(ending) => Reason::Ended(*ending),
            Self::Found { .. } => Reason::Progress(Progress::ClaimsFound),
            Self::Planned { .. } => Reason::Progress(Progress::PlanAccepted),
            Self::NothingNeeded => Reason::Progress(Progress::NothingNeeded),
            Self::Impossible(_) => Reason::Progress(Progress::Impossible),
            Self::ClaimsMissing(_) | Self::ClaimsExist => Reason::Progress(Progress::AllCreated),
            Self::Refused(failure)
            | Self::Failed(failure)
            | Self::Lost { failure, .. }
            | Self::Superseded(failure) => Reason::Failed(failure.reason),
            Self::NodesReady => Reason::Progress(Progress::AllReady),
            Self::Unwanted(_) | Self::ClaimsGone => Reason::Progress(Progress::ClaimsGone),
            Self::WaitOver => Reason::Progress(Progress::WaitOver),
            Self::CapacityBack => Reason::Progress(Progress::CapacityBack),
        }
    }
}
