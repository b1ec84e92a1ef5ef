//! The common observer: it watches Workloads, the objects created for them, and pods, and records on its monotonic
//! clock when it saw a change. It uses no timestamps of objects, because these have whole seconds.

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::{ApiResource, DynamicObject, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;
use setu::names;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::task::JoinSet;

/// The observations of one job's gang.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub uid: String,
    pub reserved: Option<Instant>,
    /// Kueue asked: the Workload lists the check. Kueue writes that after the reservation.
    pub asked: Option<Instant>,
    /// The first NodeClaim, or the ProvisioningRequest if no system makes nodes for it.
    pub created: Option<Instant>,
    pub creations: usize,
    /// The last node was ready, or the request was granted.
    pub ready: Option<Instant>,
    pub verdict: Option<Instant>,
    /// The last pod was bound.
    pub bound: Option<Instant>,
    pub bindings: usize,
    /// The largest size of the journal.
    pub journal: usize,
}

#[derive(Default)]
struct Observed {
    jobs: BTreeMap<String, Times>,
    /// The Job of each Workload by the Workload's UID, and by its name.
    by_uid: BTreeMap<String, String>,
    by_name: BTreeMap<String, String>,
    seen: BTreeSet<String>,
}

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Observer(Arc<Mutex<Observed>>);

fn is(object: &Value, condition: &str) -> bool {
    let all = object["status"]["conditions"].as_array();
    all.is_some_and(|all| all.iter().any(|c| c["type"] == condition && c["status"] == "True"))
}

impl Observer {
    fn sight(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops all observations.
    pub fn clear(&self) {
        *self.sight() = Observed::default();
    }

    /// The observations of every job.
    pub fn times(&self) -> BTreeMap<String, Times> {
        self.sight().jobs.clone()
    }

    /// Starts watching everything.
    pub fn start(&self, client: &Client, tasks: &mut JoinSet<()>) {
        for kind in ["Workload", "NodeClaim", "ProvisioningRequest", "Pod"] {
            let (observer, client) = (self.clone(), client.clone());
            tasks.spawn(async move {
                loop {
                    // Start again if a kind is not served yet, or a watch ended.
                    let _ = observer.follow(&client, kind).await;
                    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                }
            });
        }
    }

    async fn follow(&self, client: &Client, kind: &'static str) -> Result<()> {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let events = api.watch(&WatchParams::default(), "0").await?;
        futures::pin_mut!(events);
        while let Some(event) = events.try_next().await? {
            let now = Instant::now();
            if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                self.sight().take(kind, &object, now);
            }
        }
        Ok(())
    }
}

/// The API resource of a kind.
pub fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "NodeClaim" => ("karpenter.sh", "v1"),
        "ProvisioningRequest" => ("autoscaling.x-k8s.io", "v1"),
        "Pod" | "Node" => ("", "v1"),
        "Job" => ("batch", "v1"),
        _ => ("kueue.x-k8s.io", "v1beta2"),
    };
    ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind))
}

impl Observed {
    fn take(&mut self, kind: &str, object: &DynamicObject, now: Instant) {
        let Ok(value) = serde_json::to_value(object) else { return };
        let uid = object.uid().unwrap_or_default();
        match kind {
            "Workload" => self.workload(object, &value, now),
            "Pod" => {
                let Some(job) = object.labels().get("batch.kubernetes.io/job-name").cloned() else { return };
                let bound = value["spec"]["nodeName"].is_string();
                if bound && self.seen.insert(uid) {
                    let times = self.jobs.entry(job).or_default();
                    times.bound = Some(now);
                    times.bindings += 1;
                }
            }
            _ => {
                // Setu makes nodes for it, and they count.
                if value["spec"]["provisioningClassName"] == names::REQUEST_CLASS {
                    return;
                }
                let owner = object.owner_references().first().map(|o| o.uid.clone());
                let of_request = object
                    .annotations()
                    .get(names::OWNER)
                    .and_then(|owner| Some(owner.rsplit_once('/')?.1.to_owned()));
                let workload = of_request.or(object.labels().get(names::WORKLOAD_UID).cloned()).or(owner);
                let workload = workload.unwrap_or_default();
                let Some(job) = self.by_uid.get(&workload).cloned() else { return };
                let ready = is(&value, "Initialized") || is(&value, "Provisioned");
                let new = self.seen.insert(uid.clone());
                let done = ready && self.seen.insert(format!("{uid} ready"));
                let times = self.jobs.entry(job).or_default();
                if new {
                    times.created.get_or_insert(now);
                    times.creations += 1;
                }
                if done {
                    times.ready = Some(now);
                }
            }
        }
    }

    fn workload(&mut self, object: &DynamicObject, value: &Value, now: Instant) {
        let Some(job) = object.owner_references().first().map(|o| o.name.clone()) else { return };
        let uid = object.uid().unwrap_or_default();
        self.by_uid.insert(uid.clone(), job.clone());
        self.by_name.insert(object.name_any(), job.clone());
        let times = self.jobs.entry(job).or_default();
        times.uid = uid;
        if is(value, "QuotaReserved") {
            times.reserved.get_or_insert(now);
        }
        let checks = value["status"]["admissionChecks"].as_array();
        if times.reserved.is_some() && checks.is_some_and(|all| !all.is_empty()) {
            times.asked.get_or_insert(now);
        }
        if checks.is_some_and(|all| !all.is_empty() && all.iter().all(|c| c["state"] == "Ready")) {
            times.verdict.get_or_insert(now);
        }
        let journals = object.annotations().iter().filter(|(key, _)| key.starts_with(names::JOURNAL_PREFIX));
        times.journal = times.journal.max(journals.map(|(_, text)| text.len()).sum());
    }
}

/// All objects of a kind.
pub async fn list(client: &Client, kind: &str) -> Result<Vec<DynamicObject>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
    Ok(api.list(&kube::api::ListParams::default()).await?.items)
}

/// Follows a kind and passes every added or changed object to `act`, forever.
pub async fn each<F: Future<Output = ()>>(
    client: Client,
    kind: &'static str,
    act: impl Fn(DynamicObject) -> F,
) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    loop {
        if let Ok(events) = api.watch(&WatchParams::default(), "0").await {
            let objects = events.filter_map(async |event| match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => Some(object),
                _ => None,
            });
            objects.for_each_concurrent(64, &act).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}
