//! The gangs that benches lead through the embedded cluster, and its world.

use serde_json::{Value, json};
use setu::gang::StateName;
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::api::{User, kinds};
use setu::sim::scenario;

/// Name of the namespace, its NodePool and the check.
pub const ID: &str = "bench";

/// A policy whose guards hold nobody up who wants this many nodes.
pub fn policy(most: usize) -> PolicyFile {
    let text = format!(
        "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n\
         guards: {{gangNodes: {most}, claimsInFlight: {most}, createsPerMinute: {most}}}"
    );
    PolicyFile::parse(&text).unwrap()
}

/// Makes queues with quota for so many nodes, and what nodes are made of.
pub fn make_world(admin: &User, most: usize) {
    for object in scenario::objects(ID, u32::try_from(most).unwrap()).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
}

/// Submits the Jobs, whose pods run for so long.
pub fn submit(admin: &User, gangs: usize, nodes: usize, run_for: &str) {
    for i in 0..gangs {
        admin.create(&kinds::JOB, job(&format!("g{i}"), nodes, run_for)).unwrap();
    }
}

fn job(name: &str, nodes: usize, run_for: &str) -> Value {
    let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
        "spec": {"parallelism": nodes, "completions": nodes, "suspend": true, "template": {
            "metadata": {"annotations": {"e2e.setu/run-for": run_for}},
            "spec": {"restartPolicy": "Never", "containers": [
                {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
            ]},
        }},
    })
}

/// How many gangs are in a state.
pub fn in_state(admin: &User, state: StateName) -> usize {
    let (key, state) = (names::state_key(ID), state.to_string());
    let is =
        |w: &Value| w["metadata"]["annotations"][&key].as_str().is_some_and(|line| line.starts_with(&state));
    admin.list(&kinds::WORKLOAD).iter().filter(|w| is(w)).count()
}
