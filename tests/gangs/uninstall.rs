//! `setu uninstall` in the embedded cluster: late objects are removed too, and a new Setu continues.

use crate::world;
use serde_json::{Value, json};
use setu::app::uninstall;
use setu::gang::release::uninstall::RunningNodes;
use setu::policy::PolicyFile;
use setu::sim::cluster::{SimCluster, Start};
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::User;
use setu_sim::api::kinds;
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "uninstall";
const LIMIT: Duration = Duration::from_mins(5);

fn stage() -> (SimCluster, User) {
    // The command uses the machine's clock.
    let clock = Clock::starting_at(jiff::Timestamp::now());
    let cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(ID), PolicyFile::default());
    let admin = cluster.server.user("admin");
    for object in scenario::objects(ID, 100).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    (cluster, admin)
}

fn submit(admin: &User) {
    submit_with(admin, &json!({}));
}

fn submit_with(admin: &User, selector: &Value) {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": "gang", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {
            "metadata": {}, "spec": {"restartPolicy": "Never", "nodeSelector": selector, "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
            ]},
        }},
    });
    admin.create(&kinds::JOB, job).unwrap();
}

fn is(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|c| c["type"] == condition && c["status"] == "True"))
}

fn workload(admin: &User) -> Arc<Value> {
    admin.list(&kinds::WORKLOAD).pop().unwrap_or_default()
}

async fn until(what: &str, holds: impl FnMut() -> bool) {
    let came = world::until(Duration::from_mins(2), Duration::from_millis(2), holds).await;
    assert!(came, "not within two minutes: {what}");
}

#[tokio::test(start_paused = true)]
async fn claims_created_after_the_plan_are_removed_too_and_a_new_setu_continues() {
    let (mut cluster, admin) = stage();
    let controller = scenario::controller_name_of(ID);
    let client = cluster.client("admin");
    let setu = cluster.start_setu(&Start::default());
    let before = uninstall::plan(&client, &controller, RunningNodes::HandBack).await.unwrap();
    assert!(before.delete.is_empty() && before.waiting.is_empty());
    submit(&admin);
    until("nodes are made", || admin.list(&kinds::NODE_CLAIM).len() == 2).await;
    setu.kill();
    uninstall::carry_out(&client, &controller, before, RunningNodes::HandBack, LIMIT).await.unwrap();
    assert_eq!(admin.list(&kinds::NODE_CLAIM).len(), 0);
    // The queue still names the check, so it stays closed.
    until("quota is given back", || !is(&workload(&admin), "QuotaReserved")).await;
    let _again = cluster.start_setu(&Start::default());
    until("the gang runs", || is(&workload(&admin), "Admitted")).await;
    assert_eq!(admin.list(&kinds::NODE_CLAIM).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refused_gang_returns_to_kueues_queue_and_runs_once_the_check_is_gone() {
    let (mut cluster, admin) = stage();
    let controller = scenario::controller_name_of(ID);
    let client = cluster.client("admin");
    let clash = json!({"spec": {"template": {"metadata": {"labels": {"tier": "gold"}}}}});
    admin.merge(&kinds::NODE_POOL, "", ID, &clash).unwrap();
    let setu = cluster.start_setu(&Start::default());
    submit_with(&admin, &json!({"tier": "silver"}));
    let is_kept_out = || {
        let conditions = workload(&admin)["status"]["conditions"].clone();
        conditions.as_array().is_some_and(|all| all.iter().any(|c| c["reason"] == "RefusedBySetu"))
    };
    until("it is refused", is_kept_out).await;
    setu.kill();
    let plan = uninstall::plan(&client, &controller, RunningNodes::HandBack).await.unwrap();
    assert_eq!(plan.kept_out.len(), 1);
    uninstall::carry_out(&client, &controller, plan, RunningNodes::HandBack, LIMIT).await.unwrap();
    assert!(!is_kept_out());
    let without = json!({"spec": {"admissionChecksStrategy": null}});
    admin.merge(&kinds::CLUSTER_QUEUE, "", ID, &without).unwrap();
    until("Kueue admits it", || is(&workload(&admin), "Admitted")).await;
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_still_runs_is_reported() {
    let (mut cluster, admin) = stage();
    let controller = scenario::controller_name_of(ID);
    let client = cluster.client("admin");
    let _setu = cluster.start_setu(&Start::default());
    submit(&admin);
    until("it runs", || is(&workload(&admin), "Admitted")).await;
    let plan = uninstall::plan(&client, &controller, RunningNodes::Delete).await.unwrap();
    let limit = Duration::from_secs(20);
    let ended = uninstall::carry_out(&client, &controller, plan, RunningNodes::Delete, limit).await;
    assert!(ended.unwrap_err().contains("does a controller still run?"));
}
