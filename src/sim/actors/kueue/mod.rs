//! Kueue: creates Workloads for jobs, reserves quota, maintains check entries, admits, evicts and releases. The
//! order of statements is that of the real Kueue, with the pitfalls of that order.

mod checks;
mod jobs;
mod provisioning;
mod quota;
mod topology;

pub use checks::eviction;

use super::{Actor, Stage, Touched};
use crate::sim::api::User;
use crate::sim::api::kinds;
use crate::sim::values::{
    annotation, flag, is, is_going, label, list, name, namespace, number, since, text, with_condition,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The label that names a job's LocalQueue.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The finalizer on Workloads that Kueue created for a job.
const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";

/// Minimum time from an eviction to the release of the quota, which Kueue's job controller does.
const RELEASE: SignedDuration = SignedDuration::from_millis(50);

/// An item of Kueue's work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// A Workload: namespace, name.
    Workload(String, String),
    /// A Job.
    Job(String, String),
    /// The pods of a group.
    Group(String, String),
    /// A pod that is a job by itself.
    Pod(String, String),
    /// All ClusterQueues and their waiting Workloads.
    Queues,
}

/// The actor.
#[derive(Default)]
pub struct Kueue {
    queued: BTreeSet<Look>,
    /// When the quota of evicted Workloads may be released.
    releases: BTreeMap<(String, String), Timestamp>,
    queues: quota::Queues,
}

impl Kueue {
    fn push(&mut self, what: Look, stage: &mut Stage<Look>) {
        if self.queued.insert(what.clone()) {
            stage.soon(1, 20, what);
        }
    }
}

impl Actor for Kueue {
    type Timer = Look;
    const NAME: &'static str = "kueue";

    fn seen(&mut self, touched: &Touched, stage: &mut Stage<Look>) {
        let object = &touched.object;
        let key = || (namespace(object).to_owned(), name(object).to_owned());
        match touched.kind.kind {
            "Workload" => {
                let (namespace, name) = key();
                if !annotation(object, jobs::IS_GROUP).is_empty() {
                    self.push(Look::Group(namespace.clone(), name.clone()), stage);
                }
                self.push(Look::Workload(namespace.clone(), name), stage);
                for owner in list(object, "/metadata/ownerReferences") {
                    let owned = (namespace.clone(), text(owner, "/name").to_owned());
                    match text(owner, "/kind") {
                        "Job" => self.push(Look::Job(owned.0, owned.1), stage),
                        "Pod" if flag(owner, "/controller") => self.push(Look::Pod(owned.0, owned.1), stage),
                        _ => {}
                    }
                }
                if touched.gone {
                    self.push(Look::Queues, stage);
                }
            }
            "Job" => {
                let (namespace, name) = key();
                self.push(Look::Job(namespace, name), stage);
            }
            "Pod" if !label(object, jobs::GROUP).is_empty() => {
                let (namespace, _) = key();
                self.push(Look::Group(namespace, label(object, jobs::GROUP).to_owned()), stage);
            }
            "Pod" if !label(object, QUEUE).is_empty() => {
                let (namespace, name) = key();
                self.push(Look::Pod(namespace, name), stage);
            }
            "Pod" => {
                for owner in
                    list(object, "/metadata/ownerReferences").iter().filter(|o| text(o, "/kind") == "Job")
                {
                    self.push(
                        Look::Job(namespace(object).to_owned(), text(owner, "/name").to_owned()),
                        stage,
                    );
                }
            }
            "ProvisioningRequest" => {
                for owner in list(object, "/metadata/ownerReferences") {
                    let owned = (namespace(object).to_owned(), text(owner, "/name").to_owned());
                    self.push(Look::Workload(owned.0, owned.1), stage);
                }
            }
            "ClusterQueue"
            | "LocalQueue"
            | "AdmissionCheck"
            | "ProvisioningRequestConfig"
            | "ResourceFlavor"
            | "WorkloadPriorityClass" => {
                self.push(Look::Queues, stage);
            }
            _ => {}
        }
    }

    fn due(&mut self, what: Look, stage: &mut Stage<Look>) {
        self.queued.remove(&what);
        let user = stage.server.user(Self::NAME);
        let now = stage.now();
        match what {
            Look::Workload(namespace, name) => {
                let key = (namespace, name);
                let (namespace, name) = &key;
                let workload = user.get(&kinds::WORKLOAD, namespace, name);
                if workload.is_some_and(|w| is(&w, "Evicted") && is(&w, "QuotaReserved")) {
                    let at = *self.releases.entry(key.clone()).or_insert(now + RELEASE);
                    if at > now {
                        let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                        stage.after(wait, Look::Workload(namespace.clone(), name.clone()));
                        return;
                    }
                }
                self.releases.remove(&key);
                let again = reconcile(&user, namespace, name, now);
                if let Some(at) = again {
                    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
                    stage.after(wait.max(Duration::from_millis(1)), Look::Workload(key.0, key.1));
                }
                quota::schedule(&user, &mut self.queues, now);
            }
            Look::Job(namespace, name) => jobs::sync_job(&user, &namespace, &name, now),
            Look::Group(namespace, name) => jobs::sync_group(&user, &namespace, &name, now),
            Look::Pod(namespace, name) => jobs::sync_pod(&user, &namespace, &name, now),
            Look::Queues => {
                provisioning::activate(&user, now);
                for queue in user.list(&kinds::CLUSTER_QUEUE) {
                    quota::queue_conditions(&user, &queue, now);
                }
                for workload in user.list(&kinds::WORKLOAD) {
                    // Kueue retries inadmissible Workloads after a second, once their checks match the queue.
                    if let Some(queue) =
                        checks::queue_of(&user, &workload).filter(|_| quota::waits(&workload))
                    {
                        checks::sync_entries(&user, &workload, &queue, now);
                    }
                    self.push(
                        Look::Workload(
                            text(&workload, "/metadata/namespace").to_owned(),
                            self::name(&workload).to_owned(),
                        ),
                        stage,
                    );
                }
                self.queues.reset();
                quota::schedule(&user, &mut self.queues, now);
            }
        }
    }
}

/// Reconciles a Workload, in the order of Kueue's own reconciler. Returns when to reconcile again.
fn reconcile(user: &User, namespace: &str, name: &str, now: Timestamp) -> Option<Timestamp> {
    let workload = user.get(&kinds::WORKLOAD, namespace, name)?;
    if is_going(&workload) {
        jobs::stop(user, &workload, now);
        checks::drop_finalizer(user, &workload);
        return None;
    }
    if is(&workload, "Finished") {
        return None;
    }
    let queue = checks::queue_of(user, &workload);
    if let Some(queue) = &queue {
        checks::sync_entries(user, &workload, queue, now);
    }
    let workload = user.get(&kinds::WORKLOAD, namespace, name)?;
    provisioning::sync(user, &workload, now);
    let workload = user.get(&kinds::WORKLOAD, namespace, name)?;
    if let Some(at) = checks::backoff(user, &workload, now) {
        return Some(at);
    }
    if checks::is_inactive(&workload) {
        checks::evict(user, &workload, ("Deactivated", "The workload is deactivated"), now);
    } else if list(&workload, "/status/admissionChecks").iter().any(|c| text(c, "/state") == "Rejected") {
        let off = json!({"spec": {"active": false}});
        let _ = user.merge(&kinds::WORKLOAD, namespace, name, &off);
        return None;
    } else if let Some(check) = checks::retried(&workload) {
        checks::evict(
            user,
            &workload,
            ("AdmissionCheck", &format!("At least one admission check is false: {check}")),
            now,
        );
    } else if let Some(queue) = &queue {
        match checks::stop_of(user, &workload, queue) {
            // A reservation that is not admitted yet is lost without an eviction.
            Some(_) if !is(&workload, "Admitted") => lose_quota(user, &workload, now),
            Some(stop) if stop.drains => {
                checks::evict(user, &workload, (stop.reason, "The queue is stopped"), now);
            }
            _ => {}
        }
    }
    let was_evicted = is(&workload, "Evicted");
    let workload = user.get(&kinds::WORKLOAD, namespace, name)?;
    if is(&workload, "Evicted") && is(&workload, "QuotaReserved") {
        if !was_evicted {
            return now.checked_add(RELEASE).ok();
        }
        jobs::stop(user, &workload, now);
        if jobs::has_stopped(user, &workload) {
            checks::release(user, &workload, now);
        } else {
            return now.checked_add(SignedDuration::from_millis(100)).ok();
        }
        return None;
    }
    let again = checks::admit(user, &workload, now);
    again.into_iter().chain(jobs::pods_overdue(user, &workload, now)).min()
}

/// Writes parts of a Workload's status.
fn set_status(user: &User, workload: &Value, status: &Value) {
    let patch = json!({ "status": status });
    // The Workload may be gone by now.
    let _ = user.merge_status(
        &kinds::WORKLOAD,
        text(workload, "/metadata/namespace"),
        text(workload, "/metadata/name"),
        &patch,
    );
}

/// A Workload's conditions after setting several of them.
fn conditions(workload: &Value, set: &[(&str, &str, &str, &str)], now: Timestamp) -> Vec<Value> {
    let mut changed = json!({"status": {"conditions": list(workload, "/status/conditions")}});
    for (kind, status, reason, message) in set {
        let all = with_condition(&changed, (kind, status), (reason, message), now);
        crate::sim::values::set(&mut changed, &["status", "conditions"], json!(all));
    }
    list(&changed, "/status/conditions").to_vec()
}

/// Evicts a Workload with the given reason and message.
pub fn evict(user: &User, workload: &Value, why: (&str, &str), now: Timestamp) {
    checks::evict(user, workload, why, now);
}

/// Releases a reservation without an eviction, if the Workload is not admitted yet.
pub fn lose_quota(user: &User, workload: &Value, now: Timestamp) {
    if is(workload, "QuotaReserved") && !is(workload, "Admitted") && !is(workload, "Finished") {
        checks::release(user, workload, now);
    }
}

/// Sort key of Workloads in a queue: priority, then eviction or creation time.
fn order(workload: &Value) -> (i64, Timestamp, String) {
    let evicted = since(workload, "Evicted");
    let at = evicted.unwrap_or_else(|| crate::sim::values::created(workload));
    (-number(workload, "/spec/priority"), at, name(workload).to_owned())
}

/// Whether a Workload holds quota.
fn holds_quota(workload: &Value) -> bool {
    is(workload, "QuotaReserved") && !is(workload, "Finished")
}

/// Whether `spec.suspend` of a job is set.
fn is_suspended(job: &Value) -> bool {
    flag(job, "/spec/suspend")
}
