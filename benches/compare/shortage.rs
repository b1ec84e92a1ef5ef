//! Shortage: ten nodes for five Jobs of four pods. How long until all are done, what nodes without a complete gang
//! cost meanwhile, and how many Jobs ran with only some of their pods.

use crate::watch::{self, Observer};
use crate::world::{ID, World};
use anyhow::{Result, bail};
use kube::ResourceExt as _;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const CAPACITY: usize = 10;
const JOBS: usize = 5;
const PODS: usize = 4;
const RUN_FOR: &str = "20s";
const STEP: Duration = Duration::from_millis(250);

pub struct Shortage {
    pub system: &'static str,
    pub node_seconds: f64,
    pub wasted: f64,
    pub half: usize,
    pub took: f64,
}

/// Runs the shortage with both systems. A failure of one is printed, and the other still runs in a clean world.
pub async fn both(world: &World, observer: &Observer) -> Result<Vec<Shortage>> {
    let mut all = Vec::new();
    for (queue, system) in [("queue", "Setu"), ("plain", "Karpenter alone, no check")] {
        observer.clear();
        weather(world, json!([{"nodePool": ID, "capacity": CAPACITY, "registrationDelay": "5s"}])).await?;
        let found = one(world, queue, system).await;
        weather(world, json!([])).await?;
        match found {
            Ok(result) => all.push(result),
            Err(error) => eprintln!("shortage with {system}: {error:#}"),
        }
        world.clear().await?;
    }
    Ok(all)
}

async fn weather(world: &World, rules: serde_json::Value) -> Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weather", "namespace": "kube-system"},
        "data": {ID: json!({"rules": rules}).to_string()},
    });
    setu_e2e::apply::all(&world.client, vec![map]).await
}

async fn one(world: &World, queue: &str, system: &'static str) -> Result<Shortage> {
    let start = Instant::now();
    world.submit(&format!("short-{queue}"), queue, PODS, JOBS, Some(RUN_FOR)).await?;
    let mut result = Shortage { system, node_seconds: 0.0, wasted: 0.0, half: 0, took: 0.0 };
    let mut half: BTreeMap<String, Duration> = BTreeMap::new();
    let mut last = Instant::now();
    loop {
        tokio::time::sleep(STEP).await;
        let pods = watch::list(&world.client, "Pod").await?;
        let nodes = watch::list(&world.client, "Node").await?;
        let step = last.elapsed();
        last = Instant::now();
        let mut bound: BTreeMap<String, usize> = BTreeMap::new();
        let mut at_work: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in &pods {
            let job = pod.labels().get("batch.kubernetes.io/job-name").cloned().unwrap_or_default();
            let Some(node) = pod.data["spec"]["nodeName"].as_str() else { continue };
            *bound.entry(job.clone()).or_default() += 1;
            if pod.data["status"]["phase"] != "Succeeded" {
                at_work.entry(job).or_default().insert(node.to_owned());
            }
        }
        let mine = nodes.iter().filter(|n| n.labels().get("pool").is_some_and(|p| p == ID));
        let exist: BTreeSet<String> = mine.map(kube::ResourceExt::name_any).collect();
        let whole = at_work.iter().filter(|(job, _)| bound.get(*job) == Some(&PODS));
        let useful: BTreeSet<&String> = whole.flat_map(|(_, nodes)| nodes).collect();
        result.node_seconds += exist.len() as f64 * step.as_secs_f64();
        result.wasted += exist.iter().filter(|n| !useful.contains(n)).count() as f64 * step.as_secs_f64();
        for (job, _) in bound.iter().filter(|(_, bound)| **bound < PODS) {
            *half.entry(job.clone()).or_default() += step;
        }
        let jobs = watch::list(&world.client, "Job").await?;
        let over = jobs.iter().filter(|j| j.data["status"]["succeeded"].as_u64() == Some(PODS as u64));
        if over.count() == JOBS {
            break;
        }
        if start.elapsed() > Duration::from_mins(8) {
            bail!("not all jobs were done within eight minutes");
        }
    }
    result.took = start.elapsed().as_secs_f64();
    // The pods of a complete gang are bound within moments of each other.
    result.half = half.values().filter(|time| **time > Duration::from_secs(3)).count();
    println!(
        "shortage, {system}: {:.0} s until all are done, {:.0} node-seconds, {:.0} of them wasted, {} jobs ran half",
        result.took, result.node_seconds, result.wasted, result.half
    );
    Ok(result)
}
