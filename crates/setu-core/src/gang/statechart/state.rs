//! The states of a gang.

use crate::listed::listed;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a gang, with the data that only this state has.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(tag = "state")]
pub enum State {
    /// The plan is computed and its gates are checked; nothing exists yet.
    Validating,
    /// The intent is durable and NodeClaims are being created.
    Provisioning,
    /// All NodeClaims exist; their nodes come up.
    WaitingReady,
    /// All NodeClaims of the attempt are being given up.
    RollingBack {
        /// The state after the rollback.
        then: Then,
    },
    /// Nothing exists, the quota is held, and the next attempt waits.
    BackingOff {
        /// When the wait ends.
        until: Timestamp,
    },
    /// The gang may run.
    Approved {
        /// Its nodes. In a journal the slot count says whether it needs any.
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

/// The nodes of a gang that may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Nodes {
    /// It needs none.
    Unneeded,
    /// The nodes of its attempt are held for it.
    #[default]
    Held,
    /// NodeClaims that replace lost ones are still to be created.
    Replacing,
}

impl Nodes {
    /// The value for this many slots while none is being replaced.
    pub const fn of(slots: u32) -> Self {
        if slots == 0 { Self::Unneeded } else { Self::Held }
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    fn are_whole(&self) -> bool {
        *self != Self::Replacing
    }
}

/// The form in a journal: whether lost NodeClaims are still to be replaced.
mod written_nodes {
    use crate::gang::Nodes;
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

listed! {
    /// The state without its data, for history, metrics and charts. In life-cycle order.
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

    /// Whether the gang has ended under this admission and holds nothing.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Yielded | Self::Rejected | Self::Released)
    }

    /// Whether NodeClaims of the current attempt are wanted.
    pub const fn wants_claims(self) -> bool {
        matches!(self, Self::Provisioning | Self::WaitingReady | Self::Approved)
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

    /// Whether the gang has ended under this admission and holds nothing.
    pub fn is_over(&self) -> bool {
        self.name().is_over()
    }

    /// Whether an attempt has failed and another follows under the same admission.
    pub fn awaits_next_try(&self) -> bool {
        matches!(self, Self::BackingOff { .. } | Self::RollingBack { then: Then::BackingOff })
    }

    /// Whether an attempt is being made, is complete or is being rolled back.
    pub fn is_in_flight(&self) -> bool {
        self.wants_claims() || matches!(self, Self::RollingBack { .. })
    }

    /// Whether NodeClaims of the current attempt are wanted.
    pub fn wants_claims(&self) -> bool {
        self.name().wants_claims()
    }

    /// Whether NodeClaims of the current attempt are being created.
    pub fn creates_claims(&self) -> bool {
        matches!(self, Self::Provisioning | Self::Approved { nodes: Nodes::Replacing })
    }

    /// Whether its plan chooses new nodes, so that the NodeClaims of others in its NodePools count.
    pub fn chooses_nodes(&self) -> bool {
        matches!(self, Self::Validating | Self::Provisioning)
    }

    /// Whether the next step depends on a plan.
    pub fn needs_plan(&self) -> bool {
        match self {
            Self::Approved { nodes } => *nodes != Nodes::Held,
            _ => self.chooses_nodes(),
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
