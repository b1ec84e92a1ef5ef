//! The part of the cluster that belongs to a scenario: its objects, its weather, its Setu, and its observed journals.

use super::Theatre;
use super::file::{CheckAnswer, Job, KarpenterProvider, KueueEviction, PodGroup};
use super::fill::{documents, filled, substituted, timed};
use super::runs::Run;
use crate::api::duration::Span;
use crate::api::{NodeClaim, Workload};
use crate::cluster::lock;
use crate::gang::Journal;
use crate::names;
use anyhow::{Context as _, Result};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::discovery::{ApiResource, Scope};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use setu_sim::actors::kueue::eviction as evicted;
use setu_sim::actors::machines::RUN_FOR;
use setu_sim::values::{seconds, set, text};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Mutex;

const WORLD: &str = include_str!("world.yaml");
/// Instance types from the catalogue that worlds use.
const GPU_TYPE: &str = "g5.4xlarge";
const CPU_TYPE: &str = "m5.4xlarge";

/// A finalizer that no controller removes.
const FINALIZER: &str = "e2e.setu/keep";

/// The part of the cluster that belongs to a scenario.
pub struct ScenarioWorld<T> {
    /// The cluster.
    pub theatre: T,
    /// Id of the run, which is part of the names of its objects.
    pub id: String,
    /// The client of the API server.
    pub client: Client,
    /// The last journal seen of each Workload, by UID.
    pub journals: BTreeMap<String, Journal>,
    gpus: u32,
    provider: KarpenterProvider,
    /// The NodePools that were applied. The cluster may also have those of scenarios whose ids begin like this one.
    node_pools: Mutex<BTreeSet<String>>,
}

/// The controller name of a run's Setu.
pub fn controller_name(run: &Run) -> String {
    controller_name_of(&run.id)
}

/// The controller name of Setu in the world with this id.
pub fn controller_name_of(id: &str) -> String {
    format!("e2e.setu/{id}")
}

/// The objects of a world: its namespace, node pools, flavors, check and queues.
pub fn objects(id: &str, gpus: u32) -> Result<Vec<Value>> {
    let filled = WORLD
        .replace("${id}", id)
        .replace("${gpus}", &gpus.to_string())
        .replace("${gpuType}", GPU_TYPE)
        .replace("${cpuType}", CPU_TYPE);
    documents(&filled)
}

/// The policy file of a run that starts now. `${now+40s}` in it means 40 seconds from now.
pub fn policy(run: &Run, now: Timestamp) -> Result<String> {
    let policy = json!({
        "apiVersion": "setu.kueue.x-k8s.io/v1alpha1",
        "kind": "Policy",
        "guards": run.scenario.guards.as_object().cloned().unwrap_or_default(),
        "defaults": run.scenario.policy.as_object().cloned().unwrap_or_default(),
    });
    timed(&substituted(&policy, &run.id)?.to_string(), now)
}

impl<T: Theatre> ScenarioWorld<T> {
    /// Creates the world, without starting Setu.
    pub async fn new(theatre: T, run: &Run) -> Result<Self> {
        let client = theatre.client();
        let (id, gpus, provider) = (run.id.clone(), run.scenario.gpus, run.scenario.provider);
        let (journals, node_pools) = (BTreeMap::new(), Mutex::default());
        let world = Self { theatre, id, client, journals, gpus, provider, node_pools };
        world.weather(&run.scenario.weather).await?;
        for object in objects(&world.id, world.gpus)? {
            world.apply(object).await?;
        }
        Ok(world)
    }

    /// Replaces the weather of this scenario's NodePools.
    pub async fn weather(&self, rules: &[Value]) -> Result<()> {
        let mut rules = substituted(&json!(rules), &self.id)?;
        for rule in rules.as_array_mut().into_iter().flatten() {
            if let Some(rule) = rule.as_object_mut() {
                rule.entry("nodePool").or_insert_with(|| json!(self.id));
            }
        }
        self.theatre.weather(rules.as_array().map_or(&[], Vec::as_slice))?;
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), "kube-system");
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weather"},
            "data": {&self.id: json!({"rules": rules}).to_string()},
        });
        // A separate field manager, so that scenarios do not remove each other's keys.
        api.patch("weather", &PatchParams::apply(&self.id).force(), &Patch::Apply(&body)).await?;
        Ok(())
    }

    fn api(&self, kind: &str) -> Result<(Api<DynamicObject>, ApiResource)> {
        let (resource, scope) =
            self.theatre.kind(kind).with_context(|| format!("the API server serves no kind {kind}"))?;
        let api = match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), &self.id, &resource),
        };
        Ok((api, resource))
    }

    /// Applies an object that is written for the kwok provider, with administrator rights.
    pub async fn apply(&self, object: Value) -> Result<()> {
        let object = self.theatre.provided(substituted(&object, &self.id)?, self.provider)?;
        let kind = text(&object, "/kind").to_owned();
        let name = text(&object, "/metadata/name").to_owned();
        anyhow::ensure!(!kind.is_empty() && !name.is_empty(), "an object without kind or name: {object}");
        let (api, _) = self.api(&kind)?;
        let params = PatchParams::apply("e2e").force();
        api.patch(&name, &params, &Patch::Apply(&object))
            .await
            .map_err(message_of)
            .with_context(|| format!("applying {kind} {name}"))?;
        if kind == "NodePool" {
            lock(&self.node_pools).insert(name);
        }
        Ok(())
    }

    /// Names of the objects of this kind that belong to the scenario's NodePools, whoever made them.
    pub async fn of_node_pools<K>(&self) -> Result<Vec<String>>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let pools: Vec<String> = lock(&self.node_pools).iter().cloned().collect();
        let selector = format!("{} in ({})", names::NODEPOOL, pools.join(", "));
        let api: Api<K> = Api::all(self.client.clone());
        let found = api.list(&ListParams::default().labels(&selector)).await?.items;
        Ok(found.iter().map(ResourceExt::name_any).collect())
    }

    /// Deletes an object.
    pub async fn delete(&self, kind: &str, name: &str) -> Result<()> {
        let (api, _) = self.api(kind)?;
        let name = self.real_name(kind, name).await?;
        api.delete(&name, &DeleteParams::background())
            .await
            .map_err(message_of)
            .with_context(|| format!("deleting {kind} {name}"))?;
        Ok(())
    }

    /// Changes an object with a merge patch.
    pub async fn patch(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        let (api, _) = self.api(kind)?;
        let name = self.real_name(kind, name).await?;
        let patch = substituted(patch, &self.id)?;
        let params = PatchParams::default();
        api.patch(&name, &params, &Patch::Merge(&patch))
            .await
            .map_err(message_of)
            .with_context(|| format!("patching {kind} {name}"))?;
        Ok(())
    }

    /// Whether an object exists.
    pub async fn exists(&self, kind: &str, name: &str) -> Result<bool> {
        let (api, _) = self.api(kind)?;
        Ok(api.get_opt(&filled(name, &self.id)).await?.is_some())
    }

    /// Sets a condition in an object's status, like its controller.
    pub async fn set_condition(
        &self,
        kind: &str,
        name: &str,
        (condition, status): (&str, bool),
    ) -> Result<()> {
        let (api, _) = self.api(kind)?;
        let name = self.real_name(kind, name).await?;
        let status = json!({"status": {"conditions": [{
            "type": condition, "status": if status { "True" } else { "False" }, "reason": "Scenario",
            "message": "set by the scenario", "lastTransitionTime": seconds(self.theatre.now()),
        }]}});
        let params = PatchParams::default();
        api.patch_status(&name, &params, &Patch::Merge(&status))
            .await
            .map_err(message_of)
            .with_context(|| format!("{condition} of {kind} {name}"))?;
        Ok(())
    }

    /// Sets the verdict of another check on a Workload, like its controller.
    pub async fn answer(&self, answer: &CheckAnswer) -> Result<()> {
        let (api, resource) = self.api("Workload")?;
        let name = self.real_name("Workload", &answer.name).await?;
        let check = filled(&answer.check, &self.id);
        let mut entry = json!({
            "name": check, "state": answer.verdict, "message": "set by the scenario",
            "lastTransitionTime": seconds(self.theatre.now()), "requeueAfterSeconds": 0,
        });
        if !answer.pod_set_updates.is_empty() {
            let updates = substituted(&json!(answer.pod_set_updates), &self.id)?;
            set(&mut entry, &["podSetUpdates"], updates);
        }
        let body = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name},
            "status": {"admissionChecks": [entry]},
        });
        let params = PatchParams::apply("e2e.setu/nobody").force();
        api.patch_status(&name, &params, &Patch::Apply(&body))
            .await
            .with_context(|| format!("{} of check {check} for {name}", answer.verdict))?;
        Ok(())
    }

    /// Writes the status that Kueue writes to evict a Workload. The rest is left to Kueue.
    pub async fn evict(&self, eviction: &KueueEviction) -> Result<()> {
        let (api, _) = self.api("Workload")?;
        let name = self.real_name("Workload", &eviction.name).await?;
        loop {
            let workload = serde_json::to_value(api.get(&name).await?)?;
            let status =
                evicted(&workload, (&eviction.reason, "evicted by the scenario"), self.theatre.now());
            // A concurrent write is not overwritten: on a conflict, the Workload is read and evicted again.
            let version = text(&workload, "/metadata/resourceVersion");
            let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
            match api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                done => {
                    done.map_err(message_of).with_context(|| format!("evicting {name}"))?;
                    return Ok(());
                }
            }
        }
    }

    /// The name of an object. A Workload is looked up by its Job.
    async fn real_name(&self, kind: &str, name: &str) -> Result<String> {
        let name = filled(name, &self.id);
        if kind != "Workload" {
            return Ok(name);
        }
        Ok(self.workload(&name).await?.with_context(|| format!("{name} has no Workload"))?.name_any())
    }

    /// Submits a Job to the scenario's queue.
    pub async fn submit(&self, job: &Job) -> Result<()> {
        let mut labels = json!({"kueue.x-k8s.io/queue-name": job.queue});
        if job.high_priority {
            set(&mut labels, &["kueue.x-k8s.io/priority-class"], json!(format!("{}-high", self.id)));
        }
        let selector: Value = substituted(&json!(job.node_selector), &self.id)?;
        let mut annotations = run_for(job.run_for);
        for (key, value) in &job.annotations {
            set(&mut annotations, &[key], json!(value));
        }
        self.apply(json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": job.name, "labels": labels},
            "spec": {
                "parallelism": job.pods, "completions": job.pods, "suspend": true, "backoffLimit": job.restarts,
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {
                        "restartPolicy": "Never", "nodeSelector": selector, "terminationGracePeriodSeconds": 0,
                        "containers": [container("1", job.gpus)],
                    },
                },
            },
        }))
        .await
    }

    /// Submits a group of plain pods.
    pub async fn group(&self, group: &PodGroup) -> Result<()> {
        let total: u32 = group.roles.iter().map(|r| r.pods).sum();
        for role in &group.roles {
            for index in 0..role.pods {
                let mut annotations = run_for(group.run_for);
                set(&mut annotations, &["kueue.x-k8s.io/pod-group-total-count"], json!(total.to_string()));
                self.apply(json!({
                    "apiVersion": "v1", "kind": "Pod",
                    "metadata": {
                        "name": format!("{}-{}-{index}", group.name, role.name), "annotations": annotations,
                        "labels": {
                            "kueue.x-k8s.io/queue-name": "queue", "kueue.x-k8s.io/pod-group-name": group.name,
                        },
                    },
                    "spec": {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container(&role.cpu, role.gpus)]},
                }))
                .await?;
            }
        }
        Ok(())
    }

    /// The Workload of a Job or pod group.
    pub async fn workload(&self, owner: &str) -> Result<Option<Workload>> {
        let owner = &filled(owner, &self.id);
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &self.id);
        let all = api.list(&ListParams::default()).await?;
        let owns = |w: &Workload| {
            let owners = w.metadata.owner_references.iter().flatten();
            w.name_any() == *owner || owners.into_iter().any(|o| o.name == *owner)
        };
        Ok(all.items.into_iter().find(owns))
    }

    /// All Workloads of the scenario.
    pub async fn workloads(&self) -> Result<Vec<Workload>> {
        let api: Api<Workload> = Api::namespaced(self.client.clone(), &self.id);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// All NodeClaims made for this scenario's Workloads.
    pub async fn claims(&self) -> Result<Vec<NodeClaim>> {
        let api: Api<NodeClaim> = Api::all(self.client.clone());
        let ours = api
            .list(&ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU)))
            .await?;
        let prefix = format!("{}/", self.id);
        Ok(ours.items.into_iter().filter(|c| c.annotation(names::WORKLOAD).starts_with(&prefix)).collect())
    }

    /// NodeClaims of a Job's gang.
    pub async fn claims_of(&self, job: &str) -> Result<Vec<NodeClaim>> {
        let workload = self.workload(job).await?.with_context(|| format!("{job} has no Workload"))?;
        let uid = workload.uid().unwrap_or_default();
        Ok(self.claims().await?.into_iter().filter(|c| c.label(names::WORKLOAD_UID) == uid).collect())
    }

    /// Adds a foreign finalizer to every NodeClaim of a Job's gang, or removes it.
    pub async fn set_finalizer(&self, job: &str, is_set: bool) -> Result<()> {
        for claim in self.claims_of(job).await? {
            let others = claim.finalizers().iter().map(String::as_str).filter(|f| *f != FINALIZER);
            let finalizers: Vec<&str> = others.chain(is_set.then_some(FINALIZER)).collect();
            let patch = json!({"metadata": {"finalizers": finalizers}});
            self.patch("NodeClaim", &claim.name_any(), &patch).await?;
        }
        Ok(())
    }

    /// All pods of the scenario.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.id);
        Ok(api.list(&ListParams::default()).await?.items)
    }

    /// The journal of a Workload under the scenario's check. It is kept for the check at the end.
    pub fn journal(&mut self, workload: &Workload) -> Option<Journal> {
        let text = workload.annotations().get(&names::journal_key(&self.id))?;
        let uid = workload.uid().unwrap_or_default();
        let now = self.theatre.now();
        // Some scenarios write an invalid journal, which counts as none.
        let Ok(journal) = Journal::decode(text, &uid, jiff::Timestamp::MIN, now) else { return None };
        self.journals.insert(uid, journal.clone());
        Some(journal)
    }
}

/// The API server's message; the rest of its answer is for programs.
fn message_of(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow::Error::msg(status.message),
        other => other.into(),
    }
}

fn run_for(time: Option<Span>) -> Value {
    time.map_or_else(|| json!({}), |time| json!({RUN_FOR: time.to_string()}))
}

fn container(cpu: &str, gpus: u32) -> Value {
    let mut requests = json!({"cpu": cpu, "memory": "1Gi"});
    let mut limits = json!({});
    if gpus > 0 {
        set(&mut requests, &["nvidia.com/gpu"], json!(gpus.to_string()));
        set(&mut limits, &["nvidia.com/gpu"], json!(gpus.to_string()));
    }
    json!({"name": "main", "image": "none", "resources": {"requests": requests, "limits": limits}})
}
