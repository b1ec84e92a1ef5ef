//! Jobs and pod groups: creates their Workloads, starts them on admission and stops them on eviction.

use super::{FINALIZER, QUEUE, conditions, is_suspended, set_status};
use crate::api::Preconditions;
use crate::api::User;
use crate::api::kinds;
use crate::values::{annotation, has_ended, is, is_going, label, list, map, name, number, owners, text, uid};
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_core::names;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the only pod set of a Job or a single pod.
const MAIN: &str = "main";
/// The label that names a pod's group.
pub const GROUP: &str = "kueue.x-k8s.io/pod-group-name";
/// Annotation on a group's Workload.
pub const IS_GROUP: &str = "kueue.x-k8s.io/is-group-workload";
/// Annotation with the total number of pods of a group.
const TOTAL: &str = "kueue.x-k8s.io/pod-group-total-count";
/// The gate that prevents scheduling of a pod before admission.
const GATE: &str = "kueue.x-k8s.io/admission";
/// Annotation that keeps the pod template as it was before the start.
const ORIGINAL: &str = "embedded.kueue.x-k8s.io/original-template";
/// Kueue's reason for the end of a Workload whose pods it cannot start.
pub const FAILED_TO_START: &str = "FailedToStart";
/// The label that names the priority class of a job.
const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";

/// The Workload that an object owns.
fn workload_of(user: &User, namespace: &str, owner: &str) -> Option<Arc<Value>> {
    user.list_in(&kinds::WORKLOAD, namespace)
        .into_iter()
        .find(|w| list(w, "/metadata/ownerReferences").iter().any(|o| text(o, "/uid") == owner))
}

/// Reconciles a Job.
pub fn sync_job(user: &User, namespace: &str, job: &str, now: Timestamp) {
    let Some(job) = user.get(&kinds::JOB, namespace, job).filter(|j| !label(j, QUEUE).is_empty()) else {
        return;
    };
    let ended = is(&job, "Complete") || is(&job, "Failed");
    let Some(workload) = workload_of(user, namespace, uid(&job)) else {
        if !ended && !is_going(&job) {
            make_workload(user, &job);
        }
        return;
    };
    if ended && !is(&workload, "Finished") {
        let reason = if is(&job, "Complete") { "Succeeded" } else { "Failed" };
        let set = [("Finished", "True", reason, "Job finished")];
        set_status(user, &workload, &json!({"conditions": conditions(&workload, &set, now)}));
    } else if may_start(&workload) && is_suspended(&job) && !ended {
        start_job(user, &job, &workload, now);
    } else if !is(&workload, "Admitted") && !is_suspended(&job) && !ended {
        suspend(user, &job);
    }
}

/// Whether the pods of a Workload may start.
fn may_start(workload: &Value) -> bool {
    is(workload, "Admitted") && !is(workload, "Evicted") && !is(workload, "Finished")
}

fn make_workload(user: &User, job: &Value) {
    let priority = user.get(&kinds::WORKLOAD_PRIORITY_CLASS, "", label(job, PRIORITY_CLASS));
    let template = job.pointer("/spec/template").cloned().unwrap_or_default();
    let count = number(job, "/spec/parallelism").max(1);
    let pod_set = json!({"name": MAIN, "count": count, "template": template});
    create(user, job, ("batch/v1", "Job", "job"), priority.map_or(0, |p| number(&p, "/value")), &[pod_set]);
}

fn create(
    user: &User,
    owner: &Value,
    (version, kind, prefix): (&str, &str, &str),
    priority: i64,
    pod_sets: &[Value],
) {
    let suffix: String = uid(owner).chars().take(5).collect();
    let mut base = format!("{prefix}-{}", name(owner));
    base.truncate(57);
    let passed: BTreeMap<String, String> = map(owner, "/metadata/annotations")
        .into_iter()
        .filter(|(key, _)| key.starts_with("provreq.kueue.x-k8s.io/"))
        .collect();
    let workload = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "namespace": text(owner, "/metadata/namespace"), "name": format!("{base}-{suffix}"), "finalizers": [FINALIZER],
            "annotations": passed,
            "ownerReferences": [{
                "apiVersion": version, "kind": kind, "name": name(owner), "uid": uid(owner), "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": {"queueName": label(owner, QUEUE), "active": true, "priority": priority, "podSets": pod_sets,
            "maximumExecutionTimeSeconds": label(owner, names::MAX_EXECUTION).parse::<u32>().ok(),
        },
    });
    // It may exist from an earlier reconcile.
    let _ = user.create(&kinds::WORKLOAD, workload);
}

/// A node selector and tolerations.
pub type Additions = (BTreeMap<String, String>, Vec<Value>);

/// Additions that Kueue makes to the pods of a pod set: node labels and tolerations from its flavors and its checks. An error if
/// they clash.
pub fn additions(user: &User, workload: &Value, pod_set: &str) -> Result<Additions, String> {
    let mut selector = BTreeMap::new();
    let mut tolerations = Vec::new();
    let assignments = list(workload, "/status/admission/podSetAssignments");
    for flavor in assignments
        .iter()
        .filter(|a| text(a, "/name") == pod_set)
        .flat_map(|a| map(a, "/flavors").into_values())
    {
        if let Some(flavor) = user.get(&kinds::RESOURCE_FLAVOR, "", &flavor) {
            selector.extend(map(&flavor, "/spec/nodeLabels"));
            tolerations.extend_from_slice(list(&flavor, "/spec/tolerations"));
        }
    }
    let checks = list(workload, "/status/admissionChecks").iter();
    for update in checks.flat_map(|c| list(c, "/podSetUpdates")).filter(|u| text(u, "/name") == pod_set) {
        merge(&mut selector, map(update, "/nodeSelector"))?;
        tolerations.extend_from_slice(list(update, "/tolerations"));
    }
    tolerations.dedup();
    Ok((selector, tolerations))
}

/// Adds entries to a node selector. An error, in Kueue's words, if one of them is there with another value.
fn merge(selector: &mut BTreeMap<String, String>, more: BTreeMap<String, String>) -> Result<(), String> {
    for (key, value) in more {
        match selector.get(&key).filter(|old| **old != value) {
            Some(old) => {
                return Err(format!(
                    "invalid admission check PodSetUpdate: conflict for nodeSelector: conflict for key={key}, value1={old}, \
                     value2={value}"
                ));
            }
            None => selector.insert(key, value),
        };
    }
    Ok(())
}

/// The node selector and tolerations of pods with this spec that start.
fn started(user: &User, workload: &Value, pod_set: &str, spec: &Value) -> Result<Additions, String> {
    let (selector, mut tolerations) = additions(user, workload, pod_set)?;
    let mut all = map(spec, "/nodeSelector");
    merge(&mut all, selector)?;
    tolerations.splice(0..0, list(spec, "/tolerations").iter().cloned());
    Ok((all, tolerations))
}

/// Ends a Workload whose pods cannot be started, now or ever.
fn fail_to_start(user: &User, workload: &Value, why: &str, now: Timestamp) {
    let set = [("Finished", "True", FAILED_TO_START, why)];
    set_status(user, workload, &json!({"conditions": conditions(workload, &set, now)}));
}

fn start_job(user: &User, job: &Value, workload: &Value, now: Timestamp) {
    let template = job.pointer("/spec/template").cloned().unwrap_or_default();
    let spec = template.get("spec").cloned().unwrap_or_default();
    let (all, tolerations) = match started(user, workload, MAIN, &spec) {
        Ok(started) => started,
        Err(why) => return fail_to_start(user, workload, &why, now),
    };
    // A tenant who suspends a started Job does not remove what was added at the start.
    let original = Some(annotation(job, ORIGINAL)).filter(|known| !known.is_empty());
    let original = original.map_or_else(|| template.to_string(), str::to_owned);
    let start = json!({
        "metadata": {"annotations": {ORIGINAL: original}},
        "spec": {"suspend": false, "template": {"spec": {"nodeSelector": all, "tolerations": tolerations}}},
    });
    let _ = user.merge(&kinds::JOB, text(job, "/metadata/namespace"), name(job), &start);
}

fn suspend(user: &User, job: &Value) {
    let original: Value = serde_json::from_str(annotation(job, ORIGINAL)).unwrap_or_default();
    let patch = json!({
        "metadata": {"annotations": {ORIGINAL: null}},
        "spec": {"suspend": true, "template": {"spec": {
            "nodeSelector": null, "tolerations": original.pointer("/spec/tolerations"),
        }}},
    });
    let _ = user.merge(&kinds::JOB, text(job, "/metadata/namespace"), name(job), &patch);
    if let Some(selector) = original.pointer("/spec/nodeSelector") {
        let back = json!({"spec": {"template": {"spec": {"nodeSelector": selector}}}});
        let _ = user.merge(&kinds::JOB, text(job, "/metadata/namespace"), name(job), &back);
    }
}

/// Pods of a group, sorted by name.
fn group(user: &User, namespace: &str, name: &str) -> Vec<Arc<Value>> {
    let mut pods = user.list_in(&kinds::POD, namespace);
    pods.retain(|p| label(p, GROUP) == name);
    pods
}

/// Reconciles a group of plain pods.
pub fn sync_group(user: &User, namespace: &str, group_name: &str, now: Timestamp) {
    let pods = group(user, namespace, group_name);
    for pod in
        pods.iter().filter(|p| annotation(p, ORIGINAL).is_empty() && text(p, "/spec/nodeName").is_empty())
    {
        gate(user, pod);
    }
    let total: usize = pods.first().map_or(0, |p| annotation(p, TOTAL).parse().unwrap_or_default());
    let workload = user.get(&kinds::WORKLOAD, namespace, group_name);
    let Some(workload) = workload else {
        if total > 0 && pods.len() == total && pods.iter().any(|p| text(p, "/status/phase") != "Succeeded") {
            make_group_workload(user, namespace, group_name, &pods);
        }
        return;
    };
    if !pods.is_empty() && pods.iter().all(|p| has_ended(p)) {
        if !is(&workload, "Finished") {
            let set = [("Finished", "True", "Succeeded", "Pods succeeded")];
            set_status(user, &workload, &json!({"conditions": conditions(&workload, &set, now)}));
        }
    } else if may_start(&workload) {
        for pod in pods.iter().filter(|p| !list(p, "/spec/schedulingGates").is_empty()) {
            ungate(user, pod, (&workload, &role(pod)), now);
        }
    }
    if pods.is_empty() {
        let _ = user.delete(&kinds::WORKLOAD, namespace, group_name, Preconditions::default());
    }
}

/// Reconciles a pod that is a job by itself.
pub fn sync_pod(user: &User, namespace: &str, name: &str, now: Timestamp) {
    let Some(pod) = user.get(&kinds::POD, namespace, name).filter(|p| !is_going(p)) else { return };
    let ended = has_ended(&pod);
    let Some(workload) = workload_of(user, namespace, uid(&pod)) else {
        if !ended && text(&pod, "/spec/nodeName").is_empty() {
            gate(user, &pod);
            let mut spec = pod.get("spec").cloned().unwrap_or_default();
            if let Some(spec) = spec.as_object_mut() {
                spec.remove("schedulingGates");
            }
            let pod_set = json!({"name": MAIN, "count": 1, "template": {"metadata": {}, "spec": spec}});
            create(user, &pod, ("v1", "Pod", "pod"), 0, &[pod_set]);
        }
        return;
    };
    if ended && !is(&workload, "Finished") {
        let set = [("Finished", "True", "Succeeded", "Pod succeeded")];
        set_status(user, &workload, &json!({"conditions": conditions(&workload, &set, now)}));
    } else if may_start(&workload) && !list(&pod, "/spec/schedulingGates").is_empty() {
        ungate(user, &pod, (&workload, MAIN), now);
    }
}

/// The pod set of a pod: identical pods of a group form one pod set.
fn role(pod: &Value) -> String {
    let shape =
        json!({"containers": pod.pointer("/spec/containers"), "selector": pod.pointer("/spec/nodeSelector")});
    setu_core::digest::digest(&[&shape.to_string()], 8)
}

fn make_group_workload(user: &User, namespace: &str, name: &str, pods: &[Arc<Value>]) {
    let mut roles = BTreeMap::<String, Vec<&Arc<Value>>>::new();
    for pod in pods {
        roles.entry(role(pod)).or_default().push(pod);
    }
    let pod_sets: Vec<Value> = roles
        .iter()
        .filter_map(|(role, pods)| {
            let mut spec = pods.first()?.get("spec")?.clone();
            spec.as_object_mut()?.remove("schedulingGates");
            Some(json!({"name": role, "count": pods.len(), "template": {"metadata": {}, "spec": spec}}))
        })
        .collect();
    let owners: Vec<Value> = pods
        .iter()
        .map(|p| json!({"apiVersion": "v1", "kind": "Pod", "name": crate::values::name(p), "uid": uid(p)}))
        .collect();
    let queue = pods.first().map_or("", |p| label(p, QUEUE)).to_owned();
    let workload = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "namespace": namespace, "name": name, "finalizers": [FINALIZER], "ownerReferences": owners,
            "annotations": {IS_GROUP: "true"},
        },
        "spec": {"queueName": queue, "active": true, "priority": 0, "podSets": pod_sets},
    });
    let _ = user.create(&kinds::WORKLOAD, workload);
}

/// Gates the scheduling of a pod.
fn gate(user: &User, pod: &Value) {
    let gated = json!({
        "metadata": {"annotations": {ORIGINAL: "gated"}}, "spec": {"schedulingGates": [{"name": GATE}]},
    });
    let _ = user.merge(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &gated);
}

/// Starts a pod of this pod set.
fn ungate(user: &User, pod: &Value, (workload, pod_set): (&Value, &str), now: Timestamp) {
    let spec = pod.get("spec").cloned().unwrap_or_default();
    let (all, tolerations) = match started(user, workload, pod_set, &spec) {
        Ok(started) => started,
        Err(why) => return fail_to_start(user, workload, &why, now),
    };
    let patch = json!({"spec": {"schedulingGates": null, "nodeSelector": all, "tolerations": tolerations}});
    let _ = user.merge(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &patch);
}

/// The pods of a Workload.
pub fn pods(user: &User, workload: &Value) -> Vec<Arc<Value>> {
    let namespace = text(workload, "/metadata/namespace");
    let owners: Vec<&str> =
        list(workload, "/metadata/ownerReferences").iter().map(|o| text(o, "/uid")).collect();
    let mut pods = user.list_in(&kinds::POD, namespace);
    pods.retain(|p| {
        owners.contains(&uid(p))
            || list(p, "/metadata/ownerReferences").iter().any(|o| owners.contains(&text(o, "/uid")))
    });
    pods
}

/// Stops the pods of a Workload: suspends its Job, and deletes plain pods that were ungated.
pub fn stop(user: &User, workload: &Value) {
    let namespace = text(workload, "/metadata/namespace");
    for owner in owners(workload, "Job") {
        if let Some(job) = user.get(&kinds::JOB, namespace, text(owner, "/name")).filter(|j| !is_suspended(j))
        {
            suspend(user, &job);
        }
    }
    for pod in pods(user, workload).iter().filter(|p| !annotation(p, ORIGINAL).is_empty()) {
        if !is_stopped(pod) {
            let _ = user.delete(&kinds::POD, namespace, name(pod), Preconditions::default());
        }
    }
}

/// Whether no pod of a Workload still runs.
pub fn has_stopped(user: &User, workload: &Value) -> bool {
    pods(user, workload).iter().all(|pod| is_stopped(pod))
}

/// Whether a pod is gated or has ended.
fn is_stopped(pod: &Value) -> bool {
    !list(pod, "/spec/schedulingGates").is_empty() || has_ended(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{ApiServer, ServerOptions};
    use setu_clock::Clock;

    #[test]
    fn a_job_suspended_by_its_tenant_is_restored_to_its_submitted_form() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
            let server = ApiServer::new(ServerOptions { seed: 1, clock, replicas: 1, history: 100 });
            let user = server.user("kueue");
            let job = json!({
                "apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "n", "name": "j"},
                "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": []}}},
            });
            let workload = json!({"status": {"admissionChecks": [{
                "podSetUpdates": [{"name": MAIN, "nodeSelector": {"gang": "a"}}],
            }]}});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}});
            user.create(&kinds::NAMESPACE, namespace).unwrap();
            let submitted = user.create(&kinds::JOB, job).unwrap();
            let now = || user.get(&kinds::JOB, "n", "j").unwrap();
            start_job(&user, &now(), &workload, Timestamp::UNIX_EPOCH);
            let by_tenant = json!({"spec": {"suspend": true}});
            user.merge(&kinds::JOB, "n", "j", &by_tenant).unwrap();
            start_job(&user, &now(), &workload, Timestamp::UNIX_EPOCH);
            assert_eq!(text(&now(), "/spec/template/spec/nodeSelector/gang"), "a");
            suspend(&user, &now());
            assert_eq!(text(&now(), "/spec/template/spec/nodeSelector/gang"), "");
            assert_eq!(submitted.pointer("/spec/suspend"), now().pointer("/spec/suspend"));
        });
    }
}
