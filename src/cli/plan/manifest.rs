//! Builds the Workload that Kueue would create for a Job, a RayJob or any other kind that Kueue makes Workloads of.

use super::indirect;
use super::pod_sets::{framework, listed, text};
use super::spark;
use crate::api::Workload;
use crate::cli::frameworks::{Framework, PodsIn, WorkloadOf};
use crate::names;
use serde_json::{Value, json};

/// Whether this is a Workload, or an object that Kueue would make one of. Kueue leaves a Deployment or a StatefulSet alone that
/// names no queue.
pub fn is_workload(manifest: &Value) -> bool {
    let group_of = framework(manifest).map(|f| f.group);
    text(manifest, "/kind") == "Workload"
        || group_of.is_some_and(|group| group != "apps" || label(manifest, names::QUEUE).is_some())
}

/// Reads a Workload, or builds the one that Kueue would create. The runtimes are those that a TrainJob may name.
pub fn workload(manifest: Value, runtimes: &[Value]) -> Result<Workload, String> {
    let kind = text(&manifest, "/kind").to_owned();
    let read =
        |value: Value| serde_json::from_value(value).map_err(|e| format!("{kind} cannot be read: {e}"));
    if kind == "Workload" {
        return read(manifest).and_then(checked);
    }
    let framework = framework(&manifest)
        .ok_or_else(|| format!("Kueue makes no Workload of kind {kind}; see docs/frameworks.md"))?;
    let metadata = |key: &str| manifest.pointer(&format!("/metadata/{key}")).cloned();
    let seconds = label(&manifest, names::MAX_EXECUTION).and_then(|text| text.as_str()?.parse::<u32>().ok());
    let made = read(json!({
        "metadata": {
            "name": metadata("name").unwrap_or_else(|| json!("unnamed")),
            "namespace": metadata("namespace").unwrap_or_else(|| json!("default")),
            "annotations": copied(&manifest),
        },
        "spec": {
            "podSets": pod_sets(framework, &manifest, runtimes)?,
            "queueName": label(&manifest, names::QUEUE).cloned().unwrap_or_else(|| json!("")),
            "maximumExecutionTimeSeconds": seconds,
        },
    }))?;
    checked(made)
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

/// Sets the default namespace, and refuses negative pod counts.
fn checked(mut workload: Workload) -> Result<Workload, String> {
    workload.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    match workload.spec.pod_sets.iter().find(|set| set.count < 0) {
        None => Ok(workload),
        Some(set) => Err(format!("pod set {} has a count of {}; write 0 or more", set.name, set.count)),
    }
}

fn label<'v>(manifest: &'v Value, key: &str) -> Option<&'v Value> {
    manifest.pointer("/metadata/labels")?.get(key)
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
    use serde::Deserialize as _;

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
}
