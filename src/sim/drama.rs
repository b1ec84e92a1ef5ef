//! A drama: gangs, replicas of Setu, and everything that happens to them, all from one seed.
//!
//! Its first part has no mercy: faults strike, people and clouds interfere, replicas die, sleep and
//! wake with old memories. In its second part all that ends, and everything must come to its end.

use super::api::kinds;
use super::chance::Chance;
use super::cluster::{Cluster, Setu, Start};
use super::faults::{Fault, Line, Rates};
use super::invariants::{Violation, Watchman};
use super::moves::{Move, Players, Props, calm};
use super::scenario;
use super::values::{is, name, text};
use crate::clock::Clock;
use crate::gang::StateName;
use crate::policy::PolicyFile;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Name of everything in a drama.
const ID: &str = "drama";
/// Time between two looks of the director.
const BEAT: Duration = Duration::from_millis(250);
/// How long everything may take to end once faults have.
const PATIENCE: Duration = Duration::from_hours(1);
/// Longest life of a drama's first part.
const CHAOS: u64 = 600;

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
    /// All moves that last are taken back.
    Calm,
    /// The replica of this index dies; another takes its place after some seconds.
    Kill(usize, u64),
    /// The replica of this index stands still for some seconds.
    Sleep(usize, u64),
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
        Self { title: String::new(), seed, gangs, replicas, rates, plan: None, scenes, chaos, policy }
    }

    /// One gang of `pods` pods and nothing that goes wrong.
    pub fn quiet(pods: u32) -> Self {
        Self {
            gangs: vec![Role { pods, runs: 5, enters: 0 }],
            replicas: vec![0],
            rates: Rates::default(),
            scenes: Vec::new(),
            chaos: 0,
            ..Self::of(1)
        }
    }

    /// Plays it in virtual time. `lines` keeps every change as a line of text.
    pub fn play(&self, lines: bool) -> Result<Outcome, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|e| format!("no runtime: {e}"))?;
        runtime.block_on(Director::direct(self, lines))
    }
}

fn below(chance: &mut Chance, bound: u64) -> u32 {
    u32::try_from(chance.below(bound)).unwrap_or_default()
}

fn scenes(chance: &mut Chance, chaos: u64, replicas: u64) -> Vec<(u64, Scene)> {
    let favourites: Vec<Move> = (0..4).filter_map(|_| chance.pick(&Move::ALL).copied()).collect();
    let count = chance.below(25);
    let mut scenes = Vec::new();
    for _ in 0..count {
        let at = chance.below(chaos);
        let replica = usize::try_from(chance.below(replicas)).unwrap_or_default();
        let scene = match chance.below(10) {
            0 => Scene::Kill(replica, chance.below(30)),
            1 => Scene::Sleep(replica, chance.below(700)),
            2 => Scene::Upgrade(replica),
            3 => Scene::Calm,
            _ => Scene::Move(chance.pick(&favourites).copied().unwrap_or(Move::Evict)),
        };
        scenes.push((at, scene));
    }
    scenes
}

/// Who makes a drama happen.
struct Director<'d> {
    drama: &'d Drama,
    cluster: Cluster,
    watchman: Watchman,
    stage: Vec<Option<Setu>>,
    entrances: Vec<(Instant, usize)>,
    wakings: Vec<(Instant, usize)>,
    players: Players,
    chance: Chance,
    started: Instant,
    first_writes: Option<usize>,
    met: BTreeMap<(StateName, String), u64>,
}

const PROPS: Props<'static> = Props { id: ID, check: ID };

impl<'d> Director<'d> {
    async fn direct(drama: &'d Drama, lines: bool) -> Result<Outcome, String> {
        let origin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
        let clock = Clock::starting_at(origin);
        let policy = json!({
            "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "Policy", "defaults": drama.policy,
        });
        let policy =
            serde_json::from_value::<PolicyFile>(policy).map_err(|e| format!("the drama's policy: {e}"))?;
        let cluster = Cluster::start(drama.seed, &clock, &scenario::controller_name_of(ID), policy);
        let watchman = if lines { Watchman::with_lines() } else { Watchman::default() };
        cluster.server.observe(Box::new(watchman.clone()));
        let admin = cluster.server.user("admin");
        for object in scenario::objects(ID, 100).map_err(|e| e.to_string())? {
            let kind = text(&object, "/kind");
            let kind = kinds::ALL.iter().find(|k| k.kind == kind).ok_or_else(|| format!("no kind {kind}"))?;
            admin.create(kind, object.clone()).map_err(|e| format!("{kind:?}: {e}"))?;
        }
        let weather = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"}, "data": {}});
        admin.create(&kinds::CONFIG_MAP, weather).map_err(|e| e.to_string())?;
        let mut director = Self {
            drama,
            cluster,
            watchman,
            stage: drama.replicas.iter().map(|_| None).collect(),
            entrances: Vec::new(),
            wakings: Vec::new(),
            players: Players::default(),
            chance: Chance::new(drama.seed, "director"),
            started: Instant::now(),
            first_writes: None,
            met: BTreeMap::new(),
        };
        director.first_part().await;
        director.second_part().await;
        Ok(director.outcome())
    }

    async fn first_part(&mut self) {
        for replica in 0..self.stage.len() {
            self.enter(replica, true);
        }
        let end = self.started + Duration::from_millis(self.drama.chaos);
        let mut scenes = self.drama.scenes.iter().peekable();
        let mut gangs: Vec<(usize, &Role)> = self.drama.gangs.iter().enumerate().collect();
        gangs.sort_by_key(|(_, g)| g.enters);
        let mut gangs = gangs.into_iter().peekable();
        while Instant::now() < end || gangs.peek().is_some() {
            let elapsed = self.started.elapsed();
            while let Some((index, role)) = gangs.next_if(|(_, g)| Duration::from_secs(g.enters) <= elapsed) {
                self.submit(index, role);
            }
            self.players.remember(&self.cluster, &PROPS);
            while let Some((_, scene)) = scenes.next_if(|(at, _)| Duration::from_millis(*at) <= elapsed) {
                self.show(scene);
            }
            self.beat().await;
        }
    }

    /// Replicas that died come back, those that sleep wake, and time goes on.
    async fn beat(&mut self) {
        for fault in self.cluster.deaths() {
            self.note(&fault.to_string());
            let wait = self.chance.millis(1_000, 20_000);
            let dead = self.stage.iter().position(|s| s.as_ref().is_some_and(|s| s.wire.is_dead()));
            if let Some(replica) = dead {
                self.leave(replica);
                self.entrances.push((Instant::now() + wait, replica));
            }
            if fault == Fault::StaleRestart {
                self.cluster.server.freeze(1);
            }
        }
        let now = Instant::now();
        let (due, later) = std::mem::take(&mut self.entrances).into_iter().partition(|(at, _)| *at <= now);
        self.entrances = later;
        let due: Vec<(Instant, usize)> = due;
        for (_, replica) in due {
            self.enter(replica, false);
        }
        let (due, later) = std::mem::take(&mut self.wakings).into_iter().partition(|(at, _)| *at <= now);
        self.wakings = later;
        let due: Vec<(Instant, usize)> = due;
        for (_, replica) in due {
            if let Some(Some(setu)) = self.stage.get(replica) {
                setu.wire.set_line(Line::Up);
            }
        }
        tokio::time::sleep(BEAT).await;
    }

    fn enter(&mut self, replica: usize, first: bool) {
        let skew = self.drama.replicas.get(replica).copied().unwrap_or_default();
        let plan = self.drama.plan.filter(|_| first && replica == 0);
        let start = Start {
            rates: Some(self.drama.rates.clone()),
            plan,
            skew: SignedDuration::from_secs(skew),
            api_replica: usize::from(!first),
        };
        let setu = self.cluster.start_setu(&start);
        if let Some(place) = self.stage.get_mut(replica) {
            *place = Some(setu);
        }
    }

    fn leave(&mut self, replica: usize) {
        if let Some(setu) = self.stage.get_mut(replica).and_then(Option::take) {
            self.first_writes.get_or_insert(setu.wire.written().len());
        }
    }

    fn show(&mut self, scene: &Scene) {
        match scene {
            Scene::Move(what) => {
                self.note(&format!("{what:?}"));
                self.players.make(*what, &self.cluster, &PROPS, &mut self.chance);
            }
            Scene::Calm => calm(&self.cluster, &PROPS),
            Scene::Kill(replica, seconds) => {
                self.note("Kill");
                self.leave(*replica);
                self.entrances.push((Instant::now() + Duration::from_secs(*seconds), *replica));
            }
            Scene::Sleep(replica, seconds) => {
                self.note("Sleep");
                if let Some(Some(setu)) = self.stage.get(*replica) {
                    setu.wire.set_line(Line::Paused);
                    self.wakings.push((Instant::now() + Duration::from_secs(*seconds), *replica));
                }
            }
            Scene::Upgrade(replica) => {
                self.note("Upgrade");
                if let Some(Some(setu)) = self.stage.get(*replica) {
                    setu.stop();
                }
                self.leave(*replica);
                self.enter(*replica, false);
            }
        }
    }

    /// Notes in which states the gangs were when something happened.
    fn note(&mut self, what: &str) {
        for state in self.watchman.states() {
            *self.met.entry((state, what.to_owned())).or_default() += 1;
        }
    }

    fn submit(&self, index: usize, role: &Role) {
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "namespace": ID, "name": format!("gang-{index}"), "labels": {super::actors::kueue::QUEUE: "queue"},
            },
            "spec": {
                "parallelism": role.pods, "completions": role.pods, "suspend": true,
                "template": {
                    "metadata": {"annotations": {super::actors::machines::RUN_FOR: format!("{}s", role.runs)}},
                    "spec": {"restartPolicy": "Never", "containers": [{
                        "name": "main", "image": "none",
                        "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
                    }]},
                },
            },
        });
        // The namespace exists; nothing else can refuse it.
        let _ = self.cluster.server.user("tenant").create(&kinds::JOB, job);
    }

    /// Faults end; everything must.
    async fn second_part(&mut self) {
        calm(&self.cluster, &PROPS);
        for replica in 0..self.stage.len() {
            match self.stage.get(replica) {
                Some(Some(setu)) if !setu.wire.is_dead() => {
                    setu.wire.set_rates(Rates::none());
                    setu.wire.set_line(Line::Up);
                }
                _ => self.enter(replica, false),
            }
        }
        for setu in self.stage.iter().flatten() {
            setu.wire.set_rates(Rates::none());
        }
        self.entrances.clear();
        let end = Instant::now() + PATIENCE;
        let mut cleaned = false;
        loop {
            let unfinished = self.unfinished();
            if unfinished.is_empty() && !cleaned {
                cleaned = true;
                self.clean_up();
            } else if cleaned && self.is_empty() {
                break;
            }
            if Instant::now() > end {
                let left = self.cluster.server.user("admin").list(&kinds::NODE_CLAIM).len();
                let what = format!("unfinished: {unfinished:?}; {left} NodeClaims are left");
                self.watchman.violated("progress", self.cluster.clock.now(), what);
                break;
            }
            self.beat().await;
        }
        self.watchman.nothing_is_left();
    }

    /// Workloads that neither ran to their end nor were told that they never will.
    fn unfinished(&self) -> Vec<String> {
        let all = self.cluster.server.user("admin").list(&kinds::WORKLOAD);
        let over = |w: &Value| is(w, "Finished") || w.pointer("/spec/active") == Some(&json!(false));
        let open = all.iter().filter(|w| !over(w));
        open.map(|w| format!("{} {}", name(w), super::values::annotation(w, &crate::names::state_key(ID))))
            .collect()
    }

    fn clean_up(&self) {
        let user = self.cluster.server.user("admin");
        for job in user.list(&kinds::JOB) {
            let none = super::api::Preconditions::default();
            let _ = user.delete(&kinds::JOB, text(&job, "/metadata/namespace"), name(&job), none);
        }
    }

    fn is_empty(&self) -> bool {
        let user = self.cluster.server.user("admin");
        [&kinds::WORKLOAD, &kinds::NODE_CLAIM, &kinds::NODE].into_iter().all(|k| user.list(k).is_empty())
    }

    fn outcome(mut self) -> Outcome {
        let first = self.stage.first().and_then(Option::as_ref).map_or(0, |s| s.wire.written().len());
        Outcome {
            violations: self.watchman.violations(),
            digest: self.watchman.digest(),
            changes: self.watchman.changes(),
            lines: self.watchman.lines(),
            lives: self.watchman.lives(),
            met: std::mem::take(&mut self.met),
            writes: self.first_writes.unwrap_or(first),
            wasted: self.watchman.wasted(),
        }
    }
}

/// Drops what a drama does not need, as long as it still goes wrong.
pub fn shrink(drama: &Drama) -> Drama {
    let fails = |d: &Drama| d.play(false).is_ok_and(|o| !o.violations.is_empty());
    let mut best = drama.clone();
    let mut smaller = true;
    while smaller {
        smaller = false;
        for candidate in candidates(&best) {
            if fails(&candidate) {
                best = candidate;
                smaller = true;
                break;
            }
        }
    }
    best
}

fn candidates(drama: &Drama) -> Vec<Drama> {
    let mut all = Vec::new();
    let mut without = |change: &dyn Fn(&mut Drama)| {
        let mut candidate = drama.clone();
        change(&mut candidate);
        if candidate != *drama {
            all.push(candidate);
        }
    };
    without(&|d| d.rates = Rates::default());
    without(&|d| d.replicas = vec![0]);
    without(&|d| d.replicas.iter_mut().for_each(|skew| *skew = 0));
    for fault in drama.rates.writes.keys() {
        without(&|d| {
            d.rates.writes.remove(fault);
        });
    }
    for index in 0..drama.gangs.len() {
        without(&|d| {
            d.gangs.remove(index);
        });
    }
    for index in 0..drama.scenes.len() {
        without(&|d| {
            d.scenes.remove(index);
        });
    }
    all
}
