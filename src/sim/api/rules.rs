//! Rules that objects must keep: those of the API server for all, and those of single kinds.

use super::kinds::Kind;
use super::status::Status;
use crate::names;
use crate::sim::values::{list, name, text};
use serde_json::Value;

/// All annotations of an object together, keys and values, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
/// Longest name of an object.
const NAME_LIMIT: usize = 253;

/// Checks an object that is about to be stored. `old` is what it replaces.
pub fn check(kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), Status> {
    check_name(kind, new)?;
    let annotations = new.pointer("/metadata/annotations").and_then(Value::as_object);
    let size: usize =
        annotations.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_LIMIT {
        let why = format!("metadata.annotations: Too long: may not be more than {ANNOTATIONS_LIMIT} bytes");
        return Err(Status::invalid(kind, name(new), &why));
    }
    match kind.kind {
        "NodeClaim" => check_claim(kind, old, new),
        "Workload" => check_workload(kind, old, new),
        _ => Ok(()),
    }
}

fn check_name(kind: &Kind, object: &Value) -> Result<(), Status> {
    let name = name(object);
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let fits = name.len() <= NAME_LIMIT
        && name.chars().all(good)
        && edge(name.chars().next())
        && edge(name.chars().last());
    if fits || kind.kind == "Event" {
        return Ok(());
    }
    let why = format!(
        "metadata.name: Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
    );
    Err(Status::invalid(kind, name, &why))
}

fn check_claim(kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), Status> {
    if let Some(old) = old
        && old.get("spec") != new.get("spec")
    {
        return Err(Status::invalid(kind, name(new), "spec: Invalid value: spec is immutable"));
    }
    for requirement in list(new, "/spec/requirements") {
        let key = text(requirement, "/key");
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let own = domain == names::KARPENTER_DOMAIN;
        if own && key != names::CAPACITY_TYPE && key != names::NODEPOOL {
            let why = "spec.requirements[0].key: Invalid value: label domain \"karpenter.sh\" is restricted";
            return Err(Status::invalid(kind, name(new), why));
        }
        if text(requirement, "/operator") == "In" && list(requirement, "/values").is_empty() {
            let why =
                "spec.requirements: Invalid value: requirements with operator 'In' must have a value defined";
            return Err(Status::invalid(kind, name(new), why));
        }
    }
    Ok(())
}

/// Most check entries of a Workload.
const CHECKS_LIMIT: usize = 8;

fn check_workload(kind: &Kind, old: Option<&Value>, new: &Value) -> Result<(), Status> {
    let entries = list(new, "/status/admissionChecks");
    if entries.len() > CHECKS_LIMIT {
        let why = format!(
            "status.admissionChecks: Too many: {}: must have at most {CHECKS_LIMIT} items",
            entries.len()
        );
        return Err(Status::invalid(kind, name(new), &why));
    }
    for entry in entries {
        let missing =
            ["name", "state", "lastTransitionTime", "message"].into_iter().find(|f| entry.get(f).is_none());
        if let Some(field) = missing {
            let why = format!("status.admissionChecks[0].{field}: Required value");
            return Err(Status::invalid(kind, name(new), &why));
        }
        let before = old.and_then(|o| {
            list(o, "/status/admissionChecks").iter().find(|e| text(e, "/name") == text(entry, "/name"))
        });
        let ready = |e: &Value| text(e, "/state") == "Ready";
        let updates = |e: &Value| list(e, "/podSetUpdates").to_vec();
        if before.is_some_and(|b| ready(b) && ready(entry) && updates(b) != updates(entry)) {
            let why = "status.admissionChecks: Invalid value: podSetUpdates: field is immutable";
            return Err(Status::invalid(kind, name(new), why));
        }
    }
    Ok(())
}

/// What a webhook that nobody answers says to a write: those that must agree, refuse it.
pub fn webhook(configuration: &Value, attempt: &super::Attempt<'_>) -> Option<Status> {
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
