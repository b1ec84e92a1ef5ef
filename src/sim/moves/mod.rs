//! Moves: what users, Kueue, the cloud and the network may do to a cluster at any moment.

mod forged;
mod free;
mod lasting;
mod list;

pub use lasting::{calm, weather};
pub use list::Move;

use crate::names;
use crate::sim::cluster::SimCluster;
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_sim::actors::kueue;
use setu_sim::api::kinds;
use setu_sim::api::{Preconditions, User};
use setu_sim::chance::Chance;
use setu_sim::values::{is, label, list, name, namespace, owners, seconds, set, text, uid};
use std::sync::Arc;

/// The players of one run, with the Workloads that they have seen.
#[derive(Default)]
pub struct Players {
    /// Past states of Workloads, parts of which are written back later.
    seen: Vec<Arc<Value>>,
}

/// Names of a run's objects.
pub struct Props<'p> {
    /// Namespace, and name of NodePool, queues and check.
    pub id: &'p str,
    /// The check.
    pub check: &'p str,
}

/// The user who makes a move, and what it is made on.
struct Mover<'m> {
    user: User,
    cluster: &'m SimCluster,
    props: &'m Props<'m>,
}

impl Players {
    /// Makes a move: on the Workload of this Job, or else on a random one. Returns the UID of the Workload that the move
    /// was about; `None` if it was about all.
    pub fn make(
        &mut self,
        what: Move,
        job: Option<&str>,
        cluster: &SimCluster,
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
        let mover = Mover { user, cluster, props };
        if let Some(workload) = &workload
            && self.make_on(what, workload, &mover, chance)
        {
            return Some(uid(workload).to_owned());
        }
        lasting::begin(what, &mover, chance);
        None
    }

    /// Makes a move on this Workload. Returns false if the move is not about one.
    fn make_on(&self, what: Move, workload: &Value, mover: &Mover<'_>, chance: &mut Chance) -> bool {
        let Mover { user, props, .. } = mover;
        let now = mover.cluster.clock.now();
        match what {
            Move::Evict => kueue::evict(user, workload, ("Preempted", "preempted"), now),
            Move::LoseQuota => kueue::lose_quota(user, workload, now),
            Move::StaleEntries => self.stale_entries(user, workload),
            Move::DeleteJob | Move::RecreateJob => delete_job(user, workload, what == Move::RecreateJob),
            Move::DeleteWorkload => {
                let (namespace, name) = (namespace(workload), name(workload));
                let _ = user.delete(&kinds::WORKLOAD, namespace, name, Preconditions::default());
            }
            Move::FillAnnotations => {
                annotate(user, workload, "example.com/junk", &json!("x".repeat(250_000)));
            }
            Move::SuspendJob => suspend_job(user, workload),
            Move::ForeignPod => free::foreign_pod(user, workload, props),
            Move::SquatName => free::squat(user, workload, props),
            Move::OtherRejects => {
                lasting::second_check(user, props, now);
                reject(user, workload, now);
            }
            forgery if forgery.touches_journal() => {
                let all = forged::KnownJournals { seen: &self.seen, now: &user.list(&kinds::WORKLOAD) };
                let journal = forged::journal(forgery, &all, workload, props.check, chance);
                annotate(user, workload, &names::journal_key(props.check), &journal);
            }
            _ => return false,
        }
        true
    }

    /// Records Workloads that may be written back later.
    pub fn remember(&mut self, cluster: &SimCluster) {
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
        Move::DeleteJob
        | Move::RecreateJob
        | Move::SuspendJob
        | Move::DeleteWorkload
        | Move::FillAnnotations
        | Move::ForeignPod => "tenant",
        _ => "admin",
    }
}

/// Rejects a Workload, like the controller of another check.
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

/// The Job that a Workload was made for.
fn job_of(user: &User, workload: &Value) -> Option<Arc<Value>> {
    let owner = owners(workload, "Job").next()?;
    user.get(&kinds::JOB, namespace(workload), text(owner, "/name"))
}

fn suspend_job(user: &User, workload: &Value) {
    if let Some(job) = job_of(user, workload) {
        let _ = user.merge(&kinds::JOB, namespace(&job), name(&job), &json!({"spec": {"suspend": true}}));
    }
}

fn delete_job(user: &User, workload: &Value, again: bool) {
    let Some(job) = job_of(user, workload) else { return };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyFile;
    use crate::sim::scenario;
    use http::Method;
    use setu_clock::Clock;
    use std::time::Duration;

    const PROPS: Props<'static> = Props { id: "moved", check: "moved" };

    /// The visible effects of lasting moves, each with whether it is present.
    fn seen(cluster: &SimCluster) -> Vec<(&'static str, bool)> {
        let user = cluster.server.user("admin");
        let pool = user.get(&kinds::NODE_POOL, "", PROPS.id);
        let patch = (Method::PATCH, "/apis/karpenter.sh/v1/nodeclaims/c");
        vec![
            ("foreign pod", !user.list(&kinds::POD).is_empty()),
            ("claim of others", !user.list(&kinds::NODE_CLAIM).is_empty()),
            ("limits", pool.is_some_and(|pool| text(&pool, "/spec/limits/nodes") == "1")),
            ("no check", user.get(&kinds::ADMISSION_CHECK, "", PROPS.check).is_none()),
            ("refused patches", cluster.denials.refuse(&patch.0, patch.1, b"").is_some()),
        ]
    }

    #[tokio::test(start_paused = true)]
    async fn lasting_moves_are_undone_by_calm() {
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let cluster =
            SimCluster::start(1, &clock, &scenario::controller_name_of(PROPS.id), PolicyFile::default());
        let user = cluster.server.user("admin");
        for object in scenario::objects(PROPS.id, 100).unwrap() {
            let kind = kinds::ALL.iter().find(|kind| kind.kind == text(&object, "/kind")).unwrap();
            user.create(kind, object).unwrap();
        }
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"namespace": PROPS.id, "name": "job", "labels": {kueue::QUEUE: "queue"}},
            "spec": {"suspend": true, "template": {"spec": {"restartPolicy": "Never", "containers": []}}},
        });
        user.create(&kinds::JOB, job).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (mut players, mut chance) = (Players::default(), Chance::new(1, "test"));
        let lasting = [Move::ForeignPod, Move::TakeLimit, Move::DeleteCheck, Move::DenyPatches];
        assert_eq!(seen(&cluster).into_iter().find(|(_, there)| *there), None);
        for what in lasting {
            players.make(what, None, &cluster, &PROPS, &mut chance);
        }
        assert_eq!(seen(&cluster).into_iter().find(|(_, there)| !there), None);
        calm(&cluster, &PROPS);
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(seen(&cluster).into_iter().find(|(_, there)| *there), None);
    }
}
