//! Reads which pods run on given Nodes, and which are bound to none.
//!
//! The first read comes before a gang may run, the second some time after. Rule: one list per Node, selected by the API
//! server, because there may be very many pods elsewhere. Its cache is enough: a pod that it does not show yet was bound
//! moments ago, and another may be bound a moment later anyway.

use crate::api::Pod;
use crate::cluster::guard::Guarded;
use crate::effects::call;
use crate::error::Error;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::ListParams;
use kube::{Api, Client};

/// The most Nodes that are queried at once.
const PARALLEL: usize = 32;

/// The pods bound to these Nodes.
///
/// # Errors
/// The first list that failed; 403 where Setu may not list pods.
pub async fn on_nodes(client: &Client, nodes: Vec<String>) -> Result<Vec<Pod>, Error> {
    let api: Api<Guarded<Pod>> = Api::all(client.clone());
    let lists = stream::iter(nodes).map(|node| {
        let api = api.clone();
        async move {
            let params = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
            call("listing pods of Node", &node, api.list(&params)).await
        }
    });
    let lists: Vec<_> = lists.buffer_unordered(PARALLEL).try_collect().await?;
    Ok(lists.into_iter().flat_map(|list| list.items).filter_map(|guard| guard.0.ok()).collect())
}

/// The pods of a namespace that are not bound to a node.
///
/// # Errors
/// The list failed; 403 where Setu may not list pods.
pub async fn unbound(client: &Client, namespace: &str) -> Result<Vec<Pod>, Error> {
    let api: Api<Guarded<Pod>> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields("spec.nodeName=").match_any();
    let list = call("listing unbound pods of namespace", namespace, api.list(&params)).await?;
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).collect())
}
