//! The cells of a pod's table row: ready containers, combined state, restarts, readiness gates.
//!
//! Rule: words and precedence are those of Kubernetes, so that users recognize a pod that waits,
//! crashes or terminates.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{condition, list, since, text};

/// Ready containers of all containers.
pub(super) fn ready(pod: &Value) -> Value {
    let all = list(pod, "/spec/containers").len();
    let ready = list(pod, "/status/containerStatuses").iter().filter(|container| running(container)).count();
    json!(format!("{ready}/{all}"))
}

fn running(container: &Value) -> bool {
    container.get("ready") == Some(&json!(true)) && container.pointer("/state/running").is_some()
}

/// The pod's status in one word.
pub(super) fn status(pod: &Value) -> Value {
    let phase = text(pod, "/status/phase");
    let mut status = phase.to_owned();
    if !text(pod, "/status/reason").is_empty() {
        text(pod, "/status/reason").clone_into(&mut status);
    }
    let gated = |condition: &&Value| {
        text(condition, "/type") == "PodScheduled" && text(condition, "/reason") == "SchedulingGated"
    };
    if list(pod, "/status/conditions").iter().any(|condition| gated(&condition)) {
        "SchedulingGated".clone_into(&mut status);
    }
    if let Some(initializing) = initializing(pod) {
        status = initializing;
    } else if let Some(containers) = containers(pod) {
        status = containers;
    }
    if !text(pod, "/metadata/deletionTimestamp").is_empty() {
        if text(pod, "/status/reason") == "NodeLost" {
            "Unknown".clone_into(&mut status);
        } else if !matches!(phase, "Succeeded" | "Failed") {
            "Terminating".clone_into(&mut status);
        }
    }
    json!(status)
}

/// The state of the first unfinished init container.
fn initializing(pod: &Value) -> Option<String> {
    let total = list(pod, "/spec/initContainers").len();
    let statuses = list(pod, "/status/initContainerStatuses");
    let done = |container: &Value| container.pointer("/state/terminated/exitCode") == Some(&json!(0));
    let (at, container) = statuses.iter().enumerate().find(|(_, container)| !done(container))?;
    if container.get("started") == Some(&json!(true)) || condition(pod, "Initialized") == Some("True") {
        // A sidecar, or a pod that is past its initialization.
        return None;
    }
    let waiting = text(container, "/state/waiting/reason");
    Some(match end(container) {
        Some(end) => format!("Init:{end}"),
        None if !matches!(waiting, "" | "PodInitializing") => format!("Init:{waiting}"),
        None => format!("Init:{at}/{total}"),
    })
}

/// The combined state of the containers; the first container takes precedence.
fn containers(pod: &Value) -> Option<String> {
    let statuses = list(pod, "/status/containerStatuses");
    let (mut shown, mut error) = (None, None);
    for container in statuses.iter().rev() {
        let waiting = text(container, "/state/waiting/reason");
        if !waiting.is_empty() {
            shown = Some(waiting.to_owned());
        } else if let Some(end) = end(container) {
            if container.pointer("/state/terminated/exitCode") != Some(&json!(0)) {
                error = Some(end.clone());
            }
            shown = Some(end);
        }
    }
    if shown.as_deref() != Some("Completed") {
        return shown;
    }
    if !statuses.iter().any(running) {
        return error.or(shown);
    }
    match (condition(pod, "Ready"), error) {
        (Some("True"), _) => Some("Running".to_owned()),
        (_, Some(error)) => Some(error),
        (_, None) => Some("NotReady".to_owned()),
    }
}

/// How a container ended, if it did.
fn end(container: &Value) -> Option<String> {
    let terminated = container.pointer("/state/terminated").filter(|state| state.is_object())?;
    let number = |field: &str| terminated.get(field).and_then(Value::as_i64).unwrap_or(0);
    Some(match (text(terminated, "/reason"), number("signal")) {
        ("", 0) => format!("ExitCode:{}", number("exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    })
}

/// The number of container restarts, and the time of the last one.
pub(super) fn restarts(pod: &Value, now: Timestamp) -> Value {
    let statuses = list(pod, "/status/containerStatuses");
    let count: i64 = statuses.iter().filter_map(|container| container.get("restartCount")?.as_i64()).sum();
    let ended = "/lastState/terminated/finishedAt";
    let last = statuses.iter().max_by_key(|container| text(container, ended));
    Value::String(match last.filter(|container| count > 0 && !text(container, ended).is_empty()) {
        Some(container) => format!("{count} ({} ago)", since(container, ended, now)),
        None => count.to_string(),
    })
}

/// Open and total readiness gates.
pub(super) fn gates(pod: &Value) -> Value {
    let gates = list(pod, "/spec/readinessGates");
    if gates.is_empty() {
        return json!("<none>");
    }
    let open = gates.iter().filter(|gate| condition(pod, text(gate, "/conditionType")) == Some("True"));
    json!(format!("{}/{}", open.count(), gates.len()))
}
