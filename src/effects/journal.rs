//! Writes a gang's journal into its Workload, unless someone else has written it meanwhile.
//!
//! The write is a JSON patch that tests the Workload's UID and the old value of our annotation. Other writes to the same
//! Workload do not conflict with it, and a stale leader's write fails. If there is nothing to write, `confirm` reads
//! instead.

use crate::api::{FrontEnd, Workload};
use crate::effects::{call, patch_params, request, write};
use crate::error::{Class, Error};
use crate::gang::Precondition;
use crate::names;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch as JsonPatch, PatchOperation, TestOperation};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::Patch;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// What a write to a Workload does.
const WRITING: &str = "writing the journal of Workload";

/// The data to write for one check.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Name of the AdmissionCheck.
    pub check: &'a str,
    /// The annotation as it was read; `None` if there was none.
    pub old: Option<&'a str>,
    /// The journal.
    pub journal: &'a str,
    /// The line for users.
    pub headline: &'a str,
    /// The precondition of the write, besides `old`.
    pub precondition: Precondition,
}

/// Commits a journal and returns the resulting Workload.
///
/// # Errors
/// [`Error::Conflict`] if the annotation is no longer `old`, or the Workload is another one.
pub async fn commit(client: &Client, workload: &Workload, entry: &Entry<'_>) -> Result<Workload, Error> {
    match workload.front_end() {
        FrontEnd::Workload | FrontEnd::StandaloneRequest => commit_to_workload(client, workload, entry).await,
        FrontEnd::ProvisioningRequest => {
            if entry.precondition == Precondition::Workload {
                request::require_owner(client, workload).await?;
            }
            let annotations = json!({
                (names::journal_key(entry.check)): entry.journal,
                (names::state_key(entry.check)): entry.headline,
            });
            request::write_journal(client, workload, annotations).await
        }
    }
}

async fn commit_to_workload(
    client: &Client,
    workload: &Workload,
    entry: &Entry<'_>,
) -> Result<Workload, Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let patch: Patch<()> = Patch::Json(patch(workload, entry));
    let action = WRITING;
    match write(action, &workload.full_name(), api.patch(&name, &patch_params(), &patch)).await {
        // A failed `test` returns 422 Invalid, not 409, and so does a refusal by a policy or a schema.
        Err(error) if error.code() == Some(422) => {
            let found = call(action, &workload.full_name(), api.get_metadata(&name)).await?;
            let unchanged = is_unchanged(&found.metadata, workload, entry);
            Err(if unchanged { error } else { Error::Conflict { action, object: workload.full_name() } })
        }
        other => other,
    }
}

/// The API server's answer, if this is its refusal of a journal. The journal is not written until someone changes something.
pub fn refusal(error: &Error) -> Option<String> {
    match error {
        Error::Api { action: WRITING | request::WRITING_JOURNAL, cause, .. }
            if error.class() == Class::Refused && error.code() != Some(404) =>
        {
            Some(cause.to_string())
        }
        _ => None,
    }
}

/// Confirms that what [`commit`] requires still holds, or that its write is in the cluster.
///
/// # Errors
/// [`Error::Conflict`] if neither holds, or the Workload is another one.
pub async fn confirm(client: &Client, workload: &Workload, entry: &Entry<'_>) -> Result<(), Error> {
    let action = "confirming the journal of Workload";
    let found = match workload.front_end() {
        FrontEnd::ProvisioningRequest => request::metadata(client, workload, action).await?,
        FrontEnd::Workload | FrontEnd::StandaloneRequest => {
            let namespace = workload.namespace().unwrap_or_default();
            let api: Api<Workload> = Api::namespaced(client.clone(), &namespace);
            call(action, &workload.full_name(), api.get_metadata(&workload.name_any())).await?.metadata
        }
    };
    let annotations = found.annotations.as_ref();
    let journal = annotations.and_then(|all| all.get(&names::journal_key(entry.check))).map(String::as_str);
    // A write without a reply may have happened.
    let written = journal == Some(entry.journal);
    let written = written && found.uid == workload.metadata.uid;
    if written {
        return Ok(());
    }
    if !is_unchanged(&found, workload, entry) {
        return Err(Error::Conflict { action, object: workload.full_name() });
    }
    if entry.precondition == Precondition::Workload {
        request::require_owner(client, workload).await
    } else {
        Ok(())
    }
}

/// Whether the Workload as found meets what a write requires.
fn is_unchanged(found: &ObjectMeta, workload: &Workload, entry: &Entry<'_>) -> bool {
    let read = &workload.metadata;
    let journal = found.annotations.as_ref().and_then(|all| all.get(&names::journal_key(entry.check)));
    let precondition = match workload.front_end() {
        // The journal of a request is written on the version that was read.
        FrontEnd::ProvisioningRequest => Precondition::Workload,
        FrontEnd::Workload | FrontEnd::StandaloneRequest => entry.precondition,
    };
    let unchanged = match precondition {
        // The first annotation of a Workload needs another patch than any later one.
        Precondition::Journal => read.annotations.is_some() == found.annotations.is_some(),
        Precondition::Workload => found.resource_version == read.resource_version,
    };
    found.uid == read.uid && unchanged && journal.map(String::as_str) == entry.old
}

fn patch(workload: &Workload, entry: &Entry<'_>) -> JsonPatch {
    let annotations = ["metadata", "annotations"];
    let at = |path: &[&str]| PointerBuf::from_tokens(path.iter().copied());
    let key = names::journal_key(entry.check);
    let state_key = names::state_key(entry.check);
    let test = |path, value: Value| PatchOperation::Test(TestOperation { path, value });
    let add = |path, value: Value| PatchOperation::Add(AddOperation { path, value });
    let mut operations = vec![test(at(&["metadata", "uid"]), json!(workload.uid().unwrap_or_default()))];
    if entry.precondition == Precondition::Workload {
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
    use crate::gang::workload::request::name_as_workload;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn rendered(workload: &Workload, old: Option<&str>) -> Value {
        let entry =
            Entry { check: "c/1", old, journal: "{}", headline: "h", precondition: Precondition::Journal };
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
    fn a_guarded_write_requires_the_version_that_was_read() {
        let mut workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        workload.metadata.resource_version = Some("7".into());
        let entry = Entry {
            check: "c",
            old: None,
            journal: "{}",
            headline: "h",
            precondition: Precondition::Workload,
        };
        let operations = serde_json::to_value(patch(&workload, &entry)).unwrap();
        assert_eq!(operations[1], json!({"op": "test", "path": "/metadata/resourceVersion", "value": "7"}));
    }

    /// The error of a write that gets a 422 answer, where the Workload has this metadata then.
    async fn answered(found: Value, precondition: Precondition) -> Error {
        let serve = move |request: http::Request<kube::client::Body>| {
            let refusal = json!({"kind": "Status", "code": 422, "reason": "Invalid", "message": "no"});
            let kind = "PartialObjectMetadata";
            let read = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind, "metadata": found});
            let (code, body) =
                if request.method() == http::Method::PATCH { (422, refusal) } else { (200, read) };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, tower::BoxError>(answer) }
        };
        let mut workload = Workload::new("w", crate::api::workload::WorkloadSpec::default());
        workload.metadata = serde_json::from_value(metadata("u", "7", Some("old"))).unwrap();
        let client = Client::new(tower::service_fn(serve), "default");
        let entry = Entry { check: "c", old: Some("old"), journal: "new", headline: "h", precondition };
        commit(&client, &workload, &entry).await.unwrap_err()
    }

    fn metadata(uid: &str, version: &str, journal: Option<&str>) -> Value {
        let annotations = journal.map(|text| json!({names::journal_key("c"): text}));
        json!({"name": "w", "namespace": "n", "uid": uid, "resourceVersion": version, "annotations": annotations})
    }

    #[tokio::test]
    async fn a_422_answer_is_a_conflict_only_if_what_the_write_requires_has_changed() {
        let lost = |error: &Error| matches!(error, Error::Conflict { .. });
        let (journal, whole) = (Precondition::Journal, Precondition::Workload);
        for found in [
            metadata("u", "8", Some("newer")),
            metadata("u", "8", Some("new")),
            metadata("u", "8", None),
            metadata("another", "8", Some("old")),
        ] {
            assert!(lost(&answered(found.clone(), journal).await), "{found}");
        }
        assert!(lost(&answered(metadata("u", "8", Some("old")), whole).await));
        for (version, precondition) in [("8", journal), ("7", whole)] {
            let refused = answered(metadata("u", version, Some("old")), precondition).await;
            assert_eq!(refused.code(), Some(422), "{refused:?}");
            assert_eq!(refusal(&refused).as_deref(), Some("no (422)"));
        }
    }

    /// Results of a write with this precondition, and of its confirmation, for a request whose Workload has reserved quota and got these
    /// conditions meanwhile. Also whether the request was written.
    async fn of_request(meanwhile: &[&str], precondition: Precondition) -> ([bool; 2], bool) {
        let conditions = |kinds: &[&str]| -> Value {
            let of = |kind| json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            kinds.iter().map(of).collect()
        };
        let owner = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"name": "w", "namespace": "n", "uid": "o"},
            "spec": {}, "status": {"conditions": conditions(&[&["QuotaReserved"], meanwhile].concat())},
        });
        let is_written = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&is_written);
        let serve = move |request: http::Request<kube::client::Body>| {
            let mut found = metadata("u", "7", Some("old"));
            found["name"] = json!("r");
            let is_write = request.method() == http::Method::PATCH;
            noted.fetch_or(is_write, Ordering::Relaxed);
            let body = if request.uri().path().contains("/workloads/") {
                owner.clone()
            } else {
                json!({"apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": found, "spec": {}})
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            async move { Ok::<_, tower::BoxError>(http::Response::new(body)) }
        };
        let mut mirror = Workload::new("", crate::api::workload::WorkloadSpec::default());
        mirror.metadata = serde_json::from_value(metadata("u", "7", Some("old"))).unwrap();
        mirror.metadata.name = Some(name_as_workload("r"));
        let controller = json!([{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "w", "uid": "o", "controller": true}]);
        mirror.metadata.owner_references = serde_json::from_value(controller).unwrap();
        mirror.status =
            serde_json::from_value(json!({"conditions": conditions(&["QuotaReserved"])})).unwrap();
        let client = Client::new(tower::service_fn(serve), "default");
        let entry = Entry { check: "c", old: Some("old"), journal: "new", headline: "h", precondition };
        let held = |result: Result<(), Error>| match result {
            Ok(()) => true,
            Err(Error::Conflict { .. }) => false,
            Err(other) => panic!("{other:?}"),
        };
        let committed = held(commit(&client, &mirror, &entry).await.map(drop));
        let is_written = is_written.load(Ordering::Relaxed);
        ([committed, held(confirm(&client, &mirror, &entry).await)], is_written)
    }

    #[tokio::test]
    async fn a_guarded_write_to_a_request_is_refused_once_its_workload_is_admitted_or_taken_down() {
        for meanwhile in ["Admitted", "Evicted", "Finished"] {
            assert_eq!(
                of_request(&[meanwhile], Precondition::Workload).await,
                ([false; 2], false),
                "{meanwhile}"
            );
            assert_eq!(
                of_request(&[meanwhile], Precondition::Journal).await,
                ([true; 2], true),
                "{meanwhile}"
            );
        }
        assert_eq!(of_request(&[], Precondition::Workload).await, ([true; 2], true));
        assert_eq!(of_request(&["PodsReady"], Precondition::Workload).await, ([true; 2], true));
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
