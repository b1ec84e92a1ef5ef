//! The second front-end on the embedded cluster: gangs of ProvisioningRequests that Kueue's own check makes.

use crate::world::{self, in_virtual_time, is};
use serde::Deserialize;
use serde_json::{Value, json};
use setu::app::uninstall;
use setu::controllers::context::Options;
use setu::gang::identity::gang_id;
use setu::gang::release::uninstall::RunningNodes;
use setu::gang::workload::request::UNINSTALLED;
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu::sim::scenario;
use setu_sim::api::kinds;
use setu_sim::api::{Preconditions, User};
use setu_sim::denials::Denial;
use setu_sim::faults::WriteFault;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "requests";
const SERVED: Options = Options { workload_finalizer: false, tas_compat: false, provisioning_requests: true };

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

/// The class of another autoscaler.
const FOREIGN: &str = "check-capacity.autoscaling.x-k8s.io";

impl Stage {
    /// A queue whose only check is Kueue's own, for this class.
    fn new(class: &str, defaults: &str) -> Self {
        Self::with_fault(None, class, defaults)
    }

    /// The same with a fault at one of Setu's writes.
    fn with_fault(plan: Option<(usize, WriteFault)>, class: &str, defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        // The name of a check's controller cannot be changed, so the check is made anew.
        admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/provisioning-requests/check.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        let mut objects = serde_yaml::Deserializer::from_str(&text).map(|d| Value::deserialize(d).unwrap());
        let (mut config, mut check) = (objects.next().unwrap(), objects.next().unwrap());
        assert_eq!(config["spec"]["provisioningClassName"], names::REQUEST_CLASS);
        config["spec"]["provisioningClassName"] = json!(class);
        check["metadata"]["name"] = json!(ID);
        admin.create(&kinds::PROVISIONING_REQUEST_CONFIG, config).unwrap();
        admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
        let setu = cluster.start_setu(&Start { options: SERVED, plan, ..Start::default() });
        Self { cluster, setu, admin }
    }

    /// A Job of two pods.
    fn job(&self, name: &str) {
        self.admin.create(&kinds::JOB, world::job(ID, name, 2, None)).unwrap();
    }

    fn claims(&self) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::NODE_CLAIM)
    }

    fn workload(&self) -> Option<Arc<Value>> {
        self.admin.list(&kinds::WORKLOAD).into_iter().next()
    }

    fn is(&self, condition: &str) -> bool {
        self.workload().is_some_and(|w| is(&w, condition))
    }

    fn requests(&self) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::PROVISIONING_REQUEST)
    }

    fn claim_names(&self) -> Vec<String> {
        self.claims().iter().map(|claim| claim["metadata"]["name"].to_string()).collect()
    }

    fn journal(&self) -> String {
        let journal = &self.request()["metadata"]["annotations"][names::journal_key(ID)];
        journal.as_str().unwrap_or_default().to_owned()
    }

    fn request(&self) -> Value {
        self.requests().first().map(|request| (**request).clone()).unwrap_or_default()
    }

    /// The texts of the Events with this reason, all of which are about a ProvisioningRequest.
    fn events(&self, reason: &str) -> Vec<String> {
        let events = self.admin.list(&kinds::EVENT);
        let with_reason = events.iter().filter(|event| event["reason"] == reason);
        with_reason
            .map(|event| {
                assert_eq!(event["regarding"]["kind"], "ProvisioningRequest");
                event["note"].as_str().unwrap().to_owned()
            })
            .collect()
    }

    fn condition(&self, kind: &str) -> Value {
        let request = self.request();
        let all = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
    }

    /// Finishes the Workload, as Kueue does when its Job is done.
    fn finish(&self) {
        let workload = self.workload().unwrap();
        let mut conditions = workload["status"]["conditions"].as_array().unwrap().clone();
        conditions.push(json!({
            "type": "Finished", "status": "True", "reason": "Succeeded", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }));
        let name = workload["metadata"]["name"].as_str().unwrap();
        let finished = json!({"status": {"conditions": conditions}});
        self.admin.merge_status(&kinds::WORKLOAD, ID, name, &finished).unwrap();
    }

    /// Adds a check to the queue that another controller answers, and makes it active.
    fn add_other_check(&self) {
        world::create_active_check(&self.admin, "other", "e2e.setu/nobody");
        world::set_checks(&self.admin, ID, &[ID, "other"]);
    }

    /// The entry of a check in the Workload, as Kueue has it.
    fn entry(&self, check: &str) -> Value {
        let workload = self.workload().map(|w| (*w).clone()).unwrap_or_default();
        let entries = workload["status"]["admissionChecks"].as_array().cloned().unwrap_or_default();
        entries.into_iter().find(|entry| entry["name"] == check).unwrap_or_default()
    }

    /// Sets the `stopPolicy` of the LocalQueue.
    fn stop_queue(&self, policy: &str) {
        let queue = json!({"spec": {"stopPolicy": policy}});
        self.admin.merge(&kinds::LOCAL_QUEUE, ID, "queue", &queue).unwrap();
    }

    /// Creates a request of Setu's class that no Workload controls.
    fn create_request(&self, metadata: &Value) -> Arc<Value> {
        let pods = json!({"count": 1, "podTemplateRef": {"name": "pods"}});
        let request = json!({
            "apiVersion": "autoscaling.x-k8s.io/v1", "kind": "ProvisioningRequest", "metadata": metadata,
            "spec": {"provisioningClassName": names::REQUEST_CLASS, "podSets": [pods]},
        });
        self.admin.create(&kinds::PROVISIONING_REQUEST, request).unwrap()
    }

    /// Limits the check to pods with GPUs, and adds a second check to the queue for pods with this other resource only.
    fn split_by(&self, resource: &str) {
        let managed = json!({"spec": {"managedResources": ["nvidia.com/gpu"]}});
        self.admin.merge(&kinds::PROVISIONING_REQUEST_CONFIG, "", "setu", &managed).unwrap();
        let twin_of = |kind, name: &str| {
            let mut twin = (*self.admin.get(kind, "", name).unwrap()).clone();
            twin["metadata"] = json!({"name": "twin"});
            twin.as_object_mut().unwrap().remove("status");
            twin
        };
        let mut config = twin_of(&kinds::PROVISIONING_REQUEST_CONFIG, "setu");
        config["spec"]["managedResources"] = json!([resource]);
        self.admin.create(&kinds::PROVISIONING_REQUEST_CONFIG, config).unwrap();
        let mut check = twin_of(&kinds::ADMISSION_CHECK, ID);
        check["spec"]["parameters"]["name"] = json!("twin");
        self.admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
        world::set_checks(&self.admin, ID, &[ID, "twin"]);
    }

    /// Deletes the request and makes it again under its name at once.
    fn recreate_request(&self) -> [String; 2] {
        let mut request = self.request();
        let old = request["metadata"]["uid"].as_str().unwrap().to_owned();
        request["metadata"] = json!({
            "name": request["metadata"]["name"], "namespace": ID, "ownerReferences": request["metadata"]["ownerReferences"],
        });
        request.as_object_mut().unwrap().remove("status");
        self.delete_request();
        let new = self.admin.create(&kinds::PROVISIONING_REQUEST, request).unwrap();
        [old, new["metadata"]["uid"].as_str().unwrap().to_owned()]
    }

    fn delete_request(&self) {
        let name = self.request()["metadata"]["name"].as_str().unwrap().to_owned();
        self.admin.delete(&kinds::PROVISIONING_REQUEST, ID, &name, Preconditions::default()).unwrap();
    }

    /// Waits until this holds, and starts another Setu when a fault has killed one.
    async fn until_despite_kills(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let came = world::until(Duration::from_mins(5), Duration::from_millis(100), || {
            if !self.cluster.deaths().is_empty() {
                self.setu = self.cluster.start_setu(&Start { options: SERVED, ..Start::default() });
            }
            holds(self)
        });
        assert!(came.await, "{what}: {}", self.seen());
    }

    async fn until(&self, what: &str, seconds: u64, mut holds: impl FnMut(&Self) -> bool) {
        let limit = Duration::from_secs(seconds);
        let came = world::until(limit, Duration::from_millis(10), || holds(self)).await;
        assert!(came, "not within {seconds} s: {what}; {}", self.seen());
    }

    /// The objects, for the message of a test that fails.
    fn seen(&self) -> String {
        format!("{} claims; {:#?}; {:#?}", self.claims().len(), self.requests(), self.workload())
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_whose_request_is_deleted_still_count_for_their_local_queue() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}\nguards: {perLocalQueue: {nodes: 2}}");
    stage.job("first");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    stage.delete_request();
    tokio::time::sleep(Duration::from_mins(1)).await;
    stage.job("second");
    let waits = |s: &Stage| {
        let condition = s.condition("Provisioned");
        condition["message"].as_str().is_some_and(|text| text.contains("guards.perLocalQueue.nodes"))
    };
    stage.until("the second one waits", 60, waits).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_gang_is_provisioned_for_the_request_and_its_nodes_go_when_the_job_finishes() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("progress is reported", 60, |s| s.condition("Provisioned")["status"] == "False").await;
    assert_eq!(stage.condition("Accepted")["status"], "True");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    let request = stage.request();
    let details = &request["status"]["provisioningClassDetails"];
    assert_eq!((&details["count"], &details["nodePool"]), (&json!("2"), &json!(ID)));
    let claims = stage.claims();
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|claim| claim["metadata"]["labels"][names::GANG] == details["gang"]));
    let pods = stage.admin.list(&kinds::POD);
    assert!(pods.iter().all(|pod| pod["spec"]["nodeSelector"][names::GANG] == details["gang"]), "{pods:#?}");
    assert!(request["metadata"]["annotations"][names::journal_key(ID)].is_string());
    assert_eq!(stage.workload().unwrap()["metadata"]["annotations"].get(names::journal_key(ID)), None);
    stage.finish();
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
}

/// Takes the gang of a request from its submission until its nodes are gone, with a fault at one of Setu's writes. Returns the
/// first Setu's writes.
async fn come_and_go(plan: Option<(usize, WriteFault)>) -> usize {
    let mut stage = Stage::with_fault(plan, names::REQUEST_CLASS, "{}");
    let first = Arc::clone(&stage.setu.wire);
    stage.job("gang");
    stage.until_despite_kills(&format!("it is admitted, {plan:?}"), |s| s.is("Admitted")).await;
    assert_eq!(stage.claims().len(), 2, "{plan:?}");
    stage.finish();
    stage.until_despite_kills(&format!("no node is left, {plan:?}"), |s| s.claims().is_empty()).await;
    assert_eq!(first.fired(), usize::from(plan.is_some()), "{plan:?}");
    first.written().len()
}

#[test]
fn a_gang_of_a_request_comes_and_goes_whatever_fault_meets_whichever_write() {
    let writes = in_virtual_time(come_and_go(None));
    assert!(writes > 10, "{writes} writes");
    for fault in WriteFault::ALL {
        for write in 0..writes {
            in_virtual_time(come_and_go(Some((write, fault))));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_of_other_classes_are_left_alone() {
    let stage = Stage::new(FOREIGN, "{}");
    stage.job("gang");
    stage.until("the request exists", 60, |s| !s.requests().is_empty()).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let request = stage.request();
    assert!(stage.claims().is_empty());
    assert_eq!((request.get("status"), request["metadata"].get("annotations")), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_shortage_is_retried_within_one_request() {
    let stage = Stage::new(names::REQUEST_CLASS, "{retry: {inCheck: {limit: 20, base: 10s, max: 10s}}}");
    world::weather(&stage.admin, &json!([{"capacity": 1}]));
    stage.job("gang");
    stage.until("it backs off", 300, |s| s.journal().contains("\"state\":\"BackingOff\"")).await;
    world::calm(&stage.admin);
    stage.until("it is admitted", 300, |s| s.is("Admitted")).await;
    assert_eq!((stage.requests().len(), stage.claims().len()), (1, 2));
    assert!(stage.request()["metadata"]["name"].as_str().unwrap().ends_with("-1"));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_met_fails_and_the_next_one_is_served() {
    let defaults = "{retry: {inCheck: {limit: 0}, yield: {base: 1s, max: 1s}}}";
    let stage = Stage::new(names::REQUEST_CLASS, defaults);
    world::weather(&stage.admin, &json!([{"capacity": 1}]));
    stage.job("gang");
    stage.until("the request fails", 300, |s| s.condition("Failed")["status"] == "True").await;
    let message = stage.condition("Failed")["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("InsufficientCapacity: "), "{message}");
    assert!(stage.claims().is_empty(), "everything is taken back first");
    world::calm(&stage.admin);
    stage.until("it is admitted", 600, |s| s.is("Admitted")).await;
    assert!(stage.request()["metadata"]["name"].as_str().unwrap().ends_with("-2"));
    assert_eq!((stage.requests().len(), stage.claims().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_only_once_its_retries_are_used_up() {
    let stage = Stage::new(names::REQUEST_CLASS, "{retry: {inCheck: {limit: 2, base: 5s, max: 5s}}}");
    world::weather(&stage.admin, &json!([{"capacity": 1}]));
    stage.job("gang");
    let mut attempts = BTreeSet::new();
    let attempt = |s: &Stage| {
        let journal: Value = serde_json::from_str(&s.journal()).unwrap_or_default();
        journal["attempt"].as_u64().filter(|_| s.requests().len() == 1)
    };
    stage
        .until("the request fails", 600, |s| {
            attempts.extend(attempt(s));
            s.condition("Failed")["status"] == "True"
        })
        .await;
    assert!(attempts.is_superset(&BTreeSet::from([1, 2, 3])), "{attempts:?}");
    assert!(stage.request()["metadata"]["name"].as_str().unwrap().ends_with("-1"));
}

#[tokio::test(start_paused = true)]
async fn the_parameters_of_a_request_choose_only_what_the_policy_opens() {
    let policy = "{}\njobOverrides: {zone: {values: [us-east-1b]}}";
    for (zone, is_taken) in [("us-east-1b", true), ("us-east-1a", false)] {
        let stage = Stage::new(names::REQUEST_CLASS, policy);
        let parameters = json!({"spec": {"parameters": {"setu-zone": zone, "setu-budget": "1"}}});
        stage.admin.merge(&kinds::PROVISIONING_REQUEST_CONFIG, "", "setu", &parameters).unwrap();
        stage.job("gang");
        stage.until("its claims exist", 60, |s| s.claims().len() == 2).await;
        assert_eq!(stage.request()["spec"]["parameters"]["setu-zone"], zone);
        for claim in stage.claims() {
            let requirements = claim["spec"]["requirements"].as_array().unwrap();
            let zones = requirements.iter().find(|r| r["key"] == names::ZONE).map(|r| &r["values"]);
            assert_eq!(zones == Some(&json!([zone])), is_taken, "{zone}: {zones:?}");
        }
        let ignored = stage.events("JobOverrideIgnored").join("; ");
        assert!(ignored.contains("setu-budget"), "{ignored}");
        assert_eq!(!ignored.contains("setu-zone"), is_taken, "{ignored}");
    }
}

#[tokio::test(start_paused = true)]
async fn budgets_and_guards_hold_for_a_request_as_for_a_check() {
    for (policy, words) in [
        ("{gates: {budget: {maxNodes: 1}}}", "gates.budget allows 1"),
        ("{}\nguards: {gangNodes: 1}", "guards.gangNodes allows 1"),
        ("{}\nguards: {perLocalQueue: {nodes: 1}}", "guards.perLocalQueue"),
    ] {
        let stage = Stage::new(names::REQUEST_CLASS, policy);
        stage.job("gang");
        let said = |s: &Stage| {
            ["Provisioned", "Failed"]
                .map(|kind| s.condition(kind)["message"].as_str().unwrap_or_default().to_owned())
        };
        stage.until(words, 120, |s| said(s).iter().any(|text| text.contains(words))).await;
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert!(stage.claims().is_empty(), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_request_have_the_taint_of_their_gang_only_if_the_flavor_tolerates_it() {
    for tolerations in [json!([]), json!([{"key": names::GANG, "operator": "Exists"}])] {
        let stage = Stage::new(names::REQUEST_CLASS, "{}");
        let tolerates = tolerations != json!([]);
        stage
            .admin
            .merge(&kinds::RESOURCE_FLAVOR, "", ID, &json!({"spec": {"tolerations": tolerations}}))
            .unwrap();
        stage.job("gang");
        stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
        for claim in stage.claims() {
            let taints = claim["spec"]["taints"].as_array().cloned().unwrap_or_default();
            assert_eq!(taints.iter().any(|taint| taint["key"] == names::GANG), tolerates, "{taints:?}");
        }
        let drawbacks = stage.events("PlanHasDrawback").join("; ");
        assert_eq!(drawbacks.contains("the nodes get no taint"), !tolerates, "{drawbacks}");
        assert_eq!(stage.events("GangReady").len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_deleted_by_hand_takes_no_nodes_from_a_running_gang() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    stage.delete_request();
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(stage.claims().len(), 2);
    stage.finish();
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn after_requests_are_switched_off_their_nodes_stay_until_the_workload_ends() {
    let mut stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    stage.setu.kill();
    stage.cluster.denials.begin(Denial::Requests);
    stage.setu = stage.cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(stage.claims().len(), 2);
    stage.finish();
    stage.until("no node is left", 600, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn after_requests_are_switched_off_nodes_of_a_waiting_gang_go_when_their_hold_ends() {
    let mut stage =
        Stage::new(names::REQUEST_CLASS, "{custody: {holdLimit: 10m}, deadlines: {gang: 5m, launch: 4m}}");
    world::weather(&stage.admin, &json!([{"registrationDelay": "5h"}]));
    stage.job("gang");
    stage.until("nodes are launched", 60, |s| s.claims().len() == 2).await;
    stage.setu.kill();
    stage.cluster.denials.begin(Denial::Requests);
    stage.setu = stage.cluster.start_setu(&Start::default());
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(stage.claims().len(), 2, "another installation may serve them");
    stage.until("no node is left", 1_200, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_are_kept_warm_even_if_the_request_goes_before_the_finish_is_seen() {
    let stage = Stage::new(names::REQUEST_CLASS, "{custody: {release: Warm, warmFor: 1h}}");
    stage.job("first");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    let first = stage.claim_names();
    // Kueue deletes the request as soon as its Workload has finished.
    stage.setu.wire.silence("/workloads");
    stage.finish();
    stage.delete_request();
    let warm = |claim: &Arc<Value>| claim["metadata"]["labels"][names::WARM].is_string();
    let are_kept = |s: &Stage| s.claim_names() == first && s.claims().iter().all(warm);
    stage.until("its nodes are kept", 60, are_kept).await;
    for claim in stage.claims() {
        assert_eq!(claim["metadata"]["annotations"].get(names::OWNER), None, "it belongs to nobody");
    }
    let done = stage.workload().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.delete(&kinds::JOB, ID, "first", Preconditions::default()).unwrap();
    stage
        .until("the Workload is gone", 60, |s| s.workload().is_none_or(|w| w["metadata"]["name"] != *done))
        .await;
    stage.job("second");
    stage.until("the second is admitted", 120, |s| s.is("Admitted")).await;
    assert_eq!(stage.claim_names(), first, "it runs on the same nodes");
    stage.delete_request();
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert_eq!(stage.claim_names(), first, "they belong to the second now, which still runs");
}

#[tokio::test(start_paused = true)]
async fn a_request_deleted_before_admission_leaves_no_nodes() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    world::weather(&stage.admin, &json!([{"launchDelay": "3m"}]));
    stage.job("gang");
    stage.until("its claims exist", 60, |s| s.claims().len() == 2).await;
    let gang = stage.claims()[0]["metadata"]["labels"][names::WORKLOAD_UID].clone();
    stage.delete_request();
    let of_first =
        |s: &Stage| s.claims().iter().all(|c| c["metadata"]["labels"][names::WORKLOAD_UID] != gang);
    stage.until("they are gone", 60, of_first).await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_workload_gives_its_nodes_back() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    let name = stage.workload().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.merge(&kinds::WORKLOAD, ID, &name, &json!({"spec": {"active": false}})).unwrap();
    stage
        .until("no node and no request is left", 120, |s| s.claims().is_empty() && s.requests().is_empty())
        .await;
}

#[tokio::test(start_paused = true)]
async fn another_leader_goes_on_with_the_request() {
    let mut stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("its claims exist", 60, |s| s.claims().len() == 2).await;
    let before = stage.claim_names();
    stage.setu.kill();
    stage.setu = stage.cluster.start_setu(&Start { options: SERVED, ..Start::default() });
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    assert_eq!(stage.claim_names(), before);
}

#[tokio::test(start_paused = true)]
async fn a_second_request_for_the_same_workload_gets_no_nodes() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    let mut copy = stage.request();
    let metadata = &copy["metadata"];
    copy["metadata"] = json!({
        "name": "copy", "namespace": ID, "ownerReferences": metadata["ownerReferences"],
        "annotations": {(names::journal_key(ID)): metadata["annotations"][names::journal_key(ID)]},
    });
    copy.as_object_mut().unwrap().remove("status");
    stage.admin.create(&kinds::PROVISIONING_REQUEST, copy).unwrap();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_booking_expires_when_the_gang_is_not_admitted_in_time() {
    let stage = Stage::new(names::REQUEST_CLASS, "{deadlines: {admit: 2m}}");
    stage.add_other_check();
    stage.job("gang");
    stage.until("it is provisioned", 120, |s| s.condition("Provisioned")["status"] == "True").await;
    stage.until("the booking expires", 300, |s| s.condition("BookingExpired")["status"] == "True").await;
    assert!(stage.claims().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_workload_or_a_queue_fails_with_a_sentence() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.create_request(&json!({"name": "alone", "namespace": ID}));
    stage.until("it fails", 60, |s| s.condition("Failed")["status"] == "True").await;
    let message = stage.condition("Failed")["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("no Workload controls this request"), "{message}");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(stage.claims().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_failed_gets_no_nodes_when_quota_is_reserved_again() {
    let stage = Stage::new(names::REQUEST_CLASS, "{retry: {inCheck: {limit: 0}}}");
    world::weather(&stage.admin, &json!([{"capacity": 1}]));
    stage.job("gang");
    stage.until("the request fails", 300, |s| s.condition("Failed")["status"] == "True").await;
    let failed = stage.request();
    stage.until("it is deleted", 300, |s| s.request()["metadata"]["uid"] != failed["metadata"]["uid"]).await;
    world::calm(&stage.admin);
    // A Kueue that does not clean up leaves the old request beside the new one.
    let mut old = failed.clone();
    old["metadata"] = json!({
        "name": "old", "namespace": ID, "ownerReferences": failed["metadata"]["ownerReferences"],
        "annotations": failed["metadata"]["annotations"],
    });
    stage.admin.create(&kinds::PROVISIONING_REQUEST, old).unwrap();
    let status = json!({"status": failed["status"]});
    stage.admin.merge_status(&kinds::PROVISIONING_REQUEST, ID, "old", &status).unwrap();
    stage.until("it is admitted", 600, |s| s.is("Admitted")).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn with_last_check_nodes_are_created_only_after_other_checks_are_ready() {
    let stage = Stage::new(names::REQUEST_CLASS, "{strategy: {type: LastCheck}}");
    stage.add_other_check();
    stage.job("gang");
    stage.until("it is planned", 60, |s| s.journal().contains("Validating")).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(stage.claims().is_empty());
}

#[tokio::test(start_paused = true)]
async fn with_last_check_two_checks_that_setu_answers_do_not_wait_for_each_other() {
    let stage = Stage::new(names::REQUEST_CLASS, "{strategy: {type: LastCheck}}");
    stage.split_by("memory");
    stage.admin.create(&kinds::WORKLOAD, workload_in_two_parts()).unwrap();
    stage.until("it is admitted", 300, |s| s.is("Admitted")).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_request_whose_check_is_gone_are_deleted_even_if_that_failed_at_first() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.add_other_check();
    // Without quota no flavor is assigned, and Kueue drops the check.
    let checks = json!([{"name": ID, "onFlavors": [ID]}, {"name": "other"}]);
    let checks = json!({"spec": {"admissionChecksStrategy": {"admissionChecks": checks}}});
    stage.admin.merge(&kinds::CLUSTER_QUEUE, "", ID, &checks).unwrap();
    stage.job("gang");
    stage.until("it is provisioned", 120, |s| s.entry(ID)["state"] == "Ready").await;
    stage.cluster.denials.begin(Denial::Deletes);
    stage.stop_queue("Hold");
    stage.until("its check is gone", 60, |s| !s.is("QuotaReserved") && s.entry(ID).is_null()).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(stage.claims().len(), 2, "none could be deleted");
    stage.cluster.denials.end();
    stage.until("they are deleted", 240, |s| s.claims().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_owns_itself_gets_no_nodes() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    let metadata = json!({"name": "own", "namespace": ID, "finalizers": ["example.com/stays"]});
    let created = stage.create_request(&metadata);
    let owner = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": "own", "controller": true,
        "uid": created["metadata"]["uid"],
    });
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    stage.admin.merge(&kinds::PROVISIONING_REQUEST, ID, "own", &patch).unwrap();
    stage.job("gang");
    stage.until("others go on", 120, |s| s.is("Admitted")).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_for_a_finalizer_takes_no_nodes_from_a_running_gang() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.job("gang");
    stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
    let name = stage.request()["metadata"]["name"].as_str().unwrap().to_owned();
    let held = json!({"metadata": {"finalizers": ["example.com/stays"]}});
    stage.admin.merge(&kinds::PROVISIONING_REQUEST, ID, &name, &held).unwrap();
    stage.delete_request();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(stage.claims().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_kept_of_a_request_that_was_recreated_under_its_name() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    world::weather(&stage.admin, &json!([{"launchDelay": "3m"}]));
    stage.job("gang");
    stage.until("its claims exist", 60, |s| s.claims().len() == 2).await;
    let board = stage.cluster.board();
    // The watch shows both changes at once.
    stage.setu.wire.silence("/provisioningrequests");
    let [old, new] = stage.recreate_request();
    let gangs = |uid: &str| {
        let snapshot = board().unwrap();
        snapshot.gangs.keys().filter(|gang| **gang == gang_id(uid, ID)).count()
    };
    stage.until("the new one is served", 120, |_| gangs(&new) == 1).await;
    assert_eq!(gangs(&old), 0);
    let kept = stage.setu.context.remembered_gangs();
    assert_eq!((kept["board"], kept["gangs"], kept["workloads"]), (1, 1, 1), "{kept:?}");
    for (kind, count) in kept {
        assert!(count <= 1, "{kind}: {count}");
    }
}

/// A Workload of these pod sets, each with its name, its count and the resources of its pods.
fn workload_of(name: &str, sets: &[(&str, usize, Value)]) -> Value {
    let set = |(name, count, resources): &(&str, usize, Value)| {
        let container = json!({"name": "main", "image": "none", "resources": {"requests": resources, "limits": resources}});
        json!({"name": name, "count": count, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}})
    };
    let sets: Vec<Value> = sets.iter().map(set).collect();
    json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": {"namespace": ID, "name": name},
        "spec": {"queueName": "queue", "active": true, "podSets": sets},
    })
}

#[tokio::test(start_paused = true)]
async fn only_the_nodes_of_pod_sets_that_kueue_places_need_the_labels_of_their_topology() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    world::add_racks(&stage.admin, ID);
    let gpu = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    let workload = workload_of("ray", &[("head", 1, json!({"cpu": "1"})), ("worker", 2, gpu)]);
    stage.admin.create(&kinds::WORKLOAD, workload).unwrap();
    let all_up = |s: &Stage| s.claims().len() == 3 && s.claims().iter().all(|claim| is(claim, "Initialized"));
    stage.until("its nodes are up", 120, all_up).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!stage.is("Admitted"), "the nodes of the workers are in no rack yet");
    for node in stage.admin.list(&kinds::NODE).iter().filter(|node| node["metadata"]["labels"]["pool"] == ID)
    {
        let rack = json!({"metadata": {"labels": {"example.com/rack": "r1"}}});
        stage.admin.merge(&kinds::NODE, "", node["metadata"]["name"].as_str().unwrap(), &rack).unwrap();
    }
    stage.until("it is admitted", 60, |s| s.is("Admitted")).await;
    assert_eq!(stage.claims().len(), 3);
}

/// A Workload with a pod set for each of two checks that are split by memory.
fn workload_in_two_parts() -> Value {
    let gpu = json!({"cpu": "1", "nvidia.com/gpu": "1"});
    workload_of("two", &[("worker", 3, gpu), ("driver", 1, json!({"cpu": "1", "memory": "1Gi"}))])
}

#[tokio::test(start_paused = true)]
async fn two_requests_of_a_workload_each_get_nodes_for_the_pod_sets_that_they_list() {
    let stage = Stage::new(names::REQUEST_CLASS, "{}");
    stage.split_by("memory");
    stage.admin.create(&kinds::WORKLOAD, workload_in_two_parts()).unwrap();
    stage.until("it is admitted", 300, |s| s.is("Admitted")).await;
    let counts: Vec<String> = stage
        .requests()
        .iter()
        .map(|r| r["status"]["provisioningClassDetails"]["count"].to_string())
        .collect();
    assert_eq!((counts, stage.claims().len()), (vec!["\"3\"".to_owned(), "\"1\"".to_owned()], 4));
}

/// A gang that runs and one that waits for its nodes. Setu has been stopped, and Kueue stands still.
struct Uninstalled {
    stage: Stage,
    /// The check and the Workloads, as they were before.
    before: Vec<Arc<Value>>,
    /// The request of the gang that runs, as it was before.
    running: Arc<Value>,
}

impl Uninstalled {
    fn of_kueue(stage: &Stage) -> Vec<Arc<Value>> {
        [stage.admin.list(&kinds::ADMISSION_CHECK), stage.admin.list(&kinds::WORKLOAD)].concat()
    }

    fn has_journal(request: &Value) -> bool {
        let annotations = &request["metadata"]["annotations"];
        [names::journal_key(ID), names::state_key(ID)].iter().any(|key| annotations.get(key).is_some())
    }

    async fn new(nodes: RunningNodes) -> Self {
        let stage = Stage::new(names::REQUEST_CLASS, "{}");
        stage.job("runs");
        stage.until("it is admitted", 120, |s| s.is("Admitted")).await;
        let running = stage.request()["metadata"]["uid"].clone();
        world::weather(&stage.admin, &json!([{"launchDelay": "1h"}]));
        stage.job("waits");
        stage.until("its claims exist", 60, |s| s.claims().len() == 4).await;
        stage.cluster.stop_kueue(true);
        stage.setu.kill();
        let (client, controller) = (stage.cluster.client("admin"), scenario::controller_name_of(ID));
        let before = Self::of_kueue(&stage);
        let running = stage.requests().into_iter().find(|r| r["metadata"]["uid"] == running).unwrap();
        let plan = uninstall::plan(&client, &controller, nodes).await.unwrap();
        let limit = Duration::from_mins(5);
        uninstall::carry_out(&client, &controller, plan, nodes, limit).await.unwrap();
        Self { stage, before, running }
    }

    /// The requests of the gang that runs and of the one that waits.
    fn requests(&self) -> [Arc<Value>; 2] {
        let (running, waiting) = self
            .stage
            .requests()
            .into_iter()
            .partition(|r| r["metadata"]["uid"] == self.running["metadata"]["uid"]);
        [running, waiting].map(|mut requests: Vec<Arc<Value>>| requests.pop().unwrap())
    }

    /// Checks that the request of the gang that waits has failed, and that Kueue's objects are Kueue's alone.
    fn check(&self) {
        assert_eq!(Self::of_kueue(&self.stage), self.before);
        let [running, waiting] = self.requests();
        assert_eq!(running["status"], self.running["status"]);
        let conditions = waiting["status"]["conditions"].as_array().unwrap();
        let failed = conditions.iter().find(|condition| condition["type"] == "Failed").unwrap();
        let said = (&failed["status"], &failed["reason"], failed["message"].as_str().unwrap());
        assert_eq!(said, (&json!("True"), &json!("Uninstalled"), UNINSTALLED));
        assert!(!Self::has_journal(&waiting) && Self::has_journal(&self.running));
    }
}

#[tokio::test(start_paused = true)]
async fn an_uninstall_hands_back_nodes_of_running_requests_and_fails_open_ones() {
    let uninstalled = Uninstalled::new(RunningNodes::HandBack).await;
    uninstalled.check();
    let stage = &uninstalled.stage;
    let claims = stage.claims();
    assert_eq!(claims.len(), 2);
    for claim in claims {
        let metadata = &claim["metadata"];
        assert_eq!(metadata["labels"][names::WORKLOAD_UID], uninstalled.running["metadata"]["uid"]);
        for held in [names::DO_NOT_DISRUPT, names::HOLD_UNTIL] {
            assert_eq!(metadata["annotations"].get(held), None);
        }
    }
    // A Setu that comes back goes on with it.
    let [running, _] = uninstalled.requests();
    assert_eq!(running["metadata"]["annotations"], uninstalled.running["metadata"]["annotations"]);
    stage.cluster.stop_kueue(false);
    let is_second = |request: &Arc<Value>| request["metadata"]["name"].as_str().unwrap().ends_with("-2");
    stage.until("Kueue asks again", 180, |s| s.requests().iter().any(is_second)).await;
    assert_eq!(stage.admin.list(&kinds::WORKLOAD).iter().filter(|w| is(w, "Admitted")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_uninstall_with_all_nodes_leaves_no_journal_on_a_request_and_fails_none_that_runs() {
    let uninstalled = Uninstalled::new(RunningNodes::Delete).await;
    uninstalled.check();
    assert!(uninstalled.stage.claims().is_empty());
    let [running, _] = uninstalled.requests();
    assert!(!Uninstalled::has_journal(&running));
}
