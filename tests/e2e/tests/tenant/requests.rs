//! Attacks by a tenant that may create ProvisioningRequests in its namespace.

use crate::forging::{annotation, refused};
use crate::stage::{NEIGHBOURS, PODS, Stage, TENANT, job};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use setu::names;
use setu_e2e::apply;

const KIND: &str = "ProvisioningRequest";
/// More pods than the ClusterQueue has devices for.
const TOO_MANY: usize = 100_000;

fn requests(stage: &Stage) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("autoscaling.x-k8s.io", "v1", KIND));
    Api::namespaced_with(stage.tenant.clone(), TENANT, &kind)
}

/// A PodTemplate with the pods of [`job`].
fn template(name: &str, node_selector: &Value) -> Value {
    let mut pods = job(TENANT, name)["spec"]["template"].clone();
    pods["spec"]["nodeSelector"] = node_selector.clone();
    json!({
        "apiVersion": "v1", "kind": "PodTemplate",
        "metadata": {"name": name, "namespace": TENANT}, "template": pods,
    })
}

fn request(name: &str, template: &str, pods: usize) -> Value {
    json!({
        "apiVersion": "autoscaling.x-k8s.io/v1", "kind": KIND,
        "metadata": {"name": name, "namespace": TENANT, "labels": {(names::QUEUE): "queue"}},
        "spec": {
            "provisioningClassName": names::REQUEST_CLASS,
            "podSets": [{"count": pods, "podTemplateRef": {"name": template}}],
        },
    })
}

/// The messages of a request's conditions.
async fn said(stage: &Stage, name: &str) -> String {
    requests(stage).get(name).await.unwrap().data["status"]["conditions"].to_string()
}

async fn until_said(stage: &Stage, name: &str, words: &str) {
    stage.until(&format!("{name}: {words}"), async |s| said(s, name).await.contains(words)).await;
}

async fn delete(stage: &Stage, name: &str) {
    requests(stage).delete(name, &DeleteParams::default()).await.unwrap();
}

/// A29 and A31: requests for more than Kueue gives, for Workloads that have nodes, and in the name of others.
pub async fn requests_of_all_kinds(stage: &mut Stage) {
    let pods = [("workers", json!({})), ("elsewhere", json!({(names::NODEPOOL): "expensive"}))];
    for (name, node_selector) in &pods {
        apply::one(&stage.tenant, template(name, node_selector)).await.unwrap();
    }
    without_quota(stage).await;
    of_workloads(stage).await;
    with_quota(stage).await;
}

/// Requests that get no nodes, and why.
async fn without_quota(stage: &mut Stage) {
    let mut queueless = request("queueless", "workers", PODS);
    queueless["metadata"]["labels"] = json!({});
    let mut without_access = request("other-queue", "workers", PODS);
    without_access["metadata"]["labels"][names::QUEUE] = json!("other");
    for (request, words) in [
        (queueless, "has no label kueue.x-k8s.io/queue-name"),
        (without_access, "waits for quota"),
        (request("too-many", "workers", TOO_MANY), "insufficient quota"),
        (request("elsewhere", "elsewhere", PODS), "karpenter.sh/nodepool"),
    ] {
        let name = request["metadata"]["name"].as_str().unwrap().to_owned();
        apply::one(&stage.tenant, request).await.unwrap();
        until_said(stage, &name, words).await;
        stage.nobody_is_harmed(&name).await;
        assert_eq!(stage.claims(TENANT).await.len(), PODS, "{name}: only the Job has nodes");
        delete(stage, &name).await;
    }
}

/// Requests that name a Workload as their controller: the tenant's own, which has its nodes, and one of the neighbours.
async fn of_workloads(stage: &mut Stage) {
    let own = stage.workload(TENANT, "own").await.unwrap();
    let victim = stage.workload(NEIGHBOURS, "runs").await.unwrap();
    for (name, workload) in [("of-own", own), ("of-neighbours", victim)] {
        let mut request = request(name, "workers", 2 * PODS);
        request["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "controller": true,
            "name": workload.name_any(), "uid": workload.uid(),
        }]);
        apply::one(&stage.tenant, request).await.unwrap();
        stage.nobody_is_harmed(name).await;
        assert_eq!(stage.claims(TENANT).await.len(), PODS, "{name}: only the Job has nodes");
        let found = requests(stage).get_opt(name).await.unwrap();
        // The garbage collector deletes an object whose owner is in no namespace of its own.
        if found.is_some() {
            delete(stage, name).await;
        }
    }
}

/// A request that Kueue admits. Its parameters and its journal choose nothing, and its nodes go with it.
async fn with_quota(stage: &mut Stage) {
    let mut greedy = request("greedy", "workers", PODS);
    greedy["spec"]["parameters"] = json!({
        "setu-nodePoolName": "expensive", "setu-maxWait": "1000h", "setu-capacityType": "spot",
    });
    apply::one(&stage.tenant, greedy).await.unwrap();
    stage.until("it has nodes", async |s| s.claims(TENANT).await.len() == 2 * PODS).await;
    stage.nobody_is_harmed("a request with parameters").await;
    let api = requests(stage);
    for key in [names::journal_key(TENANT), names::REQUEST.to_owned()] {
        let forged = annotation(&key, Some("{}"));
        refused(api.patch("greedy", &PatchParams::default(), &forged).await, "written by Setu alone");
    }
    delete(stage, "greedy").await;
    stage.until("its nodes are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
    stage.nobody_was_harmed("a request that went").await;
}
