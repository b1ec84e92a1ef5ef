//! A drama: gangs, replicas of Setu, and everything that happens to them, all from one seed.
//!
//! Its first part has no mercy: faults strike, people and clouds interfere, replicas die, sleep and
//! wake with old memories. In its second part all that ends, and everything must come to its end.

mod coverage;
mod director;
mod shrink;

pub use coverage::{coverage, gaps};
pub use shrink::shrink;

use super::chance::Chance;
use super::faults::{Fault, Rates};
use super::invariants::{Allowed, End, Violation};
use super::moves::Move;
use crate::gang::StateName;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Longest life of a drama's first part.
const CHAOS: u64 = 600;

/// How often one claim is created at most where replicas die, or do not hear what came of a write. An
/// attempt ends at its deadline, and between two creates lies a look that failed or a new life.
const CREATES: u32 = 12;

/// How late a request arrives at most where one may be delayed: as the network has it, and after the call
/// before it.
const DELAY: SignedDuration = SignedDuration::from_secs(45);

/// What a policy may be changed to; the last two are no policies.
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
pub struct Role {
    /// Pods, one GPU each.
    pub pods: u32,
    /// Seconds that each pod runs.
    pub runs: u64,
    /// Seconds after the start at which it is submitted.
    pub enters: u64,
}

/// Something that happens in a drama.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Scene {
    /// Somebody makes a move.
    Move(Move),
    /// Somebody makes a move on the gang of this index.
    MoveOn(usize, Move),
    /// All moves that last are taken back.
    Calm,
    /// The weather is replaced by these rules.
    Weather(Vec<Value>),
    /// The policy file is changed: what is stated here is merged into the drama's policy. It need not be valid.
    Policy(Value),
    /// The replica of this index dies; another takes its place after some seconds.
    Kill(usize, u64),
    /// The replica of this index stands still for some seconds.
    Sleep(usize, u64),
    /// The clock of the replica of this index jumps by so many seconds.
    Clock(usize, i64),
    /// The replica of this index is stopped in an orderly way; another takes its place at once.
    Upgrade(usize),
}

/// A whole drama.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drama {
    /// What it shows, for dramas that are kept.
    #[serde(default)]
    pub title: String,
    /// What chance is made from.
    pub seed: u64,
    /// The gangs.
    pub gangs: Vec<Role>,
    /// Seconds by which each replica's clock is wrong; as many replicas as there are entries.
    pub replicas: Vec<i64>,
    /// What goes wrong between the replicas and the API server.
    #[serde(default)]
    pub rates: Rates,
    /// What goes wrong with one write of the first replica.
    #[serde(default)]
    pub plan: Option<(usize, Fault)>,
    /// What happens, by milliseconds after the start.
    #[serde(default)]
    pub scenes: Vec<(u64, Scene)>,
    /// Milliseconds after which faults end.
    pub chaos: u64,
    /// Retries etc., as in a policy file's `defaults`.
    #[serde(default)]
    pub policy: Value,
    /// Whether spans are made. Nobody takes them off, so that nearly all find their way blocked.
    #[serde(default)]
    pub traced: bool,
}

/// What a drama came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was wrong.
    pub violations: Vec<Violation>,
    /// Digest of every change.
    pub digest: String,
    /// Changes committed.
    pub changes: u64,
    /// Every change as a line, if asked for.
    pub lines: Vec<String>,
    /// Gangs that lived, each new Workload counted.
    pub lives: u64,
    /// How often each fault or move met a gang in each state.
    pub met: BTreeMap<(StateName, String), u64>,
    /// Writes of the first replica's first life.
    pub writes: usize,
    /// Node-seconds of nodes on which no pod ever ran.
    pub wasted: f64,
    /// NodeClaims that Setu created.
    pub created: u64,
    /// What became of each Job, by its name.
    pub ends: BTreeMap<String, End>,
    /// How often a gang went from one state to another, and why, as committed.
    pub steps: BTreeMap<(StateName, StateName, String), u64>,
}

impl Drama {
    /// The drama of a seed.
    pub fn of(seed: u64) -> Self {
        let mut chance = Chance::new(seed, "drama");
        let gangs = (0..=chance.below(3))
            .map(|_| Role {
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

    /// One gang of `pods` pods and nothing that goes wrong.
    pub fn quiet(pods: u32) -> Self {
        Self {
            gangs: vec![Role { pods, runs: 5, enters: 0 }],
            replicas: vec![0],
            rates: Rates::default(),
            scenes: Vec::new(),
            chaos: 0,
            traced: false,
            ..Self::of(1)
        }
    }

    /// How often one claim may be created: more than once only where somebody may not know of the first.
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

    /// How many attempts an admission may take, and how long a request.
    fn allowed(&self) -> Allowed {
        let limit = self.policy.pointer("/retry/inCheck/limit").and_then(Value::as_u64).unwrap_or_default();
        let tiers = self.policy.pointer("/tiers").and_then(Value::as_array).map_or(1, |t| t.len().max(1));
        let attempts = usize::try_from(limit).ok().and_then(|limit| limit.checked_add(1)?.checked_mul(tiers));
        let delays = self.rates.writes.contains_key(&Fault::Delayed)
            || self.plan.is_some_and(|(_, fault)| fault == Fault::Delayed);
        let delay = if delays { DELAY } else { SignedDuration::ZERO };
        Allowed { attempts, delay }
    }

    /// Plays it in virtual time. `lines` keeps every change as a line of text.
    pub fn play(&self, lines: bool) -> Result<Outcome, String> {
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

/// A policy file with these defaults.
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
