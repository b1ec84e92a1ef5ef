//! Setu's plans cost no more than Karpenter's own choices, for 500 random gangs on random NodePools.
//!
//! Karpenter's choices are recorded: its own scheduler made them from the same EC2 types. `just choices` makes them anew.

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use setu::api::requirements::Requirements;
use setu::api::{ClusterQueue, NodePool, ResourceFlavor, Workload};
use setu::names;
use setu::plan::{OptionSelection, Outcome, Plan, PlanObjects, PlanRequest, PlanSnapshot, plan};
use setu::policy::Policy;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::sync::Arc;

const CHOICES: &[u8] = include_bytes!("../karpenter/choices.jsonl.gz");

/// A gang, the NodePools, and what Karpenter chooses for the gang's pods.
#[derive(Deserialize, Debug)]
struct Case {
    pools: Vec<Pool>,
    sets: Vec<PodSet>,
    /// Empty if some pod fits on no node.
    nodes: Vec<Node>,
}

#[derive(Deserialize, Debug)]
struct Pool {
    name: String,
    weight: u32,
    requirements: Value,
}

#[derive(Deserialize, Debug)]
struct PodSet {
    pods: u32,
    requests: BTreeMap<String, String>,
}

#[derive(Deserialize, Debug)]
struct Node {
    /// The price of the cheapest type that the NodeClaim allows, in millionths per hour.
    price: u64,
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn pool(pool: &Pool) -> Arc<NodePool> {
    let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
    Arc::new(object(json!({
        "metadata": {"name": pool.name, "uid": pool.name, "generation": 1},
        "spec": {
            "weight": (pool.weight > 0).then_some(pool.weight),
            "template": {"spec": {"nodeClassRef": class, "requirements": pool.requirements}},
        },
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    })))
}

fn planned(case: &Case) -> Outcome {
    let covered = ["cpu", "memory", "nvidia.com/gpu"];
    let quota = covered.map(|name| json!({"name": name, "nominalQuota": "1000000Gi"}));
    let queue: ClusterQueue = object(json!({
        "metadata": {"name": "queue"},
        "spec": {
            "admissionChecksStrategy": {"admissionChecks": [{"name": "check"}]},
            "resourceGroups": [{"coveredResources": covered, "flavors": [{"name": "flavor", "resources": quota}]}],
        },
    }));
    let flavors: Vec<Arc<ResourceFlavor>> =
        vec![Arc::new(object(json!({"metadata": {"name": "flavor"}, "spec": {}})))];
    let names: Vec<String> = (0..case.sets.len()).map(|n| format!("set-{n}")).collect();
    let pod_sets = case.sets.iter().zip(&names).map(|(set, name)| {
        let container = json!({"name": "c", "resources": {"requests": set.requests, "limits": set.requests}});
        json!({"name": name, "count": set.pods, "template": {"spec": {"containers": [container]}}})
    });
    let assignments = case.sets.iter().zip(&names).map(|(set, name)| {
        let flavors: BTreeMap<&str, &str> = set.requests.keys().map(|key| (key.as_str(), "flavor")).collect();
        json!({"name": name, "flavors": flavors, "count": set.pods})
    });
    let workload: Workload = object(json!({
        "metadata": {"name": "gang", "namespace": "team", "uid": "uid"},
        "spec": {"queueName": "queue", "podSets": pod_sets.collect::<Vec<_>>()},
        "status": {"admission": {"clusterQueue": "queue", "podSetAssignments": assignments.collect::<Vec<_>>()}},
    }));
    let node_pools: Vec<Arc<NodePool>> = case.pools.iter().map(pool).collect();
    let objects = PlanObjects { flavors, node_pools, ..PlanObjects::default() };
    let cluster = PlanSnapshot::with(Some(&queue), &objects);
    let request = PlanRequest {
        workload: &workload,
        check: "check",
        our_checks: &["check".to_owned()],
        answered_checks: &["check".to_owned()],
        gang_label: "gang",
        policy: &Policy::default(),
        selection: OptionSelection::From(0),
    };
    plan(&cluster, &request)
}

/// The hourly cost of nodes, in millionths, where each is of the cheapest type that its claim allows.
#[derive(Default)]
struct Bought {
    nodes: u32,
    all: u64,
    /// The cost of the nodes for pods that ask for no device.
    plain: u64,
}

fn bought(plan: &Plan) -> Bought {
    let policy = Policy::default();
    let objects = PlanObjects::default();
    let prices = PlanSnapshot::with(None, &objects).prices(&policy);
    let mut bought = Bought::default();
    for (slot, count) in plan.groups() {
        let spec = &slot.template.spec;
        let mut requirements = Requirements::default();
        requirements.add_all(&spec.requirements).unwrap();
        let types = requirements.get(names::INSTANCE_TYPE).and_then(|values| values.listed()).unwrap();
        let price = |name: &String| prices.cheapest(name, &requirements, &spec.node_class_ref.group);
        let cost = types.iter().filter_map(price).min().unwrap().micros * u64::from(count);
        bought.nodes += count;
        bought.all += cost;
        if !spec.resources.requests.contains_key("nvidia.com/gpu") {
            bought.plain += cost;
        }
    }
    bought
}

#[test]
fn a_plan_costs_no_more_than_karpenters_own_choice() {
    let lines = BufReader::new(GzDecoder::new(CHOICES)).lines();
    let cases: Vec<Case> = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
    assert_eq!(cases.len(), 500);
    let (mut placed, mut cheaper, mut with_leader) = (0, 0, 0);
    let (mut nodes, mut ours, mut theirs) = ([0, 0], 0, 0);
    for (n, case) in cases.iter().enumerate() {
        let outcome = planned(case);
        let plan = match (&outcome, case.nodes.is_empty()) {
            (Outcome::Provision(plan), false) => plan,
            (Outcome::Provision(_), true) => panic!("{n}: Karpenter has no place for {case:?}"),
            (_, true) => continue,
            (other, false) => panic!("{n}: {other:?}, which Karpenter has a place for: {case:?}"),
        };
        let (bought, chosen) = (bought(plan), case.nodes.iter().map(|node| node.price).sum());
        // A leader without devices gets a node of its own, where Karpenter may put it beside the workers.
        let leader = if case.sets.len() > 1 { bought.plain } else { 0 };
        assert!(bought.all - leader <= chosen, "{n}: {} > {chosen} for {case:?}", bought.all);
        placed += 1;
        cheaper += u32::from(bought.all < chosen);
        with_leader += u32::from(bought.all > chosen);
        nodes = [nodes[0] + bought.nodes as usize, nodes[1] + case.nodes.len()];
        (ours, theirs) = (ours + bought.all, theirs + chosen);
    }
    println!(
        "{placed} gangs: {} and Karpenter {} nodes, {ours} and {theirs} millionths an hour; {cheaper} are cheaper, \
         {with_leader} dearer by a leader's node",
        nodes[0], nodes[1]
    );
    assert!(placed > 450 && ours <= theirs, "{placed} gangs, {ours} and {theirs}");
}
