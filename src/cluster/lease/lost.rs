//! Why a replica stopped leading: the reason for the log, and whether anything is wrong.

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The lease could not be renewed in time.
    Expired,
    /// Another replica holds the lease that was ours.
    Taken,
    /// Another replica has fewer shards.
    HandedOver,
    /// This process ends.
    Stopping,
}

impl Lost {
    /// The reason in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::HandedOver => "handed_over",
            Self::Stopping => "stopping",
        }
    }

    /// Whether this replica gave the lease up on purpose, so that nothing is wrong.
    pub const fn is_meant(self) -> bool {
        matches!(self, Self::HandedOver | Self::Stopping)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_term_that_was_not_given_up_deserves_a_warning() {
        let meant = |lost: Lost| (lost.name(), lost.is_meant());
        let all = [Lost::Expired, Lost::Taken, Lost::HandedOver, Lost::Stopping].map(meant);
        assert_eq!(all, [("expired", false), ("taken", false), ("handed_over", true), ("stopping", true)]);
    }
}
