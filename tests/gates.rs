//! The gates on the embedded cluster: what they count, what a dry run tells, what is remembered of
//! capacity, and that a gang which waits for its LocalQueue is woken and does not poll.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use jiff::Timestamp;
use serde_json::{Value, json};
use setu::app::server;
use setu::clock::Clock;
use setu::policy::PolicyFile;
use setu::sim::api::{Change, Observer, User, kinds};
use setu::sim::cluster::{Cluster, Setu, Start};
use setu::sim::scenario;
use setu::telemetry::metrics;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Name of everything.
const ID: &str = "gates";

struct Stage {
    cluster: Cluster,
    admin: User,
}

impl Stage {
    fn new(policy: &str) -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{policy}");
        let policy = PolicyFile::parse(&text).unwrap();
        let cluster = Cluster::start(7, &clock, &scenario::controller_name_of(ID), policy);
        let admin = cluster.server.user("admin");
        for object in scenario::objects(ID, 100).unwrap() {
            let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
            admin.create(kind, object).unwrap();
        }
        Self { cluster, admin }
    }

    fn start(&mut self) -> Setu {
        self.cluster.start_setu(&Start::default())
    }

    fn submit(&self, name: &str, pods: u32, run_for: &str) {
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"namespace": ID, "name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
            "spec": {"parallelism": pods, "completions": pods, "suspend": true, "template": {
                "metadata": {"annotations": {"e2e.setu/run-for": run_for}},
                "spec": {"restartPolicy": "Never", "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
                ]},
            }},
        });
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    fn limit(&self, nodes: &str) {
        let limits = json!({"spec": {"limits": {"nodes": nodes}}});
        self.admin.merge(&kinds::NODE_POOL, "", ID, &limits).unwrap();
    }

    /// Has Kueue say that so many GPUs of the quota of 100 are reserved.
    fn reserve(&self, gpus: &str) {
        let of = |name: &str, total: &str| json!({"name": name, "total": total, "borrowed": "0"});
        let status = json!({"status": {"flavorsReservation": [
            {"name": ID, "resources": [of("cpu", "2"), of("memory", "0"), of("nvidia.com/gpu", gpus)]},
        ]}});
        self.admin.merge_status(&kinds::CLUSTER_QUEUE, "", ID, &status).unwrap();
    }

    fn weather(&self, rules: &Value) {
        let weather = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
            "data": {ID: json!({"rules": rules}).to_string()},
        });
        self.admin.create(&kinds::CONFIG_MAP, weather).unwrap();
    }

    fn workload(&self, job: &str) -> Option<Arc<Value>> {
        let all = self.admin.list(&kinds::WORKLOAD);
        all.into_iter().find(|w| w["metadata"]["ownerReferences"][0]["name"] == job)
    }

    fn message(&self, job: &str) -> String {
        let workload = self.workload(job);
        let message = workload.map(|w| w["status"]["admissionChecks"][0]["message"].clone());
        message.unwrap_or_default().as_str().unwrap_or_default().to_owned()
    }

    fn is_admitted(&self, job: &str) -> bool {
        let conditions = self.workload(job).and_then(|w| w["status"]["conditions"].as_array().cloned());
        conditions.iter().flatten().any(|c| c["type"] == "Admitted" && c["status"] == "True")
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        for _ in 0..24_000 {
            if is(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{what} not within two minutes; {}", self.message("train"));
    }

    async fn until_told(&self, job: &str, words: &str) {
        self.until(words, |s| s.message(job).contains(words)).await;
    }
}

/// Plays in virtual time. Returns what is on `/metrics` afterwards.
fn played(policy: &str, play: impl AsyncFnOnce(&mut Stage)) -> String {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    ::metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async { play(&mut Stage::new(policy)).await });
    });
    handle.render()
}

/// The series of a metric, by their labels.
fn series(text: &str, metric: &str) -> BTreeMap<String, u64> {
    let of_metric = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    let split = of_metric.filter_map(|line| line.split_once("} "));
    split.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
}

fn counted<const N: usize>(text: &str, metric: &str, expected: [(&str, u64); N]) {
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(labels, count)| (labels.to_owned(), count)).collect();
    assert_eq!(series(text, metric), expected, "{metric}");
}

const CAPACITY: &str = "setu_capacity_validation_total";
const QUOTA: &str = "setu_quota_check_total";

#[test]
fn limits_of_node_pools_are_counted_by_what_they_say_and_once_each_time_that_is_news() {
    let text = played("defaults: {gates: {capacity: Enforce}}", async |stage| {
        stage.limit("1");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_told("train", "NodePool gates has a limit of 1 nodes").await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        stage.limit("2");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(
        &text,
        CAPACITY,
        [("nodepool=\"gates\",result=\"waiting\"", 1), ("nodepool=\"gates\",result=\"passed\"", 1)],
    );
    let text = played("defaults: {gates: {capacity: Warn}}", async |stage| {
        stage.limit("1");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(&text, CAPACITY, [("nodepool=\"gates\",result=\"warned\"", 1)]);
}

#[test]
fn the_diagnosis_of_quota_is_counted_by_what_it_says() {
    let passed = "queue=\"gates\",result=\"passed\"";
    let run = async |stage: &mut Stage| {
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    };
    // The LocalQueue, and each of two resources.
    let text = played("defaults: {}", async |stage| {
        stage.reserve("2");
        run(stage).await;
    });
    counted(&text, QUOTA, [(passed, 3)]);
    let text = played("defaults: {}", run);
    counted(&text, QUOTA, [(passed, 1), ("queue=\"gates\",result=\"unknown\"", 2)]);
    let text = played("defaults: {}", async |stage| {
        stage.reserve("101");
        run(stage).await;
    });
    counted(&text, QUOTA, [(passed, 2), ("queue=\"gates\",result=\"warned\"", 1)]);
    let text = played("defaults: {gates: {quota: Enforce}}", async |stage| {
        stage.reserve("101");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_told("train", "101 of 100 nvidia.com/gpu").await;
        stage.reserve("100");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(&text, QUOTA, [(passed, 3), ("queue=\"gates\",result=\"waiting\"", 1)]);
}

#[test]
fn a_dry_run_is_told_by_an_event_and_counted_and_creates_nothing() {
    let text = played("defaults: {strategy: {type: DryRun}}", async |stage| {
        let setu = stage.start();
        stage.submit("train", 3, "2s");
        stage.until_told("train", "strategy DryRun creates nothing").await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let events = stage.admin.list(&kinds::EVENT);
        let told = events.iter().filter(|e| e["regarding"]["kind"] == "Workload");
        let told: Vec<(&str, &str)> =
            told.map(|e| (e["reason"].as_str().unwrap(), e["note"].as_str().unwrap())).collect();
        let [(reason, note)] = told.as_slice() else { panic!("one Event is enough: {told:?}") };
        assert_eq!(*reason, "GangWaiting");
        assert!(note.contains("3 nodes: 3 from NodePool gates; they would be created"), "{note}");
        assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
        setu.context.set_gauges();
    });
    counted(&text, CAPACITY, [("nodepool=\"gates\",result=\"passed\"", 1)]);
    assert_eq!(series(&text, "setu_gangs")["state=\"Validating\""], 1);
    counted(&text, "setu_nodeclaims_created_total", []);
}

/// The body of an answer over HTTP. Virtual time stands still meanwhile.
async fn get(address: SocketAddr, path: &'static str) -> Value {
    let read = move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = tokio::task::spawn_blocking(read).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn what_ran_out_of_capacity_is_served_with_its_expiry_and_gone_after_it() {
    played("defaults: {retry: {inCheck: {limit: 1, base: 10m, max: 10m}}}", async |stage| {
        stage.weather(&json!([{"nodePool": ID, "capacity": 0}]));
        let setu = stage.start();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = server::health(Arc::clone(&setu.context), stop.clone());
        let served = tokio::spawn(server::serve(listener, routes, stop.clone()));
        assert_eq!(get(address, "/debug/capacity").await["shortages"], json!([]));
        stage.submit("train", 2, "2s");
        let short =
            |s: &Stage| s.workload("train").is_some_and(|w| w.to_string().contains("InsufficientCapacity"));
        stage.until("a shortage", short).await;
        let shortages = get(address, "/debug/capacity").await["shortages"].clone();
        let [only] = shortages.as_array().unwrap().as_slice() else { panic!("{shortages}") };
        assert_eq!(
            (&only["instanceType"], &only["capacityType"]),
            (&json!("g5.4xlarge"), &json!("on-demand"))
        );
        let until: Timestamp = only["until"].as_str().unwrap().parse().unwrap();
        let left = until.duration_since(stage.cluster.clock.now()).as_secs();
        assert!((150..=180).contains(&left), "{left} s left");
        tokio::time::sleep(Duration::from_secs(181)).await;
        assert_eq!(get(address, "/debug/capacity").await["shortages"], json!([]));
        stop.cancel();
        served.await.unwrap();
    });
}

/// Capacity types that the NodeClaims asked for, in the order of their creation.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Observer for Asked {
    fn committed(&mut self, change: &Change) {
        let (Some(after), None, "NodeClaim") = (&change.after, &change.before, change.kind.kind) else {
            return;
        };
        let requirements = after["spec"]["requirements"].as_array().unwrap();
        let asked = requirements.iter().find(|r| r["key"] == "karpenter.sh/capacity-type").unwrap();
        self.0.lock().unwrap().push(asked["values"][0].as_str().unwrap().to_owned());
    }
}

#[test]
fn where_tiers_may_be_mixed_one_node_that_a_tier_lacks_costs_one_more_claim_and_no_node_that_came_up() {
    let tier = |name: &str| {
        format!(
            "{{name: {name}, requirements: [{{key: karpenter.sh/capacity-type, operator: In, values: [{name}]}}]}}"
        )
    };
    let tiers = format!("[{}, {}]", tier("spot"), tier("on-demand"));
    let policy =
        format!("defaults: {{mixedTiers: true, managedResources: [nvidia.com/gpu], tiers: {tiers}}}");
    let text = played(&policy, async |stage| {
        let any = json!([
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.4xlarge"]},
            {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
        ]);
        let patch = json!({"spec": {"template": {"spec": {"requirements": any}}}});
        stage.admin.merge(&kinds::NODE_POOL, "", ID, &patch).unwrap();
        stage.weather(&json!([{"nodePool": ID, "capacityType": "spot", "capacity": 2}]));
        let asked = Asked::default();
        stage.cluster.server.observe(Box::new(asked.clone()));
        let _setu = stage.start();
        stage.submit("train", 3, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
        assert_eq!(*asked.0.lock().unwrap(), ["spot", "spot", "spot", "on-demand"]);
        let told = stage.admin.list(&kinds::EVENT);
        assert!(told.iter().all(|event| event["reason"] != "GangRollingBack"), "{told:?}");
    });
    counted(&text, "setu_retry_attempts_total", [("operation=\"tier\",attempt=\"1\"", 1)]);
}

/// When the first NodeClaim was marked for deletion, and when the last one was created.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<(Option<Timestamp>, Option<Timestamp>)>>);

impl Observer for Times {
    fn committed(&mut self, change: &Change) {
        let (Some(after), "NodeClaim") = (&change.after, change.kind.kind) else { return };
        let mut times = self.0.lock().unwrap();
        if change.before.is_none() {
            times.1 = Some(change.at);
        }
        if !after["metadata"]["deletionTimestamp"].is_null() {
            times.0.get_or_insert(change.at);
        }
    }
}

#[test]
fn a_gang_that_waits_for_what_its_local_queue_may_spend_goes_on_as_soon_as_nodes_go() {
    let policy = "guards: {perLocalQueue: {maxHourlyCost: \"5\"}}\n\
                  defaults: {gates: {budget: {prices: {g5.4xlarge: {on-demand: \"2\"}}}}}";
    played(policy, async |stage| {
        let times = Times::default();
        stage.cluster.server.observe(Box::new(times.clone()));
        let _setu = stage.start();
        stage.submit("first", 2, "20s");
        stage.until("it runs", |s| s.is_admitted("first")).await;
        stage.submit("train", 1, "2s");
        stage
            .until_told(
                "train",
                "allows 5 an hour for nodes of LocalQueue queue: 4 so far, and 2 more for the gang",
            )
            .await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2);
        stage.until("it runs after the first", |s| s.is_admitted("train")).await;
        let (gone, created) = *times.0.lock().unwrap();
        let waited = created.unwrap().duration_since(gone.unwrap());
        assert!(waited.as_millis() < 1_500, "it looked again only after {waited:?}");
    });
}
