//! What people, Kueue, the cloud and the network do to a cluster at any moment.

mod forged;
mod free;
mod lasting;

pub use lasting::{calm, weather};

use crate::names;
use crate::sim::actors::kueue;
use crate::sim::api::kinds;
use crate::sim::api::{Preconditions, User};
use crate::sim::chance::Chance;
use crate::sim::cluster::Cluster;
use crate::sim::values::{is, label, list, name, namespace, seconds, set, text, uid};
use jiff::Timestamp;
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
    /// A tenant writes a journal whose times lie far away and whose count is at its end.
    ForgeTimes,
    /// A tenant gives a Workload the journal of another.
    CopyJournal,
    /// A tenant writes something that is no journal.
    GarbleJournal,
    /// A tenant fills the annotations of a Workload up.
    FillAnnotations,
    /// Somebody deletes a NodeClaim.
    DeleteClaim,
    /// The finalizer of somebody else holds a NodeClaim for a while.
    HoldFinalizer,
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
    /// Setu may create no NodeClaim for a while.
    DenyCreates,
    /// A policy refuses the NodeClaim of one slot for a while.
    DenySlot,
    /// A webhook that is asked about the NodeClaim of one slot does not answer for a while.
    HangWebhook,
    /// Setu may delete no NodeClaim for a while.
    DenyDeletes,
    /// Setu may not write the annotations of Workloads for a while.
    DenyJournals,
    /// A webhook refuses Setu's writes to the status of Workloads for a while.
    DenyVerdicts,
    /// Setu may publish no Events for a while.
    DenyEvents,
    /// Somebody deletes the NodePool; it is made again after a while.
    DeletePool,
    /// Somebody changes the template of the NodePool.
    ChangePool,
    /// Kueue stands still for a while.
    StopKueue,
    /// The queue demands another check, which nobody answers, for a while.
    SecondCheck,
    /// The controller of another check rejects a Workload.
    OtherRejects,
    /// A newer Setu writes a journal that this one does not know, and comes back after a while.
    NewerJournal,
}

impl Move {
    /// Every move.
    pub const ALL: [Self; 44] = [
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
        Self::ForgeTimes,
        Self::CopyJournal,
        Self::GarbleJournal,
        Self::FillAnnotations,
        Self::DeleteClaim,
        Self::HoldFinalizer,
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
        Self::DenyCreates,
        Self::DenySlot,
        Self::HangWebhook,
        Self::DenyDeletes,
        Self::DenyJournals,
        Self::DenyVerdicts,
        Self::DenyEvents,
        Self::DeletePool,
        Self::ChangePool,
        Self::StopKueue,
        Self::SecondCheck,
        Self::OtherRejects,
        Self::NewerJournal,
    ];

    /// Whether what the tenant does to the journal may make it leave the chart.
    pub const fn touches_journal(self) -> bool {
        matches!(
            self,
            Self::EraseJournal
                | Self::ForgeApproved
                | Self::ForgeRollback
                | Self::ReplayJournal
                | Self::ForgeTimes
                | Self::CopyJournal
                | Self::GarbleJournal
                | Self::NewerJournal
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
    /// Makes a move: on the Workload of this Job, where it is about one, or on any. Returns the UID of the
    /// Workload that it was about; `None` if it was about all.
    pub fn make(
        &mut self,
        what: Move,
        job: Option<&str>,
        cluster: &Cluster,
        props: &Props<'_>,
        chance: &mut Chance,
    ) -> Option<String> {
        let user = cluster.server.user(who(what));
        let workloads = user.list(&kinds::WORKLOAD);
        let of_job = |w: &&Arc<Value>| {
            list(w, "/metadata/ownerReferences").iter().any(|o| Some(text(o, "/name")) == job)
        };
        let workload = match job {
            Some(_) => workloads.iter().find(of_job).cloned(),
            None => chance.pick(&workloads).cloned(),
        };
        let meant = workload.as_deref().map(|w| uid(w).to_owned());
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
                let all = forged::Known { seen: &self.seen, now: &workloads };
                let journal = forged::journal(forgery, &all, &w, props.check, chance);
                annotate(&user, &w, &names::journal_key(props.check), &journal);
            }
            (Move::OtherRejects, Some(w)) => {
                lasting::second_check(&user, props, cluster.clock.now());
                reject(&user, &w, cluster.clock.now());
            }
            (other, _) => {
                lasting::begin(other, &user, cluster, props, chance);
                return None;
            }
        }
        meant
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

/// Another check's controller says that a Workload can never run.
fn reject(user: &User, workload: &Value, now: Timestamp) {
    let mut entries = list(workload, "/status/admissionChecks").to_vec();
    entries.retain(|entry| text(entry, "/name") != lasting::OTHER);
    entries.push(json!({
        "name": lasting::OTHER, "state": "Rejected", "message": "never", "lastTransitionTime": seconds(now),
    }));
    let status = json!({"status": {"admissionChecks": entries}});
    let _ = user.merge_status(&kinds::WORKLOAD, namespace(workload), name(workload), &status);
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
