//! Reads which pods run on given Nodes, and which are bound to none.
//!
//! The first read comes before a gang may run, the second some time after. Rule: one list per Node, selected by the API
//! server, because there may be very many pods elsewhere. Its cache is enough: a pod that it does not show yet was bound
//! moments ago, and another may be bound a moment later anyway.

use crate::api::Pod;
use crate::cluster::decoded::Decoded;
use crate::effects::{call, of_nodes};
use crate::error::Error;
use kube::api::ListParams;
use kube::{Api, Client};

/// The pods bound to these Nodes.
///
/// # Errors
/// The first list that failed; 403 where Setu may not list pods.
pub async fn on_nodes(client: &Client, nodes: Vec<String>) -> Result<Vec<Pod>, Error> {
    of_nodes(client, "listing pods of Node", nodes).await
}

/// The pods of a namespace that are not bound to a node.
///
/// # Errors
/// The list failed; 403 where Setu may not list pods.
pub async fn unbound(client: &Client, namespace: &str) -> Result<Vec<Pod>, Error> {
    let api: Api<Decoded<Pod>> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields("spec.nodeName=").match_any();
    let list = call("listing unbound pods of namespace", namespace, api.list(&params)).await?;
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).collect())
}
