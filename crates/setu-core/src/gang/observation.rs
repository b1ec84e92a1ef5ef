//! The result of observing a gang: events, or the need for a quorum read.

use super::event::Event;
use super::failure::Failure;
use super::snapshot::{Freshness, Snapshot};
use crate::planted::planted;

/// What a snapshot shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// These events, in the order to handle them; may be empty.
    Events(Vec<Event>),
    /// The cache suggests a decision that needs a quorum read.
    NeedsQuorumRead,
}

impl Observation {
    /// One event.
    pub(super) fn of(event: Event) -> Self {
        Self::Events(vec![event])
    }

    /// One event that counts only in a quorum read.
    pub(super) fn confirmed(snapshot: &Snapshot<'_>, event: Event) -> Self {
        match snapshot.freshness {
            Freshness::Quorum => Self::of(event),
            Freshness::Cached => Self::NeedsQuorumRead,
        }
    }

    /// The end of the attempt with a failure, or a quorum read if the failure needs one.
    pub(super) fn failed(snapshot: &Snapshot<'_>, failure: Failure) -> Self {
        let unsure = failure.reason.needs_quorum() && snapshot.freshness == Freshness::Cached;
        if unsure && !planted!(DeadlineOnCache) {
            return Self::NeedsQuorumRead;
        }
        Self::of(Event::Failed(failure))
    }
}
