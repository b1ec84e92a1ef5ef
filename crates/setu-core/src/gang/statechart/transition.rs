//! A transition of a gang, as its journal keeps it.

use super::event::Reason;
use super::state::StateName;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One transition.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Its number, counted from 1.
    pub seq: u64,
    /// State left.
    pub from: StateName,
    /// State entered.
    pub to: StateName,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: Reason,
    /// The current attempt after it.
    #[serde(default)]
    pub attempt: u32,
    /// The tier of that attempt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier: u32,
    /// The replica that made it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
}

impl Transition {
    /// Whether it begins an attempt, and not a replacement.
    pub fn begins(&self) -> bool {
        (self.from, self.to) == (StateName::Validating, StateName::Provisioning)
    }

    /// Whether it approves the gang.
    pub fn approves(&self) -> bool {
        self.from != StateName::Approved && self.to == StateName::Approved
    }

    /// Whether it takes back nodes that were not all ready.
    pub fn fails_attempt(&self) -> bool {
        matches!(self.from, StateName::Provisioning | StateName::WaitingReady)
            && self.to == StateName::RollingBack
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
