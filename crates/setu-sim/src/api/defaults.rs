//! Defaults that the server fills into custom resources according to their CRDs, and empty fields that it
//! drops.

use super::kinds::ServedKind;
use serde_json::{Map, Value, json};

/// Fills in the defaults of an object's kind.
pub fn fill(kind: &ServedKind, object: &mut Value) {
    prune(kind, object);
    match kind.kind {
        "LocalQueue" => {
            within(object, &["spec"], &|spec| set(spec, "stopPolicy", || json!("None")));
            within(object, &["spec", "fairSharing"], &|sharing| set(sharing, "weight", || json!(1)));
        }
        "ClusterQueue" => {
            within(object, &["spec"], &cluster_queue);
            within(object, &["spec", "fairSharing"], &|sharing| set(sharing, "weight", || json!(1)));
        }
        "NodeClaim" => within(object, &["spec"], &|spec| set(spec, "expireAfter", || json!("720h"))),
        "NodePool" => {
            within(object, &["spec"], &|spec| {
                set(spec, "disruption", || json!({"consolidateAfter": "0s"}));
            });
            within(object, &["spec", "disruption"], &|disruption| {
                set(disruption, "budgets", || json!([{"nodes": "10%"}]));
                set(disruption, "consolidationPolicy", || json!("WhenEmptyOrUnderutilized"));
            });
            within(object, &["spec", "template", "spec"], &|spec| set(spec, "expireAfter", || json!("720h")));
            within(object, &["status"], &|status| set(status, "nodes", || json!(0)));
        }
        "Workload" => {
            within(object, &["spec"], &|spec| set(spec, "active", || json!(true)));
            let pod_sets = object.pointer_mut("/spec/podSets").and_then(Value::as_array_mut);
            for pod_set in pod_sets.into_iter().flatten().filter_map(Value::as_object_mut) {
                set(pod_set, "count", || json!(1));
                set(pod_set, "name", || json!("main"));
            }
            let assigned =
                object.pointer_mut("/status/admission/podSetAssignments").and_then(Value::as_array_mut);
            for assignment in assigned.into_iter().flatten().filter_map(Value::as_object_mut) {
                set(assignment, "name", || json!("main"));
            }
        }
        "ConfigMap" => {
            if let Some(map) = object.as_object_mut() {
                map.retain(|_, value| !value.as_object().is_some_and(Map::is_empty));
            }
        }
        _ => {}
    }
}

/// Drops unknown top-level fields of a custom kind with a status.
fn prune(kind: &ServedKind, object: &mut Value) {
    if let Some(fields) = object.as_object_mut().filter(|_| kind.custom && kind.status) {
        fields.retain(|field, _| {
            matches!(field.as_str(), "apiVersion" | "kind" | "metadata" | "spec" | "status")
        });
    }
}

fn cluster_queue(spec: &mut Map<String, Value>) {
    set(spec, "queueingStrategy", || json!("BestEffortFIFO"));
    set(spec, "stopPolicy", || json!("None"));
    set(spec, "flavorFungibility", || json!({}));
    set(spec, "preemption", || json!({}));
    if let Some(Value::Object(fungibility)) = spec.get_mut("flavorFungibility") {
        set(fungibility, "whenCanBorrow", || json!("MayStopSearch"));
        set(fungibility, "whenCanPreempt", || json!("TryNextFlavor"));
    }
    if let Some(Value::Object(preemption)) = spec.get_mut("preemption") {
        set(preemption, "borrowWithinCohort", || json!({"policy": "Never"}));
        set(preemption, "reclaimWithinCohort", || json!("Never"));
        set(preemption, "withinClusterQueue", || json!("Never"));
    }
}

fn set(map: &mut Map<String, Value>, field: &str, default: impl FnOnce() -> Value) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.to_owned(), default());
    }
}

fn within(object: &mut Value, path: &[&str], fill: &dyn Fn(&mut Map<String, Value>)) {
    let mut place = Some(object);
    for step in path {
        place = place.and_then(|value| value.get_mut(step));
    }
    if let Some(Value::Object(map)) = place {
        fill(map);
    }
}

/// Empty maps and lists of metadata are not stored.
pub fn drop_empty(metadata: &mut Map<String, Value>) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match metadata.get(field) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

/// Removes keys whose value is null.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{NODE_CLAIM, NODE_POOL};
    use super::*;

    #[test]
    fn missing_fields_get_defaults_and_given_fields_are_kept() {
        let mut claim = json!({"spec": {}});
        fill(&NODE_CLAIM, &mut claim);
        assert_eq!(claim, json!({"spec": {"expireAfter": "720h"}}));
        let mut given = json!({"spec": {"expireAfter": "Never"}});
        fill(&NODE_CLAIM, &mut given);
        assert_eq!(given, json!({"spec": {"expireAfter": "Never"}}));
    }

    #[test]
    fn unknown_fields_of_a_custom_kind_are_dropped() {
        let mut claim = json!({"spec": {"expireAfter": "Never"}, "unknown": 1});
        fill(&NODE_CLAIM, &mut claim);
        assert_eq!(claim, json!({"spec": {"expireAfter": "Never"}}));
    }

    #[test]
    fn nested_defaults_are_filled_in() {
        let mut pool = json!({"spec": {"template": {"spec": {}}}});
        fill(&NODE_POOL, &mut pool);
        let expected = json!({"budgets": [{"nodes": "10%"}], "consolidateAfter": "0s",
            "consolidationPolicy": "WhenEmptyOrUnderutilized"});
        assert_eq!(pool["spec"]["disruption"], expected);
        assert_eq!(pool.get("status"), None);
    }
}
