//! `setu plan` and the controller come to the same, whatever the gang, the NodePool and the policy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "a test may panic"
)]

#[path = "gangs/world.rs"]
mod world;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use setu::sim::api::{User, kinds};
use setu::sim::cluster::Start;
use setu::sim::scenario;
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

/// Name of everything.
const ID: &str = "agreement";

/// One gang, and what stands in the cluster and in the policy when it comes.
#[derive(Clone, Debug)]
struct Case {
    pods: usize,
    cpu: &'static str,
    gpus: u32,
    requirements: Value,
    limits: Value,
    class: Value,
    policy: &'static str,
}

fn case() -> impl Strategy<Value = Case> {
    let is = |key: &str, values: &[&str]| json!([{"key": key, "operator": "In", "values": values}]);
    let types = "node.kubernetes.io/instance-type";
    let requirements = vec![
        is(types, &["g5.4xlarge"]),
        is(types, &["p4d.24xlarge", "g5.12xlarge"]),
        is("karpenter.k8s.aws/instance-family", &["g5", "p5"]),
        is("karpenter.k8s.aws/instance-category", &["c", "m"]),
        is("kubernetes.io/arch", &["arm64"]),
        json!([]),
    ];
    let limits = vec![json!({}), json!({"nvidia.com/gpu": "8"}), json!({"cpu": "64"}), json!({"nodes": "2"})];
    let classes = vec![
        json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": ID}),
        json!({"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID}),
    ];
    let policies = vec![
        "defaults: {}",
        "defaults: {packing: {mode: Fill}}",
        "defaults: {packing: {mode: PerPod}}",
        "defaults: {gates: {unknown: Warn}}",
        "defaults: {gates: {budget: {maxHourlyCost: '20'}}}",
        "defaults: {packing: {mode: Auto, shapes: [{instanceType: g5.4xlarge, allocatable: {cpu: '15', memory: 60Gi, nvidia.com/gpu: '1', pods: '100'}}]}}",
        "guards: {gangNodes: 4}",
    ];
    let of = (1..9_usize, select(vec!["500m", "4", "40"]), 0..3_u32);
    let world = (select(requirements), select(limits), select(classes), select(policies));
    (of, world).prop_map(|((pods, cpu, gpus), (requirements, limits, class, policy))| Case {
        pods,
        cpu,
        gpus,
        requirements,
        limits,
        class,
        policy,
    })
}

/// What comes of a gang: the NodeClaims that are asked for, or the sentence that says what is in the way.
#[derive(Debug, PartialEq)]
enum Found {
    Claims(Vec<Value>),
    Obstacle(String),
}

/// What a NodeClaim buys, freed of what names the gang.
fn bought(claim: &Value) -> Value {
    let own = |r: &&Value| !r["key"].as_str().unwrap().starts_with("setu.kueue.x-k8s.io/");
    let requirements: Vec<Value> =
        claim["spec"]["requirements"].as_array().unwrap().iter().filter(own).cloned().collect();
    json!({
        "pool": claim["metadata"]["labels"]["karpenter.sh/nodepool"],
        "requests": claim["spec"]["resources"]["requests"],
        "requirements": requirements,
    })
}

fn sorted(mut claims: Vec<Value>) -> Found {
    claims.sort_by_key(Value::to_string);
    Found::Claims(claims)
}

/// A file with this text for as long as it is kept.
fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// What the command says of the cluster as it stands.
fn planned(admin: &User, policy: &str) -> Found {
    let kinds = [
        &kinds::NODE_POOL,
        &kinds::RESOURCE_FLAVOR,
        &kinds::ADMISSION_CHECK,
        &kinds::CLUSTER_QUEUE,
        &kinds::LOCAL_QUEUE,
        &kinds::WORKLOAD,
    ];
    let all = kinds.iter().flat_map(|kind| admin.list(kind));
    let objects: Vec<String> = all.map(|o| serde_yaml::to_string(&*o).unwrap()).collect();
    let objects = file(&objects.join("---\n"));
    let policy = file(&format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{policy}"));
    let output = Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(["plan", "--node-claims", "--controller-name", &scenario::controller_name_of(ID), "-f"])
        .arg(objects.path())
        .arg("--config")
        .arg(policy.path())
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    if !output.status.success() {
        return Found::Obstacle(err);
    }
    let parts = out.split("---\n").filter(|part| !part.trim().is_empty());
    sorted(parts.map(|part| bought(&serde_yaml::from_str(part).unwrap())).collect())
}

/// What the command and the controller say.
async fn both(case: &Case) -> (Found, Found) {
    let (mut cluster, admin) = world::cluster(ID, world::policy(case.policy));
    world::weather(&admin, &json!([{"nodePool": ID, "launchDelay": "4m"}]));
    let pool = json!({"spec": {
        "limits": case.limits,
        "template": {"spec": {"nodeClassRef": case.class, "requirements": case.requirements}},
    }});
    admin.merge(&kinds::NODE_POOL, "", ID, &pool).unwrap();
    let mut job = world::job(ID, "train", case.pods, None);
    let resources = json!({"cpu": case.cpu, "nvidia.com/gpu": case.gpus.to_string()});
    job["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": resources, "limits": resources});
    // It goes to the NodePool of the case, with devices or without.
    job["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": ID});
    admin.create(&kinds::JOB, job).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let planned = planned(&admin, case.policy);
    let _setu = cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let claims = admin.list(&kinds::NODE_CLAIM);
    let provided = if claims.is_empty() {
        let told = admin.list(&kinds::WORKLOAD)[0]["status"]["admissionChecks"][0]["message"].clone();
        Found::Obstacle(told.as_str().unwrap_or_default().to_owned())
    } else {
        sorted(claims.iter().map(|claim| bought(claim)).collect())
    };
    (planned, provided)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_command_plans_what_the_controller_creates(case in case()) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (planned, provided) = runtime.block_on(both(&case));
        match (&planned, &provided) {
            (Found::Claims(planned), Found::Claims(provided)) => prop_assert_eq!(planned, provided),
            // The check's message has the state and what comes next around it.
            (Found::Obstacle(planned), Found::Obstacle(provided)) => {
                let (reason, sentence) = planned.trim_start_matches("setu: ").split_once(": ").unwrap();
                let sentence: String = sentence.trim().chars().take(60).collect();
                prop_assert!(provided.contains(&sentence), "{reason}: {planned}\n{provided}");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
