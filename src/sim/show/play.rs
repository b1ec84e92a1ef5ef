//! The default play of `setu demo`.

use super::acts::{ACTS, Deed};
use super::{ShownGang, Spectator};
use crate::cluster::lease::Timing;
use crate::gang::StateName;
use crate::names;
use crate::policy::PolicyFile;
use crate::sim::cluster::{Election, Setu, SimCluster, Start};
use crate::sim::scenario;
use serde_json::{Value, json};
use setu_sim::actors::{kueue, machines};
use setu_sim::api::kinds;
use setu_sim::faults::WriteFault;
use setu_sim::values::{list, set, text};
use std::time::Duration;
use tokio::time::Instant;

/// Namespace, and name of all objects.
const ID: &str = "demo";
/// Interval of the play's loop.
const BEAT: Duration = Duration::from_millis(100);
/// Maximum duration of the play.
const LIMIT: Duration = Duration::from_mins(10);
/// Shorter than in a real cluster, where a slow leader need not be dead.
const ELECTION: Election = Election {
    timing: Timing {
        lease: Duration::from_secs(4),
        renew_deadline: Duration::from_secs(3),
        retry: Duration::from_secs(1),
    },
    shards: 1,
};
/// Spot first, on-demand as fallback.
const POLICY: &str = include_str!("policy.yaml");

/// A running play.
pub struct Play {
    cluster: SimCluster,
    spectator: Spectator,
    replicas: Vec<Setu>,
    started: Instant,
}

impl Play {
    /// The policy of the play.
    pub fn policy() -> Result<PolicyFile, String> {
        serde_yaml::from_str(POLICY).map_err(|e| format!("the policy of the demo: {e}"))
    }

    /// Creates the objects, and starts two replicas of Setu.
    pub fn new(mut cluster: SimCluster, spectator: Spectator) -> Result<Self, String> {
        let admin = cluster.server.user("admin");
        for mut object in scenario::objects(ID, 100).map_err(|e| e.to_string())? {
            let kind = text(&object, "/kind").to_owned();
            let kind = kinds::ALL.iter().find(|k| k.kind == kind).ok_or_else(|| format!("no kind {kind}"))?;
            match kind.kind {
                "NodePool" => object = with_spot(object),
                "AdmissionCheck" => {
                    set(&mut object, &["spec", "controllerName"], json!(names::CONTROLLER_NAME));
                }
                _ => {}
            }
            admin.create(kind, object).map_err(|e| e.to_string())?;
        }
        let weather = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"}});
        admin.create(&kinds::CONFIG_MAP, weather).map_err(|e| e.to_string())?;
        let start = Start { election: Some(ELECTION), ..Start::default() };
        let replicas = [(); 2].map(|()| cluster.start_setu(&start)).into();
        Ok(Self { cluster, spectator, replicas, started: Instant::now() })
    }

    /// Its cluster.
    pub fn cluster(&self) -> &SimCluster {
        &self.cluster
    }

    /// Plays it to its end. `see` is called in every round.
    pub async fn play(&mut self, mut see: impl FnMut(&Spectator)) {
        let mut acts = ACTS.iter().peekable();
        while self.started.elapsed() < LIMIT {
            while let Some(act) = acts.next_if(|a| Duration::from_secs(a.at) <= self.started.elapsed()) {
                if !act.says.is_empty() {
                    self.announce(format!("— {}", act.says));
                }
                self.act(&act.does);
            }
            self.bury();
            see(&self.spectator);
            if acts.peek().is_none() && self.is_over() {
                break;
            }
            tokio::time::sleep(BEAT).await;
        }
        see(&self.spectator);
    }

    /// Continues after the play's end, for users who work with its cluster.
    pub async fn go_on(&mut self, mut see: impl FnMut(&Spectator)) {
        loop {
            see(&self.spectator);
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Whether every Job of the play has finished, its nodes are gone, and its journal is in Released, which happens a
    /// little after the last node is gone. Kueue may not have created the Workload of a new Job yet.
    fn is_over(&self) -> bool {
        let gangs = self.spectator.gangs();
        let is_released = |g: &ShownGang| g.state.is_some_and(|(state, _)| state == StateName::Released);
        let is_over = |job: &str| {
            gangs.iter().any(|g| g.job == job && g.finished && g.claims.is_empty() && is_released(g))
        };
        ACTS.iter().all(|act| !matches!(act.does, Deed::Submit { job, .. } if !is_over(job)))
    }

    fn announce(&self, text: String) {
        self.spectator.announce(self.cluster.clock.now(), text);
    }

    /// Removes dead replicas. The other replica notices through the Lease.
    fn bury(&mut self) {
        if self.cluster.deaths().is_empty() {
            return;
        }
        let (dead, alive) =
            std::mem::take(&mut self.replicas).into_iter().partition(|s: &Setu| s.wire.is_dead());
        let dead: Vec<Setu> = dead;
        self.replicas = alive;
        for setu in &dead {
            self.announce(format!("— {} dies, and its Lease runs out", setu.name));
        }
    }

    fn act(&mut self, deed: &Deed) {
        let admin = self.cluster.server.user("admin");
        match deed {
            Deed::Submit { job, pods, runs } => {
                // The play's objects are never refused.
                let _ = self.cluster.server.user("tenant").create(&kinds::JOB, submitted(job, *pods, *runs));
            }
            Deed::Weather(rules) => {
                let rules: Value = serde_json::from_str(rules).unwrap_or_default();
                let data = json!({"data": {ID: json!({"rules": rules}).to_string()}});
                let _ = admin.merge(&kinds::CONFIG_MAP, "kube-system", "weather", &data);
            }
            Deed::Evict(job) => {
                let all = admin.list(&kinds::WORKLOAD);
                let own = |w: &&std::sync::Arc<Value>| {
                    list(w, "/metadata/ownerReferences").iter().any(|o| text(o, "/name") == *job)
                };
                if let Some(workload) = all.iter().find(own) {
                    let why = ("Preempted", "Preempted to make room");
                    kueue::evict(&self.cluster.server.user("kueue"), workload, why, self.cluster.clock.now());
                }
            }
            Deed::DoomLeader(claims) => {
                if let Some(leader) = self.replicas.iter().find(|s| s.context.shards.any_led()) {
                    leader.wire.doom(("POST", "/nodeclaims"), *claims, WriteFault::CrashAfter);
                }
            }
        }
    }
}

/// Adds spot instances to the NodePool.
fn with_spot(mut pool: Value) -> Value {
    let requirements = pool.pointer_mut("/spec/template/spec/requirements").and_then(Value::as_array_mut);
    for requirement in requirements.into_iter().flatten() {
        if text(requirement, "/key") == names::CAPACITY_TYPE {
            set(requirement, &["values"], json!(["spot", "on-demand"]));
        }
    }
    pool
}

fn submitted(job: &str, pods: u32, runs: u64) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"namespace": ID, "name": job, "labels": {kueue::QUEUE: "queue"}},
        "spec": {
            "parallelism": pods, "completions": pods, "suspend": true,
            "template": {
                "metadata": {"annotations": {machines::RUN_FOR: format!("{runs}s")}},
                "spec": {"restartPolicy": "Never", "containers": [{
                    "name": "main", "image": "none",
                    "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
                }]},
            },
        },
    })
}
