//! The third front-end on the embedded cluster: gangs of ProvisioningRequests that a client other than Kueue makes.

use crate::world::{self, in_virtual_time, is};
use axum::body::Bytes;
use jiff::Timestamp;
use serde::Deserialize as _;
use serde_json::{Value, json};
use setu::app::uninstall;
use setu::cluster::lease::Timing;
use setu::controllers::context::Options;
use setu::gang::release::uninstall::RunningNodes;
use setu::names;
use setu::sim::cluster::{Election, Setu, SimCluster, Start};
use setu::sim::scenario;
use setu_sim::actors::machines::RUN_FOR;
use setu_sim::api::kinds::{self, ServedKind};
use setu_sim::api::{Caller, Change, Observer, Preconditions, User};
use setu_sim::faults::WriteFault;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ID: &str = "standalone";
const SERVED: Options = Options { workload_finalizer: true, tas_compat: false, provisioning_requests: true };
/// Name of the request.
const BATCH: &str = "batch";

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    /// A queue with a check of Setu's, and a PodTemplate.
    fn new(defaults: &str) -> Self {
        Self::with_fault(None, defaults)
    }

    /// The same with a fault at one of Setu's writes.
    fn with_fault(plan: Option<(usize, WriteFault)>, defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        let setu = cluster.start_setu(&Start { options: SERVED, plan, ..Start::default() });
        let stage = Self { cluster, setu, admin };
        stage.create_template();
        stage
    }

    /// The same with a request that has its nodes.
    async fn provisioned(defaults: &str) -> Self {
        let stage = Self::new(defaults);
        stage.request();
        stage.until_provisioned().await;
        stage
    }

    fn create_template(&self) {
        let template = json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"namespace": ID, "name": "workers"},
            "template": pods_like(&json!({})),
        });
        self.admin.create(&kinds::POD_TEMPLATE, template).unwrap();
    }

    /// Requests nodes for two pods.
    fn request(&self) {
        self.request_for(&json!([{"count": 2, "podTemplateRef": {"name": "workers"}}]));
    }

    fn request_for(&self, pod_sets: &Value) {
        self.request_with(&json!({(names::QUEUE): "queue"}), pod_sets);
    }

    fn request_with(&self, labels: &Value, pod_sets: &Value) {
        let request = json!({
            "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest",
            "metadata": {"namespace": ID, "name": BATCH, "labels": labels},
            "spec": {"provisioningClassName": names::REQUEST_CLASS, "podSets": pod_sets},
        });
        self.admin.create(&kinds::PROVISIONING_REQUEST, request).unwrap();
    }

    fn all(&self, kind: &'static ServedKind) -> Vec<Arc<Value>> {
        self.admin.list(kind)
    }

    fn claims(&self) -> usize {
        self.all(&kinds::NODE_CLAIM).len()
    }

    fn workload(&self) -> Option<Arc<Value>> {
        self.all(&kinds::WORKLOAD).into_iter().next()
    }

    fn status(&self) -> Value {
        let request = self.admin.get(&kinds::PROVISIONING_REQUEST, ID, BATCH);
        request.and_then(|request| request.get("status").cloned()).unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> Value {
        let all = self.status()["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
    }

    /// The reasons of the Events on the request.
    fn reasons(&self) -> BTreeSet<String> {
        let events = self.all(&kinds::EVENT);
        let of = |event: &&Arc<Value>| {
            event["regarding"]["kind"] == "ProvisioningRequest" && event["regarding"]["name"] == BATCH
        };
        events.iter().filter(of).filter_map(|event| Some(event["reason"].as_str()?.to_owned())).collect()
    }

    fn is(&self, kind: &str) -> bool {
        self.condition(kind)["status"] == "True"
    }

    /// Creates the pods of the client on the nodes of the request. They run for this long.
    fn run_pods(&self, run_for: &str) {
        let gang = self.status()["provisioningClassDetails"]["gang"].clone();
        for number in 0..2 {
            let mut pod = pods_like(&json!({(names::GANG): gang}));
            pod["apiVersion"] = json!("v1");
            pod["kind"] = json!("Pod");
            pod["metadata"] = json!({
                "namespace": ID, "name": format!("worker-{number}"),
                "annotations": {(RUN_FOR): run_for, (names::CONSUMES): BATCH},
            });
            self.admin.create(&kinds::POD, pod).unwrap();
        }
    }

    fn delete(&self, kind: &'static ServedKind, name: &str) {
        self.admin.delete(kind, ID, name, Preconditions::default()).unwrap();
    }

    fn delete_pods(&self) {
        for pod in ["worker-0", "worker-1"] {
            self.delete(&kinds::POD, pod);
        }
    }

    /// Kills Setu and uninstalls it. Returns how many Workloads it deletes and keeps, and how many requests fail.
    async fn uninstall(&self, nodes: RunningNodes) -> [usize; 3] {
        self.setu.kill();
        let (client, controller) = (self.cluster.client("admin"), scenario::controller_name_of(ID));
        let plan = uninstall::plan(&client, &controller, nodes).await.unwrap();
        let found = [plan.created.len(), plan.kept.len(), plan.open_requests.len()];
        uninstall::carry_out(&client, &controller, plan, nodes, Duration::from_mins(5)).await.unwrap();
        found
    }

    async fn until(&self, what: &str, seconds: u64, mut holds: impl FnMut(&Self) -> bool) {
        let limit = Duration::from_secs(seconds);
        let came = world::until(limit, Duration::from_millis(10), || holds(self)).await;
        assert!(came, "not within {seconds} s: {what}; {}", self.seen());
    }

    /// The objects, for the message of a test that fails.
    fn seen(&self) -> String {
        format!("{} claims; {:#}; {:#?}", self.claims(), self.status(), self.workload())
    }

    /// Waits until this holds, and starts another Setu when a fault has killed one.
    async fn until_despite_kills(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_mins(10), Duration::from_millis(100), || {
            if !self.cluster.deaths().is_empty() {
                self.setu = self.cluster.start_setu(&Start { options: SERVED, ..Start::default() });
            }
            holds(self)
        });
        assert!(came.await, "{what}: {}", self.seen());
    }

    async fn until_provisioned(&self) {
        self.until("it is provisioned", 300, |s| s.is("Provisioned")).await;
    }

    async fn until_pods_run(&self) {
        let run = |s: &Self| s.all(&kinds::POD).iter().all(|pod| pod["status"]["phase"] == "Running");
        self.until("both pods run", 60, run).await;
    }

    async fn until_nothing_is_left(&self) {
        self.until("no Workload and no node is left", 300, |s| s.workload().is_none() && s.claims() == 0)
            .await;
    }
}

/// A pod or its template, for nodes with these labels. It tolerates the taint of gangs.
fn pods_like(node_selector: &Value) -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    json!({"spec": {
        "restartPolicy": "Never", "nodeSelector": node_selector,
        "tolerations": [{"key": names::GANG, "operator": "Exists"}],
        "containers": [{"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}}],
    }})
}

#[tokio::test(start_paused = true)]
async fn a_client_gets_nodes_for_its_pods_and_they_go_when_the_pods_have_succeeded() {
    let stage = Stage::new("{}");
    stage.request();
    stage.until("progress is reported", 60, |s| s.condition("Provisioned")["status"] == "False").await;
    assert!(stage.is("Accepted"));
    stage.until_provisioned().await;
    let claims = stage.all(&kinds::NODE_CLAIM);
    let details = stage.status()["provisioningClassDetails"].clone();
    assert_eq!(details["gang"], claims[0]["metadata"]["labels"][names::GANG]);
    assert_eq!((details["nodePool"].as_str(), details["count"].as_str()), (Some(ID), Some("2")));
    let taints = claims[0]["spec"]["taints"].to_string();
    assert!(taints.contains(names::GANG), "the pods tolerate it: {taints}");
    let workload = stage.workload().unwrap();
    stage.until("Kueue need not wait for pods", 60, |s| is(&s.workload().unwrap(), "PodsReady")).await;
    assert_eq!(workload["metadata"]["name"], "provisioningrequest-batch");
    stage.until("the request has the gang's Events", 60, |s| s.reasons().contains("GangReady")).await;
    stage.run_pods("20m");
    stage.until_pods_run().await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.claims(), 2);
    stage.until("the nodes are given back", 900, |s| s.is("BookingExpired")).await;
    assert_eq!(stage.condition("BookingExpired")["reason"], "PodsSucceeded");
    assert!(stage.is("Provisioned"), "it was met");
    stage.until_nothing_is_left().await;
    assert_eq!(stage.status()["provisioningClassDetails"], details);
}

#[tokio::test(start_paused = true)]
async fn a_request_has_the_priority_of_the_class_that_its_label_names() {
    let stage = Stage::new("{}");
    stage.request_with(
        &json!({(names::QUEUE): "queue", (names::PRIORITY_CLASS): "urgent"}),
        &json!([{"count": 2, "podTemplateRef": {"name": "workers"}}]),
    );
    let message = "WorkloadPriorityClass urgent does not exist";
    stage.until("it waits for its class", 60, |s| s.condition("Provisioned")["message"] == message).await;
    assert!(stage.workload().is_none());
    let class = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "urgent"}, "value": 1_000,
    });
    stage.admin.create(&kinds::WORKLOAD_PRIORITY_CLASS, class).unwrap();
    stage.until_provisioned().await;
    let spec = stage.workload().unwrap()["spec"].clone();
    let class = json!({"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": "urgent"});
    assert_eq!((&spec["priority"], &spec["priorityClassRef"]), (&json!(1_000), &class));
}

/// Counts the lists of pods.
#[derive(Clone, Default)]
struct PodLists(Arc<AtomicUsize>);

impl Observer for PodLists {
    fn committed(&mut self, _: &Change) {}

    fn asked(&mut self, _: &Caller, request: &http::Request<Bytes>, _: Timestamp) {
        let of_pods =
            request.method() == http::Method::GET && request.uri().path().ends_with("/standalone/pods");
        self.0.fetch_add(usize::from(of_pods), Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_its_client_changes_all_the_time_lists_pods_no_more_often() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    stage.until_pods_run().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let lists = PodLists::default();
    stage.cluster.server.observe(Box::new(lists.clone()));
    for change in 0..120 {
        let patch = json!({"metadata": {"labels": {"change": change.to_string()}}});
        stage.admin.merge(&kinds::PROVISIONING_REQUEST, ID, BATCH, &patch).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let listed = lists.0.load(Ordering::Relaxed);
    assert!((2..=12).contains(&listed), "{listed} lists in two minutes");
}

#[tokio::test(start_paused = true)]
async fn nodes_that_no_pod_uses_are_given_back_after_the_booking() {
    let stage = Stage::provisioned("{deadlines: {admit: 5m}}").await;
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(stage.claims(), 2);
    stage.until("the booking expires", 120, |s| s.is("BookingExpired")).await;
    assert_eq!(stage.condition("BookingExpired")["reason"], "Unused");
    stage.until_nothing_is_left().await;
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(stage.workload().is_none(), "a request gets one Workload");
}

#[tokio::test(start_paused = true)]
async fn deleting_the_request_gives_back_nodes_once_no_pod_runs() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    stage.until_pods_run().await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.claims(), 2, "its pods run");
    stage.delete_pods();
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_deleted_before_its_nodes_come_gets_none() {
    let stage = Stage::new("{}");
    world::weather(&stage.admin, &json!([{"launchDelay": "60s"}]));
    stage.request();
    stage.until("nodes are launched", 60, |s| s.claims() == 2).await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_are_kept_through_a_pause_after_pods_have_run_for_long() {
    let stage = Stage::provisioned("{deadlines: {admit: 5m}}").await;
    stage.run_pods("10h");
    tokio::time::sleep(Duration::from_mins(30)).await;
    stage.delete_pods();
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(stage.claims(), 2, "the client may create its pods again");
    stage.run_pods("10h");
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.claims(), 2);
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_earlier_request_do_not_end_one_with_the_same_name() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("1m");
    stage.until("it is over", 300, |s| s.is("BookingExpired") && s.claims() == 0).await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    stage.request();
    stage.until_provisioned().await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((stage.claims(), stage.is("BookingExpired")), (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_the_workload_of_an_earlier_one_is_gone() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    tokio::time::sleep(Duration::from_mins(1)).await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    stage.request();
    let message = "Workload provisioningrequest-batch exists already, and is not for this request";
    stage.until("it is told so", 60, |s| s.condition("Provisioned")["message"] == message).await;
    stage.delete_pods();
    stage.until_provisioned().await;
}

#[tokio::test(start_paused = true)]
async fn kueues_own_check_gives_nodes_to_a_client_too() {
    let stage = Stage::new("{}");
    stage.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/provisioning-requests/check.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let mut objects = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).unwrap());
    stage.admin.create(&kinds::PROVISIONING_REQUEST_CONFIG, objects.next().unwrap()).unwrap();
    let mut check = objects.next().unwrap();
    check["metadata"]["name"] = json!(ID);
    stage.admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
    stage.request();
    stage.until_provisioned().await;
    let gang = stage.all(&kinds::NODE_CLAIM)[0]["metadata"]["labels"][names::GANG].clone();
    assert_eq!(stage.status()["provisioningClassDetails"]["gang"], gang);
    stage.run_pods("10h");
    tokio::time::sleep(Duration::from_mins(1)).await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(stage.claims(), 2, "its pods run");
    stage.delete_pods();
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn replicas_that_share_the_gangs_serve_requests_whoever_leads_their_workloads() {
    let mut stage = Stage::new("{deadlines: {admit: 2m}}");
    stage.setu.kill();
    let election = || Some(Election { timing: Timing::default(), shards: 4 });
    let start = || Start { options: SERVED, election: election(), ..Start::default() };
    let _replicas = [stage.cluster.start_setu(&start()), stage.cluster.start_setu(&start())];
    tokio::time::sleep(Duration::from_mins(2)).await;
    for _ in 0..4 {
        stage.request();
        stage.until_provisioned().await;
        stage.until("its booking expires", 300, |s| s.is("BookingExpired")).await;
        stage.until_nothing_is_left().await;
        stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_pod_template_is_named_and_waited_for() {
    let stage = Stage::new("{}");
    stage.delete(&kinds::POD_TEMPLATE, "workers");
    stage.request();
    let message = "PodTemplate workers does not exist in namespace standalone";
    stage.until("it is named", 60, |s| s.condition("Provisioned")["message"] == message).await;
    assert!(stage.workload().is_none());
    stage.create_template();
    stage.until_provisioned().await;
}

#[tokio::test(start_paused = true)]
async fn a_shortage_fails_the_request_and_takes_everything_back() {
    let stage = Stage::new("{retry: {inCheck: {limit: 1, base: 10s, max: 10s}}}");
    world::weather(&stage.admin, &json!([{"capacity": 1}]));
    stage.request();
    stage.until("it fails", 900, |s| s.is("Failed")).await;
    let failed = stage.condition("Failed");
    assert_eq!(failed["reason"], "GangNotProvisioned");
    assert!(failed["message"].as_str().unwrap().contains("InsufficientCapacity"), "{failed}");
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_quota_and_is_told_so() {
    let stage = Stage::new("{}");
    let quota = json!({"spec": {"stopPolicy": "Hold"}});
    stage.admin.merge(&kinds::LOCAL_QUEUE, ID, "queue", &quota).unwrap();
    stage.request();
    let waits = |s: &Stage| {
        let condition = s.condition("Provisioned");
        condition["message"].as_str().is_some_and(|text| text.starts_with("waits for quota"))
    };
    stage.until("it waits", 60, waits).await;
    assert_eq!(stage.claims(), 0);
    stage.admin.merge(&kinds::LOCAL_QUEUE, ID, "queue", &json!({"spec": {"stopPolicy": "None"}})).unwrap();
    stage.until_provisioned().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_queue_takes_the_nodes_away_and_the_request_is_revoked() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    stage
        .admin
        .merge(&kinds::LOCAL_QUEUE, ID, "queue", &json!({"spec": {"stopPolicy": "HoldAndDrain"}}))
        .unwrap();
    stage.until("it is revoked", 60, |s| s.is("CapacityRevoked")).await;
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_queue_gets_its_quota_back_although_the_request_is_deleted() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    tokio::time::sleep(Duration::from_mins(1)).await;
    stage.delete(&kinds::PROVISIONING_REQUEST, BATCH);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let drain = json!({"spec": {"stopPolicy": "HoldAndDrain"}});
    stage.admin.merge(&kinds::LOCAL_QUEUE, ID, "queue", &drain).unwrap();
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_a_tenant_gives_an_owner_later_ends_like_one_that_is_deleted() {
    let stage = Stage::provisioned("{}").await;
    let workload = stage.workload().unwrap();
    let owner = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "controller": true,
        "name": workload["metadata"]["name"], "uid": workload["metadata"]["uid"],
    });
    let change = json!({"metadata": {"ownerReferences": [owner]}});
    stage.admin.merge(&kinds::PROVISIONING_REQUEST, ID, BATCH, &change).unwrap();
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_running_pods_are_kept_if_the_check_leaves_the_queue() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    world::set_checks(&stage.admin, ID, &[]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((stage.claims(), stage.is("Failed")), (2, false));
}

#[tokio::test(start_paused = true)]
async fn a_queue_without_a_check_of_setus_gives_no_nodes() {
    let stage = Stage::new("{}");
    world::set_checks(&stage.admin, ID, &[]);
    stage.request();
    stage.until("it fails", 60, |s| s.is("Failed")).await;
    let message = stage.condition("Failed")["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        "ClusterQueue standalone has no admission check that Setu answers, so no nodes would come"
    );
    stage.until_nothing_is_left().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_its_check_if_that_was_deleted() {
    let mut stage = Stage::new("{}");
    world::weather(&stage.admin, &json!([{"launchDelay": "3m"}]));
    stage.request();
    stage.until("nodes are launched", 60, |s| s.claims() == 2).await;
    let mut check = (*stage.all(&kinds::ADMISSION_CHECK)[0]).clone();
    stage.setu.kill();
    stage.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
    stage.setu = stage.cluster.start_setu(&Start { options: SERVED, ..Start::default() });
    let message = format!("AdmissionCheck {ID} does not exist");
    stage.until("it is told so", 60, |s| s.condition("Provisioned")["message"] == message).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((stage.claims(), stage.is("Failed")), (2, false));
    check["metadata"] = json!({"name": ID});
    stage.admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
    stage.until_provisioned().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_gets_its_nodes_while_the_watch_of_nodeclaims_is_silent() {
    let stage = Stage::new("{}");
    stage.setu.wire.silence("/nodeclaims");
    stage.request();
    stage.until_provisioned().await;
    assert_eq!(stage.status()["provisioningClassDetails"]["count"], "2");
}

#[tokio::test(start_paused = true)]
async fn a_client_is_told_the_gangs_of_all_checks() {
    let stage = Stage::new("{}");
    let mut head = pods_like(&json!({}));
    head["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    let template = json!({
        "apiVersion": "v1", "kind": "PodTemplate", "metadata": {"namespace": ID, "name": "head"}, "template": head,
    });
    stage.admin.create(&kinds::POD_TEMPLATE, template).unwrap();
    let mut check = (*stage.all(&kinds::ADMISSION_CHECK)[0]).clone();
    check["metadata"] = json!({"name": "third"});
    stage.admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
    let of_flavor = |check: &str, flavor: &str| json!({"name": check, "onFlavors": [flavor]});
    let both = [of_flavor(ID, ID), of_flavor("third", &format!("{ID}-cpu"))];
    let both = json!({"spec": {"admissionChecksStrategy": {"admissionChecks": both}}});
    stage.admin.merge(&kinds::CLUSTER_QUEUE, "", ID, &both).unwrap();
    let set = |template: &str, count: u32| json!({"count": count, "podTemplateRef": {"name": template}});
    stage.request_for(&json!([set("head", 1), set("workers", 2)]));
    stage.until_provisioned().await;
    let claims = stage.all(&kinds::NODE_CLAIM);
    let of = |claim: &Arc<Value>| claim["metadata"]["labels"][names::GANG].as_str().unwrap().to_owned();
    let gangs: BTreeSet<String> = claims.iter().map(of).collect();
    assert_eq!((claims.len(), gangs.len()), (3, 2));
    let gangs: Vec<String> = gangs.into_iter().collect();
    assert_eq!(stage.status()["provisioningClassDetails"]["gang"], gangs.join(","));
}

#[tokio::test(start_paused = true)]
async fn a_tenant_cannot_have_the_workload_of_a_job_deleted() {
    let stage = Stage::new("{}");
    stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
    stage.until("it runs", 120, |s| s.workload().is_some_and(|w| is(&w, "Admitted"))).await;
    let name = stage.workload().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let request = name.trim_start_matches("provisioningrequest-");
    let forged =
        json!({"metadata": {"annotations": {(names::REQUEST): format!("{request}/no-such-request")}}});
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &forged).unwrap();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(is(&stage.workload().unwrap(), "Admitted"));
    assert_eq!(stage.claims(), 2);
}

#[tokio::test(start_paused = true)]
async fn nodes_have_no_taint_that_only_the_flavor_tolerates() {
    let stage = Stage::new("{}");
    let tolerates = json!({"spec": {"tolerations": [{"key": names::GANG, "operator": "Exists"}]}});
    stage.admin.merge(&kinds::RESOURCE_FLAVOR, "", ID, &tolerates).unwrap();
    let bare = json!({"template": {"spec": {"tolerations": []}}});
    stage.admin.merge(&kinds::POD_TEMPLATE, ID, "workers", &bare).unwrap();
    stage.request();
    stage.until_provisioned().await;
    let claims = stage.all(&kinds::NODE_CLAIM);
    assert!(!claims[0]["spec"]["taints"].to_string().contains(names::GANG), "Kueue does not start the pods");
}

#[tokio::test(start_paused = true)]
async fn uninstalling_keeps_the_nodes_of_running_pods_and_their_workload() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    stage.until_pods_run().await;
    assert_eq!(stage.uninstall(RunningNodes::HandBack).await, [0, 1, 0], "the request was met");
    let workload = stage.workload().unwrap();
    assert_eq!((stage.claims(), workload["metadata"].get("finalizers")), (2, None));
}

#[tokio::test(start_paused = true)]
async fn uninstalling_fails_a_request_that_waits_and_deletes_its_workload() {
    let stage = Stage::new("{}");
    world::weather(&stage.admin, &json!([{"launchDelay": "10m"}]));
    stage.request();
    stage.until("nodes are launched", 60, |s| s.claims() == 2).await;
    assert_eq!(stage.uninstall(RunningNodes::HandBack).await, [1, 0, 1]);
    assert!(stage.workload().is_none() && stage.claims() == 0);
    assert_eq!(stage.condition("Failed")["reason"], "Uninstalled");
}

#[tokio::test(start_paused = true)]
async fn uninstalling_everything_deletes_the_workload_and_tells_the_client() {
    let stage = Stage::provisioned("{}").await;
    stage.run_pods("10h");
    stage.uninstall(RunningNodes::Delete).await;
    assert!(stage.workload().is_none() && stage.claims() == 0);
    assert!(stage.is("Failed") && !stage.is("Provisioned"));
}

/// Takes a request from its creation until its nodes are gone, with a fault at one of Setu's writes. Returns the first Setu's
/// writes.
async fn come_and_go(plan: Option<(usize, WriteFault)>) -> usize {
    let mut stage = Stage::with_fault(plan, "{}");
    let first = Arc::clone(&stage.setu.wire);
    stage.request();
    stage.until_despite_kills(&format!("it is provisioned, {plan:?}"), |s| s.is("Provisioned")).await;
    assert_eq!(stage.claims(), 2, "{plan:?}");
    stage.run_pods("1m");
    let is_over = |s: &Stage| s.is("BookingExpired") && s.workload().is_none() && s.claims() == 0;
    stage.until_despite_kills(&format!("nothing is left, {plan:?}"), is_over).await;
    assert_eq!(first.fired(), usize::from(plan.is_some()), "{plan:?}");
    first.written().len()
}

#[test]
fn a_request_comes_and_goes_whatever_fault_meets_whichever_write() {
    let writes = in_virtual_time(come_and_go(None));
    assert!(writes > 10, "{writes} writes");
    for fault in WriteFault::ALL {
        for write in 0..writes {
            in_virtual_time(come_and_go(Some((write, fault))));
        }
    }
}
