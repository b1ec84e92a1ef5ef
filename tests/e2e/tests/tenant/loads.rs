//! Attacks by what a tenant may submit: Jobs that request more than they may get, Jobs that come and go, and
//! pods that target nodes of others.

use crate::stage::{NEIGHBOURS, PODS, Stage, TENANT, job};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use setu::api::workload::Verdict;
use setu::names;
use setu_e2e::apply;

/// How often the tenant submits and deletes a Job.
const ROUNDS: usize = 6;
/// The number of Jobs that the tenant submits at once. The queue has room for them and for the neighbours.
const MANY_JOBS: usize = 40;
/// More than the default of `guards.gangNodes`, each on its own node.
const TINY_PODS: usize = 300;

/// A6, A16, A20: annotations and labels that are ignored or not allowed, and selectors outside the NodePool.
pub async fn jobs_that_ask_for_more(stage: &mut Stage) {
    let victim = stage.gang_label("waits").await;
    let mut greedy = job(TENANT, "greedy");
    greedy["metadata"]["annotations"] = json!({
        "provreq.kueue.x-k8s.io/setu-maxWait": "1000h",
        "provreq.kueue.x-k8s.io/setu-capacityType": "spot",
        "provreq.kueue.x-k8s.io/setu-zone": "us-east-1c",
        "provreq.kueue.x-k8s.io/setu-nodePoolName": "expensive",
        "provreq.kueue.x-k8s.io/setu-traceparent": "00-ffffffffffffffffffffffffffffffff-0000000000000000-zz\u{1b}[2J<script>",
        names::journal_key(TENANT): r#"{"version":1,"state":"Approved","slots":9}"#,
        names::NODEPOOL: "expensive",
    });
    greedy["metadata"]["labels"][names::NODEPOOL] = json!("expensive");
    greedy["spec"]["template"]["metadata"] = json!({"labels": {
        names::GANG: victim, names::NODEPOOL: "expensive", names::MANAGED_BY: names::SETU, names::SLOT: "0",
    }});
    apply::one(&stage.tenant, greedy).await.unwrap();
    let ignored =
        json!({"job": "greedy", "state": "WaitingReady", "claims": PODS, "event": "JobOverrideIgnored"});
    stage.play.step(json!({"until": ignored})).await;
    stage.nobody_was_harmed("a Job with annotations and labels").await;

    for (name, selector, said) in [
        ("elsewhere", json!({names::NODEPOOL: "expensive"}), "asks for karpenter.sh/nodepool [expensive]"),
        ("larger", json!({names::INSTANCE_TYPE: "p5.48xlarge"}), "asks for node.kubernetes.io/instance-type"),
        ("beside", json!({names::GANG: victim}), "asks for setu.kueue.x-k8s.io/gang"),
        // No flavor of the queue has this label, so Kueue reserves nothing and Setu is not involved.
        ("flavored", json!({"pool": "expensive"}), ""),
    ] {
        let mut asks = job(TENANT, name);
        asks["spec"]["template"]["spec"]["nodeSelector"] = selector;
        asks["spec"]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        apply::one(&stage.tenant, asks).await.unwrap();
        stage
            .until(name, async |s| {
                let workload = s.workload(TENANT, name).await;
                workload.is_some_and(|w| w.check(TENANT).is_some_and(|c| c.message.contains(said)))
            })
            .await;
        stage.nobody_is_harmed(name).await;
        // A gang that Setu refuses releases its quota.
        let verdict = if said.is_empty() { Verdict::Pending } else { Verdict::Retry };
        let is_out = async |s: &Stage| {
            let workload = s.workload(TENANT, name).await.unwrap();
            !workload.is("QuotaReserved") && workload.check(TENANT).is_some_and(|c| c.state == verdict)
        };
        stage.until(name, is_out).await;
        stage.as_tenant(json!({"delete": {"kind": "Job", "name": name}})).await;
    }
    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "greedy"}})).await;
    stage.until("its claims are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
}

/// A14: a gang with the same name as the neighbours' gang, and two whose names differ only at the length limit of
/// labels.
pub async fn jobs_with_names_of_others(stage: &mut Stage) {
    let long = "x".repeat(62);
    let names = ["waits".to_owned(), format!("{long}a"), format!("{long}b")];
    for name in &names {
        apply::one(&stage.tenant, job(TENANT, name)).await.unwrap();
    }
    for name in &names {
        stage
            .until("each has NodeClaims of its own", async |s| {
                let uid = s.workload(TENANT, name).await.and_then(|w| w.uid());
                let claims = s.claims(TENANT).await;
                claims.iter().filter(|c| Some(c.label(names::WORKLOAD_UID)) == uid.as_deref()).count() == PODS
            })
            .await;
    }
    stage.nobody_is_harmed("gangs with names of others").await;
    for name in &names {
        stage.as_tenant(json!({"delete": {"kind": "Job", "name": name}})).await;
    }
    stage.until("their claims are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
    stage.nobody_was_harmed("gangs with names of others that went").await;
}

/// A19: very many Jobs at once, and a gang of the neighbours that arrives later.
pub async fn very_many_jobs(stage: &mut Stage) {
    let names: Vec<String> = (0..MANY_JOBS).map(|n| format!("many-{n}")).collect();
    for name in &names {
        apply::one(&stage.tenant, job(TENANT, name)).await.unwrap();
    }
    apply::one(&stage.admin, job(NEIGHBOURS, "late")).await.unwrap();
    stage
        .until("the neighbours' new gang has its claims", async |s| {
            s.claims(NEIGHBOURS).await.len() == 3 * PODS
        })
        .await;
    stage.until("the tenant's Jobs have theirs", async |s| s.claims(TENANT).await.len() > MANY_JOBS).await;
    let jobs: Api<Job> = Api::namespaced(stage.admin.clone(), NEIGHBOURS);
    jobs.delete("late", &DeleteParams::background()).await.unwrap();
    for name in &names {
        stage.as_tenant(json!({"delete": {"kind": "Job", "name": name}})).await;
    }
    stage.until("their claims are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
    stage
        .until("those of the new gang as well", async |s| s.claims(NEIGHBOURS).await.len() == 2 * PODS)
        .await;
    stage.ledger.is_over("late");
    stage.nobody_was_harmed("very many Jobs").await;
}

/// A17: more tiny pods than the maximum number of nodes of a gang.
pub async fn a_job_of_tiny_pods(stage: &mut Stage) {
    let mut swarm = job(TENANT, "swarm");
    for key in ["parallelism", "completions"] {
        swarm["spec"][key] = json!(TINY_PODS);
    }
    swarm["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": {"cpu": "1m", "memory": "1Mi"}});
    apply::one(&stage.tenant, swarm).await.unwrap();
    // The administrator may raise the limit later, so the gang is retried, and buys nothing until then.
    let refused = json!({"job": "swarm", "state": "Yielded", "claims": 0, "event": "GangRetrying"});
    stage.play.step(json!({"until": refused})).await;
    stage.nobody_was_harmed("a Job of tiny pods").await;
    stage.as_tenant(json!({"delete": {"kind": "Job", "name": "swarm"}})).await;
}

/// A18: submitted, started by hand, suspended, deleted and submitted again under the same name.
pub async fn jobs_that_come_and_go(stage: &mut Stage) {
    let jobs: Api<Job> = Api::namespaced(stage.tenant.clone(), TENANT);
    let patches = PatchParams::default();
    for round in 0..ROUNDS {
        apply::one(&stage.tenant, job(TENANT, "loop")).await.unwrap();
        if round % 2 == 0 {
            stage.until("it has claims", async |s| s.claims(TENANT).await.len() > PODS).await;
        }
        for suspend in [false, true, false] {
            // Kueue suspends it again; a conflict is harmless.
            let _ = jobs.patch("loop", &patches, &Patch::Merge(json!({"spec": {"suspend": suspend}}))).await;
        }
        jobs.delete("loop", &DeleteParams::background()).await.unwrap();
        stage.nobody_was_harmed("a Job that comes and goes").await;
    }
    stage.until("its claims are gone", async |s| s.claims(TENANT).await.len() == PODS).await;
    let bought = stage.ledger.of(TENANT).len();
    assert!(bought <= PODS * (ROUNDS + 2), "{bought} NodeClaims for {ROUNDS} rounds");
    stage.nobody_was_harmed("Jobs that came and went").await;
}

fn pod(name: &str, spec: &Value) -> Value {
    let mut whole = json!({
        "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    });
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": TENANT}, "spec": whole,
    })
}

/// A26: pods in no queue that tolerate every taint, on nodes in use.
pub async fn pods_on_nodes_of_others(stage: &mut Stage) {
    let runs = stage.gang_label("runs").await;
    let claims = stage.claims(NEIGHBOURS).await;
    let node = claims.iter().find_map(setu::api::NodeClaim::node_name).unwrap();
    for pod in [
        pod("selects", &json!({"nodeSelector": {names::GANG: runs}})),
        pod("bound", &json!({"nodeName": node})),
    ] {
        apply::one(&stage.tenant, pod).await.unwrap();
    }
    stage.nobody_is_harmed("pods on the nodes of a gang that runs").await;
    let pods: Api<Pod> = Api::namespaced(stage.tenant.clone(), TENANT);
    for name in ["selects", "bound"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// A26: such a pod takes the device of a node before the node's gang is admitted.
pub async fn a_pod_is_first(stage: &Stage, job: &str) {
    let selector = json!({"nodeSelector": {names::GANG: stage.gang_label(job).await}});
    apply::one(&stage.tenant, pod("first", &selector)).await.unwrap();
}

pub async fn it_leaves(stage: &Stage) {
    let pods: Api<Pod> = Api::namespaced(stage.tenant.clone(), TENANT);
    pods.delete("first", &DeleteParams::default()).await.unwrap();
}
