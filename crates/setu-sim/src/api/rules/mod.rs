//! Validation: the API server's rules for all objects, the schemas of single kinds, and admission
//! webhooks.
//!
//! Rule: an object is checked in its stored form, and all faults are reported at once.

mod karpenter;
mod kueue;
pub(super) mod metadata;
mod schema;
mod webhook;

pub use webhook::webhook;

use super::kinds::ServedKind;
use super::status::{FieldError, Status};
use crate::values::name;
use serde_json::Value;

/// Checks an object that is about to replace `old`.
pub fn check(
    kind: &ServedKind,
    old: Option<&Value>,
    new: &Value,
    subresource: Option<&'static str>,
) -> Result<(), Status> {
    let mut found = Vec::new();
    // Metadata cannot be changed through the status of a custom kind.
    if subresource.is_none() || !kind.custom {
        metadata::check(kind, old, new, &mut found);
    }
    let mut schema = Vec::new();
    schema::check(kind, new, &mut schema);
    if schema.is_empty() {
        match kind.kind {
            "NodeClaim" | "NodePool" => karpenter::check(kind, old, new, &mut found),
            "Workload" | "AdmissionCheck" | "LocalQueue" => kueue::check(kind, old, new, &mut found),
            _ => {}
        }
    } else {
        found.append(&mut schema);
        let why = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
        found.push(FieldError::invalid("<nil>", &Value::Null, why));
    }
    if found.is_empty() { Ok(()) } else { Err(Status::invalid(kind, name(new), &found)) }
}
