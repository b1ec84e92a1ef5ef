//! Scales the controller's own Deployment to zero, so that it ends before its leftovers are removed.

use crate::effects::{patch_params, write};
use crate::error::Error;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Patch;
use kube::{Api, Client};
use serde_json::json;

/// Scales a Deployment to zero. Returns the selector of its pods, empty if its scale has none; `None` if there is no such
/// Deployment.
pub async fn scale_to_zero(client: &Client, namespace: &str, name: &str) -> Result<Option<String>, Error> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let zero = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let scaled = write("scaling Deployment", name, api.patch_scale(name, &patch_params(), &zero)).await;
    let scale = match scaled {
        Err(error) if error.code() == Some(404) => return Ok(None),
        answer => answer?,
    };
    tracing::info!(namespace, deployment = name, "scaled a Deployment to zero");
    Ok(Some(scale.status.and_then(|s| s.selector).unwrap_or_default()))
}
