//! Computed table cells: ages, counts, states.
//!
//! Rule: every function is total. Words and precedence are those of `kubectl get` on a real cluster.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

/// The text at a JSON pointer, or an empty text.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a JSON pointer, or an empty one.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The status of a condition.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let found =
        list(object, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)?;
    found.get("status").and_then(Value::as_str)
}

/// The time since the timestamp at a JSON pointer, shortened like Kubernetes does.
pub(super) fn since(object: &Value, pointer: &str, now: Timestamp) -> String {
    time(object, pointer)
        .map_or_else(|| "<unknown>".to_owned(), |then| human_duration(now.duration_since(then)))
}

fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

pub(super) fn either<'a>(object: &'a Value, one: &str, other: &str) -> &'a str {
    let first = text(object, one);
    if first.is_empty() { text(object, other) } else { first }
}

pub(super) fn or(text: &str, otherwise: &str) -> Value {
    json!(if text.is_empty() { otherwise } else { text })
}

pub(super) fn count(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0))
}

pub(super) fn age(object: &Value, now: Timestamp) -> Value {
    json!(since(object, "/metadata/creationTimestamp", now))
}

/// A duration in at most two units; longer durations are coarser.
pub(super) fn human_duration(duration: SignedDuration) -> String {
    let pair = |big: i64, unit: &str, small: i64, other: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{other}"),
    };
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let days = hours / 24;
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

pub(super) fn node_status(node: &Value, _: Timestamp) -> Value {
    let mut status = match condition(node, "Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node.pointer("/spec/unschedulable") == Some(&json!(true)) {
        status.push_str(",SchedulingDisabled");
    }
    json!(status)
}

pub(super) fn node_roles(node: &Value, _: Timestamp) -> Value {
    let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
    let mut roles: Vec<&str> = labels
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    or(&roles.join(","), "<none>")
}

pub(super) fn node_address(node: &Value, kind: &str) -> Value {
    let found = list(node, "/status/addresses").iter().find(|address| text(address, "/type") == kind);
    json!(found.map_or("<none>", |address| text(address, "/address")))
}

pub(super) fn kernel(node: &Value, _: Timestamp) -> Value {
    let version = or(text(node, "/status/nodeInfo/kernelVersion"), "<unknown>");
    match text(node, "/status/nodeInfo/architecture") {
        "" => version,
        architecture => json!(format!("{} ({architecture})", version.as_str().unwrap_or_default())),
    }
}

pub(super) fn data_count(map: &Value, _: Timestamp) -> Value {
    let size = |field| map.get(field).and_then(Value::as_object).map_or(0, Map::len);
    json!(size("data") + size("binaryData"))
}

/// When an event was last seen: from its series, its deprecated timestamp, or its event time.
pub(super) fn last_seen(event: &Value, now: Timestamp) -> Value {
    if event.get("series").is_some_and(Value::is_object) {
        return json!(since(event, "/series/lastObservedTime", now));
    }
    let pointers = ["/lastTimestamp", "/deprecatedLastTimestamp"];
    match pointers.iter().find(|pointer| !text(event, pointer).is_empty()) {
        Some(pointer) => json!(since(event, pointer, now)),
        None => first_seen(event, now),
    }
}

pub(super) fn first_seen(event: &Value, now: Timestamp) -> Value {
    let pointers = ["/firstTimestamp", "/deprecatedFirstTimestamp", "/eventTime"];
    let pointer = pointers.iter().find(|pointer| !text(event, pointer).is_empty()).unwrap_or(&"/eventTime");
    json!(since(event, pointer, now))
}

pub(super) fn event_count(event: &Value) -> Value {
    let pointers = ["/series/count", "/count", "/deprecatedCount"];
    let counted =
        pointers.iter().find_map(|pointer| event.pointer(pointer)?.as_i64().filter(|count| *count > 0));
    json!(counted.unwrap_or(1))
}

/// `kind/name` of the object of an event.
pub(super) fn event_target(event: &Value) -> Value {
    let kind = either(event, "/involvedObject/kind", "/regarding/kind").to_lowercase();
    match either(event, "/involvedObject/name", "/regarding/name") {
        "" => json!(kind),
        name => json!(format!("{kind}/{name}")),
    }
}

/// The reporter of an event, and its host.
pub(super) fn event_source(event: &Value) -> Value {
    let first = |pointers: &[&str]| {
        let found = pointers.iter().map(|pointer| text(event, pointer)).find(|text| !text.is_empty());
        found.unwrap_or_default().to_owned()
    };
    let component = first(&[
        "/source/component",
        "/deprecatedSource/component",
        "/reportingComponent",
        "/reportingController",
    ]);
    match first(&["/source/host", "/deprecatedSource/host", "/reportingInstance"]).as_str() {
        "" => json!(component),
        instance => json!(format!("{component}, {instance}")),
    }
}

pub(super) fn job_status(job: &Value) -> Value {
    let is = |kind: &str| condition(job, kind) == Some("True");
    let deleted = !text(job, "/metadata/deletionTimestamp").is_empty();
    let status = match () {
        () if is("Complete") => "Complete",
        () if is("Failed") => "Failed",
        () if deleted => "Terminating",
        () if is("Suspended") => "Suspended",
        () if is("FailureTarget") => "FailureTarget",
        () if is("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    json!(status)
}

pub(super) fn job_completions(job: &Value) -> Value {
    let number = |pointer| job.pointer(pointer).and_then(Value::as_i64);
    let done = number("/status/succeeded").unwrap_or(0);
    json!(match (number("/spec/completions"), number("/spec/parallelism").unwrap_or(0)) {
        (Some(wanted), _) => format!("{done}/{wanted}"),
        (None, parallelism @ 2..) => format!("{done}/1 of {parallelism}"),
        (None, _) => format!("{done}/1"),
    })
}

/// The duration of a job, so far if it still runs.
pub(super) fn job_duration(job: &Value, now: Timestamp) -> Value {
    let Some(start) = time(job, "/status/startTime") else { return json!("") };
    let end = time(job, "/status/completionTime").unwrap_or(now);
    json!(human_duration(end.duration_since(start)))
}

/// One field of every container of a pod template.
pub(super) fn containers(owner: &Value, field: &str) -> Value {
    let all = list(owner, "/spec/template/spec/containers");
    let values: Vec<&str> = all
        .iter()
        .map(|container| container.get(field).and_then(Value::as_str).unwrap_or_default())
        .collect();
    json!(values.join(","))
}

/// The match labels of a selector, without its expressions.
pub(super) fn selector(owner: &Value) -> Value {
    pairs(owner.pointer("/spec/selector/matchLabels"))
}

/// A map of texts as `key=value` pairs.
pub(super) fn pairs(map: Option<&Value>) -> Value {
    let pairs = map.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> =
        pairs.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    or(&pairs.join(","), "<none>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shortened_as_in_kubectl() {
        let cases = [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 + 300, "3h5m"),
            (9 * 3600 + 300, "9h"),
            (49 * 3600, "2d1h"),
            (30 * 86_400, "30d"),
            (2 * 365 * 86_400 + 86_400, "2y1d"),
        ];
        for (seconds, shown) in cases {
            assert_eq!(human_duration(SignedDuration::from_secs(seconds)), shown);
        }
    }
}
