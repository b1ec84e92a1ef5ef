//! Nodes that gangs gave back, counted for gangs that ran short of capacity: the gang that has held quota longest is
//! served first.
//!
//! Called by gangs' reconciles, and when a NodeClaim is gone. Rule: a hint, which may be lost at any time. It ends a wait
//! early and buys nothing. If no nodes are given back, the wait ends by its time.

use crate::api::{NodeClaim, Workload};
use crate::plan::PendingNodes;
use jiff::Timestamp;
use kube_core::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Gangs that wait for nodes, by their ids.
#[derive(Debug, Default)]
pub struct CapacityReturns(BTreeMap<String, WaitingGang>);

/// Namespace and name of a Workload.
pub type WorkloadKey = (String, String);

#[derive(Debug)]
struct WaitingGang {
    /// When quota was reserved.
    since: Timestamp,
    workload: WorkloadKey,
    node_pools: BTreeSet<String>,
    /// How many nodes are still to be given back.
    missing: u32,
}

impl CapacityReturns {
    /// Makes a gang wait until as many nodes of the same NodePools are given back as were reserved for it. A gang that
    /// already waits starts over.
    pub fn wait(&mut self, gang: &str, workload: &Workload, pending: &[PendingNodes]) {
        let waiting = WaitingGang {
            since: workload.reserved_since().unwrap_or(Timestamp::MAX),
            workload: (workload.namespace().unwrap_or_default(), workload.name_any()),
            node_pools: pending.iter().map(|r| r.node_pool.clone()).collect(),
            missing: pending.iter().map(|r| r.nodes).fold(0, u32::saturating_add),
        };
        self.0.insert(gang.to_owned(), waiting);
    }

    /// Ends a gang's wait.
    pub fn forget(&mut self, gang: &str) {
        self.0.remove(gang);
    }

    /// How many gangs wait.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Counts a node of this NodePool that gang `from` had and that is gone. Returns the Workload whose wait this ends.
    pub fn take(&mut self, node_pool: &str, from: &str) -> Option<WorkloadKey> {
        let wants =
            |gang: &str, w: &WaitingGang| w.missing > 0 && gang != from && w.node_pools.contains(node_pool);
        let waiting = self.0.iter_mut().filter(|(gang, waiting)| wants(gang, waiting));
        let (_, first) = waiting.min_by_key(|(_, waiting)| waiting.since)?;
        first.missing -= 1;
        (first.missing == 0).then(|| first.workload.clone())
    }

    /// Whether as many nodes were given back as a gang waits for.
    pub fn is_enough(&self, gang: &str) -> bool {
        self.0.get(gang).is_some_and(|waiting| waiting.missing == 0)
    }
}

/// Whether this is the last event of a claim that gives its node back. `is_gone` says that Setu no longer holds the claim.
pub fn gives_back(is_gone: bool, claim: &NodeClaim) -> bool {
    // A node that was never ready says nothing about capacity, and one that was handed back runs on.
    is_gone && claim.is_deleting() && claim.is_initialized()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pod::ResourceList;
    use serde_json::json;

    fn workload(name: &str, reserved: &str) -> Workload {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {},
            "status": {"conditions": [{
                "type": "QuotaReserved", "status": "True", "reason": "", "message": "", "lastTransitionTime": reserved,
            }]},
        }))
        .unwrap()
    }

    fn nodes(node_pool: &str, nodes: u32) -> PendingNodes {
        PendingNodes {
            gang: String::new(),
            node_pool: node_pool.into(),
            nodes,
            most: ResourceList::new(),
            or_more: 0,
            counted: BTreeSet::new(),
            unknown: BTreeSet::new(),
            drawn: BTreeMap::new(),
        }
    }

    /// Names of the Workloads whose wait ends as these nodes are given back, one by one.
    fn served(capacity_returns: &mut CapacityReturns, nodes: &[(&str, &str)]) -> Vec<Option<String>> {
        nodes.iter().map(|(pool, from)| capacity_returns.take(pool, from).map(|(_, name)| name)).collect()
    }

    #[test]
    fn only_a_claim_that_was_deleted_with_a_ready_node_gives_it_back() {
        let claim = |deleted: Option<&str>, initialized: &str| -> NodeClaim {
            serde_json::from_value(json!({
                "metadata": {"name": "c", "deletionTimestamp": deleted},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
                "status": {"conditions": [{
                    "type": "Initialized", "status": initialized, "reason": "", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }]},
            }))
            .unwrap()
        };
        let deleted = Some("2026-01-01T00:00:00Z");
        assert!(gives_back(true, &claim(deleted, "True")));
        assert!(!gives_back(true, &claim(deleted, "False")), "its node was never ready");
        assert!(!gives_back(true, &claim(None, "True")), "it was handed back");
        assert!(!gives_back(false, &claim(deleted, "True")), "it is still there");
    }

    #[test]
    fn gangs_are_served_in_the_order_of_their_quota_reservations() {
        let mut capacity_returns = CapacityReturns::default();
        capacity_returns.wait("late", &workload("late", "2026-01-01T00:00:09Z"), &[nodes("gpu", 1)]);
        capacity_returns.wait(
            "early",
            &workload("early", "2026-01-01T00:00:01Z"),
            &[nodes("gpu", 1), nodes("cpu", 1)],
        );
        assert!(!capacity_returns.is_enough("early"));
        let all = served(
            &mut capacity_returns,
            &[("gpu", "x"), ("other", "x"), ("cpu", "x"), ("gpu", "x"), ("gpu", "x")],
        );
        assert_eq!(all, [None, None, Some("early".into()), Some("late".into()), None]);
        assert!(capacity_returns.is_enough("early") && capacity_returns.is_enough("late"));
    }

    #[test]
    fn a_gangs_own_nodes_do_not_count_and_a_new_shortage_starts_over() {
        let mut capacity_returns = CapacityReturns::default();
        let mine = workload("mine", "2026-01-01T00:00:00Z");
        capacity_returns.wait("mine", &mine, &[nodes("gpu", 2)]);
        assert_eq!(served(&mut capacity_returns, &[("gpu", "mine"), ("gpu", "x")]), [None, None]);
        capacity_returns.wait("mine", &mine, &[nodes("gpu", 2)]);
        assert_eq!(served(&mut capacity_returns, &[("gpu", "x"), ("gpu", "x")]), [None, Some("mine".into())]);
        capacity_returns.forget("mine");
        assert!(!capacity_returns.is_enough("mine") && capacity_returns.take("gpu", "x").is_none());
    }
}
