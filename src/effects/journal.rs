//! Writes a gang's journal into its Workload, if nobody has written it meanwhile.
//!
//! A JSON patch that tests the Workload's UID and the old value of our own annotation: writes of
//! others to the same Workload never get in the way, and a stale leader's write fails.

use crate::api::Workload;
use crate::effects::call;
use crate::error::Error;
use crate::names;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// What is written for one check.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Name of the AdmissionCheck.
    pub check: &'a str,
    /// The annotation as it was read; `None` if there was none.
    pub old: Option<&'a str>,
    /// The journal.
    pub journal: &'a str,
    /// The line for people.
    pub headline: &'a str,
}

/// Commits a journal and returns the Workload as it is afterwards.
///
/// # Errors
/// [`Error::Conflict`] if the annotation is no longer `old`, or the Workload is another one.
pub async fn commit(client: &Client, workload: &Workload, entry: &Entry<'_>) -> Result<Workload, Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let patch: Patch<()> = Patch::Json(patch(workload, entry));
    let params =
        PatchParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let action = "writing the journal of Workload";
    match call(action, &name, api.patch(&name, &params, &patch)).await {
        // A failed `test` is answered with 422 Invalid, not with 409.
        Err(error) if error.code() == Some(422) && is_failed_test(&error) => {
            Err(Error::Conflict { action, object: name })
        }
        other => other,
    }
}

fn is_failed_test(error: &Error) -> bool {
    let Error::Api { source, .. } = error else {
        return false;
    };
    matches!(source.as_ref(), kube::Error::Api(status) if !status.message.contains("annotations: Too long"))
}

fn patch(workload: &Workload, entry: &Entry<'_>) -> JsonPatch {
    let annotations = ["metadata", "annotations"];
    let at = |path: &[&str]| PointerBuf::from_tokens(path.iter().copied());
    let key = names::journal_key(entry.check);
    let state_key = names::state_key(entry.check);
    let test = |path, value: Value| PatchOperation::Test(TestOperation { path, value });
    let add = |path, value: Value| PatchOperation::Add(AddOperation { path, value });
    let mut operations = vec![test(at(&["metadata", "uid"]), json!(workload.uid().unwrap_or_default()))];
    if workload.metadata.annotations.is_none() {
        operations.push(test(at(&annotations), Value::Null));
        operations.push(add(at(&annotations), json!({})));
    }
    let [a, b] = annotations;
    // Testing for null passes only while the key is absent.
    operations.push(test(at(&[a, b, &key]), entry.old.map_or(Value::Null, |old| json!(old))));
    operations.push(add(at(&[a, b, &key]), json!(entry.journal)));
    operations.push(add(at(&[a, b, &state_key]), json!(entry.headline)));
    JsonPatch(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(workload: &Workload, old: Option<&str>) -> Value {
        let entry = Entry { check: "c/1", old, journal: "{}", headline: "h" };
        serde_json::to_value(patch(workload, &entry)).unwrap()
    }

    #[test]
    fn the_first_write_demands_that_there_is_no_journal_yet() {
        let mut workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        workload.metadata.uid = Some("u".into());
        let operations = rendered(&workload, None);
        assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
        assert_eq!(operations[1], json!({"op": "test", "path": "/metadata/annotations", "value": null}));
        let key = "/metadata/annotations/gang.setu.kueue.x-k8s.io~1c~11";
        assert_eq!(operations[3], json!({"op": "test", "path": key, "value": null}));
        assert_eq!(operations[4], json!({"op": "add", "path": key, "value": "{}"}));
    }

    #[test]
    fn a_later_write_demands_the_journal_that_was_read() {
        let mut workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        workload.metadata.annotations = Some(std::collections::BTreeMap::default());
        let operations = rendered(&workload, Some("old"));
        assert_eq!(operations[1]["value"], "old");
        assert_eq!(operations.as_array().unwrap().len(), 4);
    }
}
