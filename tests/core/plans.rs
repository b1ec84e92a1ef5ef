//! A plan as the statechart sees it.

use serde_json::json;
use setu::api::parameters::Pinning;
use setu::plan::{Plan, PodShare, Slot};
use std::sync::Arc;

/// A plan with this many slots, one pod each.
pub fn plan(slots: u32) -> Plan {
    let template = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
    });
    let template = Arc::new(serde_json::from_value(template).unwrap());
    let slot = |index| Slot {
        index,
        pods: Arc::from([PodShare { pod_set: "main".into(), pods: 1 }]),
        node_pool: "gpu".into(),
        template: Arc::clone(&template),
        shape: None,
        most: Arc::default(),
        domain_keys: Arc::default(),
        pod_sets: None,
        held_to: Arc::default(),
    };
    Plan {
        slots: (0..slots).map(slot).collect(),
        pinning: Pinning::SelectorAndTaint,
        facts: Arc::default(),
        notes: Vec::new(),
        tier: 0,
        option_name: Box::default(),
        option_index: 0,
        option_count: 1,
        reports: Arc::default(),
        cost: Arc::default(),
        reused: Arc::default(),
        passed_over: Arc::default(),
    }
}
