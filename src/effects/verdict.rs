//! Reports the verdict to Kueue by a server-side apply on the Workload's status.
//!
//! Every apply carries all our own entries with every field, because an omitted field is removed or keeps its old value.

use crate::api::Workload;
use crate::api::workload::CheckState;
use crate::effects::{status_of, whole_seconds, write};
use crate::error::Error;
use crate::names;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Applies these entries and returns the resulting Workload.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn apply(client: &Client, workload: &Workload, entries: &[CheckState]) -> Result<Workload, Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let params = PatchParams::apply(names::FIELD_MANAGER).force();
    let body = body(workload, entries);
    let (of, patch) = (workload.full_name(), Patch::Apply(&body));
    write("writing the verdict of Workload", &of, api.patch_status(&name, &params, &patch)).await
}

fn body(workload: &Workload, entries: &[CheckState]) -> Value {
    let entries: Vec<Value> = entries
        .iter()
        .map(|entry| {
            json!({
                "name": entry.name,
                "state": entry.state,
                "lastTransitionTime": whole_seconds(entry.last_transition_time),
                "message": entry.message,
                "requeueAfterSeconds": entry.requeue_after_seconds.unwrap_or_default(),
                "podSetUpdates": entry.pod_set_updates,
            })
        })
        .collect();
    status_of::<Workload>(&workload.name_any(), &workload.metadata, &json!({ "admissionChecks": entries }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::{Verdict, WorkloadSpec};

    #[test]
    fn an_apply_has_every_field_so_that_no_older_value_stays() {
        let mut workload = Workload::new("w", WorkloadSpec::default());
        workload.metadata.namespace = Some("ns".into());
        workload.metadata.uid = Some("u".into());
        workload.metadata.resource_version = Some("7".into());
        let entry = CheckState {
            name: "c".into(),
            state: Verdict::Retry,
            last_transition_time: "2026-01-01T00:00:00.5Z".parse().unwrap(),
            message: String::new(),
            requeue_after_seconds: None,
            pod_set_updates: Vec::new(),
        };
        let body = body(&workload, &[entry]);
        assert_eq!(
            body["status"]["admissionChecks"],
            json!([{
                "name": "c", "state": "Retry", "lastTransitionTime": "2026-01-01T00:00:00Z",
                "message": "", "requeueAfterSeconds": 0, "podSetUpdates": [],
            }])
        );
        assert_eq!(
            body["metadata"],
            json!({"namespace": "ns", "name": "w", "uid": "u", "resourceVersion": "7"})
        );
    }
}
