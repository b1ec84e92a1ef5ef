//! Small helpers for reading untyped objects.

use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The text at a JSON pointer, or an empty text.
pub fn text<'v>(object: &'v Value, pointer: &str) -> &'v str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The number at a JSON pointer, or zero.
pub fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or_default()
}

/// Whether the value at a JSON pointer is `true`.
pub fn flag(object: &Value, pointer: &str) -> bool {
    object.pointer(pointer).and_then(Value::as_bool).unwrap_or_default()
}

/// The list at a JSON pointer, or an empty one.
pub fn list<'v>(object: &'v Value, pointer: &str) -> &'v [Value] {
    object.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The texts of the map at a JSON pointer.
pub fn map(object: &Value, pointer: &str) -> BTreeMap<String, String> {
    let entries = object.pointer(pointer).and_then(Value::as_object);
    entries
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)))
        .collect()
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// `metadata.namespace`; empty for cluster-scoped objects.
pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// `metadata.uid`.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The owner references of this kind.
pub fn owners<'v>(object: &'v Value, kind: &'v str) -> impl Iterator<Item = &'v Value> {
    list(object, "/metadata/ownerReferences").iter().filter(move |owner| text(owner, "/kind") == kind)
}

/// A label.
pub fn label<'v>(object: &'v Value, key: &str) -> &'v str {
    entry(object, "labels", key)
}

/// An annotation.
pub fn annotation<'v>(object: &'v Value, key: &str) -> &'v str {
    entry(object, "annotations", key)
}

/// An annotation of one of Setu's NodeClaims, or the label with that key, which earlier versions wrote.
pub fn noted<'v>(claim: &'v Value, key: &str) -> &'v str {
    Some(annotation(claim, key)).filter(|value| !value.is_empty()).unwrap_or_else(|| label(claim, key))
}

fn entry<'v>(object: &'v Value, field: &str, key: &str) -> &'v str {
    let found = object.get("metadata").and_then(|m| m.get(field)).and_then(|m| m.get(key));
    found.and_then(Value::as_str).unwrap_or_default()
}

/// Whether the object is being deleted.
pub fn is_going(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|t| !t.is_null())
}

/// A condition of the object.
pub fn condition<'v>(object: &'v Value, kind: &str) -> Option<&'v Value> {
    list(object, "/status/conditions").iter().find(|c| text(c, "/type") == kind)
}

/// Whether a condition is True.
pub fn is(object: &Value, kind: &str) -> bool {
    condition(object, kind).is_some_and(|c| text(c, "/status") == "True")
}

/// When a condition last changed.
pub fn since(object: &Value, kind: &str) -> Option<Timestamp> {
    condition(object, kind).and_then(|c| text(c, "/lastTransitionTime").parse().ok())
}

/// Whether no container of a pod will run again.
pub fn has_ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

/// `metadata.creationTimestamp`.
pub fn created(object: &Value) -> Timestamp {
    text(object, "/metadata/creationTimestamp").parse().unwrap_or_default()
}

/// When its deletion began, if it did.
pub fn going_since(object: &Value) -> Option<Timestamp> {
    text(object, "/metadata/deletionTimestamp").parse().ok()
}

/// A time in the format of `metav1.Time`.
pub fn seconds(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// The object's conditions after setting this one. Its transition time changes only with its status.
pub fn with_condition(
    object: &Value,
    (kind, status): (&str, &str),
    (reason, message): (&str, &str),
    now: Timestamp,
) -> Vec<Value> {
    let mut all = list(object, "/status/conditions").to_vec();
    let old = all.iter().position(|c| text(c, "/type") == kind);
    let kept = old.and_then(|i| all.get(i)).filter(|c| text(c, "/status") == status);
    let at = kept.map_or_else(|| seconds(now), |c| text(c, "/lastTransitionTime").to_owned());
    let new = json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at});
    match old.and_then(|i| all.get_mut(i)) {
        Some(place) => *place = new,
        None => all.push(new),
    }
    all
}

/// Sets a value at a path of keys. Other values on the path are replaced by objects.
pub fn set(object: &mut Value, path: &[&str], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        *object = value;
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    if let Some(fields) = object.as_object_mut() {
        set(fields.entry(*first).or_insert(Value::Null), rest, value);
    }
}
