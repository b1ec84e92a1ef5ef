//! The gangs of the benches in the embedded cluster, and their world.

use serde_json::{Value, json};
use setu::gang::StateName;
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::scenario;
use setu_sim::api::{User, kinds};

/// The name of the namespace, the NodePool and the check.
pub const ID: &str = "bench";

/// A policy whose guards delay no gang with up to this many nodes.
pub fn policy(most: usize) -> PolicyFile {
    let text = format!(
        "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n\
         guards: {{gangNodes: {most}, claimsInFlight: {most}, createsPerMinute: {most}}}"
    );
    PolicyFile::parse(&text).unwrap()
}

/// Creates queues with quota for this many nodes, and the objects that nodes depend on.
pub fn make_world(admin: &User, most: usize) {
    for object in scenario::objects(ID, u32::try_from(most).unwrap()).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
}

/// Submits the Jobs. Their pods run for this long.
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

/// The number of gangs in a state.
pub fn in_state(admin: &User, state: StateName) -> usize {
    let (key, state) = (names::state_key(ID), state.to_string());
    let is =
        |w: &Value| w["metadata"]["annotations"][&key].as_str().is_some_and(|line| line.starts_with(&state));
    admin.list(&kinds::WORKLOAD).iter().filter(|w| is(w)).count()
}
