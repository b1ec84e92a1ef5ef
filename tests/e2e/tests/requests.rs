//! Gangs of ProvisioningRequests on the real control plane: Kueue's own provisioning check makes the requests, and Setu
//! serves those of its class.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the process is shared with the scenarios, which use all of it")]

#[path = "requests/beyond.rs"]
mod beyond;
#[path = "scenarios/setu.rs"]
mod setu;
#[path = "requests/stage.rs"]
mod stage;
#[path = "requests/standalone.rs"]
mod standalone;

use ::setu::names;
use beyond::{
    a_lost_node_is_replaced_in_its_domain, a_preempted_gang_gives_its_nodes_back,
    a_queue_moves_from_cluster_autoscaler, another_capacity_type_is_tried_within_the_request,
    warm_nodes_are_taken_over,
};
use serde_json::{Value, json};
use setu_e2e::{HarnessLayout, versions};
use stage::{Queue, QueueObjects, Stage, condition, is, name};
use standalone::{
    a_client_gets_the_nodes_of_its_own_request, a_request_of_a_client_is_taken_back,
    a_request_of_higher_priority_preempts_a_job,
};
use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Cluster Autoscaler's classes.
const FOREIGN_CLASSES: [(&str, &str); 2] = [
    ("foreign", "check-capacity.autoscaling.x-k8s.io"),
    ("foreign-atomic", "best-effort-atomic-scale-up.autoscaling.x-k8s.io"),
];
const MANY: usize = 200;
/// A label that only the NodePools of the topologies state.
const RACK: &str = "example.com/rack";
/// Whether this Kueue deletes the requests of Workloads that have finished or are evicted (kubernetes-sigs/kueue#12522).
static DELETES_ENDED_REQUESTS: LazyLock<bool> = LazyLock::new(|| {
    let layout = HarnessLayout::default();
    versions::of(&layout).unwrap().has(&layout, "kueue", "0.19").unwrap()
});

/// Whether this Kueue places a pod whose host is lost on a Node that comes later.
static REPLACES_NODES_LATER: LazyLock<bool> = LazyLock::new(|| {
    let layout = HarnessLayout::default();
    versions::of(&layout).unwrap().replaces_nodes_later(&layout).unwrap()
});

/// Weather in which nodes do not come up until it is calm again.
fn late() -> Value {
    json!([{"registrationDelay": "1h"}])
}

fn calm() -> Value {
    json!([])
}

/// Whether this many Workloads have finished and have no nodes any more, and no requests if this Kueue deletes those.
fn are_over(seen: &QueueObjects, workloads: usize) -> bool {
    let are_requests_gone = seen.requests.is_empty() || !*DELETES_ENDED_REQUESTS;
    seen.all_are(workloads, "Finished") && seen.claims.is_empty() && are_requests_gone
}

/// Checks that these pods run on the nodes of their gang, one on each, and that the request names it.
fn run_on_their_own_nodes(seen: &QueueObjects, queue: &Queue, pods: usize) {
    let request = &seen.requests[0];
    let details = &request["status"]["provisioningClassDetails"];
    let gang = &details["gang"];
    assert_eq!(details, &json!({"gang": gang, "nodePool": queue.id, "count": pods.to_string()}));
    assert!(gang.as_str().is_some_and(|gang| !gang.is_empty()), "{request:#}");
    let selected: Vec<&Value> = seen.pods.iter().map(|p| &p["spec"]["nodeSelector"][names::GANG]).collect();
    assert_eq!(selected, vec![gang; pods]);
    let made: Vec<&Value> = seen.claims.iter().map(|c| &c["metadata"]["labels"][names::GANG]).collect();
    assert_eq!(made, vec![gang; pods]);
    let used: BTreeSet<&str> = seen.pods.iter().filter_map(|p| p["spec"]["nodeName"].as_str()).collect();
    let nodes: BTreeSet<&str> = seen.claims.iter().filter_map(|c| c["status"]["nodeName"].as_str()).collect();
    assert_eq!((used.len(), &used), (pods, &nodes));
    let exist: BTreeSet<&str> = seen.nodes.iter().map(name).collect();
    assert_eq!(exist, nodes, "no other node was bought");
}

async fn a_gang_gets_its_nodes_and_they_go_with_the_job(stage: &Stage) {
    let queue = stage.queue("gang", names::REQUEST_CLASS).await;
    queue.weather(&late()).await;
    queue.submit(vec![queue.job("train", 4, None)]).await;
    let waits = |s: &QueueObjects| {
        s.claims.len() == 4 && condition(&s.requests[0], "Provisioned")["status"] == "False"
    };
    let seen = stage.until(&queue, ("the request is answered", 60), waits).await;
    assert!(is(&seen.requests[0], "Accepted"));
    let message = condition(&seen.requests[0], "Provisioned")["message"].as_str().unwrap().to_owned();
    let request = format!("provisioningrequest/{}", name(&seen.requests[0]));
    for object in [request.as_str(), "job/train"] {
        let output = stage.output_of(&["explain", object, "-n", queue.id]);
        assert!(output.contains("0/4 nodes ready"), "{output}");
    }
    assert!(message.contains("0/4 nodes ready"), "{message}");

    queue.weather(&calm()).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(4);
    let seen = stage.until(&queue, ("it runs", 90), runs).await;
    assert!(is(&seen.requests[0], "Provisioned"));
    run_on_their_own_nodes(&seen, &queue, 4);
    assert!(!seen.journal(queue.id).is_empty(), "{:#?}", seen.requests);
    assert_eq!(seen.workloads[0]["metadata"]["annotations"].get(names::journal_key(queue.id)), None);
    for arguments in [&["explain", request.as_str()][..], &["explain", "job/train"], &["inspect"]] {
        stage.output_of(&[arguments, &["-n", queue.id]].concat());
    }
    stage.clear(&queue).await;
}

async fn a_shortage_is_retried_within_the_request(stage: &Stage) {
    let queue = stage.queue("short", names::REQUEST_CLASS).await;
    queue.weather(&json!([{"capacity": 2}])).await;
    queue.submit(vec![queue.job("train", 4, None)]).await;
    let backs_off = |s: &QueueObjects| s.journal(queue.id).contains("\"state\":\"BackingOff\"");
    let before = stage.until(&queue, ("it backs off", 90), backs_off).await;
    stage.output_of(&["explain", "job/train", "-n", queue.id]);
    assert!(!is(&before.workloads[0], "Admitted"));
    queue.weather(&calm()).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(4);
    let after = stage.until(&queue, ("it runs", 120), runs).await;
    run_on_their_own_nodes(&after, &queue, 4);
    assert_eq!(after.requests.len(), 1);
    assert_eq!(after.requests[0]["metadata"]["uid"], before.requests[0]["metadata"]["uid"]);
    assert_eq!(condition(&after.requests[0], "Failed"), Value::Null);
    stage.clear(&queue).await;
}

async fn kueue_asks_again_when_a_request_fails(stage: &Stage) {
    let queue = stage.queue("failing", names::REQUEST_CLASS).await;
    // More retries than fit into the time until the weather is calm again.
    let retries = json!({"backoffBaseSeconds": 5, "backoffMaxSeconds": 5, "backoffLimitCount": 50});
    let soon = json!({"spec": {"retryStrategy": retries}});
    queue.patch("ProvisioningRequestConfig", queue.id, &soon).await;
    queue.weather(&json!([{"capacity": 1}])).await;
    queue.submit(vec![queue.job("train", 2, None)]).await;
    let failed = |s: &QueueObjects| s.requests.iter().any(|request| is(request, "Failed"));
    let seen = stage.until(&queue, ("the first request fails", 90), failed).await;
    let request = seen.requests.iter().find(|request| is(request, "Failed")).unwrap();
    // The next request may have claims by now.
    let is_of_failed =
        |claim: &&Value| claim["metadata"]["labels"][names::WORKLOAD_UID] == request["metadata"]["uid"];
    let claims = queue.list_all().await.claims;
    assert_eq!(claims.iter().filter(is_of_failed).count(), 0, "everything is taken back first");
    let message = condition(request, "Failed")["message"].to_string();
    assert!(message.contains("InsufficientCapacity"), "{message}");
    let request = name(request).to_owned();
    queue.weather(&calm()).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(2);
    let seen = stage.until(&queue, ("it runs", 120), runs).await;
    run_on_their_own_nodes(&seen, &queue, 2);
    assert_ne!(name(&seen.requests[0]), request);
    stage.clear(&queue).await;
}

async fn an_evicted_workload_gives_its_nodes_back(stage: &Stage) {
    let queue = stage.queue("evicted", names::REQUEST_CLASS).await;
    queue.submit(vec![queue.job("train", 2, None)]).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(2);
    let seen = stage.until(&queue, ("it runs", 90), runs).await;
    let workload = name(&seen.workloads[0]).to_owned();
    queue.patch("Workload", &workload, &json!({"spec": {"active": false}})).await;
    let gone = |s: &QueueObjects| s.claims.is_empty() && s.requests.is_empty() && s.nodes.is_empty();
    let seen = stage.until(&queue, ("no node and no request is left", 60), gone).await;
    assert!(is(&seen.workloads[0], "Evicted") && !is(&seen.workloads[0], "Admitted"));
    queue.patch("Workload", &workload, &json!({"spec": {"active": true}})).await;
    stage.until(&queue, ("it runs again", 90), runs).await;
    stage.clear(&queue).await;
}

async fn a_killed_setu_goes_on_with_the_same_claims(stage: &mut Stage) {
    let queue = stage.queue("killed", names::REQUEST_CLASS).await;
    queue.weather(&late()).await;
    queue.submit(vec![queue.job("train", 3, Some("1s"))]).await;
    let before = stage.until(&queue, ("its claims exist", 60), |s| s.claims.len() == 3).await;
    stage.setu.kill();
    queue.weather(&calm()).await;
    stage.setu.start(None).unwrap();
    let admitted = |s: &QueueObjects| s.all_are(1, "Admitted") && s.claims.len() == 3;
    let after = stage.until(&queue, ("it is admitted", 90), admitted).await;
    assert_eq!(after.claim_uids(), before.claim_uids());
    assert_eq!(after.requests[0]["metadata"]["uid"], before.requests[0]["metadata"]["uid"]);
    stage.until(&queue, ("its nodes go when it has finished", 60), |s| are_over(s, 1)).await;
    stage.clear(&queue).await;
}

async fn many_jobs_at_once_all_run(stage: &Stage) {
    let queue = stage.queue("many", names::REQUEST_CLASS).await;
    let submitted = Instant::now();
    queue.submit((0..MANY).map(|i| queue.job(&format!("job-{i}"), 1, Some("1s"))).collect()).await;
    stage.until(&queue, ("all are admitted", 600), |s| s.all_are(MANY, "Admitted")).await;
    println!("{MANY} Jobs: all admitted after {:?}", submitted.elapsed());
    stage.until(&queue, ("all have finished and nothing is left", 300), |s| are_over(s, MANY)).await;
    println!("{MANY} Jobs: nothing left after {:?}", submitted.elapsed());
    stage.clear(&queue).await;
}

/// A flavor with a topology of these levels, and a NodePool with two zones and two racks.
async fn with_topology(stage: &Stage, id: &'static str, levels: &[&str]) -> Queue {
    let queue = stage.queue(id, names::REQUEST_CLASS).await;
    let placed = format!("placed-{id}");
    let levels: Vec<Value> = levels.iter().map(|level| json!({"nodeLabel": level})).collect();
    queue
        .apply(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Topology",
            "metadata": {"name": queue.id}, "spec": {"levels": levels},
        }))
        .await;
    queue
        .apply(json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor",
            "metadata": {"name": placed},
            "spec": {"nodeLabels": {"pool": queue.id}, "topologyName": queue.id},
        }))
        .await;
    queue
        .restrict(&[
            (names::INSTANCE_TYPE, &["g5.4xlarge"]),
            (names::CAPACITY_TYPE, &["on-demand"]),
            (names::ZONE, &["us-east-1a", "us-east-1b"]),
            (RACK, &["r1", "r2"]),
        ])
        .await;
    let resource = |name: &str, quota: &str| json!({"name": name, "nominalQuota": quota});
    let resources = [resource("cpu", "100"), resource("memory", "1000Gi"), resource("nvidia.com/gpu", "100")];
    let group = json!({
        "coveredResources": ["cpu", "memory", "nvidia.com/gpu"],
        "flavors": [{"name": placed, "resources": resources}],
    });
    queue.patch("ClusterQueue", queue.id, &json!({"spec": {"resourceGroups": [group]}})).await;
    queue
}

/// The gang's pods are placed in one domain of the first of these levels, which the policy's colocation names too.
async fn pods_are_placed_by_topology_from_zero_nodes(stage: &Stage, id: &'static str, levels: &[&str]) {
    let queue = with_topology(stage, id, levels).await;
    let mut job = queue.job("train", 3, None);
    let required = json!({"kueue.x-k8s.io/podset-required-topology": levels[0]});
    job["spec"]["template"]["metadata"]["annotations"] = required;
    assert!(queue.list_all().await.nodes.is_empty());
    queue.submit(vec![job]).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(3);
    let seen = stage.until(&queue, ("it runs", 120), runs).await;
    run_on_their_own_nodes(&seen, &queue, 3);
    let domains: BTreeSet<&str> =
        seen.nodes.iter().filter_map(|n| n["metadata"]["labels"][levels[0]].as_str()).collect();
    assert_eq!(domains.len(), 1, "{domains:?}");
    let assigned = &seen.workloads[0]["status"]["admission"]["podSetAssignments"][0];
    assert_eq!(assigned["delayedTopologyRequest"], "Ready");
    assert!(assigned["topologyAssignment"].is_object(), "{assigned:#}");
    // If the placement were wrong, Kueue would evict the Workload within moments.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let later = queue.list_all().await;
    assert!(runs(&later), "{later:#?}");
    assert_eq!(later.claim_uids(), seen.claim_uids());
    if levels.contains(&names::HOSTNAME) && !*REPLACES_NODES_LATER {
        println!("LEFT OUT: a lost host. This Kueue evicts the gang unless another host is there at once.");
    } else {
        a_lost_node_is_replaced_in_its_domain(stage, &queue, levels[0], 3).await;
    }
    stage.clear(&queue).await;
}

/// The cases that need a Kueue that deletes the requests of Workloads that have finished or are evicted.
async fn nodes_go_with_their_request(stage: &Stage) {
    if !*DELETES_ENDED_REQUESTS {
        println!(
            "LEFT OUT: eviction, preemption and warm nodes. This Kueue keeps the requests of Workloads that have finished or are evicted."
        );
        return;
    }
    tokio::join!(
        an_evicted_workload_gives_its_nodes_back(stage),
        a_preempted_gang_gives_its_nodes_back(stage),
        warm_nodes_are_taken_over(stage),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn setu_serves_the_requests_of_kueues_own_check() {
    let began = Instant::now();
    let log = |what: &str| println!("{:>5.1} s: {what}", began.elapsed().as_secs_f64());
    let mut stage = Stage::set().await;
    log("the control plane runs");
    let mut foreign = Vec::new();
    for (id, class) in FOREIGN_CLASSES {
        let queue = stage.queue(id, class).await;
        queue.submit(vec![queue.job("train", 2, None)]).await;
        foreign.push(queue);
    }
    a_gang_gets_its_nodes_and_they_go_with_the_job(&stage).await;
    log("a gang came and went");
    a_killed_setu_goes_on_with_the_same_claims(&mut stage).await;
    log("a killed Setu went on");
    many_jobs_at_once_all_run(&stage).await;
    log("many Jobs came and went");
    // They mostly wait, and each has a queue of its own. Last, because gangs take turns for a while after a shortage.
    tokio::join!(
        a_shortage_is_retried_within_the_request(&stage),
        kueue_asks_again_when_a_request_fails(&stage),
        pods_are_placed_by_topology_from_zero_nodes(&stage, "topology", &[names::ZONE]),
        pods_are_placed_by_topology_from_zero_nodes(&stage, "hosts", &[RACK, names::HOSTNAME]),
        another_capacity_type_is_tried_within_the_request(&stage),
        nodes_go_with_their_request(&stage),
        a_queue_moves_from_cluster_autoscaler(&stage, FOREIGN_CLASSES[1].1),
        a_client_gets_the_nodes_of_its_own_request(&stage),
        a_request_of_a_client_is_taken_back(&stage),
        a_request_of_higher_priority_preempts_a_job(&stage),
    );
    log("gangs ran short, failed, were placed by topology and moved, and ended with their requests");

    for queue in foreign {
        let seen = queue.list_all().await;
        assert_eq!((seen.requests.len(), seen.claims.len(), seen.nodes.len()), (1, 0, 0), "{}", queue.id);
        let request = &seen.requests[0];
        assert_eq!((request.get("status"), request["metadata"].get("annotations")), (None, None));
        stage.clear(&queue).await;
    }
    stage.end();
}

/// Setu is killed after one of its writes while a gang comes and goes, and is started again. Returns whether there was such a write.
async fn comes_and_goes_despite_a_kill_after(write: u64, stage: &mut Stage, queue: &Queue) -> bool {
    stage.setu.kill();
    stage.setu.start(Some(write)).unwrap();
    queue.submit(vec![queue.job("train", 2, Some("2s"))]).await;
    let deadline = Instant::now() + Duration::from_mins(2);
    let mut was_killed = false;
    loop {
        let seen = queue.list_all().await;
        if are_over(&seen, 1) {
            break;
        }
        let log = || stage.setu.log_tail(25);
        assert!(Instant::now() < deadline, "killed after write {write}: not over\n{seen:#?}\n{}", log());
        assert!(seen.claims.len() <= 2 && seen.requests.len() <= 1, "killed after write {write}: {seen:#?}");
        if stage.setu.ended().unwrap().is_some() {
            was_killed = true;
            stage.setu.start(None).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stage.clear(queue).await;
    was_killed
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn a_gang_comes_and_goes_whichever_write_setu_is_killed_after() {
    let mut stage = Stage::set().await;
    let queue = stage.queue("killed", names::REQUEST_CLASS).await;
    let mut writes = 0;
    while comes_and_goes_despite_a_kill_after(writes + 1, &mut stage, &queue).await {
        writes += 1;
    }
    println!("killed after each of {writes} writes");
    assert!(writes > 5, "Setu writes more than that for a gang of two");
    stage.end();
}
