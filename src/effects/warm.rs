//! Keeps nodes after their gang, and gives them to the next one.
//!
//! Rule: the labels of a NodeClaim name its gang, and its annotations its slot. Both change by compare-and-swap. The Node
//! keeps the marks of its last gang until the next one marks it, and that is repeated until it succeeds.

use crate::api::{Node, NodeClaim, Workload};
use crate::cluster::decoded::Decoded;
use crate::effects::handover::{NotReleased, ReleaseOutcome};
use crate::effects::{call, merge, patch_params, write};
use crate::error::Error;
use crate::names;
use crate::plan::warm::key;
use crate::policy::Policy;
use crate::words::to_the_second;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::api::{ListParams, Patch};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// The most claims of one gang that change hands at once.
const PARALLEL: usize = 32;

/// Labels that name a claim's gang.
const OWNERSHIP: [&str; 4] = [names::GANG, names::POD_SETS, names::WORKLOAD_UID, names::ATTEMPT];
/// Annotations that name its place there. Earlier versions wrote them as labels, which are removed.
const PLACE: [&str; 2] = [names::SLOT, names::GENERATION];

/// Who nodes are kept for, and how long.
#[derive(Clone, Debug)]
pub struct KeptFor {
    /// Value of the label [`names::WARM`].
    pub key: String,
    /// `namespace/name` of the LocalQueue.
    pub queue: String,
    /// Since when.
    pub since: Timestamp,
    /// Until when.
    pub until: Timestamp,
}

impl KeptFor {
    /// For the next gang of the LocalQueue of this Workload, whose nodes have this check and policy.
    pub fn of(workload: &Workload, check: &str, policy: &Policy, now: Timestamp) -> Self {
        let queue = workload.local_queue();
        let until = now.checked_add(policy.warm_for.signed()).unwrap_or(Timestamp::MAX);
        Self { key: key(&queue, check), queue, since: now, until }
    }
}

/// Keeps these claims for a next gang, in parallel.
pub async fn keep_all(client: &Client, claims: Vec<NodeClaim>, keeping: &KeptFor) -> ReleaseOutcome {
    let answers = stream::iter(claims)
        .map(|claim| async move {
            let answer = keep(client, &claim, keeping).await;
            (claim, answer.map_err(NotReleased::from))
        })
        .buffer_unordered(PARALLEL);
    answers.fold(ReleaseOutcome::default(), |all, answer| async { all.and(answer) }).await
}

async fn keep(client: &Client, claim: &NodeClaim, keeping: &KeptFor) -> Result<(), Error> {
    let mut labels: Map<String, Value> =
        OWNERSHIP.iter().chain(&PLACE).map(|key| ((*key).to_owned(), Value::Null)).collect();
    let name = claim.name_any();
    labels.insert(names::WARM.to_owned(), json!(keeping.key));
    let patch = json!({"metadata": {
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
        "labels": labels,
        "annotations": {
            names::WORKLOAD: null, names::OWNER: null, names::TAKEN_OVER: null, names::SLOT: null,
            names::GENERATION: null, names::TERMS: null,
            names::WARM_QUEUE: keeping.queue,
            names::WARM_SINCE: to_the_second(keeping.since),
            names::HOLD_UNTIL: to_the_second(keeping.until),
        },
    }});
    let api: Api<NodeClaim> = Api::all(client.clone());
    merge(&api, "keeping NodeClaim", &name, &patch).await?;
    tracing::info!(nodeclaim = name, queue = keeping.queue, until = %keeping.until, "kept a NodeClaim warm");
    Ok(())
}

/// Claims that are kept under this key, read from the API server.
pub async fn kept(client: &Client, key: &str) -> Result<Vec<NodeClaim>, Error> {
    let selector = format!("{}={},{}={key}", names::MANAGED_BY, names::SETU, names::WARM);
    let api: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let list =
        call("listing kept NodeClaims", key, api.list(&ListParams::default().labels(&selector))).await?;
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).collect())
}

/// Turns a kept claim into `wanted`, which was to be created. `None` if it is gone.
///
/// # Errors
/// [`Error::Conflict`] if the claim has changed since it was read. Another gang may have it, or another replica took it
/// over for this gang. Otherwise the API server's error. Without a reply, the claim may have changed hands.
pub async fn take_over(
    client: &Client,
    kept: &NodeClaim,
    wanted: &NodeClaim,
    now: Timestamp,
) -> Result<Option<NodeClaim>, Error> {
    let mut labels = ownership(wanted);
    labels.insert(names::WARM.to_owned(), Value::Null);
    let patch = Patch::Merge(json!({"metadata": {
        "uid": kept.metadata.uid,
        "resourceVersion": kept.metadata.resource_version,
        "labels": labels,
        "annotations": {
            names::WARM_QUEUE: null, names::WARM_SINCE: null,
            names::WORKLOAD: wanted.annotation(names::WORKLOAD),
            names::OWNER: optional(wanted, names::OWNER),
            names::CHECK: wanted.annotation(names::CHECK),
            names::HOLD_UNTIL: wanted.annotation(names::HOLD_UNTIL),
            names::TERMS: optional(wanted, names::TERMS),
            names::TAKEN_OVER: to_the_second(now),
            names::DO_NOT_REPAIR: optional(wanted, names::DO_NOT_REPAIR),
            names::SLOT: slot(wanted),
            names::GENERATION: wanted.generation().to_string(),
        },
    }}));
    let name = kept.name_any();
    let api: Api<NodeClaim> = Api::all(client.clone());
    match write("taking over NodeClaim", &name, api.patch(&name, &patch_params(), &patch)).await {
        Ok(taken) => {
            tracing::info!(
                nodeclaim = name,
                workload = taken.annotation(names::WORKLOAD),
                "took over a kept NodeClaim"
            );
            Ok(Some(taken))
        }
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Marks the Node of a taken-over claim as its gang's. The Node may be gone already.
///
/// # Errors
/// The API server's error, conflicts included. The next try reads the Node again.
pub async fn mark_node(client: &Client, claim: &NodeClaim) -> Result<(), Error> {
    let Some(name) = claim.node_name() else { return Ok(()) };
    let api: Api<Node> = Api::all(client.clone());
    let Some(node) = call("reading Node", name, api.get_opt(name)).await? else { return Ok(()) };
    merge(&api, "marking Node", name, &marks(claim, &node)).await
}

/// A list of taints can only be replaced as a whole, so the Node must be as it was read.
fn marks(claim: &NodeClaim, node: &Node) -> Value {
    let mut taints: Vec<Taint> =
        node.spec.taints.iter().filter(|taint| taint.key != names::GANG).cloned().collect();
    let own = claim.spec.taints.iter().filter(|taint| taint.key == names::GANG).cloned();
    taints.extend(own.map(|taint| Taint { value: Some(claim.label(names::GANG).to_owned()), ..taint }));
    json!({
        "metadata": {
            "uid": node.metadata.uid,
            "resourceVersion": node.metadata.resource_version,
            "labels": ownership(claim),
            "annotations": {
                names::DO_NOT_DISRUPT: "true",
                names::DO_NOT_REPAIR: optional(claim, names::DO_NOT_REPAIR),
                names::WORKLOAD: claim.annotation(names::WORKLOAD),
                names::OWNER: optional(claim, names::OWNER),
                names::CHECK: claim.annotation(names::CHECK),
                names::HOLD_UNTIL: claim.annotation(names::HOLD_UNTIL),
                names::SLOT: slot(claim),
                names::GENERATION: claim.generation().to_string(),
            },
        },
        "spec": {"taints": taints},
    })
}

/// Value of an annotation; null if the claim does not have it.
fn optional<'c>(claim: &'c NodeClaim, key: &str) -> Option<&'c str> {
    Some(claim.annotation(key)).filter(|value| !value.is_empty())
}

/// Its slot as an annotation value; null if it has none.
fn slot(claim: &NodeClaim) -> Option<String> {
    claim.slot().map(|slot| slot.to_string())
}

/// Labels that name a claim's gang. Missing ones are removed, and so are those of earlier versions.
fn ownership(claim: &NodeClaim) -> Map<String, Value> {
    let value = |key: &&str| {
        Some(claim.label(key)).filter(|value| !value.is_empty()).map_or(Value::Null, Value::from)
    };
    let own = OWNERSHIP.iter().map(|key| ((*key).to_owned(), value(key)));
    own.chain(PLACE.iter().map(|key| ((*key).to_owned(), Value::Null))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;

    #[test]
    fn a_node_that_changes_hands_gets_the_new_gangs_marks_and_keeps_what_is_not_ours() {
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "c", "annotations": {names::WORKLOAD: "team/second", names::SLOT: "3"},
                "labels": {names::GANG: "new", names::WORKLOAD_UID: "uid", names::ATTEMPT: "1"},
            },
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "taints": [{"key": names::GANG, "value": "first", "effect": "NoSchedule"}],
            },
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
            "spec": {"taints": [
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                {"key": names::GANG, "value": "old", "effect": "NoSchedule"},
            ]},
        }))
        .unwrap();
        let patch = marks(&claim, &node);
        assert_eq!(
            patch["spec"]["taints"],
            json!([
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                {"key": names::GANG, "value": "new", "effect": "NoSchedule"},
            ])
        );
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["annotations"][names::SLOT], "3");
        assert_eq!(patch["metadata"]["annotations"][names::GENERATION], "0");
        let woken = &patch["metadata"]["annotations"][names::WORKLOAD];
        assert_eq!(woken, "team/second", "changes of the Node wake the new gang");
        assert_eq!(
            patch["metadata"]["labels"],
            json!({
                names::GANG: "new", names::POD_SETS: null, names::WORKLOAD_UID: "uid", names::ATTEMPT: "1",
                names::SLOT: null, names::GENERATION: null,
            })
        );
        let untainted = NodeClaim { spec: crate::api::node_claim::NodeClaimSpec::default(), ..claim };
        assert_eq!(marks(&untainted, &Node::default())["spec"]["taints"], json!([]));
    }

    #[tokio::test]
    async fn a_claim_is_only_kept_as_it_was_read() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let (request, answer) = handle.next_request().await.unwrap();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            answer.send_response(Response::builder().status(409).body(Body::empty()).unwrap());
            serde_json::from_slice::<Value>(&body).unwrap()
        });
        let claim: NodeClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "uid": "u", "resourceVersion": "7"},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap();
        let now = Timestamp::UNIX_EPOCH;
        let keeping = KeptFor { key: "key".into(), queue: "team/queue".into(), since: now, until: now };
        let error = keep(&Client::new(service, "default"), &claim, &keeping).await.unwrap_err();
        assert_eq!(error.code(), Some(409));
        let metadata = server.await.unwrap()["metadata"].take();
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
    }
}
