//! How a gang is bought: with how few calls, and how soon.

use crate::play::{Play, Stage, limit};
use anyhow::{Result, ensure};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// From the reservation of quota until EC2 has answered that the last instance is launched.
const LAUNCHED: Duration = Duration::from_secs(2);

/// How long Karpenter may keep a launch template that it has no more use for: a minute in its cache, and up to another
/// until that is looked through.
const TEMPLATES_GONE: Duration = Duration::from_mins(3);

/// From Setu's first NodeClaim to its last.
const CREATED: Duration = Duration::from_millis(500);

const TEMPLATE: &str = "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName";
const CAPACITY: &str = "TargetCapacitySpecification.TotalTargetCapacity";

/// A gang of so many machines costs one launch template, and few fleets: those of one launch template that the provider
/// asks for within its window are one, and how many it manages within one depends on its own processors.
pub async fn few_calls(stage: &Stage, machines: usize, instance_type: &'static str) -> Result<()> {
    let id = format!("few-{machines}");
    let mut play = Play::start(stage, &id, instance_type, json!({})).await?;
    let reserved = play.submit("train", machines, Some("5s")).await?;
    play.steps(json!([{"until": {"job": "train", "admitted": true, "claims": machines}}])).await?;
    let (templates, fleets) = (play.calls("CreateLaunchTemplate"), play.calls("CreateFleet"));
    let sizes: Vec<usize> = fleets.iter().filter_map(|call| call.form.get(CAPACITY)?.parse().ok()).collect();
    let launched = fleets.iter().filter_map(|call| call.done).max();
    let took = launched.map(|at| at.saturating_duration_since(reserved)).unwrap_or_default();
    let asked = fleets.iter().map(|call| call.at.saturating_duration_since(reserved).as_millis());
    let asked: Vec<u128> = asked.collect();
    println!(
        "{machines} machines: {} launch templates, fleets of {sizes:?} asked for after {asked:?} ms, all launched {took:?} \
         after the reservation",
        templates.len()
    );
    ensure!(templates.len() == 1, "{} launch templates, not 1", templates.len());
    let enough = machines.div_ceil(4);
    ensure!(fleets.len() <= enough && sizes.iter().sum::<usize>() == machines, "fleets of {sizes:?}");
    let created = play.creates()?;
    println!("  Setu created its NodeClaims within {created:?}");
    ensure!(created <= limit(CREATED), "Setu created its NodeClaims within {created:?}");
    let named: BTreeSet<Option<&String>> = fleets.iter().map(|call| call.form.get(TEMPLATE)).collect();
    ensure!(named.len() == 1, "the fleets name {named:?}");
    ensure!(took <= limit(LAUNCHED), "all launched only after {took:?}");
    play.audit(machines).await?;
    play.steps(json!([{"until": {"job": "train", "finished": true, "claims": 0}}])).await?;
    play.end().await
}

/// Karpenter deletes each launch template soon after its last use, although every NodeClass is still there.
pub async fn templates_go(stage: &Stage) -> Result<()> {
    let cloud = stage.stack.cloud()?;
    let start = Instant::now();
    loop {
        let left = cloud.launch_templates().await?;
        if left.is_empty() {
            println!("the last launch template was gone after {:?}", start.elapsed());
            return Ok(());
        }
        ensure!(start.elapsed() < TEMPLATES_GONE, "launch templates are left: {left:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
