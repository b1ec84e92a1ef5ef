//! Attacks by a tenant that may write the metadata of Workloads: first with the admission policies, then
//! with only Setu's own checks.

use crate::stage::{NEIGHBOURS, PODS, POLICIES, Stage, TENANT};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use setu::api::Workload;
use setu::names;

/// The maximum total size of one object's annotations, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
const JUNK: &str = "example.com/junk";

/// A patch that writes or removes an annotation.
pub fn annotation(key: &str, value: Option<&str>) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"annotations": {key: value}}}))
}

/// Checks that the API server refused, with these words.
pub fn refused<T: std::fmt::Debug>(answer: Result<T, kube::Error>, words: &str) {
    match answer {
        Err(kube::Error::Api(status)) if status.message.contains(words) => {}
        other => panic!("expected a refusal with {words:?}, got {other:?}"),
    }
}

async fn own(stage: &Stage) -> Workload {
    stage.workload(TENANT, "own").await.unwrap()
}

/// A1 to A9 with the policies: no forgery reaches a journal. Also labels and pod sets.
pub async fn behind_the_policies(stage: &mut Stage) {
    let api: Api<Workload> = Api::namespaced(stage.writer.clone(), TENANT);
    let workload = own(stage).await;
    let (name, really) = (workload.name_any(), PatchParams::default());
    let key = names::journal_key(TENANT);
    refused(api.patch(&name, &really, &annotation(&key, Some("{}"))).await, "written by Setu alone");
    refused(api.patch(&name, &really, &annotation(&key, None)).await, "removed by Setu alone");
    let forged_state = annotation(&names::state_key(TENANT), Some("Approved"));
    refused(api.patch(&name, &really, &forged_state).await, "written by Setu alone");
    let mut copy = workload.clone();
    copy.metadata = serde_json::from_value(json!({
        "name": "copy", "namespace": TENANT, "annotations": {&key: workload.annotations()[&key]},
    }))
    .unwrap();
    refused(api.create(&PostParams::default(), &copy).await, "written by Setu alone");

    let victim = stage.workload(NEIGHBOURS, "waits").await.unwrap();
    let labels = json!({"metadata": {"labels": {
        names::GANG: stage.gang_label("waits").await, names::WORKLOAD_UID: victim.uid(),
        names::MANAGED_BY: names::SETU, names::SLOT: "0", names::NODEPOOL: "expensive",
    }}});
    api.patch(&name, &really, &Patch::Merge(labels)).await.unwrap();
    stage.nobody_is_harmed("labels of another gang").await;

    let more = json!([{"op": "replace", "path": "/spec/podSets/0/count", "value": 9}]);
    let more: Patch<()> = Patch::Json(serde_json::from_value(more).unwrap());
    assert!(api.patch(&name, &really, &more).await.is_err(), "Kueue lets nobody change what it reserved for");

    // The Job stays, so Kueue creates another Workload.
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let before = workload.uid();
    stage
        .until("the Job's next gang waits", async |s| {
            let next = s.workload(TENANT, "own").await.and_then(|w| w.uid());
            let claims = s.claims(TENANT).await;
            let is_next = |c: &&setu::api::NodeClaim| Some(c.label(names::WORKLOAD_UID)) == next.as_deref();
            next != before && claims.len() == PODS && claims.iter().filter(is_next).count() == PODS
        })
        .await;
    stage.nobody_was_harmed("a Workload that was deleted").await;
}

/// The journal with some of its fields replaced.
pub fn with(journal: &str, fields: &Value) -> String {
    let mut journal: Value = serde_json::from_str(journal).unwrap();
    journal.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    journal.to_string()
}

/// A1 to A13 and A21 without the policies.
pub async fn without_the_policies(stage: &mut Stage) {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(stage.admin.clone());
    for name in POLICIES {
        bindings.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let api: Api<Workload> = Api::namespaced(stage.writer.clone(), TENANT);
    let key = names::journal_key(TENANT);
    let first = own(stage).await.annotations()[&key].clone();
    let victims = stage.workload(NEIGHBOURS, "waits").await.unwrap().annotations()[&key].clone();
    let uid = own(stage).await.uid();
    let name = own(stage).await.name_any();
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let forge = annotation(&key, Some("{}"));
    stage.until("the policies are off", async |_| api.patch(&name, &dry, &forge).await.is_ok()).await;
    let known = own(stage).await.annotations().clone();
    let others = known.iter().filter(|(k, _)| **k != key).map(|(k, v)| k.len() + v.len());
    // Leaves no room for a journal. The other annotations of Setu and Kueue may grow a little by then.
    let junk = "x".repeat(ANNOTATIONS_LIMIT - JUNK.len() - others.sum::<usize>() - 256);
    let garbled = format!("{{\"version\":1,\"state\":{}", "[".repeat(500));
    let most = json!({"attempt": u32::MAX, "seq": u64::MAX, "slots": u32::MAX});
    let far_off = json!({"enteredAt": "9999-01-01T00:00:00Z", "deadline": "1970-01-01T00:00:00Z"});
    for (what, annotations) in [
        ("Approved", json!({&key: with(&first, &json!({"state": "Approved", "slots": 0}))})),
        ("a bound journal of others", json!({&key: with(&victims, &json!({"workloadUid": uid}))})),
        ("the neighbours' journal", json!({&key: victims})),
        ("counts at their maximum", json!({&key: with(&first, &most)})),
        ("times far off", json!({&key: with(&first, &far_off)})),
        ("what is no journal", json!({&key: garbled})),
        (
            "a state that drives terminals",
            json!({&key: with(&first, &json!({"state": "\u{1b}[2J\nforged"}))}),
        ),
        ("nothing", json!({&key: null})),
        ("an old journal", json!({&key: first})),
        ("no room for a journal", json!({&key: null, JUNK: junk})),
        (
            "RollingBack",
            json!({JUNK: null, &key: with(&first, &json!({"state": "RollingBack", "then": "Rejected"}))}),
        ),
    ] {
        let forged = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        api.patch(&name, &PatchParams::default(), &forged).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        stage.nobody_is_harmed(what).await;
        assert_eq!(stage.running(TENANT, "own").await, 0, "{what}: it runs without nodes");
        let workload = own(stage).await;
        assert!(!workload.is("Admitted"), "{what}: it is admitted without nodes");
        assert_eq!(workload.annotations().contains_key(&key), what != "no room for a journal", "{what}");
    }
    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "own"}})).await;
    stage.until("the tenant's nodes are gone", async |s| s.claims(TENANT).await.is_empty()).await;
}
