//! The Status error object of the API server.
//!
//! Rule: code, reason, text and details match those of the real server in the same case.

use super::kinds::ServedKind;
use crate::values::set;
use serde_json::{Map, Value, json};
use std::fmt;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Reason in one word; empty if the real server gives none.
    pub reason: &'static str,
    /// Human-readable text.
    pub message: String,
    /// `details` of the object, or null.
    pub details: Value,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// One error in one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    field: String,
    reason: &'static str,
    message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self { field: field.into(), reason, message }
    }

    /// An invalid value, shown as JSON.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {value}: {why}"))
    }

    /// An invalid value, shown as this text.
    pub fn invalid_as(field: impl Into<String>, shown: &str, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {shown}: {why}"))
    }

    /// A violated CRD validation rule.
    pub fn rule(field: impl Into<String>, why: &str) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {why}"))
    }

    /// A duplicate list entry.
    pub fn duplicate(field: impl Into<String>, key: &Value) -> Self {
        Self::new(field, "FieldValueDuplicate", format!("Duplicate value: {key}"))
    }

    /// A value that is missing.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let why = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
        Self::new(field, "FieldValueRequired", why)
    }

    /// A forbidden value.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {why}"))
    }

    /// An unsupported value.
    pub fn unsupported(field: impl Into<String>, value: &Value, known: &[&str]) -> Self {
        let known: Vec<String> = known.iter().map(|k| format!("{k:?}")).collect();
        let why = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self::new(field, "FieldValueNotSupported", why)
    }

    /// A text that is too long.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        Self::new(field, "FieldValueTooLong", format!("Too long: may not be more than {limit} bytes"))
    }

    /// A list that is too long.
    pub fn too_many(field: impl Into<String>, count: usize, limit: usize) -> Self {
        Self::new(field, "FieldValueTooMany", format!("Too many: {count}: must have at most {limit} items"))
    }

    fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }

    fn cause(&self) -> Value {
        json!({"reason": self.reason, "message": self.message, "field": self.field})
    }
}

/// `details` without empty fields.
fn details(name: &str, group: &str, kind: &str) -> Map<String, Value> {
    let fields = [("name", name), ("group", group), ("kind", kind)];
    fields.into_iter().filter(|(_, v)| !v.is_empty()).map(|(k, v)| (k.to_owned(), json!(v))).collect()
}

impl Status {
    fn about(code: u16, reason: &'static str, kind: &ServedKind, name: &str, message: String) -> Self {
        Self { code, reason, message, details: Value::Object(details(name, kind.group, kind.plural)) }
    }

    /// There is no such object.
    pub fn not_found(kind: &ServedKind, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", kind.resource());
        Self::about(404, "NotFound", kind, name, message)
    }

    /// The name is already in use.
    pub fn already_exists(kind: &ServedKind, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", kind.resource());
        Self::about(409, "AlreadyExists", kind, name, message)
    }

    /// The object's current state conflicts with the request.
    pub fn conflict(kind: &ServedKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.resource());
        Self::about(409, "Conflict", kind, name, message)
    }

    /// The version in a write is not the newest.
    pub fn modified(kind: &ServedKind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    /// A precondition of a delete is not met.
    pub fn precondition(kind: &ServedKind, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", kind.qualified());
        let details = Value::Object(details(name, kind.group, kind.kind));
        Self { code: 409, reason: "Conflict", message, details }
    }

    /// An apply would change fields that others manage. Lists these managers and fields.
    pub fn apply_conflict(conflicts: &[(String, String)]) -> Self {
        let causes: Vec<Value> = conflicts
            .iter()
            .map(|(manager, path)| {
                let message = format!("conflict with {manager}");
                json!({"reason": "FieldManagerConflict", "message": message, "field": path})
            })
            .collect();
        let message = if let [(manager, path)] = conflicts {
            format!("Apply failed with 1 conflict: conflict with {manager}: {path}")
        } else {
            let mut managers: Vec<&str> = conflicts.iter().map(|(m, _)| m.as_str()).collect();
            managers.sort_unstable();
            managers.dedup();
            let lines = managers.iter().flat_map(|manager| {
                let paths =
                    conflicts.iter().filter(move |(m, _)| m == manager).map(|(_, p)| format!("- {p}"));
                std::iter::once(format!("conflicts with {manager}:")).chain(paths)
            });
            let lines: Vec<String> = lines.collect();
            format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
        };
        Self { code: 409, reason: "Conflict", message, details: json!({"causes": causes}) }
    }

    /// The object breaks rules.
    pub fn invalid(kind: &ServedKind, name: &str, violations: &[FieldError]) -> Self {
        Self::violates(&kind.qualified(), (name, kind.group, kind.kind), violations)
    }

    /// The options of a request break rules.
    pub fn invalid_options(kind: &str, violation: FieldError) -> Self {
        Self::violates(&format!("{kind}.meta.k8s.io"), ("", "meta.k8s.io", kind), &[violation])
    }

    /// The object's own kind differs from that of the request path.
    pub fn invalid_as(kind: &str, group: &str, name: &str, violation: FieldError) -> Self {
        Self::violates(&format!("{kind}.{group}"), (name, group, kind), &[violation])
    }

    /// Like [`Status::invalid`], but with the resource instead of the kind.
    pub fn invalid_resource(kind: &ServedKind, name: &str, violation: FieldError) -> Self {
        Self::violates(&kind.resource(), (name, kind.group, kind.plural), &[violation])
    }

    fn violates(subject: &str, (name, group, kind): (&str, &str, &str), violations: &[FieldError]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for violation in violations {
            let text = violation.text();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let texts =
            if let [one] = texts.as_slice() { one.clone() } else { format!("[{}]", texts.join(", ")) };
        let mut details = details(name, group, kind);
        let causes = violations.iter().map(FieldError::cause).collect();
        details.insert("causes".to_owned(), Value::Array(causes));
        let message = format!("{subject} \"{name}\" is invalid: {texts}");
        Self { code: 422, reason: "Invalid", message, details: Value::Object(details) }
    }

    /// A JSON patch that cannot be applied.
    pub fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request".to_owned();
        Self { code: 422, reason: "Invalid", message, details: json!({}) }
    }

    /// The request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { code: 400, reason: "BadRequest", message: message.into(), details: Value::Null }
    }

    /// An error without a reason.
    pub fn internal(message: impl Into<String>) -> Self {
        Self { code: 500, reason: "", message: message.into(), details: Value::Null }
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

    /// The format of the body is not accepted; `accepted` lists the accepted ones.
    pub fn unknown_format(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self { code: 415, reason: "UnsupportedMediaType", message, details: Value::Null }
    }

    /// The patch format is not accepted for built-in kinds.
    pub fn unsupported() -> Self {
        let message = "415: Unsupported Media Type".to_owned();
        Self { code: 415, reason: "UnsupportedMediaType", message, details: json!({}) }
    }

    /// The requested version has expired.
    pub fn expired(message: impl Into<String>) -> Self {
        Self { code: 410, reason: "Expired", message: message.into(), details: Value::Null }
    }

    /// The error that ends a watch from an expired version.
    pub fn too_old(from: u64, oldest: u64) -> Self {
        Self::expired(format!("too old resource version: {from} ({oldest})"))
    }

    /// A version that does not exist yet.
    pub fn too_new(version: u64, newest: u64) -> Self {
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        let message = format!("Timeout: Too large resource version: {version}, current: {newest}");
        let details = json!({"causes": [cause], "retryAfterSeconds": 1});
        Self { code: 504, reason: "Timeout", message, details }
    }

    /// The namespace is terminating, so nothing can be created in it.
    pub fn terminating(kind: &ServedKind, name: &str, namespace: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
            kind.resource()
        );
        let mut status = Self::about(403, "Forbidden", kind, name, message);
        set(
            &mut status.details,
            &["causes"],
            json!([{
                "reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"),
                "field": "metadata.namespace",
            }]),
        );
        status
    }

    /// A required webhook did not answer.
    pub fn webhook(name: &str) -> Self {
        let message =
            format!("Internal error occurred: failed calling webhook \"{name}\": it does not answer");
        Self { code: 500, reason: "InternalError", message, details: Value::Null }
    }

    /// The Status object as JSON.
    pub fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if let Some(fields) = status.as_object_mut() {
            if !self.reason.is_empty() {
                fields.insert("reason".to_owned(), json!(self.reason));
            }
            if !self.details.is_null() {
                fields.insert("details".to_owned(), self.details.clone());
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::super::kinds::{CONFIG_MAP, WORKLOAD};
    use super::*;

    #[test]
    fn a_repeated_violation_is_one_text_and_two_causes() {
        let violation = FieldError::invalid("metadata.labels", &json!("!"), "bad");
        let status = Status::invalid(&CONFIG_MAP, "a", &[violation.clone(), violation]);
        assert_eq!(status.message, "ConfigMap \"a\" is invalid: metadata.labels: Invalid value: \"!\": bad");
        assert_eq!(status.details["causes"].as_array().map(Vec::len), Some(2));
        assert_eq!(status.details.get("group"), None);
    }

    #[test]
    fn errors_name_resources_and_kinds_with_their_group() {
        assert_eq!(Status::not_found(&WORKLOAD, "a").message, "workloads.kueue.x-k8s.io \"a\" not found");
        assert_eq!(WORKLOAD.qualified(), "Workload.kueue.x-k8s.io");
    }

    #[test]
    fn conflicts_of_several_fields_are_listed_by_manager() {
        let at = |manager: &str, path: &str| (format!("{manager:?}"), path.to_owned());
        let status = Status::apply_conflict(&[at("b", ".x"), at("a", ".y"), at("b", ".z")]);
        let expected =
            "Apply failed with 3 conflicts: conflicts with \"a\":\n- .y\nconflicts with \"b\":\n- .x\n- .z";
        assert_eq!(status.message, expected);
    }
}
