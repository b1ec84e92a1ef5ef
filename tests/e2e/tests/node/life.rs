//! From install to uninstall on the real node. In each part, something happens to the replicas while gangs are in flight,
//! and each gang still gets its nodes exactly once.

use crate::cannot;
use crate::helm::{EVERYTHING, chart, previous_charts};
use crate::release::Release;
use ::setu::sim::scenario;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, EvictParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use setu_e2e::node;
use std::time::Duration;

/// A released Lease gets a new holder before it would have expired: 15 s after its last renewal, which is at most 2 s before the release.
const HANDED_OVER: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread")]
async fn from_install_to_uninstall_on_a_real_node_each_gang_gets_its_nodes_once() {
    if let Err(why) = node::possible() {
        return cannot("node", &format!("{why:#}"));
    }
    let mut release = Release::prepare().await;
    // Its policies require the labels of its own release, but the current controller runs here.
    let older = ["--set", "admissionPolicies.enabled=false"];
    let previous = previous_charts(release.stack.folder()).pop().unwrap();
    release.install(&previous.path, None, &older).await;
    eprintln!("the older chart is installed");
    release.step(json!({"submit": {"name": "stays", "pods": 1, "gpus": 1}})).await;
    release.step(json!({"until": {"job": "stays", "admitted": true, "runningOnOwnNodes": 1}})).await;

    let gangs = release.gangs_in_flight("upgrade").await;
    release.install(&chart(), None, &[]).await;
    release.gangs_end(gangs).await;
    release.are_ready_and_restricted(2).await;
    eprintln!("upgraded");
    test(&release).await;
    ends_in_order(&mut release).await;

    let gangs = release.gangs_in_flight("ha").await;
    release.install(&chart(), Some("values-ha.yaml"), &[]).await;
    release.gangs_end(gangs).await;
    release.are_ready_and_restricted(3).await;
    test(&release).await;
    is_evicted(&mut release).await;
    let hung = hangs(&mut release).await;

    let gangs = release.gangs_in_flight("everything").await;
    release.install(&chart(), EVERYTHING, &[]).await;
    release.gangs_end(gangs).await;
    release.are_ready_and_restricted(2).await;
    eprintln!("everything is on");
    test(&release).await;
    is_killed_for_memory(&mut release).await;

    let gangs = release.gangs_in_flight("rollback").await;
    release.helm(&["rollback", "setu", "1", "--wait", "--timeout", "4m"]).await;
    release.gangs_end(gangs).await;
    assert_eq!(release.deployment().await.labels()["app.kubernetes.io/version"], previous.version);
    release.are_ready_and_restricted(2).await;
    eprintln!("rolled back");
    test(&release).await;

    release.install(&chart(), None, &[]).await;
    uninstall(&mut release).await;
    release.each_had_its_nodes();
    for (pod, ended) in release.seen.all_ended() {
        let fine = |(code, reason): &(i32, String)| *code == 0 || reason == "OOMKilled" || pod == hung;
        eprintln!("{pod} ended: {ended:?}");
        assert!(ended.iter().all(fine), "{pod} ended otherwise");
    }
    scenario::nothing_is_left(&mut release.world).await.unwrap();
    release.end();
}

/// `helm test`: its pod asks for the metrics by the Service's name.
async fn test(release: &Release) {
    let output = release.helm(&["test", "setu", "--timeout", "2m"]).await;
    assert!(output.contains("Succeeded"), "{output}");
    release.logs_are_clean().await;
}

/// A leader that is deleted gets SIGTERM: it hands its Lease over, and ends with code 0.
async fn ends_in_order(release: &mut Release) {
    let gangs = release.gangs_in_flight("term").await;
    let leader = release.leader("setu").await.unwrap();
    release.pod_api().delete(&leader, &DeleteParams::default()).await.unwrap();
    let after = release.another_leads("setu", &leader).await;
    assert!(after < HANDED_OVER, "another replica leads {after:?} after SIGTERM");
    release.gangs_end(gangs).await;
    release.until("it has ended", async || !release.seen.ended(&leader).is_empty()).await;
    assert_eq!(release.seen.ended(&leader), [(0, "Completed".to_owned())]);
    release.are_ready_and_restricted(2).await;
    eprintln!("SIGTERM: another replica leads after {after:.1?}");
}

/// The same for a leader that is evicted, as a drain does.
async fn is_evicted(release: &mut Release) {
    let gangs = release.gangs_in_flight("evict").await;
    let leader = release.leader("setu").await.unwrap();
    release.pod_api().evict(&leader, &EvictParams::default()).await.unwrap();
    let after = release.another_leads("setu", &leader).await;
    assert!(after < HANDED_OVER, "another replica leads {after:?} after the eviction");
    release.gangs_end(gangs).await;
    release.are_ready_and_restricted(3).await;
    eprintln!("eviction: another replica leads after {after:.1?}");
}

/// A leader that does not answer any more loses its Lease, and the liveness probe has it restarted. Returns its name.
async fn hangs(release: &mut Release) -> String {
    let gangs = release.gangs_in_flight("hang").await;
    let leader = release.leader("setu").await.unwrap();
    let process = release.process(&leader).await.to_string();
    let stopped = std::process::Command::new("kill").args(["-s", "STOP", &process]).status().unwrap();
    assert!(stopped.success());
    let after = release.another_leads("setu", &leader).await;
    release.gangs_end(gangs).await;
    release.until("the probe has it restarted", async || is_restarted(release, &leader).await).await;
    eprintln!("hanging: another replica leads after {after:.1?}");
    leader
}

/// Whether the pod's container was restarted once and is ready.
async fn is_restarted(release: &Release, pod: &str) -> bool {
    let status = release.pod_api().get(pod).await.unwrap().status.unwrap();
    status.container_statuses.unwrap().iter().all(|container| container.restart_count == 1 && container.ready)
}

/// After the kernel kills a shard's leader for its memory use, the shard has a leader again, and the replica is restarted.
async fn is_killed_for_memory(release: &mut Release) {
    let gangs = release.gangs_in_flight("memory").await;
    let leader = release.leader("setu-0").await.unwrap();
    if release.runs_out_of_memory(&leader).await {
        // Another replica takes the Lease, or this one again once it is back.
        release.until("it is restarted", async || is_restarted(release, &leader).await).await;
        release.until("the Lease is held", async || release.leader("setu-0").await.is_some()).await;
        let ended = release.seen.ended(&leader);
        assert_eq!(ended, [(137, "OOMKilled".to_owned())]);
        eprintln!("out of memory: the replica is restarted");
    }
    release.gangs_end(gangs).await;
}

/// The hook deletes the nodes of waiting gangs and hands over those of running gangs; only the release's CRD is left.
async fn uninstall(release: &mut Release) {
    release.step(json!({"weather": [{"registrationDelay": "1h"}]})).await;
    release.step(json!({"submit": {"name": "waits", "pods": 1, "gpus": 1}})).await;
    release.step(json!({"until": {"job": "waits", "state": "WaitingReady", "claims": 1}})).await;
    release.helm(&["uninstall", "setu", "--timeout", "4m"]).await;
    release.step(json!({"until": {"job": "waits", "claims": 0, "admitted": false}})).await;
    release
        .step(json!({"holds": {"job": "stays", "admitted": true, "runningOnOwnNodes": 1, "within": 2}}))
        .await;
    release
        .until("its pods are gone", async || {
            release.pod_api().list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
    let roles: Api<ClusterRole> = Api::all(release.stack.client().unwrap());
    let left = roles.list(&ListParams::default()).await.unwrap().items;
    let left: Vec<String> =
        left.iter().map(ResourceExt::name_any).filter(|n| n.starts_with("setu")).collect();
    assert_eq!(left, Vec::<String>::new());
    release.step(json!({"weather": []})).await;
    for job in ["stays", "waits"] {
        release.step(json!({"delete": {"kind": "Job", "name": job}})).await;
    }
    // Karpenter owns the node now, and removes it without Setu.
    release.step(json!({"until": {"allClaims": 0, "within": 180}})).await;
    eprintln!("uninstalled");
}
