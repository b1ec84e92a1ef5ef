//! The only writer to the API server except for Leases, which `cluster::lease` writes: journals, NodeClaims, Nodes, verdicts, other
//! conditions, finalizers, Events. Each file has one of them.
//!
//! Rule: each write is in one place, with one timeout and one log line, and can be repeated without harm.

pub mod active;
pub mod claims;
pub mod deployment;
pub mod events;
pub mod handover;
pub mod journal;
pub mod nodes;
pub mod parameters;
pub mod pods;
pub mod request;
pub mod requeued;
pub mod resource_slices;
pub mod standalone;
pub mod verdict;
pub mod warm;
pub mod workload_marks;

use crate::cluster::decoded::Decoded;
use crate::cluster::write_limiter;
use crate::error::Error;
use crate::gang::marks::Mark;
use crate::names;
use crate::telemetry::traces::own;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Debug;
use std::time::Duration;
use tracing::Instrument as _;

/// How long one call may take.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// The most Nodes that are queried at once.
const PARALLEL: usize = 32;

/// Makes one write: a call that first waits for a permit. The wait does not count towards the time limit.
pub async fn write<T>(
    action: &'static str,
    object: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let waits = tracing::info_span!(target: own::TARGET, "wait for a permit");
    let _permit = write_limiter::permit().instrument(waits).await;
    call(action, object, request).await
}

/// Makes one call under the time limit.
pub async fn call<T>(
    action: &'static str,
    object: &str,
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    let span =
        tracing::info_span!(target: own::TARGET, "call", otel.name = action, otel.kind = "client", object);
    let answer = match tokio::time::timeout(CALL_LIMIT, request).instrument(span.clone()).await {
        Ok(answer) => answer.map_err(|e| Error::api(action, object, e)),
        Err(_) => Err(Error::Timeout { action, object: object.to_owned(), limit: CALL_LIMIT }),
    };
    if let Err(error) = &answer {
        own::failed(&span, error);
    }
    answer
}

/// The objects of a kind on these Nodes, by one list for each Node.
async fn of_nodes<K>(client: &Client, action: &'static str, nodes: Vec<String>) -> Result<Vec<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<Decoded<K>> = Api::all(client.clone());
    let lists = stream::iter(nodes).map(|node| {
        let api = api.clone();
        async move {
            let params = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
            call(action, &node, api.list(&params)).await
        }
    });
    let lists: Vec<_> = lists.buffer_unordered(PARALLEL).try_collect().await?;
    Ok(lists.into_iter().flat_map(|list| list.items).filter_map(|guard| guard.0.ok()).collect())
}

/// Parameters of every patch except server-side apply.
fn patch_params() -> PatchParams {
    PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Changes an object by a merge patch. An object that is gone needs no change.
async fn merge<K>(api: &Api<K>, action: &'static str, name: &str, patch: &Value) -> Result<(), Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    match write(action, name, api.patch(name, &patch_params(), &Patch::Merge(patch))).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

/// Body of a server-side apply of an object's status. It names UID and resourceVersion, so that it never changes another
/// object, or a state that was not read. Without a resourceVersion in `metadata` it applies to any state.
fn status_of<K: Resource<DynamicType = ()>>(name: &str, metadata: &ObjectMeta, status: &Value) -> Value {
    let ObjectMeta { namespace, uid, resource_version, .. } = metadata.clone();
    let named =
        ObjectMeta { name: Some(name.to_owned()), namespace, uid, resource_version, ..ObjectMeta::default() };
    json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": named, "status": status})
}

/// Labels or annotations that remove these from an object.
fn without<'m>(marks: impl IntoIterator<Item = &'m Mark>) -> Map<String, Value> {
    marks.into_iter().map(|mark| (mark.key.to_owned(), Value::Null)).collect()
}

/// `metav1.Time` has no fractions.
fn whole_seconds(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}
