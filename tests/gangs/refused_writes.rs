//! Writes that the API server refuses for good, in the embedded cluster: of journals, and of deletions by the sweep.

use crate::world::{self, is};
use http::Method;
use serde_json::{Value, json};
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu_sim::api::{Preconditions, User, kinds};
use setu_sim::denials::Denial;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const ID: &str = "refused-writes";

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    fn new() -> Self {
        Self::under("{}")
    }

    fn under(defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, setu, admin }
    }

    /// Adds a check of Setu's to the queue.
    fn also_asks(&self, check: &str) {
        world::create_check(&self.admin, check, &scenario::controller_name_of(ID));
        world::set_checks(&self.admin, ID, &[ID, check]);
    }

    fn job(&self) {
        self.admin.create(&kinds::JOB, world::job(ID, "gang", 2, None)).unwrap();
    }

    fn workload(&self) -> Arc<Value> {
        self.admin.list(&kinds::WORKLOAD).pop().unwrap_or_default()
    }

    /// State and message of a check.
    fn check(&self, name: &str) -> (String, String) {
        let workload = self.workload();
        let checks = workload["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
        let check = checks.into_iter().find(|check| check["name"] == name).unwrap_or_default();
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("state"), text("message"))
    }

    /// The Events of this reason.
    fn events(&self, reason: &str) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::EVENT).into_iter().filter(|event| event["reason"] == reason).collect()
    }

    /// Deletes the Job and its Workload at once, despite finalizers.
    fn vanish(&self) {
        let bare = json!({"metadata": {"finalizers": []}});
        for kind in [&kinds::JOB, &kinds::WORKLOAD] {
            for object in self.admin.list_in(kind, ID) {
                let name = object["metadata"]["name"].as_str().unwrap();
                self.admin.merge(kind, ID, name, &bare).unwrap();
                let _ = self.admin.delete(kind, ID, name, Preconditions::default());
            }
        }
    }

    fn claims(&self) -> usize {
        self.admin.list(&kinds::NODE_CLAIM).len()
    }

    async fn until(&self, what: &str, seconds: u64, holds: impl Fn(&Self) -> bool) {
        let step = Duration::from_millis(100);
        let came = world::until(Duration::from_secs(seconds), step, || holds(self)).await;
        assert!(came, "not within {seconds} s: {what}; the Workload: {:#}", self.workload());
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_is_refused_is_reported_until_it_is_written() {
    let stage = Stage::new();
    stage.cluster.denials.begin(Denial::Journals);
    stage.job();
    let says =
        "Forbidden (403). The gang waits until it may: let Setu patch annotations here, or remove large ones";
    stage.until("its owner is told", 30, |s| s.check(ID).1.ends_with(says)).await;
    let told = stage.check(ID);
    assert!(told.0 == "Pending" && told.1.starts_with("Setu may not write its journal: "), "{told:?}");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(stage.check(ID), told);
    let events = stage.events("JournalRefused");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["type"], &events[0]["note"]), (&json!("Warning"), &json!(told.1)));
    stage.cluster.denials.end();
    stage.until("it runs", 240, |s| is(&s.workload(), "Admitted")).await;
    assert!(!stage.check(ID).1.contains("journal"));
}

#[tokio::test(start_paused = true)]
async fn a_gang_whose_journal_is_refused_does_not_stop_the_workloads_other_gang() {
    let stage = Stage::new();
    stage.also_asks("first");
    stage.cluster.denials.begin(Denial::FirstJournal);
    stage.job();
    stage.until("the other gang is ready", 240, |s| s.check(ID).0 == "Ready").await;
    let (verdict, message) = stage.check("first");
    assert!(
        verdict == "Pending" && message.contains("Unprocessable Entity (422). The gang waits"),
        "{message}"
    );
    assert!(stage.workload()["metadata"]["annotations"][names::journal_key("first")].is_null());
    stage.cluster.denials.end();
    stage.until("both are ready", 240, |s| is(&s.workload(), "Admitted")).await;
}

#[tokio::test(start_paused = true)]
async fn a_plan_whose_journal_is_refused_reserves_nothing() {
    let stage = Stage::new();
    stage.cluster.denials.begin(Denial::Journals);
    stage.job();
    stage.until("its owner is told", 30, |s| s.check(ID).1.contains("journal")).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let kept = stage.setu.context.remembered_gangs();
    assert!(!kept.contains_key("entries"), "{kept:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_journals_skip_no_tier() {
    let zones = ["us-east-1a", "us-east-1b", "us-east-1c"];
    let tiers: Vec<Value> = zones.iter().map(|zone| json!({"name": zone, "zones": [zone]})).collect();
    let stage = Stage::under(&json!({"tiers": tiers}).to_string());
    world::weather(&stage.admin, &json!([{"zone": zones[0], "capacity": 0}]));
    stage.job();
    stage.until("its claims are there", 60, |s| s.claims() > 0).await;
    stage.cluster.denials.begin(Denial::Journals);
    stage.until("its failure cannot be recorded", 60, |s| !s.events("JournalRefused").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    stage.cluster.denials.end();
    stage.until("it runs", 240, |s| is(&s.workload(), "Admitted")).await;
    let nodes = stage.admin.list(&kinds::NODE);
    let used: Vec<&Value> =
        nodes.iter().map(|n| &n["metadata"]["labels"]["topology.kubernetes.io/zone"]).collect();
    assert_eq!(used, [zones[1], zones[1]]);
}

#[tokio::test(start_paused = true)]
async fn the_sweep_tries_a_refused_deletion_less_and_less_often() {
    let stage = Stage::new();
    stage.job();
    stage.until("its claims are there", 120, |s| s.claims() == 2).await;
    stage.cluster.denials.begin(Denial::Deletes);
    stage.vanish();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    stage.setu.wire.on_request(Arc::new(move |asked| {
        if asked.method() == Method::DELETE && asked.uri().path().contains("/nodeclaims/") {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    }));
    tokio::time::sleep(Duration::from_mins(30)).await;
    let tries = tries.load(Ordering::Relaxed);
    assert!((10..50).contains(&tries), "{tries}");
    assert_eq!(stage.claims(), 2);
    stage.cluster.denials.end();
    stage.until("they are deleted", 330, |s| s.claims() == 0).await;
}
