//! Karpenter reboots a node, as it does from 1.15 on, while its gang comes up and while it runs. In the embedded
//! cluster, because earlier versions of Karpenter cannot.

use crate::world;
use serde_json::{Value, json};
use setu::gang::{Journal, StateName};
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_sim::actors::karpenter::reboots;
use setu_sim::api::{User, kinds};
use std::collections::BTreeSet;
use std::time::Duration;

const ID: &str = "reboots";

/// One gang of two nodes.
struct Stage {
    cluster: SimCluster,
    admin: User,
    _setu: Setu,
}

impl Stage {
    fn new(lines: &str, rules: &Value, run_for: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(lines));
        world::weather(&admin, rules);
        let setu = cluster.start_setu(&Start::default());
        admin.create(&kinds::JOB, world::job(ID, "gang", 2, Some(run_for))).unwrap();
        Self { cluster, admin, _setu: setu }
    }

    fn journal(&self) -> Option<Journal> {
        let workload = self.admin.list(&kinds::WORKLOAD).into_iter().next()?;
        let text = workload["metadata"]["annotations"][names::journal_key(ID)].as_str()?;
        let uid = workload["metadata"]["uid"].as_str()?;
        Journal::decode(text, uid, jiff::Timestamp::MIN, self.cluster.clock.now()).ok()
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_mins(30), Duration::from_millis(100), || holds(self)).await;
        assert!(came, "not within half an hour: {what}; {:#?}", self.journal());
    }

    fn is_in(&self, state: StateName) -> bool {
        self.journal().is_some_and(|journal| journal.state.name() == state)
    }

    fn claims(&self) -> BTreeSet<String> {
        let all = self.admin.list(&kinds::NODE_CLAIM);
        all.iter().map(|claim| claim["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    }

    /// The number of claims that are Initialized.
    fn initialized(&self) -> usize {
        self.admin.list(&kinds::NODE_CLAIM).iter().filter(|claim| world::is(claim, "Initialized")).count()
    }

    fn is_admitted(&self) -> bool {
        self.admin.list(&kinds::WORKLOAD).iter().any(|workload| world::is(workload, "Admitted"))
    }

    /// Reboots the first node that is up, and waits until it is down.
    async fn reboot(&self) {
        let before = self.initialized();
        let nodes = self.admin.list(&kinds::NODE);
        let node = nodes.iter().find(|node| world::is(node, "Ready")).unwrap();
        let mut conditions = node["status"]["conditions"].as_array().unwrap().clone();
        conditions.push(json!({
            "type": reboots::REQUIRED, "status": "True", "reason": "Simulated", "message": "",
            "lastTransitionTime": self.cluster.clock.now().to_string(),
        }));
        let name = node["metadata"]["name"].as_str().unwrap();
        let status = json!({"status": {"conditions": conditions}});
        self.admin.merge_status(&kinds::NODE, "", name, &status).unwrap();
        self.until("it is down", |s| s.initialized() == before - 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reboot_delays_a_gang_that_comes_up_but_ends_no_attempt() {
    let late = json!([{"slot": "1", "registrationDelay": "5m"}]);
    // Shorter than a reboot.
    let limits = "defaults: {deadlines: {register: 10m, initialize: 10m, gang: 15m}}";
    let stage = Stage::new(limits, &late, "10m");
    stage.until("the first node is up", |s| s.initialized() == 1).await;
    let claims = stage.claims();
    stage.reboot().await;
    stage.until("the second node is up", |s| s.initialized() == 1).await;
    tokio::time::sleep(reboots::DURATION / 2).await;
    assert!(stage.is_in(StateName::WaitingReady));
    stage.until("it runs", Stage::is_admitted).await;
    let memory = stage.journal().unwrap().memory;
    assert_eq!((stage.claims(), memory.attempt, memory.last_failure), (claims, 1, None));
}

#[tokio::test(start_paused = true)]
async fn a_reboot_does_not_end_a_running_gang_for_any_on_node_lost() {
    for on_node_lost in ["Yield", "Replace", "Reject"] {
        let lines = format!("defaults: {{custody: {{onNodeLost: {on_node_lost}}}}}");
        let stage = Stage::new(&lines, &json!([]), "1h");
        stage.until("it runs", Stage::is_admitted).await;
        let (claims, begun) = (stage.claims(), stage.journal().unwrap());
        stage.reboot().await;
        tokio::time::sleep(reboots::DURATION + Duration::from_mins(5)).await;
        assert_eq!((stage.initialized(), stage.claims()), (2, claims), "{on_node_lost}");
        assert!(stage.is_admitted());
        assert_eq!(stage.journal().unwrap(), begun, "{on_node_lost}");
    }
}
