//! Look-ups in lists of `metav1.Condition`, which Kueue and Karpenter both use.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The condition of the given type, if it was ever written.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == kind)
}

/// Whether the condition exists and is `True`. Absent and `Unknown` count as no.
pub fn is_true(conditions: &[Condition], kind: &str) -> bool {
    find(conditions, kind).is_some_and(|c| c.status == "True")
}

/// When the condition last changed its status.
pub fn since(conditions: &[Condition], kind: &str) -> Option<Timestamp> {
    find(conditions, kind).map(|c| c.last_transition_time.0)
}
