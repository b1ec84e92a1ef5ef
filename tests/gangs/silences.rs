//! One watch falls silent while all others go on, in the embedded cluster and virtual time. No deadline is decided on
//! its last state, and it is reopened within the bound.

use crate::world;
use serde_json::{Value, json};
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_sim::api::{User, kinds};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

const ID: &str = "silences";
/// How long a watch may be silent before it is reopened.
const NOTICED: Duration = Duration::from_secs(70);

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

/// Requests since a watch fell silent.
#[derive(Clone, Default)]
struct Asked {
    /// When the watch was reopened.
    opened: Arc<Mutex<Option<Instant>>>,
    /// The number of requests other than watches.
    others: Arc<AtomicUsize>,
}

impl Stage {
    fn new(defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, setu, admin }
    }

    fn workload(&self) -> Value {
        self.admin.list(&kinds::WORKLOAD).first().map_or(Value::Null, |workload| (**workload).clone())
    }

    fn journal(&self) -> String {
        self.workload()["metadata"]["annotations"][names::journal_key(ID)]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    fn is_in(&self, state: &str) -> bool {
        self.journal().contains(&format!("\"state\":\"{state}\""))
    }

    /// Whether this condition of both NodeClaims is True.
    fn claims_are(&self, condition: &str) -> bool {
        self.admin.list(&kinds::NODE_CLAIM).iter().filter(|claim| world::is(claim, condition)).count() == 2
    }

    fn is(&self, condition: &str) -> bool {
        world::is(&self.workload(), condition)
    }

    /// Silences the watches on these objects.
    fn silence(&self, path: &'static str) -> Asked {
        let asked = Asked::default();
        let seen = asked.clone();
        self.setu.wire.silence(path);
        self.setu.wire.on_request(Arc::new(move |request| {
            if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                seen.others.fetch_add(1, Ordering::Relaxed);
            } else if request.uri().path().ends_with(path) {
                seen.opened.lock().unwrap().get_or_insert_with(Instant::now);
            }
        }));
        asked
    }

    async fn until(&self, what: &str, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let came = world::until(limit, Duration::from_millis(10), || holds(self)).await;
        assert!(came, "not within {limit:?}: {what}; {:#}", self.workload());
    }
}

/// A phase of a NodeClaim that has a deadline.
struct Phase {
    deadline: &'static str,
    /// The condition with which it begins; none if that is the creation.
    begins: Option<&'static str>,
    /// Weather that makes it last.
    rule: Value,
}

/// All phases. The weather makes each last for [`LASTS`], or until it changes.
fn phases() -> [Phase; 3] {
    let phase = |deadline, begins, rule| Phase { deadline, begins, rule };
    [
        phase("launch", None, json!({"launchDelay": "20s"})),
        phase("register", Some("Launched"), json!({"registrationDelay": "20s"})),
        phase("initialize", Some("Registered"), json!({"missingResources": ["nvidia.com/gpu"]})),
    ]
}

/// How long a phase lasts. Its deadline is ten seconds later.
const LASTS: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn no_phase_deadline_is_decided_on_the_last_state_of_a_silent_watch() {
    for path in ["/nodeclaims", "/nodes", "/workloads"] {
        for Phase { deadline, begins, rule } in phases() {
            let stage = Stage::new(&format!("{{deadlines: {{{deadline}: 30s}}}}"));
            world::weather(&stage.admin, &json!([rule]));
            stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
            stage.until("its nodes are waited for", NOTICED, |s| s.is_in("WaitingReady")).await;
            let has_begun = |s: &Stage| begins.is_none_or(|begins| s.claims_are(begins));
            stage.until("the phase begins", NOTICED, has_begun).await;
            // Setu sees this.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let (silent, asked) = (Instant::now(), stage.silence(path));
            tokio::time::sleep(LASTS).await;
            world::calm(&stage.admin);
            stage.until("it is admitted", NOTICED * 2, |s| s.is("Admitted")).await;
            assert!(!stage.journal().contains("lastFailure"), "{path}, {deadline}: {}", stage.journal());
            stage
                .until("the watch is opened anew", NOTICED, |_| asked.opened.lock().unwrap().is_some())
                .await;
            let took = asked.opened.lock().unwrap().unwrap() - silent;
            assert!(took <= NOTICED, "{path}, {deadline}: noticed after {took:?}");
            assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_admitted_behind_a_silent_watch_does_not_fail_its_admission_deadline() {
    // At several ages of the watch.
    for waits in [60, 80, 100, 115, 118] {
        let stage = Stage::new("{deadlines: {admit: 2m}}");
        stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
        stage.until("its nodes are waited for", NOTICED, |s| s.is_in("WaitingReady")).await;
        stage.cluster.stop_kueue(true);
        stage.until("it is ready", NOTICED, |s| s.is_in("Approved")).await;
        tokio::time::sleep(Duration::from_secs(waits)).await;
        let asked = stage.silence("/workloads");
        stage.cluster.stop_kueue(false);
        stage.until("it is admitted", Duration::from_secs(5), |s| s.is("Admitted")).await;
        tokio::time::sleep(NOTICED).await;
        assert!(asked.opened.lock().unwrap().is_some(), "the watch is opened anew");
        let others = asked.others.load(Ordering::Relaxed);
        assert!(others < 60, "{waits} s: a write that is refused is not tried for ever: {others} requests");
        assert!(stage.is("Admitted") && stage.is_in("Approved"), "{waits} s: {}", stage.journal());
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2, "{waits} s");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_gang_that_loses_its_quota_behind_a_silent_watch_are_deleted_within_the_bound() {
    let stage = Stage::new("{}");
    world::weather(&stage.admin, &json!([{"nodePool": ID, "launchDelay": "1h"}]));
    stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
    stage.until("its nodes are waited for", NOTICED, |s| s.is_in("WaitingReady")).await;
    stage.silence("/workloads");
    let name = stage.workload()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"active": false}})).unwrap();
    let gone = |s: &Stage| s.admin.list(&kinds::NODE_CLAIM).is_empty();
    stage.until("its nodes go", NOTICED + Duration::from_secs(10), gone).await;
}

#[tokio::test(start_paused = true)]
async fn no_gang_is_refused_or_admitted_without_nodes_on_stale_parameters() {
    // With the first spec no resource of the pods is managed, with the second their NodePool does not exist.
    for spec in [json!({"managedResources": ["example.com/none"]}), json!({"nodePoolName": "later"})] {
        let stage = Stage::new("{}");
        world::parameters(&stage.admin, ID, &spec);
        tokio::time::sleep(Duration::from_secs(5)).await;
        stage.silence("/provisioningparameters");
        let cleared = json!({"spec": {"managedResources": null, "nodePoolName": null}});
        stage.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &cleared).unwrap();
        stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
        stage.until("it is admitted", Duration::from_secs(50), |s| s.is("Admitted")).await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2, "{spec}: {}", stage.journal());
        assert!(!stage.journal().contains("lastFailure"), "{spec}: {}", stage.journal());
    }
}

#[tokio::test(start_paused = true)]
async fn no_edited_node_pool_is_passed_over_on_its_stale_state() {
    let stage = Stage::new("{tiers: [{name: a, nodePoolName: silences}, {name: b, nodePoolName: second}]}");
    let mut second = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap().as_ref().clone();
    second["metadata"] = json!({"name": "second"});
    stage.admin.create(&kinds::NODE_POOL, second).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let seen = |generation: &Value| {
        let pool = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap();
        let conditions = pool["status"]["conditions"].as_array().unwrap().clone();
        let conditions: Vec<Value> = conditions
            .into_iter()
            .map(|mut condition| {
                condition["observedGeneration"] = generation.clone();
                condition
            })
            .collect();
        stage
            .admin
            .merge_status(&kinds::NODE_POOL, "", ID, &json!({"status": {"conditions": conditions}}))
            .unwrap();
    };
    let generation = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap()["metadata"]["generation"].clone();
    seen(&json!(0));
    tokio::time::sleep(Duration::from_millis(100)).await;
    stage.silence("/nodepools");
    seen(&generation);
    stage.admin.create(&kinds::JOB, world::job(ID, "train", 2, None)).unwrap();
    stage.until("it is admitted", Duration::from_mins(1), |s| s.is("Admitted")).await;
    let pools: Vec<Value> = stage
        .admin
        .list(&kinds::NODE_CLAIM)
        .iter()
        .map(|claim| claim["metadata"]["labels"]["karpenter.sh/nodepool"].clone())
        .collect();
    assert_eq!(pools, [ID, ID], "{}", stage.journal());
}
