//! When the pods on a gang's nodes are listed, and on which nodes: nothing watches them.
//!
//! Called by the controller's quorum reads. Rule: all nodes of a gang are searched before it is reported Ready, and the nodes of
//! failed claims before they count as having no pods.

use super::claims::ClaimView;
use super::observed::Observed;
use crate::api::parameters::Pinning;
use crate::api::workload::Verdict;
use crate::api::{NodeClaim, Workload};
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::State;
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use std::sync::Arc;

/// How often the nodes of a gang that waits for admission are searched for other pods.
const LIST_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// Inputs that decide whether a gang needs a list of pods.
#[derive(Clone, Copy, Debug)]
pub struct PodListing<'a> {
    /// Where the gang is.
    pub journal: &'a Journal,
    /// Its Workload.
    pub workload: &'a Workload,
    /// Its check.
    pub check: &'a str,
    /// Its claims and Nodes.
    pub observed: &'a Observed,
    /// The time.
    pub now: Timestamp,
}

impl PodListing<'_> {
    /// Whether other pods may have landed on the gang's nodes since it was reported Ready: no taint keeps them off, and
    /// Kueue may still admit the gang.
    pub fn is_due(&self) -> bool {
        let due = |last: Timestamp| last.checked_add(LIST_AGAIN).is_ok_and(|at| at <= self.now);
        self.journal.state.holds_nodes()
            && !self.workload.is_admitted()
            && self.journal.memory.pinning != Pinning::SelectorAndTaint
            && self.observed.pods_listed.is_none_or(due)
    }

    /// The nodes to list pods of. Before a gang is reported Ready, all of its nodes: anyone may write a toleration for the
    /// taint. Once it is admitted, the nodes of failed claims, which `views` shows.
    pub fn nodes(&self, views: impl FnOnce() -> Vec<ClaimView>) -> Vec<String> {
        let (state, observed) = (&self.journal.state, self.observed);
        let is_complete = matches!(state, State::WaitingReady | State::Approved { .. });
        let is_ready = self.workload.check(self.check).is_some_and(|c| c.state == Verdict::Ready);
        let is_reported = is_ready && !self.is_due();
        if is_complete && !is_reported && observed.has_ready_nodes(self.journal) {
            return observed.nodes.keys().cloned().collect();
        }
        let has_failures =
            matches!(state, State::Provisioning | State::WaitingReady | State::Approved { .. });
        if !has_failures || !self.workload.is_admitted() {
            return Vec::new();
        }
        let failed: BTreeSet<String> =
            views().into_iter().filter(ClaimView::has_failed).map(|view| view.name).collect();
        let is_failed =
            |claim: &&Arc<NodeClaim>| claim.metadata.name.as_ref().is_some_and(|name| failed.contains(name));
        let failed = observed.claims.iter().filter(is_failed);
        failed.filter_map(|claim| claim.node_name()).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Node;
    use crate::gang::statechart::reservation::AdmissionId;
    use crate::gang::{Failure, FailureClass, Health, Nodes};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const APPROVED: State = State::Approved { nodes: Nodes::Held };

    fn workload(is_admitted: bool, reported: &str) -> Workload {
        let conditions: Vec<Value> = is_admitted
            .then(|| json!({"type": "Admitted", "status": "True", "reason": "r", "message": "", "lastTransitionTime": NOW.to_string()}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "w"}, "spec": {},
            "status": {"conditions": conditions, "admissionChecks": [{"name": "c", "state": reported}]},
        }))
        .unwrap()
    }

    /// The claims "a" and "b" on the ready nodes "node-a" and "node-b".
    fn observed() -> Observed {
        let claim = |name: &str| -> Arc<NodeClaim> {
            Arc::new(
                serde_json::from_value(json!({
                    "metadata": {"name": name}, "status": {"nodeName": format!("node-{name}")},
                    "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
                }))
                .unwrap(),
            )
        };
        let node = |name: &str| -> (String, Arc<Node>) {
            let ready = json!({"type": "Ready", "status": "True", "reason": "r", "message": "", "lastTransitionTime": NOW.to_string()});
            let node = json!({"metadata": {"name": name}, "spec": {}, "status": {"conditions": [ready]}});
            (name.to_owned(), Arc::new(serde_json::from_value(node).unwrap()))
        };
        let nodes = BTreeMap::from([node("node-a"), node("node-b")]);
        Observed::cached(vec![claim("a"), claim("b")], nodes)
    }

    fn with<T>(state: State, workload: &Workload, act: impl FnOnce(&PodListing<'_>) -> T) -> T {
        let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), NOW, None);
        journal.state = state;
        (journal.memory.slots, journal.memory.pinning) = (2, Pinning::Selector);
        let observed = Observed { pods_listed: Some(NOW), ..observed() };
        act(&PodListing { journal: &journal, workload, check: "c", observed: &observed, now: NOW })
    }

    #[test]
    fn all_nodes_are_searched_until_the_gang_is_reported_ready_and_then_those_of_failed_claims() {
        let views = || {
            let failed = Health::Failed(Failure::new(FailureClass::LaunchFailed, "no"));
            vec![ClaimView::new("a", 1, 0, Health::Ready { since: NOW }), ClaimView::new("b", 1, 1, failed)]
        };
        for (state, is_admitted, reported, nodes) in [
            (State::WaitingReady, false, "Pending", vec!["node-a", "node-b"]),
            (APPROVED, false, "Pending", vec!["node-a", "node-b"]),
            (APPROVED, false, "Ready", vec![]),
            (State::Validating, false, "Pending", vec![]),
            (State::WaitingReady, true, "Ready", vec!["node-b"]),
            (State::Provisioning, true, "Ready", vec!["node-b"]),
            (State::Provisioning, false, "Ready", vec![]),
        ] {
            let found = with(state.clone(), &workload(is_admitted, reported), |listing| listing.nodes(views));
            assert_eq!(found, nodes, "{state:?} {is_admitted} {reported}");
        }
    }

    #[test]
    fn nodes_without_a_taint_are_searched_each_minute_until_admission() {
        let is_due = |state, is_admitted, pinning, seconds| {
            with(state, &workload(is_admitted, "Ready"), |listing| {
                let mut journal = listing.journal.clone();
                journal.memory.pinning = pinning;
                let now = NOW + SignedDuration::from_secs(seconds);
                PodListing { journal: &journal, now, ..*listing }.is_due()
            })
        };
        assert!(is_due(APPROVED, false, Pinning::Selector, 60));
        assert!(!is_due(APPROVED, false, Pinning::Selector, 59));
        assert!(!is_due(APPROVED, false, Pinning::SelectorAndTaint, 60));
        assert!(!is_due(APPROVED, true, Pinning::Selector, 60));
        assert!(!is_due(State::WaitingReady, false, Pinning::Selector, 60));
    }
}
