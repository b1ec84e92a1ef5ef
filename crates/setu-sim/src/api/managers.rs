//! Field management: `metadata.managedFields` and server-side apply.
//!
//! The rules are those of Kubernetes. An update owns the fields it changes and takes them from other managers.
//! An apply owns the fields it states and may not change those of others unless forced. Fields it no longer
//! states are removed unless another manager owns them.

use super::differ::{self, Difference};
use super::fields::{self, FieldSet};
use super::kinds::ServedKind;
use super::status::Status;
use serde_json::{Map, Value, json};

/// The writer, for field management.
#[derive(Clone, Copy, Debug)]
pub struct Manager<'m> {
    /// Name; may be empty.
    pub name: &'m str,
    /// The subresource that is written.
    pub subresource: Option<&'static str>,
    /// The time, in the format of `metav1.Time`.
    pub now: &'m str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ManagerEntry {
    name: String,
    applies: bool,
    version: String,
    subresource: String,
    time: String,
    fields: FieldSet,
}

/// The managers of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Managers(Vec<ManagerEntry>);

/// Fields of `metadata` that have no manager.
const UNMANAGED: [&str; 8] = [
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];

/// Owner of fields without a manager when an object is applied for the first time.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

impl Managers {
    /// Whether there are no managers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses `metadata.managedFields`; `None` if there are none or they are malformed.
    pub fn read(value: &Value) -> Option<Self> {
        let text =
            |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let entries = value.as_array()?.iter().map(|entry| {
            let applies = match entry.get("operation")?.as_str()? {
                "Apply" => true,
                "Update" => false,
                _ => return None,
            };
            Some(ManagerEntry {
                name: text(entry, "manager"),
                applies,
                version: text(entry, "apiVersion"),
                subresource: text(entry, "subresource"),
                time: text(entry, "time"),
                fields: entry
                    .get("fieldsV1")
                    .map_or_else(|| Some(FieldSet::default()), FieldSet::from_json)?,
            })
        });
        entries.collect::<Option<Vec<_>>>().filter(|e| !e.is_empty()).map(Self)
    }

    /// Renders `metadata.managedFields`; `None` if there are no managers.
    pub fn write(&self) -> Option<Value> {
        let mut entries: Vec<&ManagerEntry> = self.0.iter().collect();
        entries.sort_by_key(|e| (!e.applies, &e.time, &e.name, &e.version, &e.subresource));
        let shown = entries.into_iter().map(|entry| {
            let mut shown = Map::new();
            let texts = [
                ("manager", &entry.name),
                ("apiVersion", &entry.version),
                ("subresource", &entry.subresource),
                ("time", &entry.time),
            ];
            for (key, text) in texts {
                if !text.is_empty() {
                    shown.insert(key.to_owned(), json!(text));
                }
            }
            shown.insert("operation".to_owned(), json!(if entry.applies { "Apply" } else { "Update" }));
            shown.insert("fieldsType".to_owned(), json!("FieldsV1"));
            shown.insert("fieldsV1".to_owned(), entry.fields.to_json());
            Value::Object(shown)
        });
        (!self.0.is_empty()).then(|| Value::Array(shown.collect()))
    }

    /// Whether two sets of managers are equal except for times.
    pub fn is_like(&self, other: &Self) -> bool {
        let ignored = |e: &ManagerEntry| ManagerEntry { time: String::new(), ..e.clone() };
        self.0.len() == other.0.len()
            && self.0.iter().all(|e| other.0.iter().any(|o| ignored(o) == ignored(e)))
    }

    /// Records the fields that an update changed.
    pub fn update(&mut self, kind: &ServedKind, who: Manager<'_>, old: &Value, new: &Value) {
        let Difference { mut set, removed } = written(kind, who.subresource, (old, new));
        for entry in &mut self.0 {
            entry.fields.subtract(&set);
            entry.fields.subtract(&removed);
        }
        strip(&mut set);
        if !set.is_empty() {
            let index = self.index_of(kind, who, false);
            if let Some(entry) = self.0.get_mut(index) {
                entry.fields.add(set);
                who.now.clone_into(&mut entry.time);
            }
        }
        self.0.retain(|e| !e.fields.is_empty());
    }

    /// Applies a manager's fields to an object. The object is passed and returned without managed fields.
    pub fn apply(
        &mut self,
        kind: &ServedKind,
        who: Manager<'_>,
        (old, stated): (&Value, &Value),
        force: bool,
    ) -> Result<Value, Status> {
        if self.0.is_empty() && old.pointer("/metadata/uid").is_some() {
            // Fields set before field management began need an owner.
            let nothing = json!({"apiVersion": old.get("apiVersion"), "kind": old.get("kind")});
            let owner = Manager { name: BEFORE_FIRST_APPLY, subresource: None, now: who.now };
            self.update(kind, owner, &nothing, old);
        }
        let mut new = old.clone();
        differ::merge(kind, &mut new, stated);
        let mut own = differ::stated(kind, stated);
        reset(kind, who.subresource, &mut own);
        strip(&mut own);
        let index = self.index_of(kind, who, true);
        let before = self.0.get_mut(index).map(|e| std::mem::replace(&mut e.fields, own));
        let mut gone = before.unwrap_or_default().with_named();
        for entry in &self.0 {
            gone.subtract(&entry.fields.with_named());
        }
        // Metadata also holds fields of the server itself.
        gone.forget("f:metadata");
        differ::remove(kind, &mut new, &gone);
        let Difference { set, removed } = written(kind, who.subresource, (old, &new));
        let conflicts = self.conflicts(index, &set);
        if !force && !conflicts.is_empty() {
            return Err(Status::apply_conflict(&conflicts));
        }
        for (at, entry) in self.0.iter_mut().enumerate() {
            if at != index {
                entry.fields.subtract(&set);
                entry.fields.subtract(&removed);
            } else if new != *old {
                who.now.clone_into(&mut entry.time);
            }
        }
        self.0.retain(|e| !e.fields.is_empty());
        Ok(new)
    }

    /// The fields of a set that entries other than this one manage, each with its manager.
    fn conflicts(&self, own: usize, set: &FieldSet) -> Vec<(String, String)> {
        let others = self.0.iter().enumerate().filter(|(at, _)| *at != own);
        let paths = others.map(|(_, entry)| (entry.described(), entry.fields.common(set).paths()));
        paths
            .flat_map(|(manager, paths)| paths.into_iter().map(move |path| (manager.clone(), path)))
            .collect()
    }

    /// The index of a manager's entry, which is created if missing.
    fn index_of(&mut self, kind: &ServedKind, who: Manager<'_>, applies: bool) -> usize {
        let version = kind.api_version();
        let subresource = who.subresource.unwrap_or_default();
        let same = |e: &ManagerEntry| {
            e.applies == applies
                && e.name == who.name
                && e.subresource == subresource
                && (applies || e.version == version)
        };
        if let Some(at) = self.0.iter().position(same) {
            if let Some(entry) = self.0.get_mut(at) {
                entry.version = version;
            }
            return at;
        }
        self.0.push(ManagerEntry {
            name: who.name.to_owned(),
            applies,
            version,
            subresource: subresource.to_owned(),
            time: String::new(),
            fields: FieldSet::default(),
        });
        self.0.len() - 1
    }
}

impl ManagerEntry {
    fn described(&self) -> String {
        let mut text = format!("{:?}", self.name);
        if !self.subresource.is_empty() {
            text = format!("{text} with subresource {:?}", self.subresource);
        }
        if self.applies { text } else { format!("{text} using {}", self.version) }
    }
}

/// The fields that a write of this subresource changed.
fn written(kind: &ServedKind, subresource: Option<&'static str>, (old, new): (&Value, &Value)) -> Difference {
    let mut difference = differ::difference(kind, old, new);
    reset(kind, subresource, &mut difference.set);
    reset(kind, subresource, &mut difference.removed);
    difference
}

/// Removes the fields that a write of this subresource never changes.
fn reset(kind: &ServedKind, subresource: Option<&'static str>, fields: &mut FieldSet) {
    match subresource {
        None if kind.status => fields.cut(&[&fields::field("status")]),
        None => {}
        Some(_) => {
            fields.cut(&[&fields::field("spec")]);
            if kind.custom {
                fields.cut(&[&fields::field("metadata")]);
            } else if kind.kind == "Pod" {
                fields.cut(&[&fields::field("metadata"), &fields::field("ownerReferences")]);
            }
        }
    }
}

fn strip(fields: &mut FieldSet) {
    fields.cut(&[&fields::field("apiVersion")]);
    fields.cut(&[&fields::field("kind")]);
    fields.forget("f:metadata");
    for name in UNMANAGED {
        fields.cut(&["f:metadata", name]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{CONFIG_MAP, WORKLOAD};
    use super::*;

    fn who(name: &str) -> Manager<'_> {
        Manager { name, subresource: None, now: "2026-01-01T00:00:00Z" }
    }

    fn map(data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
    }

    #[test]
    fn fields_no_longer_applied_are_removed_unless_others_apply_them() {
        let mut managers = Managers::default();
        let first =
            managers.apply(&CONFIG_MAP, who("one"), (&json!({}), &map(&json!({"a": "1", "b": "2"}))), false);
        let second =
            managers.apply(&CONFIG_MAP, who("two"), (&first.unwrap(), &map(&json!({"b": "2"}))), false);
        let third =
            managers.apply(&CONFIG_MAP, who("one"), (&second.unwrap(), &map(&json!({}))), false).unwrap();
        assert_eq!(third["data"], json!({"b": "2"}));
    }

    #[test]
    fn a_field_of_another_manager_is_changed_only_by_force() {
        let mut managers = Managers::default();
        let first = map(&json!({"a": "1"}));
        managers.update(&CONFIG_MAP, who("editor"), &json!({}), &first);
        let wanted = map(&json!({"a": "2"}));
        let refused = managers.clone().apply(&CONFIG_MAP, who("one"), (&first, &wanted), false).unwrap_err();
        assert_eq!(
            refused.message,
            "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.a"
        );
        managers.apply(&CONFIG_MAP, who("one"), (&first, &wanted), true).unwrap();
        assert_eq!(managers.0.iter().filter(|e| e.fields.paths().contains(&".data.a".to_owned())).count(), 1);
    }

    #[test]
    fn an_entry_left_out_of_an_apply_keeps_the_fields_of_other_managers() {
        let entry = |name: &str| json!({"name": name, "state": "Ready"});
        let workload = |entries: &Value| json!({"status": {"admissionChecks": entries}});
        let status = |name| Manager { subresource: Some("status"), ..who(name) };
        let mut managers = Managers::default();
        let old = json!({});
        let new =
            managers.apply(&WORKLOAD, status("kueue"), (&old, &workload(&json!([{"name": "b"}]))), true);
        let both = workload(&json!([entry("a"), entry("b")]));
        let new = managers.apply(&WORKLOAD, status("setu"), (&new.unwrap(), &both), true).unwrap();
        let new =
            managers.apply(&WORKLOAD, status("setu"), (&new, &workload(&json!([entry("a")]))), true).unwrap();
        assert_eq!(new["status"]["admissionChecks"], json!([entry("a"), {"name": "b"}]));
    }
}
