//! NodeClaims and Workloads for the tests of this folder.

use crate::api::{NodeClaim, Workload};
use crate::names;
use jiff::Timestamp;
use serde_json::{Value, json};

pub fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub fn claim(held_until: Option<Timestamp>) -> NodeClaim {
    let annotations: Value =
        held_until.map_or_else(|| json!({}), |end| json!({(names::HOLD_UNTIL): end.to_string()}));
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "c", "annotations": annotations},
        "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
    }))
    .unwrap()
}

pub fn workload(conditions: &[(&str, &str, &str)]) -> Workload {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, status, reason)| {
            json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(0).to_string()})
        })
        .collect();
    serde_json::from_value(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "uid": "u"},
        "spec": {}, "status": {"conditions": conditions},
    }))
    .unwrap()
}
