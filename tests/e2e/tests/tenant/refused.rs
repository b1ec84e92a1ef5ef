//! Requests that the API server refuses to a tenant with the usual permissions.

use crate::stage::{NEIGHBOURS, Stage, TENANT, job};
use http::{Method, Request};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use setu_e2e::apply;

/// Sends a request, and returns the status code if it is refused.
async fn refusal(client: &Client, method: Method, path: &str, body: &Value) -> Option<u16> {
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    let answer: Result<Value, _> = client.request(request.body(body.to_string().into_bytes()).unwrap()).await;
    match answer {
        Err(kube::Error::Api(status)) => Some(status.code),
        Err(error) => panic!("{path}: {error}"),
        Ok(_) => None,
    }
}

/// A1, A15, A25, A28, and other requests that need permissions no tenant has.
pub async fn what_is_not_the_tenants(stage: &mut Stage) {
    apply::one(&stage.tenant, job(TENANT, "own")).await.unwrap();
    stage.until("the tenant's gang waits", async |s| s.claims(TENANT).await.len() == 2).await;
    let own = stage.workload(TENANT, "own").await.unwrap().name_any();
    let claim = stage.claims(NEIGHBOURS).await[0].name_any();
    let kueue = "/apis/kueue.x-k8s.io/v1beta2";
    let workloads = format!("{kueue}/namespaces/{TENANT}/workloads");
    let claims = "/apis/karpenter.sh/v1/nodeclaims";
    let [get, make, change, delete] = [Method::GET, Method::POST, Method::PATCH, Method::DELETE];
    let ready = json!({"status": {"admissionChecks": [{"name": TENANT, "state": "Ready"}]}});
    let any = json!({"metadata": {"annotations": {"example.com/note": "x"}}});
    for (method, path, body) in [
        (&change, format!("{workloads}/{own}"), &any),
        (&change, format!("{workloads}/{own}/status"), &ready),
        (&delete, format!("{workloads}/{own}"), &any),
        (&make, workloads.clone(), &any),
        (&get, format!("{kueue}/namespaces/{NEIGHBOURS}/workloads"), &any),
        (&get, claims.to_owned(), &any),
        (&make, claims.to_owned(), &any),
        (&change, format!("{claims}/{claim}"), &any),
        (&delete, format!("{claims}/{claim}"), &any),
        (&change, format!("/apis/karpenter.sh/v1/nodepools/{TENANT}"), &any),
        (&get, "/api/v1/nodes".to_owned(), &any),
        (&change, format!("{kueue}/admissionchecks/{TENANT}"), &any),
        (&change, format!("{kueue}/admissionchecks/{TENANT}/status"), &any),
        (&change, format!("{kueue}/clusterqueues/{TENANT}"), &any),
        (&change, format!("{kueue}/namespaces/{TENANT}/localqueues/queue"), &any),
        (&make, "/apis/setu.kueue.x-k8s.io/v1alpha1/provisioningparameters".to_owned(), &any),
        (&make, format!("/apis/batch/v1/namespaces/{NEIGHBOURS}/jobs"), &any),
        (&get, "/api/v1/namespaces/kueue-system/secrets".to_owned(), &any),
        (&make, "/api/v1/namespaces/kueue-system/serviceaccounts/setu/token".to_owned(), &any),
        (&change, "/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/setu".to_owned(), &any),
    ] {
        let code = refusal(&stage.tenant, method.clone(), &path, body).await;
        assert_eq!(code, Some(403), "{method} {path}");
    }
    // The account that may write Workloads still may not write their status.
    let status = format!("{workloads}/{own}/status");
    assert_eq!(refusal(&stage.writer, change.clone(), &status, &ready).await, Some(403));
    assert_eq!(refusal(&stage.writer, delete, &format!("{claims}/{claim}"), &any).await, Some(403));
    stage.nobody_was_harmed("requests that were refused").await;
}
