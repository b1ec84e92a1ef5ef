//! The fields of an object, and the fields that a change adds, changes and removes.
//!
//! The rules are those of Kubernetes' structured merge. A leaf is a scalar, an atomic list or map, or an empty
//! one. A non-leaf counts as a field itself only if it is added or removed as a whole.

use super::fields::{self, FieldSet};
use super::kinds::ServedKind;
use super::shape::{self, ListType};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The fields that a change touches.
#[derive(Debug, Default)]
pub struct Difference {
    /// New or changed fields.
    pub set: FieldSet,
    /// Removed fields.
    pub removed: FieldSet,
}

/// The fields that an object states.
pub fn stated(kind: &ServedKind, object: &Value) -> FieldSet {
    state(kind, &mut Vec::new(), object)
}

fn state<'v>(kind: &ServedKind, path: &mut Vec<&'v str>, value: &'v Value) -> FieldSet {
    match value {
        Value::Object(map) if !map.is_empty() && !shape::is_atomic(kind, path) => {
            let mut fields = FieldSet::default();
            for (name, value) in map {
                path.push(name);
                fields.insert(fields::field(name), state(kind, path, value));
                path.pop();
            }
            fields
        }
        Value::Array(entries) if !entries.is_empty() => {
            let shape = shape::list(kind, path);
            if shape == ListType::Atomic {
                return FieldSet::leaf();
            }
            let mut fields = FieldSet::default();
            for (step, entry) in steps(shape, entries) {
                let mut below =
                    if entry.is_object() { state(kind, path, entry) } else { FieldSet::default() };
                below.set_member();
                fields.insert(step, below);
            }
            fields
        }
        _ => FieldSet::leaf(),
    }
}

/// The entries of a list by step; the last entry wins if several have the same step.
pub fn steps(shape: ListType, entries: &[Value]) -> BTreeMap<String, &Value> {
    let step = |entry: &Value| match shape {
        ListType::Atomic => None,
        ListType::Set => Some(fields::valued(entry)),
        ListType::Keyed(keys) => fields::keyed(keys, entry),
    };
    entries.iter().filter_map(|entry| Some((step(entry)?, entry))).collect()
}

/// The difference between two objects.
pub fn difference(kind: &ServedKind, old: &Value, new: &Value) -> Difference {
    let mut walk = Walk { kind, path: Vec::new(), steps: Vec::new(), found: Difference::default() };
    walk.compare(Some(old), Some(new));
    walk.found
}

struct Walk<'v> {
    kind: &'v ServedKind,
    path: Vec<&'v str>,
    steps: Vec<String>,
    found: Difference,
}

impl<'v> Walk<'v> {
    fn compare(&mut self, old: Option<&'v Value>, new: Option<&'v Value>) {
        if old == new {
            return;
        }
        let is = |one: Option<&Value>, kind: fn(&Value) -> bool| one.is_none_or(|v| v.is_null() || kind(v));
        if is(old, Value::is_object) && is(new, Value::is_object) && self.maps(old, new)
            || is(old, Value::is_array) && is(new, Value::is_array) && self.lists(old, new)
        {
            if old.is_none() && !shape::is_always_there(self.kind, &self.path) {
                self.found.set.insert_at(&self.steps);
            } else if new.is_none() && !shape::is_always_there(self.kind, &self.path) {
                self.found.removed.insert_at(&self.steps);
            }
        } else if new.is_none() {
            self.found.removed.insert_at(&self.steps);
        } else {
            self.found.set.insert_at(&self.steps);
        }
    }

    /// Compares two maps; false if they are leaves.
    fn maps(&mut self, old: Option<&'v Value>, new: Option<&'v Value>) -> bool {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let empty = old.is_none_or(Map::is_empty) && new.is_none_or(Map::is_empty);
        if empty || shape::is_atomic(self.kind, &self.path) {
            return false;
        }
        let before = old.into_iter().flatten();
        for (name, value) in before {
            self.field(name, Some(value), new.and_then(|n| n.get(name)));
        }
        for (name, value) in new.into_iter().flatten() {
            if old.is_none_or(|o| !o.contains_key(name)) {
                self.field(name, None, Some(value));
            }
        }
        true
    }

    fn field(&mut self, name: &'v str, old: Option<&'v Value>, new: Option<&'v Value>) {
        if old == new {
            return;
        }
        self.path.push(name);
        self.steps.push(fields::field(name));
        self.compare(old, new);
        self.steps.pop();
        self.path.pop();
    }

    /// Compares two lists; false if they are leaves.
    fn lists(&mut self, old: Option<&'v Value>, new: Option<&'v Value>) -> bool {
        let entries = |value: Option<&'v Value>| -> &'v [Value] {
            value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
        };
        let (old, new) = (entries(old), entries(new));
        let shape = shape::list(self.kind, &self.path);
        if shape == ListType::Atomic || (old.is_empty() && new.is_empty()) {
            return false;
        }
        let (old, new) = (steps(shape, old), steps(shape, new));
        for (step, entry) in &old {
            self.entry(step, Some(entry), new.get(step).copied());
        }
        for (step, entry) in &new {
            if !old.contains_key(step) {
                self.entry(step, None, Some(entry));
            }
        }
        true
    }

    fn entry(&mut self, step: &str, old: Option<&'v Value>, new: Option<&'v Value>) {
        if old == new {
            return;
        }
        self.steps.push(step.to_owned());
        self.compare(old, new);
        self.steps.pop();
    }
}

/// Removes the members of a set from an object, with everything below them.
pub fn remove(kind: &ServedKind, object: &mut Value, fields: &FieldSet) {
    take_out(kind, &mut Vec::new(), object, fields);
}

fn take_out(kind: &ServedKind, path: &mut Vec<String>, value: &mut Value, fields: &FieldSet) {
    match value {
        Value::Object(map) => map.retain(|name, value| {
            let Some(below) = fields.below(&fields::field(name)) else { return true };
            if below.is_member() {
                return false;
            }
            path.push(name.clone());
            take_out(kind, path, value, below);
            path.pop();
            true
        }),
        Value::Array(entries) => {
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            let shape = shape::list(kind, &names);
            entries.retain_mut(|entry| {
                let step = steps(shape, std::slice::from_ref(entry)).into_keys().next();
                let Some(below) = step.and_then(|s| fields.below(&s)) else { return true };
                if below.is_member() {
                    return false;
                }
                take_out(kind, path, entry, below);
                true
            });
        }
        _ => {}
    }
}

/// Merges the stated fields into an object. Lists are merged according to their shape.
pub fn merge(kind: &ServedKind, object: &mut Value, stated: &Value) {
    lay_over(kind, &mut Vec::new(), object, stated);
}

fn lay_over<'v>(kind: &ServedKind, path: &mut Vec<&'v str>, target: &mut Value, stated: &'v Value) {
    match (&mut *target, stated) {
        (Value::Object(old), Value::Object(new)) if !new.is_empty() && !shape::is_atomic(kind, path) => {
            for (name, value) in new {
                path.push(name);
                lay_over(kind, path, old.entry(name.clone()).or_insert(Value::Null), value);
                path.pop();
            }
        }
        (Value::Array(old), Value::Array(new)) if shape::list(kind, path) != ListType::Atomic => {
            *old = merged_list(kind, path, std::mem::take(old), new);
        }
        (Value::Null, Value::Object(new)) if !new.is_empty() && !shape::is_atomic(kind, path) => {
            *target = Value::Object(Map::new());
            lay_over(kind, path, target, stated);
        }
        // An empty map or list states only that it exists, and nothing about its content.
        (Value::Object(_), Value::Object(new)) if new.is_empty() && !shape::is_atomic(kind, path) => {}
        _ => *target = stated.clone(),
    }
}

/// Stated entries keep their stated order. Entries that only the object has stay before them.
fn merged_list<'v>(
    kind: &ServedKind,
    path: &mut Vec<&'v str>,
    old: Vec<Value>,
    new: &'v [Value],
) -> Vec<Value> {
    let shape = shape::list(kind, path);
    let step = |entry: &Value| steps(shape, std::slice::from_ref(entry)).into_keys().next();
    let wanted: Vec<Option<String>> = new.iter().map(step).collect();
    let mut before: Vec<(Option<String>, Option<Value>)> =
        old.into_iter().map(|e| (step(&e), Some(e))).collect();
    let mut out = Vec::new();
    let mut at = 0;
    for (entry, key) in new.iter().zip(&wanted) {
        while let Some((own, value)) = before.get_mut(at)
            && (value.is_none() || !wanted.contains(own))
        {
            out.extend(value.take());
            at += 1;
        }
        let same = before.iter_mut().find(|(own, value)| own == key && value.is_some());
        let mut merged = same.and_then(|(_, value)| value.take()).unwrap_or(Value::Null);
        lay_over(kind, path, &mut merged, entry);
        out.push(merged);
    }
    out.extend(before.into_iter().filter_map(|(_, value)| value));
    out
}
