//! The other components that make pods run: the job controller, the pods on the kubelets, and the garbage
//! collector.

use super::scheduler::schedule;
use super::{Actor, ObjectChange, Stage};
use crate::api::kinds;
use crate::api::{Preconditions, User};
use crate::values::{
    annotation, flag, has_ended, is, is_going, list, map, name, namespace, number, owners, text, uid,
    with_condition,
};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Annotation with the run time of a pod; without it, the pod runs forever.
pub const RUN_FOR: &str = "e2e.setu/run-for";
/// Start delay of a pod in milliseconds: minimum and maximum.
const START: (u64, u64) = (50, 400);

/// A task of the actor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineTask {
    /// A Job: namespace, name.
    Job(String, String),
    /// Pods that wait for a node.
    Schedule,
    /// A pod starts: namespace, name, UID.
    Start(String, String, String),
    /// A pod's run time is over.
    End(String, String, String),
    /// Objects whose owner is gone.
    Garbage,
    /// A Node is gone: its running pods are deleted.
    NodeGone(String),
    /// A Node has been gone for a while: its ended pods are deleted.
    Leftovers(String),
}

/// How long ended pods remain after their Node is gone.
const LEFTOVERS_KEPT: Duration = Duration::from_mins(1);

/// The actor.
#[derive(Default)]
pub struct Machines {
    queued: BTreeSet<MachineTask>,
}

impl Machines {
    fn push(&mut self, what: MachineTask, stage: &mut Stage<MachineTask>) {
        if self.queued.insert(what.clone()) {
            stage.soon(1, 50, what);
        }
    }
}

impl Actor for Machines {
    type Timer = MachineTask;
    const NAME: &'static str = "machines";

    fn seen(&mut self, touched: &ObjectChange, stage: &mut Stage<MachineTask>) {
        let object = &touched.object;
        if touched.gone
            && matches!(touched.kind.kind, "Job" | "Workload" | "NodePool" | "NodeClaim" | "Node" | "Pod")
        {
            self.push(MachineTask::Garbage, stage);
        }
        match touched.kind.kind {
            "Job" if !touched.gone => {
                self.push(MachineTask::Job(namespace(object).to_owned(), name(object).to_owned()), stage);
            }
            "Pod" => {
                for owner in owners(object, "Job") {
                    let job = text(owner, "/name").to_owned();
                    self.push(MachineTask::Job(namespace(object).to_owned(), job), stage);
                }
                if touched.gone || text(object, "/spec/nodeName").is_empty() {
                    self.push(MachineTask::Schedule, stage);
                }
            }
            "Node" if touched.gone => self.push(MachineTask::NodeGone(name(object).to_owned()), stage),
            "Node" => self.push(MachineTask::Schedule, stage),
            _ => {}
        }
    }

    fn due(&mut self, what: MachineTask, stage: &mut Stage<MachineTask>) {
        self.queued.remove(&what);
        let user = stage.server.user(Self::NAME);
        match what {
            MachineTask::Job(namespace, name) => sync_job(&user, &namespace, &name, stage.now()),
            MachineTask::Schedule => {
                for pod in schedule(&user, stage.now()) {
                    let key = (
                        text(&pod, "/metadata/namespace").to_owned(),
                        name(&pod).to_owned(),
                        uid(&pod).to_owned(),
                    );
                    stage.soon(START.0, START.1, MachineTask::Start(key.0, key.1, key.2));
                }
            }
            MachineTask::Start(namespace, name, id) => {
                if let Some(pod) = user.get(&kinds::POD, &namespace, &name).filter(|p| uid(p) == id) {
                    set_phase(&user, &pod, "Running", stage.now());
                    if let Ok(time) = humantime::parse_duration(annotation(&pod, RUN_FOR)) {
                        stage.after(time, MachineTask::End(namespace, name, id));
                    }
                }
            }
            MachineTask::End(namespace, name, id) => {
                if let Some(pod) = user.get(&kinds::POD, &namespace, &name).filter(|p| uid(p) == id) {
                    set_phase(&user, &pod, "Succeeded", stage.now());
                }
            }
            MachineTask::Garbage => stage.server.collect_garbage(),
            MachineTask::NodeGone(node) => {
                let on_it = |p: &&Arc<Value>| text(p, "/spec/nodeName") == node;
                for pod in user.list(&kinds::POD).iter().filter(on_it).filter(|p| !has_ended(p)) {
                    delete(&user, pod);
                }
                stage.after(LEFTOVERS_KEPT, MachineTask::Leftovers(node));
            }
            MachineTask::Leftovers(node) => {
                if user.get(&kinds::NODE, "", &node).is_none() {
                    for pod in user.list(&kinds::POD).iter().filter(|p| text(p, "/spec/nodeName") == node) {
                        delete(&user, pod);
                    }
                }
            }
        }
    }
}

fn delete(user: &User, pod: &Value) {
    // The pod may be gone already.
    let _ = user.delete(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), Preconditions::default());
}

fn set_phase(user: &User, pod: &Value, phase: &str, now: Timestamp) {
    let ready = if phase == "Running" { "True" } else { "False" };
    let conditions = with_condition(pod, ("Ready", ready), ("", ""), now);
    let status = json!({"status": {"phase": phase, "conditions": conditions}});
    let _ = user.merge_status(&kinds::POD, text(pod, "/metadata/namespace"), name(pod), &status);
}

/// The job controller: creates pods while the Job is not suspended, and completes it when all have succeeded.
fn sync_job(user: &User, namespace: &str, job: &str, now: Timestamp) {
    let Some(job) = user.get(&kinds::JOB, namespace, job).filter(|j| !is_going(j)) else { return };
    let mut pods = user.list_in(&kinds::POD, namespace);
    pods.retain(|p| list(p, "/metadata/ownerReferences").iter().any(|o| text(o, "/uid") == uid(&job)));
    let in_phase = |phase| pods.iter().filter(|p| text(p, "/status/phase") == phase).count();
    let succeeded = in_phase("Succeeded");
    let completions = usize::try_from(number(&job, "/spec/completions").max(1)).unwrap_or_default();
    let ended = is(&job, "Complete");
    let mut conditions = list(&job, "/status/conditions").to_vec();
    if flag(&job, "/spec/suspend") {
        pods.iter().filter(|p| text(p, "/status/phase") != "Succeeded").for_each(|p| delete(user, p));
    } else if succeeded >= completions && !ended {
        conditions = with_condition(&job, ("Complete", "True"), ("CompletionsReached", ""), now);
    } else if !ended {
        make_pods(user, &job, &pods);
    }
    let active = pods.len() - succeeded - in_phase("Failed");
    let status = json!({
        "active": active, "succeeded": succeeded, "ready": in_phase("Running"), "conditions": conditions,
    });
    let _ = user.merge_status(&kinds::JOB, namespace, name(&job), &json!({ "status": status }));
}

fn make_pods(user: &User, job: &Value, pods: &[Arc<Value>]) {
    let wanted = number(job, "/spec/parallelism").max(1);
    let mut template = job.pointer("/spec/template").cloned().unwrap_or_default();
    for index in 0..wanted {
        let suffix: String = uid(job).chars().take(5).collect();
        let pod = format!("{}-{index}-{suffix}", name(job));
        if pods.iter().any(|p| name(p) == pod) {
            continue;
        }
        let metadata = json!({
            "namespace": text(job, "/metadata/namespace"), "name": pod,
            "labels": map(&template, "/metadata/labels"), "annotations": map(&template, "/metadata/annotations"),
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": name(job), "uid": uid(job), "controller": true,
            }],
        });
        let spec = template.get_mut("spec").map(|s| s.clone()).unwrap_or_default();
        let _ = user.create(
            &kinds::POD,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}),
        );
    }
}
