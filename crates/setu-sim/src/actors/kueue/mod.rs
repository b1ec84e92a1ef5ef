//! Kueue: creates Workloads for jobs, reserves quota, maintains check entries, admits, evicts and releases.

mod checks;
mod jobs;
mod provisioning;
mod quota;
mod topology;
mod workloads;

pub use checks::{evict, eviction, lose_quota};
pub use jobs::FAILED_TO_START;

use super::{Actor, ObjectChange, Stage};
use crate::api::User;
use crate::api::kinds;
use crate::values::{
    annotation, flag, is, label, list, name, namespace, number, owners, since, text, with_condition,
};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The label that names a job's LocalQueue.
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
/// The finalizer on Workloads that Kueue created for a job.
const FINALIZER: &str = "kueue.x-k8s.io/resource-in-use";

/// Minimum time from an eviction to the release of the quota, which Kueue's job controller does.
const RELEASE: SignedDuration = SignedDuration::from_millis(50);

/// Namespace and name.
type NamespacedName = (String, String);

/// A reconcile for Kueue to run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KueueTask {
    /// A Workload.
    Workload(NamespacedName),
    /// A Job.
    Job(NamespacedName),
    /// The pods of a group.
    Group(NamespacedName),
    /// A pod that is a job by itself.
    Pod(NamespacedName),
    /// All ClusterQueues and their waiting Workloads.
    Queues,
}

impl KueueTask {
    /// Reconciles to run after a change, in order.
    fn after(touched: &ObjectChange) -> Vec<Self> {
        let object = &*touched.object;
        let key = |name: &str| (namespace(object).to_owned(), name.to_owned());
        let own = || key(name(object));
        match touched.kind.kind {
            "Workload" => {
                let is_group = !annotation(object, jobs::IS_GROUP).is_empty();
                let owners = list(object, "/metadata/ownerReferences").iter().filter_map(|owner| {
                    let owner_key = key(text(owner, "/name"));
                    match text(owner, "/kind") {
                        "Job" => Some(Self::Job(owner_key)),
                        "Pod" if flag(owner, "/controller") => Some(Self::Pod(owner_key)),
                        _ => None,
                    }
                });
                let group = is_group.then(|| Self::Group(own()));
                let queues = touched.gone.then_some(Self::Queues);
                group.into_iter().chain([Self::Workload(own())]).chain(owners).chain(queues).collect()
            }
            "Job" => vec![Self::Job(own())],
            "Pod" if !label(object, jobs::GROUP).is_empty() => {
                vec![Self::Group(key(label(object, jobs::GROUP)))]
            }
            "Pod" if !label(object, QUEUE).is_empty() => vec![Self::Pod(own())],
            "Pod" => owners(object, "Job").map(|owner| Self::Job(key(text(owner, "/name")))).collect(),
            "ProvisioningRequest" => {
                let owners = list(object, "/metadata/ownerReferences").iter();
                owners.map(|owner| Self::Workload(key(text(owner, "/name")))).collect()
            }
            "ClusterQueue"
            | "LocalQueue"
            | "AdmissionCheck"
            | "ProvisioningRequestConfig"
            | "ResourceFlavor"
            | "WorkloadPriorityClass" => vec![Self::Queues],
            _ => Vec::new(),
        }
    }
}

/// The actor.
#[derive(Default)]
pub struct Kueue {
    queued: BTreeSet<KueueTask>,
    /// When the quota of evicted Workloads may be released.
    releases: BTreeMap<NamespacedName, Timestamp>,
    queues: quota::Queues,
}

impl Kueue {
    fn push(&mut self, task: KueueTask, stage: &mut Stage<KueueTask>) {
        if self.queued.insert(task.clone()) {
            stage.soon(1, 20, task);
        }
    }

    fn workload_due(&mut self, user: &User, key: NamespacedName, stage: &mut Stage<KueueTask>) {
        let now = stage.now();
        let workload = user.get(&kinds::WORKLOAD, &key.0, &key.1);
        if workload.is_some_and(|w| is(&w, "Evicted") && is(&w, "QuotaReserved")) {
            let at = *self.releases.entry(key.clone()).or_insert(now + RELEASE);
            if at > now {
                return stage.at(at, KueueTask::Workload(key));
            }
        }
        self.releases.remove(&key);
        if let Some(at) = workloads::reconcile(user, &key, now) {
            stage.at(at.max(now + SignedDuration::from_millis(1)), KueueTask::Workload(key));
        }
        quota::schedule(user, &mut self.queues, now);
    }

    fn queues_due(&mut self, user: &User, stage: &mut Stage<KueueTask>) {
        let now = stage.now();
        provisioning::activate(user, now);
        for queue in user.list(&kinds::CLUSTER_QUEUE) {
            quota::queue_conditions(user, &queue, now);
        }
        for workload in user.list(&kinds::WORKLOAD) {
            // Kueue retries inadmissible Workloads after a second, once their checks match the queue.
            if let Some(queue) = checks::queue_of(user, &workload).filter(|_| quota::waits(&workload)) {
                checks::sync_entries(user, &workload, &queue, now);
            }
            let key = (namespace(&workload).to_owned(), name(&workload).to_owned());
            self.push(KueueTask::Workload(key), stage);
        }
        self.queues.reset();
        quota::schedule(user, &mut self.queues, now);
    }
}

impl Actor for Kueue {
    type Timer = KueueTask;
    const NAME: &'static str = "kueue";

    fn seen(&mut self, touched: &ObjectChange, stage: &mut Stage<KueueTask>) {
        for task in KueueTask::after(touched) {
            self.push(task, stage);
        }
    }

    fn due(&mut self, task: KueueTask, stage: &mut Stage<KueueTask>) {
        self.queued.remove(&task);
        let user = stage.server.user(Self::NAME);
        let now = stage.now();
        match task {
            KueueTask::Workload(key) => self.workload_due(&user, key, stage),
            KueueTask::Job((namespace, name)) => jobs::sync_job(&user, &namespace, &name, now),
            KueueTask::Group((namespace, name)) => jobs::sync_group(&user, &namespace, &name, now),
            KueueTask::Pod((namespace, name)) => jobs::sync_pod(&user, &namespace, &name, now),
            KueueTask::Queues => self.queues_due(&user, stage),
        }
    }
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
        crate::values::set(&mut changed, &["status", "conditions"], json!(all));
    }
    list(&changed, "/status/conditions").to_vec()
}

/// Sort key of Workloads in a queue: priority, then eviction or creation time.
fn order(workload: &Value) -> (i64, Timestamp, String) {
    let evicted = since(workload, "Evicted");
    let at = evicted.unwrap_or_else(|| crate::values::created(workload));
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
