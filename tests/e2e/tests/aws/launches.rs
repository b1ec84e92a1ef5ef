//! Launches of gangs: the number of calls, and the time.

use crate::attempts::Attempt;
use crate::play::{Play, Stage, until_gone};
use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use setu_e2e::aws::Cloud;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The limit from the quota reservation, or the first NodeClaim of a later attempt, to EC2's answer for the last
/// instance.
pub const LAUNCHED: Duration = Duration::from_secs(2);

/// How long Karpenter may keep an unused launch template: a minute in its cache, and up to another until the next
/// cleanup.
const TEMPLATES_GONE: Duration = Duration::from_mins(3);

/// A gang of this size needs one launch template and few fleets, and its NodeClaims are all created at once.
pub async fn few_calls(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    stage.restart_karpenter().await?;
    let id = format!("few-{machines}");
    let mut play = Play::start(stage, &id, instance_type, json!({})).await?;
    let reserved = play.submit("train", machines, Some("5s")).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "claims": machines}}])).await?;
    let attempts = logged_attempts(&play, machines, reserved)?;
    let [attempt] = &attempts[..] else { bail!("there were {} attempts", attempts.len()) };
    attempt.is_cheap(&play)?;
    let took = attempt.launched().context("nothing was launched")?.saturating_duration_since(reserved);
    play.within(took, LAUNCHED, "launching all");
    are_alike(&play).await?;
    play.audit(machines).await?;
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    play.end().await
}

/// The labels in which NodeClaims of one gang may differ.
const OF_THE_PLACE: [&str; 3] =
    ["topology.kubernetes.io/zone", "topology.k8s.aws/zone-id", "kubernetes.io/hostname"];

/// Checks that all NodeClaims have the same labels but for their places, and the same NodeClass hash and NodePool hash, so
/// that none drifts before the others. The name of a launch template depends on the labels and user data.
pub async fn are_alike(play: &Play<'_>) -> Result<()> {
    let claims = play.world.claims().await?;
    let labels: BTreeSet<BTreeMap<&str, &str>> = claims
        .iter()
        .map(|claim| {
            let all = claim.metadata.labels.iter().flatten();
            all.map(|(key, value)| (key.as_str(), value.as_str()))
                .filter(|(key, _)| !OF_THE_PLACE.contains(key))
                .collect()
        })
        .collect();
    ensure!(labels.len() == 1, "labels of the NodeClaims: {labels:?}");
    for key in ["karpenter.k8s.aws/ec2nodeclass-hash", "karpenter.sh/nodepool-hash"] {
        let hashes: BTreeSet<&str> = claims.iter().map(|claim| claim.annotation(key)).collect();
        ensure!(hashes.len() == 1 && !hashes.contains(""), "{key} of the NodeClaims: {hashes:?}");
    }
    Ok(())
}

/// A gang so large that it runs alone needs one launch template. Its duration is not asserted.
pub async fn measured(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, &format!("measured-{machines}"), instance_type, json!({})).await?;
    let reserved = play.submit("train", machines, None).await?;
    let all = json!({"job": "train", "admitted": true, "claims": machines, "within": 600});
    play.steps(json!([{"until": all}])).await?;
    println!("admitted {:?} after the reservation", reserved.elapsed());
    let attempts = logged_attempts(&play, machines, reserved)?;
    let [attempt] = &attempts[..] else { bail!("there were {} attempts", attempts.len()) };
    attempt.has_one_template()?;
    play.audit(machines).await?;
    play.end().await
}

/// Returns the attempts of a gang so far, and prints them.
pub fn logged_attempts(play: &Play<'_>, machines: usize, reserved: Instant) -> Result<Vec<Attempt>> {
    let attempts = Attempt::all(play, machines)?;
    for (number, attempt) in (1..).zip(&attempts) {
        let since = |at: Instant| at.saturating_duration_since(reserved);
        let asked: Vec<u128> = attempt.fleets.iter().map(|call| since(call.at).as_millis()).collect();
        let [within, pause] = attempt.created()?;
        println!(
            "{machines} machines, attempt {number}: {} launch templates, fleets of {:?} asked for after {asked:?} ms, all \
             launched {:?} after the reservation and {:?} after its first NodeClaim\n  Setu created its NodeClaims within {within:?}, with {pause:?} between two at most",
            attempt.templates.len(),
            attempt.sizes(),
            attempt.launched().map(since),
            attempt.took().ok(),
        );
    }
    Ok(attempts)
}

/// Waits until the cloud has no launch template.
pub async fn no_template_is_left(cloud: &Cloud) -> Result<()> {
    until_gone(TEMPLATES_GONE, async || cloud.launch_templates().await).await
}

/// Karpenter deletes each launch template soon after its last use, even while the NodeClass exists.
pub async fn templates_go(stage: &Stage, instance_type: &'static str) -> Result<()> {
    let mut play = Play::start(stage, "templates", instance_type, json!({})).await?;
    play.submit("train", 2, Some("3s")).await?;
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    ensure!(!play.templates().await?.is_empty(), "the launch template went with its instances");
    let start = Instant::now();
    no_template_is_left(play.cloud).await?;
    println!("the last launch template was gone after {:?}", start.elapsed());
    play.end().await
}
