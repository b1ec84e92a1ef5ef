//! Writes to a ProvisioningRequest: the journal into its annotations, and the answer into its status.

use crate::api::workload::{CheckState, Verdict};
use crate::api::{ProvisioningRequest, Workload};
use crate::cluster::decoded::Decoded;
use crate::effects::{call, patch_params, status_of, whole_seconds, write};
use crate::error::Error;
use crate::gang::Failure;
use crate::gang::workload::request::{
    Details, after_write, conditions, conditions_after_uninstall, name_as_workload, owner, stands_as_mirrored,
};
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What [`write_journal`] does.
pub(super) const WRITING_JOURNAL: &str = "writing the journal of ProvisioningRequest";

fn api(client: &Client, mirror: &Workload) -> Api<ProvisioningRequest> {
    Api::namespaced(client.clone(), &mirror.namespace().unwrap_or_default())
}

/// Commits a journal as these annotations, and returns the request as a Workload as it is afterwards.
///
/// # Errors
/// [`Error::Conflict`] if the request has changed since it was read.
pub async fn write_journal(
    client: &Client,
    mirror: &Workload,
    annotations: Value,
) -> Result<Workload, Error> {
    let name = mirror.request_name().unwrap_or_default();
    let patch = json!({"metadata": {
        "uid": mirror.uid(),
        "resourceVersion": mirror.resource_version(),
        "annotations": annotations,
    }});
    let (api, params, patch) = (api(client, mirror), patch_params(), Patch::Merge(&patch));
    let written = write(WRITING_JOURNAL, &mirror.full_name(), api.patch(name, &params, &patch)).await?;
    Ok(after_write(mirror.clone(), &written))
}

/// Requires that the Workload which controls the request is still as the request's mirror shows it. Reads it past the
/// cache, because it may have been admitted meanwhile.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed; another error if it could not be read.
pub async fn require_owner(client: &Client, mirror: &Workload) -> Result<(), Error> {
    let Some(owner) = owner(mirror) else { return Ok(()) };
    let action = "reading the owner of ProvisioningRequest";
    let namespace = mirror.namespace().unwrap_or_default();
    let found = read_owner(client, &namespace, owner, (action, &mirror.full_name())).await?;
    if stands_as_mirrored(mirror, found.as_ref()) {
        return Ok(());
    }
    Err(Error::Conflict { action, object: mirror.full_name() })
}

/// The request of this name, read past the caches.
///
/// # Errors
/// It could not be read.
pub async fn read(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ProvisioningRequest>, Error> {
    let api: Api<ProvisioningRequest> = Api::namespaced(client.clone(), namespace);
    let of = format!("{namespace}/{}", name_as_workload(name));
    call("reading ProvisioningRequest", &of, api.get_opt(name)).await
}

/// The Workload of Kueue's of this name, read past the caches.
///
/// # Errors
/// It could not be read.
pub async fn read_workload(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<Decoded<Workload>>, Error> {
    let api: Api<Decoded<Workload>> = Api::namespaced(client.clone(), namespace);
    call("reading Workload", &format!("{namespace}/{name}"), api.get_opt(name)).await
}

/// The Workload of this name and UID, read past the caches for this action on this object.
///
/// # Errors
/// It could not be read.
pub async fn read_owner(
    client: &Client,
    namespace: &str,
    (name, uid): (&str, &str),
    (action, object): (&'static str, &str),
) -> Result<Option<Workload>, Error> {
    let api: Api<Decoded<Workload>> = Api::namespaced(client.clone(), namespace);
    let found = call(action, object, api.get_opt(name)).await?.and_then(|found| found.0.ok());
    Ok(found.filter(|workload| workload.metadata.uid.as_deref() == Some(uid)))
}

/// Metadata of the request as it is now.
///
/// # Errors
/// It is gone, or could not be read.
pub async fn metadata(client: &Client, mirror: &Workload, action: &'static str) -> Result<ObjectMeta, Error> {
    let name = mirror.request_name().unwrap_or_default();
    Ok(call(action, &mirror.full_name(), api(client, mirror).get_metadata(name)).await?.metadata)
}

/// Applies this state of the check, and returns the request as a Workload as it is afterwards. `details` stand in the status once
/// the gang is ready.
///
/// # Errors
/// [`Error::Conflict`] if the request has changed since it was read.
pub async fn apply(
    client: &Client,
    mirror: &Workload,
    entry: &CheckState,
    (details, failure): (&Details, Option<&Failure>),
    now: Timestamp,
) -> Result<Workload, Error> {
    let conditions = conditions(entry, failure, mirror.conditions(), now);
    let details = if entry.state == Verdict::Ready { details.in_status() } else { BTreeMap::new() };
    apply_status(client, mirror, conditions, &details).await
}

/// Fails an open request: Setu is uninstalled.
///
/// # Errors
/// [`Error::Conflict`] if the request or its Workload has changed since it was read.
pub async fn fail_after_uninstall(client: &Client, mirror: &Workload, now: Timestamp) -> Result<(), Error> {
    require_owner(client, mirror).await?;
    let conditions = conditions_after_uninstall(mirror.conditions(), now);
    apply_status(client, mirror, conditions, &BTreeMap::new()).await.map(drop)
}

/// Applies these conditions and details, and returns the request as a Workload as it is afterwards.
///
/// # Errors
/// [`Error::Conflict`] if the request has changed since it was read.
pub async fn apply_status(
    client: &Client,
    mirror: &Workload,
    conditions: Vec<Condition>,
    details: &BTreeMap<String, String>,
) -> Result<Workload, Error> {
    let name = mirror.request_name().unwrap_or_default();
    let conditions = conditions.into_iter().map(|condition| {
        json!({
            "type": condition.type_, "status": condition.status, "reason": condition.reason, "message": condition.message,
            "lastTransitionTime": whole_seconds(condition.last_transition_time.0),
        })
    });
    let conditions: Vec<Value> = conditions.collect();
    let mut status = json!({"conditions": conditions});
    if let Some(fields) = status.as_object_mut().filter(|_| !details.is_empty()) {
        fields.insert("provisioningClassDetails".to_owned(), json!(details));
    }
    let body = status_of::<ProvisioningRequest>(name, &mirror.metadata, &status);
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let (of, patch) = (mirror.full_name(), Patch::Apply(&body));
    let written =
        write("answering ProvisioningRequest", &of, api(client, mirror).patch_status(name, &params, &patch))
            .await?;
    Ok(after_write(mirror.clone(), &written))
}
