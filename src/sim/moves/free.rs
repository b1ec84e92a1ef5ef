//! What stands about in a cluster and is no gang's: nodes that nobody asked for, and NodeClaims whose
//! names a gang would like to have.

use super::Props;
use crate::gang::{GangIdentity, Journal};
use crate::names;
use crate::sim::api::{Preconditions, User, kinds};
use crate::sim::values::{annotation, name, namespace, set, uid, with_condition};
use jiff::Timestamp;
use serde_json::{Value, json};

/// On everything that is made here.
const FREE: &str = "example.com/free";
/// Sorts before the nodes of gangs, and so is the scheduler's first choice.
const NODE: &str = "a-free-node";

/// Takes the name of the first claim of a gang's next attempt.
pub fn squat(user: &User, workload: &Value, props: &Props<'_>) {
    let journal = annotation(workload, &names::journal_key(props.check));
    let known = Journal::decode(journal, uid(workload), Timestamp::MIN, Timestamp::MAX);
    let identity = GangIdentity {
        namespace: namespace(workload).to_owned(),
        workload: name(workload).to_owned(),
        uid: uid(workload).to_owned(),
        check: props.check.to_owned(),
    };
    let next = known.map_or(0, |journal| journal.memory.attempt).saturating_add(1);
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": identity.claim_name(next, 0), "annotations": {FREE: "true"},
            "labels": {(names::NODEPOOL): props.id},
        },
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": props.id},
            "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
        },
    });
    // Taken already, by the gang or by us.
    let _ = user.create(&kinds::NODE_CLAIM, claim);
}

/// Has a node stand free on which every pod of the queue's flavors fits.
pub fn stand(user: &User, props: &Props<'_>, now: Timestamp) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": NODE, "annotations": {FREE: "true"},
            "labels": {"pool": props.id, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
        "spec": {},
    });
    let Ok(node) = user.create(&kinds::NODE, node) else { return };
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"});
    let mut status = json!({"status": {"capacity": room, "allocatable": room}});
    set(
        &mut status,
        &["status", "conditions"],
        json!(with_condition(&node, ("Ready", "True"), ("Free", ""), now)),
    );
    let _ = user.merge_status(&kinds::NODE, "", NODE, &status);
}

/// Takes everything away that was made here.
pub fn clear(user: &User) {
    for kind in [&kinds::NODE_CLAIM, &kinds::NODE] {
        for object in user.list(kind).iter().filter(|o| !annotation(o, FREE).is_empty()) {
            let _ = user.delete(kind, "", name(object), Preconditions::default());
        }
    }
}
