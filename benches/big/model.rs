//! One running gang from the embedded cluster, as a model for copies.

use serde_json::{Value, json};
use setu::policy::PolicyFile;
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::{User, kinds};
use std::time::{Duration, Instant};

const TEMPLATE: usize = 4096;

/// Its Workload, claims and nodes.
pub struct Model {
    pub workload: Value,
    pub claims: Vec<Value>,
    pub nodes: Vec<Value>,
    /// The objects that it depends on, with the status from their controllers.
    pub others: Vec<(&'static kinds::ServedKind, Value)>,
}

impl Model {
    /// A gang of this many nodes, in the world with this id. Takes some seconds.
    pub async fn new(id: &str, nodes: usize) -> Self {
        let policy = PolicyFile::parse("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy").unwrap();
        let mut cluster = SimCluster::start(7, &Clock::wall(), &scenario::controller_name_of(id), policy);
        let admin = cluster.server.user("admin");
        for object in scenario::objects(id, 1_000_000).unwrap() {
            let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
            admin.create(kind, object).unwrap();
        }
        let _setu = cluster.start_setu(&Start::default());
        admin.create(&kinds::JOB, job(id, nodes)).unwrap();
        let deadline = Instant::now() + Duration::from_mins(2);
        while !admin.list(&kinds::WORKLOAD).first().is_some_and(|w| is_admitted(w)) {
            assert!(Instant::now() < deadline, "the model gang was not admitted");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        // Until all controllers are done writing.
        tokio::time::sleep(Duration::from_secs(8)).await;
        Self::of(&admin)
    }

    /// The number of GPUs that this many gangs hold once the first has finished.
    pub fn held_by(&self, gangs: usize) -> usize {
        gangs.saturating_sub(1) * self.claims.len()
    }

    fn of(admin: &User) -> Self {
        let all = |kind| admin.list(kind).iter().map(|o| (**o).clone()).collect::<Vec<Value>>();
        let others = [&kinds::NODE_POOL, &kinds::ADMISSION_CHECK, &kinds::CLUSTER_QUEUE, &kinds::LOCAL_QUEUE];
        let others = others.into_iter().flat_map(|kind| all(kind).into_iter().map(move |o| (kind, o)));
        Self {
            workload: all(&kinds::WORKLOAD).remove(0),
            claims: all(&kinds::NODE_CLAIM),
            nodes: all(&kinds::NODE),
            others: others.collect(),
        }
    }
}

fn job(id: &str, nodes: usize) -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": id, "name": "model", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
            "spec": {"restartPolicy": "Never", "containers": [{
                "name": "main", "image": "none", "resources": {"requests": limits, "limits": limits},
                "env": [{"name": "PADDING", "value": "x".repeat(TEMPLATE)}],
            }]},
        }},
    })
}

fn is_admitted(workload: &Value) -> bool {
    let conditions = workload["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == "Admitted" && c["status"] == "True"))
}
