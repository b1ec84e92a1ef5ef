//! Cleans up a cluster: every NodeClaim is deleted or handed back, and no Workload or ProvisioningRequest waits for an
//! answer that will never come.
//!
//! Rule: the controller is stopped meanwhile, or it would recreate what is removed.

use crate::api::{AdmissionCheck, NodeClaim, ProvisioningRequest, Workload};
use crate::cluster::decoded::Decoded;
use crate::effects::active::Active;
use crate::effects::handover::hand_back_for_uninstall;
use crate::effects::workload_marks::{unmark_request, unmark_workload};
use crate::effects::{active, call, claims, deployment, request, requeued, standalone, verdict};
use crate::error::Error;
use crate::gang::release::uninstall::{
    CHECK_MESSAGE, RequestListing, RunningNodes, UNINSTALLED, UninstallObjects, UninstallPlan, WorkloadMarks,
};
use crate::gang::workload::queueing::Queueing;
use crate::gang::workload::request::owner_of;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time between two polls of what is still there.
const POLL: Duration = Duration::from_secs(1);

/// Reads the cluster and plans what to do. `controller_name` is that of the checks to abandon.
pub async fn plan(
    client: &Client,
    controller_name: &str,
    nodes: RunningNodes,
) -> Result<UninstallPlan, Error> {
    let all = ListParams::default();
    let ours = all.clone().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
    let checks: Api<AdmissionCheck> = Api::all(client.clone());
    let claims: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let workloads: Api<Decoded<Workload>> = Api::all(client.clone());
    let (checks, claims, workloads) = tokio::try_join!(
        list("listing AdmissionChecks", &checks, &all),
        list("listing NodeClaims", &claims, &ours),
        list("listing Workloads", &workloads, &all),
    )?;
    let claims: Vec<NodeClaim> = readable(claims.unwrap_or_default());
    let requests = requests(client, &claims).await?;
    let (checks, workloads) = (checks.unwrap_or_default(), workloads.map(readable));
    let found = UninstallObjects { checks, claims, workloads, requests, now: Timestamp::now() };
    Ok(UninstallPlan::of(controller_name, nodes, found))
}

fn readable<K>(all: Vec<Decoded<K>>) -> Vec<K> {
    all.into_iter().filter_map(|guarded| guarded.0.ok()).collect()
}

/// The ProvisioningRequests. An installation that does not serve them may not list them.
async fn requests(client: &Client, claims: &[NodeClaim]) -> Result<RequestListing, Error> {
    let api: Api<Decoded<ProvisioningRequest>> = Api::all(client.clone());
    match list("listing ProvisioningRequests", &api, &ListParams::default()).await {
        Err(error) if error.is_forbidden() => {
            if claims.iter().any(|claim| owner_of(claim).is_some()) {
                let error = error.in_full();
                tracing::warn!(%error, "ProvisioningRequests and their NodeClaims are left to another installation");
            }
            Ok(RequestListing::Forbidden)
        }
        answer => Ok(answer?.map_or(RequestListing::NotServed, |found| RequestListing::All(readable(found)))),
    }
}

/// All objects of a kind; `None` if the cluster has no such kind, for example because its CRD was deleted first.
async fn list<K>(action: &'static str, api: &Api<K>, params: &ListParams) -> Result<Option<Vec<K>>, Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    match call(action, "", api.list(params)).await {
        Err(error) if error.code() == Some(404) => Ok(None),
        answer => answer.map(|list| Some(list.items)),
    }
}

/// Scales the controller's Deployment to zero and waits until its pods are gone, including terminating ones: they may
/// still write.
pub async fn stop(client: &Client, namespace: &str, name: &str, limit: Duration) -> Result<(), String> {
    let scaled = deployment::scale_to_zero(client, namespace, name).await;
    let Some(selector) = scaled.map_err(|e| e.in_full().to_string())? else { return Ok(()) };
    if selector.is_empty() {
        return Err(format!(
            "the scale of Deployment {namespace}/{name} does not say which pods are its own"
        ));
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let its = ListParams::default().labels(&selector);
    let deadline = Instant::now() + limit;
    loop {
        let left = call("listing Pods", name, pods.list_metadata(&its))
            .await
            .map_err(|e| e.in_full().to_string())?;
        let left: Vec<String> = left.items.iter().map(ResourceExt::name_any).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "these pods of Deployment {namespace}/{name} are still there after {limit:?}: {}",
                left.join(", ")
            ));
        }
        sleep(POLL).await;
    }
}

/// Carries out the plan, waits until the deleted NodeClaims are gone, and reads again until it finds nothing: writes that
/// the controller had in flight when it ended may arrive after the plan was made.
pub async fn carry_out(
    client: &Client,
    controller_name: &str,
    mut plan: UninstallPlan,
    nodes: RunningNodes,
    limit: Duration,
) -> Result<(), String> {
    let deadline = Instant::now() + limit;
    let mut handed_back = BTreeSet::new();
    loop {
        handed_back.extend(plan.hand_back.iter().filter_map(ResourceExt::uid));
        pass(client, plan, nodes, limit).await?;
        sleep(POLL).await;
        plan = self::plan(client, controller_name, nodes).await.map_err(|e| e.in_full().to_string())?;
        // They keep our label, so they are found here again.
        plan.hand_back.retain(|claim| claim.uid().is_none_or(|uid| !handed_back.contains(&uid)));
        if plan.is_done() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "something new to take away was found again and again for {limit:?}: does a controller still run? \
                 Name its Deployment with --deployment"
            ));
        }
    }
}

async fn pass(
    client: &Client,
    plan: UninstallPlan,
    nodes: RunningNodes,
    limit: Duration,
) -> Result<(), String> {
    let text = |e: Error| e.in_full().to_string();
    let is_current = answer(client, &plan).await.map_err(text)?;
    for claim in &plan.hand_back {
        hand_back_for_uninstall(client, claim).await.map_err(text)?;
    }
    if !is_current {
        // The gang may run by now, so the next read decides about its nodes.
        return Ok(());
    }
    let targets: BTreeMap<String, String> =
        plan.delete.iter().map(|c| (c.name_any(), c.uid().unwrap_or_default())).collect();
    let (_, failed) = claims::delete_all(client, targets.clone().into_iter().collect(), |_, _| ()).await;
    failed.map_or(Ok(()), |e| Err(e.in_full().to_string()))?;
    until_gone(client, &targets, limit).await?;
    // Last of all, because a finalizer means that there may still be nodes.
    for workload in &plan.marked {
        unmark(client, workload, nodes, &plan.others).await.map_err(text)?;
    }
    for request in &plan.marked_requests {
        is_as_read(unmark_request(client, request).await).map_err(text)?;
    }
    Ok(())
}

/// Answers everyone who waits for Setu. Returns whether they were all as they were read.
async fn answer(client: &Client, plan: &UninstallPlan) -> Result<bool, Error> {
    let inactive = Active { works: false, reason: UNINSTALLED, message: CHECK_MESSAGE.to_owned() };
    let now = Timestamp::now();
    let mut is_current = true;
    // Checks become inactive first, or Kueue would reserve again the quota that is released here.
    for check in &plan.checks {
        active::report(client, check, &inactive, now).await?;
    }
    // Kueue takes back the quota of Workloads that no controller will provision for.
    for workload in &plan.waiting {
        is_current &= is_as_read(verdict::apply(client, workload, &plan.retries(workload, now)).await)?;
    }
    for workload in &plan.created {
        is_current &= is_as_read(standalone::delete(client, workload).await)?;
    }
    for request in &plan.open_requests {
        is_current &= is_as_read(request::fail_after_uninstall(client, request, now).await)?;
    }
    for workload in &plan.kept_out {
        is_as_read(requeued::apply(client, workload, Queueing::Allowed, now).await)?;
    }
    Ok(is_current)
}

/// Whether an object was written as it was read. The next read shows what has become of any other.
fn is_as_read<T>(answer: Result<T, Error>) -> Result<bool, Error> {
    match answer {
        Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
        other => other.map(|_| true),
    }
}

async fn unmark(
    client: &Client,
    workload: &Workload,
    nodes: RunningNodes,
    others: &BTreeSet<String>,
) -> Result<(), Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let mut tries = 0;
    loop {
        let Some(current) = call("reading Workload", &workload.full_name(), api.get_opt(&name)).await? else {
            return Ok(());
        };
        tries += 1;
        let marks = WorkloadMarks::of(&current, nodes, others, Timestamp::now());
        match unmark_workload(client, &current, &marks).await {
            Err(Error::Conflict { .. }) if tries < 5 => {}
            other => return other.map(drop),
        }
    }
}

async fn until_gone(
    client: &Client,
    targets: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<(), String> {
    let api: Api<Decoded<NodeClaim>> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
    let deadline = Instant::now() + limit;
    loop {
        let list = list("listing NodeClaims", &api, &ours).await.map_err(|e| e.in_full().to_string())?;
        let left: Vec<String> = list
            .unwrap_or_default()
            .into_iter()
            .filter_map(|c| c.0.ok())
            .filter(|c| targets.get(&c.name_any()) == c.uid().as_ref())
            .map(|c| c.name_any())
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!(
                "Karpenter has not taken these NodeClaims away within {limit:?}: {}. They are being deleted; look at \
                 their conditions",
                left.join(", ")
            ));
        }
        sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::node_claim::NodeClaimSpec;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    /// A cluster that answers each request by its path, with a code and a body.
    fn answering(answer: fn(&str) -> (u16, Value)) -> Client {
        let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            while let Some((request, send)) = handle.next_request().await {
                let (code, said) = answer(request.uri().path());
                let body = Body::from(said.to_string().into_bytes());
                send.send_response(Response::builder().status(code).body(body).unwrap());
            }
        });
        Client::new(service, "default")
    }

    fn status(code: u16) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": code, "message": "no"}),
        )
    }

    #[tokio::test]
    async fn missing_crds_mean_nothing_to_do_and_other_failures_are_reported() {
        let gone = answering(|_| status(404));
        let plan = plan(&gone, "setu", RunningNodes::HandBack).await.unwrap();
        assert!(plan.is_done() && plan.checks.is_empty());
        let targets = BTreeMap::from([("c".to_owned(), "uid".to_owned())]);
        until_gone(&gone, &targets, Duration::ZERO).await.unwrap();
        let refused = answering(|_| status(403));
        assert!(super::plan(&refused, "setu", RunningNodes::HandBack).await.is_err());
        assert!(until_gone(&refused, &targets, Duration::ZERO).await.is_err());
    }

    #[tokio::test]
    async fn an_installation_that_may_not_list_requests_is_uninstalled_without_them() {
        let client = answering(|path| {
            status(if path == "/apis/autoscaling.x-k8s.io/v1/provisioningrequests" { 403 } else { 404 })
        });
        assert!(plan(&client, "setu", RunningNodes::HandBack).await.unwrap().is_done());
        let client = answering(|path| {
            status(if path == "/apis/autoscaling.x-k8s.io/v1/provisioningrequests" { 500 } else { 404 })
        });
        assert!(plan(&client, "setu", RunningNodes::HandBack).await.is_err());
    }

    #[tokio::test]
    async fn nodes_are_handed_back_if_workloads_cannot_be_listed() {
        let client = answering(|path| match path {
            "/apis/karpenter.sh/v1/nodeclaims" => {
                let claim = NodeClaim::new("orphan", NodeClaimSpec::default());
                (
                    200,
                    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaimList", "metadata": {}, "items": [claim]}),
                )
            }
            _ => status(404),
        });
        let names_of = |claims: &[NodeClaim]| claims.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
        let kept = plan(&client, "setu", RunningNodes::HandBack).await.unwrap();
        assert_eq!((names_of(&kept.hand_back), kept.delete.len()), (vec!["orphan".to_owned()], 0));
        let all = plan(&client, "setu", RunningNodes::Delete).await.unwrap();
        assert_eq!((names_of(&all.delete), all.hand_back.len()), (vec!["orphan".to_owned()], 0));
    }
}
