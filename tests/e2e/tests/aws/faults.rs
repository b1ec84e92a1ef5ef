//! Gangs when calls and machines fail.

use crate::play::{Play, Stage};
use crate::real::weather;
use ::setu::api::NodeClaim;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use setu_e2e::aws::{
    CallFault, Comes, Ec2Market, Ec2Rule, FleetRefusal, Instance, MachineBehaviour, Offerings,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of tries after which the provider gives up a call.
const TRIES: usize = 3;

/// Throttled launches do not end an attempt: the provider retries, and the gang waits.
pub async fn throttled(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "throttled", instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::Throttle("CreateFleet", 4 * TRIES)]);
    play.submit("train", machines, None).await?;
    play.steps(
        json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": machines, "attempt": 1}}]),
    )
    .await?;
    let refused =
        play.calls("CreateFleet").iter().filter(|call| call.fault == Some(CallFault::Throttled)).count();
    ensure!(refused == 4 * TRIES, "{refused} calls were throttled");
    play.audit(machines).await?;
    play.end().await
}

/// A launch that is throttled beyond the provider's retries does not end it either: Karpenter calls again.
pub async fn throttled_out(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "throttled-out", instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::Throttle("CreateFleet", TRIES + 1)]);
    play.submit("train", 1, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 1, "attempt": 1, "within": 120}}]))
        .await?;
    let mut refused = BTreeMap::<Option<String>, usize>::new();
    for call in play.calls("CreateFleet").iter().filter(|call| call.fault == Some(CallFault::Throttled)) {
        *refused.entry(call.form.get("ClientToken").cloned()).or_default() += 1;
    }
    ensure!(refused.values().any(|times| *times == TRIES), "no launch was given up: {refused:?}");
    play.audit(1).await?;
    play.end().await
}

/// The same when the fleet succeeds but its launches are throttled: the provider calls again, and does not mark any
/// offering as unavailable.
pub async fn launches_throttled(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "launches-throttled", instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::Refuse(Offerings::of(instance_type), FleetRefusal::RequestLimitExceeded)]);
    play.submit("train", 4, None).await?;
    let answered =
        |play: &Play<'_>| play.calls("CreateFleet").iter().filter(|call| call.done.is_some()).count();
    // Four NodeClaims need at most four calls, so a fifth call is a retry.
    play.until("the provider has asked again", Duration::from_mins(2), async |play| Ok(answered(play) > 4))
        .await?;
    play.cloud.rules(Vec::new());
    play.steps(
        json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 1, "within": 120}}]),
    )
    .await?;
    play.audit(4).await?;
    play.end().await
}

/// EC2 throttles the calls that end a gang's instances for longer than the provider tries: the instances are terminated
/// anyway, and the gang goes on only after that.
pub async fn ends_throttled(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({"retry": {"inCheck": {"limit": 4, "base": "10m", "max": "10m"}}});
    let mut play = Play::start(stage, "ends-throttled", instance_type, policy).await?;
    let refusals = 2 * TRIES;
    play.cloud.rules(vec![
        Ec2Rule::Room(Offerings::of(instance_type), 3),
        Ec2Rule::Throttle("TerminateInstances", refusals),
    ]);
    play.submit("train", 4, None).await?;
    let back = ["Provisioning", "WaitingReady", "RollingBack", "BackingOff"];
    play.steps(json!([{"until": {"job": "train", "wentThrough": back, "claims": 0, "within": 180}}])).await?;
    play.audit(0).await?;
    let refused = play
        .calls("TerminateInstances")
        .iter()
        .filter(|call| call.fault == Some(CallFault::Throttled))
        .count();
    ensure!(refused == refusals, "{refused} calls were throttled");
    play.end().await
}

/// Weather that EC2 cannot have is rejected.
pub fn no_such_weather(stage: &Stage) -> Result<()> {
    let cloud = stage.stack.cloud()?;
    for narrowed in [
        json!({"capacityType": "spot", "launchDelay": "1s"}),
        json!({"zone": "us-east-1a", "launchDelay": "1s", "capacity": 1}),
        json!({"instanceType": "g5.xlarge", "registrationDelay": "1s"}),
        json!({"labels": {"example.com/rack": "r1"}, "capacity": 0}),
        json!({"capacityType": "reserved", "capacity": 4}),
    ] {
        ensure!(weather::set(cloud, std::slice::from_ref(&narrowed)).is_err(), "{narrowed} was taken");
    }
    weather::set(cloud, &[json!({"launchDelay": "1s", "registrationDelay": "1s"})])?;
    weather::set(cloud, &[])
}

async fn runs_in_first_attempt(play: &mut Play<'_>, machines: usize) -> Result<()> {
    let running =
        json!({"job": "train", "admitted": true, "runningOnOwnNodes": machines, "attempt": 1, "within": 180});
    play.steps(json!([{"until": running}])).await
}

/// Instances whose answer was lost have no owner, and are terminated in the end.
pub async fn answers_lost(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    stage.restart_karpenter().await?;
    let mut play = Play::start(stage, &format!("lost-{machines}"), instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::LoseAnswer("CreateFleet", usize::MAX)]);
    play.submit("train", machines, None).await?;
    play.until("the provider has given a launch up", Duration::from_mins(1), async |play| {
        let claims = play.world.claims().await?;
        let failed = |claim: &NodeClaim| claim.conditions().iter().any(|c| c.reason == "LaunchFailed");
        Ok(claims.iter().any(failed))
    })
    .await?;
    // One more, which the provider retries with its token.
    play.cloud
        .rules(vec![Ec2Rule::LoseAnswer("CreateFleet", 1), Ec2Rule::LoseAnswer("TerminateInstances", 1)]);
    runs_in_first_attempt(&mut play, machines).await?;
    play.audit(machines).await?;
    let lost = |action| play.calls(action).iter().filter(|call| call.fault == Some(CallFault::Lost)).count();
    // The gang released no NodeClaim, so all terminated instances had no owner.
    let found = (lost("CreateFleet"), lost("TerminateInstances"));
    ensure!(found.0 > TRIES && found.1 == 1, "{found:?} answers were lost, to CreateFleet and to an end");
    play.end().await
}

/// EC2 makes the launch template, and the answer is lost: the gang is launched from it, in its first attempt.
pub async fn template_lost(stage: &Stage, instance_type: &'static str) -> Result<()> {
    stage.restart_karpenter().await?;
    let mut play = Play::start(stage, "lost-template", instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::LoseAnswer("CreateLaunchTemplate", 1)]);
    play.submit("train", 4, None).await?;
    runs_in_first_attempt(&mut play, 4).await?;
    let lost =
        play.calls("CreateLaunchTemplate").iter().filter(|call| call.fault == Some(CallFault::Lost)).count();
    ensure!(lost == 1, "{lost} answers to CreateLaunchTemplate were lost");
    play.audit(4).await?;
    play.end().await
}

/// EC2 lists instances only some time after their launch: no machine counts as lost, and each is launched once.
pub async fn listed_late(stage: &Stage, instance_type: &'static str) -> Result<()> {
    stage.restart_karpenter().await?;
    let mut play = Play::start(stage, "listed-late", instance_type, json!({})).await?;
    play.cloud.rules(vec![Ec2Rule::Lag(Duration::from_secs(20))]);
    play.submit("train", 4, None).await?;
    runs_in_first_attempt(&mut play, 4).await?;
    play.audit(4).await?;
    ensure!(play.calls("TerminateInstances").is_empty(), "a machine was taken for lost");
    play.end().await
}

/// EC2 answers after Setu has given up the launch: the resulting instances are terminated.
pub async fn answered_late(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({
        "deadlines": {"launch": "5s"},
        "retry": {"inCheck": {"limit": 4, "base": "10m", "max": "10m"}},
    });
    let mut play = Play::start(stage, "late", instance_type, policy).await?;
    play.cloud.rules(vec![Ec2Rule::Delay("CreateFleet", Duration::from_secs(20))]);
    play.submit("train", 3, None).await?;
    play.steps(json!([{"until": {"job": "train", "state": "RollingBack", "failure": "LaunchTimeout"}}]))
        .await?;
    let answered =
        |play: &Play<'_>| play.calls("CreateFleet").iter().filter(|call| call.done.is_some()).count();
    ensure!(answered(&play) == 0, "EC2 had answered before the launch was given up");
    let back = ["Provisioning", "WaitingReady", "RollingBack", "BackingOff"];
    play.steps(json!([{"until": {"job": "train", "wentThrough": back, "claims": 0, "within": 120}}])).await?;
    play.audit(0).await?;
    ensure!(answered(&play) > 0, "EC2 was asked for nothing");
    ensure!(!play.calls("TerminateInstances").is_empty(), "nothing came of the late answers");
    play.end().await
}

/// A machine that dies before or after its Node exists is replaced.
pub async fn machines_die(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({
        "deadlines": {"launch": "30s", "register": "40s", "initialize": "60s", "gang": "5m"},
        "retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}},
    });
    let mut play = Play::start(stage, "die", instance_type, policy).await?;
    play.cloud.machines(MachineBehaviour {
        node: Comes::After(Duration::from_secs(8)),
        ..MachineBehaviour::default()
    });
    play.submit("train", 3, None).await?;
    play.until("three instances run", Duration::from_secs(30), async |play| {
        Ok(play.instances().await?.len() == 3)
    })
    .await?;
    let early = end_one(&play).await?;
    ensure!(play.nodes().await?.is_empty(), "its Nodes were there already");
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 3, "claims": 3, "within": 180}}])).await?;
    play.audit(3).await?;
    ensure!(!play.instances().await?.contains(&early), "{early:?} still runs");
    let late = end_one(&play).await?;
    play.steps(json!([
        {"until": {"job": "train", "event": "NodeLost"}},
        {"until": {"job": "train", "state": "Approved", "verdict": "Ready", "runningOnOwnNodes": 3, "claims": 3}},
    ])).await?;
    play.audit(3).await?;
    ensure!(!play.instances().await?.contains(&late), "{late:?} still runs");
    play.end().await
}

/// Ends one instance, and returns it.
async fn end_one(play: &Play<'_>) -> Result<Instance> {
    let first = play.instances().await?.into_iter().next().context("no instance runs")?;
    play.cloud.end(&[&first.id]).await?;
    Ok(first)
}

/// A spot instance that EC2 reclaims is replaced before it is gone.
pub async fn interrupted(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "interrupted", instance_type, json!({})).await?;
    buys_spot(&mut play).await?;
    play.submit("train", 3, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 3}}])).await?;
    let first = interrupt_one(&play).await?;
    play.steps(json!([
        {"until": {"job": "train", "event": "NodeLost"}},
        {"until": {"job": "train", "state": "Approved", "verdict": "Ready", "runningOnOwnNodes": 3, "claims": 3}},
    ])).await?;
    play.audit(3).await?;
    ensure!(!play.instances().await?.contains(&first), "{first:?} still runs");
    play.end().await
}

/// The same before its Node exists: the gang starts on other instances.
pub async fn interrupted_early(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let policy = json!({"retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}}});
    let mut play = Play::start(stage, "interrupted-early", instance_type, policy).await?;
    buys_spot(&mut play).await?;
    play.cloud.machines(MachineBehaviour {
        node: Comes::After(Duration::from_secs(8)),
        ..MachineBehaviour::default()
    });
    play.submit("train", 3, None).await?;
    // Karpenter finds the NodeClaim for a message by its instance ID.
    play.until(
        "three instances run, and their NodeClaims know them",
        Duration::from_secs(30),
        async |play| {
            let known = play.known().await?.iter().filter(|id| !id.is_empty()).count();
            Ok(known == 3 && play.instances().await?.len() == 3)
        },
    )
    .await?;
    let first = interrupt_one(&play).await?;
    ensure!(play.nodes().await?.is_empty(), "its Nodes were there already");
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 3, "claims": 3, "within": 120}}])).await?;
    play.audit(3).await?;
    ensure!(!play.instances().await?.contains(&first), "{first:?} still runs");
    play.end().await
}

/// Restricts the NodePool to spot instances.
async fn buys_spot(play: &mut Play<'_>) -> Result<()> {
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [play.instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
    ]);
    play.steps(json!([{"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}}])).await
}

/// Announces the interruption of one spot instance, and returns it.
async fn interrupt_one(play: &Play<'_>) -> Result<Instance> {
    let first = play.instances().await?.into_iter().next().context("no instance runs")?;
    ensure!(play.cloud.market_of(&first.id) == Some(Ec2Market::Spot), "{first:?} is not spot");
    play.cloud.interrupt(&first.id).await?;
    Ok(first)
}

/// A machine runs but never registers.
pub async fn no_node(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let without = MachineBehaviour { node: Comes::Never, ..MachineBehaviour::default() };
    never_whole(
        stage,
        "no-node",
        instance_type,
        [without, MachineBehaviour::default()],
        "RegistrationTimeout",
    )
    .await
}

/// The GPU of a machine never appears.
pub async fn no_gpu(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let [without, with] = [Comes::Never, Comes::After(Duration::from_secs(2))]
        .map(|devices| MachineBehaviour { devices, ..MachineBehaviour::default() });
    never_whole(stage, "no-gpu", instance_type, [without, with], "InitializationTimeout").await
}

/// Machines that run but never become ready end the attempt at the matching deadline, with its reason, and are not kept.
/// The gang runs on the machines of a later attempt.
async fn never_whole(
    stage: &Stage,
    id: &str,
    instance_type: &'static str,
    [without, with]: [MachineBehaviour; 2],
    failure: &str,
) -> Result<()> {
    let policy = json!({
        "deadlines": {"launch": "10s", "register": "15s", "initialize": "20s", "gang": "2m"},
        "retry": {"inCheck": {"limit": 5, "base": "1s", "max": "1s"}},
    });
    let mut play = Play::start(stage, id, instance_type, policy).await?;
    play.cloud.machines(without);
    play.submit("train", 2, None).await?;
    play.until("both machines run", Duration::from_secs(30), async |play| {
        Ok(play.instances().await?.len() == 2)
    })
    .await?;
    let first = play.instances().await?;
    play.steps(json!([{"until": {"job": "train", "failure": failure}}])).await?;
    play.cloud.machines(with);
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 2, "claims": 2, "within": 180}}])).await?;
    play.audit(2).await?;
    let kept = play.instances().await?.into_iter().filter(|instance| first.contains(instance)).count();
    ensure!(kept == 0, "{kept} machines of the failed attempt still run");
    play.end().await
}
