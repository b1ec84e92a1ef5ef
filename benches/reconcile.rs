//! Gangs through the embedded cluster on one core: how many come to their nodes in a second, and how long
//! the whole of their lives takes. The server, Kueue, Karpenter and the machines run on the same core.
//!
//! `cargo bench --bench reconcile -- [GANGS] [NODES]`

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a tool that prints figures"
)]

use serde_json::{Value, json};
use setu::clock::Clock;
use setu::gang::StateName;
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::api::{User, kinds};
use setu::sim::cluster::{Cluster, Start};
use setu::sim::scenario;
use std::time::{Duration, Instant};

const ID: &str = "bench";

fn job(name: &str, nodes: usize) -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
            "metadata": {"annotations": {"e2e.setu/run-for": "600s"}},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
            ]},
        }},
    })
}

/// Waits until every gang is in a state, and returns how long that took.
async fn until(admin: &User, gangs: usize, state: StateName) -> Duration {
    let start = Instant::now();
    let key = names::state_key(ID);
    let is = |w: &Value| {
        w["metadata"]["annotations"][&key].as_str().is_some_and(|line| line.starts_with(&state.to_string()))
    };
    loop {
        let workloads = admin.list(&kinds::WORKLOAD);
        if workloads.len() == gangs && workloads.iter().all(|w| is(w)) {
            return start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_mins(10), "not all gangs are {state}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let gangs = numbers.first().copied().unwrap_or(300);
    let nodes = numbers.get(1).copied().unwrap_or(4);
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let most = 2 * gangs * nodes;
    let policy = format!(
        "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n\
         guards: {{gangNodes: {most}, claimsInFlight: {most}, createsPerMinute: {most}}}"
    );
    let mut cluster =
        Cluster::start(7, &clock, &scenario::controller_name_of(ID), PolicyFile::parse(&policy).unwrap());
    let admin = cluster.server.user("admin");
    for object in scenario::objects(ID, u32::try_from(most).unwrap()).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    let setu = cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(5)).await;
    for i in 0..gangs {
        admin.create(&kinds::JOB, job(&format!("g{i}"), nodes)).unwrap();
    }
    let virtual_start = tokio::time::Instant::now();
    let took = until(&admin, gangs, StateName::Approved).await;
    println!(
        "{gangs} gangs of {nodes} nodes from submission to Approved in {took:.2?} on one core ({:.0?} of virtual time): \
         {:.0} gangs/s; {} writes of Setu",
        virtual_start.elapsed(),
        gangs as f64 / took.as_secs_f64(),
        setu.wire.written().len(),
    );
}
