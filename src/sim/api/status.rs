//! The Kubernetes error object, as the API server answers it.

use super::kinds::Kind;
use crate::sim::values::set;
use serde_json::{Value, json};
use std::fmt;

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Reason in one word.
    pub reason: &'static str,
    /// Text for people.
    pub message: String,
    /// `details` of the object, or null.
    pub details: Value,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Status {
    fn about(code: u16, reason: &'static str, kind: &Kind, name: &str, message: String) -> Self {
        let details = json!({"name": name, "group": kind.group, "kind": kind.plural});
        Self { code, reason, message, details }
    }

    fn resource(kind: &Kind) -> String {
        if kind.group.is_empty() { kind.plural.to_owned() } else { format!("{}.{}", kind.plural, kind.group) }
    }

    /// There is no such object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", Self::resource(kind));
        Self::about(404, "NotFound", kind, name, message)
    }

    /// The name is taken.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", Self::resource(kind));
        Self::about(409, "AlreadyExists", kind, name, message)
    }

    /// The object is not as the request demands.
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", Self::resource(kind));
        Self::about(409, "Conflict", kind, name, message)
    }

    /// The object breaks a rule.
    pub fn invalid(kind: &Kind, name: &str, why: &str) -> Self {
        let message = format!("{}.{} \"{name}\" is invalid: {why}", kind.kind, kind.group);
        Self::about(422, "Invalid", kind, name, message)
    }

    /// The request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into(), details: Value::Null }
    }

    /// Nothing is served at this path.
    pub fn no_such_path() -> Self {
        let message = "the server could not find the requested resource".to_owned();
        Self { code: 404, reason: "NotFound", message, details: json!({}) }
    }

    /// The verb is not served here.
    pub fn not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource".to_owned();
        Self { code: 405, reason: "MethodNotAllowed", message, details: json!({}) }
    }

    /// The format of the patch is not taken for this kind.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self { code: 415, reason: "UnsupportedMediaType", message: message.into(), details: json!({}) }
    }

    /// What was asked for is forgotten.
    pub fn expired(message: impl Into<String>) -> Self {
        Self { code: 410, reason: "Expired", message: message.into(), details: Value::Null }
    }

    /// A webhook that has to agree did not answer.
    pub fn webhook(name: &str) -> Self {
        let message =
            format!("Internal error occurred: failed calling webhook \"{name}\": it does not answer");
        Self { code: 500, reason: "InternalError", message, details: Value::Null }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if !self.details.is_null() {
            set(&mut status, &["details"], self.details.clone());
        }
        status
    }
}
