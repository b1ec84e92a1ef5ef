//! Lets go of what Setu holds in a cluster it is leaving: nodes go back to Karpenter, Workloads lose
//! what only Setu would ever take away.

use crate::api::{Node, NodeClaim, Workload};
use crate::effects::call;
use crate::error::Error;
use crate::names;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// Lets Karpenter disrupt a claim and its Node again. Neither need exist any more.
pub async fn release_node(client: &Client, claim: &NodeClaim) -> Result<(), Error> {
    let patch = json!({"metadata": {"annotations": {names::DO_NOT_DISRUPT: null, names::HOLD_UNTIL: null}}});
    let name = claim.name_any();
    let api: Api<NodeClaim> = Api::all(client.clone());
    there(call("releasing NodeClaim", &name, api.patch(&name, &params(), &Patch::Merge(&patch))).await)?;
    let Some(node) = claim.status.as_ref().map(|s| &s.node_name).filter(|n| !n.is_empty()) else {
        return Ok(());
    };
    let api: Api<Node> = Api::all(client.clone());
    there(call("releasing Node", node, api.patch(node, &params(), &Patch::Merge(&patch))).await)
}

/// Takes Setu's finalizer off a Workload and, if asked to, its annotations. Returns whether there was
/// anything to take.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn release_workload(
    client: &Client,
    workload: &Workload,
    annotations: Annotations,
) -> Result<bool, Error> {
    let Some(patch) = without_ours(workload, annotations) else {
        return Ok(false);
    };
    let name = workload.name_any();
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    there(call("releasing Workload", &name, api.patch(&name, &params(), &Patch::Merge(&patch))).await)?;
    Ok(true)
}

/// What becomes of the journals on Workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotations {
    /// They stay, so that Setu goes on from there when it comes back.
    Keep,
    /// They go.
    Remove,
}

fn without_ours(workload: &Workload, annotations: Annotations) -> Option<Value> {
    let ours = |key: &&String| key.starts_with(names::JOURNAL_PREFIX) || key.starts_with(names::STATE_PREFIX);
    let gone: Map<String, Value> = match annotations {
        Annotations::Keep => Map::new(),
        Annotations::Remove => {
            workload.annotations().keys().filter(ours).map(|k| (k.clone(), Value::Null)).collect()
        }
    };
    let finalizers = workload.finalizers();
    let left: Vec<&String> = finalizers.iter().filter(|f| *f != names::FINALIZER).collect();
    if gone.is_empty() && left.len() == finalizers.len() {
        return None;
    }
    let version = workload.resource_version();
    Some(json!({
        "metadata": {"resourceVersion": version, "finalizers": left, "annotations": gone},
    }))
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// What is gone needs no release.
fn there<T>(answer: Result<T, Error>) -> Result<(), Error> {
    match answer {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::WorkloadSpec;

    #[test]
    fn only_what_is_ours_is_taken_off_a_workload() {
        let mut workload = Workload::new("w", WorkloadSpec::default());
        assert_eq!(without_ours(&workload, Annotations::Remove), None);
        workload.metadata.finalizers = Some(vec!["others/theirs".into(), names::FINALIZER.into()]);
        let annotations = [(names::journal_key("c"), "{}"), ("others/theirs".to_owned(), "x")];
        workload.metadata.annotations = Some(annotations.map(|(k, v)| (k, v.to_owned())).into());
        let kept = without_ours(&workload, Annotations::Keep).unwrap();
        assert_eq!(kept["metadata"]["finalizers"], json!(["others/theirs"]));
        assert_eq!(kept["metadata"]["annotations"], json!({}));
        let removed = without_ours(&workload, Annotations::Remove).unwrap();
        assert_eq!(removed["metadata"]["annotations"], json!({names::journal_key("c"): null}));
    }
}
