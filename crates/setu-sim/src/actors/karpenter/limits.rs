//! The total resources of a NodePool's nodes, which Karpenter writes to the NodePool's status.
//!
//! Rule: written only for NodePools with limits, since nothing reads it otherwise.

use crate::api::User;
use crate::api::kinds;
use crate::values::{is_going, label, map};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use setu_core::api::quantity::Amount;
use setu_core::names;
use std::collections::BTreeMap;

/// Updates the NodePool of a changed claim.
pub fn update_resources(user: &User, claim: &Value) {
    let name = label(claim, names::NODEPOOL);
    let Some(pool) = user.get(&kinds::NODE_POOL, "", name) else { return };
    let keys: Vec<String> = map(&pool, "/spec/limits").into_keys().collect();
    if keys.is_empty() {
        return;
    }
    let mut total: BTreeMap<String, Amount> = BTreeMap::new();
    let launched =
        |claim: &Value| Some(map(claim, "/status/capacity")).filter(|capacity| !capacity.is_empty());
    for claim in user.list(&kinds::NODE_CLAIM) {
        if label(&claim, names::NODEPOOL) != name || is_going(&claim) {
            continue;
        }
        let Some(mut capacity) = launched(&claim) else { continue };
        capacity.insert("nodes".to_owned(), "1".to_owned());
        for key in &keys {
            let more = capacity.get(key).and_then(|quantity| Amount::parse(quantity)).unwrap_or_default();
            let sum = total.get(key).copied().unwrap_or_default().plus(more);
            total.insert(key.clone(), sum);
        }
    }
    let sum = |key: &String| Quantity::from(total.get(key).copied().unwrap_or_default()).0;
    let shown: BTreeMap<String, String> = keys.iter().map(|key| (key.clone(), sum(key))).collect();
    if map(&pool, "/status/resources") != shown {
        // The NodePool may be gone by now.
        let _ = user.merge_status(&kinds::NODE_POOL, "", name, &json!({"status": {"resources": shown}}));
    }
}
