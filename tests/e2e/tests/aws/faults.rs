//! What becomes of a gang where calls, processes and machines fail.

use crate::play::{Play, Stage};
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use setu_e2e::Program;
use setu_e2e::aws::{Comes, Machines, Market, Rule};
use std::time::Duration;

/// How often the provider asks EC2 before it gives a call up.
const TRIES: usize = 3;

/// A process that dies.
#[derive(Clone, Copy, Debug)]
pub enum Victim {
    Setu,
    Karpenter,
}

/// Throttled launches end no attempt: the provider tries on, and so the gang waits.
pub async fn throttled(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "throttled", instance_type, json!({})).await?;
    play.cloud.rules(vec![Rule::Throttle("CreateFleet", 4 * TRIES)]);
    play.submit("train", machines, None).await?;
    play.steps(
        json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": machines, "attempt": 1}}]),
    )
    .await?;
    let refused = play.calls("CreateFleet").iter().filter(|call| call.throttled).count();
    ensure!(refused == 4 * TRIES, "{refused} calls were throttled");
    play.audit(machines).await?;
    play.end().await
}

/// Instances whose answer never arrived are in the end nobody's, and gone.
pub async fn answers_lost(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "lost", instance_type, json!({})).await?;
    // One that is asked for again with its token, and then one that the provider gives up.
    play.cloud
        .rules(vec![Rule::LoseAnswer("CreateFleet", 1 + TRIES), Rule::LoseAnswer("TerminateInstances", 1)]);
    play.submit("train", 4, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 1}}]))
        .await?;
    play.audit(4).await?;
    play.end().await
}

/// Where a process dies while a launch is under way, in the end exactly the admitted gang's instances run.
pub async fn killed(stage: &Stage, victim: Victim, instance_type: &'static str) -> Result<()> {
    let id = format!("killed-{victim:?}").to_lowercase();
    let mut play = Play::start(stage, &id, instance_type, json!({})).await?;
    play.cloud.rules(vec![Rule::Delay("CreateFleet", Duration::from_secs(1))]);
    play.submit("train", 4, None).await?;
    play.until("a fleet is asked for", Duration::from_secs(30), async |play| {
        Ok(!play.calls("CreateFleet").is_empty())
    })
    .await?;
    match victim {
        Victim::Setu => play.steps(json!([{"setu": "kill"}, {"setu": "start"}])).await?,
        Victim::Karpenter => {
            stage.stack.stop_program(Program::Karpenter).await?;
            // What it asked for is done, and nobody hears the answer.
            play.until("instances run", Duration::from_secs(30), async |play| {
                Ok(!play.instances().await?.is_empty())
            })
            .await?;
            stage.stack.start_program(Program::Karpenter).await?;
        }
    }
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4}}])).await?;
    play.audit(4).await?;
    play.end().await
}

/// A machine that dies before its Node is there is replaced, and so is one that dies after.
pub async fn machines_die(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({
        "deadlines": {"launch": "30s", "register": "40s", "initialize": "60s", "gang": "5m"},
        "retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}},
    });
    let mut play = Play::start(stage, "die", instance_type, policy).await?;
    play.cloud.machines(Machines { node: Comes::After(Duration::from_secs(8)), ..Machines::default() });
    play.submit("train", 3, None).await?;
    play.until("three instances run", Duration::from_secs(30), async |play| {
        Ok(play.instances().await?.len() == 3)
    })
    .await?;
    end_one(&play).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 3, "claims": 3, "within": 180}}])).await?;
    play.audit(3).await?;
    end_one(&play).await?;
    play.steps(json!([
        {"until": {"job": "train", "event": "NodeLost"}},
        {"until": {"job": "train", "state": "Approved", "verdict": "Ready", "runningOnOwnNodes": 3, "claims": 3}},
    ])).await?;
    play.audit(3).await?;
    play.end().await
}

async fn end_one(play: &Play<'_>) -> Result<()> {
    let instances = play.instances().await?;
    play.cloud.end(&[&instances.first().context("no instance runs")?.id]).await
}

/// A spot instance that EC2 takes back is replaced before it is gone.
pub async fn interrupted(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "interrupted", instance_type, json!({})).await?;
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
    ]);
    play.steps(json!([{"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}}])).await?;
    play.submit("train", 3, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 3}}])).await?;
    let first = play.instances().await?.into_iter().next().context("no instance runs")?;
    ensure!(play.cloud.market_of(&first.id) == Some(Market::Spot), "{first:?} is not spot");
    play.cloud.interrupt(&first.id).await?;
    play.steps(json!([
        {"until": {"job": "train", "event": "NodeLost"}},
        {"until": {"job": "train", "state": "Approved", "verdict": "Ready", "runningOnOwnNodes": 3, "claims": 3}},
    ])).await?;
    play.audit(3).await?;
    ensure!(!play.instances().await?.contains(&first), "{first:?} still runs");
    play.end().await
}

/// A machine whose GPU never comes ends the attempt at its own deadline with its own reason, and nothing is kept.
pub async fn no_gpu(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({
        "deadlines": {"launch": "10s", "register": "15s", "initialize": "20s", "gang": "2m"},
        "retry": {"inCheck": {"limit": 5, "base": "1s", "max": "1s"}},
    });
    let mut play = Play::start(stage, "no-gpu", instance_type, policy).await?;
    play.cloud.machines(Machines { devices: Comes::Never, ..Machines::default() });
    play.submit("train", 2, Some("3s")).await?;
    play.steps(json!([{"until": {"job": "train", "failure": "InitializationTimeout"}}])).await?;
    play.cloud.machines(Machines { devices: Comes::After(Duration::from_secs(2)), ..Machines::default() });
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    play.end().await
}
