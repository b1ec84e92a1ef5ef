//! A gang's nodes without a NodeClaim, in the embedded cluster: which are swept, and which stay.

use crate::world::{self, START};
use serde_json::{Value, json};
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::telemetry::metrics;
use setu_sim::api::User;
use setu_sim::api::kinds;
use setu_sim::denials::Denial;
use std::time::Duration;

const ID: &str = "orphans";

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    fn new() -> Self {
        let (mut cluster, admin) = world::cluster(ID, PolicyFile::default());
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, setu, admin }
    }

    /// A gang's Node as Karpenter leaves it when its NodeClaim is gone. `of` is its Workload.
    fn node(&self, name: &str, ready: &str, of: Option<&Value>) {
        let uid = of.map_or("gone", |workload| workload["metadata"]["uid"].as_str().unwrap());
        let workload = of.map_or("gone", |workload| workload["metadata"]["name"].as_str().unwrap());
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    names::MANAGED_BY: names::SETU, names::NODEPOOL: ID, names::GANG: "gang",
                    names::WORKLOAD_UID: uid,
                },
                "annotations": {names::WORKLOAD: format!("{ID}/{workload}"), names::SLOT: "7"},
            },
            "spec": {"providerID": format!("cloud://{name}")},
        });
        self.admin.create(&kinds::NODE, node).unwrap();
        let condition = json!({
            "type": "Ready", "status": ready, "reason": "", "message": "", "lastTransitionTime": START,
        });
        self.admin
            .merge_status(&kinds::NODE, "", name, &json!({"status": {"conditions": [condition]}}))
            .unwrap();
    }

    fn has(&self, node: &str) -> bool {
        self.admin.get(&kinds::NODE, "", node).is_some()
    }

    /// Runs a Job. Returns its Workload.
    async fn admitted(&self) -> Value {
        let job = world::job(ID, "job", 1, None);
        self.admin.create(&kinds::JOB, job).unwrap();
        for _ in 0..120 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let found = self.admin.list(&kinds::WORKLOAD).into_iter().find(|w| world::is(w, "Admitted"));
            if let Some(found) = found {
                return (*found).clone();
            }
        }
        panic!("never admitted");
    }
}

#[tokio::test(start_paused = true)]
async fn only_silent_nodes_without_a_claim_or_a_running_gang_are_swept() {
    let recorder = metrics::recorder().unwrap();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let swept = || {
        let text = recorder.handle().render();
        let line = text.lines().find(|l| l.starts_with("setu_orphans_swept_total{reason=\"stray_node\""));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    let stage = Stage::new();
    let workload = stage.admitted().await;
    stage.node("silent", "Unknown", None);
    stage.node("ready", "True", None);
    stage.node("speaks", "False", None);
    stage.node("running", "Unknown", Some(&workload));
    // A partly handed back node, or someone else's: our watch does not show its claim.
    stage.node("claimed", "Unknown", None);
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": "others", "labels": {(names::NODEPOOL): ID}, "annotations": {(names::DO_NOT_DISRUPT): "true"},
        },
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID},
            "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
        },
    });
    stage.admin.create(&kinds::NODE_CLAIM, claim).unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    let launched = json!({"status": {"providerID": "cloud://claimed"}});
    stage.admin.merge_status(&kinds::NODE_CLAIM, "", "others", &launched).unwrap();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert!(stage.has("silent"), "its kubelet may come back");
    tokio::time::sleep(Duration::from_mins(9)).await;
    assert!(!stage.has("silent"));
    for kept in ["ready", "speaks", "running", "claimed"] {
        assert!(stage.has(kept), "{kept}");
    }
    assert_eq!(swept(), 1);
    let finished = json!({"status": {"conditions": [{
        "type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": START,
    }]}});
    let name = workload["metadata"]["name"].as_str().unwrap();
    stage.admin.merge_status(&kinds::WORKLOAD, ID, name, &finished).unwrap();
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert!(!stage.has("running"), "its gang is over");
    assert_eq!(swept(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_delete_nodes_everything_else_goes_on() {
    let stage = Stage::new();
    stage.cluster.denials.begin(Denial::NodeDeletes);
    stage.node("silent", "Unknown", None);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!(stage.has("silent"));
    stage.admitted().await;
    stage.cluster.denials.end();
    tokio::time::sleep(Duration::from_mins(70)).await;
    assert!(!stage.has("silent"), "the right was given meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_node_left_behind_while_setu_was_down_is_swept_soon_after_the_start() {
    let mut stage = Stage::new();
    stage.setu.kill();
    stage.node("silent", "Unknown", None);
    tokio::time::sleep(Duration::from_mins(30)).await;
    stage.setu = stage.cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert!(!stage.has("silent"));
}

#[tokio::test(start_paused = true)]
async fn foreign_claims_and_nodes_are_not_watched() {
    let stage = Stage::new();
    stage.admitted().await;
    let mut others = (*stage.admin.list(&kinds::NODE_CLAIM)[0]).clone();
    others["metadata"] = json!({"name": "others", "labels": {names::NODEPOOL: ID}});
    others.as_object_mut().unwrap().remove("status");
    stage.admin.create(&kinds::NODE_CLAIM, others).unwrap();
    let mut checks = 0;
    while stage.admin.list(&kinds::NODE).len() < 2 {
        assert!(checks < 60, "the others' NodeClaim got no node");
        checks += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((stage.admin.list(&kinds::NODE_CLAIM).len(), stage.admin.list(&kinds::NODE).len()), (2, 2));
    let stores = &stage.setu.context.stores;
    assert_eq!((stores.claims.state().len(), stores.nodes.state().len()), (1, 1));
}
