//! The systems that Setu is compared with: a stand-in autoscaler that grants every ProvisioningRequest at once, for
//! Kueue's own check, and an imitation of the first Setu's loop, which polls every 15 seconds.

use crate::watch::{self, resource};
use anyhow::Result;
use futures::{StreamExt as _, stream};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use setu::names;
use std::collections::BTreeMap;
use std::time::Duration;

/// The polling interval of the imitation.
const POLL: Duration = Duration::from_secs(15);

/// Grants every ProvisioningRequest that is not of Setu's class as soon as it appears.
pub async fn grant_everything(client: Client) {
    let granting = client.clone();
    watch::each(client, "ProvisioningRequest", move |request| {
        let client = granting.clone();
        async move {
            if request.data["spec"]["provisioningClassName"] == names::REQUEST_CLASS
                || request.data["status"]["conditions"].as_array().is_some_and(|c| c.iter().any(|c| c["type"] == "Provisioned")) {
                return;
            }
            let namespace = request.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(client, &namespace, &resource("ProvisioningRequest"));
            let now = jiff::Timestamp::now().to_string();
            let condition = |kind: &str| json!({
                "type": kind, "status": "True", "reason": kind, "message": "granted at once", "lastTransitionTime": now,
            });
            let status = json!({"status": {"conditions": [condition("Accepted"), condition("Provisioned")]}});
            let _ = api.patch_status(&request.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await;
        }
    })
    .await;
}

/// The imitation: every 15 seconds it creates the NodeClaims of Workloads that have none, and sets Ready for those
/// whose nodes are all ready.
pub async fn poll(client: Client, check: &'static str, claim: Value) {
    let mut tick = tokio::time::interval(POLL);
    loop {
        tick.tick().await;
        if let Err(error) = poll_once(&client, check, &claim).await {
            eprintln!("the poller: {error:#}");
        }
    }
}

async fn poll_once(client: &Client, check: &str, claim: &Value) -> Result<()> {
    let mut claims: BTreeMap<String, Vec<DynamicObject>> = BTreeMap::new();
    for claim in watch::list(client, "NodeClaim").await? {
        claims
            .entry(claim.labels().get(names::WORKLOAD_UID).cloned().unwrap_or_default())
            .or_default()
            .push(claim);
    }
    for workload in watch::list(client, "Workload").await? {
        let entry = workload.data["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
        let pending = entry.iter().any(|c| c["name"] == check && c["state"] == "Pending");
        let conditions = workload.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if !pending || !conditions.iter().any(|c| c["type"] == "QuotaReserved" && c["status"] == "True") {
            continue;
        }
        let count = workload.data["spec"]["podSets"][0]["count"].as_u64().unwrap_or_default();
        let uid = workload.uid().unwrap_or_default();
        let own = claims.get(&uid).map(Vec::as_slice).unwrap_or_default();
        let ready = |c: &&DynamicObject| {
            c.data["status"]["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(|c| c["type"] == "Initialized" && c["status"] == "True"))
        };
        if own.is_empty() {
            create(client, claim, &uid, count).await;
        } else if own.iter().filter(ready).count() as u64 == count {
            let namespace = workload.namespace().unwrap_or_default();
            let api: Api<DynamicObject> =
                Api::namespaced_with(client.clone(), &namespace, &resource("Workload"));
            let entry = json!({
                "name": check, "state": "Ready", "message": "all nodes are ready",
                "lastTransitionTime": jiff::Timestamp::now().round(jiff::Unit::Second)?.to_string(),
            });
            let body = json!({
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
                "metadata": {"name": workload.name_any(), "namespace": namespace, "uid": uid},
                "status": {"admissionChecks": [entry]},
            });
            api.patch_status(
                &workload.name_any(),
                &PatchParams::apply("poller").force(),
                &Patch::Apply(&body),
            )
            .await?;
        }
    }
    Ok(())
}

async fn create(client: &Client, claim: &Value, uid: &str, count: u64) {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource("NodeClaim"));
    let creates = stream::iter(0..count).map(|slot| {
        let (api, mut claim) = (api.clone(), claim.clone());
        claim["metadata"]["name"] = json!(format!("poller-{uid}-{slot}"));
        claim["metadata"]["labels"][names::WORKLOAD_UID] = json!(uid);
        async move {
            if let Ok(object) = serde_json::from_value(claim) {
                let _ = api.create(&PostParams::default(), &object).await;
            }
        }
    });
    creates.buffer_unordered(32).collect::<Vec<()>>().await;
}
