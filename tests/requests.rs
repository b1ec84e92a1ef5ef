//! The second front-end on the embedded cluster: gangs of ProvisioningRequests that Kueue's own check makes.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

#[path = "gangs/world.rs"]
mod world;

use serde_json::{Value, json};
use setu::controllers::context::Options;
use setu::names;
use setu::sim::api::kinds;
use setu::sim::api::{Preconditions, User};
use setu::sim::cluster::{Cluster, Setu, Start};
use std::sync::Arc;
use std::time::Duration;
use world::is;

const ID: &str = "requests";
const SERVED: Options = Options { workload_finalizer: false, tas_compat: false, provisioning_requests: true };

struct Stage {
    cluster: Cluster,
    setu: Setu,
    admin: User,
}

impl Stage {
    /// A queue whose only check is Kueue's own, for this class.
    fn new(class: &str, defaults: &str) -> Self {
        let (mut cluster, admin) = world::cluster(ID, world::policy(&format!("defaults: {defaults}")));
        // The name of a check's controller cannot be changed, so the check is made anew.
        admin.delete(&kinds::ADMISSION_CHECK, "", ID, Preconditions::default()).unwrap();
        let config = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ProvisioningRequestConfig", "metadata": {"name": ID},
            "spec": {
                "provisioningClassName": class,
                "podSetUpdates": {"nodeSelector": [{"key": names::GANG, "valueFromProvisioningClassDetail": "gang"}]},
            },
        });
        admin.create(&kinds::PROVISIONING_REQUEST_CONFIG, config).unwrap();
        let parameters =
            json!({"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": ID});
        let check = json!({
            "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": ID},
            "spec": {"controllerName": names::PROVISIONING_REQUEST, "parameters": parameters},
        });
        admin.create(&kinds::ADMISSION_CHECK, check).unwrap();
        let setu = cluster.start_setu(&Start { options: SERVED, ..Start::default() });
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

    fn request(&self) -> Value {
        self.requests().first().map(|request| (**request).clone()).unwrap_or_default()
    }

    fn condition(&self, kind: &str) -> Value {
        let request = self.request();
        let all = request["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default()
    }

    async fn until(&self, what: &str, seconds: u64, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..seconds * 100 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!(
            "not within {seconds} s: {what}; {} claims; {:#?}; {:#?}",
            self.claims().len(),
            self.requests(),
            self.workload()
        );
    }
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
    let name = stage.workload().unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let finished = json!({"status": {"conditions": [{
        "type": "Finished", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    stage.admin.merge_status(&kinds::WORKLOAD, ID, &name, &finished).unwrap();
    stage.until("no node is left", 60, |s| s.claims().is_empty()).await;
}
