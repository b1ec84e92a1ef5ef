//! Assembles the embedded cluster: the API server, the actors, and replicas of Setu.

use crate::app::reload;
use crate::app::replica::{ElectionParts, Replica};
use crate::cluster::client::counted;
use crate::cluster::lease::{ElectionSettings, Timing};
use crate::cluster::lock;
use crate::controllers::Context;
use crate::controllers::board::BoardSnapshot;
use crate::controllers::context::{ContextParts, Options};
use crate::names;
use crate::policy::PolicyFile;
use crate::policy::read::FileError;
use crate::telemetry::Telemetry;
use crate::telemetry::traces::Traces;
use jiff::SignedDuration;
use kube::Client;
use setu_clock::Clock;
use setu_sim::actors::{self, drivers::Drivers, karpenter::Karpenter, kueue::Kueue, machines::Machines};
use setu_sim::api::{self, ApiServer, Caller};
use setu_sim::chance::Chance;
use setu_sim::denials::Denials;
use setu_sim::faults::{Rates, WriteFault};
use setu_sim::gated::Gated;
use setu_sim::transport::Link;
use setu_sim::wire::{FaultWatcher, Line, Wire};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Number of API server replicas.
const API_REPLICAS: usize = 2;
/// Number of changes that the API server keeps for watches.
const HISTORY: usize = 10_000;

/// The cluster.
pub struct SimCluster {
    /// The API server.
    pub server: ApiServer,
    /// The clock.
    pub clock: Clock,
    /// Permissions that are denied to Setu.
    pub denials: Denials,
    /// Receives the spans of replicas that are started from now on.
    pub traces: Traces,
    seed: u64,
    controller_name: String,
    policy: PolicyFile,
    lives: u64,
    down: Arc<AtomicBool>,
    kueue_stands: Arc<AtomicBool>,
    died: (UnboundedSender<WriteFault>, UnboundedReceiver<WriteFault>),
    on_fault: FaultWatcher,
    /// Replicas of Setu in start order.
    started: Arc<Mutex<Vec<Weak<Context>>>>,
}

/// One replica of Setu.
pub struct Setu {
    /// Its name, as in journals and leases.
    pub name: String,
    /// Its connection to the API server.
    pub wire: Arc<Wire>,
    /// Its context.
    pub context: Arc<Context>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    elections: JoinHandle<()>,
}

/// Options for starting a replica of Setu.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// Rates of random faults.
    pub rates: Option<Rates>,
    /// A fault for one write, counted from 0.
    pub plan: Option<(usize, WriteFault)>,
    /// Clock skew.
    pub skew: SignedDuration,
    /// The API server replica that it talks to.
    pub api_replica: usize,
    /// The controller name, if not the cluster's.
    pub controller_name: Option<String>,
    /// Options that are off by default.
    pub options: Options,
    /// Its leader election; without one, it acts regardless of other replicas.
    pub election: Option<Election>,
    /// Where its elections run, if not on the caller's runtime.
    pub elections_on: Option<Handle>,
    /// Whether it also records Events on the Job of a gang.
    pub events_on_job: bool,
}

/// A client over a connection, whose requests are counted.
fn client(link: Link) -> Client {
    Client::new(counted(link), "default")
}

/// Settings of leader election.
#[derive(Clone, Copy, Debug)]
pub struct Election {
    /// Timing of the leases.
    pub timing: Timing,
    /// Number of shards.
    pub shards: usize,
}

impl SimCluster {
    /// Starts a cluster with its actors. Must be called within a tokio runtime.
    pub fn start(seed: u64, clock: &Clock, controller_name: &str, policy: PolicyFile) -> Self {
        let options =
            api::ServerOptions { seed, clock: clock.clone(), replicas: API_REPLICAS, history: HISTORY };
        let server = ApiServer::new(options);
        let kueue_stands = actors::start(Kueue::default(), &server, clock, seed);
        actors::start(Karpenter::default(), &server, clock, seed);
        actors::start(Machines::default(), &server, clock, seed);
        actors::start(Drivers::default(), &server, clock, seed);
        Self {
            server,
            clock: clock.clone(),
            denials: Denials::default(),
            traces: Traces::default(),
            seed,
            controller_name: controller_name.to_owned(),
            policy,
            lives: 0,
            down: Arc::default(),
            kueue_stands,
            died: unbounded_channel(),
            on_fault: Arc::new(|_, _| {}),
            started: Arc::default(),
        }
    }

    fn link(&self, user: &str, api_replica: usize, clock: Clock, wire: Arc<Wire>) -> Link {
        let caller = Caller { user: Arc::from(user), replica: api_replica };
        let denials = if user == names::SETU { self.denials.clone() } else { Denials::default() };
        Link { server: self.server.clone(), caller, wire, clock, down: Arc::clone(&self.down), denials }
    }

    /// A client without faults.
    pub fn client(&self, user: &str) -> Client {
        let (died, _) = unbounded_channel();
        let wire = Wire::new(Chance::new(self.seed, user), died, Arc::new(|_, _| {}));
        client(self.link(user, 0, self.clock.clone(), wire))
    }

    /// Sets a callback for every fault that hits a replica that is started from now on.
    pub fn on_fault(&mut self, on_fault: FaultWatcher) {
        self.on_fault = on_fault;
    }

    /// Starts a replica of Setu.
    pub fn start_setu(&mut self, start: &Start) -> Setu {
        self.lives = self.lives.wrapping_add(1);
        let name = format!("setu-{}", self.lives);
        let wire = Wire::new(Chance::new(self.seed, &name), self.died.0.clone(), Arc::clone(&self.on_fault));
        if let Some(rates) = &start.rates {
            wire.set_rates(rates.clone());
        }
        if let Some((write, fault)) = start.plan {
            wire.plan(write, fault);
        }
        let connect =
            || client(self.link(names::SETU, start.api_replica, self.clock.clone(), Arc::clone(&wire)));
        let client = connect();
        let (runtime, lease_client) = match &start.elections_on {
            None => (Handle::current(), client.clone()),
            Some(runtime) => {
                let _entered = runtime.enter();
                (runtime.clone(), connect())
            }
        };
        let election = start.election.map(|election| ElectionParts {
            settings: self.election(&name, election),
            client: lease_client,
            runtime: runtime.clone(),
        });
        let parts = ContextParts {
            client,
            clock: self.clock.skewed(start.skew),
            controller_name: start.controller_name.clone().unwrap_or_else(|| self.controller_name.clone()),
            options: start.options,
            policy: self.policy.clone().into(),
            telemetry: Telemetry {
                instance: name.clone(),
                traces: self.traces.clone(),
                events_on_job: start.events_on_job,
            },
        };
        let mut replica = Replica::start(parts, election);
        let context = replica.context();
        lock(&self.started).push(Arc::downgrade(&context));
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let elections = runtime.spawn(Gated::new(Arc::clone(&wire), replica.elections(&stop)));
        let work = async move { replica.work(&stopped).await };
        let task = tokio::spawn(Gated::new(Arc::clone(&wire), work));
        Setu { name, wire, context, stop, task, elections }
    }

    fn election(&self, name: &str, election: Election) -> ElectionSettings {
        let chance = Mutex::new(Chance::new(self.seed, &format!("{name}-election")));
        let jitter = move || {
            let mut chance = lock(&chance);
            Duration::from_millis(chance.below(1_000)).as_secs_f64()
        };
        ElectionSettings {
            namespace: "kube-system".to_owned(),
            name: names::SETU.to_owned(),
            shards: election.shards,
            identity: name.to_owned(),
            timing: election.timing,
            jitter: Box::new(jitter),
        }
    }

    /// Returns a function that reads the board of the acting replica; `None` if no replica acts.
    pub fn board(&self) -> impl Fn() -> Option<BoardSnapshot> + Clone + Send + Sync + 'static {
        let started = Arc::clone(&self.started);
        move || {
            let started = lock(&started);
            let mut alive = started.iter().rev().filter_map(Weak::upgrade);
            alive.find(|context| context.shards.any_led()).map(|context| context.board_snapshot())
        }
    }

    /// Makes the API server unreachable for all clients but the actors, or reachable again.
    pub fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::Relaxed);
        self.server.cut_watches(None);
    }

    /// Pauses Kueue, or resumes it. It then handles all changes that it missed.
    pub fn stop_kueue(&self, stops: bool) {
        self.kueue_stands.store(stops, Ordering::Relaxed);
    }

    /// Changes the policy file of every replica, as a mounted file changes. Running replicas refuse an invalid
    /// file; replicas that are started from now on use the last valid one.
    pub fn change_policy(&mut self, text: &str) {
        if let Ok(file) = PolicyFile::parse(text) {
            self.policy = file;
        }
        let started = lock(&self.started);
        for context in started.iter().filter_map(Weak::upgrade) {
            let file = PolicyFile::parse(text)
                .map_err(|problems| FileError::Invalid { path: PathBuf::from("policy.yaml"), problems });
            tokio::spawn(async move { reload::take_over(&context, file).await });
        }
    }

    /// The planned or random faults that have killed a replica since the last call.
    pub fn deaths(&mut self) -> Vec<WriteFault> {
        std::iter::from_fn(|| self.died.1.try_recv().ok()).collect()
    }
}

impl Setu {
    /// Stops it at once, like a power failure.
    pub fn kill(&self) {
        self.wire.set_line(Line::Dead);
        self.task.abort();
        self.elections.abort();
        self.stop.cancel();
    }

    /// Whether it ended without being stopped: it panicked.
    pub fn has_fallen(&self) -> bool {
        self.task.is_finished() && !self.stop.is_cancelled() && !self.wire.is_dead()
    }

    /// Stops it gracefully, like an upgrade: work in progress is finished.
    pub fn stop(&self) {
        self.stop.cancel();
    }
}

impl Drop for Setu {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scenario;
    use serde_json::{Value, json};
    use setu_sim::api::kinds;
    use setu_sim::values;

    #[tokio::test(start_paused = true)]
    async fn only_a_replica_that_panicked_has_fallen() {
        let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let mut cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
        let mut fallen = cluster.start_setu(&Start::default());
        fallen.task = tokio::spawn(async { panic!("on purpose") });
        let [stopped, killed, alive] = [(); 3].map(|()| cluster.start_setu(&Start::default()));
        stopped.stop();
        killed.kill();
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(fallen.has_fallen() && stopped.task.is_finished() && killed.task.is_finished());
        assert!(![stopped, killed, alive].iter().any(Setu::has_fallen));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_blocking_reconcile_longer_than_the_renew_deadline_keeps_the_lease() {
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let mut cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
        let [lease, renew_deadline] = [3, 2].map(Duration::from_secs);
        let timing = Timing { lease, renew_deadline, retry: Duration::from_millis(250) };
        let computes = Arc::new(AtomicBool::new(false));
        let begun = Arc::clone(&computes);
        // The fault hits in the task that makes the request.
        cluster.on_fault(Arc::new(move |_, _| {
            begun.store(true, Ordering::Relaxed);
            std::thread::sleep(renew_deadline * 2);
        }));
        let election = Some(Election { timing, shards: 1 });
        let setu = cluster.start_setu(&Start { election, ..Start::default() });
        setu.wire.doom(("PATCH", "/admissionchecks/check/status"), 1, WriteFault::ServerError);
        let leads = || setu.context.shards.any_led();
        until(leads).await;
        let check = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "check"},
            "spec": {"controllerName": "setu"},
        });
        cluster.server.user("admin").create(&kinds::ADMISSION_CHECK, check).unwrap();
        until(|| computes.load(Ordering::Relaxed)).await;
        let end = tokio::time::Instant::now() + renew_deadline * 2;
        while tokio::time::Instant::now() < end {
            assert!(leads());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Captures the log.
    #[derive(Clone, Default)]
    struct LogLines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for LogLines {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// The lines logged during and after an API server outage of three minutes, while a gang waits for its nodes.
    async fn logged_of_an_outage(start: Start) -> Vec<String> {
        let lines = LogLines::default();
        let written = lines.clone();
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
        // With a single subscriber in the process, a callsite first hit on another thread would be disabled permanently.
        let _another = tracing::Dispatch::new(tracing_subscriber::registry());
        let _guard = tracing::subscriber::set_default(log.with_writer(move || written.clone()).finish());
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
        let policy =
            "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\ndefaults: {deadlines: {launch: 15m}}";
        let policy = PolicyFile::parse(policy).unwrap();
        let mut cluster = SimCluster::start(1, &clock, &scenario::controller_name_of("out"), policy);
        let admin = cluster.server.user("admin");
        for object in scenario::objects("out", 100).unwrap() {
            let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
            admin.create(kind, object).unwrap();
        }
        let weather = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
            "data": {"test": json!({"rules": [{"nodePool": "out", "launchDelay": "20m"}]}).to_string()},
        });
        admin.create(&kinds::CONFIG_MAP, weather).unwrap();
        let requests = json!({"cpu": "1", "nvidia.com/gpu": "1"});
        let job = json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"namespace": "out", "name": "gang", "labels": {"kueue.x-k8s.io/queue-name": "queue"}},
            "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}],
            }}},
        });
        let _setu = cluster.start_setu(&start);
        tokio::time::sleep(Duration::from_secs(10)).await;
        admin.create(&kinds::JOB, job).unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(admin.list(&kinds::NODE_CLAIM).len(), 2);
        lock(&lines.0).clear();
        cluster.set_down(true);
        tokio::time::sleep(Duration::from_mins(3)).await;
        cluster.set_down(false);
        tokio::time::sleep(Duration::from_secs(90)).await;
        let text = String::from_utf8(lock(&lines.0).clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_api_server_is_logged_in_two_lines() {
        let logs = logged_of_an_outage(Start::default()).await;
        assert!(logs.len() == 2, "{logs:#?}");
        assert!(logs[0].contains("WARN") && logs[0].contains("the API server does not answer"), "{logs:#?}");
        assert!(logs[1].contains("INFO") && logs[1].contains("answers again seconds=18"), "{logs:#?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_also_logs_that_it_lost_and_regained_the_lease_in_an_outage() {
        let election = Some(Election { timing: Timing::default(), shards: 1 });
        let logs = logged_of_an_outage(Start { election, ..Start::default() }).await;
        let expected = ["does not answer", "stopped leading", "answers again", "became leader"];
        assert!(logs.len() == expected.len(), "{logs:#?}");
        for words in expected {
            assert!(logs.iter().any(|line| line.contains(words)), "{words}: {logs:#?}");
        }
    }

    async fn until(holds: impl Fn() -> bool) {
        for _ in 0..3_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not within 30 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_replica_gets_the_answer_after_it_resumes_and_does_not_repeat_the_request() {
        let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let mut cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
        let check = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "check"},
            "spec": {"controllerName": "setu"},
        });
        cluster.server.user("admin").create(&kinds::ADMISSION_CHECK, check).unwrap();
        let setu = cluster.start_setu(&Start::default());
        while setu.wire.written().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        setu.wire.set_line(Line::Paused);
        tokio::time::sleep(Duration::from_mins(10)).await;
        setu.wire.set_line(Line::Up);
        tokio::time::sleep(Duration::from_secs(30)).await;
        let written = setu.wire.written();
        assert_eq!(written.len(), 1, "{written:?}");
    }

    fn claim_in_slot(name: &str, slot: &str) -> Value {
        json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": name, "labels": {(names::NODEPOOL): "idle"}, "annotations": {(names::SLOT): slot},
            },
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "idle"},
                "requirements": [{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}],
            },
        })
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_node_stays_while_another_claim_has_no_instance() {
        let clock = Clock::starting_at(jiff::Timestamp::UNIX_EPOCH);
        let cluster = SimCluster::start(1, &clock, "setu", PolicyFile::default());
        let user = cluster.server.user("admin");
        for object in scenario::objects("idle", 1).unwrap() {
            let kind = kinds::ALL.iter().find(|k| object["kind"] == k.kind).unwrap();
            user.create(kind, object).unwrap();
        }
        let rules = json!({"rules": [{"slot": "1", "launchDelay": "2m"}]}).to_string();
        let weather = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "kube-system", "name": "weather"},
            "data": {"idle": rules},
        });
        user.create(&kinds::CONFIG_MAP, weather).unwrap();
        let left = || -> Vec<String> {
            user.list(&kinds::NODE_CLAIM).iter().map(|c| values::name(c).to_owned()).collect()
        };
        user.create(&kinds::NODE_CLAIM, claim_in_slot("idle", "0")).unwrap();
        user.create(&kinds::NODE_CLAIM, claim_in_slot("late", "1")).unwrap();
        tokio::time::sleep(Duration::from_secs(110)).await;
        assert_eq!(left(), ["idle", "late"]);
        tokio::time::sleep(Duration::from_secs(40)).await;
        assert_eq!(left(), ["late"]);
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(left().is_empty());
    }
}
