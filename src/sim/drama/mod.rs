//! A drama: gangs, replicas of Setu, and everything that happens to them, generated from one seed.
//!
//! In its first part faults occur, users and clouds interfere, and replicas die, pause and resume with
//! stale state. In its second part all of that ends, and every gang must reach its end.

mod coverage;
mod director;
mod shrink;

pub use coverage::{coverage, gaps};
pub use shrink::shrink;

use super::invariants::{Allowed, End, Violation};
use super::moves::Move;
use crate::gang::StateName;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use setu_sim::chance::Chance;
use setu_sim::faults::{Rates, WriteFault};
use setu_sim::weather::WeatherRule;
use std::collections::BTreeMap;

/// Maximum duration of a drama's first part in seconds.
const CHAOS: u64 = 600;

/// Maximum creates of one claim if replicas die or miss the answer to a write. An attempt ends at its deadline,
/// and between two creates lies a failed read or a restart.
const CREATES: u32 = 12;

/// Maximum delay of a request if requests may be delayed: in the network, and behind the
/// preceding call.
const DELAY: SignedDuration = SignedDuration::from_secs(45);

/// Possible policy changes; the last two are invalid.
const POLICIES: [&str; 7] = [
    r#"{"custody": {"onNodeLost": "Reject"}}"#,
    r#"{"custody": {"onNodeLost": "Yield", "pinning": "Selector"}}"#,
    r#"{"custody": {"release": "Warm", "warmFor": "20s"}}"#,
    r#"{"deadlines": {"launch": "5s", "register": "10s", "initialize": "15s", "gang": "20s"}}"#,
    r#"{"retry": {"inCheck": {"limit": 0}}}"#,
    r#"{"deadlines": {"launch": "soon"}}"#,
    r#"{"nodes": 3}"#,
];

/// A gang in a drama.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct GangRole {
    /// Pods, one GPU each.
    pub pods: u32,
    /// Run time of each pod in seconds.
    pub runs: u64,
    /// Submission time in seconds after the start.
    pub enters: u64,
}

/// An event in a drama.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Scene {
    /// A move.
    Move(Move),
    /// A move on the gang with this index.
    MoveOn(usize, Move),
    /// All lasting moves are undone.
    Calm,
    /// These rules replace the weather.
    Weather(Vec<Value>),
    /// The policy file changes: this is merged into the drama's policy. The result need not be valid.
    Policy(Value),
    /// The replica with this index dies. A new one replaces it after some seconds.
    Kill(usize, u64),
    /// The replica with this index is paused for some seconds.
    Sleep(usize, u64),
    /// The clock of the replica with this index jumps by some seconds.
    Clock(usize, i64),
    /// The replica with this index is stopped gracefully. A new one replaces it at once.
    Upgrade(usize),
}

/// A complete drama.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drama {
    /// A sentence about the drama, for dramas that are stored.
    #[serde(default)]
    pub title: String,
    /// The seed of all random choices.
    pub seed: u64,
    /// The gangs.
    pub gangs: Vec<GangRole>,
    /// The clock skew of each replica in seconds; one entry per replica.
    pub replicas: Vec<i64>,
    /// Rates of faults between the replicas and the API server.
    #[serde(default)]
    pub rates: Rates,
    /// A fault for one write of the first replica.
    #[serde(default)]
    pub plan: Option<(usize, WriteFault)>,
    /// The scenes, each with its time in milliseconds after the start.
    #[serde(default)]
    pub scenes: Vec<(u64, Scene)>,
    /// The end of faults in milliseconds after the start.
    pub chaos: u64,
    /// The policy, as in a policy file's `defaults`.
    #[serde(default)]
    pub policy: Value,
    /// Whether spans are recorded. Nothing reads them, so the channel is full for nearly all of them.
    #[serde(default)]
    pub traced: bool,
}

/// The outcome of a drama.
#[derive(Clone, Debug)]
pub struct DramaOutcome {
    /// Violated invariants.
    pub violations: Vec<Violation>,
    /// Digest of all changes.
    pub digest: String,
    /// Changes committed.
    pub changes: u64,
    /// Every change as a line, if requested.
    pub lines: Vec<String>,
    /// Number of Workloads that have existed.
    pub lives: u64,
    /// How often each fault or move met a gang in each state.
    pub met: BTreeMap<(StateName, String), u64>,
    /// Writes of the first replica before its first end.
    pub writes: usize,
    /// How many faults that were planned for them have hit: 1 with a plan, unless that life was too short.
    pub fired: usize,
    /// Total lifetime in seconds of nodes that never ran a pod.
    pub wasted: f64,
    /// NodeClaims that Setu created.
    pub created: u64,
    /// The outcome of each Job, by name.
    pub ends: BTreeMap<String, End>,
    /// How often a gang went from one state to another, and why, as committed.
    pub steps: BTreeMap<(StateName, StateName, String), u64>,
}

impl Drama {
    /// Generates the drama of a seed.
    pub fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed, "drama");
        let gangs = (0..=chance.below(3))
            .map(|_| GangRole {
                pods: 1 + below(&mut chance, 3),
                runs: 1 + chance.below(20),
                enters: chance.below(30),
            })
            .collect();
        let mut replicas = vec![0];
        if chance.happens(400) {
            replicas.push(0);
        }
        if chance.happens(150) {
            for skew in &mut replicas {
                *skew = i64::from(below(&mut chance, 7_200)) - 3_600;
            }
        }
        let rates = if chance.happens(700) { Rates::swarm(&mut chance) } else { Rates::default() };
        let chaos = 30_000 + chance.below(CHAOS * 1_000);
        let mut scenes = scenes(&mut chance, chaos, replicas.len() as u64);
        scenes.sort_by_key(|(at, _)| *at);
        let limit = chance.below(4);
        let exhausted = if chance.happens(100) { "Reject" } else { "Yield" };
        let policy = json!({
            "deadlines": {"launch": "20s", "register": "40s", "initialize": "60s", "gang": "120s"},
            "retry": {
                "inCheck": {"limit": limit, "base": "1s", "max": "5s"},
                "yield": {"limit": 100, "base": "2s", "max": "10s"}, "onExhausted": exhausted,
            },
        });
        let traced = chance.happens(100);
        Self { title: String::new(), seed, gangs, replicas, rates, plan: None, scenes, chaos, policy, traced }
    }

    /// One gang of `pods` pods, without faults.
    pub fn quiet(pods: u32) -> Self {
        Self {
            gangs: vec![GangRole { pods, runs: 5, enters: 0 }],
            replicas: vec![0],
            rates: Rates::default(),
            scenes: Vec::new(),
            chaos: 0,
            traced: false,
            ..Self::of(1)
        }
    }

    /// How often one claim may be created: more than once only if a replica may not know of the first create.
    fn creates(&self) -> u32 {
        let stops = |scene: &Scene| matches!(scene, Scene::Kill(..) | Scene::Sleep(..) | Scene::Upgrade(_));
        let many = self.replicas.len() > 1
            || !self.rates.writes.is_empty()
            || self.scenes.iter().any(|(_, scene)| stops(scene));
        match (many, self.plan) {
            (true, _) => CREATES,
            (false, Some(_)) => 2,
            (false, None) => 1,
        }
    }

    /// The limits of attempts per admission and of request delays.
    fn allowed(&self) -> Allowed {
        let limit = self.policy.pointer("/retry/inCheck/limit").and_then(Value::as_u64).unwrap_or_default();
        let tiers = self.policy.pointer("/tiers").and_then(Value::as_array).map_or(1, |t| t.len().max(1));
        let attempts = usize::try_from(limit).ok().and_then(|limit| limit.checked_add(1)?.checked_mul(tiers));
        let delays = self.rates.writes.contains_key(&WriteFault::Delayed)
            || self.plan.is_some_and(|(_, fault)| fault == WriteFault::Delayed);
        let delay = if delays { DELAY } else { SignedDuration::ZERO };
        Allowed { attempts, delay, several_act: self.replicas.len() > 1 }
    }

    /// Refuses weather that the cloud would ignore.
    fn check_weather(&self) -> Result<(), String> {
        for (_, scene) in &self.scenes {
            let Scene::Weather(rules) = scene else { continue };
            for rule in rules {
                WeatherRule::deserialize(rule)
                    .map_err(|error| format!("rule {rule} of the weather: {error}"))?;
            }
        }
        Ok(())
    }

    /// Plays it in virtual time. `lines` keeps every change as a line of text.
    pub fn play(&self, lines: bool) -> Result<DramaOutcome, String> {
        self.check_weather()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|e| format!("no runtime: {e}"))?;
        runtime.block_on(director::Director::direct(self, lines))
    }
}

fn below(chance: &mut Chance, bound: u64) -> u32 {
    u32::try_from(chance.below(bound)).unwrap_or_default()
}

/// The text of a policy file with these defaults.
fn policy_text(defaults: &Value) -> String {
    let file = json!({"apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy", "defaults": defaults});
    file.to_string()
}

fn scenes(chance: &mut Chance, chaos: u64, replicas: u64) -> Vec<(u64, Scene)> {
    let favourites: Vec<Move> = (0..4).filter_map(|_| chance.pick(&Move::ALL).copied()).collect();
    let count = chance.below(25);
    let mut scenes = Vec::new();
    for _ in 0..count {
        let at = chance.below(chaos);
        let replica = usize::try_from(chance.below(replicas)).unwrap_or_default();
        let scene = match chance.below(12) {
            0 => Scene::Kill(replica, chance.below(30)),
            1 => Scene::Sleep(replica, chance.below(700)),
            2 => Scene::Upgrade(replica),
            3 => Scene::Calm,
            4 => chance
                .pick(&POLICIES)
                .map_or(Scene::Calm, |text| Scene::Policy(serde_json::from_str(text).unwrap_or_default())),
            5 => Scene::Clock(replica, i64::from(below(chance, 7_200)) - 3_600),
            _ => Scene::Move(chance.pick(&favourites).copied().unwrap_or(Move::Evict)),
        };
        scenes.push((at, scene));
    }
    scenes
}
