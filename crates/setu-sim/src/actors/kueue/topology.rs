//! Topology placement: on existing nodes as quota is reserved. If Kueue's own provisioning is among the checks, it is delayed, and
//! then done in a second pass over the new nodes.

use super::jobs::additions;
use super::set_status;
use crate::actors::scheduler::pods_that_fit;
use crate::api::User;
use crate::api::kinds;
use crate::values::{list, map, number, set, text};
use serde_json::{Value, json};
use setu_core::names;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The topology level at which all pods of a pod set must share one domain.
const REQUIRED: &str = "kueue.x-k8s.io/podset-required-topology";
const PENDING: &str = "Pending";

/// Whether placement on these flavors is delayed until the nodes exist.
pub fn is_put_off(user: &User, queue: &Value, flavors: &BTreeMap<String, String>) -> bool {
    let provisions = |check: &Value| {
        let found = user.get(&kinds::ADMISSION_CHECK, "", text(check, "/name"));
        found.is_some_and(|c| text(&c, "/spec/controllerName") == names::PROVISIONING_REQUEST)
    };
    flavors.values().any(|flavor| !levels(user, flavor).is_empty())
        && list(queue, "/spec/admissionChecksStrategy/admissionChecks").iter().any(provisions)
}

/// Node labels of a flavor's topology levels; empty if it has no topology.
fn levels(user: &User, flavor: &str) -> Vec<String> {
    let flavor = user.get(&kinds::RESOURCE_FLAVOR, "", flavor).unwrap_or_default();
    let topology = user.get(&kinds::TOPOLOGY, "", text(&flavor, "/spec/topologyName")).unwrap_or_default();
    list(&topology, "/spec/levels").iter().map(|level| text(level, "/nodeLabel").to_owned()).collect()
}

/// These assignments, with the pod sets on flavors with a topology placed on existing nodes, except the delayed ones. `None` if
/// they have no room there.
pub fn placed(user: &User, workload: &Value, mut assignments: Vec<Value>) -> Option<Vec<Value>> {
    let mut reserved = workload.clone();
    set(&mut reserved, &["status", "admission", "podSetAssignments"], json!(assignments));
    for assignment in assignments.iter_mut().filter(|a| text(a, "/delayedTopologyRequest").is_empty()) {
        if map(assignment, "/flavors").values().all(|flavor| levels(user, flavor).is_empty()) {
            continue;
        }
        let domain = domain(user, &reserved, assignment, &user.list(&kinds::NODE))?;
        set(assignment, &["topologyAssignment"], domain);
    }
    Some(assignments)
}

/// Places the delayed pod sets. Returns whether all pods have a place now.
pub fn place(user: &User, workload: &Value) -> bool {
    let mut assignments = list(workload, "/status/admission/podSetAssignments").to_vec();
    let nodes = user.list(&kinds::NODE);
    let mut changed = false;
    for assignment in assignments.iter_mut().filter(|a| text(a, "/delayedTopologyRequest") == PENDING) {
        let Some(placed) = domain(user, workload, assignment, &nodes) else { return false };
        if let Some(fields) = assignment.as_object_mut() {
            fields.insert("delayedTopologyRequest".to_owned(), json!("Ready"));
            fields.insert("topologyAssignment".to_owned(), placed);
        }
        changed = true;
    }
    if changed {
        set_assignments(user, workload, &assignments);
    }
    true
}

/// Replaces the pod set assignments of an admission.
fn set_assignments(user: &User, workload: &Value, assignments: &[Value]) {
    let queue = text(workload, "/status/admission/clusterQueue");
    let admission = json!({"clusterQueue": queue, "podSetAssignments": assignments});
    set_status(user, workload, &json!({"admission": admission}));
}

/// The first domain with room for a pod set.
fn domain(user: &User, workload: &Value, assignment: &Value, nodes: &[Arc<Value>]) -> Option<Value> {
    let pod_set = text(assignment, "/name");
    let template = list(workload, "/spec/podSets").iter().find(|s| text(s, "/name") == pod_set)?;
    let levels: Vec<String> =
        map(assignment, "/flavors").values().flat_map(|flavor| levels(user, flavor)).collect();
    let required = map(template, "/template/metadata/annotations").remove(REQUIRED).unwrap_or_default();
    let (selector, tolerations) = additions(user, workload, pod_set).ok()?;
    let pod = json!({"spec": {
        "nodeSelector": selector, "tolerations": tolerations,
        "containers": template.pointer("/template/spec/containers"),
    }});
    let mut domains: BTreeMap<String, Vec<&Arc<Value>>> = BTreeMap::new();
    for node in nodes {
        let labels = map(node, "/metadata/labels");
        if levels.iter().all(|level| labels.contains_key(level)) {
            domains.entry(labels.get(&required).cloned().unwrap_or_default()).or_default().push(node);
        }
    }
    let count = number(assignment, "/count");
    let has_room = |hosts: &[&Arc<Value>]| pods_that_fit(hosts.iter().map(|node| &***node), &pod) >= count;
    let (value, _) = domains.into_iter().find(|(_, hosts)| has_room(hosts))?;
    Some(json!({"levels": [required], "domains": [{"values": [value], "count": count}]}))
}
