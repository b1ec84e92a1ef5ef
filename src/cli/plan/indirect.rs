//! Pod sets of kinds whose pods are in other objects: an AppWrapper contains those objects, and a TrainJob names a training runtime.

use super::pod_sets::{framework, listed, number, text};
use crate::cli::frameworks::{Framework, WorkloadOf};
use crate::names;
use serde_json::{Value, json};

/// The kinds of components in which the AppWrapper controller finds the pods by itself.
const FOUND: [&str; 8] =
    ["Pod", "Job", "JobSet", "PyTorchJob", "RayCluster", "RayJob", "Deployment", "StatefulSet"];
/// The value of [`names::TRAIN_JOB_STEP`] for the training itself.
const TRAINER: &str = "trainer";
/// The name of the container that trains, and of the replicated job of MPI's workers.
const NODE: &str = "node";
/// The manager of the patch that Kueue adds to a TrainJob. It has no effect on the number of pods or on their requests.
const KUEUE_PATCH: &str = "kueue.x-k8s.io/manager";

/// The pod sets of an AppWrapper: those of its components, numbered.
pub fn of_components(wrapper: &Value) -> Result<Vec<Value>, String> {
    let mut sets = Vec::new();
    for (n, component) in list(wrapper, "/spec/components").iter().enumerate() {
        let template = component.get("template").unwrap_or(&Value::Null);
        let declared = list(component, "/podSets");
        let made = if declared.is_empty() {
            found(template)
        } else {
            declared.iter().map(|set| at(template, set)).collect()
        };
        sets.extend(made.map_err(|e| format!("component {n} of the AppWrapper: {e}"))?);
    }
    if sets.is_empty() {
        let kinds = FOUND.join(", ");
        return Err(format!("the AppWrapper has no pods; a component needs podSets, unless it is a {kinds}"));
    }
    let name = text(wrapper, "/metadata/name");
    for (n, set) in sets.iter_mut().enumerate() {
        put(set, "name", json!(format!("{name}-{n}")));
    }
    Ok(sets)
}

/// The pod sets that the AppWrapper controller finds in a component.
fn found(template: &Value) -> Result<Vec<Value>, String> {
    // It takes a RayJob for its cluster.
    let cluster =
        template.pointer("/spec/rayClusterSpec").map(|spec| json!({"kind": "RayCluster", "spec": spec}));
    let template = cluster.as_ref().unwrap_or(template);
    let Some(framework) = framework(template).filter(|f| FOUND.contains(&f.kind)) else {
        return Ok(Vec::new());
    };
    let mut sets = listed(framework, framework.pods.places(), template)?;
    // All replicas are in the AppWrapper's one Workload.
    if let WorkloadOf::Replica(field) = framework.workload {
        let replicas = template.pointer(field).and_then(Value::as_i64).unwrap_or(1);
        for set in &mut sets {
            let count = set.get("count").and_then(Value::as_i64).unwrap_or(1);
            put(set, "count", json!(count.saturating_mul(replicas)));
        }
    }
    Ok(sets)
}

/// The pod set that a component declares.
fn at(template: &Value, declared: &Value) -> Result<Value, String> {
    let path = text(declared, "/path");
    let pointer = path.strip_prefix("template").map(|rest| rest.replace(['.', '['], "/").replace(']', ""));
    let pods =
        pointer.and_then(|pointer| template.pointer(&pointer)).filter(|pods| pods.get("spec").is_some());
    let pods = pods.ok_or_else(|| format!("podSets names the path {path:?}, and there are no pods"))?;
    let count = number(declared, "replicas", &format!("the pod set at {path}"))?.unwrap_or(1);
    let metadata = pods.get("metadata").cloned().unwrap_or_else(|| json!({}));
    Ok(json!({"count": count, "template": {"metadata": metadata, "spec": pods.get("spec")}}))
}

/// The pod sets of a TrainJob: those of the `JobSet` that the trainer makes from its runtime.
pub fn of_runtime(job: &Value, runtimes: &[Value]) -> Result<Vec<Value>, String> {
    let patches = list(job, "/spec/runtimePatches").iter().filter(|p| text(p, "/manager") != KUEUE_PATCH);
    if patches.chain(list(job, "/spec/podTemplateOverrides")).next().is_some() {
        return Err("the TrainJob changes its runtime's pods, which a plan for a manifest does not read; submit it, and plan \
                    for its Workload with `setu plan trainjob/NAME`"
            .to_owned());
    }
    let runtime = runtime(job, runtimes)?;
    let mut set = runtime.pointer("/spec/template").cloned().unwrap_or_default();
    put(&mut set, "kind", json!("JobSet"));
    let policy = runtime.pointer("/spec/mlPolicy").filter(|policy| !policy.is_null());
    for replicated in
        set.pointer_mut("/spec/replicatedJobs").and_then(Value::as_array_mut).into_iter().flatten()
    {
        as_trained(replicated, policy, job)?;
    }
    let sets = Framework::of(None, "JobSet").map(|f| listed(f, f.pods.places(), &set));
    sets.unwrap_or_else(|| Ok(Vec::new()))
}

/// The runtime that a TrainJob names.
fn runtime<'r>(job: &Value, runtimes: &'r [Value]) -> Result<&'r Value, String> {
    let name = text(job, "/spec/runtimeRef/name");
    let kind = Some(text(job, "/spec/runtimeRef/kind")).filter(|kind| !kind.is_empty());
    let kind = kind.unwrap_or("ClusterTrainingRuntime");
    let found = runtimes.iter().find(|r| text(r, "/kind") == kind && text(r, "/metadata/name") == name);
    found.ok_or_else(|| format!("the TrainJob names {kind} {name}, which is in no file; give it with -f"))
}

/// Sets the number of pods of a replicated job and what they request, as the trainer does.
fn as_trained(replicated: &mut Value, policy: Option<&Value>, job: &Value) -> Result<(), String> {
    let name = text(replicated, "/name").to_owned();
    let whose = format!("replicated job {name} of the runtime");
    let labels = replicated.pointer("/template/metadata/labels");
    let ancestor = labels.and_then(|labels| labels.get(names::TRAIN_JOB_STEP)?.as_str()).map(str::to_owned);
    let trains = ancestor.as_deref() == Some(TRAINER);
    let trainer = job.pointer("/spec/trainer").unwrap_or(&Value::Null);
    let nodes = number(trainer, "numNodes", "the trainer of the TrainJob")?;
    let mpi = policy.and_then(|policy| policy.get("mpi")).filter(|mpi| !mpi.is_null());
    let launcher_is_node = mpi.and_then(|mpi| mpi.get("runLauncherAsNode")?.as_bool()).unwrap_or(false);
    let count = match (nodes, policy) {
        // One of MPI's nodes is the launcher.
        (Some(nodes), _) if mpi.is_some() && name == NODE => {
            if launcher_is_node {
                nodes.saturating_sub(1).max(1)
            } else {
                nodes
            }
        }
        (Some(nodes), _) if mpi.is_none() && trains => nodes,
        (_, Some(policy)) if trains => number(policy, "numNodes", "the runtime's mlPolicy")?.unwrap_or(1),
        _ => {
            let spec = replicated.pointer("/template/spec").unwrap_or(&Value::Null);
            number(spec, "parallelism", &whose)?.unwrap_or(1)
        }
    };
    if ancestor.is_some() {
        put(replicated, "replicas", json!(1));
    }
    if let Some(spec) = replicated.pointer_mut("/template/spec") {
        put(spec, "parallelism", json!(count));
        put(spec, "completions", json!(count));
    }
    if (trains || launcher_is_node && name == NODE)
        && let Some(asked) = trainer.get("resourcesPerNode").filter(|asked| !asked.is_null())
    {
        let containers = replicated.pointer_mut("/template/spec/template/spec/containers");
        let containers = containers.and_then(Value::as_array_mut).into_iter().flatten();
        containers.filter(|c| text(c, "/name") == NODE).for_each(|c| put(c, "resources", asked.clone()));
    }
    Ok(())
}

/// The list there; empty if there is none.
pub fn list<'v>(value: &'v Value, at: &str) -> &'v [Value] {
    value.pointer(at).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn put(object: &mut Value, field: &str, value: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::plan::manifest::workload;

    fn sets(manifest: Value, runtimes: &[Value]) -> Result<Vec<(String, i32)>, String> {
        Ok(workload(manifest, runtimes)?.spec.pod_sets.into_iter().map(|set| (set.name, set.count)).collect())
    }

    fn pods() -> Value {
        json!({"spec": {"containers": [{"name": "node"}, {"name": "other"}]}})
    }

    fn wrapper(components: &Value) -> Value {
        json!({"kind": "AppWrapper", "metadata": {"name": "aw"}, "spec": {"components": components}})
    }

    #[test]
    fn the_pod_sets_of_an_app_wrapper_are_those_of_its_components() {
        let job = json!({"template": {"kind": "Job", "spec": {"parallelism": 4, "completions": 3, "template": pods()}}});
        let service = json!({"template": {"apiVersion": "v1", "kind": "Service"}});
        let deployment =
            json!({"template": {"kind": "Deployment", "spec": {"replicas": 2, "template": pods()}}});
        let made = sets(wrapper(&json!([service, job, deployment])), &[]).unwrap();
        assert_eq!(made, [("aw-0".to_owned(), 3), ("aw-1".to_owned(), 2)]);
    }

    #[test]
    fn a_ray_job_in_an_app_wrapper_has_no_submitter() {
        let group = json!({"groupName": "workers", "replicas": 2, "template": pods()});
        let cluster = json!({"headGroupSpec": {"template": pods()}, "workerGroupSpecs": [group]});
        let job = json!({"template": {"kind": "RayJob", "spec": {"rayClusterSpec": cluster}}});
        let made = sets(wrapper(&json!([job])), &[]).unwrap();
        assert_eq!(made, [("aw-0".to_owned(), 1), ("aw-1".to_owned(), 2)]);
    }

    #[test]
    fn a_component_of_another_kind_declares_its_pod_sets() {
        let declared = json!({"replicas": 5, "path": "template.spec.groups[1].pods"});
        let component = |set: Value| json!({"template": {"kind": "Custom", "spec": {"groups": [{}, {"pods": pods()}]}}, "podSets": [set]});
        assert_eq!(sets(wrapper(&json!([component(declared)])), &[]).unwrap(), [("aw-0".to_owned(), 5)]);
        let wrong = component(json!({"path": "template.spec.groups[0].pods"}));
        assert_eq!(
            sets(wrapper(&json!([wrong])), &[]).unwrap_err(),
            "component 0 of the AppWrapper: podSets names the path \"template.spec.groups[0].pods\", and there are no pods"
        );
        let without = sets(wrapper(&json!([{"template": {"kind": "Custom"}}])), &[]).unwrap_err();
        assert!(without.starts_with("the AppWrapper has no pods; a component needs podSets"), "{without}");
    }

    /// A runtime with a job that fetches data and one that trains.
    fn runtime(policy: &Value) -> Value {
        let replicated = |name: &str, step: &str, parallelism: i64| {
            json!({"name": name, "replicas": 3, "template": {
                "metadata": {"labels": {(names::TRAIN_JOB_STEP): step}}, "spec": {"parallelism": parallelism, "template": pods()},
            }})
        };
        let jobs =
            [replicated("dataset-initializer", "dataset-initializer", 1), replicated("node", "trainer", 7)];
        json!({"kind": "ClusterTrainingRuntime", "metadata": {"name": "torch"}, "spec": {
            "mlPolicy": policy, "template": {"spec": {"replicatedJobs": jobs}},
        }})
    }

    fn train_job(trainer: &Value) -> Value {
        json!({"kind": "TrainJob", "metadata": {"name": "train"}, "spec": {
            "runtimeRef": {"name": "torch"}, "trainer": trainer,
        }})
    }

    #[test]
    fn a_train_job_has_the_nodes_of_its_trainer_or_else_of_its_runtime() {
        let counts = |policy: Value, trainer: Value| {
            let made = sets(train_job(&trainer), &[runtime(&policy)]).unwrap();
            made.into_iter().map(|(_, count)| count).collect::<Vec<_>>()
        };
        let torch = json!({"numNodes": 2, "torch": {}});
        assert_eq!(counts(torch.clone(), Value::Null), [1, 2]);
        assert_eq!(counts(torch, json!({"numNodes": 4})), [1, 4]);
        assert_eq!(counts(Value::Null, Value::Null), [1, 7]);
        let mpi = |as_node: bool| json!({"mpi": {"runLauncherAsNode": as_node}});
        assert_eq!(counts(mpi(true), json!({"numNodes": 4})), [1, 3]);
        assert_eq!(counts(mpi(false), json!({"numNodes": 4})), [1, 4]);
    }

    #[test]
    fn the_trainers_container_requests_what_the_train_job_gives_each_node() {
        let asked = json!({"limits": {"nvidia.com/gpu": "2"}});
        let job = train_job(&json!({"resourcesPerNode": asked}));
        let made = workload(job, &[runtime(&json!({"torch": {}}))]).unwrap().spec.pod_sets;
        let limits = |set: usize, container: usize| {
            made[set].template.spec.containers[container].resources.clone().and_then(|r| r.limits).is_some()
        };
        assert_eq!([limits(0, 0), limits(1, 0), limits(1, 1)], [false, true, false]);
    }

    #[test]
    fn a_train_job_without_its_runtime_or_with_patches_is_refused() {
        assert_eq!(
            sets(train_job(&Value::Null), &[]).unwrap_err(),
            "the TrainJob names ClusterTrainingRuntime torch, which is in no file; give it with -f"
        );
        let mut job = train_job(&Value::Null);
        job["spec"]["runtimePatches"] = json!([{"manager": KUEUE_PATCH}]);
        assert!(sets(job.clone(), &[runtime(&Value::Null)]).is_ok());
        job["spec"]["runtimePatches"] = json!([{"manager": "team.example.com"}]);
        assert!(sets(job, &[runtime(&Value::Null)]).unwrap_err().contains("setu plan trainjob/NAME"));
    }
}
