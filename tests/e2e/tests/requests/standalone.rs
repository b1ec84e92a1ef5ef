//! Requests that no Workload controls: a client other than Kueue makes them, and runs its pods itself.

use crate::stage::{Queue, QueueObjects, Stage, condition, is, name};
use ::setu::names;
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// The pods of the example.
const PODS: usize = 4;

/// The example's PodTemplate and request, for this queue.
fn example(queue: &Queue) -> [Value; 2] {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/provisioning-requests/standalone.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let objects = serde_yaml::Deserializer::from_str(&text).map(|object| Value::deserialize(object).unwrap());
    let mut objects: [Value; 2] = objects.collect::<Vec<_>>().try_into().unwrap();
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(queue.id);
    }
    objects[1]["metadata"]["labels"][names::QUEUE] = json!("queue");
    objects
}

/// A Job of the client: the pods of the example on the nodes of this gang.
fn job(queue: &Queue, template: &Value, gang: &Value, run_for: &str) -> Value {
    let mut pods = template["template"].clone();
    pods["metadata"] = json!({"annotations": {
        (names::CONSUMES): "batch", (setu_e2e::RUN_FOR_ANNOTATION): run_for,
    }});
    pods["spec"]["nodeSelector"] = json!({(names::GANG): gang});
    pods["spec"]["terminationGracePeriodSeconds"] = json!(0);
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": queue.id, "name": "batch"},
        "spec": {"parallelism": PODS, "completions": PODS, "template": pods},
    })
}

/// A client gets the nodes of its request, runs its pods on them, and they are given back when the pods have succeeded.
pub async fn a_client_gets_the_nodes_of_its_own_request(stage: &Stage) {
    let queue = stage.queue_with_setus_check("standalone", 200).await;
    let [template, request] = example(&queue);
    queue.apply(template.clone()).await;
    queue.apply(request).await;
    let provisioned = |s: &QueueObjects| s.requests.iter().any(|request| is(request, "Provisioned"));
    let seen = stage.until(&queue, ("its nodes are there", 120), provisioned).await;
    assert!(seen.all_are(1, "Admitted"), "{:#?}", seen.workloads);
    assert_eq!(name(&seen.workloads[0]), "provisioningrequest-batch");
    assert_eq!((seen.claims.len(), seen.nodes.len()), (PODS, PODS));
    let details = &seen.requests[0]["status"]["provisioningClassDetails"];
    let gang = &details["gang"];
    assert_eq!(details, &json!({"gang": gang, "nodePool": queue.id, "count": PODS.to_string()}));
    let is_tainted = |node: &Value| {
        node["spec"]["taints"]
            .as_array()
            .is_some_and(|all| all.iter().any(|taint| taint["key"] == names::GANG))
    };
    assert!(seen.nodes.iter().all(is_tainted), "{:#?}", seen.nodes);
    let output = stage.output_of(&["explain", "provisioningrequest/batch", "-n", queue.id]);
    assert!(output.contains("4/4 ready"), "{output}");
    queue.submit(vec![job(&queue, &template, gang, "20s")]).await;
    let seen = stage.until(&queue, ("its pods run", 60), |s| s.runs(PODS)).await;
    let used: BTreeSet<&str> = seen.pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    assert_eq!(used, seen.nodes.iter().map(name).collect());
    let is_over = |s: &QueueObjects| s.workloads.is_empty() && s.claims.is_empty();
    let seen = stage.until(&queue, ("its nodes are given back", 180), is_over).await;
    assert_eq!(condition(&seen.requests[0], "BookingExpired")["reason"], "PodsSucceeded");
    let output = stage.output_of(&["explain", "provisioningrequest/batch", "-n", queue.id]);
    assert!(output.contains("all pods have succeeded"), "{output}");
    queue.delete_in("ProvisioningRequest", "batch").await;
    stage.clear(&queue).await;
}

/// A request with a priority class takes the quota of a Job that has none.
pub async fn a_request_of_higher_priority_preempts_a_job(stage: &Stage) {
    let queue = stage.queue_with_setus_check("standalone-urgent", 6).await;
    let urgent = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass",
        "metadata": {"name": "standalone-urgent"}, "value": 1_000, "description": "preempts",
    });
    queue.apply(urgent).await;
    let preemption = json!({"spec": {"preemption": {"withinClusterQueue": "LowerPriority"}}});
    queue.patch("ClusterQueue", queue.id, &preemption).await;
    queue.submit(vec![queue.job("patient", PODS, None)]).await;
    stage.until(&queue, ("the Job runs", 90), |s| s.all_are(1, "Admitted") && s.runs(PODS)).await;
    let [template, mut request] = example(&queue);
    queue.apply(template).await;
    request["metadata"]["labels"][names::PRIORITY_CLASS] = json!("standalone-urgent");
    queue.apply(request).await;
    let taken = |s: &QueueObjects| {
        s.requests.iter().any(|request| is(request, "Provisioned")) && s.claims.len() == PODS
    };
    stage.until(&queue, ("the request has the quota", 120), taken).await;
    queue.delete_in("ProvisioningRequest", "batch").await;
    stage.clear(&queue).await;
}

/// A request that is deleted before its nodes are ready leaves no Workload and no node.
pub async fn a_request_of_a_client_is_taken_back(stage: &Stage) {
    let queue = stage.queue_with_setus_check("standalone-deleted", 200).await;
    queue.weather(&json!([{"registrationDelay": "1h"}])).await;
    let [template, request] = example(&queue);
    queue.apply(template).await;
    queue.apply(request).await;
    let launched = |s: &QueueObjects| s.claims.len() == PODS && !is(&s.requests[0], "Provisioned");
    let seen = stage.until(&queue, ("nodes are launched", 60), launched).await;
    let message = condition(&seen.requests[0], "Provisioned")["message"].as_str().unwrap().to_owned();
    println!("the client reads: {message}");
    queue.delete_in("ProvisioningRequest", "batch").await;
    stage.clear(&queue).await;
}
