//! The next change of its NodeClaims that a gang needs. It decides whether an event needs a reconcile at once or may wait.
//!
//! Rule: a hint. A reconcile decides by its own snapshot, so a wrong expectation costs only the time that an event may wait.

use super::Snapshot;
use super::attempt::{Attempt, SlotStatus};
use crate::api::{Node, NodeClaim};
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::StateName;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The change that the next step of a gang depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// The nodes of the claims with these names become ready, and none of the gang's claims goes.
    Ready(BTreeSet<String>),
    /// The claims with these names go.
    Gone(BTreeSet<String>),
}

/// The state of a NodeClaim that an event shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimEvent {
    /// Its node is not ready.
    Pending,
    /// Its node may be ready.
    Ready,
    /// It is being deleted, or its Node is gone.
    Ending,
    /// It is gone.
    Gone,
}

impl ClaimEvent {
    /// The state that an existing claim and its Node show.
    pub fn of(is_deleting: bool, is_initialized: bool, node: Option<&Node>) -> Self {
        if is_deleting {
            Self::Ending
        } else if is_initialized && node.is_some_and(Node::is_ready) {
            Self::Ready
        } else {
            Self::Pending
        }
    }
}

impl Expectation {
    /// The expectation of a gang with these claims; `None` if every event counts.
    pub fn of(journal: &Journal, snapshot: &Snapshot<'_>, claims: &[Arc<NodeClaim>]) -> Option<Self> {
        match journal.state.name() {
            StateName::WaitingReady | StateName::Approved => {
                let attempt = Attempt::of(journal, snapshot);
                let waits = attempt.slots().filter(|(_, slot)| !matches!(slot, SlotStatus::Ready(_)));
                Some(Self::Ready(
                    waits.filter_map(|(_, slot)| slot.claim()).map(|c| c.name.clone()).collect(),
                ))
            }
            StateName::RollingBack => {
                Some(Self::Gone(claims.iter().filter_map(|claim| claim.metadata.name.clone()).collect()))
            }
            _ => None,
        }
    }

    /// Takes an event of a claim, and returns whether a reconcile is due at once.
    pub fn takes(&mut self, claim: &str, event: ClaimEvent) -> bool {
        match (self, event) {
            (Self::Ready(_), ClaimEvent::Ending | ClaimEvent::Gone) => true,
            (Self::Ready(waits), ClaimEvent::Ready) | (Self::Gone(waits), ClaimEvent::Gone) => {
                waits.remove(claim) && waits.is_empty()
            }
            (Self::Ready(_), ClaimEvent::Pending) | (Self::Gone(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Takes each event of a claim in turn, and compares whether it is due.
    fn takes(mut expected: Expectation, events: &[(&str, ClaimEvent, bool)]) {
        for (claim, event, due) in events {
            assert_eq!(expected.takes(claim, *event), *due, "{claim} {event:?}");
        }
    }

    #[test]
    fn a_gang_is_due_when_its_last_node_may_be_ready_or_any_claim_goes() {
        let events = [
            ("a", ClaimEvent::Pending, false),
            ("a", ClaimEvent::Ready, false),
            ("other", ClaimEvent::Ready, false),
            ("b", ClaimEvent::Ready, true),
            ("b", ClaimEvent::Ready, false),
            ("a", ClaimEvent::Ending, true),
            ("a", ClaimEvent::Gone, true),
        ];
        takes(Expectation::Ready(names(&["a", "b"])), &events);
    }

    #[test]
    fn a_rollback_is_due_when_its_last_claim_is_gone() {
        let events = [
            ("a", ClaimEvent::Ending, false),
            ("b", ClaimEvent::Gone, false),
            ("a", ClaimEvent::Ready, false),
            ("a", ClaimEvent::Gone, true),
        ];
        takes(Expectation::Gone(names(&["a", "b"])), &events);
    }

    #[test]
    fn a_claim_is_ready_with_an_initialized_ready_node_unless_it_is_being_deleted() {
        let ready: Node = serde_json::from_value(serde_json::json!({
            "metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        assert_eq!(ClaimEvent::of(false, true, Some(&ready)), ClaimEvent::Ready);
        assert_eq!(ClaimEvent::of(true, true, Some(&ready)), ClaimEvent::Ending);
        for (initialized, node) in [(false, Some(&ready)), (true, None), (true, Some(&Node::default()))] {
            assert_eq!(ClaimEvent::of(false, initialized, node), ClaimEvent::Pending);
        }
    }
}
