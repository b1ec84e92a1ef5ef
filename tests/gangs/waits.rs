//! Before its caches are complete, a replica does nothing: in the embedded cluster and virtual time.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use setu::app::replica::Replica;
use setu::controllers::context::{ContextParts, Options};
use setu::names;
use setu::policy::PolicyFile;
use setu::sim::cluster::SimCluster;
use setu::sim::scenario;
use setu::telemetry::Telemetry;
use setu_clock::Clock;
use setu_sim::api::kinds;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

const ID: &str = "waits";
/// How long the list of Workloads takes.
const LATE: Duration = Duration::from_secs(20);

/// The same client, with delayed lists of Workloads and counted reads of single ones.
fn late(client: Client, reads: &Arc<AtomicUsize>) -> Client {
    let reads = Arc::clone(reads);
    let send = move |request: Request<Body>| {
        let (client, reads) = (client.clone(), Arc::clone(&reads));
        async move {
            let path = request.uri().path();
            if request.method() == Method::GET && path.contains("/workloads/") {
                reads.fetch_add(1, Ordering::Relaxed);
            } else if path.ends_with("/workloads") {
                tokio::time::sleep(LATE).await;
            }
            client.send(request).await
        }
    };
    Client::new(service_fn(send), "default")
}

#[tokio::test(start_paused = true)]
async fn no_workload_is_read_for_a_claim_before_workloads_are_listed() {
    let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap());
    let policy = PolicyFile::parse("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy").unwrap();
    let controller = scenario::controller_name_of(ID);
    let cluster = SimCluster::start(7, &clock, &controller, policy.clone());
    let admin = cluster.server.user("admin");
    for object in scenario::objects(ID, 100).unwrap() {
        let kind = kinds::ALL.iter().find(|k| k.kind == object["kind"]).unwrap();
        admin.create(kind, object).unwrap();
    }
    let class = admin.list(&kinds::NODE_POOL)[0]["spec"]["template"]["spec"]["nodeClassRef"].clone();
    for slot in 0..5 {
        let claim = json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {
                "name": format!("setu-gone-{slot}"),
                "labels": {
                    names::MANAGED_BY: names::SETU, names::WORKLOAD_UID: "gone", names::GANG: "gone",
                    names::ATTEMPT: "1", names::NODEPOOL: ID,
                },
                "annotations": {
                    names::WORKLOAD: format!("{ID}/gone"), names::CHECK: ID, names::SLOT: slot.to_string(),
                },
            },
            "spec": {"requirements": [], "nodeClassRef": class},
        });
        admin.create(&kinds::NODE_CLAIM, claim).unwrap();
    }
    let reads = Arc::default();
    let parts = ContextParts {
        client: late(cluster.client(names::SETU), &reads),
        clock,
        controller_name: controller,
        options: Options::default(),
        policy: policy.into(),
        telemetry: Telemetry::default(),
    };
    let replica = Replica::start(parts, None);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let work = tokio::spawn(async move { replica.work(&stopped).await });
    tokio::time::sleep(LATE / 2).await;
    assert_eq!(reads.load(Ordering::Relaxed), 0, "nothing is known of Workloads yet");
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_ne!(reads.load(Ordering::Relaxed), 0, "each claim is looked at once they are listed");
    let left = admin.list(&kinds::NODE_CLAIM);
    assert!(left.iter().all(|c| c["metadata"]["deletionTimestamp"].is_string()), "{left:#?}");
    stop.cancel();
    work.await.unwrap();
}
