//! The result of observing a gang: events, or the need for a quorum read.

use crate::gang::snapshot::{Freshness, Snapshot};
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::Failure;
use crate::planted::planted;

/// The result of observing a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// These events, in the order to handle them; may be empty.
    Events(Vec<Event>),
    /// The cache suggests a decision that needs a quorum read of the gang.
    NeedsQuorumRead,
    /// The plan suggests a decision that needs a quorum read of the gang and of what plans are made from.
    NeedsPlanRead,
}

impl Observation {
    /// One event.
    pub(super) fn of(event: Event) -> Self {
        Self::Events(vec![event])
    }

    /// One event that counts only in a quorum read.
    pub(super) fn confirmed(snapshot: &Snapshot<'_>, event: Event) -> Self {
        match (snapshot.freshness, snapshot.plan_freshness) {
            (_, Freshness::Cached) if rests_on_plan(snapshot, &event) => Self::NeedsPlanRead,
            (Freshness::Quorum, _) => Self::of(event),
            (Freshness::Cached, _) => Self::NeedsQuorumRead,
        }
    }

    /// The end of the attempt with a failure, or a quorum read if the failure needs one.
    pub(super) fn failed(snapshot: &Snapshot<'_>, failure: Failure) -> Self {
        let needs_quorum = failure.reason.needs_quorum() && !planted!(DeadlineOnCache);
        let event = Event::Failed(failure);
        if needs_quorum { Self::confirmed(snapshot, event) } else { Self::of(event) }
    }
}

/// Whether an event gives the gang up, ends its attempt, or passes over a NodePool, because of what its plan is made from.
fn rests_on_plan(snapshot: &Snapshot<'_>, event: &Event) -> bool {
    match event {
        Event::NothingNeeded | Event::Impossible(_) | Event::Refused(_) => true,
        Event::Failed(failure) => failure.reason.rests_on_plan(),
        Event::Planned { .. } => snapshot.passes_over_edited,
        _ => false,
    }
}
