//! `setu plan` and the controller agree for every gang, NodePool and policy.

use crate::page::{offer, served};
use crate::world;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};
use setu::plan::market::Market;
use setu::sim::cluster::Start;
use setu::sim::scenario;
use setu_sim::api::{User, kinds};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

/// The name of everything.
const ID: &str = "agreement";
/// The name of the foreign NodeClaim.
const NEIGHBOUR: &str = "neighbour";

/// One gang, with the state of the cluster and the policy.
#[derive(Clone, Debug)]
struct Case {
    pods: usize,
    cpu: &'static str,
    gpus: u32,
    requirements: Value,
    limits: Value,
    class: Value,
    policy: &'static str,
    /// The NodePool's taints.
    taints: Value,
    /// The pods' tolerations.
    tolerations: Value,
    /// Weight and requirements of a second NodePool, if any.
    other: Option<(u32, Value)>,
    /// Capacity type and zone in which Karpenter's metrics show two types as sold out; `None` if they are not read.
    sold_out: Option<(&'static str, &'static str)>,
    /// Requirements of a foreign NodeClaim in the NodePool, if any. It requests one GPU.
    neighbour: Option<Value>,
    /// CPU that a DaemonSet requests on each node, if any.
    daemons: Option<&'static str>,
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
        "defaults: {gates: {budget: {maxResources: {nvidia.com/gpu: 4, cpu: 200}}}}",
        "guards: {gangNodes: 4}",
        "guards: {perLocalQueue: {maxResources: {nvidia.com/gpu: 6}}}",
        "guards: {perLocalQueue: {maxHourlyCost: '9'}}",
        "defaults: {capacityTypes: [spot, on-demand]}",
        "defaults: {tiers: [{name: spot, requirements: [{key: karpenter.sh/capacity-type, operator: In, values: [spot]}]}, {name: any}]}",
        "defaults: {tiers: [{name: a, zones: [us-east-1a]}, {name: b, zones: [us-east-1b]}], colocation: {}}",
    ];
    let taint = || json!([{"key": "example.com/gpu", "value": "yes", "effect": "NoSchedule"}]);
    let taints = vec![json!([]), taint()];
    let tolerations = vec![json!([]), json!([{"key": "example.com/gpu", "operator": "Exists"}])];
    let others = vec![
        None,
        Some((9, requirements[0].clone())),
        Some((1, requirements[2].clone())),
        Some((9, requirements[4].clone())),
    ];
    let zones = select(vec!["us-east-1a", "us-east-1b"]);
    let sold_out = proptest::option::of((select(vec!["spot", "on-demand"]), zones));
    let neighbours = vec![None, Some(requirements[0].clone()), Some(requirements[1].clone())];
    let others = (select(others), sold_out, select(neighbours), select(vec![None, Some("500m"), Some("6")]));
    let of = (1..9_usize, select(vec!["500m", "4", "40"]), 0..3_u32);
    let world = (select(requirements), select(limits), select(classes), select(policies));
    let more = (select(taints), select(tolerations), others);
    (of, world, more).prop_map(|(of, world, (taints, tolerations, (other, sold_out, neighbour, daemons)))| {
        let ((pods, cpu, gpus), (requirements, limits, class, policy)) = (of, world);
        Case {
            pods,
            cpu,
            gpus,
            requirements,
            limits,
            class,
            policy,
            taints,
            tolerations,
            other,
            sold_out,
            neighbour,
            daemons,
        }
    })
}

/// The outcome for a gang: its NodeClaims, or the message with the obstacle.
#[derive(Debug, PartialEq)]
enum Found {
    Claims(Vec<Value>),
    Obstacle(String),
}

/// The part of a NodeClaim that does not depend on the gang's name.
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

/// A temporary file with this text.
fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Karpenter's metrics if this capacity type is sold out in this zone.
fn page((kind, zone): (&str, &str)) -> String {
    let mut page = String::new();
    for name in ["g5.4xlarge", "p4d.24xlarge"] {
        for (k, z) in
            ["spot", "on-demand"].into_iter().flat_map(|k| ["us-east-1a", "us-east-1b"].map(|z| (k, z)))
        {
            let available = u8::from((k, z) != (kind, zone));
            page += &offer("available", [name, k, z], available);
        }
    }
    page
}

/// The command's outcome for the current cluster.
fn planned(admin: &User, policy: &str, metrics: Option<&str>) -> Found {
    let kinds = [
        &kinds::NODE_POOL,
        &kinds::NODE_CLAIM,
        &kinds::DAEMON_SET,
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
        .args(metrics.iter().flat_map(|url| ["--karpenter-metrics", url]))
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

/// The outcomes of the command and the controller.
async fn both(case: &Case) -> (Found, Found) {
    let (mut cluster, admin) = world::cluster(ID, world::policy(case.policy));
    let slow = [ID, "other"].map(|pool| json!({"nodePool": pool, "launchDelay": "4m"}));
    world::weather(&admin, &json!(slow));
    let pool = json!({"spec": {
        "limits": case.limits,
        "template": {"spec": {
            "nodeClassRef": case.class, "requirements": case.requirements, "taints": case.taints,
        }},
    }});
    admin.merge(&kinds::NODE_POOL, "", ID, &pool).unwrap();
    if let Some((weight, requirements)) = &case.other {
        let other = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "other"},
            "spec": {"weight": weight, "template": {
                "metadata": {"labels": {"pool": ID}},
                "spec": {"nodeClassRef": case.class, "requirements": requirements},
            }},
        });
        admin.create(&kinds::NODE_POOL, other).unwrap();
    }
    if let Some(requirements) = &case.neighbour {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": NEIGHBOUR, "labels": {"karpenter.sh/nodepool": ID}},
            "spec": {
                "nodeClassRef": case.class, "requirements": requirements,
                "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}},
            },
        });
        admin.create(&kinds::NODE_CLAIM, claim).unwrap();
    }
    if let Some(cpu) = case.daemons {
        let containers = json!([{"name": "agent", "resources": {"requests": {"cpu": cpu}}}]);
        let template = json!({"spec": {"containers": containers, "tolerations": [{"operator": "Exists"}]}});
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": ID, "name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
        });
        admin.create(&kinds::DAEMON_SET, set).unwrap();
    }
    let mut job = world::job(ID, "train", case.pods, None);
    let resources = json!({"cpu": case.cpu, "nvidia.com/gpu": case.gpus.to_string()});
    job["spec"]["template"]["spec"]["containers"][0]["resources"] =
        json!({"requests": resources, "limits": resources});
    // The node selector leads it to the case's NodePool, with or without devices.
    job["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": ID});
    job["spec"]["template"]["spec"]["tolerations"] = case.tolerations.clone();
    admin.create(&kinds::JOB, job).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let page = case.sold_out.map(page);
    let url = page.clone().map(served);
    let planned = planned(&admin, case.policy, url.as_deref());
    let setu = cluster.start_setu(&Start::default());
    if let Some(page) = page {
        setu.context.take_market(Market::read(&page, setu.context.now()).unwrap());
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut claims = admin.list(&kinds::NODE_CLAIM);
    claims.retain(|claim| claim["metadata"]["name"] != NEIGHBOUR);
    let provided = if claims.is_empty() {
        let message = admin.list(&kinds::WORKLOAD)[0]["status"]["admissionChecks"][0]["message"].clone();
        Found::Obstacle(message.as_str().unwrap_or_default().to_owned())
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
            // The check's message also contains the state and the next step.
            (Found::Obstacle(planned), Found::Obstacle(provided)) => {
                let (reason, sentence) = planned.trim_start_matches("setu: ").split_once(": ").unwrap();
                let sentence: String = sentence.trim().chars().take(60).collect();
                prop_assert!(provided.contains(&sentence), "{reason}: {planned}\n{provided}");
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
