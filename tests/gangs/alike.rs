//! NodeClaims of one gang differ in name and annotations only, and those of earlier versions are still understood.
//! In the embedded cluster.

use crate::world;
use serde_json::{Value, json};
use setu::names;
use setu::sim::cluster::{Setu, SimCluster, Start};
use setu_sim::api::kinds::{self, ServedKind};
use setu_sim::api::{Preconditions, User};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const ID: &str = "alike";
const PODS: usize = 4;

struct Stage {
    cluster: SimCluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    fn new(defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        let setu = cluster.start_setu(&Start::default());
        Self { cluster, setu, admin }
    }

    /// Delays the registration of every node.
    fn registers_after(&self, delay: &str) {
        world::weather(&self.admin, &json!([{"registrationDelay": delay}]));
    }

    /// Submits a Job whose pods run for this long.
    fn submit(&self, name: &str, runs: &str) {
        let job = world::job(ID, name, PODS, Some(runs));
        self.admin.create(&kinds::JOB, job).unwrap();
    }

    fn claims(&self) -> Vec<Arc<Value>> {
        self.admin.list(&kinds::NODE_CLAIM)
    }

    fn uids(&self) -> BTreeSet<String> {
        self.claims().iter().map(|c| c["metadata"]["uid"].as_str().unwrap().to_owned()).collect()
    }

    fn is_in(&self, name: &str, state: &str) -> bool {
        let key = names::journal_key(ID);
        self.admin.list(&kinds::WORKLOAD).iter().any(|w| {
            let journal = w["metadata"]["annotations"][&key].as_str().unwrap_or_default();
            w["metadata"]["name"].as_str().unwrap().contains(name)
                && journal.contains(&format!("\"state\":\"{state}\""))
        })
    }

    async fn until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let came = world::until(Duration::from_mins(10), Duration::from_millis(100), || holds(self)).await;
        let seen = || (self.claims().len(), self.admin.list(&kinds::WORKLOAD));
        assert!(came, "not within 10 min: {what}; claims and Workloads: {:#?}", seen());
    }

    /// Kills Setu, moves slots and generations into labels as an earlier version wrote them, and starts Setu again.
    fn upgrade(&mut self) {
        self.setu.kill();
        self.move_to_labels(&kinds::NODE_CLAIM);
        self.move_to_labels(&kinds::NODE);
        self.setu = self.cluster.start_setu(&Start::default());
    }

    fn move_to_labels(&self, kind: &'static ServedKind) {
        for object in self.admin.list(kind) {
            let metadata = &object["metadata"];
            let slot = &metadata["annotations"][names::SLOT];
            let generation = Some(&metadata["annotations"][names::GENERATION]).filter(|g| *g != "0");
            let patch = json!({"metadata": {
                "labels": {names::SLOT: slot, names::GENERATION: generation},
                "annotations": {names::SLOT: null, names::GENERATION: null},
            }});
            self.admin.merge(kind, "", metadata["name"].as_str().unwrap(), &patch).unwrap();
        }
    }
}

/// All fields that a provider uses.
fn request(claim: &Value) -> Value {
    let metadata = &claim["metadata"];
    json!([metadata["labels"], metadata["ownerReferences"], claim["spec"]])
}

fn annotations(claim: &Value) -> Value {
    let mut annotations = claim["metadata"]["annotations"].clone();
    annotations.as_object_mut().unwrap().remove(names::SLOT).unwrap();
    annotations
}

#[tokio::test(start_paused = true)]
async fn claims_of_equal_slots_differ_only_in_name_and_slot_annotation() {
    let stage = Stage::new("{custody: {pinning: SelectorAndTaint}}");
    stage.registers_after("1m");
    stage.submit("train", "1h");
    stage.until("its claims are there", |s| s.claims().len() == PODS).await;
    let claims = stage.claims();
    for claim in &claims {
        for key in [names::SLOT, names::GENERATION] {
            assert_eq!(claim["metadata"]["labels"].get(key), None, "{key} is no label");
        }
        assert_eq!(annotations(claim), annotations(&claims[0]));
    }
    let slots: BTreeSet<&str> =
        claims.iter().map(|c| c["metadata"]["annotations"][names::SLOT].as_str().unwrap()).collect();
    assert_eq!(slots, BTreeSet::from(["0", "1", "2", "3"]));
    // Without the labels that a provider adds.
    let before = |claim: &Value| {
        let mut request = request(claim);
        for key in
            [names::INSTANCE_TYPE, names::ZONE, names::CAPACITY_TYPE, names::ARCH, names::OS, names::REGION]
        {
            request[0].as_object_mut().unwrap().remove(key);
        }
        request
    };
    for claim in &claims {
        assert_eq!(before(claim), before(&claims[0]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiting_gang_whose_claims_have_the_labels_of_an_earlier_version_keeps_them() {
    let mut stage = Stage::new("{}");
    stage.registers_after("1m");
    stage.submit("train", "1h");
    stage.until("it waits", |s| s.is_in("train", "WaitingReady")).await;
    let uids = stage.uids();
    stage.upgrade();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(stage.is_in("train", "WaitingReady"));
    stage.until("it runs", |s| s.is_in("train", "Approved")).await;
    assert_eq!(stage.uids(), uids, "nothing is deleted or made anew");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((stage.uids(), stage.is_in("train", "Approved")), (uids, true));
}

#[tokio::test(start_paused = true)]
async fn a_replaced_node_of_an_earlier_version_keeps_its_slot() {
    let mut stage = Stage::new("{custody: {onNodeLost: Replace}}");
    stage.submit("train", "1h");
    stage.until("it runs", |s| s.is_in("train", "Approved")).await;
    let lost = stage.claims()[0]["metadata"]["name"].as_str().unwrap().to_owned();
    stage.admin.delete(&kinds::NODE_CLAIM, "", &lost, Preconditions::default()).unwrap();
    let replaced =
        |s: &Stage| s.claims().iter().any(|c| c["metadata"]["annotations"][names::GENERATION] == "1");
    stage.until("it is replaced", replaced).await;
    stage.until("all are up", |s| s.admin.list(&kinds::NODE).len() == PODS).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let uids = stage.uids();
    stage.upgrade();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((stage.uids(), stage.is_in("train", "Approved")), (uids, true));
}

#[tokio::test(start_paused = true)]
async fn kept_nodes_with_the_labels_of_an_earlier_version_are_taken_over_without_them() {
    let mut stage = Stage::new("{custody: {release: Warm, warmFor: 1h}}");
    stage.submit("first", "1m");
    stage.until("it runs", |s| s.is_in("first", "Approved")).await;
    let uids = stage.uids();
    let is_kept = |c: &Arc<Value>| c["metadata"]["labels"].get(names::WARM).is_some();
    stage.until("its nodes are kept", |s| s.claims().iter().all(is_kept)).await;
    for claim in stage.claims() {
        assert_eq!(claim["metadata"]["annotations"].get(names::SLOT), None, "it is in no slot");
    }
    stage.upgrade();
    stage.submit("second", "1h");
    stage.until("it runs", |s| s.is_in("second", "Approved")).await;
    assert_eq!(stage.uids(), uids);
    let mut slots = BTreeSet::new();
    for object in stage.claims().iter().chain(&stage.admin.list(&kinds::NODE)) {
        assert_eq!(object["metadata"]["labels"].get(names::SLOT), None, "{object}");
        slots.insert(object["metadata"]["annotations"][names::SLOT].as_str().unwrap().to_owned());
    }
    assert_eq!(slots.len(), PODS);
    stage.upgrade();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((stage.uids(), stage.is_in("second", "Approved")), (uids, true));
}
