//! The writing verbs: create, update, patch, apply, delete, with the semantics of the real one.

use super::kinds::{self, Kind};
use super::merge;
use super::rules;
use super::status::Status;
use super::store::{Key, Store, Stored};
use super::{Attempt, Preconditions};
use crate::sim::values::{is_going, list, name, namespace, seconds, text};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who writes.
#[derive(Clone, Copy)]
pub struct By<'b> {
    pub user: &'b Arc<str>,
    /// The part of the object that is written; `None` for the whole but its status.
    pub subresource: Option<&'static str>,
}

/// How an object is changed.
pub enum Change<'c> {
    /// A merge patch.
    Merge(&'c Value),
    /// A JSON patch.
    Json(&'c json_patch::Patch),
    /// Put in its place.
    Replace(&'c Value),
}

/// Names tried for `generateName`.
const NAME_TRIES: u32 = 8;

impl Store {
    pub fn create(
        &mut self,
        kind: &'static Kind,
        mut object: Value,
        by: By<'_>,
        deny: &dyn Fn(&Attempt<'_>) -> Option<Status>,
    ) -> Result<Arc<Value>, Status> {
        let prefix = text(&object, "/metadata/generateName").to_owned();
        if name(&object).is_empty() && !prefix.is_empty() {
            let free = (0..NAME_TRIES).find_map(|_| {
                let name =
                    format!("{prefix}{}", crate::digest::digest(&[&self.chance.next().to_string()], 5));
                self.get(kind, &(namespace(&object).to_owned(), name.clone())).is_none().then_some(name)
            });
            object["metadata"]["name"] = json!(free.ok_or_else(|| Status::already_exists(kind, &prefix))?);
        }
        if name(&object).is_empty() {
            return Err(Status::invalid(
                kind,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        }
        let key: Key = (namespace(&object).to_owned(), name(&object).to_owned());
        if kind.namespaced && self.get(&kinds::NAMESPACE, &(String::new(), key.0.clone())).is_none() {
            return Err(Status::not_found(&kinds::NAMESPACE, &key.0));
        }
        if self.get(kind, &key).is_some() {
            return Err(Status::already_exists(kind, &key.1));
        }
        if kind.status
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
        let uid = self.uid();
        let now = seconds(self.clock.now());
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("deletionTimestamp");
            metadata.remove("resourceVersion");
            metadata.remove("managedFields");
            metadata.insert("uid".to_owned(), json!(uid));
            metadata.insert("creationTimestamp".to_owned(), json!(now));
            metadata.insert("generation".to_owned(), json!(1));
            drop_empty(metadata);
        }
        rules::check(kind, None, &object)?;
        deny(&Attempt { user: by.user, verb: "CREATE", kind, object: &object, old: None })
            .map_or(Ok(()), Err)?;
        let stored = Stored { object: Arc::new(object), applied: BTreeMap::new() };
        Ok(self.commit(kind, key, Some(stored), (by.user, None)))
    }

    fn uid(&mut self) -> String {
        let (high, low) = (self.chance.next(), self.chance.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            0x8000 | (low >> 50),
            low & 0xffff_ffff_ffff
        )
    }

    pub fn change(
        &mut self,
        kind: &'static Kind,
        key: &Key,
        change: &Change<'_>,
        by: By<'_>,
        deny: &dyn Fn(&Attempt<'_>) -> Option<Status>,
    ) -> Result<Arc<Value>, Status> {
        let stored = self.get(kind, key).cloned().ok_or_else(|| Status::not_found(kind, &key.1))?;
        let mut wanted = (*stored.object).clone();
        match change {
            Change::Merge(patch) => merge::merge(&mut wanted, patch),
            Change::Json(patch) => merge::json_patch(&mut wanted, patch).map_err(|e| {
                let mut status = Status::invalid(kind, &key.1, "");
                status.message =
                    format!("the server rejected our request due to an error in our request: {e}");
                status
            })?,
            Change::Replace(object) => wanted = (*object).clone(),
        }
        self.put(kind, key, stored, wanted, by, deny)
    }

    pub fn apply(
        &mut self,
        kind: &'static Kind,
        key: &Key,
        (manager, force): (&str, bool),
        applied: &Value,
        by: By<'_>,
        deny: &dyn Fn(&Attempt<'_>) -> Option<Status>,
    ) -> Result<Arc<Value>, Status> {
        let owner = format!("{manager}/{}", by.subresource.unwrap_or_default());
        let Some(stored) = self.get(kind, key).cloned() else {
            if by.subresource.is_some() || applied.pointer("/metadata/uid").is_some() {
                return Err(Status::not_found(kind, &key.1));
            }
            self.create(kind, applied.clone(), by, deny)?;
            let made = self.get(kind, key).cloned().ok_or_else(|| Status::not_found(kind, &key.1))?;
            return Ok(self.note_applied(kind, key, made, owner, applied));
        };
        let uid = text(applied, "/metadata/uid");
        if !uid.is_empty() && uid != text(&stored.object, "/metadata/uid") {
            let why = "the UID in the precondition does not match the UID in record. The object might have been deleted and then recreated";
            return Err(Status::conflict(kind, &key.1, why));
        }
        let others: Vec<&Value> =
            stored.applied.iter().filter(|(m, _)| **m != owner).map(|(_, a)| a).collect();
        if !force {
            for other in stored.applied.iter().filter(|(m, _)| **m != owner) {
                if let Some(path) = merge::conflicts(&stored.object, applied, other.1).first() {
                    let manager = other.0.split('/').next().unwrap_or_default();
                    let why = format!("Apply failed with 1 conflict: conflict with \"{manager}\": {path}");
                    return Err(Status { message: why.clone(), ..Status::conflict(kind, &key.1, &why) });
                }
            }
        }
        let mut wanted = (*stored.object).clone();
        if let Some(before) = stored.applied.get(&owner) {
            merge::withdraw(&mut wanted, before, applied, &others);
        }
        merge::apply(&mut wanted, applied);
        let mut noted = stored.clone();
        noted.applied.insert(owner, applied.clone());
        self.put(kind, key, noted, wanted, by, deny)
    }

    /// Remembers what was applied with a create; that is no change of the object.
    fn note_applied(
        &mut self,
        kind: &'static Kind,
        key: &Key,
        mut made: Stored,
        owner: String,
        applied: &Value,
    ) -> Arc<Value> {
        made.applied.insert(owner, applied.clone());
        let object = Arc::clone(&made.object);
        self.remember(kind, key, made);
        object
    }

    /// Stores what an object shall be, within what the subresource may change.
    fn put(
        &mut self,
        kind: &'static Kind,
        key: &Key,
        stored: Stored,
        wanted: Value,
        by: By<'_>,
        deny: &dyn Fn(&Attempt<'_>) -> Option<Status>,
    ) -> Result<Arc<Value>, Status> {
        let old = Arc::clone(&stored.object);
        let version = text(&wanted, "/metadata/resourceVersion");
        if !version.is_empty() && version != text(&old, "/metadata/resourceVersion") {
            let why =
                "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Status::conflict(kind, &key.1, why));
        }
        let uid = text(&wanted, "/metadata/uid");
        if !uid.is_empty() && uid != text(&old, "/metadata/uid") {
            let why = "Precondition failed: UID in precondition does not match UID in object meta";
            return Err(Status::conflict(kind, &key.1, why));
        }
        let mut new = restricted(kind, &old, wanted, by.subresource);
        if is_going(&old) {
            let had = list(&old, "/metadata/finalizers");
            if list(&new, "/metadata/finalizers").iter().any(|f| !had.contains(f)) {
                let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
                return Err(Status::invalid(kind, &key.1, why));
            }
        }
        if parts_differ(&old, &new) {
            let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
            new["metadata"]["generation"] = json!(generation + 1);
        }
        if new == *old {
            self.remember(kind, key, stored);
            return Ok(old);
        }
        rules::check(kind, Some(&old), &new)?;
        deny(&Attempt { user: by.user, verb: "UPDATE", kind, object: &new, old: Some(&old) })
            .map_or(Ok(()), Err)?;
        let over = is_going(&new) && list(&new, "/metadata/finalizers").is_empty();
        let after = (!over).then(|| Stored { object: Arc::new(new), applied: stored.applied });
        Ok(self.commit(kind, key.clone(), after, (by.user, by.subresource)))
    }

    /// Deletes an object, or has its deletion begin where finalizers hold it.
    pub fn delete(
        &mut self,
        kind: &'static Kind,
        key: &Key,
        only: &Preconditions,
        by: By<'_>,
        deny: &dyn Fn(&Attempt<'_>) -> Option<Status>,
    ) -> Result<(Arc<Value>, bool), Status> {
        let stored = self.get(kind, key).cloned().ok_or_else(|| Status::not_found(kind, &key.1))?;
        let old = Arc::clone(&stored.object);
        let differs =
            |wanted: &Option<String>, path: &str| wanted.as_deref().is_some_and(|w| w != text(&old, path));
        if differs(&only.uid, "/metadata/uid") {
            let (wanted, is) = (only.uid.as_deref().unwrap_or_default(), text(&old, "/metadata/uid"));
            let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
            return Err(Status::conflict(kind, &key.1, &why));
        }
        if differs(&only.resource_version, "/metadata/resourceVersion") {
            let why = "Precondition failed: ResourceVersion in precondition does not match";
            return Err(Status::conflict(kind, &key.1, why));
        }
        deny(&Attempt { user: by.user, verb: "DELETE", kind, object: &old, old: Some(&old) })
            .map_or(Ok(()), Err)?;
        if list(&old, "/metadata/finalizers").is_empty() {
            return Ok((self.commit(kind, key.clone(), None, (by.user, None)), true));
        }
        if is_going(&old) {
            return Ok((old, false));
        }
        let mut going = (*old).clone();
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
        going["metadata"]["deletionTimestamp"] = json!(seconds(self.clock.now()));
        going["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        going["metadata"]["generation"] = json!(generation + 1);
        let after = Stored { object: Arc::new(going), applied: stored.applied };
        Ok((self.commit(kind, key.clone(), Some(after), (by.user, None)), false))
    }

    /// Deletes every object all of whose owners are gone, until nothing more goes.
    pub fn collect_garbage(&mut self, by: &Arc<str>) {
        loop {
            let garbage: Vec<(&'static Kind, Key)> = kinds::ALL
                .iter()
                .flat_map(|kind| self.all(kind).map(move |s| (*kind, &s.object)))
                .filter(|(_, object)| !is_going(object) && self.is_garbage(object))
                .map(|(kind, o)| (kind, (namespace(o).to_owned(), name(o).to_owned())))
                .collect();
            if garbage.is_empty() {
                return;
            }
            for (kind, key) in garbage {
                let only = Preconditions::default();
                // It was there a moment ago, and nothing else runs meanwhile.
                let _ = self.delete(kind, &key, &only, By { user: by, subresource: None }, &|_| None);
            }
        }
    }

    fn is_garbage(&self, object: &Value) -> bool {
        let owners = list(object, "/metadata/ownerReferences");
        !owners.is_empty()
            && owners.iter().all(|owner| {
                let Some(kind) = kinds::ALL.iter().find(|k| k.kind == text(owner, "/kind")) else {
                    return false;
                };
                let namespace = if kind.namespaced { namespace(object) } else { "" };
                let key = (namespace.to_owned(), text(owner, "/name").to_owned());
                self.get(kind, &key).is_none_or(|o| text(&o.object, "/metadata/uid") != text(owner, "/uid"))
            })
    }
}

/// The new object with everything put back that this write must not change.
fn restricted(kind: &Kind, old: &Value, mut wanted: Value, subresource: Option<&'static str>) -> Value {
    if subresource == Some("status") {
        let mut new = old.clone();
        match wanted.get_mut("status").map(Value::take) {
            Some(status) if !status.is_null() => new["status"] = without_nulls(status),
            _ => {
                if let Some(new) = new.as_object_mut() {
                    new.remove("status");
                }
            }
        }
        return new;
    }
    if let Some(wanted) = wanted.as_object_mut() {
        if kind.status {
            wanted.remove("status");
            if let Some(status) = old.get("status") {
                wanted.insert("status".to_owned(), status.clone());
            }
        }
        if let (Some(metadata), Some(before)) =
            (wanted.get_mut("metadata").and_then(Value::as_object_mut), old.get("metadata"))
        {
            for field in [
                "uid",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
                "resourceVersion",
                "name",
                "namespace",
            ] {
                match before.get(field) {
                    Some(value) => metadata.insert(field.to_owned(), value.clone()),
                    None => metadata.remove(field),
                };
            }
            metadata.remove("managedFields");
            drop_empty(metadata);
        }
        for field in ["apiVersion", "kind"] {
            if let Some(value) = old.get(field) {
                wanted.insert(field.to_owned(), value.clone());
            }
        }
    }
    without_nulls(wanted)
}

/// Empty maps and lists of metadata are not stored.
fn drop_empty(metadata: &mut serde_json::Map<String, Value>) {
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

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect(),
        ),
        Value::Array(list) => Value::Array(list.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// Whether anything but metadata and status differs.
fn parts_differ(old: &Value, new: &Value) -> bool {
    let parts = |object: &Value| -> BTreeMap<String, Value> {
        let map = object.as_object().into_iter().flatten();
        map.filter(|(k, _)| !matches!(k.as_str(), "metadata" | "status"))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    parts(old) != parts(new)
}
