//! The provisioning option that a gang's nodes come from: the tiers of its policy, in order.

use super::failure::FailureClass;
use serde::{Deserialize, Serialize};

/// The provisioning option of an attempt, among those of the policy.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OptionPosition {
    /// Index of its tier in the policy.
    #[serde(default)]
    pub tier: u32,
    /// Index among all options.
    #[serde(rename = "choice", default)]
    pub index: u32,
    /// Number of options.
    #[serde(rename = "choices", default)]
    pub count: u32,
}

impl OptionPosition {
    /// The first option to try for the slots that failed this way, while the others stay; `None` if none is left.
    ///
    /// A certain shortage keeps the current option: the plan avoids what is short, and the lost claim may
    /// belong to an earlier option. Any other failure would repeat with the same option.
    pub fn next_for_lost(self, failure: FailureClass) -> Option<u32> {
        let next = if failure.is_certain_shortage() { self.index } else { self.index.saturating_add(1) };
        (failure.is_shortage() && self.count > 1 && next < self.count).then_some(next)
    }

    /// The option to try for a slot that was lost under an earlier option. The current one has not failed, so it stays.
    pub fn current_for_lost(self, failure: FailureClass) -> Option<u32> {
        (failure.is_shortage() && self.count > 1).then_some(self.index)
    }
}
