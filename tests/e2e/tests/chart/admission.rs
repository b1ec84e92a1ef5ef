//! Tests the admission policies as a tenant, Kueue, Karpenter and Setu, each with its own token and more permissions
//! than it should have. The programs of the stack use the same user names, so a gang only finishes if the policies
//! allow everything that they do for it.

use crate::install::Install;
use crate::surroundings::{ID, NAMESPACE};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use setu::api::{NodeClaim, Workload};
use setu_e2e::apply;

/// Accounts with all permissions on Workloads and NodeClaims, so that only the policies restrict them.
const ACCOUNTS: [(&str, &str); 5] = [
    (ID, "tenant"),
    ("kueue-system", "kueue-controller-manager"),
    ("kube-system", "karpenter"),
    (ID, "another-writer"),
    (ID, "another-keeper"),
];

fn rights() -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "too-much"},
        "rules": [{
            "apiGroups": ["kueue.x-k8s.io", "karpenter.sh"],
            "resources": ["workloads", "nodeclaims"], "verbs": ["*"],
        }],
    })];
    let accounts = ACCOUNTS.into_iter().chain([(NAMESPACE, "setu")]);
    let subjects: Vec<Value> =
        accounts.map(|(ns, name)| json!({"kind": "ServiceAccount", "name": name, "namespace": ns})).collect();
    objects.push(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "too-much"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "too-much"},
        "subjects": subjects,
    }));
    for (namespace, name) in ACCOUNTS {
        objects.push(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}));
    }
    objects
}

/// Checks that the API server refused, with these words.
fn refused<T: std::fmt::Debug>(answer: Result<T, kube::Error>, words: &str) {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains(words) => {}
        other => panic!("expected a refusal with {words:?}, got {other:?}"),
    }
}

fn dry() -> PatchParams {
    PatchParams { dry_run: true, ..PatchParams::default() }
}

fn annotation(key: &str, value: Option<&str>) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"annotations": {key: value}}}))
}

/// Tests the policies on a gang that waits for its nodes.
pub async fn hold(install: &mut Install) {
    let admin = install.stack.client().unwrap();
    apply::all(&admin, rights()).await.unwrap();
    install.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
    install.step(json!({"submit": {"name": "watched", "pods": 1, "gpus": 1, "runFor": "1s"}})).await;
    install.step(json!({"until": {"job": "watched", "state": "WaitingReady", "claims": 1}})).await;
    let workload = install.world.workload("watched").await.unwrap().unwrap();
    let claim = install.world.claims().await.unwrap().remove(0);
    journals_are_setus(install, &workload).await;
    claims_are_setus_and_karpenters(install, &claim).await;
    setu_keeps_its_bounds(install, &claim).await;
    install.step(json!({"weather": []})).await;
    install.step(json!({"until": {"job": "watched", "finished": true, "claims": 0}})).await;
}

async fn client_of(install: &Install, namespace: &str, account: &str) -> Client {
    install.stack.client_of(namespace, account).await.unwrap()
}

async fn journals_are_setus(install: &Install, workload: &Workload) {
    let name = &workload.name_any();
    let key = &setu::names::journal_key(ID);
    let of = async |namespace, account| -> Api<Workload> {
        Api::namespaced(client_of(install, namespace, account).await, ID)
    };
    let tenant = of(ID, "tenant").await;
    // A policy takes effect shortly after its creation.
    install
        .until("the journal is protected", async || {
            tenant.patch(name, &dry(), &annotation(key, Some("{}"))).await.is_err()
        })
        .await;
    refused(tenant.patch(name, &dry(), &annotation(key, Some("{}"))).await, "written by Setu alone");
    refused(tenant.patch(name, &dry(), &annotation(key, None)).await, "removed by Setu alone");
    let other = setu::names::state_key("another");
    refused(tenant.patch(name, &dry(), &annotation(&other, Some("x"))).await, "written by Setu alone");
    tenant.patch(name, &dry(), &annotation("example.com/note", Some("x"))).await.unwrap();
    let mut copy = workload.clone();
    copy.metadata =
        serde_json::from_value(json!({"name": "copy", "namespace": ID, "annotations": {key: "{}"}})).unwrap();
    let creates = PostParams { dry_run: true, ..PostParams::default() };
    refused(tenant.create(&creates, &copy).await, "written by Setu alone");
    let keeper = of(ID, "another-keeper").await;
    refused(keeper.patch(name, &dry(), &annotation(key, Some("{}"))).await, "written by Setu alone");
    for (namespace, account) in
        [(NAMESPACE, "setu"), ("kueue-system", "kueue-controller-manager"), (ID, "another-writer")]
    {
        of(namespace, account).await.patch(name, &dry(), &annotation(key, Some("{}"))).await.unwrap();
    }
}

async fn claims_are_setus_and_karpenters(install: &Install, claim: &NodeClaim) {
    let name = &claim.name_any();
    let words = "made, changed and deleted by Setu and Karpenter alone";
    let deletes = DeleteParams { dry_run: true, ..DeleteParams::default() };
    let tenant: Api<NodeClaim> = Api::all(client_of(install, ID, "tenant").await);
    refused(tenant.delete(name, &deletes).await, words);
    refused(tenant.patch(name, &dry(), &annotation("example.com/note", Some("x"))).await, words);
    let strip = Patch::Merge(json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}));
    refused(tenant.patch(name, &dry(), &strip).await, words);
    let creates = PostParams { dry_run: true, ..PostParams::default() };
    refused(tenant.create(&creates, &like(claim, "setu-forged")).await, words);
    let writer: Api<NodeClaim> = Api::all(client_of(install, ID, "another-writer").await);
    refused(writer.delete(name, &deletes).await, words);
    let keeper: Api<NodeClaim> = Api::all(client_of(install, ID, "another-keeper").await);
    keeper.patch(name, &dry(), &annotation("example.com/note", Some("x"))).await.unwrap();
    keeper.create(&creates, &like(claim, "setu-anothers")).await.unwrap();
    let karpenter: Api<NodeClaim> = Api::all(client_of(install, "kube-system", "karpenter").await);
    karpenter.patch(name, &dry(), &annotation("example.com/note", Some("x"))).await.unwrap();
    karpenter.delete(name, &deletes).await.unwrap();
    refused(
        karpenter.create(&creates, &like(claim, "setu-forged")).await,
        "Karpenter makes no NodeClaims labelled",
    );
}

async fn setu_keeps_its_bounds(install: &Install, claim: &NodeClaim) {
    let setu: Api<NodeClaim> = Api::all(client_of(install, NAMESPACE, "setu").await);
    let creates = PostParams { dry_run: true, ..PostParams::default() };
    setu.create(&creates, &like(claim, "setu-another")).await.unwrap();
    let without = |key: &str| {
        let mut made = like(claim, "setu-another");
        made.metadata.labels.as_mut().unwrap().remove(key);
        made
    };
    refused(setu.create(&creates, &without(setu::names::MANAGED_BY)).await, "only NodeClaims labelled");
    refused(setu.create(&creates, &without(setu::names::GANG)).await, "names its gang, Workload and attempt");
    let mut elsewhere = like(claim, "setu-another");
    elsewhere
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(setu::names::NODEPOOL.to_owned(), "expensive".to_owned());
    refused(setu.create(&creates, &elsewhere).await, "Setu may use the NodePools");
    // A NodeClaim of another owner. It is deleted quickly, because Karpenter would launch it.
    let everybodys: Api<NodeClaim> = Api::all(install.stack.client().unwrap());
    let mut foreign = like(claim, "foreign");
    foreign.metadata.labels.as_mut().unwrap().retain(|key, _| key == setu::names::NODEPOOL);
    everybodys.create(&PostParams::default(), &foreign).await.unwrap();
    let deletes = DeleteParams { dry_run: true, ..DeleteParams::default() };
    refused(setu.delete("foreign", &deletes).await, "only NodeClaims labelled");
    everybodys.delete("foreign", &DeleteParams::default()).await.unwrap();
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::all(client_of(install, NAMESPACE, "setu").await);
    refused(secrets.list(&ListParams::default()).await, "cannot list resource");
}

/// A copy of the claim with another name.
fn like(claim: &NodeClaim, name: &str) -> NodeClaim {
    let mut made = NodeClaim::new(name, claim.spec.clone());
    made.metadata.labels.clone_from(&claim.metadata.labels);
    made.metadata.annotations.clone_from(&claim.metadata.annotations);
    made
}
