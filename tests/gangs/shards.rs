//! Several replicas share the gangs, in the embedded cluster and virtual time. All work at once, shards move when
//! replicas come and go, and no transition is made twice.

use crate::world;
use serde_json::{Value, json};
use setu::cluster::lease::{Timing, shard_of};
use setu::gang::{Journal, StateName};
use setu::policy::PolicyFile;
use setu::sim::cluster::{Election, Setu, SimCluster, Start};
use setu::sim::invariants::InvariantChecker;
use setu::sim::scenario;
use setu_clock::Clock;
use setu_sim::api::{User, kinds};
use setu_sim::faults::WriteFault;
use std::collections::BTreeMap;
use std::time::Duration;

const ID: &str = "shards";
const SHARDS: usize = 4;

/// The polling interval of the tests.
const STEP: Duration = Duration::from_millis(20);

struct Stage {
    /// The number of shards.
    shards: usize,
    cluster: SimCluster,
    admin: User,
    checker: InvariantChecker,
    replicas: BTreeMap<&'static str, Setu>,
}

impl Stage {
    fn new(shards: usize) -> Self {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let text = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy";
        let policy = PolicyFile::parse(text).unwrap();
        let cluster = SimCluster::start(7, &clock, &scenario::controller_name_of(ID), policy);
        let checker = InvariantChecker::default();
        cluster.server.observe(Box::new(checker.clone()));
        let admin = cluster.server.user("admin");
        for object in scenario::objects(ID, 1_000).unwrap() {
            let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
            admin.create(kind, object).unwrap();
        }
        let rules = json!({"rules": [{"registrationDelay": "20s"}]});
        let weather = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"namespace": "kube-system", "name": "weather"},
            "data": {ID: rules.to_string()},
        });
        admin.create(&kinds::CONFIG_MAP, weather).unwrap();
        Self { shards, cluster, admin, checker, replicas: BTreeMap::new() }
    }

    fn enter(&mut self, name: &'static str) {
        let election = Some(Election { timing: Timing::default(), shards: self.shards });
        let setu = self.cluster.start_setu(&Start { election, ..Start::default() });
        self.replicas.insert(name, setu);
    }

    fn submit(&self, job: &str) {
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "1"});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"namespace": ID, "name": job, "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
            "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {
                "metadata": {"annotations": {"e2e.setu/run-for": "30s"}},
                "spec": {"restartPolicy": "Never", "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": limits, "limits": limits}},
                ]},
            }},
        });
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    /// The holder of each shard, from the leases.
    fn holders(&self) -> Vec<String> {
        let holder = |shard: usize| {
            let lease = self.admin.get(&kinds::LEASE, "kube-system", &format!("setu-{shard}"));
            lease.and_then(|l| l["spec"]["holderIdentity"].as_str().map(str::to_owned)).unwrap_or_default()
        };
        (0..self.shards).map(holder).collect()
    }

    /// The number of shards that each replica leads, according to itself.
    fn led(&self) -> BTreeMap<&'static str, usize> {
        let led = |setu: &Setu| setu.context.shards.all().filter(|l| l.leads()).count();
        self.replicas.iter().map(|(name, setu)| (*name, led(setu))).collect()
    }

    async fn until(&self, what: &str, limit: u64, is: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_secs(limit), STEP, || is(self)).await;
        let seen = || (self.holders(), self.led(), self.states());
        assert!(came, "{what} not within {limit} s: {:#?}", seen());
    }

    async fn shared_as(&self, shares: &[usize]) {
        let fits = |stage: &Self| {
            let mut led: Vec<usize> = stage.led().into_values().filter(|n| *n > 0).collect();
            led.sort_unstable();
            led == shares
        };
        self.until(&format!("shares {shares:?}"), 60, fits).await;
    }

    /// Stops a replica, and waits until the other one leads everything. Returns how long that took.
    async fn hand_all_over(&self, from: &'static str, to: &'static str) -> Duration {
        let asked = tokio::time::Instant::now();
        self.replicas[from].stop();
        let all = |s: &Self| s.led() == BTreeMap::from([(from, 0), (to, s.shards)]);
        self.until("all shards of the one that stops are led", 30, all).await;
        asked.elapsed()
    }

    fn journals(&self) -> BTreeMap<String, Journal> {
        let journal = |workload: &Value| {
            let text =
                workload["metadata"]["annotations"][format!("gang.setu.kueue.x-k8s.io/{ID}")].as_str()?;
            let uid = workload["metadata"]["uid"].as_str()?;
            let journal = Journal::decode(text, uid, jiff::Timestamp::MIN, self.cluster.clock.now()).ok()?;
            Some((uid.to_owned(), journal))
        };
        self.admin.list(&kinds::WORKLOAD).iter().filter_map(|w| journal(w)).collect()
    }

    fn states(&self) -> Vec<StateName> {
        self.journals().values().map(|j| j.state.name()).collect()
    }

    fn all_are(&self, count: usize, state: StateName) -> bool {
        let states = self.states();
        states.len() == count && states.iter().all(|s| *s == state)
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_share_the_shards_and_take_over_from_a_dead_one_without_repeating_a_step() {
    let mut stage = Stage::new(SHARDS);
    stage.enter("a");
    stage.shared_as(&[SHARDS]).await;
    for name in ["b", "c"] {
        stage.enter(name);
    }
    stage.shared_as(&[1, 1, 2]).await;

    for i in 0..12 {
        stage.submit(&format!("early-{i}"));
    }
    let waits = |stage: &Stage| stage.all_are(12, StateName::WaitingReady);
    stage.until("every gang waits for its nodes", 15, waits).await;
    let holders = stage.holders();
    for (uid, journal) in stage.journals() {
        let by = &journal.history.last().unwrap().by;
        let shard = shard_of(&uid, SHARDS);
        assert_eq!(*by, holders[shard], "shard {shard} of {uid}");
    }
    let workers: std::collections::BTreeSet<_> =
        stage.journals().into_values().map(|j| j.history.last().unwrap().by.clone()).collect();
    assert_eq!(workers.len(), 3, "all replicas work at once");

    // One dies with gangs in progress, and more gangs arrive while its shards have no leader.
    stage.replicas.remove("b").unwrap().kill();
    for i in 0..12 {
        stage.submit(&format!("late-{i}"));
    }
    stage.shared_as(&[2, 2]).await;
    stage
        .until("every gang is ready", 90, |s| {
            let states = s.states();
            states.len() == 24
                && states.iter().all(|s| matches!(s, StateName::Approved | StateName::Released))
        })
        .await;

    // A new replica starts, and another one stops gracefully.
    stage.enter("d");
    stage.shared_as(&[1, 1, 2]).await;
    stage.replicas["a"].stop();
    stage
        .until("all shards of the one that ended are led", 5, |s| {
            let led = s.led();
            led["a"] == 0 && led.values().sum::<usize>() == SHARDS
        })
        .await;
    stage.until("every gang is over", 300, |s| s.all_are(24, StateName::Released)).await;
    stage.until("no node is left", 300, |s| s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;

    for journal in stage.journals().values() {
        let once = |state| journal.history.iter().filter(|s| s.to == state).count() == 1;
        assert!(once(StateName::Provisioning) && once(StateName::Approved), "{:#?}", journal.history);
        assert_eq!(journal.memory.attempt, 1);
    }
    assert_eq!(stage.checker.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_replica_is_replaced_within_a_second_however_long_its_reconciles_take() {
    let mut stage = Stage::new(SHARDS);
    for name in ["a", "b"] {
        stage.enter(name);
    }
    stage.shared_as(&[2, 2]).await;
    for setu in stage.replicas.values() {
        setu.wire.doom(("POST", "/nodeclaims"), 1, WriteFault::Delayed);
    }
    stage.submit("train");
    let creates = |setu: &Setu| setu.wire.written().iter().any(|w| w.path.ends_with("/nodeclaims"));
    stage.until("a claim is on its way", 10, |s| s.replicas.values().any(creates)).await;
    let (from, to) = if creates(&stage.replicas["a"]) { ("a", "b") } else { ("b", "a") };
    let took = stage.hand_all_over(from, to).await;
    assert!(took < Duration::from_secs(1), "{took:?}");

    stage.until("the gang is over", 300, |s| s.all_are(1, StateName::Released)).await;
    stage.until("no node is left", 300, |s| s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;
    assert_eq!(stage.checker.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_replica_is_replaced_within_a_second_however_many_shards_there_are() {
    let mut stage = Stage::new(16);
    for name in ["a", "b"] {
        stage.enter(name);
    }
    stage.shared_as(&[8, 8]).await;
    let took = stage.hand_all_over("a", "b").await;
    assert!(took < Duration::from_secs(1), "{took:?}");
}
