//! By which of its ways a gang gets its nodes: the tiers of its policy, one after the other.

use super::failure::FailureClass;
use serde::{Deserialize, Serialize};

/// One way to get the nodes of a gang among those its policy gives.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Index of its tier in the policy.
    #[serde(default)]
    pub tier: u32,
    /// Index among all ways.
    #[serde(default)]
    pub choice: u32,
    /// How many ways there are.
    #[serde(default)]
    pub choices: u32,
}

impl Way {
    /// First way to try for the slots that this failure took, while the others stay; `None` if none is left.
    ///
    /// Where it is known what is short the plan avoids that, and may find more of an earlier tier: the lost
    /// claim may be of another one than the latest. Where it is not, the same way would fail again and again.
    pub fn past(self, failure: FailureClass) -> Option<u32> {
        let next = if failure.names_what_is_short() { self.choice } else { self.choice.saturating_add(1) };
        (failure.is_shortage() && self.choices > 1 && next < self.choices).then_some(next)
    }

    /// The same for what a way took that was left since: nothing is known against the one of now.
    pub fn still(self, failure: FailureClass) -> Option<u32> {
        (failure.is_shortage() && self.choices > 1).then_some(self.choice)
    }
}
