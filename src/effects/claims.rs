//! Creates and deletes NodeClaims, and reads them past every cache.
//!
//! Rule: names are derived, so if a create finds an object of its name, Setu made that earlier, or it is a stranger's. A
//! delete names the UID it means.

use crate::api::{Node, NodeClaim};
use crate::cluster::decoded::Decoded;
use crate::effects::{call, write};
use crate::error::{Class, Error};
use crate::gang::GangIdentity;
use crate::gang::identity::are_of_one_slot;
use crate::gang::snapshot::observed::capacity_type;
use crate::names;
use crate::planted::planted;
use crate::telemetry::metrics;
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};

/// The most NodeClaims of one gang that are created or deleted at once.
const PARALLEL: usize = 32;

/// The result of creating a gang's claims.
#[derive(Debug, Default)]
pub struct Created {
    /// The claims that exist now.
    pub claims: Vec<NodeClaim>,
    /// The first error for a claim that will never be accepted as it is.
    pub refused: Option<Error>,
    /// The first error for a claim that may be accepted later.
    pub later: Option<Error>,
}

/// Creates all these claims in parallel, and adopts those of the same gang that exist already.
pub async fn create(client: &Client, claims: Vec<NodeClaim>) -> Created {
    let api: Api<NodeClaim> = Api::all(client.clone());
    let answers =
        stream::iter(claims.into_iter().map(|claim| create_one(&api, claim))).buffer_unordered(PARALLEL);
    answers
        .fold(Created::default(), |mut sum, answer| async move {
            match answer {
                Ok(claim) => sum.claims.push(claim),
                Err(error) if error.class() == Class::Refused => sum.refused = sum.refused.or(Some(error)),
                Err(error) => sum.later = sum.later.or(Some(error)),
            }
            sum
        })
        .await
}

async fn create_one(api: &Api<NodeClaim>, claim: NodeClaim) -> Result<NodeClaim, Error> {
    let name = claim.name_any();
    let params = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match write("creating NodeClaim", &name, api.create(&params, &claim)).await {
        Ok(made) => {
            let capacity_type = capacity_type(&made).unwrap_or("any");
            metrics::claim_created(made.label(names::NODEPOOL), capacity_type);
            tracing::info!(nodeclaim = name, nodepool = made.label(names::NODEPOOL), "created a NodeClaim");
            Ok(made)
        }
        Err(error) if error.code() == Some(409) => adopt(api, &claim, error).await,
        Err(error) => Err(error),
    }
}

/// Adopts the claim that already has this name, if it was made for the same gang, attempt and slot.
async fn adopt(api: &Api<NodeClaim>, claim: &NodeClaim, error: Error) -> Result<NodeClaim, Error> {
    let name = claim.name_any();
    let found = call("reading NodeClaim", &name, api.get(&name)).await?;
    if are_of_one_slot(&found, claim) || planted!(AdoptStranger) {
        return Ok(found);
    }
    tracing::error!(
        nodeclaim = name,
        "somebody else made a NodeClaim of this name; delete it to free the slot"
    );
    Err(error)
}

/// Deletes a claim as it was read.
///
/// # Errors
/// [`Error::Conflict`] if it has changed since: a gang may have taken it over.
pub async fn delete_as_read(client: &Client, claim: &NodeClaim) -> Result<(), Error> {
    let name = claim.name_any();
    let only_this = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
    delete_if(client, &name, only_this).await.map(drop)
}

/// Deletes one claim. Returns whether it is gone already; a claim that was not there counts as gone.
async fn delete(client: &Client, name: &str, uid: &str) -> Result<bool, Error> {
    delete_if(client, name, Preconditions { uid: Some(uid.to_owned()), resource_version: None }).await
}

async fn delete_if(client: &Client, name: &str, only_this: Preconditions) -> Result<bool, Error> {
    let api: Api<NodeClaim> = Api::all(client.clone());
    let uid = only_this.uid.clone();
    let preconditions = if planted!(DeleteWithoutUid) { None } else { Some(only_this) };
    let params = DeleteParams { preconditions, ..DeleteParams::default() };
    match write("deleting NodeClaim", name, api.delete(name, &params)).await {
        Ok(answer) => {
            tracing::info!(nodeclaim = name, "deleted a NodeClaim");
            Ok(answer.is_right())
        }
        Err(error) if error.code() == Some(404) => Ok(true),
        Err(error @ Error::Conflict { .. }) => {
            // Usually another object has the name now, but not every conflict is about the UID.
            let found = current(client, name).await?;
            if found.is_some_and(|c| c.metadata.uid == uid) { Err(error) } else { Ok(true) }
        }
        Err(error) => Err(error),
    }
}

/// Deletes all these claims, given by name and UID, in parallel. Calls `deleted` for each at once. Returns the names of
/// those gone already, and the first error.
pub async fn delete_all(
    client: &Client,
    claims: Vec<(String, String)>,
    deleted: impl Fn(&str, &str),
) -> (Vec<String>, Option<Error>) {
    let answers = stream::iter(claims)
        .map(|(name, uid)| async move { (delete(client, &name, &uid).await, name, uid) })
        .buffer_unordered(PARALLEL);
    answers
        .fold((Vec::new(), None), |(mut gone, first), (answer, name, uid)| {
            let first = match answer {
                Ok(is_gone) => {
                    deleted(&name, &uid);
                    gone.extend(is_gone.then_some(name));
                    first
                }
                Err(error) => first.or(Some(error)),
            };
            std::future::ready((gone, first))
        })
        .await
}

/// The current claims and Nodes of the Workloads with these UIDs, read from the API server and not from a cache.
pub async fn read(client: &Client, uids: &[String]) -> Result<(Vec<NodeClaim>, Vec<Node>), Error> {
    let all = uids.join(",");
    let selector = format!("{}={},{} in ({all})", names::MANAGED_BY, names::SETU, names::WORKLOAD_UID);
    let of = match uids {
        [first, _, ..] => format!("{first} and {} more", uids.len() - 1),
        _ => all,
    };
    let params = ListParams::default().labels(&selector);
    let claims: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let nodes: Api<Decoded<Node>> = Api::all(client.clone());
    let (claims, nodes) = tokio::try_join!(
        call("listing NodeClaims of Workloads", &of, claims.list(&params)),
        call("listing Nodes of Workloads", &of, nodes.list(&params)),
    )?;
    let claims = claims.items.into_iter().filter_map(|guard| guard.0.ok()).collect();
    Ok((claims, nodes.items.into_iter().filter_map(|guard| guard.0.ok()).collect()))
}

/// These claims of a gang and their Nodes, each read by name. `None` if any is gone or being deleted, has another Node,
/// or no longer names its gang: only a list shows what exists instead.
///
/// # Errors
/// The first read that failed.
pub async fn reread(
    client: &Client,
    gang: &GangIdentity,
    known: Vec<(NodeClaim, String)>,
) -> Result<Option<(Vec<NodeClaim>, Vec<Node>)>, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let reads = stream::iter(known).map(|(claim, node)| {
        let nodes = nodes.clone();
        async move {
            let (name, node) = (claim.name_any(), node.as_str());
            let read = call("reading Node", node, nodes.get_opt(node));
            let (found, node) = tokio::try_join!(current(client, &name), read)?;
            let same = |found: &NodeClaim| {
                let is_going = found.metadata.deletion_timestamp.is_some();
                let is_the_same = found.uid() == claim.uid() && found.node_name() == claim.node_name();
                !is_going
                    && is_the_same
                    && found.label(names::MANAGED_BY) == names::SETU
                    && gang.is_of_gang(found)
            };
            Ok(found.filter(same).zip(node.filter(|node| node.label(names::WORKLOAD_UID) == gang.uid)))
        }
    });
    let found: Vec<Option<_>> = reads.buffered(PARALLEL).try_collect().await?;
    Ok(found.into_iter().collect::<Option<Vec<_>>>().map(|all| all.into_iter().unzip()))
}

/// One claim as it is now; `None` if there is none of that name.
pub async fn current(client: &Client, name: &str) -> Result<Option<NodeClaim>, Error> {
    let api: Api<NodeClaim> = Api::all(client.clone());
    call("reading NodeClaim", name, api.get_opt(name)).await
}

/// Every claim of Setu's that can be read.
pub async fn of_setu(client: &Client) -> Result<Vec<NodeClaim>, Error> {
    let selector = format!("{}={}", names::MANAGED_BY, names::SETU);
    let api: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let list = call("listing NodeClaims of", names::SETU, api.list(&ListParams::default().labels(&selector)))
        .await?;
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).collect())
}

/// Every live claim of these NodePools that can be read, whoever made it.
pub async fn of_pools(client: &Client, pools: &[String]) -> Result<Vec<NodeClaim>, Error> {
    let all = guarded_of_pools(client, pools).await?;
    Ok(all.into_iter().filter_map(|guard| guard.0.ok()).collect())
}

/// Every live claim of these NodePools, whoever made it, and whether it can be read.
pub async fn guarded_of_pools(client: &Client, pools: &[String]) -> Result<Vec<Decoded<NodeClaim>>, Error> {
    let selector = format!("{} in ({})", names::NODEPOOL, pools.join(","));
    let api: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let params = ListParams::default().labels(&selector);
    let list = call("listing NodeClaims of NodePools", &selector, api.list(&params)).await?;
    Ok(list.items)
}
