//! Webhooks that nobody answers.

use super::super::Attempt;
use super::super::status::Status;
use crate::sim::values::{list, text};
use serde_json::Value;

/// What a webhook that nobody answers says to a write: those that must agree, refuse it.
pub fn webhook(configuration: &Value, attempt: &Attempt<'_>) -> Option<Status> {
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
        rules && selected && text(hook, "/failurePolicy") != "Ignore"
    };
    list(configuration, "/webhooks").iter().find(concerned).map(|hook| Status::webhook(text(hook, "/name")))
}
