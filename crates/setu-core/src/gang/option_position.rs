//! Which of its provisioning options a gang gets its nodes by: the tiers of its policy, one after the other.

use super::failure::FailureClass;
use serde::{Deserialize, Serialize};

/// The provisioning option of an attempt, among those that the policy gives.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionPosition {
    /// Index of its tier in the policy.
    #[serde(default)]
    pub tier: u32,
    /// Index among all options.
    #[serde(rename = "choice", default)]
    pub index: u32,
    /// How many options there are.
    #[serde(rename = "choices", default)]
    pub count: u32,
}

impl OptionPosition {
    /// First option to try for the slots that failed like this, while the others stay; `None` if none is left.
    ///
    /// Where it is known what is short the plan avoids that, and may find more of an earlier tier: the lost
    /// claim may be of another option than the latest. Where it is not, the same option would fail again and again.
    pub fn past(self, failure: FailureClass) -> Option<u32> {
        let next = if failure.names_what_is_short() { self.index } else { self.index.saturating_add(1) };
        (failure.is_shortage() && self.count > 1 && next < self.count).then_some(next)
    }

    /// The same for a slot that was lost under an earlier option: the present one stays, as it has not failed.
    pub fn still(self, failure: FailureClass) -> Option<u32> {
        (failure.is_shortage() && self.count > 1).then_some(self.index)
    }
}
