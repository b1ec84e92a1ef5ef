//! Puts Setu's finalizer on Workloads, and takes away what only Setu would ever remove from Workloads and ProvisioningRequests.

use crate::api::Workload;
use crate::effects::{patch_params, request, write};
use crate::error::Error;
use crate::gang::release::uninstall::WorkloadMarks;
use crate::names;
use kube::api::Patch;
use kube::{Api, Client, ResourceExt};
use serde_json::{Map, Value, json};

/// Removes these marks from a Workload. Returns whether there was anything to remove.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn unmark_workload(
    client: &Client,
    workload: &Workload,
    marks: &WorkloadMarks,
) -> Result<bool, Error> {
    if marks.is_empty() {
        return Ok(false);
    }
    let patch = without_marks(marks, workload);
    let name = workload.name_any();
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let (params, patch) = (patch_params(), Patch::Merge(&patch));
    match write("releasing Workload", &workload.full_name(), api.patch(&name, &params, &patch)).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(true),
    }
}

/// Removes Setu's annotations from the ProvisioningRequest that is mirrored as this Workload. It may be gone already.
///
/// # Errors
/// [`Error::Conflict`] if the request has changed since it was read.
pub async fn unmark_request(client: &Client, mirror: &Workload) -> Result<(), Error> {
    match request::write_journal(client, mirror, Value::Object(without_journals(mirror))).await {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}

/// Adds Setu's finalizer to a Workload and returns the resulting Workload.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn add_finalizer(client: &Client, workload: &Workload) -> Result<Workload, Error> {
    let mut finalizers = workload.finalizers().to_vec();
    finalizers.push(names::FINALIZER.to_owned());
    let patch = json!({
        "metadata": {"resourceVersion": workload.resource_version(), "finalizers": finalizers},
    });
    let name = workload.name_any();
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let (params, patch) = (patch_params(), Patch::Merge(&patch));
    write("holding Workload", &workload.full_name(), api.patch(&name, &params, &patch)).await
}

/// Annotations that remove those of Setu's.
fn without_journals(workload: &Workload) -> Map<String, Value> {
    let ours = |key: &&String| key.starts_with(names::JOURNAL_PREFIX) || key.starts_with(names::STATE_PREFIX);
    workload.annotations().keys().filter(ours).map(|key| (key.clone(), Value::Null)).collect()
}

fn without_marks(marks: &WorkloadMarks, workload: &Workload) -> Value {
    let gone: Map<String, Value> = marks.annotations.iter().map(|key| (key.clone(), Value::Null)).collect();
    let stays = |finalizer: &&String| !marks.finalizer || *finalizer != names::FINALIZER;
    let left: Vec<&String> = workload.finalizers().iter().filter(stays).collect();
    json!({
        "metadata": {"resourceVersion": workload.resource_version(), "finalizers": left, "annotations": gone},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::WorkloadSpec;

    #[test]
    fn only_what_is_ours_is_removed_from_a_workload() {
        let mut workload = Workload::new("w", WorkloadSpec::default());
        workload.metadata.finalizers = Some(vec!["others/theirs".into(), names::FINALIZER.into()]);
        let annotations = [(names::journal_key("c"), "{}"), ("others/theirs".to_owned(), "x")];
        workload.metadata.annotations = Some(annotations.map(|(k, v)| (k, v.to_owned())).into());
        let kept = without_marks(&WorkloadMarks::FINALIZER, &workload);
        assert_eq!(kept["metadata"]["finalizers"], json!(["others/theirs"]));
        assert_eq!(kept["metadata"]["annotations"], json!({}));
        let journal = WorkloadMarks { finalizer: false, annotations: vec![names::journal_key("c")] };
        let removed = without_marks(&journal, &workload);
        assert_eq!(removed["metadata"]["finalizers"], json!(["others/theirs", names::FINALIZER]));
        assert_eq!(removed["metadata"]["annotations"], json!({names::journal_key("c"): null}));
    }
}
