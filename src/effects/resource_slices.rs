//! Reads the ResourceSlices of given Nodes.
//!
//! Rule: one list per Node, selected by the API server, as for pods. Its cache is enough, because what it does not show yet is read
//! again a little later.

use crate::effects;
use crate::error::Error;
use crate::gang::snapshot::resource_slices::NodeResourceSlices;
use kube::Client;

/// The ResourceSlices of these Nodes, or that they cannot be had.
///
/// # Errors
/// The first list that failed otherwise.
pub async fn of_nodes(client: &Client, nodes: Vec<String>) -> Result<NodeResourceSlices, Error> {
    if nodes.is_empty() {
        return Ok(NodeResourceSlices::Unread);
    }
    match effects::of_nodes(client, "listing ResourceSlices of Node", nodes).await {
        Ok(slices) => Ok(NodeResourceSlices::Read(slices)),
        Err(error) if error.is_forbidden() => Ok(NodeResourceSlices::Forbidden),
        Err(error) if error.code() == Some(404) => Ok(NodeResourceSlices::NotServed),
        Err(error) => Err(error),
    }
}
