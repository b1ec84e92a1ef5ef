//! Several replicas on the real control plane: whenever the leader fails, another replica takes over, and
//! each transition of each gang happens exactly once.

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
#[path = "scenarios/replicas.rs"]
mod replicas;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::gang::StateName;
use kube::api::{DeleteParams, Patch, PatchParams};
use replicas::Replicas;
use serde_json::json;
use setu_e2e::Program;
use std::time::{Duration, Instant};

/// Failover time after SIGTERM.
const AFTER_TERM: Duration = Duration::from_secs(1);
/// Failover time when the leader stops without notice: the lease duration plus two seconds.
const AFTER_KILL: Duration = Duration::from_secs(17);
/// The time from a new leader's start to its first decision.
const FIRST_DECISION: Duration = Duration::from_millis(100);
/// How much longer than the limit the test waits, so that a failure can report the actual time.
const MARGIN: Duration = Duration::from_secs(20);

/// [`FIRST_DECISION`] times the factor `SETU_SLOW`, for an unoptimized Setu; 1 without it. Only this limit is CPU
/// work; the others are waits.
fn first_decision_limit() -> Duration {
    let factor = std::env::var("SETU_SLOW").map_or(1.0, |slow| slow.parse().unwrap());
    FIRST_DECISION.mul_f64(factor)
}

impl Replicas {
    /// The name of the replica that holds the lease; empty if it has no holder.
    async fn holder(&self) -> String {
        self.holder_of("setu").await
    }

    /// Waits until a replica that `fits` holds the lease. Returns its name and the time it took.
    async fn until_led(&self, limit: Duration, fits: impl Fn(&str) -> bool) -> (&'static str, Duration) {
        let start = Instant::now();
        loop {
            let holder = self.holder().await;
            if let Some(name) = self.all.keys().find(|n| **n == holder && fits(n)) {
                return (name, start.elapsed());
            }
            assert!(start.elapsed() < limit, "after {limit:?} {holder:?} leads\n{}", self.logs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a replica other than `before` leads. Asserts from its record in the lease that it took over within
    /// `limit` of `since`.
    async fn another_leads(
        &self,
        before: &str,
        since: jiff::Timestamp,
        limit: Duration,
    ) -> (&'static str, Duration) {
        let (name, _) = self.until_led(limit + MARGIN, |n| n != before).await;
        let lease = self.leases().get("setu").await.unwrap();
        let acquired = lease.spec.unwrap().acquire_time.unwrap().0;
        let took = Duration::try_from(acquired.duration_since(since)).unwrap();
        assert!(took <= limit, "{name} led {took:?} after {before} had ended\n{}", self.logs());
        (name, took)
    }

    /// Submits a gang whose nodes do not come up yet.
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

    /// Waits until a replica is ready, whether it leads or not.
    async fn until_ready(&self, name: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !self.all[name].get("probes", "/readyz").is_ok_and(|said| said.starts_with("HTTP/1.1 200")) {
            assert!(Instant::now() < deadline, "{name} is not ready");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether a replica's metrics show that it leads.
    fn reports_leading(&self, name: &str) -> bool {
        let text = self.all[name].get("metrics", "/metrics").unwrap();
        text.lines().any(|l| l == "setu_leader 1")
    }
}

/// The time between a replica's start as leader and its first transition of a gang.
fn first_decision(log: &str) -> Option<Duration> {
    let at = |line: &str| line.split(' ').next()?.parse::<jiff::Timestamp>().ok();
    let led = log.lines().filter(|l| l.contains("became leader")).filter_map(at).next_back()?;
    let moved =
        log.lines().filter(|l| l.contains("gang changed state")).filter_map(at).find(|t| *t >= led)?;
    Duration::try_from(moved.duration_since(led)).ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_happens_to_the_leader_another_goes_on_and_no_transition_happens_twice() {
    let mut play = Replicas::start("leaders", &[]).await;
    play.enter("a");
    play.enter("b");
    let (first, _) = play.until_led(Duration::from_secs(20), |_| true).await;

    // Both are ready to take over at any time.
    play.until_ready("a").await;
    play.until_ready("b").await;

    // SIGTERM, with a gang in progress.
    play.submit("terminated").await;
    play.waits("terminated").await;
    let terminated_at = jiff::Timestamp::now();
    play.all[first].signal("TERM").unwrap();
    let (second, took) = play.another_leads(first, terminated_at, AFTER_TERM).await;
    println!("SIGTERM: another leads after {took:?}");
    play.ends("terminated").await;

    // SIGKILL, with three replicas, a gang in progress, and one that arrives while there is no leader.
    play.enter("c");
    play.enter(first);
    play.submit("killed").await;
    play.waits("killed").await;
    let killed = jiff::Timestamp::now();
    play.all.get_mut(second).unwrap().kill();
    play.submit("orphan").await;
    let (third, took) = play.another_leads(second, killed, AFTER_KILL).await;
    println!("SIGKILL: another leads after {took:?}");
    play.waits("orphan").await;
    let took = first_decision(&play.all[third].log()).unwrap();
    println!("first decision {took:?} after leading");
    assert!(took <= first_decision_limit(), "{took:?}\n{}", play.logs());
    play.ends("killed").await;
    play.ends("orphan").await;

    // SIGSTOP until another leads, then SIGCONT: for a moment, two replicas believe that they lead.
    play.enter(second);
    play.submit("stopped").await;
    play.waits("stopped").await;
    let stopped = jiff::Timestamp::now();
    play.all[third].signal("STOP").unwrap();
    let (fourth, took) = play.another_leads(third, stopped, AFTER_KILL).await;
    println!("SIGSTOP: another leads after {took:?}");
    play.all[third].signal("CONT").unwrap();
    play.ends("stopped").await;
    assert_eq!(play.holder().await, fourth);
    assert!(play.reports_leading(fourth) && !play.reports_leading(third));

    // The API server is down for longer than a leader may continue without it.
    play.submit("outage").await;
    play.waits("outage").await;
    play.stack.stop_program(Program::ApiServer).await.unwrap();
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert!(!play.reports_leading(fourth));
    play.stack.start_program(Program::ApiServer).await.unwrap();
    play.ends("outage").await;

    // The lease is edited, then deleted.
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
    let led = play.all.keys().filter(|name| play.reports_leading(name)).count();
    assert_eq!((led, play.reports_leading(last)), (1, true));

    for journal in play.world.journals.values() {
        let states: Vec<StateName> = journal.history.iter().map(|s| s.to).collect();
        let once = |state| states.iter().filter(|s| **s == state).count() == 1;
        assert!(once(StateName::Provisioning) && once(StateName::Approved), "{states:?}");
    }
    play.left_nothing_and_did_nothing_twice().await;

    // In the end, the lease has no holder.
    for replica in play.all.values() {
        replica.signal("TERM").unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while !play.holder().await.is_empty() {
        assert!(Instant::now() < deadline, "{} still holds the lease", play.holder().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    play.end();
}
