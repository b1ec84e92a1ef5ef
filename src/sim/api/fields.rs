//! Sets of fields of an object, as managed fields hold them, and what they are made from: an object, or
//! the difference of two.
//!
//! The rule: membership is that of `sigs.k8s.io/structured-merge-diff`, so that conflicts arise where
//! they arise on a real server, and the encoding is `FieldsV1`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::kinds::Kind;
use super::schema::{self, List};

/// A set of fields: a node of the tree of an object, whether it is a member itself, and what is below.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fields {
    member: bool,
    below: BTreeMap<String, Fields>,
}

/// What differs between two objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Difference {
    pub added: Fields,
    pub modified: Fields,
    pub removed: Fields,
}

/// Top-level fields and metadata that nobody owns.
const OWNED_BY_NOBODY: [&str; 8] =
    ["name", "namespace", "creationTimestamp", "uid", "generation", "managedFields", "resourceVersion", "selfLink"];

impl Fields {
    /// The fields of an object that a manager states when it applies it.
    pub(super) fn of(kind: &Kind, object: &Value) -> Self {
        let mut fields = Self::default();
        let mut path = Vec::new();
        fields.insert(kind, object, &mut path);
        fields
    }

    fn insert<'v>(&mut self, kind: &Kind, value: &'v Value, path: &mut Vec<&'v str>) {
        match value {
            Value::Object(map) if !schema::is_atomic(kind, path) => {
                for (key, value) in map {
                    path.push(key);
                    let mut below = Self::default();
                    below.insert(kind, value, path);
                    path.pop();
                    below.member |= value.as_object().is_some_and(Map::is_empty);
                    self.below.insert(format!("f:{key}"), below);
                }
            }
            Value::Array(items) => match schema::list(kind, path.last().copied().unwrap_or_default()) {
                List::Atomic => self.member = true,
                relation => {
                    for item in items {
                        let mut below = Self::default();
                        below.insert(kind, item, path);
                        below.member = true;
                        self.below.insert(schema::item_name(relation, item), below);
                    }
                }
            },
            _ => self.member = true,
        }
    }

    /// Whether nothing is in it.
    pub(super) fn is_empty(&self) -> bool {
        !self.member && self.below.values().all(Self::is_empty)
    }

    /// Whether a field of the top is a member or has members.
    pub(super) fn below(&self, name: &str) -> Option<&Self> {
        self.below.get(name)
    }

    /// Whether the node itself is a member.
    pub(super) fn is_member(&self) -> bool {
        self.member
    }

    /// What is in either.
    pub(super) fn union(mut self, other: &Self) -> Self {
        self.member |= other.member;
        for (name, theirs) in &other.below {
            let ours = self.below.remove(name).unwrap_or_default();
            self.below.insert(name.clone(), ours.union(theirs));
        }
        self
    }

    /// What is in this one alone.
    pub(super) fn minus(&self, other: &Self) -> Self {
        self.combined(other, |ours, theirs| ours && !theirs)
    }

    /// What is in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        self.combined(other, |ours, theirs| ours && theirs)
    }

    fn combined(&self, other: &Self, rule: fn(bool, bool) -> bool) -> Self {
        let nothing = Self::default();
        let below = self.below.iter().map(|(name, ours)| {
            let theirs = other.below.get(name).unwrap_or(&nothing);
            (name.clone(), ours.combined(theirs, rule))
        });
        let below = below.filter(|(_, fields)| !fields.is_empty()).collect();
        Self { member: rule(self.member, other.member), below }
    }

    /// The same with every named field above a member a member too.
    pub(super) fn with_parents(&self) -> Self {
        let below = self.below.iter().map(|(name, fields)| {
            let mut fields = fields.with_parents();
            fields.member |= name.starts_with("f:");
            (name.clone(), fields)
        });
        Self { member: self.member, below: below.collect() }
    }

    /// The same without what nobody owns, within what a write to the subresource can change.
    pub(super) fn owned(mut self, kind: &Kind, subresource: Option<&str>) -> Self {
        for field in ["f:apiVersion", "f:kind"] {
            self.below.remove(field);
        }
        if let Some(metadata) = self.below.get_mut("f:metadata") {
            metadata.member = false;
            for field in OWNED_BY_NOBODY {
                metadata.below.remove(&format!("f:{field}"));
            }
        }
        match subresource {
            Some("status") if kind.custom => self.below.retain(|name, _| name == "f:status"),
            Some("status") => drop(self.below.remove("f:spec")),
            _ if kind.status => drop(self.below.remove("f:status")),
            _ => {}
        }
        self.member = false;
        self.below.retain(|_, fields| !fields.is_empty());
        self
    }

    /// As `FieldsV1`.
    pub(super) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.below.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        for (name, fields) in &self.below {
            if !fields.is_empty() {
                map.insert(name.clone(), fields.to_json());
            }
        }
        Value::Object(map)
    }

    /// The members as people read them, in order: `.spec.taints`, `.status.conditions[type="Ready"].status`.
    pub(super) fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect(String::new(), &mut out);
        out
    }

    fn collect(&self, path: String, out: &mut Vec<String>) {
        if self.member {
            out.push(path.clone());
        }
        for (name, fields) in &self.below {
            let step = match name.split_at_checked(2) {
                Some(("f:", name)) => format!(".{name}"),
                Some(("k:", keys)) => {
                    let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                    let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                    format!("[{}]", keys.join(","))
                }
                Some((_, value)) => format!("[={value}]"),
                None => continue,
            };
            fields.collect(format!("{path}{step}"), out);
        }
    }
}

impl Difference {
    /// What became different between two forms of an object.
    pub(super) fn between(kind: &Kind, old: &Value, new: &Value) -> Self {
        let mut all = Self::default();
        let mut path = Vec::new();
        all.compare(kind, Some(old), Some(new), &mut path);
        all
    }

    /// The same within what a write to the subresource can change.
    pub(super) fn owned(self, kind: &Kind, subresource: Option<&str>) -> Self {
        Self {
            added: self.added.owned(kind, subresource),
            modified: self.modified.owned(kind, subresource),
            removed: self.removed.owned(kind, subresource),
        }
    }

    fn compare<'v>(&mut self, kind: &Kind, old: Option<&'v Value>, new: Option<&'v Value>, path: &mut Vec<&'v str>) {
        if old == new {
            return;
        }
        let is_map = |value: Option<&Value>| value.is_none_or(Value::is_object);
        let is_list = |value: Option<&Value>| value.is_none_or(Value::is_array);
        let relation = schema::list(kind, path.last().copied().unwrap_or_default());
        if is_map(old) && is_map(new) && !schema::is_atomic(kind, path) {
            self.compare_maps(kind, old, new, path);
        } else if is_list(old) && is_list(new) && relation != List::Atomic {
            self.compare_lists(kind, (old, new), relation, path);
        } else {
            self.modified.member = old.is_some() && new.is_some();
        }
        self.added.member |= old.is_none();
        self.removed.member |= new.is_none();
    }

    fn compare_maps<'v>(
        &mut self,
        kind: &Kind,
        old: Option<&'v Value>,
        new: Option<&'v Value>,
        path: &mut Vec<&'v str>,
    ) {
        let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
        let keys = old.into_iter().chain(new).flat_map(Map::keys);
        let mut keys: Vec<&'v String> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let (old, new) = (old.and_then(|old| old.get(key)), new.and_then(|new| new.get(key)));
            path.push(key);
            let mut below = Self::default();
            below.compare(kind, old, new, path);
            path.pop();
            self.keep(&format!("f:{key}"), below);
        }
    }

    fn compare_lists<'v>(
        &mut self,
        kind: &Kind,
        (old, new): (Option<&'v Value>, Option<&'v Value>),
        relation: List,
        path: &mut Vec<&'v str>,
    ) {
        let named = |list: Option<&'v Value>| -> BTreeMap<String, &'v Value> {
            let items = list.and_then(Value::as_array).into_iter().flatten();
            items.map(|item| (schema::item_name(relation, item), item)).collect()
        };
        let (old, new) = (named(old), named(new));
        for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
            let mut below = Self::default();
            below.compare(kind, old.get(name).copied(), new.get(name).copied(), path);
            self.keep(name, below);
        }
    }

    fn keep(&mut self, name: &str, below: Self) {
        for (set, part) in [
            (&mut self.added, below.added),
            (&mut self.modified, below.modified),
            (&mut self.removed, below.removed),
        ] {
            if !part.is_empty() {
                set.below.insert(name.to_owned(), part);
            }
        }
    }
}
