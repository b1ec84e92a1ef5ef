//! Nodes that differ from their NodeClaims, in the embedded cluster: they have taints of their own, or
//! unforeseeable DaemonSets run on them.

use crate::world;
use serde_json::{Value, json};
use setu::cli::cluster::{ClusterObjects, ClusterReader, Scope};
use setu::cli::find;
use setu::cli::render::explanation;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu::telemetry::metrics;
use setu_sim::api::{Preconditions, User, kinds};
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "nodes";

struct Stage {
    cluster: SimCluster,
    admin: User,
    setu: Setu,
}

impl Stage {
    /// The buffer time of one minute lets a test change nodes after they are up.
    fn new(policy: &str) -> Self {
        let defaults = format!("defaults: {{strategy: {{bufferTime: 1m}}{policy}}}");
        let (mut cluster, admin) = world::cluster(ID, world::policy(&defaults));
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, admin, setu }
    }

    /// Submits a gang of two pods with these tolerations, and waits until its nodes are up.
    async fn submit(&self, tolerations: &Value) {
        let mut job = world::job(ID, "gang", 2, Some("20m"));
        job["spec"]["template"]["spec"]["tolerations"] = tolerations.clone();
        self.admin.create(&kinds::JOB, job).unwrap();
        let up = |s: &Self| s.claims().iter().filter(|claim| world::is(claim, "Initialized")).count() == 2;
        self.until("its nodes are up", up).await;
    }

    fn claims(&self) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::NODE_CLAIM)
    }

    fn message(&self) -> String {
        self.admin.list(&kinds::WORKLOAD)[0]["status"]["admissionChecks"][0]["message"].to_string()
    }

    /// The output of `setu explain` about the gang.
    async fn explained(&self) -> String {
        let reader = ClusterReader {
            client: self.cluster.client("admin"),
            scope: Scope::Namespace(ID.to_owned()),
            controller_name: scenario::controller_name_of(ID),
        };
        let read = find::read(&reader, "gang").await.unwrap();
        let objects = ClusterObjects { now: self.cluster.clock.now(), ..read };
        let gangs = find::gangs(&reader, &objects, "gang").await.unwrap();
        anstream::adapter::strip_str(&explanation::explain(&gangs[0], objects.now)).to_string()
    }

    fn is_admitted(&self) -> bool {
        self.admin.list(&kinds::WORKLOAD).iter().any(|workload| world::is(workload, "Admitted"))
    }

    fn running(&self) -> usize {
        self.admin.list(&kinds::POD).iter().filter(|pod| pod["status"]["phase"] == "Running").count()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_mins(10), Duration::from_millis(100), || holds(self)).await;
        assert!(came, "not within ten minutes: {what}; {}", self.message());
    }

    /// Gives each Node a taint that no NodeClaim has.
    fn taint(&self) {
        for node in self.admin.list(&kinds::NODE) {
            let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            taints.push(json!({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}));
            let name = node["metadata"]["name"].as_str().unwrap();
            self.admin.merge(&kinds::NODE, "", name, &json!({"spec": {"taints": taints}})).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_nodes_add_delays_only_gangs_that_do_not_name_it() {
    for tolerations in [
        json!([{"key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}]),
        json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]),
    ] {
        let stage = Stage::new("");
        stage.submit(&tolerations).await;
        stage.taint();
        stage.until("its pods run", |s| s.is_admitted() && s.running() == 2).await;
        let explained = stage.explained().await;
        assert!(!explained.contains("waits for taint"), "{explained}");
    }
    for tolerations in [json!([]), json!([{"operator": "Exists"}])] {
        let stage = Stage::new("");
        stage.submit(&tolerations).await;
        stage.taint();
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(!stage.is_admitted());
        assert!(stage.message().contains("nvidia.com/gpu"), "{}", stage.message());
    }
}

/// A DaemonSet that requests this many CPUs on nodes with a feature discovery label.
fn discovered(cpus: &str) -> Value {
    let requests = json!({"requests": {"cpu": cpus}});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": ID, "name": "late"},
        "spec": {
            "selector": {"matchLabels": {"app": "late"}},
            "template": {"metadata": {"labels": {"app": "late"}}, "spec": {
                "nodeSelector": {"feature.node.kubernetes.io/pci-10de.present": "true"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "none", "resources": requests}],
            }},
        },
    })
}

/// Its pod on this node, as created by the DaemonSet controller and bound by the scheduler.
fn pod_of(daemon_set: &Value, node: &str) -> Value {
    let mut spec = daemon_set["spec"]["template"]["spec"].clone();
    spec["nodeName"] = json!(node);
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": daemon_set["metadata"]["name"],
        "uid": daemon_set["metadata"]["uid"], "controller": true,
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": ID, "name": format!("late-{node}"), "ownerReferences": [owner]}, "spec": spec,
    })
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_for_a_later_label_is_planned_for_in_fill_mode_and_delays_ready_otherwise() {
    // With one node per pod, no gang is admitted to a node without room.
    let stage = Stage::new("");
    let daemon_set = stage.admin.create(&kinds::DAEMON_SET, discovered("191500m")).unwrap();
    stage.submit(&json!([])).await;
    for claim in stage.claims() {
        assert_eq!(claim["spec"]["resources"]["requests"]["cpu"], "1");
        let node = claim["status"]["nodeName"].as_str().unwrap();
        stage.admin.create(&kinds::POD, pod_of(&daemon_set, node)).unwrap();
    }
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!stage.is_admitted());
    let message = stage.message();
    assert!(message.contains("whose DaemonSet and static pods take too much"), "{message}");
    for claim in stage.claims() {
        let pod = format!("late-{}", claim["status"]["nodeName"].as_str().unwrap());
        stage.admin.delete(&kinds::POD, ID, &pod, Preconditions::default()).unwrap();
    }
    stage.until("its pods run", |s| s.is_admitted() && s.running() == 2).await;

    let stage = Stage::new(", packing: {mode: Fill}");
    stage.admin.create(&kinds::DAEMON_SET, discovered("100")).unwrap();
    let job = world::job(ID, "gang", 2, Some("20m"));
    stage.admin.create(&kinds::JOB, job).unwrap();
    stage.until("its NodeClaims are there", |s| !s.claims().is_empty()).await;
    for claim in stage.claims() {
        let cpus = claim["spec"]["resources"]["requests"]["cpu"].as_str().unwrap().to_owned();
        assert!(["101", "102"].contains(&cpus.as_str()), "{cpus}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_recreated_pod_that_stays_unbound_after_admission_is_reported() {
    let recorder = metrics::recorder().unwrap();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let stage = Stage::new("");
    stage.submit(&json!([])).await;
    stage.until("its pods run", |s| s.is_admitted() && s.running() == 2).await;
    let events =
        |s: &Stage| s.admin.list(&kinds::EVENT).iter().filter(|e| e["reason"] == "PodsUnbound").count();
    // Every pod was bound at the first check.
    tokio::time::sleep(Duration::from_mins(3)).await;
    for node in stage.admin.list(&kinds::NODE) {
        let name = node["metadata"]["name"].as_str().unwrap();
        stage.admin.merge(&kinds::NODE, "", name, &json!({"spec": {"unschedulable": true}})).unwrap();
    }
    let pod = &stage.admin.list(&kinds::POD)[0];
    let mut anew =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "spec": pod["spec"]});
    anew["metadata"]["name"] = json!("anew");
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        anew["metadata"].as_object_mut().unwrap().remove(key);
    }
    anew["spec"].as_object_mut().unwrap().remove("nodeName");
    stage.admin.create(&kinds::POD, anew.clone()).unwrap();
    assert_eq!(events(&stage), 0);
    stage.until("it is reported", |s| events(s) == 1).await;
    stage.admin.delete(&kinds::POD, ID, "anew", Preconditions::default()).unwrap();
    anew["metadata"]["name"] = json!("another");
    stage.admin.create(&kinds::POD, anew).unwrap();
    stage.until("that is reported too", |s| events(s) == 2).await;
    stage.setu.context.set_gauges();
    let page = recorder.handle().render();
    assert!(page.lines().any(|line| line == "setu_gangs_with_unbound_pods 1"), "{page}");
}

/// A gang of two pods with two devices each by a ResourceClaimTemplate that does not exist yet, on nodes with this weather.
fn gang_without_template(policy: &str, rules: &Value) -> Stage {
    let entry = "{deviceClass: gpu.example.com, driver: gpu.example.com, perNode: 2}";
    let stage = Stage::new(&format!(", devices: [{entry}]{policy}"));
    world::weather(&stage.admin, rules);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.example.com"}, "spec": {},
    });
    stage.admin.create(&kinds::DEVICE_CLASS, class).unwrap();
    let mut job = world::job(ID, "gang", 2, Some("20m"));
    let spec = &mut job["spec"]["template"]["spec"];
    spec["resourceClaims"] = json!([{"name": "gpus", "resourceClaimTemplateName": "two"}]);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}, "claims": [{"name": "gpus"}]});
    stage.admin.create(&kinds::JOB, job).unwrap();
    stage
}

/// Its template.
fn template() -> Value {
    let exactly = json!({"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 2});
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"namespace": ID, "name": "two"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
    })
}

/// The same gang with its template, once its nodes are up.
async fn gang_with_devices(policy: &str, rules: &Value) -> Stage {
    let stage = gang_without_template(policy, rules);
    stage.admin.create(&kinds::RESOURCE_CLAIM_TEMPLATE, template()).unwrap();
    let up = |s: &Stage| s.claims().iter().filter(|claim| world::is(claim, "Initialized")).count() == 2;
    stage.until("its nodes are up", up).await;
    stage
}

#[tokio::test(start_paused = true)]
async fn gang_with_device_claims_is_admitted_once_drivers_have_published_the_devices() {
    let rules = json!([{"devices": {"gpu.example.com": 2}, "devicesDelay": "3m"}]);
    let stage = gang_with_devices("", &rules).await;
    for claim in stage.claims() {
        let requests = claim["spec"]["resources"]["requests"].as_object().unwrap();
        assert!(requests.keys().all(|key| !key.contains('/')), "{requests:?}");
        assert_eq!(claim["metadata"]["annotations"]["karpenter.sh/requested-dra-drivers"], "gpu.example.com");
    }
    let waits =
        |s: &Stage| s.message().contains("driver gpu.example.com to publish its ResourceSlices, on node");
    stage.until("it waits for the driver", waits).await;
    assert!(stage.admin.list(&kinds::RESOURCE_SLICE).is_empty() && !stage.is_admitted());
    let explained = stage.explained().await;
    for slot in 0..2 {
        let waits = format!(
            "slot {slot:<3} waits for driver gpu.example.com to publish its ResourceSlices, on node node-setu-"
        );
        assert!(explained.contains(&waits), "{explained}");
    }
    stage.until("its pods run", |s| s.running() == 2).await;
    assert_eq!(stage.admin.list(&kinds::RESOURCE_SLICE).len(), 2);

    stage.admin.delete(&kinds::JOB, ID, "gang", Preconditions::default()).unwrap();
    let gone = |s: &Stage| s.claims().is_empty() && s.admin.list(&kinds::RESOURCE_SLICE).is_empty();
    stage.until("its nodes are gone", gone).await;
}

#[tokio::test(start_paused = true)]
async fn gang_gets_its_nodes_within_a_minute_after_a_missing_template_is_created() {
    let stage = gang_without_template("", &json!([{"devices": {"gpu.example.com": 2}}]));
    tokio::time::sleep(Duration::from_mins(3)).await;
    let missing = "uses ResourceClaimTemplate two, which does not exist; create it";
    assert!(stage.message().contains(missing) && stage.claims().is_empty(), "{}", stage.message());
    stage.admin.create(&kinds::RESOURCE_CLAIM_TEMPLATE, template()).unwrap();
    // Kueue needs a moment to reserve quota again.
    tokio::time::sleep(Duration::from_secs(75)).await;
    assert_eq!(stage.claims().len(), 2, "{}", stage.message());
    stage.until("its pods run", |s| s.is_admitted() && s.running() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn attempt_fails_if_a_driver_publishes_nothing_or_too_few_devices() {
    let too_few = json!([{"devices": {"gpu.example.com": 1}}]);
    for (rules, why) in [
        (json!([]), "driver gpu.example.com to publish its ResourceSlices"),
        (too_few, "driver gpu.example.com to publish enough devices: 1 of 2 in its ResourceSlices"),
    ] {
        let policy =
            ", deadlines: {gang: 4m}, retry: {onExhausted: Reject, inCheck: {limit: 0}, yield: {limit: 0}}";
        let stage = gang_with_devices(policy, &rules).await;
        stage.until("it is given up", |s| s.claims().is_empty()).await;
        assert!(stage.message().contains(why), "{}", stage.message());
        assert!(!stage.is_admitted());
        assert!(stage.admin.list(&kinds::NODE).is_empty());
    }
}
