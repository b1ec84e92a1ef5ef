//! What people, Kueue, the cloud and the network do to a cluster at any moment.

mod free;

use crate::names;
use crate::sim::actors::kueue;
use crate::sim::api::kinds;
use crate::sim::api::{Preconditions, User};
use crate::sim::chance::Chance;
use crate::sim::cluster::Cluster;
use crate::sim::values::{annotation, is, label, list, name, namespace, set, text, uid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// Something that somebody does.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Move {
    /// Kueue evicts a Workload, and may reserve for it again in the same second.
    Evict,
    /// Kueue takes the quota away without an eviction.
    LoseQuota,
    /// Kueue's scheduler puts back entries as they were a while ago.
    StaleEntries,
    /// The queue stops taking and keeping Workloads for a while.
    HoldQueue,
    /// The check is taken off the queue for a while.
    RemoveCheck,
    /// A tenant deletes a Job.
    DeleteJob,
    /// A tenant deletes a Job and makes one of the same name.
    RecreateJob,
    /// A tenant deletes a Workload under its Job.
    DeleteWorkload,
    /// A tenant erases a journal.
    EraseJournal,
    /// A tenant writes that everything is approved.
    ForgeApproved,
    /// A tenant writes a journal that takes everything back.
    ForgeRollback,
    /// A tenant puts an old journal back.
    ReplayJournal,
    /// A tenant gives a Workload the journal of another.
    CopyJournal,
    /// A tenant writes something that is no journal.
    GarbleJournal,
    /// A tenant fills the annotations of a Workload up.
    FillAnnotations,
    /// Somebody deletes a NodeClaim.
    DeleteClaim,
    /// Somebody makes a NodeClaim of the name that a gang's next one will have.
    SquatName,
    /// A node that nobody asked for stands free.
    FreeNode,
    /// A Node stops being ready for a while.
    FlapNode,
    /// The cloud runs short.
    Shortage,
    /// The cloud is slow.
    SlowCloud,
    /// The cloud refuses one slot.
    RefuseSlot,
    /// Nodes come up without their devices.
    HideDevices,
    /// The weather clears.
    FairWeather,
    /// The NodeClass is not ready for a while.
    BreakNodeClass,
    /// A replica of the API server falls behind.
    FreezeReplica,
    /// The API server forgets its history.
    Compact,
    /// Every watch is cut.
    CutWatches,
    /// The API server is away for a while.
    ApiServerDown,
}

impl Move {
    /// Every move.
    pub const ALL: [Self; 29] = [
        Self::Evict,
        Self::LoseQuota,
        Self::StaleEntries,
        Self::HoldQueue,
        Self::RemoveCheck,
        Self::DeleteJob,
        Self::RecreateJob,
        Self::DeleteWorkload,
        Self::EraseJournal,
        Self::ForgeApproved,
        Self::ForgeRollback,
        Self::ReplayJournal,
        Self::CopyJournal,
        Self::GarbleJournal,
        Self::FillAnnotations,
        Self::DeleteClaim,
        Self::SquatName,
        Self::FreeNode,
        Self::FlapNode,
        Self::Shortage,
        Self::SlowCloud,
        Self::RefuseSlot,
        Self::HideDevices,
        Self::FairWeather,
        Self::BreakNodeClass,
        Self::FreezeReplica,
        Self::Compact,
        Self::CutWatches,
        Self::ApiServerDown,
    ];

    /// Whether what the tenant does to the journal may make it leave the chart.
    pub const fn touches_journal(self) -> bool {
        matches!(
            self,
            Self::EraseJournal
                | Self::ForgeApproved
                | Self::ForgeRollback
                | Self::ReplayJournal
                | Self::CopyJournal
                | Self::GarbleJournal
        )
    }
}

/// The players of one run, and what they remember.
#[derive(Default)]
pub struct Players {
    /// Workloads as they were at each look, to be put back in parts.
    seen: Vec<Arc<Value>>,
}

/// Names of a run's objects.
pub struct Props<'p> {
    /// Namespace, and name of NodePool, queues and check.
    pub id: &'p str,
    /// The check.
    pub check: &'p str,
}

impl Players {
    /// Makes a move.
    pub fn make(&mut self, what: Move, cluster: &Cluster, props: &Props<'_>, chance: &mut Chance) {
        let user = cluster.server.user(who(what));
        let workloads = user.list(&kinds::WORKLOAD);
        let workload = chance.pick(&workloads).cloned();
        match (what, workload) {
            (Move::Evict, Some(w)) => {
                kueue::evict(&user, &w, ("Preempted", "preempted"), cluster.clock.now());
            }
            (Move::LoseQuota, Some(w)) => kueue::lose_quota(&user, &w, cluster.clock.now()),
            (Move::StaleEntries, Some(w)) => self.stale_entries(&user, &w),
            (Move::DeleteJob | Move::RecreateJob, Some(w)) => {
                delete_job(&user, &w, what == Move::RecreateJob);
            }
            (Move::DeleteWorkload, Some(w)) => {
                let _ = user.delete(&kinds::WORKLOAD, namespace(&w), name(&w), Preconditions::default());
            }
            (Move::FillAnnotations, Some(w)) => {
                annotate(&user, &w, "example.com/junk", &json!("x".repeat(250_000)));
            }
            (Move::SquatName, Some(w)) => free::squat(&user, &w, props),
            (forgery, Some(w)) if forgery.touches_journal() => {
                let journal = self.journal(forgery, &workloads, &w, props.check, chance);
                annotate(&user, &w, &names::journal_key(props.check), &journal);
            }
            (other, _) => elsewhere(other, &user, cluster, props, chance),
        }
    }

    /// Remembers what may be put back later.
    pub fn remember(&mut self, cluster: &Cluster) {
        self.seen.extend(cluster.server.user("tenant").list(&kinds::WORKLOAD));
    }

    fn stale_entries(&self, user: &User, workload: &Value) {
        let last = self.seen.iter().rev().find(|seen| uid(seen) == uid(workload));
        if let Some(last) = last.filter(|_| is(workload, "QuotaReserved")) {
            let status = json!({"status": {"admissionChecks": list(last, "/status/admissionChecks")}});
            let _ = user.merge_status(&kinds::WORKLOAD, namespace(workload), name(workload), &status);
        }
    }

    fn journal(
        &self,
        what: Move,
        all: &[Arc<Value>],
        workload: &Value,
        check: &str,
        chance: &mut Chance,
    ) -> Value {
        let key = names::journal_key(check);
        let own = annotation(workload, &key).to_owned();
        let with = |state: Value| {
            let mut journal: Value = serde_json::from_str(&own).unwrap_or_default();
            if let (Some(journal), Some(state)) = (journal.as_object_mut(), state.as_object()) {
                journal.extend(state.clone());
            }
            json!(journal.to_string())
        };
        match what {
            Move::ForgeApproved => with(json!({"state": "Approved", "slots": 0, "attempt": 1})),
            Move::ForgeRollback => {
                with(json!({"state": "RollingBack", "then": "Rejected", "attempt": 4_000_000_000_u32}))
            }
            Move::ReplayJournal => {
                let journals: Vec<&str> =
                    self.seen.iter().map(|w| annotation(w, &key)).filter(|j| !j.is_empty()).collect();
                chance.pick(&journals).map_or(Value::Null, |journal| json!(journal))
            }
            Move::CopyJournal => {
                let other = chance.pick(all).map_or("", |w| crate::sim::values::annotation(w, &key));
                json!(other)
            }
            Move::GarbleJournal => json!(format!("{{\"version\":1,\"state\":{}", "[".repeat(500))),
            _ => Value::Null,
        }
    }
}

fn who(what: Move) -> &'static str {
    match what {
        Move::Evict | Move::LoseQuota | Move::StaleEntries => "kueue",
        Move::FlapNode => "kubelet",
        _ if what.touches_journal() => "tenant",
        Move::DeleteJob | Move::RecreateJob | Move::DeleteWorkload | Move::FillAnnotations => "tenant",
        _ => "admin",
    }
}

fn annotate(user: &User, workload: &Value, key: &str, value: &Value) {
    let patch = json!({"metadata": {"annotations": {key: value}}});
    let _ = user.merge(&kinds::WORKLOAD, namespace(workload), name(workload), &patch);
}

fn delete_job(user: &User, workload: &Value, again: bool) {
    let owners = list(workload, "/metadata/ownerReferences");
    let Some(owner) = owners.iter().find(|o| text(o, "/kind") == "Job") else { return };
    let Some(job) = user.get(&kinds::JOB, namespace(workload), text(owner, "/name")) else { return };
    let _ = user.delete(&kinds::JOB, namespace(&job), name(&job), Preconditions::default());
    if again {
        let mut spec = job.get("spec").cloned().unwrap_or_default();
        set(&mut spec, &["suspend"], json!(true));
        if let Some(pods) = spec.pointer_mut("/template/spec").and_then(Value::as_object_mut) {
            pods.remove("nodeSelector");
            pods.remove("tolerations");
        }
        let twin = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "namespace": namespace(&job), "name": name(&job), "labels": {kueue::QUEUE: label(&job, kueue::QUEUE)},
            },
            "spec": spec,
        });
        let _ = user.create(&kinds::JOB, twin);
    }
}

fn elsewhere(what: Move, user: &User, cluster: &Cluster, props: &Props<'_>, chance: &mut Chance) {
    match what {
        Move::DeleteClaim => {
            if let Some(claim) = chance.pick(&user.list(&kinds::NODE_CLAIM)) {
                let _ = user.delete(&kinds::NODE_CLAIM, "", name(claim), Preconditions::default());
            }
        }
        Move::FlapNode => {
            if let Some(node) = chance.pick(&user.list(&kinds::NODE)) {
                set_ready(user, node, false, cluster);
            }
        }
        Move::Shortage => {
            let room = chance.below(4);
            weather(user, props, &json!([{"capacity": room}]));
        }
        Move::SlowCloud => {
            let launch = format!("{}s", chance.below(90));
            let registration = format!("{}s", chance.below(90));
            weather(user, props, &json!([{"launchDelay": launch, "registrationDelay": registration}]));
        }
        Move::RefuseSlot => {
            let error = json!({"reason": "Unauthorized", "message": "not allowed"});
            weather(user, props, &json!([{"slot": chance.below(3).to_string(), "createError": error}]));
        }
        Move::FreeNode => free::stand(user, props, cluster.clock.now()),
        Move::HideDevices => weather(user, props, &json!([{"missingResources": ["nvidia.com/gpu"]}])),
        Move::FairWeather => weather(user, props, &json!([])),
        Move::BreakNodeClass => set_class(user, props, false, cluster),
        Move::HoldQueue => set_queue(
            user,
            props,
            &json!({"stopPolicy": if chance.happens(500) { "Hold" } else { "HoldAndDrain" }}),
        ),
        Move::RemoveCheck => set_queue(user, props, &json!({"admissionChecksStrategy": null})),
        Move::FreezeReplica => cluster.server.freeze(1),
        Move::Compact => cluster.server.compact(),
        Move::CutWatches => cluster.server.cut_watches(None),
        Move::ApiServerDown => cluster.set_down(true),
        _ => {}
    }
}

fn weather(user: &User, props: &Props<'_>, rules: &Value) {
    let mut rules = rules.clone();
    for rule in rules.as_array_mut().into_iter().flatten() {
        set(rule, &["nodePool"], json!(props.id));
    }
    let patch = json!({"data": {props.id: json!({"rules": rules}).to_string()}});
    let _ = user.merge(&kinds::CONFIG_MAP, "kube-system", "weather", &patch);
}

fn set_ready(user: &User, node: &Value, ready: bool, cluster: &Cluster) {
    let status = if ready { "True" } else { "False" };
    let conditions =
        crate::sim::values::with_condition(node, ("Ready", status), ("Kubelet", ""), cluster.clock.now());
    let _ = user.merge_status(&kinds::NODE, "", name(node), &json!({"status": {"conditions": conditions}}));
}

fn set_class(user: &User, props: &Props<'_>, ready: bool, cluster: &Cluster) {
    if let Some(class) = user.get(&kinds::KWOK_NODE_CLASS, "", props.id) {
        let status = if ready { "True" } else { "False" };
        let conditions =
            crate::sim::values::with_condition(&class, ("Ready", status), ("Admin", ""), cluster.clock.now());
        let _ = user.merge_status(
            &kinds::KWOK_NODE_CLASS,
            "",
            props.id,
            &json!({"status": {"conditions": conditions}}),
        );
    }
}

fn set_queue(user: &User, props: &Props<'_>, spec: &Value) {
    let _ = user.merge(&kinds::CLUSTER_QUEUE, "", props.id, &json!({"spec": spec}));
}

/// Takes back every move that lasts, so that all can end well.
pub fn calm(cluster: &Cluster, props: &Props<'_>) {
    let user = cluster.server.user("admin");
    cluster.set_down(false);
    cluster.server.thaw(1);
    weather(&user, props, &json!([]));
    set_class(&user, props, true, cluster);
    free::clear(&user);
    let checks = json!({"admissionChecks": [{"name": props.check}]});
    set_queue(&user, props, &json!({"stopPolicy": "None", "admissionChecksStrategy": checks}));
    for node in user.list(&kinds::NODE) {
        if !is(&node, "Ready")
            && list(&node, "/status/conditions").iter().any(|c| text(c, "/reason") == "Kubelet")
        {
            set_ready(&user, &node, true, cluster);
        }
    }
    for workload in user.list(&kinds::WORKLOAD) {
        annotate(&user, &workload, "example.com/junk", &Value::Null);
    }
}
