//! Reads the ResourceSlices of given Nodes.
//!
//! Rule: one list per Node, selected by the API server, as of pods: its cache is enough, because what it does not show yet is read
//! again a little later.

use crate::api::resource_slice::ResourceSlice;
use crate::cluster::guard::Guarded;
use crate::effects::call;
use crate::error::Error;
use crate::gang::resource_slices::NodeResourceSlices;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::ListParams;
use kube::{Api, Client};

/// The most Nodes that are queried at once.
const PARALLEL: usize = 32;

/// The ResourceSlices of these Nodes, or that they cannot be had.
///
/// # Errors
/// The first list that failed otherwise.
pub async fn of_nodes(client: &Client, nodes: Vec<String>) -> Result<NodeResourceSlices, Error> {
    if nodes.is_empty() {
        return Ok(NodeResourceSlices::Unread);
    }
    let api: Api<Guarded<ResourceSlice>> = Api::all(client.clone());
    let lists = stream::iter(nodes).map(|node| {
        let api = api.clone();
        async move {
            let params = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
            call("listing ResourceSlices of Node", &node, api.list(&params)).await
        }
    });
    match lists.buffer_unordered(PARALLEL).try_collect::<Vec<_>>().await {
        Ok(lists) => {
            let slices = lists.into_iter().flat_map(|list| list.items).filter_map(|guard| guard.0.ok());
            Ok(NodeResourceSlices::Read(slices.collect()))
        }
        Err(error) if error.code() == Some(403) => Ok(NodeResourceSlices::Forbidden),
        Err(error) if error.code() == Some(404) => Ok(NodeResourceSlices::NotServed),
        Err(error) => Err(error),
    }
}
