//! Changes that bring a refused gang back into Kueue's queue, in the embedded cluster and with both queueing strategies.

use crate::page::priced;
use crate::world;
use serde_json::{Value, json};
use setu::plan::market::Market;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_sim::api::{User, kinds};
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "refused";
/// The label that pods and NodePool disagree on.
const TIER: &str = "example.com/tier";

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    /// A cluster in which a gang of three nodes is refused under these parameters.
    async fn new(strategy: &str, refusal: &RefusalCase) -> Self {
        let stage = Self::begin(strategy, refusal).await;
        stage.sleep(150).await;
        assert!(stage.message().contains(refusal.expected), "{}", stage.message());
        assert_eq!(stage.workload()["status"]["admissionChecks"][0]["state"], "Retry");
        assert!(!world::is(&stage.workload(), "QuotaReserved"));
        assert_eq!(stage.claims(), 0);
        stage
    }

    /// The same, without waiting for the refusal.
    async fn begin(strategy: &str, refusal: &RefusalCase) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(refusal.policy));
        let queue = json!({"spec": {"queueingStrategy": strategy}});
        admin.merge(&kinds::CLUSTER_QUEUE, "", ID, &queue).unwrap();
        world::parameters(&admin, ID, &refusal.parameters);
        let setu = cluster.start_setu(&Start::default());
        let stage = Self { cluster, setu, admin };
        stage.sleep(5).await;
        stage.price("2");
        stage.limit(refusal.limit);
        let mut job = world::job(ID, "gang", 3, Some("1h"));
        let pod = &mut job["spec"]["template"]["spec"];
        pod["nodeSelector"] = refusal.selector.clone();
        if let Some(class) = refusal.runtime_class {
            pod["runtimeClassName"] = json!(class);
        }
        if refusal.volume == Volume::Elsewhere {
            let zones = json!([
                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]},
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["g5.4xlarge"]},
            ]);
            let template = json!({"spec": {"template": {"spec": {"requirements": zones}}}});
            stage.admin.merge(&kinds::NODE_POOL, "", ID, &template).unwrap();
            for (kind, object) in volume_in("elsewhere") {
                stage.admin.create(kind, object).unwrap();
            }
        }
        if refusal.volume != Volume::None {
            pod["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
        }
        stage.admin.create(&kinds::JOB, job).unwrap();
        stage
    }

    /// Starts Setu again and allows the gang, which then gets its nodes.
    async fn comes_back_after_a_restart(&mut self, strategy: &str) {
        self.setu = self.cluster.start_setu(&Start::default());
        self.sleep(60).await;
        self.set_parameters(&json!({"gates": {"budget": {"maxNodes": 3}}}));
        self.sleep(30).await;
        assert_eq!(self.claims(), 3, "{strategy}: {:#}", self.workload());
    }

    async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    fn workload(&self) -> Arc<Value> {
        self.admin.list(&kinds::WORKLOAD).pop().unwrap()
    }

    fn message(&self) -> String {
        self.workload()["status"]["admissionChecks"][0]["message"].as_str().unwrap().to_owned()
    }

    fn claims(&self) -> usize {
        self.admin.list(&kinds::NODE_CLAIM).len()
    }

    fn evictions(&self) -> Value {
        self.workload()["status"]["schedulingStats"]["evictions"].clone()
    }

    /// Sets a node's hourly price in Karpenter's metrics.
    fn price(&self, price: &str) {
        let page = priced(["g5.4xlarge", "on-demand", "test-zone-a"], price);
        self.setu.context.take_market(Market::read(&page, self.cluster.clock.now()).unwrap());
    }

    fn limit(&self, nodes: &str) {
        let limits = json!({"spec": {"limits": {"nodes": nodes}}});
        self.admin.merge(&kinds::NODE_POOL, "", ID, &limits).unwrap();
    }

    fn set_parameters(&self, parameters: &Value) {
        let change = json!({ "spec": parameters });
        self.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", ID, &change).unwrap();
    }
}

#[derive(PartialEq)]
enum Volume {
    None,
    /// The volume is in a zone without nodes.
    Elsewhere,
    /// The claim does not exist.
    Missing,
}

struct RefusalCase {
    policy: &'static str,
    parameters: Value,
    selector: Value,
    /// The node limit of the NodePool.
    limit: &'static str,
    /// The volume of the pods.
    volume: Volume,
    /// The RuntimeClass of the pods.
    runtime_class: Option<&'static str>,
    expected: &'static str,
    /// The change: its description, and how it is made.
    change: (&'static str, fn(&mut Stage)),
}

impl RefusalCase {
    fn new(what: &'static str, change: fn(&mut Stage)) -> Self {
        let parameters = json!({"gates": {"budget": {"maxNodes": 2}}});
        let (policy, selector, limit, expected) = ("", json!({}), "3", "takes 3 nodes");
        Self {
            policy,
            parameters,
            selector,
            limit,
            volume: Volume::None,
            runtime_class: None,
            expected,
            change: (what, change),
        }
    }
}

/// A claim and its volume in a zone.
fn volume_in(zone: &str) -> [(&'static kinds::ServedKind, Value); 2] {
    let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": ID},
        "spec": {"claimRef": {"namespace": ID, "name": "data"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}},
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": ID, "name": "data"},
        "spec": {"volumeName": ID},
    });
    [(&kinds::PERSISTENT_VOLUME, volume), (&kinds::PERSISTENT_VOLUME_CLAIM, claim)]
}

fn cost_limit() -> Value {
    json!({"gates": {"budget": {"maxHourlyCost": "5"}}})
}

fn refusals() -> Vec<RefusalCase> {
    let of_money = |what, change| RefusalCase {
        parameters: cost_limit(),
        expected: "takes 6 USD an hour",
        ..RefusalCase::new(what, change)
    };
    vec![
        RefusalCase::new("the Workload", |stage| {
            let mut pod_sets = stage.workload()["spec"]["podSets"].clone();
            pod_sets[0]["count"] = json!(2);
            let name = stage.workload()["metadata"]["name"].as_str().unwrap().to_owned();
            stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"podSets": pod_sets}})).unwrap();
        }),
        RefusalCase {
            policy: "defaults: {gates: {budget: {maxNodes: 2}}}",
            parameters: json!({}),
            ..RefusalCase::new("the policy", |stage| {
                let text = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";
                stage
                    .cluster
                    .change_policy(&format!("{text}defaults: {{gates: {{budget: {{maxNodes: 3}}}}}}"));
            })
        },
        RefusalCase::new("the parameters", |stage| {
            stage.set_parameters(&json!({"gates": {"budget": {"maxNodes": 3}}}));
        }),
        RefusalCase {
            parameters: json!({}),
            selector: json!({TIER: "gold"}),
            expected: "asks for example.com/tier [gold]",
            ..RefusalCase::new("the NodePool", |stage| {
                let labels = json!({"spec": {"template": {"metadata": {"labels": {TIER: "gold"}}}}});
                stage.admin.merge(&kinds::NODE_POOL, "", ID, &labels).unwrap();
            })
        },
        RefusalCase {
            parameters: json!({}),
            limit: "2",
            expected: "0 in use and 3 more for the gang are over it, and so is the gang alone",
            ..RefusalCase::new("the NodePool's limits", |stage| stage.limit("3"))
        },
        RefusalCase {
            parameters: json!({"nodePoolName": "later"}),
            expected: "NodePool later does not exist",
            ..RefusalCase::new("that there is a NodePool", |stage| {
                let pool = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap();
                let metadata = json!({"name": "later"});
                let pool = json!({"apiVersion": pool["apiVersion"], "kind": pool["kind"], "metadata": metadata, "spec": pool["spec"]});
                stage.admin.create(&kinds::NODE_POOL, pool).unwrap();
            })
        },
        RefusalCase {
            parameters: json!({}),
            runtime_class: Some("kata"),
            expected: "names RuntimeClass kata, which does not exist",
            ..RefusalCase::new("that there is a RuntimeClass", |stage| {
                let class = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "kata"});
                stage.admin.create(&kinds::RUNTIME_CLASS, class).unwrap();
            })
        },
        of_money("the budget", |stage| {
            stage.set_parameters(&json!({"gates": {"budget": {"maxHourlyCost": "6"}}}));
        }),
        of_money("a price", |stage| stage.price("1.5")),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_refused_gang_gets_its_nodes_within_seconds_of_the_change_that_allows_it() {
    for strategy in ["BestEffortFIFO", "StrictFIFO"] {
        for refusal in refusals() {
            let mut stage = Stage::new(strategy, &refusal).await;
            let (what, change) = refusal.change;
            change(&mut stage);
            stage.sleep(3).await;
            assert!(stage.claims() > 0, "{what} changed, {strategy}: {:#}", stage.workload());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_does_not_help_a_refused_gang_causes_no_eviction() {
    let refusal = RefusalCase {
        parameters: cost_limit(),
        expected: "takes 6 USD an hour",
        ..RefusalCase::new("", |_| ())
    };
    let stage = Stage::new("StrictFIFO", &refusal).await;
    let before = stage.evictions();
    for price in ["1.9", "9", "1.8"] {
        stage.price(price);
        stage.sleep(3).await;
        assert_eq!(stage.evictions(), before, "at {price}");
    }
    let queue = stage.admin.get(&kinds::CLUSTER_QUEUE, "", ID).unwrap();
    let another = json!({"apiVersion": queue["apiVersion"], "kind": queue["kind"], "metadata": {"name": "another"},
        "spec": {}});
    stage.admin.create(&kinds::CLUSTER_QUEUE, another).unwrap();
    stage.limit("90");
    stage.sleep(3).await;
    assert_eq!(
        stage.evictions(),
        before,
        "after changes of another ClusterQueue and of the NodePool's limits"
    );
    stage.price("1.6");
    stage.sleep(3).await;
    assert_eq!(stage.claims(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_gang_that_a_user_deactivated_stays_deactivated() {
    let refusal = RefusalCase::new("", |_| ());
    let stage = Stage::new("StrictFIFO", &refusal).await;
    let name = stage.workload()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"active": false}})).unwrap();
    stage.sleep(3).await;
    stage.set_parameters(&json!({"gates": {"budget": {"maxNodes": 3}}}));
    stage.sleep(600).await;
    assert_eq!((stage.workload()["spec"]["active"].clone(), stage.claims()), (json!(false), 0));
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"active": true}})).unwrap();
    stage.sleep(3).await;
    assert_eq!(stage.claims(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_refused_gang_comes_back_after_a_kill_right_after_its_eviction() {
    for strategy in ["BestEffortFIFO", "StrictFIFO"] {
        let mut stage = Stage::begin(strategy, &RefusalCase::new("", |_| ())).await;
        let is_evicted_with_retry = |workload: &Value| {
            let retry = workload["status"]["admissionChecks"][0]["state"] == "Retry";
            retry && world::is(workload, "Evicted") && !world::is(workload, "QuotaReserved")
        };
        while !stage.admin.list(&kinds::WORKLOAD).pop().is_some_and(|w| is_evicted_with_retry(&w)) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.setu.kill();
        stage.sleep(20).await;
        assert!(is_evicted_with_retry(&stage.workload()));
        stage.comes_back_after_a_restart(strategy).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_refused_for_its_volume_stays_refused_if_something_else_changes() {
    let expected = "[elsewhere]";
    let refusal = RefusalCase {
        parameters: json!({}),
        volume: Volume::Elsewhere,
        expected,
        ..RefusalCase::new("", |_| ())
    };
    let stage = Stage::new("StrictFIFO", &refusal).await;
    let before = stage.evictions();
    stage.limit("90");
    stage.sleep(3).await;
    assert_eq!(stage.evictions(), before);
}

#[tokio::test(start_paused = true)]
async fn a_refused_gang_comes_back_after_its_journal_was_erased_while_setu_was_down() {
    for strategy in ["BestEffortFIFO", "StrictFIFO"] {
        let mut stage = Stage::new(strategy, &RefusalCase::new("", |_| ())).await;
        stage.setu.kill();
        let name = stage.workload()["metadata"]["name"].as_str().unwrap().to_owned();
        let erased = json!({"metadata": {"annotations": null}});
        stage.admin.merge(&kinds::WORKLOAD, ID, &name, &erased).unwrap();
        stage.comes_back_after_a_restart(strategy).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_gang_refused_for_a_device_class_gets_its_nodes_once_a_node_shows_the_resource() {
    let stage = Stage::new("StrictFIFO", &RefusalCase::new("", |_| ())).await;
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": ID},
        "spec": {"extendedResourceName": "nvidia.com/gpu"},
    });
    stage.admin.create(&kinds::DEVICE_CLASS, class).unwrap();
    stage.set_parameters(&json!({"gates": {"budget": {"maxNodes": 3}}}));
    stage.sleep(150).await;
    assert_eq!(stage.claims(), 0);
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "spec": {},
        "metadata": {"name": "another", "labels": {
            "node.kubernetes.io/instance-type": "g5.4xlarge", "karpenter.sh/nodepool": ID,
            "karpenter.sh/initialized": "true", "setu.kueue.x-k8s.io/gang": "another",
        }},
    });
    stage.admin.create(&kinds::NODE, node).unwrap();
    let amounts = json!({"cpu": "15", "memory": "60Gi", "pods": "110", "nvidia.com/gpu": "1"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": ""});
    let shown = json!({"status": {"allocatable": amounts, "capacity": amounts, "conditions": [ready]}});
    stage.admin.merge_status(&kinds::NODE, "", "another", &shown).unwrap();
    stage.sleep(3).await;
    assert_eq!(stage.claims(), 3, "{}", stage.message());
}

#[tokio::test(start_paused = true)]
async fn a_gang_refused_by_one_setu_is_not_queued_by_another() {
    let policy = "defaults: {retry: {yield: {base: 1h, max: 1h}}}";
    let mut stage = Stage::new("StrictFIFO", &RefusalCase { policy, ..RefusalCase::new("", |_| ()) }).await;
    let _another = world::another_setu(&mut stage.cluster, &stage.admin);
    stage.sleep(5).await;
    let before = stage.workload()["metadata"]["resourceVersion"].clone();
    stage.sleep(300).await;
    assert_eq!(stage.workload()["metadata"]["resourceVersion"], before, "{:#}", stage.workload());
    stage.set_parameters(&json!({"gates": {"budget": {"maxNodes": 3}}}));
    stage.sleep(3).await;
    assert_eq!(stage.claims(), 3, "{:#}", stage.workload());
}

#[tokio::test(start_paused = true)]
async fn a_missing_volume_is_waited_for_once_and_then_refused_but_never_rejected() {
    let reject = json!({"retry": {"onExhausted": "Reject", "yield": {"limit": 0}}});
    let (volume, expected) = (Volume::Missing, "PersistentVolumeClaim data does not exist");
    let refusal = RefusalCase { parameters: reject, volume, expected, ..RefusalCase::new("", |_| ()) };
    let stage = Stage::begin("StrictFIFO", &refusal).await;
    stage.sleep(20).await;
    assert!(world::is(&stage.workload(), "QuotaReserved"), "{}", stage.message());
    let mut held = 0;
    stage.sleep(20).await;
    for _ in 0..300 {
        held += usize::from(world::is(&stage.workload(), "QuotaReserved"));
        stage.sleep(1).await;
    }
    assert!(held <= 10, "it held quota in {held} of 300 seconds");
    assert!(stage.message().contains(expected), "{}", stage.message());
    for (kind, object) in volume_in("test-zone-a") {
        stage.admin.create(kind, object).unwrap();
    }
    stage.sleep(75).await;
    assert!(stage.claims() > 0, "{:#}", stage.workload());
}

#[tokio::test(start_paused = true)]
async fn a_missing_node_pool_never_rejects_a_workload() {
    let reject = json!({"retry": {"onExhausted": "Reject", "yield": {"limit": 0}}, "nodePoolName": "later"});
    let expected = "NodePool later does not exist";
    let stage = Stage::new(
        "StrictFIFO",
        &RefusalCase { parameters: reject, expected, ..RefusalCase::new("", |_| ()) },
    )
    .await;
    stage.sleep(1_000).await;
    assert_eq!(stage.workload()["status"]["admissionChecks"][0]["state"], "Retry");
}
