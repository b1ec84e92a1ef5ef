//! Pods of an admitted gang that are not bound to a node although its nodes are ready.
//!
//! Rule: they are only reported. No decision depends on them.

use crate::api::{Pod, Workload, condition};
use crate::gang::identity::gang_label;
use crate::gang::statechart::journal::Journal;
use crate::names;
use crate::words::counted;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

/// How long a pod of an admitted gang may stay unbound before it is reported.
pub const BIND_WAIT: SignedDuration = SignedDuration::from_mins(2);
/// The longest time between two checks of a gang's pods. Pods are created at any time: by a Job that retries, or after a
/// node is lost.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(10);
/// Most characters that are kept of the scheduler's message.
const MESSAGE_LIMIT: usize = 300;

/// Pods of one gang that have been unbound for too long.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
pub struct UnboundPods {
    /// How many.
    pub pods: u32,
    /// How many pods the gang has.
    pub of: u32,
    /// When the first of them became unbound.
    pub since: Timestamp,
    /// The scheduler's reason; empty if it gave none.
    pub reason: String,
}

impl UnboundPods {
    /// The text for users; `since` is the time in it.
    pub fn text(&self, since: &str) -> String {
        let verb = if self.pods == 1 { "is" } else { "are" };
        let reason = match self.reason.as_str() {
            "" => "the scheduler has not reported a reason",
            words => words.trim_end_matches('.'),
        };
        let pods = counted(self.of, "pod");
        format!("{} of {pods} {verb} not bound to a node since {since}: {reason}", self.pods)
    }
}

/// The pods of an admitted gang, as needed to find the unbound ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedPods {
    /// The value of the gang's label in their node selector.
    label: String,
    /// How many there are.
    pods: u32,
    /// When they were admitted.
    since: Timestamp,
}

impl AdmittedPods {
    /// The pods of a Workload under a check; `None` unless it is admitted and not over.
    pub fn of(workload: &Workload, check: &str) -> Option<Self> {
        let stops = ["Finished", "Evicted"].iter().any(|kind| workload.is(kind));
        if !workload.is_admitted() || stops {
            return None;
        }
        let pods = workload.spec.pod_sets.iter().filter_map(|set| u32::try_from(set.count).ok()).sum();
        let since = condition::since(workload.conditions(), "Admitted")?;
        Some(Self { label: gang_label(workload, check), pods, since })
    }

    /// The state before the first check. `spread`, from 0 to 1, spreads the checks that are overdue: a new leader has
    /// many.
    pub fn unchecked(&self, position: JournalPosition, now: Timestamp, spread: f64) -> PodCheck {
        let due = self.since.checked_add(BIND_WAIT).ok().filter(|due| *due > now);
        let late = || now.checked_add(BIND_WAIT.mul_f64(spread)).ok();
        PodCheck { admitted: self.since, position, checks: 0, next: due.or_else(late), found: None }
    }

    /// Checks the pods after `last`. `pods` are the unbound pods of the Workload's namespace.
    pub fn check(&self, last: &PodCheck, pods: &[Pod], now: Timestamp) -> PodCheck {
        let waits = pods.iter().any(|pod| self.has(pod));
        let checks = if waits { last.checks.saturating_add(1) } else { 0 };
        let linear = BIND_WAIT.checked_mul(i32::try_from(checks).unwrap_or(i32::MAX)).filter(|_| waits);
        let pause = linear.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        let (next, found) = (now.checked_add(pause).ok(), self.find(pods, now));
        PodCheck { checks, next, found, ..last.clone() }
    }

    /// Those that have been unbound for too long. `pods` are the unbound pods of the Workload's namespace.
    pub fn find(&self, pods: &[Pod], now: Timestamp) -> Option<UnboundPods> {
        let ours = pods.iter().filter(|pod| self.has(pod)).map(|pod| (self.unbound_since(pod), pod));
        let mut unbound: Vec<(Timestamp, &Pod)> =
            ours.filter(|(since, _)| now.duration_since(*since) >= BIND_WAIT).collect();
        unbound.sort_by_key(|(since, _)| *since);
        let count = u32::try_from(unbound.len()).unwrap_or(u32::MAX);
        let (since, _) = unbound.first()?;
        let stated = unbound.iter().map(|(_, pod)| message(pod)).find(|stated| !stated.is_empty());
        Some(UnboundPods {
            pods: count,
            of: self.pods.max(count),
            since: *since,
            reason: stated.unwrap_or_default(),
        })
    }

    /// Whether a check belongs to this admission and to this position of the journal.
    pub fn is_of(&self, check: &PodCheck, position: JournalPosition) -> bool {
        check.admitted == self.since && check.position == position
    }

    fn has(&self, pod: &Pod) -> bool {
        let waits = pod.spec.node_name.is_empty() && !pod.is_over();
        let ours = pod.spec.pod.node_selector.get(names::GANG) == Some(&self.label);
        waits && ours && pod.metadata.deletion_timestamp.is_none()
    }

    fn unbound_since(&self, pod: &Pod) -> Timestamp {
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
        created.map_or(self.since, |created| created.max(self.since))
    }
}

/// The position of a gang's journal. When it changes, nodes may differ and pods may be recreated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPosition {
    seq: u64,
    generation: u32,
}

impl JournalPosition {
    /// The position of this journal.
    pub fn of(journal: &Journal) -> Self {
        Self { seq: journal.seq, generation: journal.memory.generation }
    }
}

/// Result of the last check of a gang's pods, and when the next one is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCheck {
    /// When the pods were admitted.
    admitted: Timestamp,
    /// The journal's position then.
    position: JournalPosition,
    /// How many checks in a row found an unbound pod.
    checks: u32,
    /// When the next check is due; `None` if Setu may not list pods.
    pub next: Option<Timestamp>,
    /// Pods that have been unbound for too long.
    pub found: Option<UnboundPods>,
}

impl PodCheck {
    /// Whether the next check is due.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.next.is_some_and(|next| next <= now)
    }

    /// This check, with the next one postponed by the usual wait.
    #[must_use]
    pub fn postponed(&self, now: Timestamp) -> Self {
        Self { next: now.checked_add(BIND_WAIT).ok(), ..self.clone() }
    }

    /// This check if Setu may not list pods: nothing is known, and no check follows.
    #[must_use]
    pub fn forbidden(&self) -> Self {
        Self { next: None, found: None, ..self.clone() }
    }
}

/// The scheduler's reason for not binding a pod.
fn message(pod: &Pod) -> String {
    let conditions = pod.status.conditions.iter();
    let stated = conditions.filter(|c| c.type_ == "PodScheduled" && c.status == "False");
    let words = stated.filter_map(|c| c.message.as_deref().filter(|m| !m.is_empty()).or(c.reason.as_deref()));
    words.flat_map(str::chars).filter(|c| !c.is_control()).take(MESSAGE_LIMIT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// A Workload of four pods that was admitted at 0.
    fn workload() -> Workload {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at(0)});
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": "w", "namespace": "team", "uid": "u"},
            "spec": {"podSets": [{"name": "a", "count": 1, "template": {}}, {"name": "b", "count": 3, "template": {}}]},
            "status": {"conditions": [condition("Admitted")]},
        }))
        .unwrap()
    }

    /// An unbound pod of that Workload's gang, created at `created`.
    fn pod(created: i64, stated: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "creationTimestamp": at(created)},
            "spec": {"nodeSelector": {names::GANG: gang_label(&workload(), "c")}, "containers": []},
            "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": stated}]},
        }))
        .unwrap()
    }

    fn changed(pointer: &str, value: Value) -> Pod {
        let mut pod = serde_json::to_value(pod(1, "none fits")).unwrap();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[key] = value;
        serde_json::from_value(pod).unwrap()
    }

    fn admitted() -> AdmittedPods {
        AdmittedPods::of(&workload(), "c").unwrap()
    }

    #[test]
    fn pods_unbound_for_two_minutes_are_found_with_the_schedulers_reason() {
        let pods = [pod(5, ""), pod(1, "0/5 nodes are available: 5 Insufficient cpu.")];
        assert_eq!(admitted().find(&pods, at(120)), None);
        let found = admitted().find(&pods, at(121)).unwrap();
        assert_eq!((found.pods, found.of, found.since), (1, 4, at(1)));
        let found = admitted().find(&pods, at(130)).unwrap();
        assert_eq!(
            found.text("2m"),
            "2 of 4 pods are not bound to a node since 2m: 0/5 nodes are available: 5 Insufficient cpu"
        );
    }

    #[test]
    fn a_pod_created_before_admission_is_unbound_since_admission() {
        assert_eq!(admitted().find(&[pod(-900, "gated")], at(119)), None);
        assert_eq!(admitted().find(&[pod(-900, "gated")], at(120)).map(|found| found.since), Some(at(0)));
    }

    #[test]
    fn a_pod_without_a_reason_is_still_found() {
        let found = admitted().find(&[changed("/status/conditions", json!([]))], at(300)).unwrap();
        assert_eq!(
            found.text("5m"),
            "1 of 4 pods is not bound to a node since 5m: the scheduler has not reported a reason"
        );
    }

    #[test]
    fn bound_finished_deleted_or_foreign_pods_are_not_found() {
        for pod in [
            changed("/spec/nodeName", json!("n1")),
            changed("/spec/nodeSelector", json!({})),
            changed("/spec/nodeSelector", json!({names::GANG: "another"})),
            changed("/status/phase", json!("Succeeded")),
            changed("/metadata/deletionTimestamp", json!(at(9))),
        ] {
            assert_eq!(admitted().find(std::slice::from_ref(&pod), at(300)), None, "{pod:?}");
        }
    }

    #[test]
    fn only_a_workload_that_is_admitted_and_not_over_has_admitted_pods() {
        for kind in ["Finished", "Evicted"] {
            let mut workload = workload();
            let conditions = workload.status.get_or_insert_default();
            let mut condition = conditions.conditions[0].clone();
            condition.type_ = kind.to_owned();
            conditions.conditions.push(condition);
            assert_eq!(AdmittedPods::of(&workload, "c"), None, "{kind}");
        }
        assert_eq!(AdmittedPods::of(&Workload::new("w", workload().spec), "c"), None);
    }

    fn position(seq: u64, generation: u32) -> JournalPosition {
        JournalPosition { seq, generation }
    }

    #[test]
    fn checks_slow_down_and_never_stop_once_every_pod_is_bound() {
        let pods = admitted();
        let mut check = pods.unchecked(position(5, 0), at(10), 0.5);
        assert_eq!(check.next, Some(at(120)));
        assert!(!check.is_due(at(119)) && check.is_due(at(120)));
        assert_eq!(pods.unchecked(position(5, 0), at(1_000), 0.5).next, Some(at(1_060)));
        let mut now = at(120);
        let mut pauses = Vec::new();
        let mut checked = |unbound: &[Pod]| {
            check = pods.check(&check, unbound, now);
            let next = check.next.unwrap();
            pauses.push(next.duration_since(now).as_mins());
            now = next;
        };
        (0..7).for_each(|_| checked(&[pod(1, "none fits")]));
        (0..2).for_each(|_| checked(&[]));
        checked(&[pod(1, "none fits")]);
        assert_eq!(pauses, [2, 4, 6, 8, 10, 10, 10, 10, 10, 2]);
        assert_eq!(pods.check(&check, &[], now).found, None);
        assert_eq!(check.forbidden().next, None);
    }

    #[test]
    fn a_check_is_outdated_once_the_journal_changes() {
        let pods = admitted();
        let check = pods.check(&pods.unchecked(position(5, 0), at(10), 0.5), &[], at(120));
        assert!(pods.is_of(&check, position(5, 0)));
        for moved in [position(6, 0), position(5, 1)] {
            assert!(!pods.is_of(&check, moved), "{moved:?}");
        }
    }
}
