//! Keeps nodes after their gang, and gives them to the next one.
//!
//! Rule: the labels of a NodeClaim name its gang, and its annotations its slot. Both change by compare-and-swap. The Node
//! keeps the marks of its last gang until the next one marks it, and that is repeated until it succeeds.

use crate::api::{Node, NodeClaim};
use crate::cluster::decoded::Decoded;
use crate::effects::handover::{HandoverOutcome, NotReleased};
use crate::effects::{call, merge, patch_params, without, write};
use crate::error::Error;
use crate::gang::marks::{self, Mark, Says};
use crate::names;
use crate::plan::warm::KeptFor;
use crate::words::to_the_second;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube::api::{ListParams, Patch};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// The most claims of one gang that change hands at once.
const PARALLEL: usize = 32;

/// Keeps these claims for a next gang, in parallel.
pub async fn keep_all(client: &Client, claims: Vec<NodeClaim>, keeping: &KeptFor) -> HandoverOutcome {
    let answers = stream::iter(claims)
        .map(|claim| async move {
            let answer = keep(client, &claim, keeping).await;
            (claim, answer.map_err(NotReleased::from))
        })
        .buffer_unordered(PARALLEL);
    answers.fold(HandoverOutcome::default(), |all, answer| async { all.and(answer) }).await
}

async fn keep(client: &Client, claim: &NodeClaim, keeping: &KeptFor) -> Result<(), Error> {
    let of_gang = |mark: &&Mark| mark.says == Says::Gang;
    let mut labels = without(marks::LABELS.iter().filter(of_gang));
    labels.insert(names::WARM.to_owned(), json!(keeping.key));
    let mut annotations = without(marks::ANNOTATIONS.iter().filter(of_gang));
    for (key, value) in [
        (names::WARM_QUEUE, keeping.queue.clone()),
        (names::WARM_SINCE, to_the_second(keeping.since)),
        (names::HOLD_UNTIL, to_the_second(keeping.until)),
    ] {
        annotations.insert(key.to_owned(), value.into());
    }
    let name = claim.name_any();
    let patch = json!({"metadata": {
        "uid": claim.metadata.uid,
        "resourceVersion": claim.metadata.resource_version,
        "labels": labels,
        "annotations": annotations,
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
    let mut labels = labels(wanted);
    labels.insert(names::WARM.to_owned(), Value::Null);
    let mut annotations = annotations(wanted, |_| true);
    annotations.extend(without(marks::ANNOTATIONS.iter().filter(|mark| mark.says == Says::Warm)));
    annotations.insert(names::TAKEN_OVER.to_owned(), to_the_second(now).into());
    let patch = Patch::Merge(json!({"metadata": {
        "uid": kept.metadata.uid,
        "resourceVersion": kept.metadata.resource_version,
        "labels": labels,
        "annotations": annotations,
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
    merge(&api, "marking Node", name, &marked(claim, &node)).await
}

/// A list of taints can only be replaced as a whole, so the Node must be as it was read.
fn marked(claim: &NodeClaim, node: &Node) -> Value {
    let mut taints: Vec<Taint> =
        node.spec.taints.iter().filter(|taint| taint.key != names::GANG).cloned().collect();
    let own = claim.spec.taints.iter().filter(|taint| taint.key == names::GANG).cloned();
    taints.extend(own.map(|taint| Taint { value: Some(claim.label(names::GANG).to_owned()), ..taint }));
    let mut annotations = annotations(claim, |mark| mark.on_node);
    annotations.insert(names::DO_NOT_DISRUPT.to_owned(), "true".into());
    json!({
        "metadata": {
            "uid": node.metadata.uid,
            "resourceVersion": node.metadata.resource_version,
            "labels": labels(claim),
            "annotations": annotations,
        },
        "spec": {"taints": taints},
    })
}

/// Labels that name a claim's gang. Missing ones are removed, and so are those of earlier versions.
fn labels(claim: &NodeClaim) -> Map<String, Value> {
    let of_gang = marks::LABELS.iter().filter(|mark| mark.says == Says::Gang);
    of_gang.map(|mark| (mark.key.to_owned(), marks::label(claim, mark.key).into())).collect()
}

/// Annotations that name a claim's gang, its check and its hold. Missing ones are removed.
fn annotations(claim: &NodeClaim, is_meant: impl Fn(&Mark) -> bool) -> Map<String, Value> {
    let of_gang = |mark: &&Mark| matches!(mark.says, Says::Gang | Says::Check | Says::Hold) && is_meant(mark);
    let of_gang = marks::ANNOTATIONS.iter().filter(of_gang);
    of_gang.map(|mark| (mark.key.to_owned(), marks::annotation(claim, mark.key).into())).collect()
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
        let patch = marked(&claim, &node);
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
        assert_eq!(marked(&untainted, &Node::default())["spec"]["taints"], json!([]));
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
