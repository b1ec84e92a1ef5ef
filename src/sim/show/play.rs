//! The play that `setu demo` shows when no scenario is named.

use super::Spectator;
use crate::names;
use crate::policy::PolicyFile;
use crate::sim::actors::{kueue, machines};
use crate::sim::api::kinds;
use crate::sim::cluster::{Cluster, Setu, Start};
use crate::sim::scenario;
use crate::sim::values::{list, set, text};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Namespace, and name of everything.
const ID: &str = "demo";
/// Time between two looks at the play.
const BEAT: Duration = Duration::from_millis(100);
/// How long the play may take.
const LIMIT: Duration = Duration::from_mins(10);
/// Spot first, on-demand where there is none.
const POLICY: &str = include_str!("policy.yaml");

/// Something that happens in the play.
struct Act {
    /// Seconds after the start.
    at: u64,
    /// What is announced.
    says: &'static str,
    /// What is done.
    does: Deed,
}

enum Deed {
    Submit { job: &'static str, pods: u32, runs: u64 },
    Weather(&'static str),
    Evict(&'static str),
    ChangeLeader,
}

/// The play.
const ACTS: [Act; 8] = [
    Act {
        at: 1,
        says: "a Job of four pods comes: the plain case",
        does: Deed::Submit { job: "steady", pods: 4, runs: 25 },
    },
    Act {
        at: 2,
        says: "the leader dies in the middle of it; another replica goes on from the journal",
        does: Deed::ChangeLeader,
    },
    Act {
        at: 4,
        says: "spot capacity runs out",
        does: Deed::Weather("[{\"capacityType\": \"spot\", \"capacity\": 5}]"),
    },
    Act {
        at: 5,
        says: "a Job of three pods comes: spot has too few nodes, the next tier has them",
        does: Deed::Submit { job: "hungry", pods: 3, runs: 20 },
    },
    Act { at: 14, says: "a Job of two pods comes", does: Deed::Submit { job: "evicted", pods: 2, runs: 20 } },
    Act {
        at: 24,
        says: "Kueue evicts it; its nodes go when its pods have stopped, and it comes back",
        does: Deed::Evict("evicted"),
    },
    Act {
        at: 34,
        says: "two Jobs of four pods come, and the cloud has six nodes",
        does: Deed::Weather("[{\"capacity\": 6}]"),
    },
    Act {
        at: 35,
        says: "one of them runs, the other waits with nothing held",
        does: Deed::Submit { job: "rival-a", pods: 4, runs: 12 },
    },
];

/// The other rival comes right after the first.
const RIVAL: Act = Act { at: 35, says: "", does: Deed::Submit { job: "rival-b", pods: 4, runs: 12 } };

/// A play that is being shown.
pub struct Play {
    cluster: Cluster,
    spectator: Spectator,
    leader: Option<Setu>,
    started: Instant,
}

impl Play {
    /// The policy the play is played under.
    pub fn policy() -> Result<PolicyFile, String> {
        serde_yaml::from_str(POLICY).map_err(|e| format!("the policy of the demo: {e}"))
    }

    /// The name under which Setu answers checks in the play.
    pub fn controller_name() -> String {
        scenario::controller_name_of(ID)
    }

    /// Sets the stage.
    pub fn new(mut cluster: Cluster, spectator: Spectator) -> Result<Self, String> {
        let admin = cluster.server.user("admin");
        for object in scenario::objects(ID, 100).map_err(|e| e.to_string())? {
            let kind = text(&object, "/kind").to_owned();
            let kind = kinds::ALL.iter().find(|k| k.kind == kind).ok_or_else(|| format!("no kind {kind}"))?;
            let object = if kind.kind == "NodePool" { with_spot(object) } else { object };
            admin.create(kind, object).map_err(|e| e.to_string())?;
        }
        let weather = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"}});
        admin.create(&kinds::CONFIG_MAP, weather).map_err(|e| e.to_string())?;
        let leader = Some(cluster.start_setu(&Start::default()));
        Ok(Self { cluster, spectator, leader, started: Instant::now() })
    }

    /// Plays it to its end. `see` is called at every beat.
    pub async fn play(&mut self, mut see: impl FnMut(&Spectator)) {
        let mut acts = ACTS.iter().chain([&RIVAL]).peekable();
        while self.started.elapsed() < LIMIT {
            while let Some(act) = acts.next_if(|a| Duration::from_secs(a.at) <= self.started.elapsed()) {
                if !act.says.is_empty() {
                    self.spectator.announce(self.cluster.clock.now(), format!("— {}", act.says));
                }
                self.act(&act.does);
            }
            see(&self.spectator);
            let gangs = self.spectator.gangs();
            let over = gangs.iter().all(|g| g.finished && g.nodes.is_empty());
            if acts.peek().is_none() && over {
                break;
            }
            tokio::time::sleep(BEAT).await;
        }
        see(&self.spectator);
    }

    fn act(&mut self, deed: &Deed) {
        let admin = self.cluster.server.user("admin");
        match deed {
            Deed::Submit { job, pods, runs } => {
                // The play's own objects are never refused.
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
            Deed::ChangeLeader => {
                self.leader = None;
                self.leader = Some(self.cluster.start_setu(&Start::default()));
            }
        }
    }
}

/// The NodePool with spot instances too.
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
