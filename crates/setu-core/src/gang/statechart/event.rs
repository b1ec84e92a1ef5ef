//! Events that are observed about a gang, and effects to run.
//!
//! Events are observations, never commands; effects are data. Both are level-triggered: the same
//! snapshot gives the same events, and an effect may be run twice without harm.

use super::failure::{Failure, FailureClass};
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, AdmissionPhase, Ending};
use crate::api::parameters::Pinning;
use crate::plan::pod_set_labels::PodSetLabels;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Quota is reserved under a different admission than the journal's.
    Reserved {
        /// The current admission.
        admission: AdmissionId,
        /// Its phase in Kueue.
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
        /// Their latest generation.
        generation: u32,
        /// How many slots they fill.
        slots: u32,
        /// The labels by which pods find the nodes of their own pod sets.
        pod_sets: PodSetLabels,
        /// The phase of the reservation in Kueue.
        phase: AdmissionPhase,
    },
    /// The plan is made and every gate is open.
    Planned {
        /// Number of nodes.
        slots: u32,
        /// Hash of the plan.
        plan: String,
        /// How pods will find their nodes.
        pinning: Pinning,
        /// The labels by which they find the nodes of their own pod sets.
        pod_sets: PodSetLabels,
        /// The option that the plan uses.
        option: OptionPosition,
    },
    /// No node is needed.
    NothingNeeded,
    /// The check was added to a Workload that already runs.
    AlreadyRunning,
    /// The gang can never be provisioned.
    Impossible(Failure),
    /// The gang is refused until its Workload or the administrator's settings change.
    Refused(Failure),
    /// Slots without a claim.
    ClaimsMissing(Vec<u32>),
    /// Every slot has its claim.
    ClaimsExist,
    /// A claim failed permanently, or a phase timed out.
    Failed(Failure),
    /// A node of the attempt existed and is lost, seen in a quorum read.
    Lost {
        /// Why it was lost.
        failure: Failure,
        /// The phase of the reservation in Kueue.
        phase: AdmissionPhase,
    },
    /// A claim of an earlier option is lost and nothing says what is short, seen in a quorum read.
    Superseded(Failure),
    /// Every node can run its pods, seen in a quorum read.
    NodesReady,
    /// Claims that this gang does not want in its state.
    Unwanted(Vec<String>),
    /// No claim of this gang is left, seen in a quorum read.
    ClaimsGone,
    /// The wait is over.
    WaitOver,
    /// The gang ran out of capacity, and others have since given back as many nodes as it needs.
    CapacityBack,
}

/// A change to make in the cluster.
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
    /// Progress.
    Progress(ProgressReason),
    /// The reservation ended.
    Ended(Ending),
    /// Something failed.
    Failed(FailureClass),
}

/// Reasons of transitions that are progress.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is named after the event that causes it")]
pub enum ProgressReason {
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
    /// Whether it is a failure or a loss of nodes.
    pub(in crate::gang) fn is_setback(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Lost { .. } | Self::Superseded(_))
    }

    /// The reason that is recorded for a transition caused by this event.
    pub fn reason(&self) -> Reason {
        match self {
            Self::AlreadyRunning | Self::Reserved { phase: AdmissionPhase::Running, .. } => {
                Reason::Progress(ProgressReason::AlreadyRunning)
            }
            Self::Reserved { phase: AdmissionPhase::Admitted | AdmissionPhase::AdmittedPods, .. } => {
                Reason::Progress(ProgressReason::StaleReady)
            }
            Self::Reserved { .. } => Reason::Progress(ProgressReason::Reserved),
            Self::Leaving(ending) | Self::Gone(ending) => Reason::Ended(*ending),
            Self::Found { .. } => Reason::Progress(ProgressReason::ClaimsFound),
            Self::Planned { .. } => Reason::Progress(ProgressReason::PlanAccepted),
            Self::NothingNeeded => Reason::Progress(ProgressReason::NothingNeeded),
            Self::Impossible(_) => Reason::Progress(ProgressReason::Impossible),
            Self::ClaimsMissing(_) | Self::ClaimsExist => Reason::Progress(ProgressReason::AllCreated),
            Self::Refused(failure)
            | Self::Failed(failure)
            | Self::Lost { failure, .. }
            | Self::Superseded(failure) => Reason::Failed(failure.reason),
            Self::NodesReady => Reason::Progress(ProgressReason::AllReady),
            Self::Unwanted(_) | Self::ClaimsGone => Reason::Progress(ProgressReason::ClaimsGone),
            Self::WaitOver => Reason::Progress(ProgressReason::WaitOver),
            Self::CapacityBack => Reason::Progress(ProgressReason::CapacityBack),
        }
    }
}
