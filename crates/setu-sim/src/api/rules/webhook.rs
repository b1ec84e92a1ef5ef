//! Unreachable webhooks.

use super::super::AdmissionRequest;
use super::super::status::Status;
use crate::values::{annotation, list, text};
use serde_json::Value;

/// The effect of an unreachable webhook on a write: refused, unless its failure policy is Ignore.
pub fn webhook(configuration: &Value, attempt: &AdmissionRequest<'_>) -> Option<Status> {
    let labels = attempt.object.pointer("/metadata/labels");
    let names =
        |rule: &Value, field: &str, value: &str| list(rule, field).iter().any(|v| v == value || v == "*");
    let concerned = |hook: &&Value| {
        let rules = list(hook, "/rules").iter().any(|rule| {
            names(rule, "/apiGroups", attempt.kind.group)
                && names(rule, "/resources", attempt.kind.plural)
                && names(rule, "/operations", attempt.verb)
        });
        let selected = hook.pointer("/objectSelector/matchLabels").and_then(Value::as_object);
        let selected = selected
            .is_none_or(|wanted| wanted.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v)));
        rules && selected && fulfilled(hook, attempt.object) && text(hook, "/failurePolicy") != "Ignore"
    };
    list(configuration, "/webhooks").iter().find(concerned).map(|hook| Status::webhook(text(hook, "/name")))
}

/// Whether an object meets the match conditions of a webhook. Only comparisons of an annotation with a text are
/// evaluated; as in the API server, a condition that cannot be evaluated does not exclude the webhook.
fn fulfilled(hook: &Value, object: &Value) -> bool {
    let compared = |expression: &str| -> Option<bool> {
        let rest = expression.strip_prefix("object.metadata.annotations[\"")?;
        let (key, rest) = rest.split_once("\"] == \"")?;
        Some(annotation(object, key) == rest.strip_suffix('"')?)
    };
    list(hook, "/matchConditions").iter().all(|c| compared(text(c, "/expression")).unwrap_or(true))
}
