//! Kueue and Karpenter are upgraded while gangs are in flight. Runs only when ignored tests are requested, because it
//! builds another set of versions.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/own_world.rs"]
mod own_world;
#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::sim::scenario::{self, Run, Scenario, ScenarioWorld, Theatre as _};
use anyhow::{Context as _, Result};
use kube::ResourceExt as _;
use own_world::take;
use real::Real;
use serde_json::json;
use setu_e2e::{HarnessLayout, Program, Stack, StackOptions, StackProvider, StackScope, programs};
use std::sync::Arc;

/// The set of versions that they are upgraded from, to the usual one.
const FROM: &str = "oldest";

async fn world(stack: &Arc<Stack>) -> Result<ScenarioWorld<Real>> {
    let shared = own_world::prepare(stack, &["manifests/rbac.yaml"]).await?;
    let retry = json!({"inCheck": {"limit": 100, "base": "2s", "max": "5s"}});
    let scenario: Scenario =
        serde_json::from_value(json!({"title": "upgrades", "policy": {"retry": retry}}))?;
    let run = Run { title: "upgrades".to_owned(), id: "upgrades".to_owned(), scenario };
    let mut world = ScenarioWorld::new(Real::new(stack, &shared, &run)?, &run).await?;
    world.theatre.start_setu(None)?;
    Ok(world)
}

/// The UIDs of the NodeClaims that are ready.
async fn ready(world: &ScenarioWorld<Real>) -> Result<Vec<String>> {
    let claims = world.claims().await?.into_iter().filter(|claim| claim.is("Initialized"));
    let mut uids: Vec<String> = claims.filter_map(|claim| claim.uid()).collect();
    uids.sort();
    Ok(uids)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds another set of versions"]
async fn gangs_in_flight_outlast_upgrades_of_kueue_and_karpenter() -> Result<()> {
    let to = HarnessLayout::default();
    let (from, built) = (to.clone().with(Some(FROM.to_owned())), to.clone());
    tokio::task::spawn_blocking(move || programs::build(&built, StackProvider::Kwok, StackScope::Full))
        .await??;
    let stack = Arc::new(Stack::start(StackOptions { layout: from, ..StackOptions::default() }).await?);
    let mut world = world(&stack).await?;
    take(
        &mut world,
        json!([
            {"submit": {"name": "running", "pods": 2, "gpus": 1}},
            {"until": {"job": "running", "admitted": true, "runningOnOwnNodes": 2}},
            {"weather": [{"registrationDelay": "10m", "capacity": 5}]},
            {"submit": {"name": "waiting", "pods": 2, "gpus": 1}},
            {"until": {"job": "waiting", "state": "WaitingReady", "claims": 2}},
            {"submit": {"name": "short", "pods": 2, "gpus": 1}},
            {"until": {"job": "short", "failure": "InsufficientCapacity"}},
        ]),
    )
    .await?;
    let before = ready(&world).await?;
    for program in [Program::Kueue, Program::Karpenter] {
        stack.upgrade(program, &to).await?;
        take(
            &mut world,
            json!([
                {"holds": {"job": "running", "admitted": true, "runningOnOwnNodes": 2, "within": 10}},
                {"holds": {"job": "waiting", "state": "WaitingReady", "claims": 2, "attempt": 1, "within": 2}},
            ]),
        )
        .await?;
    }
    assert_eq!(ready(&world).await?, before, "the running gang has other nodes");
    take(
        &mut world,
        json!([
            {"weather": []},
            {"until": {"job": "waiting", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1, "within": 120}},
            {"until": {"job": "short", "admitted": true, "runningOnOwnNodes": 2, "within": 120}},
            {"submit": {"name": "new", "pods": 2, "gpus": 1, "runFor": "3s"}},
            {"until": {"job": "new", "finished": true, "claims": 0, "within": 120}},
        ]),
    )
    .await?;
    scenario::nothing_is_left(&mut world).await?;
    drop(world);
    Arc::into_inner(stack).context("the stack is still in use")?.stop();
    Ok(())
}
