//! Sets of object fields, in the form used by `managedFields`.
//!
//! A step is `f:NAME` of a map, `k:{…}` of a keyed list, or `v:…` of a set list. A place in a set is either a
//! member itself, or only an ancestor of members. Rule: steps are sorted, so that each set has exactly one
//! textual form.

use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A set of fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet {
    member: bool,
    below: BTreeMap<String, FieldSet>,
}

/// The step to a field of a map.
pub fn field(name: &str) -> String {
    format!("f:{name}")
}

/// The step to an entry of a keyed list; `None` if the entry has none of the keys.
pub fn keyed(keys: &[&str], entry: &Value) -> Option<String> {
    let found: Map<String, Value> =
        keys.iter().filter_map(|k| Some(((*k).to_owned(), entry.get(*k)?.clone()))).collect();
    (!found.is_empty()).then(|| format!("k:{}", Value::Object(found)))
}

/// The step to a value of a set list.
pub fn valued(value: &Value) -> String {
    format!("v:{value}")
}

impl FieldSet {
    /// A set with only its own place as a member.
    pub fn leaf() -> Self {
        Self { member: true, below: BTreeMap::new() }
    }

    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    pub fn is_member(&self) -> bool {
        self.member
    }

    /// The set below a step.
    pub fn below(&self, step: &str) -> Option<&Self> {
        self.below.get(step)
    }

    /// Adds the place itself.
    pub fn set_member(&mut self) {
        self.member = true;
    }

    /// Adds a set below a step, unless it is empty.
    pub fn insert(&mut self, step: String, fields: Self) {
        if !fields.is_empty() {
            self.below.entry(step).or_default().add(fields);
        }
    }

    /// Adds a place.
    pub fn insert_at(&mut self, steps: &[String]) {
        let mut place = self;
        for step in steps {
            place = place.below.entry(step.clone()).or_default();
        }
        place.member = true;
    }

    /// Adds another set.
    pub fn add(&mut self, other: Self) {
        self.member |= other.member;
        for (step, fields) in other.below {
            self.below.entry(step).or_default().add(fields);
        }
    }

    /// Removes the members of another set.
    pub fn subtract(&mut self, other: &Self) {
        self.member &= !other.member;
        for (step, theirs) in &other.below {
            if let Some(own) = self.below.get_mut(step) {
                own.subtract(theirs);
                if own.is_empty() {
                    self.below.remove(step);
                }
            }
        }
    }

    /// Removes a place and everything below it.
    pub fn cut(&mut self, steps: &[&str]) {
        match steps {
            [] => {}
            [last] => drop(self.below.remove(*last)),
            [step, rest @ ..] => {
                if let Some(own) = self.below.get_mut(*step) {
                    own.cut(rest);
                    if own.is_empty() {
                        self.below.remove(*step);
                    }
                }
            }
        }
    }

    /// Removes a place, but not what is below it.
    pub fn forget(&mut self, step: &str) {
        if let Some(own) = self.below.get_mut(step) {
            own.member = false;
            if own.is_empty() {
                self.below.remove(step);
            }
        }
    }

    /// The members that are in both sets.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        let mut both = Self { member: self.member && other.member, below: BTreeMap::new() };
        for (step, own) in &self.below {
            if let Some(theirs) = other.below.get(step) {
                both.insert(step.clone(), own.common(theirs));
            }
        }
        both
    }

    /// Adds every named field that is an ancestor of a member.
    #[must_use]
    pub fn with_named(&self) -> Self {
        let below = self.below.iter().map(|(step, own)| {
            let mut own = own.with_named();
            own.member |= step.starts_with("f:");
            (step.clone(), own)
        });
        Self { member: self.member, below: below.collect() }
    }

    /// The members as readable paths, such as `.status.conditions[type="Ready"].reason`. Members of one level come
    /// before those below.
    pub fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect_paths("", &mut found);
        found
    }

    fn collect_paths(&self, at: &str, found: &mut Vec<String>) {
        let here = |step: &String| format!("{at}{}", shown(step));
        found.extend(self.below.iter().filter(|(_, own)| own.member).map(|(step, _)| here(step)));
        for (step, own) in &self.below {
            own.collect_paths(&here(step), found);
        }
    }

    /// Renders `fieldsV1`.
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.below.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        map.extend(self.below.iter().map(|(step, own)| (step.clone(), own.to_json())));
        Value::Object(map)
    }

    /// Parses `fieldsV1`; `None` if it is malformed.
    pub fn from_json(value: &Value) -> Option<Self> {
        let map = value.as_object()?;
        let mut fields = Self::default();
        for (step, below) in map {
            if step == "." {
                fields.member = true;
            } else if step.get(1..2) == Some(":") {
                let mut own = Self::from_json(below)?;
                own.member |= own.below.is_empty();
                fields.below.insert(step.clone(), own);
            } else {
                return None;
            }
        }
        Some(fields)
    }
}

fn shown(step: &str) -> String {
    let (kind, rest) = step.split_at_checked(2).unwrap_or_default();
    match kind {
        "f:" => format!(".{rest}"),
        "k:" => {
            let keys: Map<String, Value> = serde_json::from_str(rest).unwrap_or_default();
            let mut text = String::from("[");
            for (at, (key, value)) in keys.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = write!(text, "{}{key}={value}", if at == 0 { "" } else { "," });
            }
            text + "]"
        }
        _ => format!("[={rest}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: &Value) -> FieldSet {
        FieldSet::from_json(value).unwrap()
    }

    #[test]
    fn a_set_is_unchanged_by_serialization() {
        let text = json!({"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:a": {}}});
        assert_eq!(set(&text).to_json(), text);
    }

    #[test]
    fn subtracting_a_member_keeps_its_parent() {
        let mut own = set(&json!({"f:a": {".": {}, "f:b": {}}, "f:c": {}}));
        own.subtract(&set(&json!({"f:a": {"f:b": {}}, "f:c": {}})));
        assert_eq!(own.to_json(), json!({"f:a": {}}));
    }

    #[test]
    fn paths_have_the_format_of_the_real_server() {
        let own =
            set(&json!({"f:status": {"f:conditions": {"k:{\"type\":\"Ready\"}": {".": {}, "f:reason": {}}}},
            "f:metadata": {"f:finalizers": {"v:\"a/b\"": {}}}}));
        let expected = [
            ".metadata.finalizers[=\"a/b\"]",
            ".status.conditions[type=\"Ready\"]",
            ".status.conditions[type=\"Ready\"].reason",
        ];
        assert_eq!(own.paths(), expected);
    }
}
