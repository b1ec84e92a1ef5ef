//! Gangs with nodes from capacity reservations.

use crate::attempts::{Attempt, TEMPLATE};
use crate::play::{Play, Stage};
use anyhow::{Context as _, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_e2e::aws::{
    CallFault, Ec2Market, Ec2Reservation, Ec2Rule, FleetRefusal, Instance, Offerings, ProviderCall,
};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Karpenter checks for reservations once a minute.
const FOUND: Duration = Duration::from_secs(90);

/// The documented delay between the start of a Capacity Block and the `opens` time in a tier.
const OPENS_LATER: Duration = Duration::from_mins(2);

const ZONE: &str = "us-east-1a";
const TERMS: &str = "TargetCapacitySpecification.DefaultTargetCapacityType";
const MARKET: &str = "LaunchTemplateData.InstanceMarketOptions.MarketType";

fn reservation(id: &str, instance_type: &str, nodes: usize) -> Ec2Reservation {
    let (id, instance_type, zone) = (id.to_owned(), instance_type.to_owned(), ZONE.to_owned());
    Ec2Reservation { id, instance_type, zone, nodes, ..Ec2Reservation::default() }
}

/// A tier that uses this reservation, and an on-demand tier.
fn tiers(reservation: &Value) -> Value {
    let on_demand = json!([{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]);
    json!([
        {"name": "reserved", "nodePoolName": "${id}", "reservations": [reservation]},
        {"name": "bought", "nodePoolName": "${id}", "requirements": on_demand},
    ])
}

/// A policy whose only tier uses this reservation for four nodes. It has many retries, because Karpenter takes a refused
/// reservation for full until its next check, which it makes once a minute.
fn only(id: &str) -> Value {
    let tier = json!({"name": "reserved", "nodePoolName": "${id}", "reservations": [{"id": id, "nodes": 4}]});
    json!({"tiers": [tier], "retry": {"inCheck": {"limit": 20, "base": "20s", "max": "20s"}}})
}

/// Makes EC2 refuse all launches into reservations, whatever room these have.
fn refuse(play: &Play<'_>, why: FleetRefusal) {
    let reserved = Offerings::of(play.instance_type).on(Ec2Market::Reserved);
    play.cloud.rules(vec![Ec2Rule::Refuse(reserved, why)]);
}

/// Whether EC2 refused all of these calls.
fn are_refused(fleets: &[ProviderCall]) -> bool {
    fleets.iter().all(|call| call.fault == Some(CallFault::Refused))
}

/// Makes the NodePool and its EC2NodeClass use this reservation.
async fn use_it(play: &mut Play<'_>, reservation: Ec2Reservation) -> Result<()> {
    let requirements = json!([
        {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [play.instance_type]},
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["reserved", "on-demand"]},
    ]);
    let terms = json!([{"id": reservation.id}]);
    play.cloud.reservations(vec![reservation]);
    play.steps(json!([
        {"patch": {"kind": "EC2NodeClass", "name": "${id}", "patch": {"spec": {"capacityReservationSelectorTerms": terms}}}},
        {"patch": {"kind": "NodePool", "name": "${id}", "patch": {"spec": {"template": {"spec": {"requirements": requirements}}}}}},
    ]))
    .await
}

async fn until_found(play: &Play<'_>, id: &str) -> Result<()> {
    play.until("the EC2NodeClass has found the reservation", FOUND, async |play| {
        let first = play.node_class("/status/capacityReservations/0/id").await?;
        Ok(first.is_some_and(|found| found == id))
    })
    .await
}

/// The number of the world's instances in this reservation.
async fn are_in(play: &Play<'_>, id: &str) -> Result<usize> {
    let is_in = |instance: &&Instance| play.cloud.reservation_of(&instance.id).as_deref() == Some(id);
    Ok(play.instances().await?.iter().filter(is_in).count())
}

/// A gang is launched into a reservation with room for all of it. A gang with room for only half is launched on demand
/// as a whole.
pub async fn half(stage: &Stage, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-setu1";
    let tier = json!({"id": ID, "instanceType": instance_type, "nodes": 4});
    let mut play = Play::start(stage, "reserved", instance_type, json!({"tiers": tiers(&tier)})).await?;
    use_it(&mut play, reservation(ID, instance_type, 4)).await?;
    until_found(&play, ID).await?;
    play.submit("first", 2, None).await?;
    play.steps(json!([{"until": {"job": "first", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1, "capacityTypes": {"reserved": 2}}}])).await?;
    ensure!(are_in(&play, ID).await? == 2, "some is not in the reservation");
    play.submit("second", 4, None).await?;
    play.steps(json!([
        {"until": {"job": "second", "event": "PlanHasDrawback"}},
        {"until": {"job": "second", "admitted": true, "runningOnOwnNodes": 4, "attempt": 1, "capacityTypes": {"on-demand": 4}}},
    ]))
    .await?;
    play.audit(6).await?;
    ensure!(are_in(&play, ID).await? == 2, "others are in the reservation");
    play.end().await
}

/// The reservation has room for three, the tier says four: the launched nodes are rolled back, and the whole gang is
/// launched on demand.
pub async fn less_than_said(stage: &Stage, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-less";
    let tier = json!({"id": ID, "nodes": 4});
    let policy =
        json!({"tiers": tiers(&tier), "retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}}});
    let mut play = Play::start(stage, "less-than-said", instance_type, policy).await?;
    use_it(&mut play, reservation(ID, instance_type, 3)).await?;
    until_found(&play, ID).await?;
    play.submit("train", 4, Some("5s")).await?;
    play.steps(json!([
        {"until": {"job": "train", "failure": "InsufficientCapacity", "wentThrough": ["WaitingReady", "RollingBack", "BackingOff"]}},
        {"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 2, "capacityTypes": {"on-demand": 4}}},
    ]))
    .await?;
    let attempts = Attempt::all(&play, 4)?;
    ensure!(attempts.len() == 2, "there were {} attempts", attempts.len());
    attempts.iter().try_for_each(|attempt| attempt.is_cheap(&play))?;
    play.audit(4).await?;
    ensure!(are_in(&play, ID).await? == 0, "some is in the reservation still");
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    play.audit(0).await?;
    play.end().await
}

/// EC2 refuses a reservation that has room: the whole gang is launched on demand in its second attempt.
pub async fn refused(stage: &Stage, why: FleetRefusal, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-refused";
    let tier = json!({"id": ID, "nodes": 4});
    let policy =
        json!({"tiers": tiers(&tier), "retry": {"inCheck": {"limit": 4, "base": "1s", "max": "1s"}}});
    let mut play = Play::start(stage, "reservation-refused", instance_type, policy).await?;
    use_it(&mut play, reservation(ID, instance_type, 4)).await?;
    until_found(&play, ID).await?;
    refuse(&play, why);
    play.submit("train", 4, None).await?;
    play.steps(json!([
        {"until": {"job": "train", "failure": "InsufficientCapacity", "wentThrough": ["RollingBack", "BackingOff"]}},
        {"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "attempt": 2, "capacityTypes": {"on-demand": 4}}},
    ]))
    .await?;
    let attempts = Attempt::all(&play, 4)?;
    let [first, second] = &attempts[..] else { bail!("there were {} attempts", attempts.len()) };
    // Once EC2 has refused one launch, Karpenter does not ask for the others, so these fleets may be for fewer than four.
    first.has_one_template()?;
    ensure!(are_refused(&first.fleets), "the first attempt was not refused: {:?}", first.fleets);
    second.is_cheap(&play)?;
    play.audit(4).await?;
    ensure!(are_in(&play, ID).await? == 0, "some is in the reservation");
    let market = |instance: &Instance| play.cloud.market_of(&instance.id);
    let instances = play.instances().await?;
    ensure!(instances.iter().all(|i| market(i) == Some(Ec2Market::OnDemand)), "some is not on demand");
    play.end().await
}

/// EC2 refuses the only reservation of the policy: the gang waits without machines. Once EC2 accepts launches into it, the whole
/// gang runs there.
pub async fn refused_and_waited_for(
    stage: &Stage,
    why: FleetRefusal,
    instance_type: &'static str,
) -> Result<()> {
    const ID: &str = "cr-waitedfor";
    let mut play = Play::start(stage, "reservation-waited-for", instance_type, only(ID)).await?;
    use_it(&mut play, reservation(ID, instance_type, 4)).await?;
    until_found(&play, ID).await?;
    refuse(&play, why);
    play.submit("train", 4, None).await?;
    play.steps(json!([{"until": {"job": "train", "state": "BackingOff", "failure": "InsufficientCapacity", "wentThrough": ["RollingBack"], "claims": 0}}]))
        .await?;
    play.audit(0).await?;
    let fleets = play.calls("CreateFleet");
    ensure!(!fleets.is_empty() && are_refused(&fleets), "not all was refused: {fleets:?}");
    play.cloud.rules(Vec::new());
    play.steps(json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 4, "capacityTypes": {"reserved": 4}, "within": 180}}]))
        .await?;
    play.audit(4).await?;
    ensure!(are_in(&play, ID).await? == 4, "some is not in the reservation");
    play.end().await
}

/// A gang waits while another uses the whole reservation, and is launched into it in its first attempt after the other ends.
pub async fn given_back(stage: &Stage, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-givenback";
    let mut play = Play::start(stage, "reservation-given-back", instance_type, only(ID)).await?;
    use_it(&mut play, reservation(ID, instance_type, 4)).await?;
    until_found(&play, ID).await?;
    let whole = json!({"admitted": true, "runningOnOwnNodes": 4, "attempt": 1, "capacityTypes": {"reserved": 4}, "within": 180});
    let uses_it = |job: &str| {
        let mut expected = whole.clone();
        expected["job"] = job.into();
        json!({"until": expected})
    };
    play.submit("first", 4, None).await?;
    play.steps(json!([uses_it("first")])).await?;
    play.audit(4).await?;
    let before = play.instances().await?;
    ensure!(are_in(&play, ID).await? == 4, "some is not in the reservation");
    play.submit("second", 4, None).await?;
    let full = format!("ReservationFull: reservation {ID} has room for 0 of 4 nodes, as 4 of 4 are in use");
    play.steps(json!([
        {"until": {"job": "second", "state": "Validating", "message": full, "claims": 0}},
        {"delete": {"kind": "Job", "name": "first"}},
        uses_it("second"),
    ]))
    .await?;
    play.audit(4).await?;
    let kept = play.instances().await?.into_iter().filter(|instance| before.contains(instance)).count();
    ensure!(kept == 0, "{kept} machines of the first gang still run");
    ensure!(are_in(&play, ID).await? == 4, "some is not in the reservation again");
    ensure!(play.calls("CreateFleet").iter().all(|call| call.fault.is_none()), "EC2 refused a launch");
    play.end().await
}

/// How a gang treats its quota until its Capacity Block opens.
#[derive(Clone, Copy, Debug)]
pub enum Quota {
    /// It keeps the quota, as the block opens within `deadlines.gang`.
    Held,
    /// It gives the quota back.
    GivenBack,
}

/// A gang waits for its Capacity Block to start, reports until when, and buys nothing. Then it runs in the block.
pub async fn block_opens(stage: &Stage, quota: Quota, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-block";
    let short = json!({"launch": "30s", "register": "40s", "initialize": "50s", "gang": "1m"});
    let (deadlines, waits_in, verdict) = match quota {
        Quota::Held => (json!({}), "Validating", "Pending"),
        Quota::GivenBack => (short, "Yielded", "Retry"),
    };
    let second = Timestamp::now().as_second();
    let at = |after: u64| Timestamp::from_second(second.saturating_add_unsigned(after));
    let begins = 20;
    let opens = at(begins + OPENS_LATER.as_secs())?;
    let closes = at(12 * 3600)?;
    let block = json!({"id": ID, "type": "capacity-block", "nodes": 2, "opens": opens, "closes": closes});
    let tier = json!({"name": "block", "nodePoolName": "${id}", "reservations": [block]});
    let policy = json!({"tiers": [tier], "deadlines": deadlines});
    let id = format!("block-opens-{quota:?}").to_lowercase();
    let mut play = Play::start(stage, &id, instance_type, policy).await?;
    let (begins, ends) = (Some(at(begins)?), Some(closes));
    let block = Ec2Reservation { block: true, begins, ends, ..reservation(ID, instance_type, 2) };
    use_it(&mut play, block).await?;
    play.submit("train", 2, Some("5s")).await?;
    let waiting_message = format!("Capacity Block {ID} opens at {opens}");
    play.steps(json!([{"until": {"job": "train", "state": waits_in, "verdict": verdict, "message": waiting_message, "claims": 0}}])).await?;
    until_found(&play, ID).await?;
    play.steps(
        json!([{"until": {"job": "train", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1, "within": 180}}]),
    )
    .await?;
    let clock = Timestamp::now();
    let now = Instant::now();
    Attempt::all(&play, 2)?.iter().try_for_each(|attempt| attempt.is_cheap(&play))?;
    let first = play.calls("CreateFleet").into_iter().next().context("nothing was bought")?;
    let asked = clock.checked_sub(now.saturating_duration_since(first.at))?;
    ensure!(asked >= opens, "nodes were bought at {asked}, before {opens}");
    is_in_block(&play, ID, 2).await?;
    play.audit(2).await?;
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    play.end().await
}

/// Checks that the machines are in this Capacity Block, and were launched with the parameters that EC2 requires.
async fn is_in_block(play: &Play<'_>, id: &str, machines: usize) -> Result<()> {
    let of_block = |calls: &[ProviderCall], key: &str| {
        calls.iter().all(|call| call.form.get(key).is_some_and(|value| value == "capacity-block"))
    };
    let (fleets, mut templates) = (play.calls("CreateFleet"), play.calls("CreateLaunchTemplate"));
    // Karpenter also creates one to validate the EC2NodeClass.
    let name = |call: &ProviderCall, key: &str| call.form.get(key).cloned();
    let used: BTreeSet<Option<String>> = fleets.iter().map(|call| name(call, TEMPLATE)).collect();
    templates.retain(|made| used.contains(&name(made, "LaunchTemplateName")));
    ensure!(
        !templates.is_empty() && of_block(&fleets, TERMS) && of_block(&templates, MARKET),
        "not as a block: {fleets:?} {templates:?}"
    );
    let inside = are_in(play, id).await?;
    ensure!(inside == machines, "{inside} of {machines} are in the block");
    let types: Vec<String> = play
        .world
        .claims()
        .await?
        .iter()
        .map(|claim| claim.label("karpenter.k8s.aws/capacity-reservation-type").to_owned())
        .collect();
    ensure!(types == vec!["capacity-block"; machines], "the NodeClaims say {types:?}");
    Ok(())
}

/// A gang that may outlast its Capacity Block does not start, and its message names the end of the block. A gang that ends
/// earlier runs in the block.
pub async fn block_too_short(stage: &Stage, instance_type: &'static str) -> Result<()> {
    const ID: &str = "cr-short";
    let closes = Timestamp::from_second(Timestamp::now().as_second().saturating_add(2 * 3600))?;
    let block = json!({"id": ID, "type": "capacity-block", "nodes": 2, "closes": closes});
    let policy = json!({"tiers": [{"name": "block", "nodePoolName": "${id}", "reservations": [block]}]});
    let mut play = Play::start(stage, "block-too-short", instance_type, policy).await?;
    let block = Ec2Reservation { block: true, ends: Some(closes), ..reservation(ID, instance_type, 2) };
    use_it(&mut play, block).await?;
    until_found(&play, ID).await?;
    play.steps(json!([
        {"apply": [bounded("long", 2 * 3600), bounded_by_pods("long-pods", 2 * 3600)]},
    ]))
    .await?;
    for job in ["long", "long-pods"] {
        play.steps(json!([
            {"until": {"job": job, "state": "Yielded", "verdict": "Retry", "message": format!("Capacity Block {ID} closes at {closes}"), "claims": 0}},
            {"until": {"job": job, "message": "to start and 2h to run"}},
            {"holds": {"job": job, "claims": 0, "within": 5}},
        ]))
        .await?;
    }
    ensure!(play.calls("CreateFleet").is_empty(), "something was bought");
    play.steps(json!([
        {"apply": [bounded("short", 600)]},
        {"until": {"job": "short", "admitted": true, "runningOnOwnNodes": 2, "attempt": 1}},
    ]))
    .await?;
    is_in_block(&play, ID, 2).await?;
    play.audit(2).await?;
    play.end().await
}

/// A Job with two machines and this time limit in seconds.
fn bounded(name: &str, seconds: u32) -> Value {
    job(name, json!({"kueue.x-k8s.io/max-exec-time-seconds": seconds.to_string()}), &Value::Null)
}

/// The same with the limit on its pods.
fn bounded_by_pods(name: &str, seconds: u32) -> Value {
    job(name, json!({}), &seconds.into())
}

fn job(name: &str, mut labels: Value, limit_of_pods: &Value) -> Value {
    labels["kueue.x-k8s.io/queue-name"] = "queue".into();
    let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}});
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels},
        "spec": {"parallelism": 2, "completions": 2, "suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "activeDeadlineSeconds": limit_of_pods,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        }}},
    })
}
