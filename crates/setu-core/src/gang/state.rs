//! Where a gang can be.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a gang, with what only this state knows.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "state")]
pub enum State {
    /// The plan is worked out and its gates are passed; nothing exists yet.
    Validating,
    /// The intent is durable and NodeClaims are being created.
    Provisioning,
    /// All NodeClaims exist; their nodes come up.
    WaitingReady,
    /// Everything of the attempt is being taken back.
    RollingBack {
        /// Where the gang goes once nothing is left.
        then: Then,
    },
    /// Nothing exists, the quota is held, and the next attempt waits.
    BackingOff {
        /// When the wait is over.
        until: Timestamp,
    },
    /// The gang may run and its nodes are held for it.
    Approved,
    /// The quota was given back.
    Yielded,
    /// Cannot run as specified.
    Rejected,
    /// Over: nothing is held.
    Released,
}

/// Where a rollback leads.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Then {
    /// Wait with the quota held, then try again.
    BackingOff,
    /// Give the quota back.
    Yielded,
    /// Reject.
    Rejected,
    /// Nothing more to do.
    Released,
}

/// The state without its data: what history, metrics and charts name.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each variant is documented at `State`")]
pub enum StateName {
    Validating,
    Provisioning,
    WaitingReady,
    BackingOff,
    Approved,
    RollingBack,
    Yielded,
    Rejected,
    Released,
}

impl StateName {
    /// Every state, in the order of a life.
    pub const ALL: [Self; 9] = [
        Self::Validating,
        Self::Provisioning,
        Self::WaitingReady,
        Self::BackingOff,
        Self::Approved,
        Self::RollingBack,
        Self::Yielded,
        Self::Rejected,
        Self::Released,
    ];
}

impl StateName {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Validating => "Validating",
            Self::Provisioning => "Provisioning",
            Self::WaitingReady => "WaitingReady",
            Self::BackingOff => "BackingOff",
            Self::Approved => "Approved",
            Self::RollingBack => "RollingBack",
            Self::Yielded => "Yielded",
            Self::Rejected => "Rejected",
            Self::Released => "Released",
        }
    }
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl State {
    /// Its name.
    pub fn name(&self) -> StateName {
        match self {
            Self::Validating => StateName::Validating,
            Self::Provisioning => StateName::Provisioning,
            Self::WaitingReady => StateName::WaitingReady,
            Self::RollingBack { .. } => StateName::RollingBack,
            Self::BackingOff { .. } => StateName::BackingOff,
            Self::Approved => StateName::Approved,
            Self::Yielded => StateName::Yielded,
            Self::Rejected => StateName::Rejected,
            Self::Released => StateName::Released,
        }
    }

    /// Whether the gang's life under this admission is over and it holds nothing.
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Yielded | Self::Rejected | Self::Released)
    }

    /// Whether an attempt has failed and the next one is to come under the same admission.
    pub fn awaits_next_try(&self) -> bool {
        matches!(self, Self::BackingOff { .. } | Self::RollingBack { then: Then::BackingOff })
    }

    /// Whether an attempt is made, stands or is taken back.
    pub fn is_in_flight(&self) -> bool {
        self.wants_claims() || matches!(self, Self::RollingBack { .. })
    }

    /// Whether NodeClaims of the current attempt are wanted.
    pub fn wants_claims(&self) -> bool {
        matches!(self, Self::Provisioning | Self::WaitingReady | Self::Approved)
    }
}
