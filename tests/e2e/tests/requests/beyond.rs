//! Gangs of requests that need more than free capacity: another capacity type, another gang's quota or nodes, or a node in place of a
//! lost one.

use crate::stage::{Queue, QueueObjects, Stage, is, name};
use ::setu::names;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The names of the nodes of a queue.
fn nodes(seen: &QueueObjects) -> BTreeSet<&str> {
    seen.nodes.iter().map(name).collect()
}

/// Whether the Workload of this Job has a condition.
fn job_is(seen: &QueueObjects, job: &str, kind: &str) -> bool {
    let of_job = |w: &&Value| w["metadata"]["ownerReferences"][0]["name"] == job;
    seen.workloads.iter().find(of_job).is_some_and(|workload| is(workload, kind))
}

/// The next capacity type of the policy is tried within the same request.
pub async fn another_capacity_type_is_tried_within_the_request(stage: &Stage) {
    let queue = stage.queue("capacity-types", names::REQUEST_CLASS).await;
    queue
        .restrict(&[(names::INSTANCE_TYPE, &["g5.4xlarge"]), (names::CAPACITY_TYPE, &["spot", "on-demand"])])
        .await;
    queue.weather(&json!([{"capacityType": "spot", "capacity": 1}])).await;
    queue.submit(vec![queue.job("train", 3, None)]).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(3);
    let seen = stage.until(&queue, ("it runs on demand", 120), runs).await;
    let types: BTreeSet<&str> =
        seen.nodes.iter().filter_map(|n| n["metadata"]["labels"][names::CAPACITY_TYPE].as_str()).collect();
    assert_eq!((types, seen.requests.len()), (BTreeSet::from(["on-demand"]), 1));
    stage.clear(&queue).await;
}

/// A gang that Kueue preempts gives its nodes back. It gets nodes again when the other gang has finished.
pub async fn a_preempted_gang_gives_its_nodes_back(stage: &Stage) {
    let queue = stage.queue_with_quota("preempted", names::REQUEST_CLASS, 2).await;
    let urgent = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "urgent"}, "value": 1_000, "description": "preempts",
    });
    queue.apply(urgent).await;
    let preemption = json!({"withinClusterQueue": "LowerPriority"});
    queue.patch("ClusterQueue", queue.id, &json!({"spec": {"preemption": preemption}})).await;
    queue.submit(vec![queue.job("patient", 2, None)]).await;
    let patient = |s: &QueueObjects| job_is(s, "patient", "Admitted") && s.runs(2);
    let before = stage.until(&queue, ("it runs", 90), patient).await;
    let mut job = queue.job("urgent", 2, Some("5s"));
    job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = json!("urgent");
    queue.submit(vec![job]).await;
    let urgent = |s: &QueueObjects| {
        job_is(s, "urgent", "Admitted") && !job_is(s, "patient", "Admitted") && s.claims.len() == 2
    };
    let during = stage.until(&queue, ("the urgent one has taken its quota", 120), urgent).await;
    assert!(nodes(&before).is_disjoint(&nodes(&during)), "{before:#?}\n{during:#?}");
    let again = |s: &QueueObjects| job_is(s, "urgent", "Finished") && patient(s) && s.claims.len() == 2;
    stage.until(&queue, ("it runs again", 120), again).await;
    stage.clear(&queue).await;
}

/// The nodes of a gang that has finished are kept for the next gang of the queue, which takes them over.
pub async fn warm_nodes_are_taken_over(stage: &Stage) {
    let queue = stage.queue("warm", names::REQUEST_CLASS).await;
    queue.patch("NodePool", queue.id, &json!({"spec": {"limits": {"nodes": "2"}}})).await;
    queue.submit(vec![queue.job("first", 2, Some("2s"))]).await;
    let kept =
        |s: &QueueObjects| job_is(s, "first", "Finished") && s.requests.is_empty() && s.nodes.len() == 2;
    let before = stage.until(&queue, ("its nodes are kept", 120), kept).await;
    queue.submit(vec![queue.job("second", 2, None)]).await;
    let runs = |s: &QueueObjects| job_is(s, "second", "Admitted") && s.runs(2);
    let after = stage.until(&queue, ("the next gang runs", 90), runs).await;
    assert_eq!(nodes(&after), nodes(&before));
    queue.delete_jobs().await;
    let is_empty = |s: &QueueObjects| s.nodes.is_empty() && s.workloads.is_empty();
    stage.until(&queue, ("the nodes are given up", 240), is_empty).await;
}

/// A queue moves from Cluster Autoscaler to Setu by the class name of its configuration, as the documents say.
pub async fn a_queue_moves_from_cluster_autoscaler(stage: &Stage, class: &str) {
    let queue = stage.queue("moved", class).await;
    queue.submit(vec![queue.job("train", 2, None)]).await;
    stage.until(&queue, ("the other autoscaler is asked", 60), |s| s.requests.len() == 1).await;
    let ours = json!({"spec": {"provisioningClassName": names::REQUEST_CLASS}});
    queue.patch("ProvisioningRequestConfig", queue.id, &ours).await;
    let runs = |s: &QueueObjects| s.all_are(1, "Admitted") && s.runs(2);
    let seen = stage.until(&queue, ("it runs on Setu's nodes", 90), runs).await;
    assert_eq!((seen.claims.len(), seen.nodes.len()), (2, 2));
    stage.clear(&queue).await;
}

/// A node of a gang that is placed by topology is lost. The new node is in the same domain of this level, and the gang stays
/// admitted.
pub async fn a_lost_node_is_replaced_in_its_domain(stage: &Stage, queue: &Queue, level: &str, pods: usize) {
    let before = queue.list_all().await;
    let domain = |s: &QueueObjects| -> BTreeSet<String> {
        s.nodes.iter().map(|n| n["metadata"]["labels"][level].to_string()).collect()
    };
    let lost = name(&before.claims[0]).to_owned();
    queue.delete("NodeClaim", &lost).await;
    let replaced = |s: &QueueObjects| {
        s.claims.len() == pods && s.claims.iter().all(|claim| name(claim) != lost) && s.runs(pods)
    };
    let after = stage.until(queue, ("it runs with another node", 180), replaced).await;
    assert!(after.all_are(1, "Admitted"), "{:#?}", after.workloads);
    assert_eq!(domain(&after), domain(&before));
    assert_eq!(nodes(&after).intersection(&nodes(&before)).count(), pods - 1);
}
