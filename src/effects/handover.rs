//! Gives nodes back to Karpenter.

use crate::api::{Node, NodeClaim};
use crate::effects::claims::current;
use crate::effects::{call, merge, without};
use crate::error::Error;
use crate::gang::marks::{self, Says};
use crate::names;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Taint;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// The most claims of one gang that are handed back at once.
const PARALLEL: usize = 32;

/// Lets Karpenter disrupt a claim and its Node again. Either may be gone already.
pub async fn hand_back_for_uninstall(client: &Client, claim: &NodeClaim) -> Result<(), Error> {
    let hold = marks::ANNOTATIONS.iter().filter(|mark| mark.says == Says::Hold);
    let patch = json!({"metadata": {"annotations": without(hold)}});
    let name = claim.name_any();
    let api: Api<NodeClaim> = Api::all(client.clone());
    merge(&api, "releasing NodeClaim", &name, &patch).await?;
    let Some(node) = claim.node_name() else { return Ok(()) };
    let api: Api<Node> = Api::all(client.clone());
    merge(&api, "releasing Node", node, &patch).await
}

/// The result of handing back or keeping several claims.
#[derive(Debug, Default)]
pub struct HandoverOutcome {
    /// Claims that Setu may not change, and that are still its own.
    pub forbidden: Vec<NodeClaim>,
    /// The first other failure; the next try does the rest.
    pub failed: Option<Error>,
}

/// Why a claim was not released.
pub(super) enum NotReleased {
    /// Setu may not change it, and it is still its own.
    Forbidden(Error),
    /// Something else: the next try does the rest.
    Failed(Error),
}

impl From<Error> for NotReleased {
    fn from(error: Error) -> Self {
        if error.is_forbidden() { Self::Forbidden(error) } else { Self::Failed(error) }
    }
}

impl HandoverOutcome {
    /// Adds the answer for one more claim.
    pub(super) fn and(mut self, (claim, answer): (NodeClaim, Result<(), NotReleased>)) -> Self {
        match answer {
            Ok(()) => {}
            Err(NotReleased::Forbidden(error)) => {
                tracing::warn!(nodeclaim = claim.name_any(), error = %error.in_full(), "not allowed to patch a NodeClaim or its Node; set rbac.handBack in the chart");
                self.forbidden.push(claim);
            }
            Err(NotReleased::Failed(error)) => self.failed = self.failed.or(Some(error)),
        }
        self
    }
}

/// Makes these claims and their Nodes Karpenter's own, in parallel: removes all of Setu's metadata.
pub async fn hand_back_all(client: &Client, claims: Vec<NodeClaim>) -> HandoverOutcome {
    let answers = stream::iter(claims)
        .map(|claim| async move {
            let answer = match hand_back(client, &claim).await {
                Err(error) if error.is_forbidden() => Err(after_refusal(client, &claim, error).await),
                answer => answer.map_err(NotReleased::Failed),
            };
            (claim, answer)
        })
        .buffer_unordered(PARALLEL);
    answers.fold(HandoverOutcome::default(), |all, answer| async { all.and(answer) }).await
}

/// Classifies a refusal for a claim: it is still its gang's own, unless it is marked and its Node no longer has our label. Then
/// other pods may be there.
async fn after_refusal(client: &Client, claim: &NodeClaim, refusal: Error) -> NotReleased {
    let is_ours = async {
        let found = current(client, &claim.name_any()).await?;
        let Some(marked) = found.filter(NodeClaim::is_handing_back) else { return Ok(true) };
        let Some(name) = marked.node_name() else { return Ok(false) };
        let api: Api<Node> = Api::all(client.clone());
        let node = call("reading Node", name, api.get_opt(name)).await?;
        Ok(node.is_some_and(|node| node.label(names::MANAGED_BY) == names::SETU))
    };
    match is_ours.await {
        Ok(true) => NotReleased::Forbidden(refusal),
        Ok(false) => NotReleased::Failed(refusal),
        Err(unread) => NotReleased::Failed(unread),
    }
}

/// Marks the claim first: once the Node is Karpenter's, other pods may come to it, and a later try must not delete it.
/// Then releases the Node, and the claim last: its label shows that something is left to do.
async fn hand_back(client: &Client, claim: &NodeClaim) -> Result<(), Error> {
    let name = claim.name_any();
    let api: Api<NodeClaim> = Api::all(client.clone());
    if !claim.is_handing_back() {
        let mark = json!({"metadata": {
            "uid": claim.metadata.uid, "annotations": {names::HANDING_BACK: "true"},
        }});
        merge(&api, "marking NodeClaim to hand it back", &name, &mark).await?;
    }
    if let Some(node) = claim.node_name() {
        let api: Api<Node> = Api::all(client.clone());
        if let Some(found) = call("reading Node", node, api.get_opt(node)).await? {
            let patch = node_without_ours(&found);
            merge(&api, "handing back Node", node, &patch).await?;
        }
    }
    let patch = json!({"metadata": unmarked(claim.metadata.uid.as_deref())});
    merge(&api, "handing back NodeClaim", &name, &patch).await?;
    tracing::info!(nodeclaim = name, "handed a NodeClaim back to Karpenter");
    Ok(())
}

/// Metadata that removes everything of ours from an object of this UID.
fn unmarked(uid: Option<&str>) -> Map<String, Value> {
    Map::from_iter([
        ("uid".to_owned(), json!(uid)),
        ("labels".to_owned(), without(&marks::LABELS).into()),
        ("annotations".to_owned(), without(&marks::ANNOTATIONS).into()),
    ])
}

/// A list of taints can only be replaced as a whole, so the Node must be as it was read.
fn node_without_ours(node: &Node) -> Value {
    let mut metadata = unmarked(node.metadata.uid.as_deref());
    if !node.spec.taints.iter().any(|taint| taint.key == names::GANG) {
        return json!({"metadata": metadata});
    }
    metadata.insert("resourceVersion".to_owned(), json!(node.metadata.resource_version));
    let others: Vec<&Taint> = node.spec.taints.iter().filter(|taint| taint.key != names::GANG).collect();
    json!({"metadata": metadata, "spec": {"taints": others}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_handed_back_keeps_what_is_not_ours() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": "u", "resourceVersion": "7"},
            "spec": {"taints": [
                {"key": "dedicated", "value": "ml", "effect": "NoSchedule"},
                {"key": names::GANG, "value": "g", "effect": "NoSchedule"},
            ]},
        }))
        .unwrap();
        let patch = node_without_ours(&node);
        assert_eq!(
            patch["spec"]["taints"],
            json!([{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}])
        );
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["metadata"]["labels"][names::GANG], Value::Null);
        assert_eq!(patch["metadata"]["annotations"][names::DO_NOT_DISRUPT], Value::Null);
        assert_eq!(patch["metadata"]["annotations"].get(names::DO_NOT_REPAIR), Some(&Value::Null));
        assert_eq!(patch["metadata"]["labels"][names::GENERATION], Value::Null);
        assert_eq!(patch["metadata"]["annotations"][names::GENERATION], Value::Null);
        assert_eq!(patch["metadata"]["labels"].as_object().unwrap().len(), marks::LABELS.len());
        assert_eq!(patch["metadata"]["annotations"].as_object().unwrap().len(), marks::ANNOTATIONS.len());
        let untainted = node_without_ours(&Node::default());
        assert_eq!(untainted.get("spec"), None);
        assert_eq!(untainted["metadata"].get("resourceVersion"), None);
    }
}
