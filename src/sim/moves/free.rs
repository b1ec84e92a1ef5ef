//! Objects that belong to no gang: idle nodes, NodeClaims that take a gang's names or limits, and pods that take
//! its room.

use super::Props;
use crate::gang::identity::gang_id;
use crate::gang::{GangIdentity, Journal};
use crate::names;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_sim::api::{Preconditions, User, kinds};
use setu_sim::values::{annotation, label, name, namespace, set, uid, with_condition};

/// Annotation on all objects made here.
const FREE: &str = "example.com/free";
/// Sorts before the nodes of gangs, so the scheduler prefers it.
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
    claim(user, &identity.claim_name(next, 0), props);
}

/// Creates a NodeClaim that belongs to no gang.
fn claim(user: &User, name: &str, props: &Props<'_>) {
    let claim = json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": name, "annotations": {FREE: "true"},
            "labels": {(names::NODEPOOL): props.id},
        },
        "spec": {
            "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": props.id},
            "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
        },
    });
    // The name may be taken already, by the gang or by an earlier move.
    let _ = user.create(&kinds::NODE_CLAIM, claim);
}

/// Sets NodePool limits, and fills them with a foreign NodeClaim.
pub fn take_limit(user: &User, props: &Props<'_>) {
    let nodes = user.list(&kinds::NODE_CLAIM).len().saturating_add(1);
    let _ = user.merge(
        &kinds::NODE_POOL,
        "",
        props.id,
        &json!({"spec": {"limits": {"nodes": nodes.to_string()}}}),
    );
    claim(user, "of-others", props);
}

/// Creates a pod that goes to the nodes of this Workload's gang, and stays there.
pub fn foreign_pod(user: &User, workload: &Value, props: &Props<'_>) {
    let claims = user.list(&kinds::NODE_CLAIM);
    let own = claims.iter().find(|claim| label(claim, names::WORKLOAD_UID) == uid(workload));
    let gang =
        own.map_or_else(|| gang_id(uid(workload), props.check), |claim| label(claim, names::GANG).to_owned());
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace(workload), "name": format!("foreign-{}", name(workload)),
            "annotations": {FREE: "true"},
            "labels": {
                (names::MANAGED_BY): names::SETU, (names::WORKLOAD_UID): uid(workload), (names::GANG): gang,
            },
        },
        "spec": {
            "nodeSelector": {(names::GANG): gang}, "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "main", "image": "none",
                "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
            }],
        },
    });
    // It may exist already.
    let _ = user.create(&kinds::POD, pod);
}

/// Adds an idle node on which every pod of the queue's flavors fits.
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

/// Deletes everything that was made here.
pub fn clear(user: &User) {
    for kind in [&kinds::NODE_CLAIM, &kinds::NODE, &kinds::POD] {
        for object in user.list(kind).iter().filter(|o| !annotation(o, FREE).is_empty()) {
            let _ = user.delete(kind, namespace(object), name(object), Preconditions::default());
        }
    }
}
