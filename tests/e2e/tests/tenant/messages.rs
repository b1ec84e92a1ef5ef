//! Facts about the cloud that a tenant can read, and a tenant's text that operators see.

use crate::stage::{PODS, Stage, TENANT, job};
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, ListParams};
use serde_json::json;
use setu::api::Workload;
use setu_e2e::apply;

/// Part of the cloud's error message.
const ACCOUNT: &str = "123456789012";

/// Everything about gangs that the tenant may read.
async fn read_by_the_tenant(stage: &Stage) -> String {
    let all = ListParams::default();
    let workloads: Api<Workload> = Api::namespaced(stage.tenant.clone(), TENANT);
    let events: Api<Event> = Api::namespaced(stage.tenant.clone(), TENANT);
    let (workloads, events) = (workloads.list(&all).await.unwrap(), events.list(&all).await.unwrap());
    json!([workloads.items, events.items]).to_string()
}

/// A22: the cloud's error message names an account; the message stays on the NodeClaim.
pub async fn a_launch_that_is_refused(stage: &mut Stage) {
    let words = format!("account {ACCOUNT} may not run instances in subnet-0abc");
    let refusal = json!({"createError": {"reason": "Unauthorized", "message": words}});
    stage.play.step(json!({"weather": [{"registrationDelay": "1h"}, refusal]})).await;
    apply::one(&stage.tenant, job(TENANT, "unlucky")).await.unwrap();
    stage.play.step(json!({"until": {"job": "unlucky", "message": "Unauthorized"}})).await;
    let claims = json!(stage.claims(TENANT).await).to_string();
    assert!(claims.contains(ACCOUNT), "nobody could tell it: {claims}");
    // Once while Setu waits, and once after the failure.
    for state in ["Provisioning", "RollingBack"] {
        stage.play.step(json!({"until": {"job": "unlucky", "wentThrough": [state]}})).await;
        let messages = read_by_the_tenant(stage).await;
        assert!(messages.contains("Unauthorized") && !messages.contains(ACCOUNT), "{state}: {messages}");
    }
    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "unlucky"}})).await;
    stage.nodes_do_not_come().await;
    stage.until("its claims are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
    stage.nobody_was_harmed("a launch that was refused").await;
}

/// A21: no name that a tenant chose becomes a metric label, and no text of a tenant controls the terminal of
/// a log reader.
pub fn names_make_no_labels_and_texts_no_commands(stage: &Stage) {
    let setu = &stage.play.all["setu"];
    let metrics = setu.get("metrics", "/metrics").unwrap();
    assert!(metrics.contains("setu_api_requests_total{"), "{metrics}");
    for name in ["greedy", "swarm", "unlucky"] {
        assert!(!metrics.contains(name), "{name} in\n{metrics}");
    }
    let log = setu.log();
    let driven = log.lines().find(|line| line.contains('\u{1b}') || line.starts_with("forged"));
    assert_eq!(driven, None, "the log drives the terminal");
}
