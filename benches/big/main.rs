//! What a large cluster costs: 10,000 Workloads with pod templates of 4 KiB, half of them gangs of four nodes that
//! run, so 20,000 NodeClaims and as many Nodes, in the embedded API server over HTTP; `setu run` beside it as a
//! process of its own. Says how long a restart takes until the first decision, memory, and CPU when idle.
//!
//! `cargo build --release && cargo bench --bench big -- [GANGS] [NODES]`; Linux only, it reads /proc.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a tool that prints figures"
)]

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use setu::api::Workload;
use setu::clock::Clock;
use setu::gang::Journal;
use setu::gang::identity::gang_id;
use setu::gang::reservation::Epoch;
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::api::{ApiServer, Change, Observer, Options, User, kinds};
use setu::sim::cluster::{Cluster, Start};
use setu::sim::{http, scenario};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const ID: &str = "big";
const TEMPLATE: usize = 4096;
const IDLE: Duration = Duration::from_mins(1);

/// When the API server was last written to, and since when anything was.
#[derive(Clone, Default)]
struct Writes(Arc<Mutex<Vec<Instant>>>);

impl Observer for Writes {
    fn committed(&mut self, change: &Change) {
        if change.kind.kind == "Workload" || change.kind.kind == "NodeClaim" {
            self.0.lock().unwrap().push(Instant::now());
        }
    }
}

fn make_world(admin: &User) {
    for object in scenario::objects(ID, 1_000_000).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        let status = object.get("status").cloned();
        let made = admin.create(kind, object).unwrap();
        if let Some(status) = status {
            admin.update_status(kind, with_status(&made, status)).unwrap();
        }
    }
}

fn with_status(made: &Value, status: Value) -> Value {
    let mut object = made.clone();
    object["status"] = status;
    object
}

/// One gang that runs, as the embedded cluster brings it there: its Workload, claims and nodes.
struct Model {
    workload: Value,
    claims: Vec<Value>,
    nodes: Vec<Value>,
    others: Vec<(&'static kinds::Kind, Value)>,
}

async fn model(nodes: usize) -> Model {
    let clock = Clock::wall();
    let policy = PolicyFile::parse("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy").unwrap();
    let mut cluster = Cluster::start(7, &clock, &scenario::controller_name_of(ID), policy);
    let admin = cluster.server.user("admin");
    make_world(&admin);
    let _setu = cluster.start_setu(&Start::default());
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": "model", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
            "spec": {"restartPolicy": "Never", "containers": [{
                "name": "main", "image": "none", "resources": {"requests": limits, "limits": limits},
                "env": [{"name": "PADDING", "value": "x".repeat(TEMPLATE)}],
            }]},
        }},
    });
    admin.create(&kinds::JOB, job).unwrap();
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let workloads = admin.list(&kinds::WORKLOAD);
        let admitted = workloads.first().is_some_and(|w| {
            w["status"]["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|c| c["type"] == "Admitted" && c["status"] == "True"))
        });
        if admitted {
            // Until nobody has anything more to write.
            tokio::time::sleep(Duration::from_secs(8)).await;
            let all = |kind| admin.list(kind).iter().map(|o| (**o).clone()).collect::<Vec<Value>>();
            let workload = all(&kinds::WORKLOAD).remove(0);
            let others =
                [&kinds::NODE_POOL, &kinds::ADMISSION_CHECK, &kinds::CLUSTER_QUEUE, &kinds::LOCAL_QUEUE];
            let others =
                others.into_iter().flat_map(|kind| all(kind).into_iter().map(move |o| (kind, o))).collect();
            return Model { workload, claims: all(&kinds::NODE_CLAIM), nodes: all(&kinds::NODE), others };
        }
        assert!(Instant::now() < deadline, "the model gang was not admitted: {workloads:#?}");
    }
}

/// The object made anew, with passages replaced, and its status.
fn copy(admin: &User, kind: &'static kinds::Kind, model: &Value, replaced: &[(&str, &str)]) -> Arc<Value> {
    let mut text = model.to_string();
    for (from, to) in replaced {
        text = text.replace(from, to);
    }
    let mut object: Value = serde_json::from_str(&text).unwrap();
    let meta = object["metadata"].as_object_mut().unwrap();
    for key in
        ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "ownerReferences"]
    {
        meta.remove(key);
    }
    let status = object.as_object_mut().unwrap().remove("status");
    let made = admin.create(kind, object).unwrap();
    match status {
        Some(status) => admin.update_status(kind, with_status(&made, status)).unwrap(),
        None => made,
    }
}

/// Identity of a Workload's admission, which its journal names.
fn epoch_of(workload: &Value) -> String {
    let workload: Workload = serde_json::from_value(workload.clone()).unwrap();
    Epoch::of(&workload, ID).0
}

fn fill(admin: &User, model: &Model, gangs: usize) {
    let uid = model.workload["metadata"]["uid"].as_str().unwrap();
    let name = model.workload["metadata"]["name"].as_str().unwrap();
    let (gang, epoch) = (gang_id(uid, ID), epoch_of(&model.workload));
    let journal_key = names::journal_key(ID);
    let journal = model.workload["metadata"]["annotations"][&journal_key].as_str().unwrap();
    for i in 0..gangs {
        let new_name = format!("{name}-{i}");
        let made = copy(admin, &kinds::WORKLOAD, &model.workload, &[(name, &new_name)]);
        let new_uid = made["metadata"]["uid"].as_str().unwrap().to_owned();
        let new_gang = gang_id(&new_uid, ID);
        let text = journal.replace(uid, &new_uid).replace(&gang, &new_gang).replace(name, &new_name);
        let text = text.replace(&epoch, &epoch_of(&made));
        let made_at: Timestamp = made["metadata"]["creationTimestamp"].as_str().unwrap().parse().unwrap();
        // As this gang's own, trace ids included, or Setu would write it anew.
        let text = Journal::decode(&text, &new_uid, made_at, Timestamp::now()).unwrap().encode();
        let patch = json!({"metadata": {"annotations": {journal_key.as_str(): text}}});
        admin.merge(&kinds::WORKLOAD, ID, &new_name, &patch).unwrap();
        for (slot, (claim, node)) in model.claims.iter().zip(&model.nodes).enumerate() {
            let claim_name = claim["metadata"]["name"].as_str().unwrap();
            let node_name = claim["status"]["nodeName"].as_str().unwrap();
            let new_claim = format!("setu-big-{i}-{slot}");
            let new_node = format!("node-{i}-{slot}");
            let node = model.nodes.iter().find(|n| n["metadata"]["name"] == node_name).unwrap_or(node);
            let replaced = [
                (uid, new_uid.as_str()),
                (gang.as_str(), new_gang.as_str()),
                (claim_name, new_claim.as_str()),
                (node_name, new_node.as_str()),
                (name, new_name.as_str()),
            ];
            copy(admin, &kinds::NODE_CLAIM, claim, &replaced);
            copy(admin, &kinds::NODE, node, &replaced);
        }
        // And one that waits for quota.
        let mut waiting = model.workload.clone();
        waiting["metadata"]["annotations"] = json!({});
        waiting.as_object_mut().unwrap().remove("status");
        copy(admin, &kinds::WORKLOAD, &waiting, &[(name, &format!("waiting-{i}"))]);
    }
}

struct Process(Child);

impl Process {
    fn start(kubeconfig: &PathBuf) -> Self {
        let binary = std::env::var_os("SETU_BIN").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/release/setu"),
            PathBuf::from,
        );
        let log = std::fs::File::create(std::env::temp_dir().join("setu-big.log")).unwrap();
        let child = Command::new(&binary)
            .args(["run", "--controller-name", &scenario::controller_name_of(ID)])
            .args(["--metrics-bind-address", "127.0.0.1:0", "--health-probe-bind-address", "127.0.0.1:0"])
            .env("KUBECONFIG", kubeconfig)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn();
        Self(child.unwrap_or_else(|e| panic!("{}: {e}; run `cargo build --release`", binary.display())))
    }

    fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11..13].iter().map(|t| t.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    fn mib(&self, of: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(of)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let gangs = numbers.first().copied().unwrap_or(5_000);
    let nodes = numbers.get(1).copied().unwrap_or(4);
    // No Workload is younger than its journal, or Setu would write each journal anew.
    let before = Timestamp::now() - SignedDuration::from_mins(5);
    let model = model(nodes).await;
    let clock = Clock::starting_at(before);
    let server = ApiServer::new(Options { seed: 7, clock, replicas: 1, history: 10_000 });
    let admin = server.user("admin");
    make_world(&admin);
    for (kind, object) in &model.others {
        // Their states, as their controllers left them.
        let (namespace, name) =
            (object["metadata"]["namespace"].as_str(), object["metadata"]["name"].as_str());
        let status = object.get("status").cloned().unwrap_or_else(|| json!({}));
        admin
            .merge_status(kind, namespace.unwrap_or_default(), name.unwrap(), &json!({"status": status}))
            .unwrap();
    }
    let started = Instant::now();
    fill(&admin, &model, gangs);
    println!("filled the API server in {:.0?}", started.elapsed());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(http::serve(server.clone(), listener, CancellationToken::new()));
    let kubeconfig = std::env::temp_dir().join(format!("setu-big-{}.json", std::process::id()));
    std::fs::write(&kubeconfig, http::kubeconfig(address)).unwrap();

    // While nobody runs a gang is finished, so that whoever starts has something to decide.
    let name = format!("{}-0", model.workload["metadata"]["name"].as_str().unwrap());
    let finished = json!({"type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let mut conditions = model.workload["status"]["conditions"].as_array().unwrap().clone();
    conditions.push(finished);
    admin.merge_status(&kinds::WORKLOAD, ID, &name, &json!({"status": {"conditions": conditions}})).unwrap();
    let writes = Writes::default();
    server.observe(Box::new(writes.clone()));
    let start = Instant::now();
    let process = Process::start(&kubeconfig);
    while writes.0.lock().unwrap().is_empty() {
        assert!(start.elapsed() < Duration::from_mins(2), "nothing was decided");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = writes.0.lock().unwrap()[0] - start;
    println!("start to first decision: {first:.2?}");
    loop {
        let before = process.cpu_seconds();
        tokio::time::sleep(Duration::from_secs(5)).await;
        if process.cpu_seconds() - before < 0.3 || start.elapsed() > Duration::from_mins(3) {
            break;
        }
    }
    println!(
        "settled after {:.0?}, with {} writes and {:.1} CPU-seconds",
        start.elapsed(),
        writes.0.lock().unwrap().len(),
        process.cpu_seconds()
    );
    let before = process.cpu_seconds();
    tokio::time::sleep(IDLE).await;
    let idle = (process.cpu_seconds() - before) / IDLE.as_secs_f64();
    println!(
        "{} Workloads, {} NodeClaims, {} Nodes: {:.0} MiB resident, {:.0} MiB at most; idle {:.2} % of a core",
        admin.list(&kinds::WORKLOAD).len(),
        admin.list(&kinds::NODE_CLAIM).len(),
        admin.list(&kinds::NODE).len(),
        process.mib("VmRSS"),
        process.mib("VmHWM"),
        idle * 100.0,
    );
    let _ = std::fs::remove_file(kubeconfig);
}
