//! What is at hand of each NodeClaim when all of them are gone through: there may be thousands.

use super::memory::workload_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::custody::is_warm;
use crate::gang::identity::gang_of;
use crate::names;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

/// What guards and gauges want to know of a NodeClaim.
#[derive(Debug)]
pub struct ClaimGlance {
    /// Id of its gang.
    pub gang: String,
    /// UID of its Workload.
    pub workload_uid: String,
    /// Its Workload, as its annotation says; the one it was made for last where it is kept warm.
    pub workload: Option<ObjectRef<Workload>>,
    /// Its NodePool.
    pub node_pool: String,
    /// Its Node; empty until it is registered.
    pub node_name: String,
    /// The LocalQueue it is kept warm for; empty where it is not.
    pub kept_for: String,
    /// Value of its gang's label; the slices of an elastic Job have one in common.
    pub pin: String,
    /// Whether it is kept for a next gang.
    pub is_warm: bool,
    /// Whether its node is complete.
    pub is_initialized: bool,
    /// How far it has come.
    pub phase: Phase,
    /// Since when it exists.
    pub created: Option<Timestamp>,
}

/// How far a NodeClaim has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// No instance yet.
    Launching,
    /// No Node yet.
    Registering,
    /// The Node is not complete.
    Initializing,
    /// Initialized.
    Ready,
    /// On its way out.
    Deleting,
}

impl ClaimGlance {
    /// What a claim shows.
    pub fn of(claim: &NodeClaim) -> Self {
        Self {
            gang: gang_of(claim),
            workload_uid: claim.label(names::WORKLOAD_UID).to_owned(),
            workload: workload_of(claim),
            node_pool: claim.label(names::NODEPOOL).to_owned(),
            node_name: claim.node_name().unwrap_or_default().to_owned(),
            kept_for: claim.annotation(names::WARM_QUEUE).to_owned(),
            pin: claim.label(names::GANG).to_owned(),
            is_warm: is_warm(claim),
            is_initialized: claim.is("Initialized"),
            phase: Phase::of(claim),
            created: claim.metadata.creation_timestamp.as_ref().map(|t| t.0),
        }
    }

    /// UID of its Workload, by which it is found.
    pub fn workload_uid(&self) -> &str {
        &self.workload_uid
    }
}

impl Phase {
    fn of(claim: &NodeClaim) -> Self {
        if claim.metadata.deletion_timestamp.is_some() {
            return Self::Deleting;
        }
        match [claim.is("Launched"), claim.is("Registered"), claim.is("Initialized")] {
            [false, ..] => Self::Launching,
            [_, false, _] => Self::Registering,
            [_, _, false] => Self::Initializing,
            _ => Self::Ready,
        }
    }

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Launching => "launching",
            Self::Registering => "registering",
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
        }
    }
}
