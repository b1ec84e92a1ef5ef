//! Applies the examples unchanged to the real control plane, and runs them to their end. The scenarios cover kept
//! nodes, which need one more permission.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::api::pod::Container;
use ::setu::api::workload::PodSet;
use ::setu::api::{NodeClaim, Workload};
use ::setu::cli::plan::{manifest, pod_group};
use ::setu::names;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use setu::Setu;
use setu_e2e::{HarnessLayout, KUEUE_NAMESPACE, Stack, StackJobKinds, StackOptions, apply};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const POLICY: &str = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";

/// File, number of running pods, whether they end by themselves, and the message for a gang that gets no node.
type Example = (&'static str, usize, bool, &'static str);

const EXAMPLES: [Example; 12] = [
    ("gang-of-four.yaml", 4, true, ""),
    ("jobset.yaml", 5, true, ""),
    ("leader-worker-set.yaml", 4, false, ""),
    ("cpu-gang.yaml", 3, true, ""),
    ("indexed-job.yaml", 2, true, ""),
    ("pod-group.yaml", 4, true, ""),
    ("one-zone.yaml", 3, true, ""),
    ("spot-then-on-demand.yaml", 3, true, ""),
    ("budget-gate.yaml", 2, true, "the gang takes 6.50 USD an hour, and gates.budget allows 5 USD"),
    ("compliance-gate.yaml", 2, true, "does not have the labels that gates.placement.namespaces asks for"),
    ("jupyterhub.yaml", 1, true, ""),
    (DEVICES, 2, true, ""),
];

/// Examples of kinds that other operators serve, and of kinds of Kubernetes that Kueue treats as pods.
const FRAMEWORKS: [Example; 13] = [
    ("frameworks/ray-job.yaml", 4, true, ""),
    ("frameworks/ray-cluster.yaml", 3, false, ""),
    ("frameworks/pytorch-job.yaml", 3, true, ""),
    ("frameworks/tf-job.yaml", 4, true, ""),
    ("frameworks/xgboost-job.yaml", 3, true, ""),
    ("frameworks/paddle-job.yaml", 2, true, ""),
    ("frameworks/jax-job.yaml", 2, true, ""),
    ("frameworks/mpi-job.yaml", 3, true, ""),
    ("frameworks/train-job.yaml", 2, true, ""),
    ("frameworks/app-wrapper.yaml", 2, true, ""),
    ("frameworks/spark-application.yaml", 3, true, ""),
    ("frameworks/stateful-set.yaml", 3, false, ""),
    ("frameworks/deployment.yaml", 2, false, ""),
];

/// One example has to fall back to on-demand with this, and the Nodes of another get their devices.
const WEATHER: &str = "{rules: [{nodePool: spot-first, capacityType: spot, capacity: 1}, \
    {nodePool: devices, devices: {gpu.example.com: 2}}]}";
/// The example with a part of Kueue's configuration in a comment.
const DEVICES: &str = "devices/gang.yaml";

struct Play {
    client: Client,
    setu: Setu,
    /// The administrator's.
    kubeconfig: PathBuf,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Play {
    async fn until(&self, what: &str, mut so: impl AsyncFnMut(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_mins(2);
        while !so(self).await {
            assert!(Instant::now() < deadline, "not so: {what}\n{}", self.setu.log_tail(20));
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// The Nodes of all of Setu's NodeClaims.
    async fn nodes(&self) -> BTreeSet<String> {
        let claims: Api<NodeClaim> = Api::all(self.client.clone());
        let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let claims = claims.list(&ours).await.unwrap().items;
        claims.iter().map(|c| c.node_name().unwrap_or_default().to_owned()).collect()
    }

    /// The Node of each running pod.
    async fn used(&self) -> Vec<String> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let pods = pods.list(&ListParams::default()).await.unwrap().items;
        let runs = |p: &Pod| p.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
        pods.into_iter().filter(runs).filter_map(|p| p.spec?.node_name).collect()
    }

    /// Whether an Event contains these words.
    async fn event_contains(&self, words: &str) -> bool {
        let events: Api<Event> = Api::all(self.client.clone());
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.iter().any(|e| e.message.as_ref().is_some_and(|m| m.contains(words)))
    }

    /// Compares the Workloads that Kueue made of this object, or of a group of pods, with the planned one, and has the first
    /// object explained.
    async fn is_as_planned(&self, objects: &[Value], runtimes: &[Value]) {
        let object = &objects[0];
        let named =
            format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        let workloads: Api<Workload> = Api::all(self.client.clone());
        let all = workloads.list(&ListParams::default()).await.unwrap().items;
        let is_group = pod_group::name(object).is_some();
        let planned = if is_group {
            pod_group::workload(objects)
        } else {
            manifest::workload(object.clone(), runtimes)
        };
        let compared = |w: &Workload| if is_group { without_names(pod_sets(w)) } else { pod_sets(w) };
        let planned = compared(&planned.unwrap());
        let made: Vec<_> = all.iter().filter(|w| !w.is("Finished")).map(compared).collect();
        assert!(
            !made.is_empty() && made.iter().all(|made| *made == planned),
            "{named}: {made:#?}\nplanned: {planned:#?}"
        );
        let mut explain = Command::new(setu::binary().unwrap());
        explain.args(["explain", &named]).env("KUBECONFIG", &self.kubeconfig);
        let output = explain.output().unwrap();
        assert!(output.status.success(), "{named}: {}", String::from_utf8_lossy(&output.stderr));
        let explained = String::from_utf8_lossy(&output.stdout);
        assert!(explained.starts_with("Workload ") && explained.contains("\nState "), "{named}: {explained}");
    }

    async fn runs_to_its_end(&self, file: &str, pods: usize, ends: bool, refusal: &str) {
        let text = std::fs::read_to_string(root().join("examples").join(file)).unwrap();
        let objects = apply::documents(&text).unwrap();
        // The submitted objects need all other objects of the example.
        let is_submitted = |object: &Value| object["metadata"]["labels"][names::QUEUE].is_string();
        let (submitted, needed): (Vec<Value>, Vec<Value>) = objects.into_iter().partition(is_submitted);
        apply::all(&self.client, needed.clone()).await.unwrap();
        let mut stored = Vec::new();
        for object in submitted.clone() {
            stored.push(apply::one(&self.client, object).await.unwrap());
        }
        self.until(&format!("{file} runs on nodes of its own"), async |play| {
            let used = play.used().await;
            used.len() == pods && used.into_iter().collect::<BTreeSet<_>>() == play.nodes().await
        })
        .await;
        // Of an example with a refused gang, Kueue makes several Workloads.
        if refusal.is_empty() {
            self.is_as_planned(&submitted, &needed).await;
        }
        if ends {
            let workloads: Api<Workload> = Api::all(self.client.clone());
            self.until(&format!("{file} has finished"), async |_| {
                let all = workloads.list(&ListParams::default()).await.unwrap().items;
                let unfinished = all.iter().filter(|w| !w.is("Finished")).count();
                !all.is_empty() && unfinished == usize::from(!refusal.is_empty())
            })
            .await;
            self.until(&format!("{file} has given its nodes back"), async |p| p.nodes().await.is_empty())
                .await;
        }
        if !refusal.is_empty() {
            self.until(&format!("{file}: {refusal}"), async |play| play.event_contains(refusal).await).await;
        }
        for object in stored {
            let api = apply::api_for(&self.client, &object).await.unwrap();
            // A pod of a group may have been deleted with the others.
            let _ = api.delete(&object.name_any(), &DeleteParams::foreground()).await;
            self.until(&format!("{file} is gone with its nodes"), async |play| {
                api.get_opt(&object.name_any()).await.unwrap().is_none() && play.nodes().await.is_empty()
            })
            .await;
        }
    }
}

/// Name, number of pods, and the requests of each container of a pod set.
type ComparedSet = (String, i32, Vec<Value>);

/// The fields on which a plan and Kueue must agree: each pod set's name, its number of pods, and the requests of each container.
/// Without a request, the limit counts: the API server makes it the request only in pods.
fn pod_sets(workload: &Workload) -> Vec<ComparedSet> {
    let requested = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        let mut all = resources.limits.unwrap_or_default();
        all.extend(resources.requests.unwrap_or_default());
        json!(all)
    };
    let of_set = |set: &PodSet| set.template.spec.containers.iter().map(requested).collect();
    workload.spec.pod_sets.iter().map(|set| (set.name.clone(), set.count, of_set(set))).collect()
}

/// The same without names, in an order that does not depend on them: Kueue names the pod sets of a group by hashes.
fn without_names(mut sets: Vec<ComparedSet>) -> Vec<ComparedSet> {
    for (name, ..) in &mut sets {
        name.clear();
    }
    sets.sort_by_key(|set| format!("{set:?}"));
    sets
}

#[test]
fn the_test_clusters_kueue_maps_device_classes_as_the_example_says() {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    let example = read(root().join("examples").join(DEVICES));
    let block: Vec<&str> = example.lines().filter_map(|line| line.strip_prefix("#   ")).collect();
    let shown: Value = serde_yaml::from_str(&block.join("\n")).unwrap();
    let config = read(HarnessLayout::default().manifest("kueue-config.yaml"));
    let config: Value = serde_yaml::from_str(&config).unwrap();
    assert_eq!(shown["resources"], config["resources"]);
    assert!(shown["resources"].is_object(), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_run_to_their_end_on_the_real_control_plane() {
    run_all(&EXAMPLES, StackJobKinds::Sets).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "the operators take long to build: `just e2e-frameworks`"]
async fn examples_of_frameworks_run_to_their_end_with_their_operators() {
    run_all(&FRAMEWORKS, StackJobKinds::Frameworks).await;
}

async fn run_all(examples: &[Example], job_kinds: StackJobKinds) {
    let apply = vec![root().join("examples/setup"), root().join("manifests/rbac.yaml")];
    let options = StackOptions { apply, job_kinds, ..StackOptions::default() };
    let stack = Stack::start(options).await.unwrap();
    let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
    let folder = stack.folder().join("setu");
    let mut setu = Setu::new(&kubeconfig, names::CONTROLLER_NAME, POLICY, &folder).unwrap();
    setu.start(None).unwrap();
    let play = Play { client: stack.client().unwrap(), setu, kubeconfig: stack.kubeconfig().to_owned() };
    let weather = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weather", "namespace": "kube-system"},
        "data": {"examples": WEATHER},
    });
    apply::one(&play.client, weather).await.unwrap();
    for (file, pods, ends, refusal) in examples.iter().copied() {
        play.runs_to_its_end(file, pods, ends, refusal).await;
    }
    drop(play);
    stack.stop();
}
