//! A gang to plan, for `benches/pure.rs` and `tests/size.rs`.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use setu::api::{ClusterQueue, Workload};
use setu::plan::{OptionSelection, Outcome, PlanObjects, PlanRequest, PlanSnapshot, plan};
use setu::policy::Policy;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// What a plan is made of.
pub struct World {
    workload: Workload,
    queue: ClusterQueue,
    objects: PlanObjects,
    policy: Policy,
}

impl World {
    /// A gang of this many pods with these requests, on a NodePool with this NodeClass and these requirements.
    pub fn new(pods: u32, requests: &Value, class: &Value, requirements: &Value) -> Self {
        let covered: Vec<&String> = requests.as_object().unwrap().keys().collect();
        let flavors: BTreeMap<&str, &str> = covered.iter().map(|name| (name.as_str(), "main")).collect();
        let quota: Vec<Value> =
            covered.iter().map(|name| json!({"name": name, "nominalQuota": "100000Gi"})).collect();
        Self {
            workload: object(json!({
                "metadata": {"name": "w", "namespace": "ns", "uid": "u"},
                "spec": {"queueName": "lq", "podSets": [{"name": "main", "count": pods, "template": {"spec": {
                    "containers": [{"name": "c", "resources": {"requests": requests}}],
                }}}]},
                "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [
                    {"name": "main", "flavors": flavors, "count": pods},
                ]}},
            })),
            queue: object(json!({
                "metadata": {"name": "q"},
                "spec": {
                    "admissionChecksStrategy": {"admissionChecks": [{"name": "prov"}]},
                    "resourceGroups": [{"coveredResources": covered, "flavors": [{"name": "main", "resources": quota}]}],
                },
            })),
            objects: PlanObjects {
                flavors: vec![Arc::new(object(json!({"metadata": {"name": "main"}, "spec": {}})))],
                node_pools: vec![Arc::new(object(json!({
                    "metadata": {"name": "main", "uid": "u", "generation": 1},
                    "spec": {"template": {"spec": {"nodeClassRef": class, "requirements": requirements}}},
                    "status": {"conditions": [{
                        "type": "Ready", "status": "True", "reason": "R", "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }]},
                })))],
                ..PlanObjects::default()
            },
            policy: Policy { node_pool: Some("main".into()), gang_nodes: 5_000, ..Policy::default() },
        }
    }

    /// Plans it.
    pub fn plan(&self) -> Outcome {
        let cluster = PlanSnapshot::with(Some(&self.queue), &self.objects);
        let request = PlanRequest {
            workload: &self.workload,
            check: "prov",
            our_checks: &["prov".to_owned()],
            answered_checks: &["prov".to_owned()],
            gang_label: "gang",
            policy: &self.policy,
            selection: OptionSelection::From(0),
        };
        plan(black_box(&cluster), black_box(&request))
    }
}
