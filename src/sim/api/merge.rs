//! Patches, and the two ways in which server-side apply changes a value: merging in what is stated, and
//! taking out a set of fields.
//!
//! The rule: what is one value is replaced or removed as one; [`super::schema`] says what that is.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

use super::fields::Fields;
use super::kinds::Kind;
use super::schema::{self, List};

/// Applies a JSON merge patch.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    json_patch::merge(target, patch);
}

/// Applies a JSON patch. As in the real one, a test for null passes where the key is absent.
pub(super) fn json_patch(target: &mut Value, patch: &json_patch::Patch) -> Result<(), json_patch::PatchError> {
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

/// Merges what is applied into an object.
pub(super) fn apply(kind: &Kind, target: &mut Value, applied: &Value) {
    apply_at(kind, target, applied, &mut Vec::new());
}

fn apply_at<'v>(kind: &Kind, target: &mut Value, applied: &'v Value, path: &mut Vec<&'v str>) {
    match applied {
        Value::Object(new) if !schema::is_atomic(kind, path) => {
            if !target.is_object() {
                *target = Value::Object(Map::new());
            }
            let Some(old) = target.as_object_mut() else { return };
            for (key, value) in new {
                path.push(key);
                apply_at(kind, old.entry(key.clone()).or_insert(Value::Null), value, path);
                path.pop();
            }
        }
        Value::Array(new) => match schema::list(kind, path.last().copied().unwrap_or_default()) {
            List::Atomic => *target = applied.clone(),
            relation => {
                let old = target.as_array_mut().map(std::mem::take).unwrap_or_default();
                *target = Value::Array(merged_items(kind, old, new, relation, path));
            }
        },
        _ => *target = applied.clone(),
    }
}

/// Items in the order of the applied list, with those that only the old one has where they stood.
fn merged_items<'v>(
    kind: &Kind,
    old: Vec<Value>,
    new: &'v [Value],
    relation: List,
    path: &mut Vec<&'v str>,
) -> Vec<Value> {
    let name = |item: &Value| schema::item_name(relation, item);
    let stated: Vec<String> = new.iter().map(name).collect();
    let mut old: Vec<(String, Option<Value>)> = old.into_iter().map(|item| (name(&item), Some(item))).collect();
    let mut out = Vec::new();
    let (mut at, mut next) = (0, 0);
    loop {
        match old.get_mut(at) {
            Some((_, item @ None)) => {
                debug_assert!(item.is_none());
                at += 1;
                continue;
            }
            Some((name, item)) if !stated.contains(name) => {
                out.extend(item.take());
                at += 1;
                continue;
            }
            Some(_) | None => {}
        }
        let (Some(item), Some(name)) = (new.get(next), stated.get(next)) else { return out };
        let mut merged = old.iter_mut().find(|(other, _)| other == name).and_then(|(_, item)| item.take());
        let mut target = merged.take().unwrap_or_default();
        apply_at(kind, &mut target, item, path);
        out.push(target);
        next += 1;
    }
}

/// The value without every member of the set.
pub(super) fn without(kind: &Kind, value: &Value, fields: &Fields) -> Value {
    without_at(kind, value, fields, &mut Vec::new())
}

fn without_at<'v>(kind: &Kind, value: &'v Value, fields: &Fields, path: &mut Vec<&'v str>) -> Value {
    match value {
        Value::Object(map) if !schema::is_atomic(kind, path) => {
            let mut kept = Map::new();
            for (key, value) in map {
                let below = fields.below(&format!("f:{key}"));
                if below.is_some_and(Fields::is_member) {
                    continue;
                }
                path.push(key);
                let value = below.map_or_else(|| value.clone(), |below| without_at(kind, value, below, path));
                path.pop();
                kept.insert(key.clone(), value);
            }
            Value::Object(kept)
        }
        Value::Array(items) => match schema::list(kind, path.last().copied().unwrap_or_default()) {
            List::Atomic => value.clone(),
            relation => {
                let kept = items.iter().filter_map(|item| {
                    match fields.below(&schema::item_name(relation, item)) {
                        Some(below) if below.is_member() => None,
                        Some(below) => Some(without_at(kind, item, below, path)),
                        None => Some(item.clone()),
                    }
                });
                Value::Array(kept.collect())
            }
        },
        other => other.clone(),
    }
}
