//! Update, patch and apply, with the semantics of the real server.

use super::kinds::ServedKind;
use super::managers::{Manager, Managers};
use super::patch::Patch;
use super::preconditions::{FIXED, prepared};
use super::status::{FieldError, Status};
use super::store::{ObjectKey, ObjectStore, Stored};
use super::{AdmissionRequest, defaults, rules};
use crate::values::{is_going, list, name, namespace, seconds, set, text};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The writer, and the options of the write.
#[derive(Clone, Copy)]
pub struct By<'b> {
    pub user: &'b Arc<str>,
    /// The field manager.
    pub manager: &'b str,
    /// The subresource that is written; `None` for everything but the status.
    pub subresource: Option<&'static str>,
    /// Whether nothing is stored.
    pub dry_run: bool,
}

/// Admission: returns an error if a write is refused.
pub type Deny<'d> = &'d dyn Fn(&AdmissionRequest<'_>) -> Option<Status>;

impl<'b> By<'b> {
    pub fn manager(self, now: &'b str) -> Manager<'b> {
        Manager { name: self.manager, subresource: self.subresource, now }
    }
}

impl ObjectStore {
    /// Adds the managed fields to an object that is not stored.
    pub fn shown(&self, mut object: Value, managers: &Managers) -> Value {
        if let Some(shown) = managers.write().filter(|_| !self.hides_managers) {
            set(&mut object, &["metadata", "managedFields"], shown);
        }
        object
    }

    /// Replaces an object.
    pub fn replace(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        object: Value,
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        let stored = self.existing(kind, key)?;
        // A UID in the body of an update is a precondition; a wrong one is a conflict.
        let (wanted, is) = (text(&object, "/metadata/uid"), text(&stored.bare, "/metadata/uid"));
        if !wanted.is_empty() && wanted != is {
            let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
            return Err(Status::conflict(kind, &key.1, &why));
        }
        let version = text(&object, "/metadata/resourceVersion");
        if kind.custom && (version.is_empty() || version == "0") {
            return Err(must_have_version(kind, &key.1));
        }
        self.update(kind, key, &stored, object, by, deny)
    }

    /// Patches an object.
    pub fn patch(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        patch: &Patch,
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        let stored = self.existing(kind, key)?;
        let mut wanted = (*stored.object).clone();
        patch.change(kind, &mut wanted)?;
        check_place(key, &wanted)?;
        if kind.custom && text(&wanted, "/metadata/resourceVersion").is_empty() {
            return Err(must_have_version(kind, &key.1));
        }
        self.update(kind, key, &stored, wanted, by, deny)
    }

    fn existing(&self, kind: &'static ServedKind, key: &ObjectKey) -> Result<Stored, Status> {
        self.get(kind, key).cloned().ok_or_else(|| Status::not_found(kind, &key.1))
    }

    /// Stores an updated object, and records the managers of the changed fields.
    fn update(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        stored: &Stored,
        mut wanted: Value,
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        let given = wanted.pointer_mut("/metadata").and_then(Value::as_object_mut);
        let given = given.and_then(|m| m.remove("managedFields")).filter(|_| by.subresource.is_none());
        let mut managers = match given {
            Some(given) if given == json!([{}]) => Managers::default(),
            Some(given) => Managers::read(&given).unwrap_or_else(|| (*stored.managers).clone()),
            None => (*stored.managers).clone(),
        };
        let mut new = prepared(kind, key, stored, wanted, by.subresource)?;
        defaults::fill(kind, &mut new);
        // An update does not start field management on an object without managers.
        if !managers.is_empty() {
            managers.update(kind, by.manager(&seconds(self.clock.now())), &stored.bare, &new);
        }
        self.put(kind, key, (stored, new, managers), by, deny)
    }

    /// Server-side apply. Returns the object and whether it is new.
    pub fn apply(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        (stated, force): (&Value, bool),
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<(Arc<Value>, bool), Status> {
        let now = seconds(self.clock.now());
        let has_null_version = stated.pointer("/metadata/resourceVersion") == Some(&Value::Null);
        let mut stated = defaults::without_nulls(with_empty_metadata(stated.clone()));
        if stated.pointer("/metadata/managedFields").is_some() {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let found = self.get(kind, key).cloned();
        let Some(stored) = found else {
            if by.subresource.is_some() {
                return Err(Status::not_found(kind, &key.1));
            }
            let uid = text(&stated, "/metadata/uid");
            if !uid.is_empty() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(Status::conflict(kind, &key.1, &why));
            }
            let mut managers = Managers::default();
            let object = managers.apply(kind, by.manager(&now), (&json!({}), &stated), force)?;
            return Ok((self.create_with(kind, object, managers, by, deny)?, true));
        };
        if kind.custom && has_null_version {
            return Err(must_have_version(kind, &key.1));
        }
        let mut managers = (*stored.managers).clone();
        // Fixed fields in an apply are preconditions. They are not applied.
        let preconditions = taken_out(&mut stated);
        let mut wanted = managers.apply(kind, by.manager(&now), (&stored.bare, &stated), force)?;
        if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.extend(preconditions);
        }
        let mut new = prepared(kind, key, &stored, wanted, by.subresource)?;
        defaults::fill(kind, &mut new);
        self.put(kind, key, (&stored, new, managers), by, deny).map(|object| (object, false))
    }

    /// Stores a prepared object, unless nothing changed.
    fn put(
        &mut self,
        kind: &'static ServedKind,
        key: &ObjectKey,
        (stored, mut new, managers): (&Stored, Value, Managers),
        by: By<'_>,
        deny: Deny<'_>,
    ) -> Result<Arc<Value>, Status> {
        let old = &stored.bare;
        if kind.has_generation() && asks_for_other(old, &new) {
            let generation = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default();
            set(&mut new, &["metadata", "generation"], json!(generation + 1));
        }
        rules::check(kind, Some(old), &new, by.subresource)?;
        deny(&AdmissionRequest { user: by.user, verb: "UPDATE", kind, object: &new, old: Some(old) })
            .map_or(Ok(()), Err)?;
        if new == **old && managers.is_like(&stored.managers) {
            return Ok(Arc::clone(&stored.object));
        }
        if by.dry_run {
            return Ok(Arc::new(self.shown(new, &managers)));
        }
        let over = is_going(&new) && list(&new, "/metadata/finalizers").is_empty();
        if over {
            // The answer to the write that removes the last finalizer is the object as written, not its removal.
            self.commit(kind, key.clone(), None, (by.user, by.subresource));
            return Ok(Arc::new(self.shown(new, &managers)));
        }
        Ok(self.commit(kind, key.clone(), Some((new, managers)), (by.user, by.subresource)))
    }
}

fn must_have_version(kind: &ServedKind, name: &str) -> Status {
    let violation =
        FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
    Status::invalid_resource(kind, name, violation)
}

/// Checks that a patched object still has its name and namespace.
fn check_place(key: &ObjectKey, wanted: &Value) -> Result<(), Status> {
    if name(wanted) == key.1 && (key.0.is_empty() || namespace(wanted) == key.0) {
        return Ok(());
    }
    if name(wanted) == key.1 {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(why));
    }
    let (wanted, is) = (name(wanted), &key.1);
    Err(Status::bad_request(if wanted.is_empty() {
        format!("the name of the object ({is} based on URL) was undeterminable: name must be provided")
    } else {
        format!("the name of the object ({wanted}) does not match the name on the URL ({is})")
    }))
}

fn taken_out(stated: &mut Value) -> Map<String, Value> {
    let metadata = stated.get_mut("metadata").and_then(Value::as_object_mut);
    let fixed =
        metadata.map(|m| FIXED.iter().filter_map(|f| Some(((*f).to_owned(), m.remove(*f)?))).collect());
    fixed.unwrap_or_default()
}

/// Replaces null maps and lists of metadata with empty ones, as the real server does for an apply.
fn with_empty_metadata(mut stated: Value) -> Value {
    for (field, empty) in [
        ("labels", json!({})),
        ("annotations", json!({})),
        ("finalizers", json!([])),
        ("ownerReferences", json!([])),
    ] {
        if let Some(value) = stated.pointer_mut(&format!("/metadata/{field}")).filter(|value| value.is_null())
        {
            *value = empty;
        }
    }
    stated
}

/// Whether anything but metadata and status differs.
fn asks_for_other(old: &Value, new: &Value) -> bool {
    let (Some(old), Some(new)) = (old.as_object(), new.as_object()) else { return false };
    let counts = |field: &&String| !matches!(field.as_str(), "metadata" | "status");
    old.keys().chain(new.keys()).filter(counts).any(|field| old.get(field) != new.get(field))
}
