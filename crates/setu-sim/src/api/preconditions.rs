//! Preconditions of an update (versions, UIDs, deletion in progress), and the fields that it may not change.

use super::defaults;
use super::kinds::ServedKind;
use super::status::{FieldError, Status};
use super::store::{ObjectKey, Stored};
use crate::values::{is_going, list, text};
use serde_json::Value;
use std::num::IntErrorKind;

/// Fields of metadata that a write cannot change.
pub const FIXED: [&str; 7] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// Checks the preconditions in the wanted object, and restores everything that this write cannot change.
pub fn prepared(
    kind: &'static ServedKind,
    key: &ObjectKey,
    stored: &Stored,
    wanted: Value,
    subresource: Option<&'static str>,
) -> Result<Value, Status> {
    let old = &stored.bare;
    let version = text(&wanted, "/metadata/resourceVersion");
    if !version.is_empty() {
        parsed_version(version).map_err(Status::internal)?;
        if version != "0" && version != text(old, "/metadata/resourceVersion") {
            return Err(Status::modified(kind, &key.1));
        }
    }
    let mut found = Vec::new();
    if subresource.is_none() || !kind.custom {
        for field in ["uid", "deletionTimestamp"] {
            let path = format!("/metadata/{field}");
            let given = wanted.pointer(&path).filter(|v| !v.is_null() && *v != "");
            if let Some(given) = given.filter(|g| old.pointer(&path) != Some(g)) {
                let violation = FieldError::invalid(format!("metadata.{field}"), given, "field is immutable");
                found.extend([violation.clone(), violation]);
            }
        }
    }
    let new = restricted(kind, old, wanted, subresource);
    if is_going(old) {
        let had = list(old, "/metadata/finalizers");
        let added: Vec<String> = list(&new, "/metadata/finalizers")
            .iter()
            .filter(|f| !had.contains(f))
            .map(|f| format!("{f}"))
            .collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            found.push(FieldError::forbidden("metadata.finalizers", &why));
        }
    }
    if found.is_empty() { Ok(new) } else { Err(Status::invalid(kind, &key.1, &found)) }
}

/// Parses a version. The error is in the words of the real server.
pub fn parsed_version(text: &str) -> Result<u64, String> {
    text.parse::<u64>().map_err(|error| {
        let why = match error.kind() {
            IntErrorKind::PosOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.ParseUint: parsing {text:?}: {why}")
    })
}

/// The new object, with everything restored that this write may not change.
fn restricted(kind: &ServedKind, old: &Value, mut wanted: Value, subresource: Option<&'static str>) -> Value {
    let status = wanted.as_object_mut().and_then(|w| w.remove("status")).filter(|s| !s.is_null());
    if subresource.is_some() && kind.custom {
        let mut new = old.clone();
        if let Some(new) = new.as_object_mut() {
            match status {
                Some(status) => new.insert("status".to_owned(), defaults::without_nulls(status)),
                None => new.remove("status"),
            };
        }
        return new;
    }
    let Some(fields) = wanted.as_object_mut() else { return old.clone() };
    let (kept, given) = if subresource.is_some() { ("spec", status) } else { ("", status) };
    let status = if subresource.is_none() && kind.status { old.get("status").cloned() } else { given };
    if let Some(status) = status {
        fields.insert("status".to_owned(), status);
    }
    for field in ["apiVersion", "kind", kept] {
        match old.get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
    if let (Some(metadata), Some(before)) =
        (fields.get_mut("metadata").and_then(Value::as_object_mut), old.get("metadata"))
    {
        for field in FIXED.iter().chain(&["name", "namespace", "generateName"]) {
            match before.get(field) {
                Some(value) => metadata.insert((*field).to_owned(), value.clone()),
                None => metadata.remove(*field),
            };
        }
        defaults::drop_empty(metadata);
    }
    defaults::without_nulls(wanted)
}
