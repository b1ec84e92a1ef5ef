//! Lists of `metav1.Condition`, which Kueue and Karpenter both use.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The condition of the given type, if it was ever written.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// The condition to write after these, of this type and status. It keeps the time of the last one with this status.
pub fn next(
    conditions: &[Condition],
    (kind, status): (&str, &str),
    reason: &str,
    message: impl Into<String>,
    now: Timestamp,
) -> Condition {
    let last = find(conditions, kind).filter(|last| last.status == status);
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: last.map_or(Time(now), |last| last.last_transition_time.clone()),
    }
}

/// Whether the condition exists and is `True`. Absent and `Unknown` count as no.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// When the condition last changed its status.
pub fn since(conditions: &[Condition], kind: &str) -> Option<Timestamp> {
    find(conditions, kind).map(|c| c.last_transition_time.0)
}
