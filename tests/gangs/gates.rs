//! The gates in the embedded cluster: what they count, what a dry run reports, which shortages are recorded,
//! and that a gang that waits for its LocalQueue is woken instead of polling.

use crate::world;
use axum::body::Bytes;
use http::Request;
use jiff::Timestamp;
use opentelemetry_sdk::trace::Sampler;
use serde_json::{Value, json};
use setu::app::server;
use setu::cluster::lease::Timing;
use setu::names;
use setu::sim::cluster::{Election, Setu, SimCluster, Start};
use setu::sim::scenario;
use setu::telemetry::metrics;
use setu::telemetry::traces::Traces;
use setu_sim::api::{Caller, Change, Observer, Preconditions, Status, User, kinds};
use setu_sim::denials::Denial;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The name of everything.
const ID: &str = "gates";

struct Stage {
    cluster: SimCluster,
    admin: User,
}

impl Stage {
    fn new(policy: &str) -> Self {
        let (cluster, admin) = world::cluster(ID, world::policy(policy));
        Self { cluster, admin }
    }

    fn start(&mut self) -> Setu {
        self.cluster.start_setu(&Start::default())
    }

    fn submit(&self, name: &str, pods: usize, run_for: &str) {
        let job = world::job(ID, name, pods, Some(run_for));
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    fn limit(&self, nodes: &str) {
        let limits = json!({"spec": {"limits": {"nodes": nodes}}});
        self.admin.merge(&kinds::NODE_POOL, "", ID, &limits).unwrap();
    }

    /// Takes a node of a NodePool for someone else.
    fn occupy(&self, node_pool: &str) {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": "another", "labels": {"karpenter.sh/nodepool": node_pool},
                "annotations": {"karpenter.sh/do-not-disrupt": "true"},
            },
            "spec": {
                "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": ID},
                "requirements": [
                    {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.4xlarge"]},
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
                ],
                "resources": {"requests": {"cpu": "1"}},
            },
        });
        self.admin.create(&kinds::NODE_CLAIM, claim).unwrap();
    }

    /// The number of the gangs' NodeClaims.
    fn claims(&self) -> usize {
        let all = self.admin.list(&kinds::NODE_CLAIM);
        all.iter().filter(|claim| claim["metadata"]["name"] != "another").count()
    }

    /// Makes Kueue report that this many GPUs of the quota of 100 are reserved.
    fn reserve(&self, gpus: &str) {
        let of = |name: &str, total: &str| json!({"name": name, "total": total, "borrowed": "0"});
        let status = json!({"status": {"flavorsReservation": [
            {"name": ID, "resources": [of("cpu", "2"), of("memory", "0"), of("nvidia.com/gpu", gpus)]},
        ]}});
        self.admin.merge_status(&kinds::CLUSTER_QUEUE, "", ID, &status).unwrap();
    }

    fn weather(&self, rules: &Value) {
        world::weather(&self.admin, rules);
    }

    fn workload(&self, job: &str) -> Option<Arc<Value>> {
        let all = self.admin.list(&kinds::WORKLOAD);
        all.into_iter().find(|w| w["metadata"]["ownerReferences"][0]["name"] == job)
    }

    fn message(&self, job: &str) -> String {
        let workload = self.workload(job);
        let message = workload.map(|w| w["status"]["admissionChecks"][0]["message"].clone());
        message.unwrap_or_default().as_str().unwrap_or_default().to_owned()
    }

    fn is_admitted(&self, job: &str) -> bool {
        self.workload(job).is_some_and(|w| world::is(&w, "Admitted"))
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_mins(2), Duration::from_millis(5), || is(self)).await;
        assert!(came, "{what} not within two minutes; {}", self.message("train"));
    }

    /// Waits for NodeClaims. They must come as soon as the watch shows the change, without polling.
    async fn until_woken(&self) {
        let since = self.cluster.clock.now();
        self.until("NodeClaims", |s| s.claims() > 0).await;
        let waited = self.cluster.clock.now().duration_since(since);
        assert!(waited.as_millis() < 2_000, "it looked again only after {waited:?}");
    }

    async fn until_message(&self, job: &str, words: &str) {
        self.until(words, |s| s.message(job).contains(words)).await;
    }
}

/// The status of a NodeClass that is ready, or not.
fn class_ready(status: &str) -> Value {
    let ready = json!({
        "type": "Ready", "status": status, "reason": "Test", "message": "", "lastTransitionTime": world::START,
    });
    json!({"status": {"conditions": [ready]}})
}

/// Plays in virtual time. Returns the `/metrics` page afterwards.
fn played(policy: &str, play: impl AsyncFnOnce(&mut Stage)) -> String {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    ::metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async { play(&mut Stage::new(policy)).await });
    });
    handle.render()
}

/// The series of a metric by their labels.
fn series(text: &str, metric: &str) -> BTreeMap<String, u64> {
    let of_metric = text.lines().filter_map(|line| line.strip_prefix(metric)?.strip_prefix('{'));
    let split = of_metric.filter_map(|line| line.split_once("} "));
    split.map(|(labels, value)| (labels.to_owned(), value.parse().unwrap())).collect()
}

fn counted<const N: usize>(text: &str, metric: &str, expected: [(&str, u64); N]) {
    let expected: BTreeMap<String, u64> =
        expected.into_iter().map(|(labels, count)| (labels.to_owned(), count)).collect();
    assert_eq!(series(text, metric), expected, "{metric}");
}

const CAPACITY: &str = "setu_capacity_validation_total";
const QUOTA: &str = "setu_quota_check_total";

#[test]
fn capacity_gate_results_are_counted_once_per_change() {
    let text = played("defaults: {gates: {capacity: Enforce}}", async |stage| {
        stage.occupy(ID);
        stage.limit("2");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "NodePool gates has a limit of 2 nodes").await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        stage.limit("3");
        stage.until_woken().await;
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(
        &text,
        CAPACITY,
        [("nodepool=\"gates\",result=\"waiting\"", 1), ("nodepool=\"gates\",result=\"passed\"", 1)],
    );
    let text = played("defaults: {gates: {capacity: Warn}}", async |stage| {
        stage.limit("1");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(&text, CAPACITY, [("nodepool=\"gates\",result=\"warned\"", 1)]);
}

/// Counts lists by path and query.
#[derive(Clone)]
struct Lists {
    is_meant: fn(&str, &str) -> bool,
    seen: Arc<AtomicU64>,
}

impl Lists {
    /// Counts from now on.
    fn observe(stage: &Stage, is_meant: fn(&str, &str) -> bool) -> Self {
        let lists = Self { is_meant, seen: Arc::default() };
        stage.cluster.server.observe(Box::new(lists.clone()));
        lists
    }

    fn of_node_pools(stage: &Stage) -> Self {
        Self::observe(stage, |path, query| path.ends_with("/nodepools") && !query.contains("watch=true"))
    }
}

impl Observer for Lists {
    fn committed(&mut self, _: &Change) {}

    fn asked(&mut self, _: &Caller, request: &Request<Bytes>, _: Timestamp) {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        self.seen.fetch_add(u64::from((self.is_meant)(path, query)), Ordering::Relaxed);
    }
}

#[test]
fn gangs_woken_by_the_same_limit_share_lists_of_its_node_pools_claims() {
    played("defaults: {gates: {capacity: Enforce}}", async |stage| {
        let lists = Lists::observe(stage, |path, query| {
            path.ends_with("/nodeclaims") && query.contains("nodepool+in+")
        });
        stage.occupy(ID);
        stage.limit("2");
        let _setu = stage.start();
        for gang in 0..50 {
            stage.submit(&format!("train-{gang}"), 2, "2s");
        }
        for gang in 0..50 {
            stage.until_message(&format!("train-{gang}"), "has a limit of 2 nodes").await;
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
        lists.seen.store(0, Ordering::Relaxed);
        // Room for three gangs.
        stage.limit("8");
        stage.until_woken().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let claims = stage.claims();
        let lists = lists.seen.load(Ordering::Relaxed);
        assert_eq!(claims, 6);
        // One after the other, as many as fit into that time, each for several gangs.
        assert!((1..=20).contains(&lists), "{lists} lists for 50 gangs");
    });
}

#[test]
fn raising_the_limit_of_a_later_tier_wakes_a_gang_that_waits_for_it() {
    let policy = "defaults: {managedResources: [nvidia.com/gpu], retry: {inCheck: {base: 60s, max: 60s}}, \
                  tiers: [{name: first, nodePoolName: gates}, {name: second, nodePoolName: second}]}";
    played(policy, async |stage| {
        let mut second = (*stage.admin.list(&kinds::NODE_POOL)[0]).clone();
        second["metadata"] = json!({"name": "second"});
        second["spec"]["limits"] = json!({"nodes": "2"});
        stage.admin.create(&kinds::NODE_POOL, second).unwrap();
        stage.occupy("second");
        stage.weather(&json!([{"nodePool": ID, "capacity": 0}]));
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "NodePool second has a limit of 2 nodes").await;
        stage.until("the first tier is given back", |s| s.claims() == 0).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let raised = json!({"spec": {"limits": {"nodes": "3"}}});
        stage.admin.merge(&kinds::NODE_POOL, "", "second", &raised).unwrap();
        stage.until_woken().await;
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
}

#[test]
fn a_gang_whose_first_tier_is_not_ready_is_woken_when_a_node_leaves_the_full_pool_of_its_second() {
    let policy = "defaults: {managedResources: [nvidia.com/gpu], \
                  tiers: [{name: first, nodePoolName: gates}, {name: second, nodePoolName: second}]}";
    played(policy, async |stage| {
        let mut class = (*stage.admin.list(&kinds::KWOK_NODE_CLASS)[0]).clone();
        class["metadata"] = json!({"name": "second"});
        stage.admin.create(&kinds::KWOK_NODE_CLASS, class).unwrap();
        let mut second = (*stage.admin.list(&kinds::NODE_POOL)[0]).clone();
        second["metadata"] = json!({"name": "second"});
        second["spec"]["limits"] = json!({"nodes": "2"});
        second["spec"]["template"]["spec"]["nodeClassRef"]["name"] = json!("second");
        stage.admin.create(&kinds::NODE_POOL, second).unwrap();
        stage.occupy("second");
        let is_ready = |s: &Stage| world::is(&s.admin.list(&kinds::NODE_CLAIM)[0], "Initialized");
        stage.until("the other node is ready", is_ready).await;
        stage.admin.merge_status(&kinds::KWOK_NODE_CLASS, "", ID, &class_ready("False")).unwrap();
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "NodePool second has a limit of 2 nodes").await;
        assert!(stage.message("train").contains("NodeClassReady"), "{}", stage.message("train"));
        tokio::time::sleep(Duration::from_secs(20)).await;
        stage.admin.delete(&kinds::NODE_CLAIM, "", "another", Preconditions::default()).unwrap();
        stage.until_woken().await;
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
}

#[test]
fn a_gang_refused_for_unknown_amounts_of_a_type_is_woken_when_a_node_shows_them() {
    played("", async |stage| {
        let unknown = json!({"spec": {
            "limits": {"nvidia.com/gpu": "64"},
            "template": {"spec": {
                "nodeClassRef": {"group": "karpenter.gcp.io", "kind": "GCPNodeClass", "name": ID},
                "requirements": [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p9.huge"]}],
            }},
        }});
        stage.admin.merge(&kinds::NODE_POOL, "", ID, &unknown).unwrap();
        let _setu = stage.start();
        stage.submit("big", 2, "1h");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(stage.message("big").contains("AmountUnknown"), "{}", stage.message("big"));
        assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
        let amounts = json!({"cpu": "90", "memory": "900Gi", "nvidia.com/gpu": "8", "pods": "110"});
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": "first", "labels": {
                "node.kubernetes.io/instance-type": "p9.huge", "karpenter.sh/nodepool": ID,
                "karpenter.sh/initialized": "true", "setu.kueue.x-k8s.io/gang": "another",
            }},
            "spec": {},
        });
        stage.admin.create(&kinds::NODE, node).unwrap();
        let status = json!({"status": {
            "allocatable": amounts, "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": ""}],
        }});
        stage.admin.merge_status(&kinds::NODE, "", "first", &status).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!stage.admin.list(&kinds::NODE_CLAIM).is_empty(), "{}", stage.message("big"));
    });
}

/// A gang of two nodes that a killed Setu left with one NodeClaim. The other is denied until the returned flag is cleared.
async fn begun_by_another(stage: &mut Stage, gang: &str) -> Arc<AtomicBool> {
    let refused = Arc::new(AtomicBool::new(true));
    let rule = Arc::clone(&refused);
    stage.cluster.server.deny(Box::new(move |attempt| {
        let slot = &attempt.object["metadata"]["annotations"][names::SLOT];
        let last = attempt.kind.kind == "NodeClaim" && attempt.verb == "CREATE" && slot == "1";
        (last && rule.load(Ordering::Relaxed)).then(|| Status::webhook("nodeclaims"))
    }));
    let setu = stage.start();
    stage.submit(gang, 2, "2s");
    stage.until("its first NodeClaim", |s| s.admin.list(&kinds::NODE_CLAIM).len() == 1).await;
    setu.kill();
    refused
}

#[test]
fn a_new_leader_counts_pending_creates_before_it_plans_other_gangs() {
    played("defaults: {gates: {capacity: Enforce}}", async |stage| {
        stage.limit("3");
        let refused = begun_by_another(stage, "begun").await;
        stage.submit("a-new-one", 2, "2s");
        stage
            .until("it has quota", |s| {
                s.workload("a-new-one").is_some_and(|w| world::is(&w, "QuotaReserved"))
            })
            .await;
        // The order in which gangs are reconciled differs in each life. Every second life wins an election first.
        let timing = Timing::default();
        for life in 0..20 {
            let election = (life % 2 == 1).then_some(Election { timing, shards: 1 });
            let setu = stage.cluster.start_setu(&Start { election, ..Start::default() });
            tokio::time::sleep(timing.lease * 2).await;
            assert!(setu.context.shards.any_led());
            setu.kill();
            assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 1, "in life {life}");
        }
        refused.store(false, Ordering::Relaxed);
        let _setu = stage.start();
        stage.until("it runs", |s| s.is_admitted("begun")).await;
        stage.until_message("a-new-one", "has a limit of 3 nodes: 2 in use").await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2);
        stage.until("the other runs after it", |s| s.is_admitted("a-new-one")).await;
    });
}

#[test]
fn quota_gate_results_are_counted() {
    let passed = "queue=\"gates\",result=\"passed\"";
    let run = async |stage: &mut Stage| {
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
    };
    // One result for the LocalQueue, and one for each of two resources.
    let text = played("defaults: {}", async |stage| {
        stage.reserve("2");
        run(stage).await;
    });
    counted(&text, QUOTA, [(passed, 3)]);
    let text = played("defaults: {}", run);
    counted(&text, QUOTA, [(passed, 1), ("queue=\"gates\",result=\"unknown\"", 2)]);
    let text = played("defaults: {}", async |stage| {
        stage.reserve("101");
        run(stage).await;
    });
    counted(&text, QUOTA, [(passed, 2), ("queue=\"gates\",result=\"warned\"", 1)]);
    let text = played("defaults: {gates: {quota: Enforce}}", async |stage| {
        stage.reserve("101");
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "101 of 100 nvidia.com/gpu").await;
        stage.reserve("100");
        stage.until_woken().await;
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
    counted(&text, QUOTA, [(passed, 3), ("queue=\"gates\",result=\"waiting\"", 1)]);
}

#[test]
fn the_board_shows_who_waits_for_quota_and_who_holds_it() {
    played("", async |stage| {
        let _setu = stage.start();
        stage.submit("large", 100, "1h");
        stage
            .until("it has quota", |s| {
                s.workload("large").is_some_and(|w| w["status"]["admission"].is_object())
            })
            .await;
        stage.submit("later", 1, "1h");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let queued = (stage.cluster.board())().unwrap().around.queued;
        let reported: Vec<(&str, &str, usize)> =
            queued.iter().map(|q| (q.local_queue.as_str(), q.cluster_queue.as_str(), q.workloads)).collect();
        assert_eq!(reported, [("gates/queue", "gates", 1)], "{queued:?}");
        assert!(queued[0].oldest[0].1.contains("later"), "{queued:?}");
        let held: Vec<(bool, u32)> =
            queued[0].quota_held_by.iter().map(|h| (h.workload.contains("large"), h.pods)).collect();
        assert_eq!((held, queued[0].holders), (vec![(true, 100)], 1), "{queued:?}");
    });
}

#[test]
fn a_gang_that_waits_for_its_local_queue_is_woken_when_it_is_recreated() {
    played("defaults: {gates: {quota: Enforce}}", async |stage| {
        let _setu = stage.start();
        stage.occupy(ID);
        stage.limit("2");
        stage.submit("train", 2, "2s");
        stage.until_message("train", "has a limit of 2 nodes").await;
        stage.admin.delete(&kinds::LOCAL_QUEUE, ID, "queue", Preconditions::default()).unwrap();
        stage.limit("3");
        stage.until_message("train", "LocalQueue queue does not exist").await;
        let objects = scenario::objects(ID, 100).unwrap();
        let queue = objects.into_iter().find(|o| o["kind"] == "LocalQueue").unwrap();
        stage.admin.create(&kinds::LOCAL_QUEUE, queue).unwrap();
        stage.until_woken().await;
    });
}

#[test]
fn a_dry_run_creates_nothing_and_is_reported_by_one_event_and_counted() {
    let text = played("defaults: {strategy: {type: DryRun}}", async |stage| {
        let setu = stage.start();
        stage.submit("train", 3, "2s");
        stage.until_message("train", "strategy DryRun creates nothing").await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let events = stage.admin.list(&kinds::EVENT);
        let reported = events.iter().filter(|e| e["regarding"]["kind"] == "Workload");
        let reported: Vec<(&str, &str)> =
            reported.map(|e| (e["reason"].as_str().unwrap(), e["note"].as_str().unwrap())).collect();
        let [(reason, note)] = reported.as_slice() else { panic!("one Event is enough: {reported:?}") };
        assert_eq!(*reason, "GangWaiting");
        assert!(note.contains("3 nodes: 3 from NodePool gates; they would be created"), "{note}");
        assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
        setu.context.set_gauges();
    });
    counted(&text, CAPACITY, [("nodepool=\"gates\",result=\"passed\"", 1)]);
    assert_eq!(series(&text, "setu_gangs")["state=\"Validating\""], 1);
    counted(&text, "setu_nodeclaims_created_total", []);
}

/// The value of one series.
fn shown(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[test]
fn failed_and_successful_attempts_are_measured() {
    let policy = "defaults:\n  retry: {inCheck: {limit: 3, base: 1s, max: 1s}}\n  \
                  gates: {budget: {prices: {g5.4xlarge: {on-demand: \"7200\"}}}}";
    let text = played(policy, async |stage| {
        stage.weather(&json!([{"nodePool": ID, "capacity": 1}]));
        let setu = stage.start();
        stage.submit("train", 2, "60s");
        let short =
            |s: &Stage| s.workload("train").is_some_and(|w| w.to_string().contains("InsufficientCapacity"));
        stage.until("a shortage", short).await;
        world::calm(&stage.admin);
        stage.until("it runs", |s| s.is_admitted("train")).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        setu.context.set_gauges();
        for reason in ["GangValidated", "GangReady"] {
            let events = stage.admin.list(&kinds::EVENT);
            let reported =
                events.iter().find(|event| event["reason"] == reason).map(|event| event["note"].to_string());
            let cost = ", at most 14400 USD an hour";
            assert!(
                reported.as_ref().is_some_and(|reported| reported.contains(cost)),
                "{reason}: {reported:?}"
            );
        }
    });
    let is = |series: &str, expected: f64| {
        let shown = shown(&text, series);
        assert!((shown - expected).abs() < f64::EPSILON, "{series}: {shown}, not {expected}");
    };
    let between = |series: &str, least: f64, most: f64| {
        let shown = shown(&text, series);
        assert!((least..=most).contains(&shown), "{series}: {shown}, not {least} to {most}");
    };
    is("setu_workloads_processed_total{result=\"approved\"}", 1.0);
    is("setu_gang_provisioning_attempts_total{result=\"success\"}", 1.0);
    between("setu_gang_provisioning_attempts_total{result=\"rollback\"}", 1.0, 3.0);
    is("setu_verdict_delay_seconds_count", 1.0);
    between("setu_verdict_delay_seconds_sum", 0.001, 1.0);
    is("setu_admission_check_latency_seconds_count{result=\"approved\"}", 1.0);
    between("setu_admission_check_latency_seconds_sum{result=\"approved\"}", 2.0, 120.0);
    is("setu_nodeclaim_provisioning_duration_seconds_count{nodepool=\"gates\",result=\"ready\"}", 2.0);
    is("setu_active_nodeclaims{nodepool=\"gates\",state=\"ready\"}", 2.0);
    is("setu_held_nodes{nodepool=\"gates\",state=\"used\"}", 2.0);
    between("setu_gang_state_duration_seconds_sum{state=\"BackingOff\"}", 0.5, 60.0);
    between("setu_wasted_node_seconds_total{reason=\"InsufficientCapacity\"}", 1.0, 120.0);
    is("setu_node_cost_per_hour{nodepool=\"gates\",capacity_type=\"on-demand\",state=\"used\"}", 14_400.0);
    let seconds = shown(&text, "setu_wasted_node_seconds_total{reason=\"InsufficientCapacity\"}");
    is(
        "setu_wasted_cost_cents_total{nodepool=\"gates\",capacity_type=\"on-demand\",reason=\"InsufficientCapacity\"}",
        200.0 * seconds,
    );
}

#[test]
fn nodes_cost_from_their_launch_and_unpriced_nodes_are_counted_separately() {
    let launched = async |stage: &mut Stage| {
        stage.weather(&json!([{"nodePool": ID, "registrationDelay": "1h"}]));
        let setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "0/2 nodes ready").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        setu.context.set_gauges();
    };
    let text = played("defaults: {gates: {budget: {prices: {g5.4xlarge: {on-demand: \"2\"}}}}}", launched);
    let cost = "setu_node_cost_per_hour{nodepool=\"gates\",capacity_type=\"on-demand\",state=\"gathering\"}";
    assert!((shown(&text, cost) - 4.0).abs() < f64::EPSILON, "{text}");
    let text = played("", launched);
    let unpriced = shown(&text, "setu_nodes_without_price{nodepool=\"gates\",capacity_type=\"on-demand\"}");
    assert!((unpriced - 2.0).abs() < f64::EPSILON, "{text}");
}

#[test]
fn nodes_of_a_job_deleted_while_they_come_up_are_traced_and_counted_as_wasted() {
    let mut nodes = Vec::new();
    let text = played("", async |stage| {
        stage.weather(&json!([{"nodePool": ID, "registrationDelay": "1h"}]));
        let (traces, mut sent) = Traces::channel(Sampler::AlwaysOn, 1_000);
        stage.cluster.traces = traces;
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "0/2 nodes ready").await;
        tokio::time::sleep(Duration::from_secs(30)).await;
        // All at once, as when a namespace is deleted: there is no time to roll back.
        let name = stage.workload("train").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        stage.admin.delete(&kinds::JOB, ID, "train", Preconditions::default()).unwrap();
        let free = json!({"metadata": {"finalizers": null}});
        stage.admin.merge(&kinds::WORKLOAD, ID, &name, &free).unwrap();
        let _ = stage.admin.delete(&kinds::WORKLOAD, ID, &name, Preconditions::default());
        stage.until("its nodes are gone", |s| s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;
        // Give the watch time to show that the last one is gone too.
        tokio::time::sleep(Duration::from_secs(1)).await;
        nodes.extend(std::iter::from_fn(|| sent.try_recv().ok()).filter(|span| span.name == "NodeClaim"));
    });
    assert_eq!(nodes.len(), 2, "{nodes:?}");
    let wasted = shown(&text, "setu_wasted_node_seconds_total{reason=\"Deleted\"}");
    assert!((40.0..=180.0).contains(&wasted), "{wasted}");
}

#[test]
fn unused_warm_node_time_is_counted() {
    let text = played("defaults: {custody: {release: Warm, warmFor: 30s}}", async |stage| {
        let setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
        stage.until("its nodes are kept and gone", |s| s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;
        setu.context.set_gauges();
    });
    let kept = shown(&text, "setu_warm_node_seconds_total{nodepool=\"gates\",result=\"unused\"}");
    assert!((60.0..=70.0).contains(&kept), "{kept}");
}

/// The body of an HTTP response. Virtual time stands still during the request.
async fn get(address: SocketAddr, path: &'static str) -> Value {
    let read = move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let text = tokio::task::spawn_blocking(read).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn debug_capacity_lists_shortages_until_they_expire() {
    played("defaults: {retry: {inCheck: {limit: 1, base: 10m, max: 10m}}}", async |stage| {
        stage.weather(&json!([{"nodePool": ID, "capacity": 0}]));
        let setu = stage.start();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes = server::health(Arc::clone(&setu.context), stop.clone());
        let served = tokio::spawn(server::serve(listener, routes, stop.clone()));
        assert_eq!(get(address, "/debug/capacity").await["shortages"], json!([]));
        stage.submit("train", 2, "2s");
        let short =
            |s: &Stage| s.workload("train").is_some_and(|w| w.to_string().contains("InsufficientCapacity"));
        stage.until("a shortage", short).await;
        let shortages = get(address, "/debug/capacity").await["shortages"].clone();
        let [only] = shortages.as_array().unwrap().as_slice() else { panic!("{shortages}") };
        assert_eq!(
            (&only["instanceType"], &only["capacityType"]),
            (&json!("g5.4xlarge"), &json!("on-demand"))
        );
        let until: Timestamp = only["until"].as_str().unwrap().parse().unwrap();
        let left = until.duration_since(stage.cluster.clock.now()).as_secs();
        assert!((150..=180).contains(&left), "{left} s left");
        tokio::time::sleep(Duration::from_secs(181)).await;
        assert_eq!(get(address, "/debug/capacity").await["shortages"], json!([]));
        stop.cancel();
        served.await.unwrap();
    });
}

#[test]
fn a_claim_deleted_before_its_launch_without_an_event_counts_as_a_shortage() {
    played("defaults: {retry: {inCheck: {limit: 1, base: 10m, max: 10m}}}", async |stage| {
        stage.weather(&json!([{"nodePool": ID, "launchDelay": "4m"}]));
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until("both NodeClaims", |s| s.admin.list(&kinds::NODE_CLAIM).len() == 2).await;
        let name = stage.admin.list(&kinds::NODE_CLAIM)[0]["metadata"]["name"].as_str().unwrap().to_owned();
        let board = stage.cluster.board();
        assert!(board().unwrap().around.shortages.is_empty());
        stage.admin.delete(&kinds::NODE_CLAIM, "", &name, Preconditions::default()).unwrap();
        stage.until("it is given back", |s| s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;
        assert!(!board().unwrap().around.shortages.is_empty(), "the next plan would ask for the same again");
    });
}

/// Capacity types of the created NodeClaims, in order.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl Observer for Asked {
    fn committed(&mut self, change: &Change) {
        let (Some(after), None, "NodeClaim") = (&change.after, &change.before, change.kind.kind) else {
            return;
        };
        let requirements = after["spec"]["requirements"].as_array().unwrap();
        let asked = requirements.iter().find(|r| r["key"] == "karpenter.sh/capacity-type").unwrap();
        self.0.lock().unwrap().push(asked["values"][0].as_str().unwrap().to_owned());
    }
}

/// A policy that lets a gang mix both tiers.
fn spot_mixed_with_on_demand() -> String {
    let tier = |name: &str| {
        format!(
            "{{name: {name}, requirements: [{{key: karpenter.sh/capacity-type, operator: In, values: [{name}]}}]}}"
        )
    };
    let tiers = format!("[{}, {}]", tier("spot"), tier("on-demand"));
    format!("defaults: {{mixedTiers: true, managedResources: [nvidia.com/gpu], tiers: {tiers}}}")
}

fn offer_spot_too(stage: &Stage) {
    let any = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.4xlarge"]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
    ]);
    let patch = json!({"spec": {"template": {"spec": {"requirements": any}}}});
    stage.admin.merge(&kinds::NODE_POOL, "", ID, &patch).unwrap();
}

#[test]
fn with_mixed_tiers_a_shortage_of_one_node_costs_one_extra_claim_and_no_rollback() {
    let text = played(&spot_mixed_with_on_demand(), async |stage| {
        offer_spot_too(stage);
        stage.weather(&json!([{"nodePool": ID, "capacityType": "spot", "capacity": 2}]));
        let asked = Asked::default();
        stage.cluster.server.observe(Box::new(asked.clone()));
        let _setu = stage.start();
        stage.submit("train", 3, "2s");
        stage.until("it runs", |s| s.is_admitted("train")).await;
        assert_eq!(*asked.0.lock().unwrap(), ["spot", "spot", "spot", "on-demand"]);
        let reported = stage.admin.list(&kinds::EVENT);
        assert!(reported.iter().all(|event| event["reason"] != "GangRollingBack"), "{reported:?}");
    });
    counted(&text, "setu_retry_attempts_total", [("operation=\"tier\",attempt=\"1\"", 1)]);
}

#[test]
fn with_mixed_tiers_a_gang_backs_off_when_no_tier_has_capacity() {
    played(&spot_mixed_with_on_demand(), async |stage| {
        offer_spot_too(stage);
        stage.weather(&json!([
            {"nodePool": ID, "capacityType": "spot", "capacity": 2},
            {"nodePool": ID, "capacityType": "on-demand", "capacity": 0},
        ]));
        let asked = Asked::default();
        stage.cluster.server.observe(Box::new(asked.clone()));
        let _setu = stage.start();
        stage.submit("train", 3, "2s");
        let rests = |s: &Stage| s.workload("train").is_some_and(|w| w.to_string().contains("BackingOff"));
        stage.until("the attempt is given up", rests).await;
        // Three of the first tier, and one of the second tier, which has no capacity either.
        assert_eq!(*asked.0.lock().unwrap(), ["spot", "spot", "spot", "on-demand"]);
        tokio::time::sleep(Duration::from_mins(5)).await;
        let claims = asked.0.lock().unwrap().len();
        // Each try asks each tier once. A gang without backoff would ask several times a second.
        assert!(claims <= 60, "{claims} NodeClaims in five minutes");
    });
}

#[test]
fn with_mixed_tiers_a_claim_that_vanishes_from_the_first_tier_is_replaced_from_the_second() {
    played(&spot_mixed_with_on_demand(), async |stage| {
        offer_spot_too(stage);
        stage.weather(&json!([
            {"nodePool": ID, "slot": "2", "capacityType": "spot", "capacity": 0},
            {"nodePool": ID, "slot": "0", "capacityType": "spot", "launchDelay": "10m"},
        ]));
        let asked = Asked::default();
        stage.cluster.server.observe(Box::new(asked.clone()));
        let _setu = stage.start();
        stage.submit("train", 3, "2s");
        stage.until("the second tier is asked", |_| asked.0.lock().unwrap().len() == 4).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        let claims = stage.admin.list(&kinds::NODE_CLAIM);
        let first = claims.iter().find(|c| c["metadata"]["annotations"][names::SLOT] == "0").unwrap();
        let name = first["metadata"]["name"].as_str().unwrap();
        stage.admin.delete(&kinds::NODE_CLAIM, "", name, Preconditions::default()).unwrap();
        stage.until("it runs", |s| s.is_admitted("train")).await;
        assert_eq!(*asked.0.lock().unwrap(), ["spot", "spot", "spot", "on-demand", "on-demand"]);
        let reported = stage.admin.list(&kinds::EVENT);
        assert!(reported.iter().all(|event| event["reason"] != "GangRollingBack"), "{reported:?}");
    });
}

/// When the first NodeClaim was marked for deletion, and when the last one was created.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<(Option<Timestamp>, Option<Timestamp>)>>);

impl Observer for Times {
    fn committed(&mut self, change: &Change) {
        let (Some(after), "NodeClaim") = (&change.after, change.kind.kind) else { return };
        let mut times = self.0.lock().unwrap();
        if change.before.is_none() {
            times.1 = Some(change.at);
        }
        if !after["metadata"]["deletionTimestamp"].is_null() {
            times.0.get_or_insert(change.at);
        }
    }
}

/// When a NodeClaim last became ready, and when the last one was created.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<(Option<Timestamp>, Option<Timestamp>)>>);

impl Observer for Arrivals {
    fn committed(&mut self, change: &Change) {
        let (Some(after), "NodeClaim") = (&change.after, change.kind.kind) else { return };
        let initialized = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|c| c["type"] == "Initialized" && c["status"] == "True")
        };
        let mut times = self.0.lock().unwrap();
        match &change.before {
            None => times.1 = Some(change.at),
            Some(before) if initialized(after) && !initialized(before) => times.0 = Some(change.at),
            Some(_) => {}
        }
    }
}

#[test]
fn a_gang_that_waits_for_claims_in_flight_continues_as_soon_as_they_are_ready() {
    played("guards: {claimsInFlight: 2}\ndefaults: {}", async |stage| {
        let times = Arrivals::default();
        stage.cluster.server.observe(Box::new(times.clone()));
        let _setu = stage.start();
        stage.submit("first", 2, "5m");
        stage.until("its NodeClaims", |s| s.admin.list(&kinds::NODE_CLAIM).len() == 2).await;
        stage.submit("train", 2, "2s");
        stage.until_message("train", "guards.claimsInFlight allows 2").await;
        stage.until("its NodeClaims", |s| s.admin.list(&kinds::NODE_CLAIM).len() == 4).await;
        let (ready, created) = *times.0.lock().unwrap();
        let waited = created.unwrap().duration_since(ready.unwrap());
        assert!(waited.as_millis() < 1_500, "it looked again only after {waited:?}");
    });
}

#[test]
fn claims_created_before_a_restart_count_towards_the_guards() {
    played("guards: {createsPerMinute: 3}\ndefaults: {}", async |stage| {
        let setu = stage.start();
        stage.submit("first", 2, "5m");
        stage.until("it runs", |s| s.is_admitted("first")).await;
        setu.kill();
        let _setu = stage.start();
        stage.submit("train", 2, "2s");
        stage.until_message("train", "guards.createsPerMinute allows 3").await;
        stage.until("it runs in the end", |s| s.is_admitted("train")).await;
    });
}

#[test]
fn replacements_count_towards_the_guards() {
    played("guards: {createsPerMinute: 3}\ndefaults: {}", async |stage| {
        let _setu = stage.start();
        stage.submit("first", 2, "10m");
        stage.until("it runs", |s| s.is_admitted("first")).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let lost = stage.admin.list(&kinds::NODE_CLAIM);
        for claim in &lost {
            let name = claim["metadata"]["name"].as_str().unwrap();
            stage.admin.delete(&kinds::NODE_CLAIM, "", name, Preconditions::default()).unwrap();
        }
        let is_new =
            |claim: &Arc<Value>| lost.iter().all(|l| l["metadata"]["uid"] != claim["metadata"]["uid"]);
        let new = |s: &Stage| s.admin.list(&kinds::NODE_CLAIM).iter().filter(|c| is_new(c)).count();
        stage.until("both are replaced", |s| new(s) == 2).await;
        stage.submit("train", 2, "2s");
        stage.until_message("train", "guards.createsPerMinute allows 3").await;
    });
}

#[test]
fn a_replacement_that_the_api_server_refuses_is_reported_and_created_again_after_a_wait() {
    let text = played("defaults: {retry: {inCheck: {base: 30s}}}", async |stage| {
        let _setu = stage.start();
        stage.submit("train", 2, "1h");
        stage.until("it runs", |s| s.is_admitted("train")).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        stage.cluster.denials.begin(Denial::Creates);
        let lost = stage.admin.list(&kinds::NODE_CLAIM)[0]["metadata"]["name"].clone();
        stage.admin.delete(&kinds::NODE_CLAIM, "", lost.as_str().unwrap(), Preconditions::default()).unwrap();
        let note = |s: &Stage| {
            let events = s.admin.list(&kinds::EVENT);
            events.iter().find(|e| e["reason"] == "NodeClaimRefused").map(|e| e["note"].to_string())
        };
        stage.until("an Event", |s| note(s).is_some()).await;
        let note = note(stage).unwrap();
        assert!(note.contains("the API server refused a NodeClaim"), "{note}");
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 1);
        stage.cluster.denials.end();
        let since = stage.cluster.clock.now();
        stage.until("it is replaced", |s| s.admin.list(&kinds::NODE_CLAIM).len() == 2).await;
        assert!(stage.cluster.clock.now().duration_since(since).as_secs() <= 31);
    });
    let creates: u64 = series(&text, "setu_api_requests_total")
        .into_iter()
        .filter(|(labels, _)| labels.contains("post") && labels.contains("nodeclaims"))
        .map(|(_, count)| count)
        .sum();
    assert!((5..14).contains(&creates), "two at first, and one whenever it is reconciled: {creates}");
}

#[test]
fn a_gang_over_the_cost_limit_of_its_local_queue_continues_as_soon_as_nodes_go() {
    let policy = "guards: {perLocalQueue: {maxHourlyCost: \"5\"}}\n\
                  defaults: {gates: {budget: {prices: {g5.4xlarge: {on-demand: \"2\"}}}}}";
    played(policy, async |stage| {
        let times = Times::default();
        stage.cluster.server.observe(Box::new(times.clone()));
        let _setu = stage.start();
        stage.submit("first", 2, "20s");
        stage.until("it runs", |s| s.is_admitted("first")).await;
        stage.submit("train", 1, "2s");
        stage
            .until_message(
                "train",
                "allows 5 USD an hour for nodes of LocalQueue queue: 4 USD so far, and 2 USD more for the gang",
            )
            .await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2);
        stage.until("it runs after the first", |s| s.is_admitted("train")).await;
        let (gone, created) = *times.0.lock().unwrap();
        let waited = created.unwrap().duration_since(gone.unwrap());
        assert!(waited.as_millis() < 1_500, "it looked again only after {waited:?}");
    });
}

/// Submits a gang that the check's parameters refuse.
async fn refused(stage: &Stage) {
    world::parameters(&stage.admin, ID, &json!({"gates": {"budget": {"maxNodes": 2}}}));
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.submit("hopeless", 3, "2s");
    stage.until_message("hopeless", "3 nodes").await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
}

#[test]
fn a_refused_gang_runs_within_seconds_once_its_parameters_allow_it() {
    played("", async |stage| {
        let _setu = stage.start();
        refused(stage).await;
        let more = json!({"spec": {"gates": {"budget": {"maxNodes": 3}}}});
        stage.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &more).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 3, "{}", stage.message("hopeless"));
    });
}

#[test]
fn a_gang_that_fits_no_type_runs_within_seconds_once_its_node_pool_has_one() {
    played("", async |stage| {
        let small =
            json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g4dn.xlarge"]}]);
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": ID});
        let of = |requirements: &Value| json!({"spec": {"template": {"spec": {"nodeClassRef": class, "requirements": requirements}}}});
        stage.admin.merge(&kinds::NODE_POOL, "", ID, &of(&small)).unwrap();
        let _setu = stage.start();
        let mut job = world::job(ID, "large", 2, Some("2s"));
        let limits = json!({"cpu": "1", "nvidia.com/gpu": "4"});
        job["spec"]["template"]["spec"]["containers"][0]["resources"] =
            json!({"requests": limits, "limits": limits});
        stage.admin.create(&kinds::JOB, job).unwrap();
        stage.until_message("large", "too little nvidia.com/gpu").await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
        let large =
            json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.12xlarge"]}]);
        stage.admin.merge(&kinds::NODE_POOL, "", ID, &of(&large)).unwrap();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2, "{}", stage.message("large"));
    });
}

#[test]
fn a_refused_gang_is_deactivated_if_the_policy_rejects_once_retries_are_exhausted() {
    played(
        "defaults: {gates: {budget: {maxNodes: 2}}, retry: {onExhausted: Reject, yield: {limit: 0}}}",
        async |stage| {
            let _setu = stage.start();
            stage.submit("hopeless", 3, "2s");
            let inactive = |s: &Stage| s.workload("hopeless").is_some_and(|w| w["spec"]["active"] == false);
            stage.until("it is deactivated", inactive).await;
            assert!(stage.admin.list(&kinds::NODE_CLAIM).is_empty());
        },
    );
}

fn has_quota(stage: &Stage, job: &str) -> bool {
    stage.workload(job).is_some_and(|workload| world::is(&workload, "QuotaReserved"))
}

#[test]
fn a_gang_queued_behind_a_refused_one_starts_within_a_second() {
    let mut evictions = 0;
    let text = played("defaults: {gates: {budget: {maxNodes: 2}}}", async |stage| {
        let _setu = stage.start();
        tokio::time::sleep(Duration::from_secs(5)).await;
        // Quota for 100 pods: enough for either gang, not for both.
        stage.submit("hopeless", 99, "2s");
        stage.submit("modest", 2, "2s");
        stage.until("the first has quota", |s| has_quota(s, "hopeless")).await;
        let before = stage.cluster.clock.now();
        stage.until("nodes are asked for", |s| !s.admin.list(&kinds::NODE_CLAIM).is_empty()).await;
        let waited = stage.cluster.clock.now().duration_since(before);
        assert!(waited <= jiff::SignedDuration::from_secs(1), "{waited}");
        assert!(has_quota(stage, "modest") && !has_quota(stage, "hopeless"));
        stage.until("it runs", |s| s.is_admitted("modest")).await;
        let workload = stage.workload("hopeless").unwrap();
        assert_eq!(workload["status"]["admissionChecks"][0]["state"], "Retry");
        // It waits for quota again once the policy allows it.
        let text = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
        stage.cluster.change_policy(&format!("{text}defaults: {{gates: {{budget: {{maxNodes: 100}}}}}}"));
        stage.until("it runs, too", |s| s.is_admitted("hopeless")).await;
        let stats = &stage.workload("hopeless").unwrap()["status"]["schedulingStats"];
        evictions = stats["evictions"][0]["count"].as_u64().unwrap();
    });
    // A repeated Retry after an eviction does not count as a yield.
    assert_eq!(series(&text, "setu_admission_check_latency_seconds_count")["result=\"yielded\""], evictions);
}

#[test]
fn a_deadline_does_not_end_a_gang_whose_node_pool_became_ready_behind_a_silent_watch() {
    played("defaults: {deadlines: {gang: 2m}}", async |stage| {
        tokio::time::sleep(Duration::from_secs(1)).await;
        stage.admin.merge_status(&kinds::KWOK_NODE_CLASS, "", ID, &class_ready("False")).unwrap();
        let _setu = stage.start();
        stage.submit("train", 2, "1h");
        stage.until_message("train", "NodeClassReady").await;
        stage.cluster.server.freeze(0);
        stage.admin.merge_status(&kinds::KWOK_NODE_CLASS, "", ID, &class_ready("True")).unwrap();
        tokio::time::sleep(Duration::from_secs(150)).await;
        let journal = stage.workload("train").unwrap()["metadata"]["annotations"].to_string();
        assert!(!journal.contains("NotPlannable"), "{journal}");
        assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 2, "its nodes are asked for: {journal}");
        stage.cluster.server.thaw(0);
        stage.until("it runs", |s| s.is_admitted("train")).await;
    });
}

#[test]
fn a_refusal_of_the_last_tier_is_confirmed_with_a_quorum_read() {
    let tiers = "defaults: {tiers: [{name: a, nodePoolName: gates}, {name: b, nodePoolName: second}]}";
    played(tiers, async |stage| {
        let mut pool = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap().as_ref().clone();
        pool["metadata"] = json!({"name": "second"});
        pool["spec"]["limits"] = json!({"nodes": "1"});
        stage.admin.create(&kinds::NODE_POOL, pool).unwrap();
        stage.weather(&json!([{"nodePool": ID, "capacity": 0}]));
        let _setu = stage.start();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let lists = Lists::of_node_pools(stage);
        stage.submit("train", 2, "1h");
        stage.until_message("train", "LimitTooSmall").await;
        assert_eq!(lists.seen.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn gangs_refused_together_share_quorum_reads() {
    played("defaults: {gates: {budget: {maxNodes: 1}}}", async |stage| {
        let _setu = stage.start();
        tokio::time::sleep(Duration::from_secs(5)).await;
        let lists = Lists::of_node_pools(stage);
        for gang in 0..40 {
            stage.submit(&format!("gang-{gang}"), 2, "1h");
        }
        stage
            .until("all are refused", |s| {
                (0..40).all(|gang| s.message(&format!("gang-{gang}")).contains("2 nodes"))
            })
            .await;
        let lists = lists.seen.load(Ordering::Relaxed);
        assert!(lists <= 10, "{lists} lists for 40 gangs");
    });
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_while_device_classes_may_not_be_read() {
    let mut stage = Stage::new("");
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": ID},
        "spec": {"extendedResourceName": "nvidia.com/gpu"},
    });
    stage.admin.create(&kinds::DEVICE_CLASS, class).unwrap();
    stage.cluster.denials.begin(Denial::DeviceClasses);
    let setu = stage.start();
    stage.submit("gang", 2, "1m");
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 0);
    let closed: Vec<String> =
        setu.context.first_lists.missing().iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
    assert_eq!(closed.len(), 1, "{closed:?}");
    assert!(
        closed[0].ends_with("grant this ServiceAccount get, list and watch on deviceclasses"),
        "{closed:?}"
    );

    stage.cluster.denials.end();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(stage.admin.list(&kinds::NODE_CLAIM).len(), 0);
    let status = stage.admin.list(&kinds::WORKLOAD)[0]["status"].to_string();
    assert!(status.contains("which DeviceClass gates serves"), "{status}");
}
