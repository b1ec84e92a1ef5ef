//! Several replicas on the real control plane: whatever happens to the one that leads, another takes
//! over, and each transition of each gang happens exactly once.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::gang::StateName;
use ::setu::sim::scenario::{self, Run, Scenario, Step, World, controller_name_of};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, CustomResourceExt as _};
use real::{Real, Shared};
use serde_json::{Value, json};
use setu::Setu;
use setu_e2e::{KUEUE_NAMESPACE, Options, Program, Stack, apply};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ID: &str = "leaders";

/// The lease's length and two seconds, and what a busy machine adds.
const AFTER_KILL: Duration = Duration::from_secs(17);

/// The replicas and their world.
struct Play {
    world: World<Real>,
    stack: Arc<Stack>,
    /// With the rights that users give Setu.
    kubeconfig: PathBuf,
    replicas: BTreeMap<&'static str, Setu>,
}

impl Play {
    async fn start() -> Self {
        let stack = Arc::new(Stack::start(Options::default()).await.unwrap());
        let client = stack.client().unwrap();
        let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd()).unwrap();
        setu_e2e::apply::all(&client, vec![crd]).await.unwrap();
        let kinds = Arc::new(apply::kinds(&client).await.unwrap());
        let scenario: Scenario = serde_json::from_value(json!({
            "title": "leaders",
            "weather": [{"registrationDelay": "1h"}],
        }))
        .unwrap();
        let run = Run { title: ID.into(), id: ID.into(), scenario };
        let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../manifests/rbac.yaml");
        setu_e2e::apply::path(&stack.client().unwrap(), &rights).await.unwrap();
        let kubeconfig = stack.kubeconfig_of(KUEUE_NAMESPACE, "setu").await.unwrap();
        let shared = Shared { kinds, kubeconfig: kubeconfig.clone().into() };
        let world = World::new(Real::new(&stack, &shared, &run).unwrap(), &run).await.unwrap();
        Self { world, stack, kubeconfig, replicas: BTreeMap::new() }
    }

    fn enter(&mut self, name: &'static str) {
        let folder = self.stack.folder().join("leaders").join(name);
        let policy = "{apiVersion: setu.kueue.x-k8s.io/v1alpha1, kind: Policy}";
        let mut replica = Setu::new(&self.kubeconfig, &controller_name_of(ID), policy, &folder)
            .unwrap()
            .with(&["--leader-elect"])
            .on(name);
        replica.start(None).unwrap();
        self.replicas.insert(name, replica);
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.world.client.clone(), KUEUE_NAMESPACE)
    }

    /// The name of the replica that holds the lease; empty if nobody does.
    async fn holder(&self) -> String {
        let lease = self.leases().get_opt("setu").await.unwrap_or_default();
        let holder = lease.and_then(|l| l.spec?.holder_identity).unwrap_or_default();
        holder.split('_').next().unwrap_or_default().to_owned()
    }

    /// Waits until a replica that `fits` holds the lease, and returns its name and how long it took.
    async fn until_led(&self, limit: Duration, fits: impl Fn(&str) -> bool) -> (&'static str, Duration) {
        let start = Instant::now();
        loop {
            let holder = self.holder().await;
            if let Some(name) = self.replicas.keys().find(|n| **n == holder && fits(n)) {
                return (name, start.elapsed());
            }
            assert!(start.elapsed() < limit, "after {limit:?} {holder:?} leads\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn logs(&self) -> String {
        let tails = self.replicas.iter().map(|(name, r)| format!("--- {name}\n{}\n", r.log_tail(15)));
        tails.collect()
    }

    async fn step(&mut self, step: Value) {
        let step: Step = serde_json::from_value(step).unwrap();
        scenario::take(&mut self.world, &step).await.unwrap_or_else(|e| panic!("{e:#}\n{}", self.logs()));
    }

    /// A gang whose nodes do not come yet.
    async fn submit(&mut self, job: &str) {
        self.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
        self.step(json!({"submit": {"name": job, "pods": 2, "gpus": 1, "runFor": "1s"}})).await;
    }

    async fn waits(&mut self, job: &str) {
        self.step(json!({"until": {"job": job, "state": "WaitingReady", "claims": 2}})).await;
    }

    async fn ends(&mut self, job: &str) {
        self.step(json!({"weather": []})).await;
        self.step(
            json!({"until": {"job": job, "finished": true, "state": "Released", "claims": 0, "within": 180}}),
        )
        .await;
    }

    /// What a replica says of itself in its metrics.
    fn says_it_leads(&self, name: &str) -> bool {
        let text = self.replicas[name].get("metrics", "/metrics").unwrap();
        text.lines().any(|l| l == "setu_leader 1")
    }
}

/// The transitions that the logs tell of, with the replicas that committed them.
fn committed(play: &Play) -> BTreeMap<(String, String), Vec<String>> {
    let mut all: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (name, replica) in &play.replicas {
        for line in replica.log().lines().filter(|l| l.contains("a gang moved on")) {
            let field = |key: &str| {
                let value = line.split(&format!("{key}=")).nth(1).unwrap_or_default();
                value.split(' ').next().unwrap_or_default().to_owned()
            };
            all.entry((field("workload"), field("seq"))).or_default().push((*name).to_owned());
        }
    }
    all
}

/// When a replica began to lead, and when it first moved a gang on after that.
fn first_decision(log: &str) -> Option<Duration> {
    let at = |line: &str| line.split(' ').next()?.parse::<jiff::Timestamp>().ok();
    let led =
        log.lines().filter(|l| l.contains(" leads ") || l.ends_with(" leads")).filter_map(at).next_back()?;
    let moved = log.lines().filter(|l| l.contains("a gang moved on")).filter_map(at).find(|t| *t >= led)?;
    Duration::try_from(moved.duration_since(led)).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_leader_another_goes_on_and_no_transition_happens_twice() {
    let mut play = Play::start().await;
    play.enter("a");
    play.enter("b");
    let (first, _) = play.until_led(Duration::from_secs(20), |_| true).await;

    // SIGTERM, with a gang under way.
    play.submit("terminated").await;
    play.waits("terminated").await;
    play.replicas[first].signal("TERM").unwrap();
    let (second, took) = play.until_led(Duration::from_secs(3), |n| n != first).await;
    println!("SIGTERM: another leads after {took:?}");
    play.ends("terminated").await;

    // SIGKILL, with three replicas, a gang under way, and one that comes while nobody leads.
    play.enter("c");
    play.enter(first);
    play.submit("killed").await;
    play.waits("killed").await;
    play.replicas.get_mut(second).unwrap().kill();
    let killed = Instant::now();
    play.submit("orphan").await;
    let (third, _) = play.until_led(AFTER_KILL + Duration::from_secs(3), |n| n != second).await;
    println!("SIGKILL: another leads after {:?}", killed.elapsed());
    play.waits("orphan").await;
    println!("first decision {:?} after leading", first_decision(&play.replicas[third].log()).unwrap());
    play.ends("killed").await;
    play.ends("orphan").await;

    // SIGSTOP until another leads, then SIGCONT: two believe in themselves for a moment.
    play.enter(second);
    play.submit("stopped").await;
    play.waits("stopped").await;
    play.replicas[third].signal("STOP").unwrap();
    let (fourth, took) = play.until_led(AFTER_KILL + Duration::from_secs(3), |n| n != third).await;
    println!("SIGSTOP: another leads after {took:?}");
    play.replicas[third].signal("CONT").unwrap();
    play.ends("stopped").await;
    assert_eq!(play.holder().await, fourth);
    assert!(play.says_it_leads(fourth) && !play.says_it_leads(third));

    // The API server goes away for longer than a leader may go on without it.
    play.submit("outage").await;
    play.waits("outage").await;
    play.stack.stop_program(Program::ApiServer).await.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!play.says_it_leads(fourth));
    play.stack.start_program(Program::ApiServer).await.unwrap();
    play.ends("outage").await;

    // Somebody edits the lease, and somebody deletes it.
    play.submit("edited").await;
    play.waits("edited").await;
    let stranger = Patch::Merge(json!({"spec": {"holderIdentity": "stranger_1"}}));
    play.leases().patch("setu", &PatchParams::default(), &stranger).await.unwrap();
    let (_, took) = play.until_led(AFTER_KILL + Duration::from_secs(3), |_| true).await;
    println!("lease given to a stranger: one of ours leads after {took:?}");
    play.leases().delete("setu", &DeleteParams::default()).await.unwrap();
    let (last, took) = play.until_led(Duration::from_secs(5), |_| true).await;
    println!("lease deleted: one of ours leads after {took:?}");
    play.ends("edited").await;
    let led = play.replicas.keys().filter(|name| play.says_it_leads(name)).count();
    assert_eq!((led, play.says_it_leads(last)), (1, true));

    for ((workload, seq), by) in committed(&play) {
        assert_eq!(by.len(), 1, "transition {seq} of {workload} was made by {by:?}");
    }
    scenario::paths_are_lawful(&play.world).unwrap();
    for journal in play.world.journals.values() {
        let states: Vec<StateName> = journal.history.iter().map(|s| s.to).collect();
        let once = |state| states.iter().filter(|s| **s == state).count() == 1;
        assert!(once(StateName::Provisioning) && once(StateName::Approved), "{states:?}");
        assert_eq!(journal.memory.attempt, 1);
    }
    scenario::nothing_is_left(&mut play.world).await.unwrap();

    // In the end the lease is nobody's.
    for replica in play.replicas.values() {
        replica.signal("TERM").unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while !play.holder().await.is_empty() {
        assert!(Instant::now() < deadline, "{} still holds the lease", play.holder().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let Play { world, stack, replicas, .. } = play;
    drop((world, replicas));
    if let Ok(stack) = Arc::try_unwrap(stack) {
        stack.stop();
    }
}
