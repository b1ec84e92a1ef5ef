//! The policy is replaced in each state of a gang, in the embedded cluster. An attempt keeps the policy it began
//! with, and the next one uses the new policy. The same holds for parameters.

use crate::world;
use serde_json::{Value, json};
use setu::app::reload;
use setu::gang::{FailureClass, Journal, StateName};
use setu::policy::PolicyFile;
use setu::policy::read::FileError;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::telemetry::metrics;
use setu_sim::api::{Preconditions, Status, User, kinds};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const ID: &str = "swap";

/// One gang of two nodes in a cluster of its own, in virtual time.
struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

fn file(defaults: &str) -> PolicyFile {
    world::policy(&format!("jobOverrides: {{maxWait: {{max: 30m}}}}\ndefaults: {defaults}"))
}

impl Stage {
    fn new(defaults: &str, rules: &Value) -> Self {
        let (mut cluster, admin) = world::cluster(ID, file(defaults));
        world::weather(&admin, rules);
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, setu, admin }
    }

    fn submit(&self) {
        self.submit_with(&json!({}));
    }

    /// Submits the gang's Job with these annotations.
    fn submit_with(&self, annotations: &Value) {
        let mut job = world::job(ID, "gang", 2, Some("60s"));
        job["metadata"]["annotations"] = annotations.clone();
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    fn journal(&self) -> Option<Journal> {
        let workloads = self.admin.list(&kinds::WORKLOAD);
        let workload = workloads.first()?;
        let text = workload["metadata"]["annotations"][format!("gang.setu.kueue.x-k8s.io/{ID}")].as_str()?;
        let uid = workload["metadata"]["uid"].as_str().unwrap();
        Some(Journal::decode(text, uid, jiff::Timestamp::MIN, self.cluster.clock.now()).unwrap())
    }

    /// Waits until the gang is in this state, for at most half an hour of virtual time.
    async fn until(&self, state: StateName) -> Journal {
        for _ in 0..18_000 {
            if let Some(journal) = self.journal().filter(|j| j.state.name() == state) {
                return journal;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the gang never was {state}: {:#?}", self.journal());
    }

    fn swap(&self, defaults: &str) {
        self.setu.context.policies.replace(file(defaults), Vec::new());
        self.setu.context.policy_changed();
    }

    /// The states in the gang's history, in order.
    fn path(&self) -> Vec<StateName> {
        self.journal().unwrap().history.iter().map(|s| s.to).collect()
    }

    /// Whether any claim requires this label key.
    fn claims_ask_for(&self, key: &str) -> bool {
        let asks = |claim: &Arc<Value>| {
            claim["spec"]["requirements"].as_array().unwrap().iter().any(|r| r["key"] == key)
        };
        let claims = self.admin.list(&kinds::NODE_CLAIM);
        assert_eq!(claims.len(), 2);
        claims.iter().any(asks)
    }
}

/// A policy that creates nothing.
const DRY_RUN: &str = "{strategy: {type: DryRun}}";
const AMD64: &str = "{nodeSelectorRequirements: [{key: kubernetes.io/arch, operator: In, values: [amd64]}]}";

#[tokio::test(start_paused = true)]
async fn a_gang_that_waits_for_a_plan_uses_the_new_policy() {
    let stage = Stage::new(DRY_RUN, &json!([]));
    stage.submit();
    stage.until(StateName::Validating).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(stage.until(StateName::Validating).await.memory.attempt, 0);
    stage.swap("{}");
    let journal = stage.until(StateName::Approved).await;
    assert_eq!(journal.memory.attempt, 1);
}

#[tokio::test(start_paused = true)]
async fn a_gang_whose_claims_are_being_created_keeps_its_plan() {
    let stage = Stage::new("{}", &json!([]));
    let broken = Arc::new(AtomicBool::new(true));
    let rule = Arc::clone(&broken);
    stage.cluster.server.deny(Box::new(move |attempt| {
        let claim = attempt.kind.kind == "NodeClaim" && attempt.verb == "CREATE";
        (claim && rule.load(Ordering::Relaxed)).then(|| Status::webhook("nodeclaims"))
    }));
    stage.submit();
    stage.until(StateName::Provisioning).await;
    stage.swap(AMD64);
    broken.store(false, Ordering::Relaxed);
    let journal = stage.until(StateName::Approved).await;
    assert_eq!(journal.memory.attempt, 1, "{:?}", stage.path());
    assert!(!stage.claims_ask_for("kubernetes.io/arch"));
}

/// Updates the NodePool's conditions to its latest generation, as Karpenter does.
fn observe_pool(stage: &Stage) {
    let pool = stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap();
    let mut conditions = pool["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap() {
        condition["observedGeneration"] = pool["metadata"]["generation"].clone();
    }
    let status = json!({"status": {"conditions": conditions}});
    stage.admin.merge_status(&kinds::NODE_POOL, "", ID, &status).unwrap();
}

/// Edits the NodePool while NodeClaims cannot be created; Karpenter reacts only after a minute. Returns the
/// gang's journal once it has its nodes, and its path.
async fn edited_meanwhile(edit: &Value) -> (Journal, Vec<StateName>) {
    let stage = Stage::new("{}", &json!([]));
    while stage.admin.get(&kinds::NODE_POOL, "", ID).unwrap()["status"]["conditions"].is_null() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let broken = Arc::new(AtomicBool::new(true));
    let rule = Arc::clone(&broken);
    stage.cluster.server.deny(Box::new(move |attempt| {
        let claim = attempt.kind.kind == "NodeClaim" && attempt.verb == "CREATE";
        // In this test, `observe_pool` updates NodePools in place of Karpenter.
        let observes = attempt.kind.kind == "NodePool" && attempt.user == "karpenter";
        (observes || (claim && rule.load(Ordering::Relaxed))).then(|| Status::webhook("test"))
    }));
    observe_pool(&stage);
    stage.submit();
    stage.until(StateName::Provisioning).await;
    stage.admin.merge(&kinds::NODE_POOL, "", ID, edit).unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(stage.journal().unwrap().state.name(), StateName::Provisioning, "{:?}", stage.path());
    broken.store(false, Ordering::Relaxed);
    observe_pool(&stage);
    (stage.until(StateName::Approved).await, stage.path())
}

#[tokio::test(start_paused = true)]
async fn editing_a_node_pool_during_provisioning_ends_the_attempt_only_if_its_claims_change() {
    let (journal, path) = edited_meanwhile(&json!({"spec": {"limits": {"nodes": "9"}}})).await;
    assert_eq!((journal.memory.attempt, journal.memory.last_failure), (1, None), "{path:?}");
    let arch = json!([{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]);
    let (journal, path) =
        edited_meanwhile(&json!({"spec": {"template": {"spec": {"requirements": arch}}}})).await;
    let failure = journal.memory.last_failure.map(|failure| failure.reason);
    assert_eq!((journal.memory.attempt, failure), (2, Some(FailureClass::PlanChanged)), "{path:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gang_whose_nodes_are_coming_up_keeps_its_deadlines() {
    let slow = json!([{"registrationDelay": "30s"}]);
    let impatient = "{deadlines: {register: 5s}, retry: {inCheck: {limit: 0}}}";
    let stage = Stage::new("{}", &slow);
    stage.submit();
    stage.until(StateName::WaitingReady).await;
    stage.swap(impatient);
    let journal = stage.until(StateName::Approved).await;
    assert_eq!(journal.memory.attempt, 1, "{:?}", stage.path());
    // With the same policy from the start, the attempt ends.
    let stage = Stage::new(impatient, &slow);
    stage.submit();
    stage.until(StateName::RollingBack).await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_rolls_back_or_backs_off_uses_the_new_policy_for_its_next_attempt() {
    for state in [StateName::RollingBack, StateName::BackingOff] {
        let stage = Stage::new("{retry: {inCheck: {base: 20s}}}", &json!([{"capacity": 1}]));
        stage.submit();
        stage.until(state).await;
        stage.swap(AMD64);
        world::calm(&stage.admin);
        let journal = stage.until(StateName::Approved).await;
        assert!(journal.memory.attempt > 1, "{:?}", stage.path());
        assert!(stage.claims_ask_for("kubernetes.io/arch"), "swapped in {state}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_does_not_affect_a_running_gang() {
    let stage = Stage::new("{}", &json!([]));
    stage.submit();
    stage.until(StateName::Approved).await;
    stage.swap(DRY_RUN);
    let journal = stage.until(StateName::Released).await;
    assert_eq!(journal.memory.attempt, 1, "{:?}", stage.path());
    let jobs = stage.admin.list(&kinds::JOB);
    assert_eq!(jobs[0]["status"]["conditions"][0]["type"], "Complete", "{}", jobs[0]["status"]);
}

#[tokio::test(start_paused = true)]
async fn parameters_are_followed_from_before_they_exist_until_after_they_are_gone() {
    let stage = Stage::new("{}", &json!([{"registrationDelay": "30s"}]));
    let reference =
        json!({"apiGroup": "setu.kueue.x-k8s.io", "kind": "ProvisioningParameters", "name": "late"});
    stage.admin.merge(&kinds::ADMISSION_CHECK, "", ID, &json!({"spec": {"parameters": reference}})).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let condition = |kind: &'static kinds::ServedKind, name: &str, of: &str| {
        let object = stage.admin.get(kind, "", name).unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().find(|c| c["type"] == of).map(|c| c["status"].as_str().unwrap().to_owned())
    };
    assert_eq!(condition(&kinds::ADMISSION_CHECK, ID, "Active").as_deref(), Some("False"));
    let parameters = json!({
        "apiVersion": "setu.kueue.x-k8s.io/v1alpha1", "kind": "ProvisioningParameters",
        "metadata": {"name": "late"}, "spec": {"nodePoolName": ID},
    });
    stage.admin.create(&kinds::PROVISIONING_PARAMETERS, parameters).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(condition(&kinds::ADMISSION_CHECK, ID, "Active").as_deref(), Some("True"));
    for of in ["Valid", "Used"] {
        assert_eq!(condition(&kinds::PROVISIONING_PARAMETERS, "late", of).as_deref(), Some("True"), "{of}");
    }
    let of_another_setu = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "another"},
        "spec": {"controllerName": "example.com/another-setu", "parameters": reference},
    });
    stage.admin.create(&kinds::ADMISSION_CHECK, of_another_setu).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let parameters = stage.admin.get(&kinds::PROVISIONING_PARAMETERS, "", "late").unwrap();
    let used = format!("by AdmissionCheck another, {ID}");
    assert_eq!(parameters["status"]["conditions"][1]["message"], used, "both report the same");
    stage.submit();
    stage.until(StateName::WaitingReady).await;
    let broken = json!({"spec": {"deadlines": {"gang": "0s"}}});
    stage.admin.merge(&kinds::PROVISIONING_PARAMETERS, "", "late", &broken).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(condition(&kinds::PROVISIONING_PARAMETERS, "late", "Valid").as_deref(), Some("False"));
    assert_eq!(condition(&kinds::ADMISSION_CHECK, ID, "Active").as_deref(), Some("False"));
    stage.admin.delete(&kinds::PROVISIONING_PARAMETERS, "", "late", Preconditions::default()).unwrap();
    let journal = stage.until(StateName::Approved).await;
    assert_eq!(journal.memory.attempt, 1, "an attempt in flight goes on: {:?}", stage.path());
}

#[tokio::test(start_paused = true)]
async fn a_job_gets_allowed_overrides_and_one_event_for_each_ignored_one() {
    let hasty = "{deadlines: {gang: 1m}}";
    let slow = json!([{"registrationDelay": "2m"}]);
    for (wait, ends_in) in [("30m", StateName::Approved), ("31m", StateName::RollingBack)] {
        let stage = Stage::new(hasty, &slow);
        stage.submit_with(&json!({
            "provreq.kueue.x-k8s.io/setu-maxWait": wait, "provreq.kueue.x-k8s.io/setu-nodePoolName": "best",
        }));
        assert_eq!(stage.until(ends_in).await.memory.attempt, 1);
        let notes: Vec<String> = stage
            .admin
            .list(&kinds::EVENT)
            .iter()
            .filter(|e| e["reason"] == "JobOverrideIgnored")
            .map(|e| e["note"].as_str().or(e["message"].as_str()).unwrap().to_owned())
            .collect();
        let count = |key: &str| notes.iter().filter(|n| n.contains(key)).count();
        let ignored = usize::from(ends_in == StateName::RollingBack);
        assert_eq!((count("setu-maxWait"), count("setu-nodePoolName")), (ignored, 1), "{notes:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_policy_file_keeps_the_last_good_one_with_an_event_on_every_check() {
    let recorder = metrics::recorder().unwrap();
    let _guard = ::metrics::set_default_local_recorder(&recorder);
    let stage = Stage::new("{}", &json!([]));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let context = &stage.setu.context;
    reload::take_over(context, Ok(file("{deadlines: {gang: 7m}}"))).await;
    let problems = PolicyFile::parse("kind: Policy\ndefault: {}").unwrap_err();
    reload::take_over(context, Err(FileError::Invalid { path: "policy.yaml".into(), problems })).await;
    let gang = |check: &str| context.policies.settings().policy(check, None).deadlines.gang.to_string();
    assert_eq!(gang(ID), "7m", "the last good one holds");
    tokio::time::sleep(Duration::from_secs(5)).await;
    let events = stage.admin.list(&kinds::EVENT);
    for (reason, kind) in [("PolicyReloaded", "Normal"), ("PolicyInvalid", "Warning")] {
        let matches = |e: &&Arc<Value>| e["reason"] == reason && e["regarding"]["kind"] == "AdmissionCheck";
        let event = events.iter().find(matches).unwrap_or_else(|| panic!("no {reason} in {events:#?}"));
        assert_eq!((&event["type"], &event["regarding"]["name"]), (&json!(kind), &json!(ID)));
        assert!(
            !event["note"].as_str().unwrap().contains('\n'),
            "kubectl shows only the first line: {event}"
        );
    }
    let exposed = recorder.handle().render();
    for result in ["applied", "refused"] {
        let line = format!("setu_policy_reloads_total{{result=\"{result}\"}} 1");
        assert!(exposed.contains(&line), "{exposed}");
    }
}

#[tokio::test(start_paused = true)]
async fn parameters_that_conflict_with_the_file_make_the_check_inactive_with_a_reason() {
    let stage = Stage::new("{deadlines: {gang: 5m}}", &json!([]));
    world::parameters(&stage.admin, ID, &json!({"strategy": {"bufferTime": "10m"}}));
    tokio::time::sleep(Duration::from_secs(5)).await;
    let check = stage.admin.get(&kinds::ADMISSION_CHECK, "", ID).unwrap();
    let active = &check["status"]["conditions"][0];
    assert_eq!((&active["status"], &active["reason"]), (&json!("False"), &json!("BadParametersRef")));
    let message = active["message"].as_str().unwrap();
    assert!(message.contains("strategy.bufferTime: 10m is not shorter than deadlines.gang, 5m"), "{message}");
}
