//! Validation rules of Kueue's CRDs, and of its webhook for admission check entries.

use super::super::kinds::ServedKind;
use super::super::status::FieldError;
use super::metadata::{key_faults, value_faults};
use crate::values::{is, list, text};
use serde_json::{Value, json};

/// Maximum number of tolerations in one podSetUpdate.
const TOLERATIONS_LIMIT: usize = 8;

/// Checks the changes of one of Kueue's objects.
pub fn check(kind: &ServedKind, old: Option<&Value>, new: &Value, found: &mut Vec<FieldError>) {
    match kind.kind {
        "AdmissionCheck" => unchanged(old, new, "/spec/controllerName", found),
        "LocalQueue" => unchanged(old, new, "/spec/clusterQueue", found),
        _ => workload(old, new, found),
    }
}

/// Checks that an immutable field did not change.
fn unchanged(old: Option<&Value>, new: &Value, path: &str, found: &mut Vec<FieldError>) {
    let before = old.and_then(|o| o.pointer(path));
    if let (Some(before), Some(after)) = (before, new.pointer(path))
        && before != after
    {
        let field = path.trim_start_matches('/').replace('/', ".");
        found.push(FieldError::invalid(field, after, "field is immutable"));
    }
}

fn workload(old: Option<&Value>, new: &Value, found: &mut Vec<FieldError>) {
    if let Some(old) = old
        && is(old, "QuotaReserved")
        && is(new, "QuotaReserved")
        && old.pointer("/spec/queueName") != new.pointer("/spec/queueName")
    {
        found.push(FieldError::rule("<nil>", "queueName is immutable while workload quota reserved"));
    }
    let pod_sets: Vec<&str> = list(new, "/spec/podSets").iter().map(|p| text(p, "/name")).collect();
    let before = old.map_or(&[][..], |o| list(o, "/status/admissionChecks"));
    for (index, entry) in list(new, "/status/admissionChecks").iter().enumerate() {
        let old = before.iter().find(|e| text(e, "/name") == text(entry, "/name"));
        if old == Some(entry) {
            continue;
        }
        let at = format!("status.admissionChecks[{index}].podSetUpdates");
        let updates = list(entry, "/podSetUpdates");
        for (number, update) in updates.iter().enumerate() {
            pod_set_update(&pod_sets, update, &format!("{at}[{number}]"), found);
        }
        let stays_ready = |e: &Value| text(e, "/state") == "Ready" && text(entry, "/state") == "Ready";
        if old.is_some_and(|o| stays_ready(o) && list(o, "/podSetUpdates") != updates) {
            found.push(FieldError::invalid(at, &json!(updates), "field is immutable"));
        }
    }
}

fn pod_set_update(pod_sets: &[&str], update: &Value, at: &str, found: &mut Vec<FieldError>) {
    if !pod_sets.contains(&text(update, "/name")) {
        let name = update.get("name").unwrap_or(&Value::Null);
        found.push(FieldError::unsupported(format!("{at}.name"), name, pod_sets));
    }
    for field in ["labels", "nodeSelector", "annotations"] {
        for (key, value) in update.get(field).and_then(Value::as_object).into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let of_key = key_faults(key).into_iter().map(|why| (key.as_str(), why));
            let of_value = if field == "annotations" { Vec::new() } else { value_faults(value) };
            let all = of_key.chain(of_value.into_iter().map(|why| (value, why)));
            found.extend(
                all.map(|(shown, why)| FieldError::invalid(format!("{at}.{field}"), &json!(shown), &why)),
            );
        }
    }
    let tolerations = list(update, "/tolerations");
    if tolerations.len() > TOLERATIONS_LIMIT {
        found.push(FieldError::too_many(format!("{at}.tolerations"), tolerations.len(), TOLERATIONS_LIMIT));
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::kinds::WORKLOAD;
    use super::*;

    fn with(state: &str, updates: &Value) -> Value {
        json!({"spec": {"podSets": [{"name": "main"}]},
            "status": {"admissionChecks": [{"name": "c", "state": state, "podSetUpdates": updates}]}})
    }

    fn faults(old: Option<&Value>, new: &Value) -> usize {
        let mut found = Vec::new();
        check(&WORKLOAD, old, new, &mut found);
        found.len()
    }

    #[test]
    fn pod_set_updates_are_immutable_while_a_check_stays_ready() {
        let (one, other) = (json!([]), json!([{"name": "main", "labels": {"a": "b"}}]));
        assert_eq!(faults(Some(&with("Ready", &one)), &with("Ready", &other)), 1);
        assert_eq!(faults(Some(&with("Pending", &one)), &with("Ready", &other)), 0);
        assert_eq!(faults(Some(&with("Ready", &one)), &with("Pending", &other)), 0);
    }

    #[test]
    fn pod_set_updates_must_name_a_pod_set_and_have_valid_labels() {
        let update = |update: Value| faults(None, &with("Ready", &json!([update])));
        assert_eq!(update(json!({"name": "main", "nodeSelector": {"a.b/c": "d"}})), 0);
        assert_eq!(update(json!({"name": "other"})), 1);
        assert_eq!(update(json!({"name": "main", "nodeSelector": {"a": "not a label"}})), 1);
        assert_eq!(update(json!({"name": "main", "annotations": {"a": "any text"}})), 0);
        assert_eq!(update(json!({"name": "main", "tolerations": (0..9).collect::<Vec<_>>()})), 1);
    }
}
