//! Cleans up a cluster: every NodeClaim is deleted or handed back, and no Workload waits for an answer that will never
//! come.
//!
//! Rule: the controller is stopped meanwhile, or it would recreate what is removed.

use crate::api::workload::{CheckState, Verdict};
use crate::api::{AdmissionCheck, NodeClaim, Workload};
use crate::cluster::guard::Guarded;
use crate::effects::active::Active;
use crate::effects::handover::{Annotations, release_node, release_workload};
use crate::effects::{active, call, claims, deployment, requeued, verdict};
use crate::error::Error;
use crate::gang::queueing::Queueing;
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

/// What to do with nodes on which admitted gangs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunningNodes {
    /// They become Karpenter's, which removes them once their pods are done.
    HandBack,
    /// They are deleted like all others, with the pods on them.
    Delete,
}

/// What was found, and what is done with it.
#[derive(Debug, Default)]
pub struct UninstallPlan {
    /// Checks that no controller will answer any more.
    pub checks: Vec<AdmissionCheck>,
    /// Claims to delete.
    pub delete: Vec<NodeClaim>,
    /// Claims of running gangs, which are handed back to Karpenter.
    pub hand_back: Vec<NodeClaim>,
    /// Workloads that hold quota while they wait for us; they release it.
    pub waiting: Vec<Workload>,
    /// Workloads that Setu keeps out of Kueue's queue; they return to it.
    pub kept_out: Vec<Workload>,
    /// Workloads with a finalizer of ours or, if everything is removed, a journal.
    pub marked: Vec<Workload>,
}

impl UninstallPlan {
    /// Whether nothing is left but checks, which stay inactive.
    fn is_done(&self) -> bool {
        let claims = self.delete.is_empty() && self.hand_back.is_empty();
        claims && self.waiting.is_empty() && self.kept_out.is_empty() && self.marked.is_empty()
    }
}

/// Reads the cluster and plans what to do. `controller_name` is that of the checks to abandon.
pub async fn plan(
    client: &Client,
    controller_name: &str,
    nodes: RunningNodes,
) -> Result<UninstallPlan, Error> {
    let all = ListParams::default();
    let ours = all.clone().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
    let checks: Api<AdmissionCheck> = Api::all(client.clone());
    let claims: Api<Guarded<NodeClaim>> = Api::all(client.clone());
    let workloads: Api<Guarded<Workload>> = Api::all(client.clone());
    let (checks, claims, workloads) = tokio::try_join!(
        list("listing AdmissionChecks", &checks, &all),
        list("listing NodeClaims", &claims, &ours),
        list("listing Workloads", &workloads, &all),
    )?;
    let checks = checks.unwrap_or_default();
    let claims = claims.unwrap_or_default().into_iter().filter_map(|c| c.0.ok()).collect();
    let Some(workloads) = workloads else {
        // Without Workloads it is unknown what runs, and Karpenter checks for pods before it removes a node.
        let plan = sorted(controller_name, RunningNodes::Delete, checks, claims, Vec::new());
        return Ok(match nodes {
            RunningNodes::Delete => plan,
            RunningNodes::HandBack => UninstallPlan {
                hand_back: [plan.hand_back, plan.delete].concat(),
                delete: Vec::new(),
                ..plan
            },
        });
    };
    let workloads = workloads.into_iter().filter_map(|w| w.0.ok()).collect();
    Ok(sorted(controller_name, nodes, checks, claims, workloads))
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

/// The pure part of [`plan`].
fn sorted(
    controller_name: &str,
    nodes: RunningNodes,
    checks: Vec<AdmissionCheck>,
    claims: Vec<NodeClaim>,
    workloads: Vec<Workload>,
) -> UninstallPlan {
    // A check of Kueue's own provisioning is ours if we have made nodes for it (`setu run --tas-compat`).
    let served: BTreeSet<&str> = claims.iter().map(|c| c.annotation(names::CHECK)).collect();
    let is_ours = |check: &AdmissionCheck| {
        check.spec.controller_name == controller_name
            || (check.is_by_request() && served.contains(check.name_any().as_str()))
    };
    let (ours, others): (Vec<_>, Vec<_>) = checks.into_iter().partition(is_ours);
    let others: BTreeSet<String> = others.iter().map(ResourceExt::name_any).collect();
    let names: BTreeSet<String> = ours.iter().map(ResourceExt::name_any).collect();
    let runs = |w: &&Workload| w.is("Admitted") && !w.is("Finished");
    let elastic_jobs: BTreeSet<String> = workloads.iter().filter(runs).map(Workload::elastic_job).collect();
    // The pods of a replaced slice run on with those of the slice that took its place.
    let runs_on = |w: &&Workload| {
        runs(w) || (w.is("Admitted") && w.is_replaced() && elastic_jobs.contains(&w.elastic_job()))
    };
    let running: BTreeSet<String> = workloads.iter().filter(runs_on).filter_map(ResourceExt::uid).collect();
    // A claim made for another controller's check belongs to another installation.
    let claims = claims.into_iter().filter(|c| !others.contains(c.annotation(names::CHECK)));
    // Other pods may be on the Node of a claim whose hand-back has begun.
    let (hand_back, delete) = claims.partition(|c| {
        c.is_handing_back()
            || (nodes == RunningNodes::HandBack && running.contains(c.label(names::WORKLOAD_UID)))
    });
    // A Workload whose check says Retry waits only for Kueue.
    let asks = |c: &CheckState| names.contains(&c.name) && c.state != Verdict::Retry;
    // An answer for a slice that is to replace a running one would make Kueue stop the whole Job.
    let waits = |w: &&Workload| {
        w.is("QuotaReserved") && !w.is("Admitted") && w.replaces().is_none() && w.checks().iter().any(asks)
    };
    let waiting: Vec<Workload> = workloads.iter().filter(waits).cloned().collect();
    let has_ours = |w: &Workload| w.checks().iter().any(|c| names.contains(&c.name));
    let is_kept_out = |w: &&Workload| Queueing::of(w) == Queueing::KeptOut && has_ours(w);
    let kept_out: Vec<Workload> = workloads.iter().filter(is_kept_out).cloned().collect();
    let all_goes = nodes == RunningNodes::Delete;
    let journalled =
        |w: &Workload| all_goes && w.annotations().keys().any(|k| k.starts_with(names::JOURNAL_PREFIX));
    let marked = |w: &Workload| w.finalizers().iter().any(|f| f == names::FINALIZER) || journalled(w);
    let marked = workloads.into_iter().filter(marked).collect();
    UninstallPlan { checks: ours, delete, hand_back, waiting, kept_out, marked }
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
    let inactive = Active {
        works: false,
        reason: "Uninstalled",
        message: "Setu was uninstalled: take this check out of the ClusterQueues that name it".to_owned(),
    };
    let now = Timestamp::now();
    let text = |e: Error| e.in_full().to_string();
    // Checks become inactive first, or Kueue would reserve again the quota that is released here.
    for check in &plan.checks {
        active::report(client, check, &inactive, now).await.map_err(text)?;
    }
    let checks: BTreeSet<String> = plan.checks.iter().map(ResourceExt::name_any).collect();
    for workload in &plan.waiting {
        give_back(client, workload, &checks).await.map_err(text)?;
    }
    for workload in &plan.kept_out {
        match requeued::apply(client, workload, Queueing::Allowed, now).await {
            // The next read finds it.
            Err(Error::Conflict { .. }) => {}
            other => drop(other.map_err(text)?),
        }
    }
    for claim in &plan.hand_back {
        release_node(client, claim).await.map_err(text)?;
    }
    let targets: BTreeMap<String, String> =
        plan.delete.iter().map(|c| (c.name_any(), c.uid().unwrap_or_default())).collect();
    let (_, failed) = claims::delete_all(client, targets.clone().into_iter().collect(), |_, _| ()).await;
    failed.map_or(Ok(()), |e| Err(e.in_full().to_string()))?;
    until_gone(client, &targets, limit).await?;
    // Last of all, because a finalizer means that there may still be nodes.
    let annotations = if nodes == RunningNodes::Delete { Annotations::Remove } else { Annotations::Keep };
    for workload in &plan.marked {
        release(client, workload, annotations).await.map_err(text)?;
    }
    Ok(())
}

/// Makes Kueue take back the quota of a Workload that no controller will provision for.
async fn give_back(client: &Client, workload: &Workload, checks: &BTreeSet<String>) -> Result<(), Error> {
    let retry = |old: &CheckState| CheckState {
        name: old.name.clone(),
        state: Verdict::Retry,
        last_transition_time: Timestamp::now(),
        message: "Setu was uninstalled".to_owned(),
        requeue_after_seconds: Some(0),
        pod_set_updates: Vec::new(),
    };
    let entries: Vec<CheckState> =
        workload.checks().iter().filter(|c| checks.contains(&c.name)).map(retry).collect();
    match verdict::apply(client, workload, &entries).await {
        // Someone else has moved it on: it no longer waits for us, or the next read finds it.
        Err(Error::Conflict { .. }) => Ok(()),
        other => other.map(drop),
    }
}

async fn release(client: &Client, workload: &Workload, annotations: Annotations) -> Result<(), Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let name = workload.name_any();
    let mut tries = 0;
    loop {
        let Some(current) = call("reading Workload", &workload.full_name(), api.get_opt(&name)).await? else {
            return Ok(());
        };
        tries += 1;
        match release_workload(client, &current, annotations).await {
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
    let api: Api<Guarded<NodeClaim>> = Api::all(client.clone());
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
    use crate::api::admission_check::AdmissionCheckSpec;
    use crate::api::node_claim::NodeClaimSpec;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    fn check(name: &str, controller: &str) -> AdmissionCheck {
        let spec = AdmissionCheckSpec { controller_name: controller.into(), ..Default::default() };
        AdmissionCheck::new(name, spec)
    }

    fn claim(name: &str, check: &str, workload: &str) -> NodeClaim {
        let mut claim = NodeClaim::new(name, NodeClaimSpec::default());
        claim.metadata.annotations = Some([(names::CHECK.to_owned(), check.to_owned())].into());
        claim.metadata.labels = Some([(names::WORKLOAD_UID.to_owned(), workload.to_owned())].into());
        claim
    }

    fn workload(uid: &str, conditions: &[&str]) -> Workload {
        let condition = |kind: &&str| -> Value {
            json!({"type": kind, "status": "True", "reason": "r", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        let journal = names::journal_key("ours");
        serde_json::from_value(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
            "metadata": {"name": uid, "uid": uid, "annotations": {journal: "{}"}},
            "spec": {}, "status": {"conditions": conditions, "admissionChecks": [{"name": "ours"}]},
        }))
        .unwrap()
    }

    fn names_of<K: ResourceExt>(objects: &[K]) -> Vec<String> {
        objects.iter().map(ResourceExt::name_any).collect()
    }

    fn found(nodes: RunningNodes) -> UninstallPlan {
        let checks = vec![check("ours", "setu"), check("theirs", "another")];
        let claims = vec![
            claim("runs", "ours", "admitted"),
            claim("waits", "ours", "reserved"),
            claim("ended", "ours", "finished"),
            claim("orphan", "gone", "nobody"),
            claim("foreign", "theirs", "admitted"),
        ];
        let workloads = vec![
            workload("admitted", &["QuotaReserved", "Admitted"]),
            workload("reserved", &["QuotaReserved"]),
            workload("finished", &["QuotaReserved", "Admitted", "Finished"]),
            workload("queued", &[]),
        ];
        sorted("setu", nodes, checks, claims, workloads)
    }

    #[test]
    fn running_gangs_keep_their_nodes_and_all_others_lose_them() {
        let plan = found(RunningNodes::HandBack);
        assert_eq!(names_of(&plan.hand_back), ["runs"]);
        assert_eq!(names_of(&plan.delete), ["waits", "ended", "orphan"]);
        assert_eq!(names_of(&plan.waiting), ["reserved"]);
        assert_eq!(names_of(&plan.checks), ["ours"]);
        assert!(plan.marked.is_empty());
    }

    #[test]
    fn a_claim_whose_hand_back_has_begun_is_never_deleted() {
        let mut claim = claim("ended", "ours", "finished");
        claim.annotations_mut().insert(names::HANDING_BACK.to_owned(), "true".to_owned());
        for nodes in [RunningNodes::HandBack, RunningNodes::Delete] {
            let plan = sorted("setu", nodes, vec![check("ours", "setu")], vec![claim.clone()], vec![]);
            assert_eq!((names_of(&plan.hand_back), plan.delete.len()), (vec!["ended".to_owned()], 0));
        }
    }

    /// A slice of the elastic Job with this UID.
    fn slice(uid: &str, conditions: &[&str], replaces: Option<&str>) -> Workload {
        let mut slice = workload(uid, conditions);
        slice.metadata.namespace = Some("team".to_owned());
        let owner =
            json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "job", "controller": true});
        slice.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        let annotations = slice.metadata.annotations.get_or_insert_default();
        annotations.insert(names::ELASTIC_JOB.to_owned(), "true".to_owned());
        if let Some(name) = replaces {
            annotations.insert(names::SLICE_REPLACES.to_owned(), format!("team/{name}"));
        }
        for finished in slice.status.iter_mut().flat_map(|s| &mut s.conditions) {
            finished.reason = "WorkloadSliceReplaced".to_owned();
        }
        slice
    }

    #[test]
    fn nodes_of_a_replaced_slice_stay_and_a_waiting_slice_is_not_answered() {
        let all = ["QuotaReserved", "Admitted", "Finished"];
        let workloads = vec![
            slice("first", &all, None),
            slice("second", &all[..2], Some("first")),
            slice("third", &all[..1], Some("second")),
        ];
        let claims = vec![claim("old", "ours", "first"), claim("new", "ours", "second")];
        let plan = sorted("setu", RunningNodes::HandBack, vec![check("ours", "setu")], claims, workloads);
        assert_eq!(names_of(&plan.hand_back), ["old", "new"]);
        assert!(plan.delete.is_empty() && plan.waiting.is_empty());
    }

    #[test]
    fn a_check_of_kueues_provisioning_is_cleaned_up_if_it_has_nodes_of_ours() {
        let checks = || {
            vec![check("served", names::PROVISIONING_REQUEST), check("kueues", names::PROVISIONING_REQUEST)]
        };
        let plan =
            sorted("setu", RunningNodes::HandBack, checks(), vec![claim("a", "served", "gone")], vec![]);
        assert_eq!(
            (names_of(&plan.checks), names_of(&plan.delete)),
            (vec!["served".to_owned()], vec!["a".to_owned()])
        );
    }

    #[test]
    fn full_removal_also_deletes_nodes_of_running_gangs_and_journals() {
        let plan = found(RunningNodes::Delete);
        assert_eq!(names_of(&plan.delete), ["runs", "waits", "ended", "orphan"]);
        assert!(plan.hand_back.is_empty());
        assert_eq!(plan.marked.len(), 4);
    }

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
    async fn nodes_are_handed_back_if_workloads_cannot_be_listed() {
        let client = answering(|path| match path {
            "/apis/karpenter.sh/v1/nodeclaims" => {
                let claim = claim("orphan", "ours", "gone");
                (
                    200,
                    json!({"apiVersion": "karpenter.sh/v1", "kind": "NodeClaimList", "metadata": {}, "items": [claim]}),
                )
            }
            _ => status(404),
        });
        let kept = plan(&client, "setu", RunningNodes::HandBack).await.unwrap();
        assert_eq!((names_of(&kept.hand_back), kept.delete.len()), (vec!["orphan".to_owned()], 0));
        let all = plan(&client, "setu", RunningNodes::Delete).await.unwrap();
        assert_eq!((names_of(&all.delete), all.hand_back.len()), (vec!["orphan".to_owned()], 0));
    }
}
