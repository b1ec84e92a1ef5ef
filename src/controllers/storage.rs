//! Reads only those storage objects and ResourceClaimTemplates that the pods of a Workload depend on.

use crate::api::{ResourceClaimTemplate, Workload};
use crate::effects::call;
use crate::error::Error;
use crate::plan::devices::device_requests::templates_of;
use crate::plan::volumes::{Lookup, Storage, claims_of, class_of, ephemeral_classes_of, volume_of};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// The most objects that are read at once.
const PARALLEL: usize = 8;

/// Reads the claims that the pods use, the volumes bound to them, the StorageClasses of unbound claims, and the
/// ResourceClaimTemplates that the pods name.
///
/// # Errors
/// The first read that failed, unless the object does not exist or may not be read.
pub async fn read(client: &Client, workload: &Workload) -> Result<Storage, Error> {
    let names = claims_of(workload);
    let mut classes = ephemeral_classes_of(workload);
    let namespace = workload.metadata.namespace.as_deref().unwrap_or_default();
    let templates = workload.spec.pod_sets.iter().flat_map(|set| templates_of(&set.template.spec));
    let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), namespace);
    let claim_templates = all(&api, "reading ResourceClaimTemplate", templates.cloned().collect()).await?;
    if names.is_empty() && classes.is_empty() {
        return Ok(Storage { claim_templates, ..Storage::default() });
    }
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claims = all(&api, "reading PersistentVolumeClaim", names).await?;
    let mut volumes = BTreeSet::new();
    for claim in claims.values() {
        if let Lookup::There(claim) = claim {
            match volume_of(claim) {
                Some(volume) => volumes.extend([volume.to_owned()]),
                None => classes.extend(class_of(claim).map(str::to_owned)),
            }
        }
    }
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let volumes = all(&api, "reading PersistentVolume", volumes).await?;
    let api: Api<StorageClass> = Api::all(client.clone());
    let classes = all(&api, "reading StorageClass", classes).await?;
    Ok(Storage { claims, volumes, classes, claim_templates })
}

async fn all<K>(
    api: &Api<K>,
    action: &'static str,
    names: BTreeSet<String>,
) -> Result<BTreeMap<String, Lookup<K>>, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let read = |name: String| async move {
        let found = match call(action, &name, api.get_opt(&name)).await {
            Ok(Some(object)) => Lookup::There(Box::new(object)),
            Ok(None) => Lookup::Absent,
            Err(error) if error.is_forbidden() => Lookup::Forbidden,
            Err(error) => return Err(error),
        };
        Ok((name, found))
    };
    stream::iter(names.into_iter().map(read)).buffer_unordered(PARALLEL).try_collect().await
}
