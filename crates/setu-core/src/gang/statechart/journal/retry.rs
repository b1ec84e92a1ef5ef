//! Which transitions try an attempt again, and how.

use super::Journal;
use crate::gang::statechart::event::Reason;
use crate::gang::statechart::state::StateName;
use crate::gang::statechart::transition::Transition;

/// How an attempt is tried again: the label `operation` of the metric of retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryKind {
    /// With the next option.
    Tier,
    /// With the same quota, after a pause.
    InCheck,
    /// After the quota was given back.
    Yield,
}

impl RetryKind {
    /// Its name, as a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tier => "tier",
            Self::InCheck => "in_check",
            Self::Yield => "yield",
        }
    }
}

impl Journal {
    /// Which retry this transition from `before` is, with its number; `None` if it is not a retry.
    pub fn retry(&self, transition: &Transition, before: &Self) -> Option<(RetryKind, u32)> {
        let option = self.memory.option.index;
        match (transition.from, transition.to) {
            // A rollback has moved the gang to its next tier already, or back to the first one.
            (StateName::RollingBack, StateName::BackingOff) if option > 0 => Some((RetryKind::Tier, option)),
            (StateName::RollingBack | StateName::Validating, StateName::BackingOff) => {
                Some((RetryKind::InCheck, self.memory.tries))
            }
            (_, StateName::Provisioning) if option > before.memory.option.index => {
                Some((RetryKind::Tier, option))
            }
            // Part of the gang falls to the next tier that has capacity.
            (StateName::Provisioning | StateName::WaitingReady, StateName::Provisioning) => {
                let is_short = matches!(transition.reason, Reason::Failed(class) if class.is_shortage());
                is_short.then_some((RetryKind::Tier, option.saturating_add(1)))
            }
            (_, StateName::Yielded) => Some((RetryKind::Yield, self.memory.yields)),
            _ => None,
        }
    }
}
