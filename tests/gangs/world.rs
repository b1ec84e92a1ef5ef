//! The embedded cluster for tests that run gangs in virtual time: a GPU NodePool and a CPU NodePool, a
//! ClusterQueue with its check, and a LocalQueue `queue`. All are named after the test.

use serde::Deserialize as _;
use serde_json::{Value, json};
use setu::policy::PolicyFile;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::actors::machines::RUN_FOR;
use setu_sim::api::{User, kinds};
use setu_sim::weather::WeatherRule;
use std::time::Duration;
use tokio::time::Instant;

/// When it starts.
pub const START: &str = "2026-01-01T00:00:00Z";

/// A policy file with these lines.
pub fn policy(lines: &str) -> PolicyFile {
    let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{lines}");
    PolicyFile::parse(&text).unwrap()
}

/// A cluster in which everything is named `id`, without Setu, and its administrator.
pub fn cluster(id: &str, policy: PolicyFile) -> (SimCluster, User) {
    let clock = Clock::starting_at(START.parse().unwrap());
    let cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(id), policy);
    let admin = cluster.server.user("admin");
    for object in scenario::objects(id, 100).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    (cluster, admin)
}

/// Creates parameters with this spec and makes the check use them.
pub fn parameters(admin: &User, id: &str, spec: &Value) {
    let object = json!({
        "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "ProvisioningParameters",
        "metadata": {"name": id}, "spec": spec,
    });
    admin.create(&kinds::PROVISIONING_PARAMETERS, object).unwrap();
    let named = json!({"apiGroup": "setu.kueue.x-k8s.io", "kind": "ProvisioningParameters", "name": id});
    admin.merge(&kinds::ADMISSION_CHECK, "", id, &json!({"spec": {"parameters": named}})).unwrap();
}

/// Creates a check of this controller.
pub fn create_check(admin: &User, name: &str, controller: &str) {
    let check = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": name},
        "spec": {"controllerName": controller},
    });
    admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
}

/// Creates a check of another controller, and makes it active.
pub fn create_active_check(admin: &User, name: &str, controller: &str) {
    create_check(admin, name, controller);
    let active = json!({"status": {"conditions": [{
        "type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": START,
    }]}});
    admin.merge_status(&kinds::ADMISSION_CHECK, "", name, &active).unwrap();
}

/// Makes these the checks of the ClusterQueue.
pub fn set_checks(admin: &User, id: &str, checks: &[&str]) {
    let checks: Vec<Value> = checks.iter().map(|name| json!({"name": name})).collect();
    let checks = json!({"spec": {"admissionChecksStrategy": {"admissionChecks": checks}}});
    admin.merge(&kinds::CLUSTER_QUEUE, "", id, &checks).unwrap();
}

/// Gives the flavor of the GPU nodes a topology of racks.
pub fn add_racks(admin: &User, id: &str) {
    let topology = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology", "metadata": {"name": "racks"},
        "spec": {"levels": [{"nodeLabel": "example.com/rack"}, {"nodeLabel": "kubernetes.io/hostname"}]},
    });
    admin.create(&kinds::TOPOLOGY, topology).unwrap();
    admin.merge(&kinds::RESOURCE_FLAVOR, "", id, &json!({"spec": {"topologyName": "racks"}})).unwrap();
}

/// Starts weather in the cloud.
pub fn weather(admin: &User, rules: &Value) {
    // The cluster ignores rules that it cannot read.
    Vec::<WeatherRule>::deserialize(rules).unwrap();
    let weather = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
        "data": {"test": json!({"rules": rules}).to_string()},
    });
    admin.create(&kinds::CONFIG_MAP, weather).unwrap();
}

/// Ends the weather that [`weather`] began.
pub fn calm(admin: &User) {
    let calm = json!({"data": {"test": json!({"rules": []}).to_string()}});
    admin.merge(&kinds::CONFIG_MAP, "kube-system", "weather", &calm).unwrap();
}

/// A Job of this many pods with one GPU each, which run for this long, or forever.
pub fn job(id: &str, name: &str, pods: usize, run_for: Option<&str>) -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let annotations = run_for.map_or_else(|| json!({}), |time| json!({RUN_FOR: time}));
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": id, "name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": pods, "completions": pods, "suspend": true, "template": {
            "metadata": {"annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
            ]},
        }},
    })
}

/// A Workload as Kueue creates it for an elastic Job of this many pods. It replaces another slice if one is named.
pub fn slice(id: &str, job: &Value, name: &str, pods: usize, replaces: Option<&str>) -> Value {
    let mut annotations = json!({"kueue.x-k8s.io/elastic-job": "true"});
    if let Some(before) = replaces {
        annotations["kueue.x-k8s.io/workload-slice-replacement-for"] = json!(format!("{id}/{before}"));
    }
    let template = &job["spec"]["template"];
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "namespace": id, "name": name, "annotations": annotations,
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"],
                "uid": job["metadata"]["uid"], "controller": true,
            }],
        },
        "spec": {
            "queueName": "queue", "active": true, "priority": 0,
            "podSets": [{"name": "main", "count": pods, "template": template}],
        },
    })
}

/// A second installation of Setu, with a controller name and a check of its own.
pub fn another_setu(cluster: &mut SimCluster, admin: &User) -> Setu {
    let controller_name = "example.com/another";
    create_check(admin, "another", controller_name);
    cluster.start_setu(&Start { controller_name: Some(controller_name.to_owned()), ..Start::default() })
}

/// Waits until this holds, and looks this often. Returns false if it does not within the limit.
pub async fn until(limit: Duration, step: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(step).await;
    }
}

/// Whether a condition of this object is True.
pub fn is(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

/// Runs this on a runtime of its own, whose clock jumps to the next timer.
pub fn in_virtual_time<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(work)
}
