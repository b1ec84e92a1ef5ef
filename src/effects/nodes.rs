//! Deletes Nodes that nothing stands behind.
//!
//! Rule: exactly the Node that was judged goes, as it was when it was judged.

use super::write;
use crate::api::Node;
use crate::error::Error;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};

/// Deletes this Node, unless it has changed since it was read. One that is gone needs no deleting.
///
/// # Errors
/// [`Error::Conflict`] if it has changed or another bears its name; otherwise what the API server said.
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
