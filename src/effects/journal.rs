//! Writes a gang's journal into its Workload, if nobody has written it meanwhile.
//!
//! A JSON patch that tests the Workload's UID and the old value of our own annotation: writes of
//! others to the same Workload never get in the way, and a stale leader's write fails. Where there is
//! nothing to write, `confirm` asks instead.

use crate::api::Workload;
use crate::effects::{call, patch_params, write};
use crate::error::Error;
use crate::names;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation};
use kube::api::Patch;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// What the API server says where a `test` of a JSON patch fails.
const FAILED_TEST: &str = "the server rejected our request due to an error in our request";

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
    /// What else must not have changed.
    pub guard: Guard,
}

/// What a journal write demands besides the journal that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: what others write to the Workload is no hindrance.
    Journal,
    /// That nothing at all was written to the Workload since it was read.
    Workload,
}

/// Commits a journal and returns the Workload as it is afterwards.
///
/// # Errors
/// [`Error::Conflict`] if the annotation is no longer `old`, or the Workload is another one.
pub async fn commit(client: &Client, workload: &Workload, entry: &Entry<'_>) -> Result<Workload, Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let patch: Patch<()> = Patch::Json(patch(workload, entry));
    let action = "writing the journal of Workload";
    match write(action, &workload.full_name(), api.patch(&name, &patch_params(), &patch)).await {
        // A failed `test` is answered with 422 Invalid, not with 409.
        Err(error) if error.code() == Some(422) && is_failed_test(&error) => {
            Err(Error::Conflict { action, object: workload.full_name() })
        }
        other => other,
    }
}

/// Makes sure that what [`commit`] demands is still so, or that what it wrote is in the cluster.
///
/// # Errors
/// [`Error::Conflict`] if neither is, or the Workload is another one.
pub async fn confirm(client: &Client, workload: &Workload, entry: &Entry<'_>) -> Result<(), Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let action = "confirming the journal of Workload";
    let found = call(action, &workload.full_name(), api.get_metadata(&name)).await?;
    let journal = found.annotations().get(&names::journal_key(entry.check)).map(String::as_str);
    // A write that failed for want of an answer may have happened.
    let written = journal == Some(entry.journal);
    let unchanged = match entry.guard {
        Guard::Journal => journal == entry.old,
        Guard::Workload => found.metadata.resource_version == workload.metadata.resource_version,
    };
    if found.metadata.uid == workload.metadata.uid && (written || unchanged) {
        return Ok(());
    }
    Err(Error::Conflict { action, object: workload.full_name() })
}

/// Whether a `test` of the patch failed. Policies and schemas answer with 422 too, and with words of their own.
fn is_failed_test(error: &Error) -> bool {
    let Error::Api { cause, .. } = error else {
        return false;
    };
    matches!(cause.as_ref(), kube::Error::Api(status) if status.message == FAILED_TEST)
}

fn patch(workload: &Workload, entry: &Entry<'_>) -> JsonPatch {
    let annotations = ["metadata", "annotations"];
    let at = |path: &[&str]| PointerBuf::from_tokens(path.iter().copied());
    let key = names::journal_key(entry.check);
    let state_key = names::state_key(entry.check);
    let test = |path, value: Value| PatchOperation::Test(TestOperation { path, value });
    let add = |path, value: Value| PatchOperation::Add(AddOperation { path, value });
    let mut operations = vec![test(at(&["metadata", "uid"]), json!(workload.uid().unwrap_or_default()))];
    if entry.guard == Guard::Workload {
        operations.push(test(at(&["metadata", "resourceVersion"]), json!(workload.resource_version())));
    }
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
    use std::sync::Arc;

    fn rendered(workload: &Workload, old: Option<&str>) -> Value {
        let entry = Entry { check: "c/1", old, journal: "{}", headline: "h", guard: Guard::Journal };
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
    fn a_guarded_write_demands_the_very_version_that_was_read() {
        let mut workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        workload.metadata.resource_version = Some("7".into());
        let entry = Entry { check: "c", old: None, journal: "{}", headline: "h", guard: Guard::Workload };
        let operations = serde_json::to_value(patch(&workload, &entry)).unwrap();
        assert_eq!(operations[1], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
    }

    #[test]
    fn only_a_failed_test_is_a_lost_race() {
        let refused = |message: &str| Error::Api {
            action: "writing the journal of Workload",
            object: "w".into(),
            cause: Arc::new(kube::Error::Api(Box::new(kube::core::Status {
                message: message.into(),
                reason: "Invalid".into(),
                code: 422,
                ..kube::core::Status::default()
            }))),
        };
        assert!(is_failed_test(&refused(FAILED_TEST)));
        for other in ["ValidatingAdmissionPolicy 'quiet' denied request", "metadata.annotations: Too long"] {
            assert!(!is_failed_test(&refused(other)), "{other}");
        }
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
