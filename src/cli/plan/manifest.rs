//! Builds the Workload that Kueue would create for a Job, a RayJob or any other kind that Kueue makes Workloads of.

use super::indirect;
use super::pod_sets::{annotation, framework, label, listed, text};
use super::spark;
use crate::api::pod::ResourceList;
use crate::api::provisioning_request::RequestedPods;
use crate::api::{ProvisioningRequest, Workload};
use crate::cli::frameworks::{Framework, PodsIn, WorkloadOf};
use crate::gang::workload::standalone::{NO_QUEUE, workload_for};
use crate::names;
use crate::plan::resources;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::{Value, json};

/// The kind of a request for capacity.
const REQUEST: &str = "ProvisioningRequest";

/// Requests of KubeRay's Job that removes the state of a RayCluster from Redis.
const REDIS_CLEANUP: [(&str, &str); 2] = [("cpu", "200m"), ("memory", "256Mi")];

/// Whether this is a Workload, or an object that Kueue or Setu would make one of. Kueue leaves a Deployment or a StatefulSet alone
/// that names no queue.
pub fn is_workload(manifest: &Value) -> bool {
    let group_of = framework(manifest).map(|f| f.group);
    ["Workload", REQUEST].contains(&text(manifest, "/kind"))
        || group_of.is_some_and(|group| group != "apps" || label(manifest, names::QUEUE).is_some())
}

/// Reads a Workload, or builds the one that Kueue or Setu would create. `named` are the training runtimes that a TrainJob may name,
/// and the PodTemplates that a ProvisioningRequest may name.
pub fn workload(manifest: Value, named: &[Value]) -> Result<Workload, String> {
    let kind = text(&manifest, "/kind").to_owned();
    match kind.as_str() {
        "Workload" => return read(&kind, manifest),
        REQUEST => return of_request(manifest, named),
        _ => {}
    }
    let framework = framework(&manifest)
        .ok_or_else(|| format!("{kind} is not a kind that setu plan reads; see docs/frameworks.md"))?;
    let name = manifest.pointer("/metadata/name").cloned().unwrap_or_else(|| json!("unnamed"));
    let mut made = with_pod_sets(&manifest, &name, &pod_sets(framework, &manifest, named)?)?;
    match framework.kind {
        "Job" => allow_fewer(&mut made, &manifest)?,
        "RayCluster" | "RayJob" => count_cleanup(&mut made, &manifest),
        _ => {}
    }
    Ok(made)
}

/// The Workload that Setu would create for a ProvisioningRequest with these PodTemplates.
fn of_request(manifest: Value, named: &[Value]) -> Result<Workload, String> {
    let request: ProvisioningRequest =
        serde_json::from_value(manifest).map_err(|e| format!("{REQUEST} cannot be read: {e}"))?;
    if !request.is_standalone() {
        return Err(format!(
            "Setu plans for a {REQUEST} of class {} that no Workload controls; give the Workload or the Job instead",
            names::REQUEST_CLASS
        ));
    }
    let queue = request.labels().get(names::QUEUE).ok_or(NO_QUEUE)?;
    let template = |set: &RequestedPods| {
        let name = &set.pod_template_ref.name;
        let is_meant = |object: &&Value| {
            text(object, "/kind") == "PodTemplate" && text(object, "/metadata/name") == name
        };
        let found = named.iter().find(is_meant).and_then(|object| object.get("template"));
        let found = found.ok_or_else(|| {
            format!("the {REQUEST} names PodTemplate {name}, which is in no file; give it with -f")
        })?;
        PodTemplateSpec::deserialize(found).map_err(|e| format!("PodTemplate {name} cannot be read: {e}"))
    };
    let templates: Vec<PodTemplateSpec> =
        request.spec.pod_sets.iter().map(template).collect::<Result<_, String>>()?;
    read(REQUEST, workload_for(&request, queue, None, &templates))
}

/// The Workload of this name that Kueue would create for an object, with these pod sets.
pub fn with_pod_sets(manifest: &Value, name: &Value, pod_sets: &[Value]) -> Result<Workload, String> {
    let namespace = manifest.pointer("/metadata/namespace").cloned();
    let seconds = label(manifest, names::MAX_EXECUTION).and_then(|text| text.as_str()?.parse::<u32>().ok());
    let made = json!({
        "metadata": {
            "name": name,
            "namespace": namespace.unwrap_or_else(|| json!("default")),
            "annotations": copied(manifest),
        },
        "spec": {
            "podSets": pod_sets,
            "queueName": label(manifest, names::QUEUE).cloned().unwrap_or_else(|| json!("")),
            "maximumExecutionTimeSeconds": seconds,
        },
    });
    read(text(manifest, "/kind"), made)
}

/// A note that Kueue would make more Workloads like the planned one; `None` if it would not.
pub fn alike(manifest: &Value) -> Option<String> {
    let framework = framework(manifest)?;
    let WorkloadOf::Replica(field) = framework.workload else { return None };
    let replicas = manifest.pointer(field).and_then(Value::as_i64).unwrap_or(1);
    (replicas != 1).then(|| {
        format!(
            "{} {} has {replicas} replicas, and each is a Workload of its own; this is the plan for one",
            framework.kind,
            text(manifest, "/metadata/name")
        )
    })
}

/// Reads a Workload that was made of this kind. Sets the default namespace, and refuses negative pod counts.
fn read(kind: &str, value: Value) -> Result<Workload, String> {
    let read = serde_json::from_value::<Workload>(value);
    let mut workload = read.map_err(|e| format!("{kind} cannot be read: {e}"))?;
    workload.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    match workload.spec.pod_sets.iter().find(|set| set.count < 0) {
        None => Ok(workload),
        Some(set) => Err(format!("pod set {} has a count of {}; write 0 or more", set.name, set.count)),
    }
}

/// Lets Kueue admit fewer pods of a Job than all, if the Job allows that.
fn allow_fewer(made: &mut Workload, job: &Value) -> Result<(), String> {
    let stated = annotation(job, names::MIN_PARALLELISM);
    for set in made.spec.pod_sets.iter_mut().filter(|_| !stated.is_empty()) {
        let least = stated.parse::<i32>().ok().filter(|least| (1..set.count).contains(least));
        set.min_count = Some(least.ok_or_else(|| {
            format!(
                "the Job has the annotation {}: {stated:?}; Kueue takes a whole number of 1 or more, below the Job's {} pods",
                names::MIN_PARALLELISM,
                set.count
            )
        })?);
    }
    Ok(())
}

/// Raises what the head of a RayCluster requests to what the removal of its state from Redis takes, if Redis keeps its state.
fn count_cleanup(made: &mut Workload, manifest: &Value) {
    let options = ["/spec/gcsFaultToleranceOptions", "/spec/rayClusterSpec/gcsFaultToleranceOptions"];
    let has_options = options.iter().filter_map(|at| manifest.pointer(at)).any(|options| !options.is_null());
    if !has_options && !annotation(manifest, names::RAY_FAULT_TOLERANCE).eq_ignore_ascii_case("true") {
        return;
    }
    let head = made.spec.pod_sets.first_mut().and_then(|head| head.template.spec.containers.first_mut());
    if let Some(ray) = head {
        let cleanup: ResourceList =
            REDIS_CLEANUP.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into();
        let requests = ray.resources.get_or_insert_default().requests.get_or_insert_default();
        *requests = resources::max(requests, &cleanup);
    }
}

/// The annotations that Kueue copies from a Job to its Workload and that Setu reads.
fn copied(manifest: &Value) -> Value {
    let all = manifest.pointer("/metadata/annotations").and_then(Value::as_object);
    let is_read = |key: &str| key == names::ELASTIC_JOB || key.starts_with(names::JOB_OVERRIDE_PREFIX);
    let ours = all.into_iter().flatten().filter(|(key, _)| is_read(key));
    Value::Object(ours.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The pod sets that Kueue would make.
fn pod_sets(framework: &Framework, manifest: &Value, runtimes: &[Value]) -> Result<Vec<Value>, String> {
    match framework.pods {
        PodsIn::Manifest(places) => listed(framework, places, manifest),
        PodsIn::Components => indirect::of_components(manifest),
        PodsIn::Runtime => indirect::of_runtime(manifest, runtimes),
        PodsIn::Application => spark::of_application(framework, manifest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(manifest: Value) -> Result<Workload, String> {
        super::workload(manifest, &[])
    }

    fn counts(manifest: Value) -> Vec<(String, i32)> {
        workload(manifest).unwrap().spec.pod_sets.into_iter().map(|p| (p.name, p.count)).collect()
    }

    #[test]
    fn each_kind_gets_the_pod_sets_that_kueue_would_create() {
        let template = json!({"spec": {"containers": []}});
        let job = |parallelism: i64, completions: Option<i64>| {
            json!({"kind": "Job", "spec": {
                "parallelism": parallelism, "completions": completions, "template": template,
            }})
        };
        assert_eq!(counts(job(4, Some(9))), [("main".to_owned(), 4)]);
        assert_eq!(counts(job(4, Some(2))), [("main".to_owned(), 2)]);
        assert_eq!(counts(job(4, None)), [("main".to_owned(), 4)]);
        let set = json!({"kind": "JobSet", "spec": {"replicatedJobs": [
            {"name": "lead", "template": job(1, None)},
            {"name": "work", "replicas": 3, "template": job(2, None)},
        ]}});
        assert_eq!(counts(set), [("lead".to_owned(), 1), ("work".into(), 6)]);
        let pod = json!({"kind": "Pod", "metadata": {"name": "p", "labels": {(names::QUEUE): "lq"}}, "spec": {"containers": []}});
        assert_eq!(workload(pod.clone()).unwrap().spec.queue_name, "lq");
        assert_eq!(counts(pod), [("main".to_owned(), 1)]);
    }

    /// The pod sets of an example.
    fn example(file: &str) -> String {
        let path = format!("{}/examples/frameworks/{file}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let documents = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).unwrap());
        let (manifests, others): (Vec<_>, Vec<_>) = documents.partition(is_workload);
        let made = super::workload(manifests.into_iter().next().unwrap(), &others).unwrap();
        let sets = made.spec.pod_sets.into_iter().map(|set| (set.name, set.count));
        sets.map(|(name, count)| format!("{count}×{name}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_framework_gets_the_pod_sets_that_its_integration_creates() {
        for (file, sets) in [
            ("ray-job", "1×head 2×workers 1×submitter"),
            ("ray-cluster", "1×head 2×workers"),
            ("pytorch-job", "1×master 2×worker"),
            ("tf-job", "1×chief 1×ps 2×worker"),
            ("xgboost-job", "1×master 2×worker"),
            ("paddle-job", "2×worker"),
            ("jax-job", "2×worker"),
            ("mpi-job", "1×launcher 2×worker"),
            ("train-job", "2×node"),
            ("app-wrapper", "2×app-wrapper-0"),
            ("spark-application", "1×driver 2×executor"),
            ("stateful-set", "3×main"),
            ("deployment", "1×main"),
        ] {
            assert_eq!(example(file), sets, "{file}");
        }
    }

    #[test]
    fn a_leader_worker_set_is_planned_by_group() {
        let template = json!({"spec": {"containers": []}});
        let set = |leader: Value| {
            json!({"kind": "LeaderWorkerSet", "metadata": {"name": "serve"}, "spec": {"replicas": 2, "leaderWorkerTemplate": {
                "size": 4, "leaderTemplate": leader, "workerTemplate": template,
            }}})
        };
        assert_eq!(counts(set(template.clone())), [("leader".to_owned(), 1), ("worker".into(), 3)]);
        assert_eq!(counts(set(Value::Null)), [("main".to_owned(), 4)]);
        let words = "LeaderWorkerSet serve has 2 replicas, and each is a Workload of its own; this is the plan for one";
        assert_eq!(alike(&set(Value::Null)).unwrap(), words);
    }

    #[test]
    fn a_ray_job_has_a_submitter_as_its_submission_mode_says() {
        let group = json!({"groupName": "Small", "numOfHosts": 4, "replicas": 2, "template": {"spec": {"containers": []}}});
        let job = |mode: Value| {
            json!({"kind": "RayJob", "spec": {"submissionMode": mode, "rayClusterSpec": {
                "headGroupSpec": {"template": {"spec": {"containers": [{"name": "head"}]}}}, "workerGroupSpecs": [group],
            }}})
        };
        let made = workload(job(Value::Null)).unwrap().spec.pod_sets;
        let [head, workers, submitter] = made.as_slice() else { panic!("{made:?}") };
        assert_eq!((workers.name.as_str(), workers.count), ("small", 8));
        let asked = submitter.template.spec.containers[0].resources.as_ref().unwrap();
        assert_eq!(asked.requests.as_ref().unwrap()["cpu"].0, "500m");
        assert_eq!(head.template.spec.containers.len(), 1);
        assert_eq!(counts(job(json!("HTTPMode"))).len(), 2);
        let beside = workload(job(json!("SidecarMode"))).unwrap().spec.pod_sets;
        assert_eq!((beside.len(), beside[0].template.spec.containers.len()), (2, 2));
    }

    #[test]
    fn the_head_of_a_ray_cluster_requests_what_the_cleanup_of_redis_takes() {
        let head = |annotations: Value, options: Value, requests: Value| {
            let pods =
                json!({"spec": {"containers": [{"name": "head", "resources": {"requests": requests}}]}});
            let spec = json!({"headGroupSpec": {"template": pods}, "gcsFaultToleranceOptions": options});
            let made = workload(
                json!({"kind": "RayCluster", "metadata": {"annotations": annotations}, "spec": spec}),
            );
            let requests = made.unwrap().spec.pod_sets[0].template.spec.containers[0].resources.clone();
            json!(requests.unwrap().requests)
        };
        let (small, large) = (json!({"cpu": "100m"}), json!({"cpu": "4", "memory": "8Gi"}));
        let cleanup = json!({"cpu": "200m", "memory": "268435456"});
        let on = json!({(names::RAY_FAULT_TOLERANCE): "True"});
        assert_eq!(head(json!({}), Value::Null, small.clone()), small);
        assert_eq!(head(on, Value::Null, small.clone()), cleanup);
        assert_eq!(head(json!({}), json!({"redisAddress": "r"}), small), cleanup);
        let most = head(json!({}), json!({}), large);
        assert_eq!((&most["cpu"], &most["memory"]), (&json!("4"), &json!("8589934592")));
    }

    #[test]
    fn a_job_may_state_how_few_of_its_pods_kueue_may_admit() {
        let job = |least: Value| {
            let template = json!({"spec": {"containers": []}});
            let metadata = json!({"annotations": {(names::MIN_PARALLELISM): least}});
            workload(
                json!({"kind": "Job", "metadata": metadata, "spec": {"parallelism": 4, "template": template}}),
            )
        };
        let least = |least: Value| job(least).unwrap().spec.pod_sets[0].min_count;
        assert_eq!((least(json!("3")), least(Value::Null)), (Some(3), None));
        for wrong in ["0", "4", "all"] {
            let words = format!(
                "the Job has the annotation kueue.x-k8s.io/job-min-parallelism: {wrong:?}; Kueue takes a whole number of 1 or \
                 more, below the Job's 4 pods"
            );
            assert_eq!(job(json!(wrong)).unwrap_err(), words);
        }
    }

    #[test]
    fn a_deployment_without_a_queue_and_a_job_of_another_group_are_not_planned_for() {
        let kueues = json!({"metadata": {"labels": {(names::QUEUE): "lq"}}});
        let with = |api: &str, kind: &str, labels: &Value| {
            let mut object = labels.clone();
            object["apiVersion"] = json!(api);
            object["kind"] = json!(kind);
            is_workload(&object)
        };
        assert!(with("apps/v1", "Deployment", &kueues));
        assert!(!with("apps/v1", "Deployment", &json!({})));
        assert!(with("batch/v1", "Job", &json!({})));
        assert!(!with("batch.volcano.sh/v1alpha1", "Job", &kueues));
        assert!(!with("apps/v1", "DaemonSet", &kueues));
    }

    #[test]
    fn what_a_framework_does_not_have_is_named_in_the_error() {
        let refused = |kind: &str, spec: Value| workload(json!({"kind": kind, "spec": spec})).unwrap_err();
        let pod = json!({"template": {"spec": {"containers": []}}});
        for (kind, spec, words) in [
            (
                "PyTorchJob",
                json!({"pytorchReplicaSpecs": {"Workers": pod}}),
                "the PyTorchJob has spec.pytorchReplicaSpecs.Workers; its roles are Master, Worker",
            ),
            ("JAXJob", json!({}), "the JAXJob has no pods; it needs spec.jaxReplicaSpecs.Worker"),
            (
                "MPIJob",
                json!({"mpiReplicaSpecs": {"Worker": {"replicas": 2}}}),
                "pod set worker of the MPIJob has no template",
            ),
            ("RayCluster", json!({}), "the RayCluster has no spec.headGroupSpec"),
            (
                "RayCluster",
                json!({"headGroupSpec": pod, "workerGroupSpecs": [{}]}),
                "entry 0 of spec.workerGroupSpecs of the RayCluster has no groupName",
            ),
            (
                "RayCluster",
                json!({"headGroupSpec": pod, "workerGroupSpecs": {}}),
                "spec.workerGroupSpecs of the RayCluster is not a list",
            ),
            (
                "RayCluster",
                json!({"headGroupSpec": pod, "enableInTreeAutoscaling": true}),
                "the RayCluster has spec.enableInTreeAutoscaling: true; its autoscaler changes how many pods there are, so a \
              plan for them cannot be made; set it to false",
            ),
        ] {
            assert_eq!(refused(kind, spec), words);
        }
    }

    #[test]
    fn the_maximum_execution_time_comes_from_the_job_label() {
        let job = |labels: Value| {
            let job = json!({"kind": "Job", "metadata": {"labels": labels}, "spec": {"template": {"spec": {"containers": []}}}});
            workload(job).unwrap().spec.maximum_execution_time_seconds
        };
        assert_eq!(job(json!({(names::MAX_EXECUTION): "3600"})), Some(3_600));
        assert_eq!(job(json!({})), None);
    }

    #[test]
    fn invalid_pod_counts_are_named_in_the_error() {
        let refused = |manifest: Value| workload(manifest).unwrap_err();
        let template = json!({"spec": {"containers": []}});
        let job = |parallelism: Value| json!({"kind": "Job", "spec": {"parallelism": parallelism, "template": template}});
        let words = "pod set main of the Job has parallelism: -2; write a whole number, 0 or more";
        assert_eq!(refused(job(json!(-2))), words);
        assert!(refused(job(json!("4"))).contains("parallelism: \"4\""));
        let set = json!({"kind": "JobSet", "spec": {"replicatedJobs": [
            {"name": "work", "replicas": -1, "template": job(json!(1))},
        ]}});
        assert!(refused(set).starts_with("pod set work of the JobSet has replicas: -1"));
        let of_kueue = json!({"kind": "Workload", "metadata": {"name": "w"}, "spec": {"podSets": [
            {"name": "main", "count": -1, "template": template},
        ]}});
        assert_eq!(refused(of_kueue), "pod set main has a count of -1; write 0 or more");
    }

    #[test]
    fn missing_fields_are_named_in_the_error() {
        assert_eq!(
            workload(json!({"kind": "Job", "spec": {}})).unwrap_err(),
            "pod set main of the Job has no template"
        );
        assert!(workload(json!({"kind": "JobSet"})).unwrap_err().contains("spec.replicatedJobs"));
        assert!(
            workload(json!({"kind": "Workload", "spec": 1}))
                .unwrap_err()
                .starts_with("Workload cannot be read")
        );
    }

    #[test]
    fn a_standalone_request_is_planned_as_the_workload_that_setu_would_create() {
        use std::slice::from_ref;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/provisioning-requests/standalone.yaml");
        let example = std::fs::read_to_string(path).unwrap();
        let mut objects =
            serde_yaml::Deserializer::from_str(&example).map(|d| Value::deserialize(d).unwrap());
        let (template, request) = (objects.next().unwrap(), objects.next().unwrap());
        let planned = super::workload(request.clone(), from_ref(&template)).unwrap();
        assert_eq!((planned.spec.queue_name.as_str(), planned.pods()), ("gpus", 4));
        assert_eq!(planned.owner(), "ProvisioningRequest/batch");
        let missing = super::workload(request.clone(), &[]).unwrap_err();
        assert_eq!(
            missing,
            "the ProvisioningRequest names PodTemplate workers, which is in no file; give it with -f"
        );
        let mut foreign = request.clone();
        foreign["spec"]["provisioningClassName"] = json!("check-capacity.autoscaling.x-k8s.io");
        assert!(super::workload(foreign, from_ref(&template)).unwrap_err().contains("of class atomic.setu"));
        let mut unqueued = request;
        unqueued["metadata"]["labels"] = json!({});
        assert_eq!(super::workload(unqueued, &[template]).unwrap_err(), NO_QUEUE);
    }
}
