//! A new leader takes over gangs in flight: with unreadable parameters, from journals of version 1, and from a
//! journal of a newer release.

use crate::world;
use serde_json::{Value, json};
use setu::gang::statechart::journal::VERSION;
use setu::gang::{FailureClass, Journal, Nodes, State, StateName};
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_sim::api::{Preconditions, Status, User, kinds};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ID: &str = "upgrade";

/// One gang of two nodes in a cluster of its own, in virtual time.
struct Stage {
    cluster: SimCluster,
    setu: Option<Setu>,
    admin: User,
}

impl Stage {
    /// A cluster with this weather and these parameters of the check.
    async fn new(rules: &Value, parameters: &Value) -> Self {
        let (mut cluster, admin) = world::cluster(ID, PolicyFile::default());
        world::weather(&admin, rules);
        world::parameters(&admin, ID, parameters);
        let setu = Some(cluster.start_setu(&Start::default()));
        let stage = Self { cluster, setu, admin };
        stage.sleep(5).await;
        stage.submit();
        stage
    }

    async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn submit(&self) {
        let job = world::job(ID, "gang", 2, Some("60s"));
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    fn restart(&mut self) {
        self.stop();
        self.setu = Some(self.cluster.start_setu(&Start::default()));
    }

    fn stop(&mut self) {
        self.setu = None;
    }

    fn workload(&self) -> Option<Arc<Value>> {
        self.admin.list(&kinds::WORKLOAD).first().cloned()
    }

    fn text(&self) -> Option<String> {
        let workload = self.workload()?;
        workload["metadata"]["annotations"][names::journal_key(ID)].as_str().map(str::to_owned)
    }

    fn journal(&self) -> Option<Journal> {
        let uid = self.workload()?["metadata"]["uid"].as_str().unwrap().to_owned();
        Journal::decode(&self.text()?, &uid, jiff::Timestamp::MIN, self.cluster.clock.now()).ok()
    }

    /// Waits until the gang is in this state, for at most two hours of virtual time.
    async fn until(&self, state: StateName) -> Journal {
        for _ in 0..72_000 {
            if let Some(journal) = self.journal().filter(|j| j.state.name() == state) {
                return journal;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the gang never was {state}: {:#?}", self.journal());
    }

    fn write_journal(&self, text: &str) {
        let workload = self.workload().unwrap();
        let name = workload["metadata"]["name"].as_str().unwrap();
        let patch = json!({"metadata": {"annotations": {names::journal_key(ID): text}}});
        self.admin.merge(&kinds::WORKLOAD, ID, name, &patch).unwrap();
    }

    /// Rewrites the journal and the NodeClaims as a release before version 2 would have written them.
    fn downgrade(&self) {
        let mut journal: Value = serde_json::from_str(&self.text().unwrap()).unwrap();
        journal["version"] = json!(1);
        journal.as_object_mut().unwrap().remove("terms");
        self.write_journal(&journal.to_string());
        for kind in [&kinds::NODE_CLAIM, &kinds::NODE] {
            for object in self.admin.list(kind) {
                let (name, annotations) = (&object["metadata"]["name"], &object["metadata"]["annotations"]);
                // A generation was a label only after a replacement.
                let generation = annotations[names::GENERATION].as_str().filter(|g| *g != "0");
                let labels = json!({names::SLOT: annotations[names::SLOT], names::GENERATION: generation});
                let gone = json!({names::TERMS: null, names::SLOT: null, names::GENERATION: null});
                let patch = json!({"metadata": {"labels": labels, "annotations": gone}});
                self.admin.merge(kind, "", name.as_str().unwrap(), &patch).unwrap();
            }
        }
    }

    fn stop_queue(&self, policy: &str) {
        let change = json!({"spec": {"stopPolicy": policy}});
        self.admin.merge(&kinds::CLUSTER_QUEUE, "", ID, &change).unwrap();
    }

    fn break_parameters(&self) {
        let broken = json!({"spec": {"deadlines": {"launch": "0s"}}});
        self.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &broken).unwrap();
    }

    fn path(&self) -> Vec<StateName> {
        self.journal().unwrap().history.iter().map(|s| s.to).collect()
    }

    /// The number of NodeClaims, and how many of them are Setu's.
    fn claims(&self) -> (usize, usize) {
        let claims = self.admin.list(&kinds::NODE_CLAIM);
        let ours = claims.iter().filter(|c| c["metadata"]["labels"][names::MANAGED_BY] == names::SETU);
        (claims.len(), ours.count())
    }
}

fn patient() -> Value {
    json!({
        "deadlines": {"launch": "30m", "register": "30m", "initialize": "30m", "gang": "40m"},
        "custody": {"release": "HandBack"},
    })
}

fn slow() -> Value {
    json!([{"registrationDelay": "11m"}])
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_without_parameters_keeps_the_attempts_deadlines_and_release() {
    for deleted in [false, true] {
        let mut stage = Stage::new(&slow(), &patient()).await;
        let begun = stage.until(StateName::WaitingReady).await;
        stage.stop();
        if deleted {
            let none = Preconditions::default();
            stage.admin.delete(&kinds::PROVISIONING_PARAMETERS, "", ID, none).unwrap();
        } else {
            stage.break_parameters();
        }
        stage.restart();
        let approved = stage.until(StateName::Approved).await;
        assert_eq!(approved.memory.attempt, 1, "{:?}", stage.path());
        assert_eq!(approved.memory.deadline, begun.memory.deadline);
        assert_eq!(approved.memory.terms, begun.memory.terms);
        stage.until(StateName::Released).await;
        assert_eq!(stage.claims(), (2, 0), "they are handed back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_of_version_1_waits_for_its_parameters() {
    let mut stage = Stage::new(&slow(), &patient()).await;
    let begun = stage.until(StateName::WaitingReady).await;
    stage.stop();
    stage.downgrade();
    stage.break_parameters();
    stage.restart();
    stage.sleep(20 * 60).await;
    let waiting = stage.journal().unwrap();
    assert_eq!((waiting.state.name(), waiting.seq), (StateName::WaitingReady, begun.seq));
    assert_eq!(waiting.memory.deadline, begun.memory.deadline);
    let mended = json!({"spec": patient()});
    stage.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &mended).unwrap();
    stage.until(StateName::Approved).await;
    stage.until(StateName::Released).await;
    assert_eq!(stage.claims(), (2, 0), "they are handed back");
}

#[tokio::test(start_paused = true)]
async fn a_gang_of_version_1_completes_from_every_state() {
    let states = [
        (StateName::Validating, json!([])),
        (StateName::Provisioning, json!([])),
        (StateName::WaitingReady, json!([{"registrationDelay": "30s"}])),
        (StateName::Approved, json!([])),
        (StateName::RollingBack, json!([{"capacity": 1}])),
        (StateName::BackingOff, json!([{"capacity": 1}])),
        (StateName::Yielded, json!([{"capacity": 1}])),
    ];
    for (state, weather) in states {
        let strategy = if state == StateName::Validating { "DryRun" } else { "Proactive" };
        let retry = json!({"strategy": {"type": strategy}, "retry": {"inCheck": {"limit": 1, "base": "5s"}}});
        let mut stage = Stage::new(&weather, &retry).await;
        let held = Arc::new(AtomicBool::new(state == StateName::Provisioning));
        let rule = Arc::clone(&held);
        stage.cluster.server.deny(Box::new(move |attempt| {
            let claim = attempt.kind.kind == "NodeClaim" && attempt.verb == "CREATE";
            (claim && rule.load(Ordering::Relaxed)).then(|| Status::webhook("nodeclaims"))
        }));
        stage.until(state).await;
        stage.stop();
        stage.downgrade();
        held.store(false, Ordering::Relaxed);
        let mended = json!({"spec": {"strategy": {"type": "Proactive"}}});
        stage.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &mended).unwrap();
        world::calm(&stage.admin);
        stage.restart();
        stage.until(StateName::Released).await;
        let job = &stage.admin.list(&kinds::JOB)[0]["status"]["conditions"][0]["type"];
        assert_eq!(job, "Complete", "from {state}: {:?}", stage.path());
        assert_eq!(stage.claims().1, 0, "from {state}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_gang_of_version_1_runs_when_quota_is_reserved_again() {
    let mut stage = Stage::new(&json!([]), &json!({})).await;
    stage.until(StateName::Approved).await;
    stage.sleep(5).await;
    stage.stop_queue("HoldAndDrain");
    stage.until(StateName::Released).await;
    stage.stop();
    stage.downgrade();
    stage.restart();
    stage.stop_queue("None");
    stage.until(StateName::Approved).await;
    assert_eq!(stage.journal().unwrap().memory.attempt, 2, "{:?}", stage.path());
    stage.until(StateName::Released).await;
    assert_eq!(stage.admin.list(&kinds::JOB)[0]["status"]["conditions"][0]["type"], "Complete");
    assert_eq!(stage.claims(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_rejected_gang_of_version_1_stays_rejected_and_gets_no_nodes() {
    let once = json!({"retry": {"inCheck": {"limit": 0}, "yield": {"limit": 0}, "onExhausted": "Reject"}});
    let mut stage = Stage::new(&json!([{"capacity": 1}]), &once).await;
    stage.until(StateName::Rejected).await;
    stage.sleep(5).await;
    stage.stop();
    stage.downgrade();
    let journal = stage.journal();
    world::calm(&stage.admin);
    stage.restart();
    stage.sleep(20 * 60).await;
    assert_eq!((stage.journal(), stage.claims()), (journal, (0, 0)));
    assert_eq!(stage.workload().unwrap()["spec"]["active"], false);
}

#[tokio::test(start_paused = true)]
async fn a_journal_of_a_newer_release_is_left_alone() {
    let mut stage = Stage::new(&json!([]), &json!({})).await;
    stage.until(StateName::Approved).await;
    stage.sleep(5).await;
    stage.stop();
    let mut journal: Value = serde_json::from_str(&stage.text().unwrap()).unwrap();
    journal["version"] = json!(VERSION + 1);
    let newer = journal.to_string();
    stage.write_journal(&newer);
    let check = stage.workload().unwrap()["status"]["admissionChecks"].clone();
    stage.restart();
    // The Job ends meanwhile. Its nodes are no longer needed, so the sweep deletes them anyway.
    stage.sleep(20 * 60).await;
    assert_eq!(stage.text().unwrap(), newer);
    assert_eq!(stage.claims(), (0, 0));
    assert_eq!(stage.workload().unwrap()["status"]["admissionChecks"], check);
    let events = stage.admin.list(&kinds::EVENT);
    let reports = events.iter().filter(|e| e["reason"] == "JournalNewer").count();
    assert_eq!(reports, 1, "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_journal_of_a_newer_release_is_left_alone_in_every_state() {
    for text in VERSION_1.lines() {
        let mut stage = Stage::new(&json!([{"nodePool": ID, "launchDelay": "2h"}]), &json!({})).await;
        stage.until(StateName::WaitingReady).await;
        stage.stop();
        let mut journal: Value = serde_json::from_str(text).unwrap();
        journal["version"] = json!(VERSION + 1);
        journal["workloadUid"] = stage.workload().unwrap()["metadata"]["uid"].clone();
        let newer = journal.to_string();
        stage.write_journal(&newer);
        let before = (stage.claims(), stage.workload().unwrap()["status"]["admissionChecks"].clone());
        stage.restart();
        stage.sleep(60).await;
        assert_eq!(stage.text().unwrap(), newer);
        assert_eq!((stage.claims(), stage.workload().unwrap()["status"]["admissionChecks"].clone()), before);
    }
}

/// A journal as the controller of its Workload reads it, at any time.
fn decoded(text: &str) -> Journal {
    let raw: Value = serde_json::from_str(text).unwrap();
    let uid = raw["workloadUid"].as_str().unwrap();
    Journal::decode(text, uid, jiff::Timestamp::MIN, jiff::Timestamp::MAX).unwrap()
}

/// Journals written by a release before version 2, one for each state.
const VERSION_1: &str = include_str!("../journals/version-1.jsonl");

#[test]
fn journals_of_version_1_are_read_in_every_state_and_written_unchanged() {
    let mut states = BTreeSet::new();
    for text in VERSION_1.lines() {
        let raw: Value = serde_json::from_str(text).unwrap();
        let journal = decoded(text);
        assert_eq!((journal.version, &journal.memory.terms), (1, &None));
        let written: Value = serde_json::from_str(&journal.encode()).unwrap();
        assert_eq!(written, raw);
        states.insert(journal.state.name());
    }
    assert_eq!(states, BTreeSet::from(StateName::ALL));
}

/// Journals of version 2: terms of an attempt, a lost node that is being replaced, and a refusal.
const VERSION_2: &str = include_str!("../journals/version-2.jsonl");

#[test]
fn journals_of_version_2_are_read_with_their_terms_and_written_unchanged() {
    let mut states = Vec::new();
    for text in VERSION_2.lines() {
        let journal = decoded(text);
        assert_eq!(journal.encode(), text);
        assert_eq!(journal.memory.terms.is_some(), journal.state.is_in_flight());
        states.push(journal.state);
    }
    let replacing = State::Approved { nodes: Nodes::Replacing };
    assert_eq!(
        states,
        [State::WaitingReady, replacing, State::Approved { nodes: Nodes::Held }, State::Yielded]
    );
    let unknown = VERSION_2.lines().last().unwrap().replace("NotPlannable", "OfALaterRelease");
    assert_eq!(
        decoded(&unknown).memory.last_failure.unwrap().reason,
        FailureClass::Unknown,
        "its state is kept"
    );
}
