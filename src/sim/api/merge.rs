//! Patches: merge patches, and the merge of server-side apply.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

/// Applies a JSON merge patch.
pub fn merge(target: &mut Value, patch: &Value) {
    json_patch::merge(target, patch);
}

/// Applies a JSON patch. As in the real one, a test for null passes where the key is absent.
pub fn json_patch(target: &mut Value, patch: &json_patch::Patch) -> Result<(), json_patch::PatchError> {
    let mut wanted = target.clone();
    for operation in patch.iter() {
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && is_absent(&wanted, test.path.as_str())
        {
            continue;
        }
        json_patch::patch(&mut wanted, std::slice::from_ref(operation))?;
    }
    *target = wanted;
    Ok(())
}

/// Whether the place is empty and the object it would be in exists.
fn is_absent(target: &Value, path: &str) -> bool {
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    target.pointer(path).is_none() && target.pointer(parent).is_some_and(Value::is_object)
}

/// The field by which the entries of a list are told apart, for lists that are maps in truth.
fn key_of(path: &[&str]) -> Option<&'static [&'static str]> {
    match path {
        [.., "conditions"] => Some(&["type"]),
        ["status", "admissionChecks"]
        | [.., "containers" | "initContainers" | "podSets" | "env" | "volumes"] => Some(&["name"]),
        ["metadata", "ownerReferences"] => Some(&["uid"]),
        _ => None,
    }
}

fn same_entry(keys: &[&str], one: &Value, other: &Value) -> bool {
    keys.iter().all(|k| one.get(k) == other.get(k))
}

/// Merges what a manager applies into an object.
pub fn apply(target: &mut Value, applied: &Value) {
    apply_at(target, applied, &mut Vec::new());
}

fn apply_at<'v>(target: &mut Value, applied: &'v Value, path: &mut Vec<&'v str>) {
    match (&mut *target, applied) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                path.push(key);
                apply_at(old.entry(key.clone()).or_insert(Value::Null), value, path);
                path.pop();
            }
        }
        (Value::Array(old), Value::Array(new)) if key_of(path).is_some() => {
            let keys = key_of(path).unwrap_or_default();
            for entry in new {
                match old.iter_mut().find(|o| same_entry(keys, o, entry)) {
                    Some(place) => apply_at(place, entry, path),
                    None => old.push(entry.clone()),
                }
            }
        }
        (Value::Null, Value::Object(new)) => {
            let mut fresh = Value::Object(Map::new());
            if new.is_empty() {
                *target = fresh;
            } else {
                apply_at(&mut fresh, applied, path);
                *target = fresh;
            }
        }
        _ => *target = applied.clone(),
    }
}

/// Takes away what a manager applied before, does not apply any more, and nobody else applies.
pub fn withdraw(target: &mut Value, before: &Value, now: &Value, others: &[&Value]) {
    withdraw_at(target, before, now, others, &mut Vec::new());
}

fn withdraw_at<'v>(
    target: &mut Value,
    before: &'v Value,
    now: &Value,
    others: &[&Value],
    path: &mut Vec<&'v str>,
) {
    match (target, before) {
        (Value::Object(target), Value::Object(before)) => {
            for (key, old) in before {
                let others: Vec<&Value> = others.iter().filter_map(|o| o.get(key)).collect();
                match now.get(key) {
                    Some(now) => {
                        path.push(key);
                        if let Some(target) = target.get_mut(key) {
                            withdraw_at(target, old, now, &others, path);
                        }
                        path.pop();
                    }
                    None if others.is_empty() => {
                        target.remove(key);
                    }
                    None => {}
                }
            }
        }
        (Value::Array(target), Value::Array(before)) if key_of(path).is_some() => {
            let keys = key_of(path).unwrap_or_default();
            let has = |list: &Value, entry: &Value| {
                list.as_array().is_some_and(|l| l.iter().any(|e| same_entry(keys, e, entry)))
            };
            for entry in before {
                let found = now.as_array().and_then(|l| l.iter().find(|e| same_entry(keys, e, entry)));
                match found {
                    Some(now) => {
                        if let Some(target) = target.iter_mut().find(|t| same_entry(keys, t, entry)) {
                            withdraw_at(target, entry, now, &[], path);
                        }
                    }
                    None if !others.iter().any(|o| has(o, entry)) => {
                        target.retain(|t| !same_entry(keys, t, entry))
                    }
                    None => {}
                }
            }
        }
        _ => {}
    }
}

/// Paths that a manager would change and another has applied otherwise.
pub fn conflicts(current: &Value, applied: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    conflicts_at(current, applied, other, String::new(), &mut found);
    found
}

fn conflicts_at(current: &Value, applied: &Value, other: &Value, path: String, found: &mut Vec<String>) {
    if let (Value::Object(applied), Value::Object(other)) = (applied, other) {
        for (key, value) in applied {
            if let Some(theirs) = other.get(key) {
                let now = current.get(key).unwrap_or(&Value::Null);
                conflicts_at(now, value, theirs, format!("{path}.{key}"), found);
            }
        }
    } else if current != applied
        && !path.starts_with(".metadata.name")
        && !matches!(path.as_str(), ".apiVersion" | ".kind")
    {
        found.push(path);
    }
}
