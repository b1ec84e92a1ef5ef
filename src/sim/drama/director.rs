//! The director: runs the scenes of a drama when they are due, and then waits for its end.

use super::coverage::Met;
use super::{Drama, DramaOutcome, GangRole, Scene, policy_text};
use crate::gang::{StateName, TraceSpan};
use crate::names;
use crate::policy::PolicyFile;
use crate::sim::cluster::{Setu, SimCluster, Start};
use crate::sim::invariants::InvariantChecker;
use crate::sim::moves::{Move, Players, Props, calm, weather};
use crate::sim::scenario;
use crate::telemetry::traces::Traces;
use jiff::{SignedDuration, Timestamp};
use opentelemetry_sdk::trace::Sampler;
use serde_json::{Value, json};
use setu_clock::Clock;
use setu_sim::actors::{kueue, machines};
use setu_sim::api::{Preconditions, kinds};
use setu_sim::chance::Chance;
use setu_sim::faults::{Rates, STALE_REPLICA, WriteFault};
use setu_sim::values::{annotation, is, name, text};
use setu_sim::wire::{Line, Wire};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::Instant;

/// Name of all objects in a drama.
const ID: &str = "drama";
/// Interval of the director's loop.
const BEAT: Duration = Duration::from_millis(250);
/// Interval of the director's loop once only the end is awaited.
const LATE_BEAT: Duration = Duration::from_secs(1);
/// How long the stale API server replica stays behind after a restart of Setu against it.
const STALE_FOR: Duration = Duration::from_secs(20);
/// How long it may take until everything has ended, once faults have.
const DRAMA_LIMIT: Duration = Duration::from_hours(3);

/// Runs a drama.
pub struct Director<'d> {
    drama: &'d Drama,
    cluster: SimCluster,
    checker: InvariantChecker,
    stage: Vec<Option<Setu>>,
    entrances: Vec<(Instant, usize)>,
    /// Paused replicas, by index.
    wakings: BTreeMap<usize, Waking>,
    thaw_at: Option<Instant>,
    beat: Duration,
    players: Players,
    chance: Chance,
    started: Instant,
    /// The wire of the first replica in its first life.
    first: Option<Arc<Wire>>,
    met: Met,
    /// The receiving end of all spans, which is never read.
    _unheard: Receiver<TraceSpan>,
}

/// When a paused replica resumes.
struct Waking {
    at: Instant,
    /// Since when it has been paused.
    since: Timestamp,
}

const PROPS: Props<'static> = Props { id: ID, check: ID };

impl<'d> Director<'d> {
    /// Plays a drama to its end.
    pub async fn direct(drama: &'d Drama, lines: bool) -> Result<DramaOutcome, String> {
        let origin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
        let clock = Clock::starting_at(origin);
        let policy = PolicyFile::parse(&policy_text(&drama.policy))
            .map_err(|problems| format!("the drama's policy: {problems:?}"))?;
        let mut cluster = SimCluster::start(drama.seed, &clock, &scenario::controller_name_of(ID), policy);
        let (traces, unheard) = Traces::channel(Sampler::AlwaysOn, 1);
        if drama.traced {
            cluster.traces = traces;
        }
        let checker = if lines { InvariantChecker::with_lines() } else { InvariantChecker::default() };
        checker.allow_creates(drama.creates());
        checker.allow(drama.allowed());
        cluster.server.observe(Box::new(checker.clone()));
        let met = Met::default();
        met.note_faults(&mut cluster, &checker);
        populate(&cluster)?;
        let mut director = Self {
            drama,
            cluster,
            checker,
            stage: drama.replicas.iter().map(|_| None).collect(),
            entrances: Vec::new(),
            wakings: BTreeMap::new(),
            thaw_at: None,
            beat: BEAT,
            players: Players::default(),
            chance: Chance::new(drama.seed, "director"),
            started: Instant::now(),
            first: None,
            met,
            _unheard: unheard,
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
        let mut gangs: Vec<(usize, &GangRole)> = self.drama.gangs.iter().enumerate().collect();
        gangs.sort_by_key(|(_, g)| g.enters);
        let mut gangs = gangs.into_iter().peekable();
        while Instant::now() < end || gangs.peek().is_some() {
            let elapsed = self.started.elapsed();
            while let Some((index, role)) = gangs.next_if(|(_, g)| Duration::from_secs(g.enters) <= elapsed) {
                self.submit(index, role);
            }
            self.players.remember(&self.cluster);
            while let Some((_, scene)) = scenes.next_if(|(at, _)| Duration::from_millis(*at) <= elapsed) {
                self.show(scene);
            }
            self.beat().await;
        }
    }

    /// One round: restarts dead replicas, resumes paused ones, and lets time pass.
    async fn beat(&mut self) {
        for fault in self.cluster.deaths() {
            let wait = self.chance.millis(1_000, 20_000);
            let dead = self.stage.iter().position(|s| s.as_ref().is_some_and(|s| s.wire.is_dead()));
            if let Some(replica) = dead {
                self.leave(replica);
                self.entrances.push((Instant::now() + wait, replica));
            }
            if fault == WriteFault::StaleRestart {
                self.thaw_at = Some(Instant::now() + wait + STALE_FOR);
            }
        }
        self.bury_fallen();
        let now = Instant::now();
        if self.thaw_at.is_some_and(|at| at <= now) {
            self.thaw_at = None;
            self.cluster.server.thaw(STALE_REPLICA);
        }
        let (due, later) = std::mem::take(&mut self.entrances).into_iter().partition(|(at, _)| *at <= now);
        self.entrances = later;
        let due: Vec<(Instant, usize)> = due;
        for (_, replica) in due {
            self.enter(replica, false);
        }
        self.wake(now);
        tokio::time::sleep(self.beat).await;
    }

    /// Resumes the replicas that are due by then.
    fn wake(&mut self, now: Instant) {
        for (replica, waking) in self.wakings.extract_if(.., |_, waking| waking.at <= now) {
            if let Some(Some(setu)) = self.stage.get(replica) {
                self.checker.woke(waking.since, self.cluster.clock.now());
                setu.wire.set_line(Line::Up);
            }
        }
    }

    /// A replica that panicked is a fault of Setu. A new one replaces it.
    fn bury_fallen(&mut self) {
        let fallen = |s: &Option<Setu>| s.as_ref().is_some_and(Setu::has_fallen);
        while let Some(replica) = self.stage.iter().position(fallen) {
            let name = self.stage.get(replica).and_then(Option::as_ref).map_or("", |s| &s.name).to_owned();
            self.checker.violated("alive", self.cluster.clock.now(), format!("{name} ended by itself"));
            self.leave(replica);
            self.enter(replica, false);
        }
    }

    fn enter(&mut self, replica: usize, first: bool) {
        let skew = self.drama.replicas.get(replica).copied().unwrap_or_default();
        let plan = self.drama.plan.filter(|_| first && replica == 0);
        let start = Start {
            rates: Some(self.drama.rates.clone()),
            plan,
            skew: SignedDuration::from_secs(skew),
            api_replica: if first { 0 } else { STALE_REPLICA },
            ..Start::default()
        };
        let setu = self.cluster.start_setu(&start);
        if replica == 0 {
            self.first.get_or_insert_with(|| Arc::clone(&setu.wire));
        }
        if let Some(place) = self.stage.get_mut(replica) {
            *place = Some(setu);
        }
    }

    fn leave(&mut self, replica: usize) {
        self.wakings.remove(&replica);
        if let Some(place) = self.stage.get_mut(replica) {
            *place = None;
        }
    }

    fn show(&mut self, scene: &Scene) {
        match scene {
            Scene::Move(what) => self.make(*what, None),
            Scene::MoveOn(gang, what) => self.make(*what, Some(&job_of(*gang))),
            Scene::Calm => calm(&self.cluster, &PROPS),
            Scene::Weather(rules) => {
                self.note("Weather");
                weather(&self.cluster.server.user("admin"), &PROPS, &json!(rules));
            }
            Scene::Policy(changes) => {
                self.note("Policy");
                let mut policy = self.drama.policy.clone();
                json_patch::merge(&mut policy, changes);
                self.cluster.change_policy(&policy_text(&policy));
            }
            Scene::Kill(replica, seconds) => {
                self.note("Kill");
                self.leave(*replica);
                self.entrances.push((Instant::now() + Duration::from_secs(*seconds), *replica));
            }
            Scene::Sleep(replica, seconds) => {
                self.note("Sleep");
                if let Some(Some(setu)) = self.stage.get(*replica) {
                    setu.wire.set_line(Line::Paused);
                    let at = Instant::now() + Duration::from_secs(*seconds);
                    let since = self.cluster.clock.now();
                    let waking = self.wakings.entry(*replica).or_insert(Waking { at, since });
                    waking.at = waking.at.min(at);
                }
            }
            Scene::Clock(replica, seconds) => {
                self.note("Clock");
                if let Some(Some(setu)) = self.stage.get(*replica) {
                    setu.context.clock.jump(SignedDuration::from_secs(*seconds));
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

    /// Makes a move, and records which gangs it met: the one that it is about, or all.
    fn make(&mut self, what: Move, job: Option<&str>) {
        let states = self.checker.states_by_workload();
        let meant = self.players.make(what, job, &self.cluster, &PROPS, &mut self.chance);
        let met: Vec<StateName> = match meant {
            Some(workload) => states.get(&workload).copied().into_iter().collect(),
            None => states.into_values().collect(),
        };
        self.met.note(&met, &format!("{what:?}"));
    }

    /// Records an event that all gangs meet.
    fn note(&self, what: &str) {
        self.met.note(&self.checker.states(), what);
    }

    fn submit(&self, index: usize, role: &GangRole) {
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "namespace": ID, "name": job_of(index), "labels": {kueue::QUEUE: "queue"},
            },
            "spec": {
                "parallelism": role.pods, "completions": role.pods, "suspend": true,
                "template": {
                    "metadata": {"annotations": {machines::RUN_FOR: format!("{}s", role.runs)}},
                    "spec": {"restartPolicy": "Never", "containers": [{
                        "name": "main", "image": "none",
                        "resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}},
                    }]},
                },
            },
        });
        // Cannot be refused: the namespace exists.
        let _ = self.cluster.server.user("tenant").create(&kinds::JOB, job);
    }

    /// Faults end, and every gang must end too.
    async fn second_part(&mut self) {
        self.beat = LATE_BEAT;
        self.checker.calm(self.cluster.clock.now());
        calm(&self.cluster, &PROPS);
        let asleep = self.wakings.values().map(|waking| waking.at).max();
        self.wake(asleep.unwrap_or_else(Instant::now));
        for replica in 0..self.stage.len() {
            match self.stage.get(replica) {
                Some(Some(setu)) if !setu.wire.is_dead() => setu.wire.set_rates(Rates::none()),
                _ => self.enter(replica, false),
            }
        }
        for setu in self.stage.iter().flatten() {
            setu.wire.set_rates(Rates::none());
        }
        self.entrances.clear();
        let end = Instant::now() + DRAMA_LIMIT;
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
                self.checker.violated("progress", self.cluster.clock.now(), what);
                break;
            }
            self.beat().await;
        }
        self.checker.nothing_is_left();
    }

    /// Workloads that are neither finished nor deactivated.
    fn unfinished(&self) -> Vec<String> {
        let all = self.cluster.server.user("admin").list(&kinds::WORKLOAD);
        let over = |w: &Value| is(w, "Finished") || w.pointer("/spec/active") == Some(&json!(false));
        let open = all.iter().filter(|w| !over(w));
        open.map(|w| format!("{} {}", name(w), annotation(w, &names::state_key(ID)))).collect()
    }

    fn clean_up(&self) {
        let user = self.cluster.server.user("admin");
        for job in user.list(&kinds::JOB) {
            let none = Preconditions::default();
            let _ = user.delete(&kinds::JOB, text(&job, "/metadata/namespace"), name(&job), none);
        }
    }

    fn is_empty(&self) -> bool {
        let user = self.cluster.server.user("admin");
        [&kinds::WORKLOAD, &kinds::NODE_CLAIM, &kinds::NODE].into_iter().all(|k| user.list(k).is_empty())
    }

    fn outcome(self) -> DramaOutcome {
        DramaOutcome {
            violations: self.checker.violations(),
            digest: self.checker.digest(),
            changes: self.checker.changes(),
            lines: self.checker.lines(),
            lives: self.checker.lives(),
            met: self.met.counts(),
            writes: self.first.as_ref().map_or(0, |wire| wire.written().len()),
            fired: self.first.as_ref().map_or(0, |wire| wire.fired()),
            wasted: self.checker.wasted(),
            created: self.checker.created(),
            ends: self.checker.ends(),
            steps: self.checker.steps(),
        }
    }
}

/// Creates the objects that every drama begins with.
fn populate(cluster: &SimCluster) -> Result<(), String> {
    let admin = cluster.server.user("admin");
    for object in scenario::objects(ID, 100).map_err(|e| e.to_string())? {
        let kind = text(&object, "/kind");
        let kind = kinds::ALL.iter().find(|k| k.kind == kind).ok_or_else(|| format!("no kind {kind}"))?;
        admin.create(kind, object).map_err(|e| format!("{kind:?}: {e}"))?;
    }
    let weather = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
        "data": {},
    });
    admin.create(&kinds::CONFIG_MAP, weather).map_err(|e| e.to_string())?;
    Ok(())
}

/// Job name of the gang with this index.
fn job_of(gang: usize) -> String {
    format!("gang-{gang}")
}
