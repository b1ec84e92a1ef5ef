//! Deletes Nodes without a NodeClaim.
//!
//! Rule: only the Node that was judged is deleted, and only as it was when it was judged.

use super::write;
use crate::api::Node;
use crate::error::Error;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};

/// Deletes this Node, unless it has changed since it was read. A Node that is gone counts as deleted.
///
/// # Errors
/// [`Error::Conflict`] if it has changed or another Node has its name; otherwise the API server's error.
pub async fn delete(client: &Client, node: &Node) -> Result<(), Error> {
    let name = node.name_any();
    let as_read = Preconditions { uid: node.uid(), resource_version: node.resource_version() };
    let params = DeleteParams { preconditions: Some(as_read), ..DeleteParams::default() };
    let api: Api<Node> = Api::all(client.clone());
    match write("deleting Node", &name, api.delete(&name, &params)).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => {
            tracing::info!(node = name, "deleted a Node");
            Ok(())
        }
    }
}
