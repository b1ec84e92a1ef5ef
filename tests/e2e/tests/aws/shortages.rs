//! Gangs when the cloud has capacity for only a part of them.

use crate::launches::{LAUNCHED, are_alike, logged_attempts};
use crate::play::{Play, Stage};
use crate::setu::get_whole;
use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use setu_e2e::aws::{CallFault, Ec2Market, Ec2Rule, FleetRefusal, Instance, Offerings, ProviderCall};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The limit from the first capacity error to the last terminate call: a base, and a time per machine. This is Karpenter's
/// time, so a slow Setu does not extend it.
const TAKEN_BACK: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(500)];

/// A policy with two tiers that differ in one requirement.
fn tiers(key: &str, values: [&str; 2]) -> Value {
    let tier = |value| json!({"name": value, "nodePoolName": "${id}", "requirements": [{"key": key, "operator": "In", "values": [value]}]});
    json!({"tiers": values.map(tier), "retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}}})
}

/// With room for all machines but one, everything is rolled back, and the cloud lists no running instance.
pub async fn one_short(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let policy = json!({"retry": {"inCheck": {"limit": 4, "base": "10m", "max": "10m"}}});
    let mut play = Play::start(stage, &format!("short-{machines}"), instance_type, policy).await?;
    play.cloud.rules(vec![Ec2Rule::Room(Offerings::of(instance_type), machines - 1)]);
    play.submit("train", machines, None).await?;
    let back = ["Provisioning", "WaitingReady", "RollingBack", "BackingOff"];
    let expected =
        json!({"job": "train", "wentThrough": back, "claims": 0, "failure": "InsufficientCapacity"});
    play.steps(json!([{"until": expected}])).await?;
    play.audit(0).await?;
    let ids = |call: ProviderCall| {
        call.form.into_iter().filter(|(key, _)| key.starts_with("InstanceId.")).map(|(_, id)| id)
    };
    let given_back: BTreeSet<String> = play.calls("TerminateInstances").into_iter().flat_map(ids).collect();
    ensure!(given_back.len() == machines - 1, "{} instances were to end", given_back.len());
    let refused = play
        .calls("CreateFleet")
        .iter()
        .filter(|call| call.fault == Some(CallFault::Refused))
        .filter_map(|call| call.done)
        .min();
    let ended = play.calls("TerminateInstances").iter().filter_map(|call| call.done).max();
    let took = ended.zip(refused).map(|(ended, refused)| ended.saturating_duration_since(refused));
    let took = took.context("nothing was refused, or nothing ended")?;
    println!("{} of {machines} machines: the last one ended {took:?} after the first refusal", machines - 1);
    let [base, each] = TAKEN_BACK;
    ensure!(took <= base + each * u32::try_from(machines)?, "the last instance ended only after {took:?}");
    play.end().await
}

/// Instances that are rolled back before DescribeInstances returns them, so that Karpenter considers them gone, are
/// terminated too.
pub async fn taken_back_unseen(stage: &Stage, instance_type: &'static str) -> Result<()> {
    stage.restart_karpenter().await?;
    let policy = json!({"retry": {"inCheck": {"limit": 4, "base": "10m", "max": "10m"}}});
    let mut play = Play::start(stage, "unseen", instance_type, policy).await?;
    // Hides the instances until the rules are cleared.
    let lag = Ec2Rule::Lag(Duration::from_mins(10));
    play.cloud.rules(vec![Ec2Rule::Room(Offerings::of(instance_type), 3), lag]);
    play.submit("train", 4, None).await?;
    let back = ["Provisioning", "WaitingReady", "RollingBack", "BackingOff"];
    play.steps(json!([{"until": {"job": "train", "wentThrough": back, "claims": 0}}])).await?;
    let left = play.instances().await?.len();
    ensure!(left == 3, "{left} instances ran once their NodeClaims were gone");
    play.cloud.rules(Vec::new());
    play.audit(0).await?;
    play.end().await
}

/// If EC2 refuses the first capacity type, for any reason, the whole gang is launched with the other.
pub async fn terms_out(
    stage: &Stage,
    terms: [Ec2Market; 2],
    why: FleetRefusal,
    instance_type: &'static str,
) -> Result<()> {
    let [first, second] = terms;
    let policy = tiers("karpenter.sh/capacity-type", terms.map(Ec2Market::name));
    let id = format!("{}-{}", first.name(), why.code().to_lowercase());
    let mut play = Play::start(stage, &id, instance_type, policy).await?;
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
    ]);
    play.steps(json!([{"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}}])).await?;
    play.cloud.rules(vec![Ec2Rule::Refuse(Offerings::of(instance_type).on(first), why)]);
    let reserved = play.submit("train", 4, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 2, "capacityTypes": {(second.name()): 4}}}])).await?;
    two_cheap_attempts(&play, 4, reserved).await?;
    play.audit(4).await?;
    let market = |instance: &Instance| play.cloud.market_of(&instance.id);
    ensure!(
        play.instances().await?.iter().all(|i| market(i) == Some(second)),
        "some is not {}",
        second.name()
    );
    play.end().await
}

/// Checks that there were two attempts, each with few calls and one launch template, and that the second launched as
/// fast as a first attempt.
async fn two_cheap_attempts(play: &Play<'_>, machines: usize, reserved: Instant) -> Result<()> {
    let attempts = logged_attempts(play, machines, reserved)?;
    ensure!(attempts.len() == 2, "there were {} attempts", attempts.len());
    attempts.iter().try_for_each(|attempt| attempt.is_cheap(play))?;
    let took = attempts.last().context("an attempt is there")?.took()?;
    play.within(took, LAUNCHED, "launching all in the second attempt");
    are_alike(play).await
}

/// Setu skips offerings that are unavailable in Karpenter's metrics, even if it has not seen the shortage itself.
pub async fn known_out(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(
        stage,
        "known-out",
        instance_type,
        tiers("karpenter.sh/capacity-type", ["spot", "on-demand"]),
    )
    .await?;
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]},
    ]);
    play.steps(json!([{"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}}])).await?;
    let sold_out = Ec2Rule::Refuse(
        Offerings::of(instance_type).on(Ec2Market::Spot),
        FleetRefusal::InsufficientInstanceCapacity,
    );
    play.cloud.rules(vec![sold_out]);
    play.submit("first", 2, Some("5s")).await?;
    play.steps(json!([{"until": {"job": "first", "finished": true, "claims": 0, "attempt": 2}}])).await?;
    let page = stage.stack.karpenter_metrics();
    play.until("Karpenter's metrics say so", Duration::from_mins(2), async |_| {
        let text = get_whole(&page, "/metrics")?;
        let spot = text.lines().filter(|line| {
            line.starts_with("karpenter_cloudprovider_instance_type_offering_available{")
                && line.contains(&format!("instance_type=\"{instance_type}\""))
                && line.contains("capacity_type=\"spot\"")
        });
        let spot: Vec<&str> = spot.collect();
        Ok(!spot.is_empty() && spot.iter().all(|line| line.ends_with(" 0")))
    })
    .await?;
    play.restart_setu(("SETU_KARPENTER_METRICS", format!("http://{page}/metrics"))).await?;
    play.until("Setu has read them", Duration::from_secs(30), async |play| {
        Ok(play.world.theatre.setu.log().contains("Karpenter's metrics are read"))
    })
    .await?;
    let before = play.calls("CreateFleet").len();
    play.submit("second", 2, None).await?;
    play.steps(json!([{"until": {"job": "second", "admitted": true, "running": 2, "claims": 1, "attempt": 1, "capacityTypes": {"on-demand": 1}}}])).await?;
    play.audit(1).await?;
    let fleets = play.calls("CreateFleet").split_off(before);
    ensure!(
        fleets.iter().all(|call| call
            .form
            .get("TargetCapacitySpecification.DefaultTargetCapacityType")
            .is_some_and(|v| v == "on-demand")),
        "spot was asked for: {fleets:?}"
    );
    let events: Api<Event> = Api::namespaced(play.world.client.clone(), &play.world.id);
    let validated = ListParams::default().fields("reason=GangValidated");
    let messages: Vec<String> =
        events.list(&validated).await?.into_iter().filter_map(|event| event.message).collect();
    let words = format!("spot (out of capacity by Karpenter's metrics: {instance_type} (spot capacity in ");
    ensure!(messages.iter().any(|text| text.contains(&words)), "no Event says so: {messages:?}");
    play.end().await
}

/// If one zone has room for only a part of the gang, the whole gang runs in another.
pub async fn zone_out(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let policy = tiers("topology.kubernetes.io/zone", ["us-east-1a", "us-east-1b"]);
    let mut play = Play::start(stage, &format!("zone-out-{machines}"), instance_type, policy).await?;
    play.cloud.rules(vec![Ec2Rule::Room(Offerings::of(instance_type).in_zone("us-east-1a"), machines - 1)]);
    let reserved = play.submit("train", machines, None).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": machines, "attempt": 2, "within": 180}}]))
        .await?;
    two_cheap_attempts(&play, machines, reserved).await?;
    play.audit(machines).await?;
    ensure!(
        play.instances().await?.iter().all(|instance| instance.zone == "us-east-1b"),
        "some is elsewhere"
    );
    play.end().await
}
