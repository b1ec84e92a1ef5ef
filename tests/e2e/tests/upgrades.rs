//! Kueue and Karpenter are upgraded from each set of versions to the next one while gangs are in flight. Runs only when
//! ignored tests are requested, because it builds other sets of versions.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]
#![allow(dead_code, missing_docs, reason = "the world is shared with the scenarios, which use all of it")]

#[path = "scenarios/own_world.rs"]
mod own_world;
#[path = "scenarios/real.rs"]
mod real;
#[path = "scenarios/setu.rs"]
mod setu;

use ::setu::api::NodeClaim;
use ::setu::names;
use ::setu::sim::scenario::{self, Run, Scenario, ScenarioWorld, Theatre as _};
use anyhow::{Context as _, Result};
use kube::ResourceExt as _;
use own_world::take;
use real::Real;
use serde_json::{Value, json};
use setu_e2e::{
    HarnessLayout, Program, Stack, StackOptions, StackProvider, StackScope, programs, requests, versions,
};
use std::sync::Arc;

/// The rights of a Setu that serves ProvisioningRequests.
const RIGHTS: [&str; 2] = ["manifests/rbac.yaml", "examples/rbac/setu-provisioning-requests.yaml"];

/// The layout of the set with this name; the empty name is that of the usual set.
fn layout(set: &str) -> HarnessLayout {
    HarnessLayout::default().with(Some(set.to_owned()).filter(|name| !name.is_empty()))
}

async fn world(stack: &Arc<Stack>) -> Result<ScenarioWorld<Real>> {
    let shared = own_world::prepare(stack, &RIGHTS).await?;
    let retry = json!({"inCheck": {"limit": 100, "base": "2s", "max": "5s"}});
    let scenario: Scenario = serde_json::from_value(json!({
        "title": "upgrades", "arguments": ["--provisioning-requests"], "policy": {"retry": retry},
    }))?;
    let run = Run { title: "upgrades".to_owned(), id: "upgrades".to_owned(), scenario };
    let mut world = ScenarioWorld::new(Real::new(stack, &shared, &run)?, &run).await?;
    world.theatre.start_setu(None)?;
    Ok(world)
}

/// A queue over the world's GPU nodes whose only check is Kueue's own.
fn queue_of_requests() -> Vec<Value> {
    let mut objects = requests::check("upgrades-asked", names::REQUEST_CLASS, Some((names::GANG, "gang")));
    let quota = [("cpu", "100"), ("memory", "1000Gi"), ("nvidia.com/gpu", "100")];
    let resource = |(name, quota): (&str, &str)| json!({"name": name, "nominalQuota": quota});
    let flavor = json!({"name": "${id}", "resources": quota.map(resource)});
    let covered = quota.map(|(name, _)| name);
    objects.push(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "upgrades-asked"},
        "spec": {
            "namespaceSelector": {},
            "admissionChecksStrategy": {"admissionChecks": [{"name": "upgrades-asked"}]},
            "resourceGroups": [{"coveredResources": covered, "flavors": [flavor]}],
        },
    }));
    objects.push(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "asked"},
        "spec": {"clusterQueue": "upgrades-asked"},
    }));
    objects
}

/// The UIDs of these NodeClaims, sorted.
async fn uids(world: &ScenarioWorld<Real>, of: impl Fn(&NodeClaim) -> bool) -> Result<Vec<String>> {
    let mut uids: Vec<String> =
        world.claims().await?.iter().filter(|claim| of(claim)).filter_map(NodeClaim::uid).collect();
    uids.sort();
    Ok(uids)
}

fn is_ready(claim: &NodeClaim) -> bool {
    claim.is("Initialized")
}

fn is_of_a_request(claim: &NodeClaim) -> bool {
    !claim.annotation(names::OWNER).is_empty()
}

/// One gang runs, one waits for its nodes, one waits for those that its ProvisioningRequest asks for, one rolls back as long as
/// its NodeClaims are kept, and one meets a shortage again and again.
async fn put_in_flight(world: &mut ScenarioWorld<Real>) -> Result<()> {
    let steps = json!([
        {"apply": queue_of_requests()},
        {"submit": {"name": "running", "pods": 2, "gpus": 1}},
        {"until": {"job": "running", "admitted": true, "runningOnOwnNodes": 2}},
        {"weather": [{"registrationDelay": "10m"}]},
        {"submit": {"name": "waiting", "pods": 2, "gpus": 1}},
        {"submit": {"name": "leaving", "pods": 2, "gpus": 1}},
        {"submit": {"name": "asked", "pods": 2, "gpus": 1, "queue": "asked"}},
        {"until": {"job": "waiting", "state": "WaitingReady", "claims": 2}},
        {"until": {"job": "leaving", "claims": 2, "message": "waits for registration"}},
        {"until": {"allClaims": 8}},
        {"keepClaims": "leaving"},
        {"patch": {"kind": "Workload", "name": "leaving", "patch": {"spec": {"active": false}}}},
        {"until": {"job": "leaving", "state": "RollingBack", "claims": 2}},
        {"weather": [{"registrationDelay": "10m", "capacity": 7}]},
        {"submit": {"name": "short", "pods": 2, "gpus": 1}},
        {"until": {"job": "short", "failure": "InsufficientCapacity"}},
    ]);
    take(world, steps).await
}

/// Once there is capacity, every gang ends as it would have ended before.
async fn let_them_end(world: &mut ScenarioWorld<Real>) -> Result<()> {
    let steps = json!([
        {"letClaimsGo": "leaving"},
        {"until": {"job": "leaving", "state": "Released", "claims": 0}},
        {"weather": []},
        {"until": {"job": "waiting", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1, "within": 120}},
        {"until": {"job": "asked", "admitted": true, "running": 2, "within": 120}},
        {"until": {"job": "short", "admitted": true, "runningOnOwnNodes": 2, "within": 120}},
        {"submit": {"name": "new", "pods": 2, "gpus": 1, "runFor": "3s"}},
        {"until": {"job": "new", "finished": true, "claims": 0, "within": 120}},
    ]);
    take(world, steps).await
}

/// Upgrades Kueue and Karpenter as far as the two sets differ in them.
async fn gangs_outlast_an_upgrade(from: &str, to: &str) -> Result<()> {
    let (from, to) = (layout(from), layout(to));
    let built = to.clone();
    tokio::task::spawn_blocking(move || programs::build(&built, StackProvider::Kwok, StackScope::Full))
        .await??;
    let options =
        StackOptions { layout: from.clone(), provisioning_requests: true, ..StackOptions::default() };
    let stack = Arc::new(Box::pin(Stack::start(options)).await?);
    let mut world = world(&stack).await?;
    put_in_flight(&mut world).await?;
    let (running, asked) = (uids(&world, is_ready).await?, uids(&world, is_of_a_request).await?);
    assert_eq!((running.len(), asked.len()), (2, 2));
    for program in [Program::Kueue, Program::Karpenter] {
        let version =
            |set: &HarnessLayout| -> Result<String> { versions::of(set)?.version(set, program.name()) };
        if version(&from)? == version(&to)? {
            println!("both sets have the same {}", program.name());
            continue;
        }
        stack.upgrade(program, &to).await?;
        let holds = json!([
            {"holds": {"job": "running", "admitted": true, "runningOnOwnNodes": 2, "within": 10}},
            {"holds": {"job": "waiting", "state": "WaitingReady", "claims": 2, "attempt": 1, "within": 2}},
            {"holds": {"job": "asked", "reserved": true, "admitted": false, "within": 2}},
            {"holds": {"job": "leaving", "state": "RollingBack", "claims": 2, "within": 2}},
        ]);
        take(&mut world, holds).await?;
    }
    assert_eq!(uids(&world, is_ready).await?, running, "the running gang has other nodes");
    let_them_end(&mut world).await?;
    assert_eq!(uids(&world, is_of_a_request).await?, asked, "the gang of the request has other nodes");
    scenario::nothing_is_left(&mut world).await?;
    drop(world);
    Arc::into_inner(stack).context("the stack is still in use")?.stop();
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds other sets of versions"]
async fn gangs_in_flight_outlast_an_upgrade_from_the_oldest_set() -> Result<()> {
    gangs_outlast_an_upgrade("oldest", "between").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds other sets of versions"]
async fn gangs_in_flight_outlast_an_upgrade_from_the_set_between() -> Result<()> {
    gangs_outlast_an_upgrade("between", "").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "builds other sets of versions"]
async fn gangs_in_flight_outlast_an_upgrade_to_the_newest_set() -> Result<()> {
    gangs_outlast_an_upgrade("", "newest").await
}
