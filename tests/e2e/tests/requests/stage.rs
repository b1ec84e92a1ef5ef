//! The cluster of the test: one control plane that serves ProvisioningRequests, and one Setu with the permissions of a real
//! installation. Each part of the test has a queue over a NodePool with its own weather; all objects of a queue have its name.

use crate::setu::{Setu, binary};
use ::setu::api::ProvisioningParameters;
use ::setu::names;
use ::setu::sim::scenario;
use futures::future::join_all;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, CustomResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::{
    HarnessLayout, KUEUE_NAMESPACE, RUN_FOR_ANNOTATION, Stack, StackOptions, WEATHER_NAME, WEATHER_NAMESPACE,
    apply, programs, requests,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(500);
/// The nodes of a gang in the queue `topology` are in one zone, and in the queue `hosts` in one rack, as their Jobs require. In the queue `failing` nothing is tried twice
/// within a request. The queue `warm` keeps nodes for its next gang.
const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy, \
    defaults: {retry: {inCheck: {limit: 20, base: 3s, max: 3s}}}, \
    checks: {topology: {colocation: {topologyKey: topology.kubernetes.io/zone, mode: Required}}, \
    hosts: {colocation: {topologyKey: example.com/rack, mode: Required}}, \
    failing: {retry: {inCheck: {limit: 0}}}, \
    capacity-types: {capacityTypes: [spot, on-demand]}, \
    warm: {custody: {release: Warm, warmFor: 60s}}}}";

/// `spec.controllerName` of Setu's own checks.
const CONTROLLER: &str = "e2e.setu/requests";

pub struct Stage {
    pub stack: Stack,
    pub setu: Setu,
    client: Client,
}

/// A queue whose only check is Kueue's own.
pub struct Queue {
    pub id: &'static str,
    client: Client,
}

/// The objects of a queue at one moment.
#[derive(Debug)]
pub struct QueueObjects {
    pub workloads: Vec<Value>,
    pub requests: Vec<Value>,
    pub claims: Vec<Value>,
    pub nodes: Vec<Value>,
    pub pods: Vec<Value>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The chart's admission policies where requests are served.
fn policies() -> String {
    let mut helm = Command::new(programs::helm(&HarnessLayout::default()).unwrap());
    helm.args(["template", "setu"]).arg(root().join("charts/setu")).args(["--namespace", KUEUE_NAMESPACE]);
    helm.args(["--set", "image.repository=setu,provisioningRequests.enabled=true"]);
    let output = helm.args(["--show-only", "templates/admission-policies.yaml"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "NodeClaim" | "NodePool" => ("karpenter.sh", "v1"),
        "ProvisioningRequest" => ("autoscaling.x-k8s.io", "v1"),
        "Pod" | "Node" | "ConfigMap" => ("", "v1"),
        "Job" => ("batch", "v1"),
        _ => ("kueue.x-k8s.io", "v1beta2"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

impl Stage {
    /// Starts the control plane and Setu.
    pub async fn set() -> Self {
        let options = StackOptions { provisioning_requests: true, ..StackOptions::default() };
        let stack = Stack::start(options).await.unwrap();
        let client = stack.client().unwrap();
        let crd = serde_json::to_value(ProvisioningParameters::crd()).unwrap();
        apply::all(&client, vec![crd]).await.unwrap();
        for file in ["setu-provisioning-requests.yaml", "setu-hand-back.yaml"] {
            apply::path(&client, &root().join("examples/rbac").join(file)).await.unwrap();
        }
        apply::path(&client, &root().join("manifests/rbac.yaml")).await.unwrap();
        apply::yaml(&client, &policies()).await.unwrap();
        let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
        let folder = stack.folder().join("requests");
        let setu = Setu::new(&kubeconfig, CONTROLLER, POLICY, &folder).unwrap();
        let mut setu = setu.with(&["--provisioning-requests"]);
        setu.start(None).unwrap();
        Self { stack, setu, client }
    }

    /// Makes a queue whose check makes requests of this class.
    pub async fn queue(&self, id: &'static str, class: &str) -> Queue {
        self.queue_with_quota(id, class, 200).await
    }

    /// The same with quota for this many GPUs.
    pub async fn queue_with_quota(&self, id: &'static str, class: &str, gpus: u32) -> Queue {
        let mut objects = scenario::objects(id, gpus).unwrap();
        objects.retain(|object| object["kind"] != "AdmissionCheck");
        objects.extend(requests::check(id, class, Some((names::GANG, "gang"))));
        apply::all(&self.client, objects).await.unwrap();
        Queue { id, client: self.client.clone() }
    }

    /// Makes a queue with a check of Setu's.
    pub async fn queue_with_setus_check(&self, id: &'static str, gpus: u32) -> Queue {
        let mut objects = scenario::objects(id, gpus).unwrap();
        for check in objects.iter_mut().filter(|object| object["kind"] == "AdmissionCheck") {
            check["spec"]["controllerName"] = json!(CONTROLLER);
        }
        apply::all(&self.client, objects).await.unwrap();
        Queue { id, client: self.client.clone() }
    }

    /// Waits until this holds of a queue.
    pub async fn until(
        &self,
        queue: &Queue,
        (what, seconds): (&str, u64),
        holds: impl Fn(&QueueObjects) -> bool,
    ) -> QueueObjects {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            let seen = queue.list_all().await;
            if holds(&seen) {
                return seen;
            }
            let log = || self.setu.log_tail(25);
            assert!(Instant::now() < deadline, "not within {seconds} s: {what}\n{seen:#?}\n{}", log());
            tokio::time::sleep(POLL).await;
        }
    }

    /// Deletes the Jobs of a queue and waits until nothing is left.
    pub async fn clear(&self, queue: &Queue) {
        queue.delete_jobs().await;
        self.until(queue, ("nothing is left", 60), QueueObjects::is_empty).await;
    }

    /// The output of a CLI command that an administrator runs.
    pub fn output_of(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(binary().unwrap());
        command.args(arguments).env("KUBECONFIG", self.stack.kubeconfig());
        let output = command.output().unwrap();
        let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        println!("$ setu {}\n{}", arguments.join(" "), text.concat());
        assert!(output.status.success(), "{arguments:?}: {}", text.concat());
        text.concat()
    }

    /// Stops Setu, then the control plane.
    pub fn end(mut self) {
        self.setu.kill();
        self.stack.stop();
    }
}

impl Queue {
    /// A Job of this many pods with one GPU each, which run for this long, or until they are deleted.
    pub fn job(&self, name: &str, pods: usize, run_for: Option<&str>) -> Value {
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
        let annotations = run_for.map_or_else(|| json!({}), |time| json!({RUN_FOR_ANNOTATION: time}));
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"namespace": self.id, "name": name, "labels": {names::QUEUE: "queue"}},
            "spec": {"parallelism": pods, "completions": pods, "suspend": true, "template": {
                "metadata": {"annotations": annotations},
                "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
                ]},
            }},
        })
    }

    /// Creates Jobs at once.
    pub async fn submit(&self, jobs: Vec<Value>) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), self.id, &resource("Job"));
        let create =
            async |job| api.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await;
        for created in join_all(jobs.into_iter().map(create)).await {
            created.unwrap();
        }
    }

    /// Creates an object.
    pub async fn apply(&self, object: Value) {
        apply::one(&self.client, object).await.unwrap();
    }

    /// Changes an object with a merge patch.
    pub async fn patch(&self, kind: &str, name: &str, patch: &Value) {
        let api: Api<DynamicObject> = match kind {
            "Workload" => Api::namespaced_with(self.client.clone(), self.id, &resource(kind)),
            _ => Api::all_with(self.client.clone(), &resource(kind)),
        };
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    /// Restricts the queue's NodePool to these values of labels.
    pub async fn restrict(&self, labels: &[(&str, &[&str])]) {
        let requirement =
            |(key, values): &(&str, &[&str])| json!({"key": key, "operator": "In", "values": values});
        let requirements: Vec<Value> = labels.iter().map(requirement).collect();
        let patch = json!({"spec": {"template": {"spec": {"requirements": requirements}}}});
        self.patch("NodePool", self.id, &patch).await;
    }

    /// Deletes a cluster-scoped object.
    pub async fn delete(&self, kind: &str, name: &str) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource(kind));
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes an object of the queue's namespace.
    pub async fn delete_in(&self, kind: &str, name: &str) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), self.id, &resource(kind));
        api.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Sets the weather of the queue's NodePool.
    pub async fn weather(&self, rules: &Value) {
        let mut rules = rules.clone();
        for rule in rules.as_array_mut().unwrap() {
            rule["nodePool"] = json!(self.id);
        }
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": WEATHER_NAME},
            "data": {self.id: json!({"rules": rules}).to_string()},
        });
        let resource = resource("ConfigMap");
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), WEATHER_NAMESPACE, &resource);
        // A field manager for each queue, so that none removes another's weather.
        api.patch(WEATHER_NAME, &PatchParams::apply(self.id).force(), &Patch::Apply(&map)).await.unwrap();
    }

    /// Deletes every Job.
    pub async fn delete_jobs(&self) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), self.id, &resource("Job"));
        api.delete_collection(&DeleteParams::background(), &ListParams::default()).await.unwrap();
    }

    async fn list(&self, kind: &str) -> Vec<Value> {
        let resource = resource(kind);
        let (api, params) = if ["NodeClaim", "Node"].contains(&kind) {
            let params = ListParams::default().labels(&format!("{}={}", names::NODEPOOL, self.id));
            (Api::<DynamicObject>::all_with(self.client.clone(), &resource), params)
        } else {
            (Api::namespaced_with(self.client.clone(), self.id, &resource), ListParams::default())
        };
        let objects = api.list(&params).await.unwrap().items;
        objects.into_iter().map(|object| serde_json::to_value(object).unwrap()).collect()
    }

    /// The objects that exist now.
    pub async fn list_all(&self) -> QueueObjects {
        QueueObjects {
            workloads: self.list("Workload").await,
            requests: self.list("ProvisioningRequest").await,
            claims: self.list("NodeClaim").await,
            nodes: self.list("Node").await,
            pods: self.list("Pod").await,
        }
    }
}

/// A condition of an object; null if it has none of this type.
pub fn condition(object: &Value, kind: &str) -> Value {
    let all = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
}

/// Whether a condition of an object is True.
pub fn is(object: &Value, kind: &str) -> bool {
    condition(object, kind)["status"] == "True"
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

impl QueueObjects {
    fn is_empty(&self) -> bool {
        [&self.workloads, &self.requests, &self.claims, &self.nodes, &self.pods]
            .iter()
            .all(|all| all.is_empty())
    }

    /// Whether there is this number of Workloads, and a condition of each is True.
    pub fn all_are(&self, workloads: usize, kind: &str) -> bool {
        self.workloads.len() == workloads && self.workloads.iter().all(|workload| is(workload, kind))
    }

    /// Whether this number of pods runs.
    pub fn runs(&self, pods: usize) -> bool {
        self.pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count() == pods
    }

    /// The journal of the first request under the check of this name; empty if there is none.
    pub fn journal(&self, check: &str) -> String {
        let journal =
            self.requests.first().map(|r| r["metadata"]["annotations"][names::journal_key(check)].clone());
        journal.unwrap_or_default().as_str().unwrap_or_default().to_owned()
    }

    /// The UIDs of the NodeClaims, sorted.
    pub fn claim_uids(&self) -> Vec<String> {
        let mut all: Vec<String> = self.claims.iter().map(|c| c["metadata"]["uid"].to_string()).collect();
        all.sort();
        all
    }
}
