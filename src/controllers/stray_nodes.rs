//! Finds our Nodes without a NodeClaim, and deletes those with a silent kubelet.
//!
//! Rule: Node, NodeClaims and Workload are read from the API server, twice, before a Node is deleted. In doubt a Node
//! stays, and `setu_held_nodes{state="stray"}` shows it.

use super::claim_records::workload_named;
use super::claims::{SWEEP_FLOW, SWEEP_PERIOD, as_read};
use super::context::Context;
use crate::api::{Node, NodeClaim};
use crate::cluster::decoded::Decoded;
use crate::effects::{call, claims, nodes};
use crate::error::Error;
use crate::gang::release::orphan::{OrphanReason, WorkloadRead};
use crate::gang::release::stray_node::{is_silent, may_be_used, may_own, may_own_unread};
use crate::names;
use crate::telemetry::metrics;
use kube::{Api, ResourceExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// When the first sweep runs. There usually is a leader by then.
const FIRST: Duration = Duration::from_mins(1);
/// Time between the two reads of a sweep.
const SECOND_READ: Duration = Duration::from_secs(1);
/// How long no sweep runs after Setu was not permitted to delete Nodes.
const FORBIDDEN: Duration = Duration::from_hours(1);

/// Sweeps soon after the start, and then once a period until `stop`.
pub async fn sweep(context: &Context, stop: &CancellationToken) {
    let mut forbidden: Option<Instant> = None;
    let mut wait = FIRST;
    while stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_some() {
        wait = SWEEP_PERIOD;
        if forbidden.is_some_and(|at| at.elapsed() < FORBIDDEN) {
            continue;
        }
        match context.writes.within(SWEEP_FLOW, sweep_once(context)).await {
            Ok(()) => forbidden = None,
            Err(error) if error.is_forbidden() => {
                if forbidden.is_none() {
                    tracing::warn!(error = %error.in_full(), "stray Nodes stay, because Setu may not delete Nodes; set rbac.strayNodes in the chart");
                }
                forbidden = Some(Instant::now());
            }
            Err(error) if context.is_quiet_about(&error) => {
                tracing::debug!(error = %error.in_full(), "could not list stray Nodes");
            }
            Err(error) => tracing::warn!(error = %error.in_full(), "could not list stray Nodes"),
        }
    }
}

async fn sweep_once(context: &Context) -> Result<(), Error> {
    let suspects = without_claims(context, suspects(context)).await?;
    if suspects.is_empty() {
        return Ok(());
    }
    tokio::time::sleep(SECOND_READ).await;
    for node in without_claims(context, suspects).await? {
        let uid = node.label(names::WORKLOAD_UID);
        tracing::info!(
            node = node.name_any(),
            workload = node.annotations().get(names::WORKLOAD),
            reason = OrphanReason::StrayNode.name(),
            "deleting a stray Node, which has no NodeClaim"
        );
        match nodes::delete(context.client_of(uid), &node).await {
            Ok(()) => metrics::swept(OrphanReason::StrayNode),
            Err(error) if error.is_forbidden() => return Err(error),
            Err(error) => {
                log_remaining(context, &node, &error);
            }
        }
    }
    Ok(())
}

/// Logs why a stray Node stays for now, unless an outage explains it.
fn log_remaining(context: &Context, node: &Node, error: &Error) {
    let node = node.name_any();
    if context.is_quiet_about(error) {
        tracing::debug!(node, error = %error.in_full(), "a stray Node stays for now");
    } else {
        tracing::warn!(node, error = %error.in_full(), "a stray Node stays for now");
    }
}

/// Nodes that the caches show without a NodeClaim, of gangs that this replica acts for.
fn suspects(context: &Context) -> Vec<Node> {
    let known = context.stores.claims.entries();
    let named: BTreeSet<&str> = known.iter().map(|claim| claim.node_name.as_str()).collect();
    let found = context.stores.nodes.named(|node| !named.contains(node)).into_iter();
    let now = context.now();
    let mine = |node: &Arc<Node>| context.acts_for(node.label(names::WORKLOAD_UID)) && is_silent(node, now);
    found.filter(mine).map(Arc::unwrap_or_clone).collect()
}

/// Which of these Nodes have no NodeClaim now. They are read before the claims, because a claim exists before its Node.
async fn without_claims(context: &Context, suspects: Vec<Node>) -> Result<Vec<Node>, Error> {
    let api: Api<Node> = Api::all(context.client.clone());
    let mut found = Vec::new();
    for suspect in suspects {
        let name = suspect.name_any();
        let node = call("reading Node", &name, api.get_opt(&name)).await?;
        let same = |node: &Node| node.uid() == suspect.uid() && is_silent(node, context.now());
        found.extend(node.filter(same));
    }
    if found.is_empty() {
        return Ok(found);
    }
    let pools: BTreeSet<String> = found.iter().map(|node| node.label(names::NODEPOOL).to_owned()).collect();
    let claims = claims::guarded_of_pools(&context.client, &Vec::from_iter(pools)).await?;
    let mut strays = Vec::new();
    for node in found {
        let owns = |claim: &Decoded<NodeClaim>| match &claim.0 {
            Ok(claim) => may_own(claim, &node),
            Err(unread) => may_own_unread(unread.metadata.labels.as_ref(), &node),
        };
        if claims.iter().any(owns) {
            continue;
        }
        match read_workload(context, &node).await {
            Ok(read) if may_be_used(&node, &read) => {}
            Ok(_) => strays.push(node),
            Err(error) => {
                log_remaining(context, &node, &error);
            }
        }
    }
    Ok(strays)
}

/// The Workload that the Node names. A Node that Karpenter never registered names none, and no pod of a gang could start there.
async fn read_workload(context: &Context, node: &Node) -> Result<WorkloadRead, Error> {
    let of = node.annotations().get(names::WORKLOAD).and_then(|value| workload_named(value));
    let Some(object) = of else { return Ok(WorkloadRead::Absent) };
    context.read_workload(&object).await.map(as_read)
}
