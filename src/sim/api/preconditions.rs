//! Preconditions of an update (versions, UIDs, deletion in progress), and the fields that it may not change.

use super::kinds::Kind;
use super::lists::parse_error;
use super::status::{Status, Violation};
use super::store::{Key, Stored};
use super::write::{By, restricted};
use crate::sim::values::{is_going, list, text};
use serde_json::Value;

/// Checks the preconditions in the wanted object, and restores everything that this write cannot change.
pub fn prepared(
    kind: &'static Kind,
    key: &Key,
    stored: &Stored,
    wanted: Value,
    by: By<'_>,
) -> Result<Value, Status> {
    let old = &stored.bare;
    let version = text(&wanted, "/metadata/resourceVersion");
    if !version.is_empty() {
        if let Err(error) = version.parse::<u64>() {
            let why = parse_error(version, &error);
            return Err(Status::internal(why));
        }
        if version != "0" && version != text(old, "/metadata/resourceVersion") {
            return Err(Status::modified(kind, &key.1));
        }
    }
    let mut found = Vec::new();
    if by.subresource.is_none() || !kind.custom {
        for field in ["uid", "deletionTimestamp"] {
            let path = format!("/metadata/{field}");
            let given = wanted.pointer(&path).filter(|v| !v.is_null() && *v != "");
            if let Some(given) = given.filter(|g| old.pointer(&path) != Some(g)) {
                let violation = Violation::invalid(format!("metadata.{field}"), given, "field is immutable");
                found.extend([violation.clone(), violation]);
            }
        }
    }
    let new = restricted(kind, old, wanted, by.subresource);
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
            found.push(Violation::forbidden("metadata.finalizers", &why));
        }
    }
    if found.is_empty() { Ok(new) } else { Err(Status::invalid(kind, &key.1, &found)) }
}
