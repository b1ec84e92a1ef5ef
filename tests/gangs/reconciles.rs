//! The reconciles that a gang costs, counted in the embedded cluster in virtual time: their number must not grow with the
//! gang, because each of them goes through all of the gang's nodes.

use crate::world;
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};
use serde_json::{Value, json};
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::telemetry::metrics;
use setu_sim::api::{Preconditions, User, kinds};
use std::time::Duration;

const ID: &str = "reconciles";

/// One gang, and how often Workloads have been reconciled.
struct Counted {
    _cluster: SimCluster,
    admin: User,
    _setu: Setu,
    metrics: PrometheusHandle,
}

impl Counted {
    /// The reconciles of Workloads so far.
    fn reconciles(&self) -> usize {
        let page = self.metrics.render();
        let of_workloads = "setu_reconcile_duration_seconds_count{controller=\"workload\"";
        let lines = page.lines().filter(|line| line.starts_with(of_workloads));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
    }

    /// The reconciles until this holds.
    async fn until(&self, what: &str, holds: impl Fn(&User) -> bool) -> usize {
        let before = self.reconciles();
        let came = world::until(Duration::from_hours(1), Duration::from_millis(100), || holds(&self.admin));
        assert!(came.await, "not within an hour: {what}");
        self.reconciles() - before
    }
}

fn is_admitted(admin: &User) -> bool {
    admin.list(&kinds::WORKLOAD).iter().any(|workload| world::is(workload, "Admitted"))
}

/// Starts Setu for one gang of this many nodes, in this weather. `recorder` counts.
fn start(recorder: &PrometheusRecorder, nodes: usize, rules: &Value) -> Counted {
    let guards = "guards: {gangNodes: 100, claimsInFlight: 100, createsPerMinute: 1000}";
    let (mut cluster, admin) = world::cluster(ID, world::policy(guards));
    world::weather(&admin, rules);
    let setu = cluster.start_setu(&Start::default());
    admin.create(&kinds::JOB, world::job(ID, "gang", nodes, None)).unwrap();
    Counted { _cluster: cluster, admin, _setu: setu, metrics: recorder.handle() }
}

/// The reconciles of a gang of this many nodes: until it is admitted, in an hour of heartbeats, and until all of its nodes
/// are gone after its Job was deleted.
async fn counts(nodes: usize) -> [usize; 3] {
    let recorder = metrics::recorder().unwrap();
    let _recorder = ::metrics::set_default_local_recorder(&recorder);
    let counted = start(&recorder, nodes, &json!([]));
    let admitted = counted.until("admitted", is_admitted).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let before = counted.reconciles();
    for minute in 0..12 {
        for node in counted.admin.list(&kinds::NODE) {
            heartbeat(&counted.admin, &node, minute);
        }
        tokio::time::sleep(Duration::from_mins(5)).await;
    }
    let at_rest = counted.reconciles() - before;
    counted.admin.delete(&kinds::JOB, ID, "gang", Preconditions::default()).unwrap();
    let gone = counted.until("gone", |admin| admin.list(&kinds::NODE_CLAIM).is_empty()).await;
    [admitted, at_rest, gone]
}

/// The reconciles of a gang of this many nodes from the loss of one of them, before any registers, until the gang is
/// admitted.
async fn after_a_loss(nodes: usize) -> usize {
    let recorder = metrics::recorder().unwrap();
    let _recorder = ::metrics::set_default_local_recorder(&recorder);
    let counted = start(&recorder, nodes, &json!([{"registrationDelay": "30s"}]));
    let launched = |admin: &User| {
        admin.list(&kinds::NODE_CLAIM).iter().filter(|claim| world::is(claim, "Launched")).count() == nodes
    };
    counted.until("launched", launched).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let lost = counted.admin.list(&kinds::NODE_CLAIM)[nodes / 2]["metadata"]["name"].clone();
    counted.admin.delete(&kinds::NODE_CLAIM, "", lost.as_str().unwrap(), Preconditions::default()).unwrap();
    let count = counted.until("admitted", is_admitted).await;
    let claims = counted.admin.list(&kinds::NODE_CLAIM);
    assert!(claims.len() == nodes && claims.iter().all(|claim| claim["metadata"]["name"] != lost));
    count
}

/// Writes the status of a Node, as a kubelet does every five minutes.
fn heartbeat(admin: &User, node: &Value, minute: usize) {
    let mut conditions = node["status"]["conditions"].as_array().unwrap().clone();
    for condition in &mut conditions {
        condition["lastHeartbeatTime"] = json!(format!("2026-01-01T01:{minute:02}:00Z"));
    }
    let status = json!({"status": {"conditions": conditions}});
    admin.merge_status(&kinds::NODE, "", node["metadata"]["name"].as_str().unwrap(), &status).unwrap();
}

#[tokio::test(start_paused = true)]
async fn reconciles_do_not_grow_with_the_gang() {
    let (small, large) = (counts(4).await, counts(96).await);
    println!("until admitted, in an hour at rest, until gone: {small:?} for 4 nodes, {large:?} for 96");
    let most = [20, 8, 8];
    for (counted, most) in small.into_iter().chain(large).zip(most.into_iter().cycle()) {
        assert!(counted <= most, "{small:?} and {large:?} of {most:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reconciles_after_the_loss_of_a_node_do_not_grow_with_the_gang() {
    let (small, large) = (after_a_loss(4).await, after_a_loss(96).await);
    println!("from a loss until admitted: {small} for 4 nodes, {large} for 96");
    assert!(small.max(large) <= 20, "{small} and {large}");
}
