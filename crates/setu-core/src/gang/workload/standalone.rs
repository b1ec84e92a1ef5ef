//! The third front-end: a standalone ProvisioningRequest, which is one of Setu's class that no Workload controls. A client other
//! than Kueue makes it.
//!
//! Setu creates a Workload for it in the LocalQueue that its label names. So Kueue decides about quota, order and flavors, and the
//! Workload's gang is planned, stepped and reported like any other. The conditions of the request tell its client what became of
//! that Workload. Pods use the nodes if their annotation [`names::CONSUMES`] names the request.
//!
//! Rule: a request has one Workload at a time. What ends the Workload ends the request, and the client creates another one to ask again.

use crate::api::provisioning_request::name_of_standalone;
use crate::api::workload::Verdict;
use crate::api::{Pod, ProvisioningRequest, Workload, condition};
use crate::gang::Journal;
use crate::gang::workload::request::{Before, Details, RequestFailure, overrides};
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long all pods must have succeeded before their nodes are given back: a Job may create the next one.
const QUIET: Duration = Duration::from_secs(30);

/// How long the nodes of an admitted Workload may be missing. Lost ones are replaced.
const GRACE: Duration = Duration::from_secs(30);

/// Why a request without a queue gets no nodes.
pub const NO_QUEUE: &str = "no Workload controls this request, and it has no label kueue.x-k8s.io/queue-name; \
     create it again with the name of a LocalQueue in that label, and Kueue decides about its quota";

/// The Workload of a request that has ended without it.
const WORKLOAD_DELETED: &str = "the Workload of this request was deleted, so its nodes are given back";

/// The priority that the label [`names::PRIORITY_CLASS`] of a request gives its Workload.
#[derive(Clone, Copy, Debug)]
pub struct Priority<'a> {
    /// Name of the WorkloadPriorityClass.
    pub class: &'a str,
    /// Its value.
    pub value: i32,
}

/// The WorkloadPriorityClass that a request names; `None` if it names none.
pub fn priority_class(request: &ProvisioningRequest) -> Option<&str> {
    let class = request.metadata.labels.as_ref()?.get(names::PRIORITY_CLASS)?;
    Some(class.as_str()).filter(|class| !class.is_empty())
}

/// The Workload to create for a request: one pod set for each of the request's, with these templates.
pub fn workload_for(
    request: &ProvisioningRequest,
    queue: &str,
    priority: Option<Priority<'_>>,
    templates: &[PodTemplateSpec],
) -> Value {
    let metadata = &request.metadata;
    let name = metadata.name.as_deref().unwrap_or_default();
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let mut annotations: BTreeMap<String, String> = overrides(request).collect();
    annotations.insert(names::REQUEST.to_owned(), format!("{name}/{uid}"));
    let sets = request.spec.pod_sets.iter().zip(templates).zip(1..);
    let sets: Vec<Value> = sets
        .map(|((pods, template), number)| {
            json!({"name": format!("set-{number}"), "count": pods.count, "template": template})
        })
        .collect();
    let mut spec: BTreeMap<&str, Value> = [("queueName", json!(queue)), ("podSets", json!(sets))].into();
    if let Some(Priority { class, value }) = priority {
        let class = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": class});
        spec.extend([("priority", json!(value)), ("priorityClassRef", class)]);
    }
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"namespace": metadata.namespace, "name": name_of_standalone(name), "annotations": annotations},
        "spec": spec,
    })
}

/// State of the pods that name a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodUse {
    /// Some run, or were created so lately that they may come to run.
    Running,
    /// As many as it was made for have succeeded, and no other is there. The last one ended then.
    Succeeded(Timestamp),
    /// None runs.
    Idle,
}

/// A request whose pods are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Requested<'a> {
    /// Its name.
    pub name: &'a str,
    /// When it was created. Pods that ended before used the nodes of another request with its name.
    pub since: Timestamp,
    /// How many pods it was made for.
    pub pods: u32,
}

impl PodUse {
    /// The state of those pods that name the request. A pod that is bound to no node counts for as long as `booking`.
    pub fn of(request: Requested<'_>, pods: &[Pod], booking: Duration, now: Timestamp) -> Self {
        let created = |pod: &Pod| pod.metadata.creation_timestamp.as_ref().map_or(now, |time| time.0);
        let is_meant = |pod: &&Pod| {
            consumes(pod) == Some(request.name) && (!pod.is_over() || created(pod) >= request.since)
        };
        let named: Vec<&Pod> = pods.iter().filter(is_meant).collect();
        let runs = |pod: &&Pod| {
            let is_placed = !pod.spec.node_name.is_empty();
            !pod.is_over() && (is_placed || !has_passed(created(pod), booking, now))
        };
        if named.iter().any(runs) {
            return Self::Running;
        }
        let has_succeeded = named.iter().all(|pod| pod.status.phase == "Succeeded");
        let is_enough = u32::try_from(named.len()).is_ok_and(|pods| pods > 0 && pods >= request.pods);
        if has_succeeded && is_enough {
            let last = named.iter().map(|pod| ended_at(pod).unwrap_or_else(|| created(pod))).max();
            return Self::Succeeded(last.unwrap_or(now));
        }
        Self::Idle
    }
}

/// Whether this much time has passed since then.
fn has_passed(since: Timestamp, time: Duration, now: Timestamp) -> bool {
    Duration::try_from(now.duration_since(since)).is_ok_and(|passed| passed >= time)
}

/// Name of the request whose nodes a pod uses; `None` if it names none.
pub fn consumes(pod: &Pod) -> Option<&str> {
    pod.metadata.annotations.as_ref()?.get(names::CONSUMES).map(String::as_str)
}

/// When a pod that has ended last changed.
fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let changes = pod.status.conditions.iter().filter_map(|c| c.last_transition_time.as_ref());
    changes.map(|time| time.0).max()
}

/// A request's answer to its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Its nodes are not there yet. The text says why.
    Pending(String),
    /// All of its nodes can run its pods.
    Provisioned,
    /// It gets no nodes.
    Failed(RequestFailure, String),
    /// Its nodes are given back, because no pod uses them any more.
    Expired(Expiry),
    /// Its nodes were taken away.
    Revoked(String),
}

/// Why no pod uses the nodes of a request any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// All of its pods have succeeded.
    PodsSucceeded,
    /// No pod ran for as long as the policy allows.
    Unused,
}

/// The nodes of an admitted Workload.
#[derive(Clone, Debug)]
pub enum BookedNodes {
    /// The client does not know of them yet.
    Unreported(Details),
    /// The client knows of them and may use them; `None` if it is not known how, and then they are kept.
    Reported(Option<Booking>),
}

/// How the nodes of a request are used.
#[derive(Clone, Copy, Debug)]
pub struct Booking {
    /// The state of its pods.
    pub pods: PodUse,
    /// When a pod last ran, as far as is known.
    pub used_at: Timestamp,
    /// For how long the nodes are kept without a running pod.
    pub limit: Duration,
}

/// Whether nodes come with a check of a request's Workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// Nodes come with it.
    OfSetu,
    /// No nodes come with it.
    Other,
    /// It does not exist, so nobody knows.
    Missing,
}

/// A request's answer to its client, by its Workload, which is `None` if it was deleted.
///
/// `nodes` matter once the Workload is admitted.
pub fn answer(
    request: &ProvisioningRequest,
    workload: Option<&Workload>,
    kind_of: impl Fn(&str) -> CheckKind,
    nodes: &BookedNodes,
    now: Timestamp,
) -> Answer {
    let Some(workload) = workload else { return Answer::Revoked(WORKLOAD_DELETED.to_owned()) };
    if let Some((failure, why)) = end_of(workload, now) {
        return if request.is_provisioned() { Answer::Revoked(why) } else { Answer::Failed(failure, why) };
    }
    if !workload.has_quota() {
        return Answer::Pending(waiting_for_quota(workload));
    }
    // Nodes that a client has are kept, also if the check is taken out of the queue.
    if !request.is_provisioned()
        && let Some(answer) = without_check(workload, kind_of)
    {
        return answer;
    }
    let since = condition::since(workload.conditions(), "Admitted");
    let Some(admitted) = since.filter(|_| workload.is_admitted()) else {
        return Answer::Pending(said_by_checks(workload).unwrap_or_else(|| "waits for its nodes".to_owned()));
    };
    match nodes {
        BookedNodes::Unreported(details) if details.nodes > 0 => Answer::Provisioned,
        BookedNodes::Unreported(_) if has_passed(admitted, GRACE, now) => {
            let why = "Kueue admitted the Workload, but no nodes came from Setu".to_owned();
            Answer::Failed(RequestFailure::Rejected, why)
        }
        BookedNodes::Unreported(_) => Answer::Pending("waits for its nodes".to_owned()),
        BookedNodes::Reported(None) => Answer::Provisioned,
        BookedNodes::Reported(Some(booking)) => while_booked(*booking, admitted, now),
    }
}

/// The answer if no nodes come with any of the Workload's checks, or if that is not known.
fn without_check(workload: &Workload, kind_of: impl Fn(&str) -> CheckKind) -> Option<Answer> {
    let checks = workload.checks();
    // Kueue lists the checks a moment after it reserves quota.
    if (checks.is_empty() && !workload.is_admitted())
        || checks.iter().any(|check| kind_of(&check.name) == CheckKind::OfSetu)
    {
        return None;
    }
    if let Some(missing) = checks.iter().find(|check| kind_of(&check.name) == CheckKind::Missing) {
        return Some(Answer::Pending(format!("AdmissionCheck {} does not exist", missing.name)));
    }
    let queue = workload.admission().map_or("", |admission| admission.cluster_queue.as_str());
    let why =
        format!("ClusterQueue {queue} has no admission check that Setu answers, so no nodes would come");
    Some(Answer::Failed(RequestFailure::Rejected, why))
}

/// Whether the nodes that a client knows of, admitted then, are given back.
fn while_booked(booking: Booking, admitted: Timestamp, now: Timestamp) -> Answer {
    match booking.pods {
        PodUse::Succeeded(last) if has_passed(last.max(admitted), QUIET, now) => {
            Answer::Expired(Expiry::PodsSucceeded)
        }
        PodUse::Idle if has_passed(booking.used_at.max(admitted), booking.limit, now) => {
            Answer::Expired(Expiry::Unused)
        }
        _ => Answer::Provisioned,
    }
}

/// Whether Kueue takes the Workload's quota back. Nobody else releases that of a Workload without an owner.
pub fn is_ending(workload: &Workload) -> bool {
    workload.is_evicted() || workload.spec.active == Some(false)
}

/// How a Workload ends, and why; `None` if it does not.
fn end_of(workload: &Workload, now: Timestamp) -> Option<(RequestFailure, String)> {
    if let Some(why) = rejection(workload) {
        return Some((RequestFailure::Rejected, why));
    }
    let evicted = condition::find(workload.conditions(), "Evicted").filter(|c| c.status == "True")?;
    let why = if workload.is_admitted() {
        format!("Kueue took the quota back: {}", evicted.message)
    } else {
        last_failure(workload, now).unwrap_or_else(|| evicted.message.clone())
    };
    Some((RequestFailure::Retry, why))
}

/// Why a Workload never gets its nodes; `None` if it may.
fn rejection(workload: &Workload) -> Option<String> {
    let rejected = workload.checks().iter().find(|check| check.state == Verdict::Rejected);
    let finished = condition::find(workload.conditions(), "Finished").filter(|c| c.status == "True");
    let is_off = workload.spec.active == Some(false);
    rejected
        .map(|check| check.message.clone())
        .or_else(|| finished.map(|finished| finished.message.clone()))
        .or_else(|| is_off.then(|| "the Workload of this request was deactivated".to_owned()))
}

/// Why the last attempt of its gang failed. The eviction has replaced the message of the check.
fn last_failure(workload: &Workload, now: Timestamp) -> Option<String> {
    let uid = workload.metadata.uid.as_deref().unwrap_or_default();
    let created = workload.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    let annotations = workload.metadata.annotations.iter().flatten();
    let mut journals = annotations.filter(|(key, _)| key.starts_with(names::JOURNAL_PREFIX));
    journals.find_map(|(_, text)| {
        let journal = Journal::decode(text, uid, created, now).ok()?;
        journal.memory.last_failure.map(|failure| failure.to_string())
    })
}

/// The messages of a Workload's checks that are not ready.
fn said_by_checks(workload: &Workload) -> Option<String> {
    let open = workload.checks().iter().filter(|check| check.state != Verdict::Ready);
    let said: Vec<&str> = open.map(|check| check.message.as_str()).filter(|text| !text.is_empty()).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

fn waiting_for_quota(workload: &Workload) -> String {
    let pending = condition::find(workload.conditions(), "QuotaReserved").map(|c| c.message.as_str());
    match pending.filter(|text| !text.is_empty()) {
        Some(why) => format!("waits for quota: {why}"),
        None => format!("waits for quota of LocalQueue {}", workload.spec.queue_name),
    }
}

/// The conditions of a request with this answer. `before` are those it has.
pub fn conditions(answer: &Answer, before: &[Condition], now: Timestamp) -> Vec<Condition> {
    let before = Before { conditions: before, now };
    let provisioned = || before.condition("Provisioned", "True", "GangReady", "every node can run its pods");
    let ended = |kind, reason, text: &str| {
        vec![before.accepted(), provisioned(), before.condition(kind, "True", reason, text)]
    };
    match answer {
        Answer::Pending(why) => {
            vec![before.accepted(), before.condition("Provisioned", "False", "GangNotReady", why)]
        }
        Answer::Provisioned => vec![before.accepted(), provisioned()],
        Answer::Failed(failure, why) => before.failed(*failure, why),
        Answer::Expired(Expiry::PodsSucceeded) => {
            ended("BookingExpired", "PodsSucceeded", "all pods have succeeded, so the nodes are given back")
        }
        Answer::Expired(Expiry::Unused) => {
            let text = "no pod that names this request ran within `deadlines.admit` of the policy";
            ended("BookingExpired", "Unused", text)
        }
        Answer::Revoked(why) => ended("CapacityRevoked", "Revoked", why),
    }
}

/// Whether two lists of conditions say the same.
pub fn are_equivalent(some: &[Condition], others: &[Condition]) -> bool {
    let says = |c: &Condition| (c.type_.clone(), c.status.clone(), c.reason.clone(), c.message.clone());
    let of = |all: &[Condition]| all.iter().map(says).collect::<BTreeSet<_>>();
    of(some) == of(others)
}

#[cfg(test)]
mod tests;
