//! A tenant with its own tokens attacks Setu on the real control plane. Names such as A16 refer to the attacks
//! in docs/security.md.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

mod away;
mod forging;
mod ledger;
mod loads;
mod messages;
#[path = "../scenarios/real.rs"]
mod real;
mod refused;
#[path = "../scenarios/replicas.rs"]
mod replicas;
mod requests;
#[path = "../scenarios/setu.rs"]
mod setu;
mod stage;

use ::setu::sim::scenario;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, DeleteParams};
use serde_json::json;
use setu_e2e::apply;
use stage::{NEIGHBOURS, PODS, Stage, TENANT, job};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_tenant_does_others_keep_their_nodes_and_nobody_gets_another_pool_count_or_price() {
    let mut stage = Stage::set().await;
    refused::what_is_not_the_tenants(&mut stage).await;
    loads::jobs_that_ask_for_more(&mut stage).await;
    loads::jobs_that_come_and_go(&mut stage).await;
    loads::jobs_with_names_of_others(&mut stage).await;
    loads::very_many_jobs(&mut stage).await;
    loads::a_job_of_tiny_pods(&mut stage).await;
    messages::a_launch_that_is_refused(&mut stage).await;
    loads::pods_on_nodes_of_others(&mut stage).await;
    requests::requests_of_all_kinds(&mut stage).await;
    forging::behind_the_policies(&mut stage).await;
    forging::without_the_policies(&mut stage).await;
    messages::names_make_no_labels_and_texts_no_commands(&stage);
    away::while_setu_is_away(&mut stage).await;
    honest_gangs_are_served(stage).await;
}

/// Checks that a new gang runs, and the waiting gang too once a pod of the tenant that took a device of its nodes has left.
async fn honest_gangs_are_served(mut stage: Stage) {
    loads::a_pod_is_first(&stage, "waits").await;
    stage.play.step(json!({"weather": []})).await;
    apply::one(&stage.admin, job(NEIGHBOURS, "comes")).await.unwrap();
    stage.until("the new gang runs", async |s| s.running(NEIGHBOURS, "comes").await == PODS).await;
    stage
        .until("the stranger is seen", async |s| s.said_of("waits").await.contains("other pods to free"))
        .await;
    loads::it_leaves(&stage).await;
    stage.until("the gang that waited runs", async |s| s.running(NEIGHBOURS, "waits").await == PODS).await;

    assert!(stage.ledger.of(NEIGHBOURS).iter().all(|bought| !bought.deleted));
    let jobs: Api<Job> = Api::namespaced(stage.admin.clone(), NEIGHBOURS);
    for name in ["runs", "waits", "comes"] {
        jobs.delete(name, &DeleteParams::background()).await.unwrap();
    }
    stage.until("all nodes are gone", async |s| s.claims(NEIGHBOURS).await.is_empty()).await;
    stage.ledger.is_as_honest_gangs_would_have_it(TENANT, PODS);
    assert_eq!(stage.ledger.of(NEIGHBOURS).len(), 3 * PODS);
    scenario::nothing_is_left(&mut stage.play.world).await.unwrap();
    stage.play.end();
}
