//! Reads and writes for a standalone ProvisioningRequest besides those of `effects::request`: its PodTemplates, its priority, its
//! Workload and its pods.

use crate::api::{Pod, Workload};
use crate::cluster::decoded::Decoded;
use crate::effects::{call, status_of, whole_seconds, write};
use crate::error::Error;
use crate::gang::workload::standalone::consumes;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodTemplate, PodTemplateSpec};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use std::sync::Arc;

/// The PodTemplate of this name, with every field; `None` if there is none.
///
/// # Errors
/// It could not be read.
pub async fn template(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<PodTemplateSpec>, Error> {
    let api: Api<PodTemplate> = Api::namespaced(client.clone(), namespace);
    let found = call("reading PodTemplate", &format!("{namespace}/{name}"), api.get_opt(name)).await?;
    Ok(found.map(|found| found.template.unwrap_or_default()))
}

/// The value of Kueue's WorkloadPriorityClass of this name; `None` if there is none.
///
/// # Errors
/// It could not be read.
pub async fn priority(client: &Client, name: &str) -> Result<Option<i32>, Error> {
    let kind = GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "WorkloadPriorityClass");
    let kind = ApiResource::from_gvk_with_plural(&kind, "workloadpriorityclasses");
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    let found = call("reading WorkloadPriorityClass", name, api.get_opt(name)).await?;
    let value = found.as_ref().and_then(|found| found.data.get("value")?.as_i64());
    Ok(value.and_then(|value| i32::try_from(value).ok()))
}

/// Creates the Workload of a request.
///
/// # Errors
/// The API server refuses it: 409 if there is one of this name, 400 or 422 if it is invalid.
pub async fn create(client: &Client, namespace: &str, workload: Value) -> Result<(), Error> {
    // The type of Workloads here has only the fields that are read.
    let kind = ApiResource::erase::<Workload>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let object: DynamicObject = serde_json::from_value(workload)
        .map_err(|error| Error::api("writing the Workload of", namespace, kube::Error::SerdeError(error)))?;
    let of = format!("{namespace}/{}", object.name_any());
    let params = PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() };
    write("creating Workload", &of, api.create(&params, &object)).await.map(drop)
}

/// Deletes the Workload of a request. One that is gone needs no deletion.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read. Or it could not be deleted.
pub async fn delete(client: &Client, workload: &Workload) -> Result<(), Error> {
    let api: Api<Decoded<Workload>> =
        Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let preconditions = Preconditions { uid: workload.uid(), resource_version: workload.resource_version() };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let (name, of) = (workload.name_any(), workload.full_name());
    match write("deleting Workload", &of, api.delete(&name, &params)).await {
        Err(error) if error.code() == Some(404) => Ok(()),
        answer => answer.map(drop),
    }
}

/// Sets the condition `PodsReady`. Kueue would evict an admitted Workload without it, and no Job sets it for this one.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn set_pods_ready(client: &Client, workload: &Workload, now: Timestamp) -> Result<(), Error> {
    let condition = json!({
        "type": "PodsReady", "status": "True", "reason": "Standalone",
        "message": "the nodes are ready; the client of the ProvisioningRequest runs the pods",
        "lastTransitionTime": whole_seconds(now), "observedGeneration": workload.metadata.generation,
    });
    let name = workload.name_any();
    let body = status_of::<Workload>(&name, &workload.metadata, &json!({ "conditions": [condition] }));
    let api: Api<Decoded<Workload>> =
        Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let (params, patch) = (PatchParams::apply(names::PODS_MANAGER).force(), Patch::Apply(&body));
    let action = "writing the condition PodsReady of Workload";
    write(action, &workload.full_name(), api.patch_status(&name, &params, &patch)).await.map(drop)
}

/// The pods of a namespace that name a request, read past the caches: its nodes are given back if none uses them.
///
/// # Errors
/// The list failed; 403 where Setu may not list pods.
pub async fn pods_with_request(client: &Client, namespace: &str) -> Result<Arc<[Pod]>, Error> {
    let api: Api<Decoded<Pod>> = Api::namespaced(client.clone(), namespace);
    let list = call("listing pods of namespace", namespace, api.list(&ListParams::default())).await?;
    let pods = list.items.into_iter().filter_map(|guard| guard.0.ok());
    Ok(pods.filter(|pod| consumes(pod).is_some()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;

    #[tokio::test]
    async fn a_workload_is_only_deleted_as_it_was_read() {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let server = tokio::spawn(async move {
            let (request, answer) = handle.next_request().await.unwrap();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let conflict = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "it has changed",
            });
            let response =
                Response::builder().status(409).body(Body::from(conflict.to_string().into_bytes()));
            answer.send_response(response.unwrap());
            serde_json::from_slice::<Value>(&body).unwrap()
        });
        let mut workload =
            Workload::new("provisioningrequest-batch", crate::api::workload::WorkloadSpec::default());
        workload.metadata.uid = Some("u".to_owned());
        workload.metadata.resource_version = Some("7".to_owned());
        let error = delete(&Client::new(service, "default"), &workload).await.unwrap_err();
        assert_eq!(error.code(), Some(409));
        let sent = server.await.unwrap();
        assert_eq!(sent["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
    }
}
