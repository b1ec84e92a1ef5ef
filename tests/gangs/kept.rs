//! Objects left behind or kept in the embedded cluster: Workloads held until their nodes are gone, slices of elastic
//! Jobs, and checks answered in place of Kueue's own controller.

use crate::world::{self, is};
use serde_json::{Value, json};
use setu::controllers::context::Options;
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu::telemetry::metrics;
use setu_sim::api::kinds::{self, ServedKind};
use setu_sim::api::{Preconditions, Status, User};
use setu_sim::denials::Denial;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const ID: &str = "kept";

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    fn new(options: Options, defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        let setu = cluster.start_setu(&Start { options, ..Start::default() });
        Self { cluster, setu, admin }
    }

    /// Makes the queue's only check Kueue's own, and gives its flavor a topology of racks.
    fn places_by_rack(&self) {
        // The controllerName of a check is immutable, so the check is recreated.
        self.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
        world::create_check(&self.admin, ID, names::PROVISIONING_REQUEST);
        world::add_racks(&self.admin, ID);
    }

    /// Puts the gang's nodes in these racks, in turn.
    async fn racks(&self, racks: [&str; 2]) {
        let up = |s: &Self| {
            let up = |c: &Arc<Value>| is(c, "Initialized");
            s.claims().len() == 2 && s.claims().iter().all(up)
        };
        self.until("its nodes are up", 120, up).await;
        for (node, rack) in self.admin.list(&kinds::NODE).iter().zip(racks) {
            let rack = json!({"metadata": {"labels": {"example.com/rack": rack}}});
            self.admin.merge(&kinds::NODE, "", node["metadata"]["name"].as_str().unwrap(), &rack).unwrap();
        }
    }

    /// Adds another check to the queue, which no controller answers.
    fn awaits_another_check(&self) {
        world::create_active_check(&self.admin, "other", "e2e.setu/nobody");
        world::set_checks(&self.admin, ID, &[ID, "other"]);
    }

    /// The entry of Setu's check.
    fn entry(&self, name: &str) -> Value {
        let checks = self.workload(name).and_then(|w| w["status"]["admissionChecks"].as_array().cloned());
        checks.into_iter().flatten().find(|c| c["name"] == ID).unwrap_or_default()
    }

    fn verdict(&self, name: &str) -> String {
        self.entry(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Kills Setu and starts it again.
    fn restart(&mut self, options: Options) {
        self.setu.kill();
        self.setu = self.cluster.start_setu(&Start { options, ..Start::default() });
    }

    fn job(&self, name: &str, queue: &Value) -> Arc<Value> {
        self.job_with(name, queue, &json!({}))
    }

    /// A Job of two pods with these annotations.
    fn job_with(&self, name: &str, queue: &Value, annotations: &Value) -> Arc<Value> {
        let mut job = world::job(ID, name, 2, None);
        job["metadata"]["labels"] = queue.clone();
        job["spec"]["template"]["metadata"]["annotations"] = annotations.clone();
        self.admin.create(&kinds::JOB, job).unwrap()
    }

    fn claims(&self) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::NODE_CLAIM)
    }

    fn workload(&self, name: &str) -> Option<Arc<Value>> {
        self.admin
            .list(&kinds::WORKLOAD)
            .into_iter()
            .find(|w| w["metadata"]["name"].as_str().unwrap().contains(name))
    }

    fn journal(&self, name: &str) -> String {
        let workload = self.workload(name);
        let journal = workload.map(|w| w["metadata"]["annotations"][names::journal_key(ID)].clone());
        journal.map_or_else(String::new, |j| j.as_str().unwrap_or_default().to_owned())
    }

    fn is_in(&self, name: &str, state: &str) -> bool {
        self.journal(name).contains(&format!("\"state\":\"{state}\""))
    }

    fn is(&self, name: &str, condition: &str) -> bool {
        let workload = self.workload(name);
        workload.is_some_and(|w| is(&w, condition))
    }

    fn is_held(&self, name: &str) -> bool {
        let finalizer = json!(names::FINALIZER);
        self.workload(name)
            .is_some_and(|w| w["metadata"]["finalizers"].as_array().is_some_and(|f| f.contains(&finalizer)))
    }

    async fn until(&self, what: &str, seconds: u64, mut holds: impl FnMut(&Self) -> bool) {
        // Often, to see what holds only for a moment.
        let step = Duration::from_millis(2);
        let came = world::until(Duration::from_secs(seconds), step, || holds(self)).await;
        let seen = || (self.claims().len(), self.admin.list(&kinds::WORKLOAD));
        assert!(came, "not within {seconds} s: {what}; claims and Workloads: {:#?}", seen());
    }

    /// Deletes every object in the namespace, as the namespace controller does.
    fn end_namespace(&self) {
        let of: [&ServedKind; 4] = [&kinds::JOB, &kinds::POD, &kinds::WORKLOAD, &kinds::LOCAL_QUEUE];
        for kind in of {
            for object in self.admin.list_in(kind, ID) {
                let name = object["metadata"]["name"].as_str().unwrap();
                let _ = self.admin.delete(kind, ID, name, Preconditions::default());
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.admin.list_in(&kinds::WORKLOAD, ID).is_empty()
    }

    /// Finishes this Job, and deletes it and its pods. Returns the name of its Workload, which stays.
    fn end(&self, job: &str) -> String {
        let workload = self.workload(job).unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        self.finish(&workload, "Succeeded");
        self.admin.delete(&kinds::JOB, ID, job, Preconditions::default()).unwrap();
        for pod in self.admin.list_in(&kinds::POD, ID) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            let _ = self.admin.delete(&kinds::POD, ID, name, Preconditions::default());
        }
        workload
    }
}

fn queued() -> Value {
    json!({"kueue.x-k8s.io/queue-name": "queue"})
}

const HOLDS: Options = Options { workload_finalizer: true, tas_compat: false, provisioning_requests: false };

#[tokio::test(start_paused = true)]
async fn a_held_workload_stays_until_its_nodes_are_gone_and_its_end_is_recorded() {
    let stage = Stage::new(HOLDS, "{}");
    stage.job("gang", &queued());
    stage.until("it runs", 120, |s| s.is("gang", "Admitted") && s.claims().len() == 2).await;
    assert!(stage.is_held("gang"));
    stage.end_namespace();
    let mut last = String::new();
    stage
        .until("its namespace is empty", 60, |s| {
            let left = s.claims().len();
            assert!(left == 0 || !s.is_empty(), "the Workload went before {left} nodes");
            last =
                Some(s.journal("gang")).filter(|journal| !journal.is_empty()).unwrap_or_else(|| last.clone());
            s.is_empty()
        })
        .await;
    assert!(last.contains("\"state\":\"Released\""), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_second_setu_does_not_remove_the_finalizer_of_the_first() {
    let mut stage = Stage::new(HOLDS, "{}");
    let _another = world::another_setu(&mut stage.cluster, &stage.admin);
    tokio::time::sleep(Duration::from_secs(5)).await;
    stage.job("gang", &queued());
    stage.until("it is held", 60, |s| s.is_held("gang")).await;
    for _ in 0..3_000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(stage.is_held("gang"));
    }
    stage.until("it runs", 300, |s| s.is("gang", "Admitted")).await;
    stage.end_namespace();
    stage.until("it is gone with its nodes", 60, |s| s.is_empty() && s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_can_be_deleted_in_any_state_of_its_gangs() {
    for (defaults, state) in [
        ("{strategy: {type: DryRun}}", "Validating"),
        ("{deadlines: {launch: 1s}, retry: {inCheck: {limit: 9, base: 1h, max: 1h}}}", "BackingOff"),
        ("{}", "WaitingReady"),
        ("{}", "Approved"),
    ] {
        let stage = Stage::new(HOLDS, defaults);
        stage.job("gang", &queued());
        stage.until(state, 300, |s| s.is_in("gang", state)).await;
        stage.end_namespace();
        stage.until("its namespace is empty", 60, Stage::is_empty).await;
        stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_never_goes_does_not_block_its_namespace_forever() {
    let stage = Stage::new(HOLDS, "{}");
    stage.job("gang", &queued());
    stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
    for claim in stage.claims() {
        let stuck = json!({"metadata": {"finalizers": ["example.com/for-ever", "karpenter.sh/termination"]}});
        stage
            .admin
            .merge(&kinds::NODE_CLAIM, "", claim["metadata"]["name"].as_str().unwrap(), &stuck)
            .unwrap();
    }
    stage.end_namespace();
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(stage.is_held("gang"), "its nodes are waited for");
    stage.until("its namespace is empty", 150, Stage::is_empty).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn requests_that_setu_is_denied_do_not_block_a_namespace_forever() {
    for denial in [Denial::Deletes, Denial::Verdicts] {
        let stage = Stage::new(HOLDS, "{}");
        stage.job("gang", &queued());
        stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
        stage.cluster.denials.begin(denial);
        stage.end_namespace();
        stage.until("its namespace is empty", 600, Stage::is_empty).await;
        stage.cluster.denials.end();
        stage.until("no node is left", 600, |s| s.claims().is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_expired_while_the_gang_ran_does_not_fail_its_next_reservation() {
    let mut stage = Stage::new(Options::default(), "{custody: {holdLimit: 10m}, deadlines: {gang: 5m}}");
    stage.job_with("gang", &queued(), &json!({"e2e.setu/run-for": "1h"}));
    stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
    let nodes = stage.admin.list(&kinds::NODE);
    tokio::time::sleep(Duration::from_mins(15)).await;
    // Setu is down while the gang has no quota for a moment.
    stage.setu.kill();
    let name = stage.workload("gang").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    for active in [false, true] {
        stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"active": active}})).unwrap();
        stage.until("Kueue has seen it", 60, |s| s.is("gang", "QuotaReserved") == active).await;
    }
    assert!(!stage.is("gang", "Admitted") && stage.is_in("gang", "Approved"));
    stage.restart(Options::default());
    stage.until("it runs again", 120, |s| s.is("gang", "Admitted")).await;
    assert!(!stage.journal("gang").contains("lastFailure"), "{}", stage.journal("gang"));
    tokio::time::sleep(Duration::from_mins(9)).await;
    assert!(stage.is("gang", "Admitted"));
    assert!(
        stage.admin.list(&kinds::NODE).iter().all(|node| !nodes.contains(node)),
        "it has nodes of its own"
    );
}

/// A foreign pod that requests all GPUs of a node except for `leaves`.
fn stranger(node: &Value, leaves: u32) -> Value {
    let gpus: u32 = node["status"]["allocatable"]["nvidia.com/gpu"].as_str().unwrap().parse().unwrap();
    let requests = json!({"nvidia.com/gpu": (gpus - leaves).to_string()});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": ID, "name": "stranger"},
        "spec": {
            "nodeName": node["metadata"]["name"], "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "none", "resources": {"requests": requests, "limits": requests}}],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn untainted_nodes_are_checked_for_foreign_pods_each_minute_until_admission() {
    for (pinning, lists_pods) in [("Selector", true), ("SelectorAndTaint", false)] {
        let stage = Stage::new(Options::default(), &format!("{{custody: {{pinning: {pinning}}}}}"));
        stage.awaits_another_check();
        stage.job("gang", &queued());
        stage.until("Ready is said", 120, |s| s.verdict("gang") == "Ready").await;
        assert!(!stage.is("gang", "Admitted"), "another check is open");
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(stage.verdict("gang"), "Ready");
        let node = stage.admin.list(&kinds::NODE).remove(0);
        stage.admin.create(&kinds::POD, stranger(&node, 0)).unwrap();
        if !lists_pods {
            tokio::time::sleep(Duration::from_mins(5)).await;
            assert_eq!(stage.verdict("gang"), "Ready");
            continue;
        }
        stage.until("Ready is taken back", 70, |s| s.verdict("gang") == "Pending").await;
        let message = stage.entry("gang")["message"].to_string();
        assert!(
            message.contains("1/2 nodes still ready") && message.contains("other pods to free"),
            "{message}"
        );
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(stage.is_in("gang", "Approved") && stage.verdict("gang") == "Pending", "it ends nothing");
        stage.admin.delete(&kinds::POD, ID, "stranger", Preconditions::default()).unwrap();
        stage.until("Ready is said again", 20, |s| s.verdict("gang") == "Ready").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_is_removed_after_the_option_is_switched_off() {
    let mut stage = Stage::new(HOLDS, "{strategy: {type: DryRun}}");
    stage.job("gang", &queued());
    stage.until("it is held", 60, |s| s.is_held("gang")).await;
    stage.restart(Options::default());
    stage.until("it runs on", 60, |s| s.is_in("gang", "Validating")).await;
    let off = json!({"spec": {"active": false}});
    let name = stage.workload("gang").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &off).unwrap();
    stage.until("it is let go", 60, |s| !s.is_held("gang")).await;
}

/// A slice that has Kueue's finalizer.
fn slice(job: &Value, name: &str, pods: usize, replaces: Option<&str>) -> Value {
    let mut slice = world::slice(ID, job, name, pods, replaces);
    slice["metadata"]["finalizers"] = json!(["kueue.x-k8s.io/resource-in-use"]);
    slice
}

impl Stage {
    fn finish(&self, name: &str, reason: &str) {
        let workload = self.workload(name).unwrap();
        let mut conditions = workload["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let now = self.cluster.clock.now();
        conditions.push(json!({
            "type": "Finished", "status": "True", "reason": reason, "message": "",
            "lastTransitionTime": now.to_string(),
        }));
        let status = json!({"status": {"conditions": conditions}});
        self.admin.merge_status(&kinds::WORKLOAD, ID, name, &status).unwrap();
    }

    /// Deletes a NodeClaim of this Workload.
    async fn lose_one(&self, name: &str) {
        let claim = self.claims_of(name).remove(0);
        let name = claim["metadata"]["name"].as_str().unwrap();
        self.admin.delete(&kinds::NODE_CLAIM, "", name, Preconditions::default()).unwrap();
        self.until("it is gone", 60, |s| s.admin.get(&kinds::NODE_CLAIM, "", name).is_none()).await;
    }

    fn claims_of(&self, name: &str) -> Vec<Arc<Value>> {
        let workload = json!(format!("{ID}/{name}"));
        let mut claims = self.claims();
        claims.retain(|c| c["metadata"]["annotations"][names::WORKLOAD] == workload);
        claims
    }
}

#[tokio::test(start_paused = true)]
async fn an_elastic_job_keeps_its_nodes_as_it_grows_and_gives_all_back_at_its_end() {
    // Kueue 0.18 gives the second reason.
    for reason in ["WorkloadSliceReplaced", "OutOfSync"] {
        grows_and_ends(reason).await;
    }
}

/// A Job that runs with the first number of pods grows to the second. Kueue finishes the replaced slice with this reason.
async fn grow(stage: &Stage, job: &Value, (first, second): (usize, usize), reason: &str) {
    stage.admin.create(&kinds::WORKLOAD, slice(job, "first", first, None)).unwrap();
    stage.until("the first slice is admitted", 120, |s| s.is("first", "Admitted")).await;
    assert_eq!(stage.claims_of("first").len(), first);
    stage.admin.create(&kinds::WORKLOAD, slice(job, "second", second, Some("first"))).unwrap();
    stage.until("the second slice has its quota", 60, |s| s.is("second", "QuotaReserved")).await;
    stage.finish("first", reason);
    stage.until("the second slice is admitted", 120, |s| s.is("second", "Admitted")).await;
}

/// Kueue finishes the replaced slice with this reason.
async fn grows_and_ends(reason: &str) {
    let stage = Stage::new(Options::default(), "{}");
    // Kueue does not manage this Job: the test creates its Workloads.
    let job = stage.job("elastic", &json!({}));
    grow(&stage, &job, (2, 5), reason).await;
    assert_eq!(
        (stage.claims_of("first").len(), stage.claims_of("second").len()),
        (2, 3),
        "only what is more"
    );
    let labels: BTreeSet<String> =
        stage.claims().iter().map(|c| c["metadata"]["labels"][names::GANG].to_string()).collect();
    assert_eq!(labels.len(), 1, "the pods of both have the selector of the first");
    // The first slice's Workload may be deleted long before the Job ends.
    stage.admin.merge(&kinds::WORKLOAD, ID, "first", &json!({"metadata": {"finalizers": []}})).unwrap();
    stage.admin.delete(&kinds::WORKLOAD, ID, "first", Preconditions::default()).unwrap();
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(stage.claims().len(), 5, "pods of the first slice run on");
    stage.finish("second", "Succeeded");
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_node_of_a_replaced_slice_is_replaced_while_the_job_needs_it() {
    let stage = Stage::new(Options::default(), "{}");
    let job = stage.job("elastic", &json!({}));
    grow(&stage, &job, (2, 3), "WorkloadSliceReplaced").await;
    stage.lose_one("first").await;
    stage.until("it is made again", 120, |s| s.claims_of("first").len() == 2).await;
    // Kueue lowers the count in place when the Job shrinks.
    let pods =
        json!({"spec": {"podSets": [{"name": "main", "count": 1, "template": job["spec"]["template"]}]}});
    stage.admin.merge(&kinds::WORKLOAD, ID, "second", &pods).unwrap();
    stage.lose_one("first").await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(stage.claims().len(), 2, "two nodes are enough for one pod");
    stage.finish("second", "Succeeded");
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(stage.claims().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_evicted_job_gives_up_the_nodes_of_all_its_slices_and_gets_as_many_when_it_runs_again() {
    let stage = Stage::new(Options::default(), "{}");
    let job = stage.job("elastic", &json!({}));
    grow(&stage, &job, (2, 5), "WorkloadSliceReplaced").await;
    assert_eq!((stage.claims_of("first").len(), stage.claims_of("second").len()), (2, 3));
    let active = |active: bool| {
        let patch = json!({"spec": {"active": active}});
        stage.admin.merge(&kinds::WORKLOAD, ID, "second", &patch).unwrap();
    };
    active(false);
    stage.until("no node is left", 300, |s| s.claims().is_empty()).await;
    active(true);
    stage.until("it runs again", 300, |s| s.is("second", "Admitted")).await;
    assert_eq!((stage.claims_of("first").len(), stage.claims_of("second").len()), (0, 5));
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(stage.claims().len(), 5, "no node is replaced for the first slice");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_shrank_and_grows_again_uses_the_nodes_it_kept() {
    let stage = Stage::new(Options::default(), "{}");
    let job = stage.job("elastic", &json!({}));
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "first", 3, None)).unwrap();
    stage.until("the first slice is admitted", 120, |s| s.is("first", "Admitted")).await;
    let pods =
        json!({"spec": {"podSets": [{"name": "main", "count": 1, "template": job["spec"]["template"]}]}});
    stage.admin.merge(&kinds::WORKLOAD, ID, "first", &pods).unwrap();
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "second", 4, Some("first"))).unwrap();
    stage.until("the second slice has its quota", 60, |s| s.is("second", "QuotaReserved")).await;
    stage.finish("first", "WorkloadSliceReplaced");
    stage.until("the second slice is admitted", 120, |s| s.is("second", "Admitted")).await;
    assert_eq!((stage.claims_of("first").len(), stage.claims_of("second").len()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_later_slice_keeps_its_ready_node_when_another_node_is_lost() {
    let stage = Stage::new(
        Options::default(),
        "{colocation: {topologyKey: topology.kubernetes.io/zone, mode: Preferred}}",
    );
    let requirement = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
    let requirements = json!([
        requirement("node.kubernetes.io/instance-type", &["g5.4xlarge"]),
        requirement("karpenter.sh/capacity-type", &["on-demand"]),
        requirement("topology.kubernetes.io/zone", &["us-east-1a", "us-east-1b"]),
    ]);
    let template = json!({"spec": {"template": {"spec": {"requirements": requirements}}}});
    stage.admin.merge(&kinds::NODE_POOL, "", ID, &template).unwrap();
    let weather = |rules: Value| json!({"data": {ID: json!({"rules": rules}).to_string()}});
    let mut first = weather(json!([{"zone": "us-east-1a", "capacity": 0}]));
    first["apiVersion"] = json!("v1");
    first["kind"] = json!("ConfigMap");
    first["metadata"] = json!({"namespace": "kube-system", "name": "weather"});
    stage.admin.create(&kinds::CONFIG_MAP, first).unwrap();
    let change = |rules: Value| {
        stage.admin.merge(&kinds::CONFIG_MAP, "kube-system", "weather", &weather(rules)).unwrap();
    };
    let job = stage.job("elastic", &json!({}));
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "first", 2, None)).unwrap();
    stage.until("the first slice is admitted", 300, |s| s.is("first", "Admitted")).await;
    // The additional nodes come up in the other zone, one of them long before the other.
    change(json!([{"zone": "us-east-1b", "capacity": 0}, {"slot": "1", "registrationDelay": "3m"}]));
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "second", 4, Some("first"))).unwrap();
    let ready = |s: &Stage| -> Vec<Arc<Value>> {
        let mut claims = s.claims_of("second");
        claims.retain(|c| c["status"]["nodeName"].is_string());
        claims
    };
    let comes = |s: &Stage| s.is_in("second", "WaitingReady") && s.claims_of("second").len() == 2;
    stage.until("one node is there", 300, |s| comes(s) && ready(s).len() == 1).await;
    let one = ready(&stage).remove(0);
    assert_eq!(one["metadata"]["labels"]["topology.kubernetes.io/zone"], "us-east-1a");
    change(json!([{"zone": "us-east-1b", "capacity": 0}]));
    let lost = stage.claims_of("second").into_iter().find(|c| c["metadata"]["uid"] != one["metadata"]["uid"]);
    let lost = lost.unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.delete(&kinds::NODE_CLAIM, "", &lost, Preconditions::default()).unwrap();
    stage.finish("first", "WorkloadSliceReplaced");
    stage.until("the second slice is admitted", 300, |s| s.is("second", "Admitted")).await;
    let claims = stage.claims_of("second");
    assert!(claims.iter().any(|c| c["metadata"]["uid"] == one["metadata"]["uid"]), "{claims:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_slice_without_nodes_waits_and_leaves_the_running_slice_alone() {
    let retry =
        "{retry: {inCheck: {limit: 0}, yield: {limit: 0}, onExhausted: Reject}, deadlines: {launch: 5s}}";
    let stage = Stage::new(Options::default(), retry);
    let job = stage.job("elastic", &json!({}));
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "first", 2, None)).unwrap();
    stage.until("the first slice is admitted", 120, |s| s.is("first", "Admitted")).await;
    world::weather(&stage.admin, &json!([{"nodePool": ID, "launchDelay": "1h"}]));
    stage.admin.create(&kinds::WORKLOAD, slice(&job, "second", 4, Some("first"))).unwrap();
    stage.until("the second slice is planned", 60, |s| s.is_in("second", "Provisioning")).await;
    stage.finish("first", "WorkloadSliceReplaced");
    for _ in 0..3_000 {
        let workload = stage.workload("second").unwrap();
        assert_eq!(workload["status"]["admissionChecks"][0]["state"], "Pending");
        assert_eq!(stage.claims_of("first").len(), 2);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        stage.journal("second").contains("\"to\":\"BackingOff\""),
        "it tries on: {}",
        stage.journal("second")
    );
}

#[tokio::test(start_paused = true)]
async fn ready_is_reported_without_nodes_if_multikueue_sends_the_pods_elsewhere() {
    for (controller, nodes) in [(names::MULTIKUEUE, 0), ("example.com/other", 2)] {
        let stage = Stage::new(Options::default(), "{}");
        world::create_active_check(&stage.admin, "away", controller);
        world::set_checks(&stage.admin, ID, &[ID, "away"]);
        stage.job("gang", &queued());
        let reported = |s: &Stage| {
            let workload = s.workload("gang").unwrap_or_default();
            let entries = workload["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
            entries.iter().any(|e| e["name"] == ID && e["state"] == "Ready")
        };
        stage.until("it is reported Ready", 120, reported).await;
        assert_eq!(stage.claims().len(), nodes, "{controller}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_tas_compat_kueues_own_checks_are_answered_once_nodes_show_their_topology() {
    let compat = Options { tas_compat: true, ..Options::default() };
    for (options, answered) in [(compat, true), (Options::default(), false)] {
        let stage = Stage::new(options, "{}");
        stage.places_by_rack();
        stage.job("gang", &queued());
        if !answered {
            let active = json!({"status": {"conditions": [{
                "type": "Active", "status": "True", "reason": "Active", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]}});
            stage.admin.merge_status(&kinds::ADMISSION_CHECK, "", ID, &active).unwrap();
            stage.until("it has its quota", 60, |s| s.is("gang", "QuotaReserved")).await;
            tokio::time::sleep(Duration::from_mins(1)).await;
            assert!(stage.claims().is_empty());
            continue;
        }
        let all_up = |s: &Stage| {
            let up = |c: &Arc<Value>| is(c, "Initialized");
            s.claims().len() == 2 && s.claims().iter().all(up)
        };
        stage.until("its nodes are up", 60, all_up).await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(
            stage.is_in("gang", "WaitingReady"),
            "the nodes are in no rack yet: {}",
            stage.journal("gang")
        );
        stage.racks(["r1", "r1"]).await;
        stage.until("it is admitted", 60, |s| s.is("gang", "Admitted")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_check_that_another_one_of_setus_takes_over_from_are_given_back() {
    let stage = Stage::new(Options::default(), "{deadlines: {admit: 2h}}");
    stage.awaits_another_check();
    world::weather(&stage.admin, &json!([{"nodePool": ID, "registrationDelay": "30s"}]));
    stage.job("gang", &queued());
    stage.until("its nodes come up", 60, |s| s.is_in("gang", "WaitingReady")).await;
    world::create_check(&stage.admin, "first", &scenario::controller_name_of(ID));
    world::set_checks(&stage.admin, ID, &["first", ID, "other"]);
    stage.until("it is Ready", 300, |s| s.verdict("gang") == "Ready").await;
    let why = "has check kept provide for no pod set any more";
    assert!(stage.journal("gang").contains(why), "{}", stage.journal("gang"));
    assert_eq!(stage.claims().len(), 2, "those of the other check");
    assert!(!stage.is("gang", "Evicted"));
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_kueue_places_on_existing_nodes_gets_no_new_ones() {
    let stage = Stage::new(Options::default(), "{}");
    world::add_racks(&stage.admin, ID);
    let flavor = stage.admin.get(&kinds::RESOURCE_FLAVOR, "", ID).unwrap();
    let mut labels = flavor["spec"]["nodeLabels"].clone();
    labels["example.com/rack"] = json!("r1");
    labels["kubernetes.io/hostname"] = json!("old");
    stage.job("gang", &queued());
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!stage.is("gang", "QuotaReserved"), "there is no node to place it on");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "old", "labels": labels}});
    stage.admin.create(&kinds::NODE, node).unwrap();
    let amounts = json!({"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8", "pods": "110"});
    let status = json!({"status": {
        "allocatable": amounts, "capacity": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": ""}],
    }});
    stage.admin.merge_status(&kinds::NODE, "", "old", &status).unwrap();
    // The embedded Kueue looks again when a queue's objects change.
    let looked = json!({"metadata": {"annotations": {"nodes": "1"}}});
    stage.admin.merge(&kinds::RESOURCE_FLAVOR, "", ID, &looked).unwrap();
    stage.until("it is admitted", 120, |s| s.is("gang", "Admitted")).await;
    assert!(stage.claims().is_empty(), "no pod could use a new node");
    let message = stage.entry("gang")["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("Kueue placed the pods of pod set main on existing nodes"), "{message}");
    assert_eq!(stage.entry("gang")["podSetUpdates"], json!([]), "they select no new node");
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_kueue_finds_no_topology_for_is_given_back_at_the_admission_deadline() {
    let compat = Options { tas_compat: true, ..Options::default() };
    let stage = Stage::new(compat, "{deadlines: {admit: 2m}, retry: {yield: {base: 1s, max: 1s}}}");
    stage.places_by_rack();
    let together = json!({"kueue.x-k8s.io/podset-required-topology": "example.com/rack"});
    stage.job_with("gang", &queued(), &together);
    stage.racks(["r1", "r2"]).await;
    stage.until("it is ready", 60, |s| s.is_in("gang", "Approved")).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((stage.is("gang", "Admitted"), stage.claims().len()), (false, 2), "it may still come");
    stage.until("its nodes are given back", 60, |s| s.claims().is_empty()).await;
    let why = "was not admitted within 2m: Kueue found no place for its pods in the topology";
    let reported = |s: &Stage| {
        let events = s.admin.list(&kinds::EVENT);
        events.iter().any(|e| e["note"].as_str().is_some_and(|note| note.contains(why)))
    };
    stage.until("that is reported", 60, reported).await;
    assert!(stage.journal("gang").contains(why), "{}", stage.journal("gang"));
    // The next attempt has both nodes in one rack.
    stage.racks(["r3", "r3"]).await;
    stage.until("it is admitted", 120, |s| s.is("gang", "Admitted")).await;
    let workload = stage.workload("gang").unwrap();
    let assigned = &workload["status"]["admission"]["podSetAssignments"][0];
    assert_eq!(assigned["topologyAssignment"]["domains"][0]["values"], json!(["r3"]));
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_finished_gang_are_deleted_even_if_its_journal_cannot_be_read() {
    let stage = Stage::new(Options::default(), "{}");
    stage.job("gang", &queued());
    stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
    let workload = stage.workload("gang").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let forged = json!({"metadata": {"annotations": {(names::journal_key(ID)): "{\"version\":99}"}}});
    stage.admin.merge(&kinds::WORKLOAD, ID, &workload, &forged).unwrap();
    stage.finish(&workload, "Succeeded");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.claims().len(), 2, "whoever can read it would part with them as the policy says");
    stage.until("its nodes are gone", 900, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_may_not_be_handed_back_or_kept_are_deleted_with_an_event() {
    for custody in ["{release: HandBack}", "{release: Warm, warmFor: 10m}"] {
        let stage = Stage::new(Options::default(), &format!("{{custody: {custody}}}"));
        stage.job("gang", &queued());
        stage.until("it runs", 120, |s| s.is("gang", "Admitted") && s.claims().len() == 2).await;
        stage.cluster.denials.begin(Denial::Patches);
        let workload = stage.workload("gang").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
        stage.finish(&workload, "Succeeded");
        stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
        stage.until("it is over", 60, |s| s.is_in("gang", "Released")).await;
        let reported = |s: &Stage| {
            let events = s.admin.list(&kinds::EVENT);
            let of =
                |e: &&Arc<Value>| e["reason"] == "HandBackRefused" && e["regarding"]["name"] == *workload;
            events.iter().find(of).is_some_and(|e| e["note"].as_str().unwrap().contains("rbac.handBack"))
        };
        stage.until(custody, 60, reported).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_partly_handed_back_node_keeps_its_claim_until_the_rest_is_allowed() {
    for restarts in [true, false] {
        let mut stage = Stage::new(Options::default(), "{custody: {release: HandBack}}");
        stage.job_with("gang", &queued(), &json!({"e2e.setu/run-for": "5s"}));
        stage.until("it runs", 120, |s| s.is("gang", "Admitted") && s.claims().len() == 2).await;
        let is_marked = |c: &Arc<Value>| c["metadata"]["annotations"][names::HANDING_BACK].is_string();
        stage.until("its claims are marked", 60, |s| s.claims().iter().all(is_marked)).await;
        stage.cluster.denials.begin(Denial::ClaimPatches);
        let is_bare = |n: &Arc<Value>| n["metadata"]["labels"][names::MANAGED_BY].is_null();
        stage
            .until("its nodes are Karpenter's", 60, |s| s.admin.list(&kinds::NODE).iter().all(is_bare))
            .await;
        for (index, node) in stage.admin.list(&kinds::NODE).iter().enumerate() {
            let mut pod = stranger(node, 0);
            pod["metadata"]["name"] = json!(format!("stranger-{index}"));
            stage.admin.create(&kinds::POD, pod).unwrap();
        }
        // In the second case the old leader goes on, and does not notice that it no longer leads.
        let second = if restarts {
            stage.restart(Options::default());
            None
        } else {
            Some(stage.cluster.start_setu(&Start::default()))
        };
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!((stage.claims().len(), stage.admin.list(&kinds::NODE).len()), (2, 2));
            assert!(stage.claims().iter().all(|c| c["metadata"]["deletionTimestamp"].is_null()));
        }
        stage.cluster.denials.end();
        let is_let_go = |c: &Arc<Value>| c["metadata"]["labels"][names::MANAGED_BY].is_null();
        stage.until("the rest is done", 600, |s| s.claims().iter().all(is_let_go)).await;
        stage.until("it is over", 60, |s| s.is_in("gang", "Released")).await;
        assert!(stage.admin.get(&kinds::POD, ID, "stranger-0").is_some());
        drop(second);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_not_be_patched_is_deleted_even_if_its_claim_is_marked_for_hand_back() {
    let stage = Stage::new(Options::default(), "{custody: {release: HandBack}}");
    stage.job_with("gang", &queued(), &json!({"e2e.setu/run-for": "5s"}));
    stage.until("it runs", 120, |s| s.is("gang", "Admitted") && s.claims().len() == 2).await;
    stage.cluster.denials.begin(Denial::NodePatches);
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
    stage.until("it is over", 60, |s| s.is_in("gang", "Released")).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_is_created_if_a_kept_one_may_not_be_taken_over() {
    let stage = Stage::new(Options::default(), "{custody: {release: Warm, warmFor: 1h}}");
    stage.job("first", &queued());
    stage.until("it runs", 120, |s| s.is("first", "Admitted")).await;
    let workload = stage.end("first");
    stage.until("its nodes are kept", 60, |s| s.claims_of(&workload).is_empty()).await;
    stage.cluster.denials.begin(Denial::Patches);
    stage.job("second", &queued());
    stage.until("it runs on nodes of its own", 300, |s| s.is("second", "Admitted")).await;
    assert_eq!(stage.claims().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_kept_node_that_can_run_no_pods_is_not_given_to_the_next_gang() {
    let silent = json!({"status": {"conditions": [
        {"type": "Ready", "status": "Unknown", "reason": "", "message": "", "lastTransitionTime": world::START},
    ]}});
    for is_cordoned in [true, false] {
        let stage = Stage::new(Options::default(), "{custody: {release: Warm, warmFor: 1h}}");
        stage.job("first", &queued());
        stage.until("it runs", 120, |s| s.is("first", "Admitted")).await;
        let workload = stage.end("first");
        stage.until("its nodes are kept", 60, |s| s.claims_of(&workload).is_empty()).await;
        let node = stage.admin.list(&kinds::NODE).remove(0);
        let name = node["metadata"]["name"].as_str().unwrap();
        let changed = if is_cordoned {
            stage.admin.merge(&kinds::NODE, "", name, &json!({"spec": {"unschedulable": true}}))
        } else {
            stage.admin.merge_status(&kinds::NODE, "", name, &silent)
        };
        changed.unwrap();
        stage.job("second", &queued());
        stage.until("it runs", 120, |s| s.is("second", "Admitted")).await;
        assert_eq!(stage.claims().len(), 3, "one of two is taken over");
    }
}

#[tokio::test(start_paused = true)]
async fn warm_node_time_is_counted_however_it_ends() {
    let recorder = metrics::recorder().unwrap();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let counted = |result: &str| {
        let text = recorder.handle().render();
        let line =
            text.lines().find(|l| l.starts_with("setu_warm") && l.contains(&format!("result=\"{result}\"")));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
    };
    let stage = Stage::new(Options::default(), "{custody: {release: Warm, warmFor: 10m}}");
    let run = async |name: &str| {
        stage.job(name, &queued());
        stage.until("it runs", 120, |s| s.is(name, "Admitted")).await;
        let workload = stage.end(name);
        stage.until("its nodes are kept", 60, |s| s.claims_of(&workload).is_empty()).await;
    };
    run("first").await;
    assert_eq!((stage.claims().len(), counted("reused"), counted("unused")), (2, 0, 0));
    tokio::time::sleep(Duration::from_mins(1)).await;
    run("second").await;
    let reused = counted("reused");
    assert!((120..200).contains(&reused), "two nodes were kept for a minute each: {reused}");
    tokio::time::sleep(Duration::from_mins(1)).await;
    let name = stage.claims()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.delete(&kinds::NODE_CLAIM, "", &name, Preconditions::default()).unwrap();
    stage.until("it is gone", 60, |s| s.claims().len() == 1).await;
    let deleted = counted("unused");
    assert!((60..120).contains(&deleted), "somebody deleted one after a minute: {deleted}");
    stage.until("the other goes in the end", 900, |s| s.claims().is_empty()).await;
    let all = counted("unused") - deleted;
    assert!((600..700).contains(&all), "it was kept for ten minutes: {all}");
}

#[tokio::test(start_paused = true)]
async fn a_kept_node_that_may_not_be_marked_delays_a_gang_until_its_deadline_at_most() {
    let policy = "{custody: {release: Warm, warmFor: 2h}, deadlines: {gang: 5m}}";
    let stage = Stage::new(Options::default(), policy);
    stage.job("first", &queued());
    stage.until("it runs", 120, |s| s.is("first", "Admitted")).await;
    let workload = stage.end("first");
    stage.until("its nodes are kept", 60, |s| s.claims_of(&workload).is_empty()).await;
    stage.cluster.denials.begin(Denial::NodePatches);
    stage.job("second", &queued());
    stage.until("it has taken them over", 60, |s| s.is_in("second", "WaitingReady")).await;
    stage.until("it is given up", 400, |s| s.is_in("second", "BackingOff")).await;
    assert!(!stage.is("second", "Admitted"));
    stage.cluster.denials.end();
    stage.until("it runs on others", 600, |s| s.is("second", "Admitted")).await;
}

/// A gang with one failed attempt. One of its NodeClaims cannot be deleted.
async fn with_a_claim_that_cannot_go(policy: &str) -> Stage {
    let stage = Stage::new(Options::default(), policy);
    world::weather(&stage.admin, &json!([{"nodePool": ID, "launchDelay": "2h"}]));
    stage.job("gang", &queued());
    stage.until("its NodeClaims are there", 60, |s| s.claims().len() == 2).await;
    let name = stage.claims()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    let held = json!({"metadata": {"finalizers": ["example.com/for-ever", "karpenter.sh/termination"]}});
    stage.admin.merge(&kinds::NODE_CLAIM, "", &name, &held).unwrap();
    stage.until("the attempt is given up", 600, |s| s.is_in("gang", "RollingBack")).await;
    world::calm(&stage.admin);
    stage
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_deleted_delays_the_next_attempt_by_ten_minutes() {
    let recorder = metrics::recorder().unwrap();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let stage = with_a_claim_that_cannot_go("{retry: {inCheck: {base: 1s, max: 1s}}}").await;
    tokio::time::sleep(Duration::from_mins(8)).await;
    assert!(stage.is_in("gang", "RollingBack"), "{}", stage.journal("gang"));
    let reported =
        |s: &Stage| s.entry("gang")["message"].to_string().contains("cannot be deleted: see its finalizers");
    stage.until("it is reported", 300, reported).await;
    stage.until("the next attempt succeeds", 300, |s| s.is("gang", "Admitted")).await;
    assert_eq!(stage.claims().len(), 3);
    stage.setu.context.set_gauges();
    let page = recorder.handle().render();
    let is_stuck =
        |line: &&str| line.starts_with("setu_active_nodeclaims") && line.contains("state=\"stuck\"");
    assert!(page.lines().find(is_stuck).is_some_and(|line| line.ends_with(" 1")), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_deleted_holds_the_quota_for_ten_minutes() {
    let stage = with_a_claim_that_cannot_go("{retry: {inCheck: {limit: 0}}}").await;
    tokio::time::sleep(Duration::from_mins(8)).await;
    assert!(stage.is("gang", "QuotaReserved"), "{}", stage.journal("gang"));
    stage.until("the quota is given back", 300, |s| s.is_in("gang", "Yielded")).await;
    let reported =
        |s: &Stage| s.entry("gang")["message"].to_string().contains("cannot be deleted: see its finalizers");
    stage.until("it is reported", 60, reported).await;
}

#[tokio::test(start_paused = true)]
async fn claims_whose_deletion_is_denied_hold_the_quota_for_ten_minutes_and_are_counted() {
    for is_forbidden in [true, false] {
        let recorder = metrics::recorder().unwrap();
        let _guard = ::metrics::set_default_local_recorder(&recorder);
        let policy = "{retry: {inCheck: {limit: 0}}, deadlines: {register: 5s}}";
        let stage = Stage::new(Options::default(), policy);
        world::weather(&stage.admin, &json!([{"nodePool": ID, "registrationDelay": "1h"}]));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let fails = Arc::new(AtomicBool::new(!is_forbidden));
        let rule = Arc::clone(&fails);
        stage.cluster.server.deny(Box::new(move |attempt| {
            let deletes = attempt.kind.kind == "NodeClaim" && attempt.verb == "DELETE";
            (deletes && rule.load(Ordering::Relaxed)).then(|| Status::webhook("nodeclaims"))
        }));
        if is_forbidden {
            stage.cluster.denials.begin(Denial::Deletes);
        }
        stage.job("gang", &queued());
        stage.until("it takes its nodes back", 60, |s| s.is_in("gang", "RollingBack")).await;
        tokio::time::sleep(Duration::from_mins(8)).await;
        assert!(stage.is("gang", "QuotaReserved"), "{}", stage.journal("gang"));
        stage
            .until("the quota is given back", 300, |s| s.journal("gang").contains("\"to\":\"Yielded\""))
            .await;
        let reported = |s: &Stage| s.entry("gang")["message"].to_string().contains("and Setu's rights");
        stage.until("it is reported", 60, reported).await;
        stage.setu.context.set_gauges();
        let page = recorder.handle().render();
        assert!(page.contains("state=\"stuck\"} 2"), "{page}");
        // The stuck claims do not block the next reservation.
        stage.until("the next attempt has its own", 300, |s| s.claims().len() == 4).await;
        world::calm(&stage.admin);
        stage.cluster.denials.end();
        fails.store(false, Ordering::Relaxed);
        stage
            .until("they go, and the gang runs", 120, |s| s.claims().len() == 2 && s.is("gang", "Admitted"))
            .await;
    }
}

/// Something that happens to a gang before it runs.
#[derive(Clone, Copy)]
enum Before {
    /// An attempt fails.
    Failure,
    /// It is refused, then woken.
    Refusal,
}

impl Before {
    fn begin(self, admin: &User) {
        match self {
            Self::Failure => world::weather(admin, &json!([{"nodePool": ID, "launchDelay": "1h"}])),
            Self::Refusal => limit_nodes(admin, 1),
        }
    }

    /// Ends the obstacle once the gang is in this state.
    fn end(self, state: &str, admin: &User) {
        match (self, state) {
            (Self::Failure, "RollingBack") => world::calm(admin),
            (Self::Refusal, "Yielded") => limit_nodes(admin, 2),
            _ => {}
        }
    }

    /// States that the gang must go through.
    fn states(self) -> &'static [&'static str] {
        match self {
            Self::Failure => {
                &["Provisioning", "WaitingReady", "RollingBack", "BackingOff", "Approved", "Released"]
            }
            Self::Refusal => &["Yielded", "WaitingReady", "Approved", "Released"],
        }
    }
}

fn limit_nodes(admin: &User, nodes: u32) {
    let limits = json!({"spec": {"limits": {"nodes": nodes.to_string()}}});
    admin.merge(&kinds::NODE_POOL, "", ID, &limits).unwrap();
}

/// Runs a gang to its end. Deletes its Job and Workload this long after Setu sends the request of this number,
/// counted from 0. Returns the number of requests and the states of the gang.
async fn a_life_until(before: Before, request: usize, later: Duration) -> (Stage, usize, BTreeSet<String>) {
    let policy = "{retry: {inCheck: {base: 1s, max: 1s}}, deadlines: {launch: 5s}, nodePoolName: kept}";
    let stage = Stage::new(Options::default(), policy);
    let limits = json!({"spec": {"limits": {"cpu": "1000", "nvidia.com/gpu": "100"}}});
    stage.admin.merge(&kinds::NODE_POOL, "", ID, &limits).unwrap();
    before.begin(&stage.admin);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (sent, admin) = (Arc::new(AtomicUsize::new(0)), stage.admin.clone());
    let counted = Arc::clone(&sent);
    stage.setu.wire.on_request(Arc::new(move |asked| {
        let watches = asked.uri().query().is_some_and(|query| query.contains("watch=true"));
        if !watches && counted.fetch_add(1, Ordering::Relaxed) == request {
            if later.is_zero() {
                vanish(&admin);
                return;
            }
            let admin = admin.clone();
            tokio::spawn(async move {
                tokio::time::sleep(later).await;
                vanish(&admin);
            });
        }
    }));
    stage.job_with("gang", &queued(), &json!({"e2e.setu/run-for": "2s"}));
    let mut states = BTreeSet::new();
    for _ in 0..30_000 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let journal = stage.journal("gang");
        let now = journal.split("\"state\":\"").nth(1).and_then(|rest| rest.split('"').next());
        if let Some(now) = now.filter(|now| states.insert((*now).to_owned())) {
            if now == "Released" {
                break;
            }
            before.end(now, &stage.admin);
        }
        if stage.admin.list(&kinds::JOB).is_empty() {
            break;
        }
    }
    (stage, sent.load(Ordering::Relaxed), states)
}

/// Deletes the Job and its Workload at once, despite finalizers.
fn vanish(admin: &User) {
    let bare = json!({"metadata": {"finalizers": []}});
    for kind in [&kinds::JOB, &kinds::WORKLOAD] {
        for object in admin.list_in(kind, ID) {
            let name = object["metadata"]["name"].as_str().unwrap();
            admin.merge(kind, ID, name, &bare).unwrap();
            let _ = admin.delete(kind, ID, name, Preconditions::default());
        }
    }
}

async fn leaves_no_state_whenever_it_is_deleted(before: Before) {
    let (_, requests, states) = a_life_until(before, usize::MAX, Duration::ZERO).await;
    assert!(before.states().iter().all(|state| states.contains(*state)), "{states:?}");
    assert!(requests > 40, "{requests}");
    let moments = (0..requests).flat_map(|request| [0, 6].map(|later| (request, later)));
    for (request, later) in moments {
        let (stage, _, states) = a_life_until(before, request, Duration::from_millis(later)).await;
        stage.until("its nodes are gone", 120, |s| s.is_empty() && s.claims().is_empty()).await;
        tokio::time::sleep(Duration::from_secs(40)).await;
        let left = stage.setu.context.remembered_gangs();
        assert!(left.is_empty(), "deleted {later} ms after request {request}, after {states:?}: {left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_workload_deleted_at_any_request_leaves_no_state_behind() {
    leaves_no_state_whenever_it_is_deleted(Before::Failure).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_workload_deleted_at_any_request_leaves_no_state_behind() {
    leaves_no_state_whenever_it_is_deleted(Before::Refusal).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_an_unadmitted_gang_are_deleted_within_twenty_minutes_of_its_check() {
    let stage = Stage::new(Options::default(), "{}");
    stage.job("gang", &queued());
    stage.until("its claims are there", 120, |s| s.claims().len() == 2).await;
    stage.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
    tokio::time::sleep(Duration::from_mins(9)).await;
    assert!(!stage.is("gang", "Admitted") && stage.claims().len() == 2);
    stage.until("they are taken back", 11 * 60, |s| s.claims().is_empty()).await;
}

impl Stage {
    /// Puts another check of Setu's in the place of the queue's check, and deletes that at the same moment.
    fn replaces_its_check(&self) {
        world::create_check(&self.admin, "second", &scenario::controller_name_of(ID));
        world::set_checks(&self.admin, ID, &["second"]);
        self.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
    }

    /// How many claims there are for this check.
    fn claims_for(&self, check: &str) -> usize {
        let of = |claim: &&Arc<Value>| claim["metadata"]["annotations"][names::CHECK] == check;
        self.claims().iter().filter(of).count()
    }

    /// The checks of the gangs on the board.
    fn checks_on_board(&self) -> Vec<String> {
        self.setu.context.board().gangs().values().map(|noted| noted.entry.check.clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_remembered_of_a_gang_whose_check_is_deleted() {
    let stage = Stage::new(Options::default(), "{}");
    stage.job("gang", &queued());
    stage.until("its claims are there", 120, |s| s.claims().len() == 2).await;
    stage.admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
    stage.until("it is not shown any more", 2, |s| s.checks_on_board().is_empty()).await;
    stage.until("its nodes are taken back", 20 * 60, |s| s.claims().is_empty()).await;
    stage.until("all of it is forgotten", 5, |s| s.setu.context.remembered_gangs().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_room_of_a_gang_whose_check_is_deleted_goes_to_others() {
    let stage = Stage::new(Options::default(), "{}");
    limit_nodes(&stage.admin, 2);
    stage.job("gang", &queued());
    stage.until("its claims are there", 120, |s| s.claims().len() == 2).await;
    stage.replaces_its_check();
    stage.until("only the new check's gang is known", 2, |s| s.checks_on_board() == ["second"]).await;
    stage.until("it gets the room", 25 * 60, |s| s.claims_for("second") == 2).await;
    stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
    assert_eq!(stage.claims_for(ID), 0);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_deleted_check_are_deleted_if_their_workload_runs_under_another_check() {
    let stage = Stage::new(Options::default(), "{}");
    stage.job("gang", &queued());
    stage.until("its claims are there", 120, |s| s.claims().len() == 2).await;
    stage.replaces_its_check();
    stage.until("it runs", 120, |s| s.is("gang", "Admitted")).await;
    assert_eq!([ID, "second"].map(|check| stage.claims_for(check)), [2, 2]);
    stage.until("the first check's nodes are deleted", 20 * 60, |s| s.claims_for(ID) == 0).await;
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert!(stage.is("gang", "Admitted") && stage.claims_for("second") == 2);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_deleted_check_stay_if_its_gang_was_approved() {
    let stage = Stage::new(Options::default(), "{}");
    stage.job("gang", &queued());
    stage.until("it runs", 180, |s| s.is("gang", "Admitted")).await;
    stage.replaces_its_check();
    stage.until("nothing is known of it", 2, |s| !s.checks_on_board().contains(&ID.to_owned())).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(stage.is("gang", "Admitted") && stage.claims_for(ID) == 2);
}
