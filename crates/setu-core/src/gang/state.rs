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
    /// The gang may run.
    Approved {
        /// What it has for nodes; the number of its slots says in writing whether it needs any.
        #[serde(
            rename = "mending",
            with = "written_nodes",
            default,
            skip_serializing_if = "Nodes::are_whole"
        )]
        nodes: Nodes,
    },
    /// The quota was given back.
    Yielded,
    /// Cannot run as specified.
    Rejected,
    /// Over: nothing is held.
    Released,
}

/// What a gang that may run has for nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nodes {
    /// It needs none.
    Unneeded,
    /// Those of its attempt are held for it.
    #[default]
    Held,
    /// NodeClaims in place of lost ones are still to be created.
    Replacing,
}

impl Nodes {
    /// Nodes of so many slots, none of which is being replaced.
    pub const fn of(slots: u32) -> Self {
        if slots == 0 { Self::Unneeded } else { Self::Held }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    fn are_whole(&self) -> bool {
        *self != Self::Replacing
    }
}

/// In a journal: whether NodeClaims are still to be replaced.
mod written_nodes {
    use super::Nodes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub(super) fn serialize<S: Serializer>(nodes: &Nodes, to: S) -> Result<S::Ok, S::Error> {
        (*nodes == Nodes::Replacing).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Nodes, D::Error> {
        Ok(if bool::deserialize(from)? { Nodes::Replacing } else { Nodes::Held })
    }
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
            Self::Approved { .. } => StateName::Approved,
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
        matches!(self, Self::Provisioning | Self::WaitingReady | Self::Approved { .. })
    }

    /// Whether NodeClaims of the current attempt are being created.
    pub fn creates_claims(&self) -> bool {
        matches!(self, Self::Provisioning | Self::Approved { nodes: Nodes::Replacing })
    }

    /// Whether the next step depends on a plan.
    pub fn needs_plan(&self) -> bool {
        match self {
            Self::Validating | Self::Provisioning => true,
            Self::Approved { nodes } => *nodes != Nodes::Held,
            _ => false,
        }
    }

    /// Whether the gang may run.
    pub fn is_approved(&self) -> bool {
        matches!(self, Self::Approved { .. })
    }

    /// Whether the gang may run and has nodes for it.
    pub fn holds_nodes(&self) -> bool {
        matches!(self, Self::Approved { nodes: Nodes::Held | Nodes::Replacing })
    }
}
