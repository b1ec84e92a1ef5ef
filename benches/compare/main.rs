//! Setu beside its alternatives on one real control plane, one after the other in one run: what each adds at
//! both ends of the cloud's own time, how long a Job waits for its pods, and what a shortage costs.
//!
//! `just bench-compare` runs it with the release build; `--full` takes the larger cells too, and it writes
//! docs/performance/comparison.md and docs/images/comparison.svg. `--shortage` only prints what a shortage costs,
//! `--cell NODESxGANGS` only what one cell shows, and with `--queue NAME` of one system.

#![allow(
    missing_docs,
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a tool that prints figures"
)]

mod meter;
mod report;
#[path = "../../tests/e2e/tests/scenarios/setu.rs"]
mod setu;
mod shortage;
mod systems;
#[path = "../usage.rs"]
mod usage;
mod watch;
mod world;

use anyhow::{Context as _, Result};
use report::Cell;
use setu_e2e::Stack;
use std::sync::Arc;
use std::time::{Duration, Instant};
use watch::{Observer, Times};
use world::World;

/// What is compared, by the name of its LocalQueue.
pub const SYSTEMS: [(&str, &str); 3] = [
    ("queue", "Setu"),
    ("kueue", "Kueue's ProvisioningRequest check"),
    ("poller", "15 s poller (imitation)"),
];

/// Nodes, gangs at once, and how often.
const CELLS: [(usize, usize, usize); 6] =
    [(1, 1, 10), (8, 1, 10), (64, 1, 2), (1, 10, 2), (1, 100, 1), (8, 10, 1)];
const MORE_CELLS: [(usize, usize, usize); 4] = [(256, 1, 2), (64, 10, 1), (8, 100, 1), (1, 1000, 1)];

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let mut cells = CELLS.to_vec();
    if arguments.iter().any(|a| a == "--full") {
        cells.extend(MORE_CELLS);
    }
    let chosen = value(&arguments, "--cell").map(cell).transpose()?;
    if let Some(chosen) = chosen {
        cells = vec![chosen];
    }
    let queue = value(&arguments, "--queue");
    let world = World::start().await?;
    let stack = Arc::clone(&world.stack);
    if arguments.iter().any(|a| a == "--shortage") {
        shortage::both(&world, &Observer::default()).await;
        end(world, stack);
        return Ok(());
    }
    tokio::spawn(systems::grant_everything(world.client.clone()));
    // It runs all the time, so that it is met at any moment of its round.
    let poller = world.poller();
    let observer = Observer::default();
    observer.start(&world.client);
    let started = Instant::now();
    let mut results = Vec::new();
    for (nodes, gangs, rounds) in cells {
        for (queue, system) in SYSTEMS.into_iter().filter(|(name, _)| queue.is_none_or(|q| q == *name)) {
            // The imitation answers after up to half a minute, and one round shows that.
            let rounds = if queue == "poller" { rounds.min(2) } else { rounds };
            let before = world.setu.writes().unwrap_or_default();
            let mut cell = Cell::new(system, nodes, gangs);
            for round in 0..rounds {
                let prefix = format!("{queue}-{nodes}-{gangs}-{round}");
                let meter = world.meter().await?;
                let times = measured(&world, &observer, queue, &prefix, (nodes, gangs)).await;
                cell.used.add(meter.read());
                match times {
                    Ok(times) => cell.take(times),
                    Err(error) => eprintln!("{prefix}: {error:#}"),
                }
                println!("{:>4} s {}", started.elapsed().as_secs(), cell.line());
                world.clear().await.context("what is left would be at work in whatever is measured next")?;
            }
            if queue == "queue" {
                cell.writes = world.setu.writes().unwrap_or_default().saturating_sub(before);
            }
            results.push(cell);
            if chosen.is_none() {
                // Written each time, because what follows may not come to an end.
                report::write(&results, &[], &[], &report::Process::of(&world.setu)?)?;
            }
        }
    }
    if chosen.is_some() {
        poller.abort();
        end(world, stack);
        return Ok(());
    }
    let process = report::Process::of(&world.setu)?;
    poller.abort();
    // Before Karpenter's own nodes, which take long to go.
    let short = shortage::both(&world, &observer).await;
    let bound = bound(&world, &observer).await;
    report::write(&results, &bound, &short, &process)?;
    end(world, stack);
    Ok(())
}

/// What follows an argument.
fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|a| a == name)?;
    arguments.get(at + 1).map(String::as_str)
}

/// A cell that is given as `NODESxGANGS`.
fn cell(text: &str) -> Result<(usize, usize, usize)> {
    let (nodes, gangs) = text.split_once('x').context("a cell is given as NODESxGANGS, such as 1x1000")?;
    Ok((nodes.parse()?, gangs.parse()?, 1))
}

fn end(world: World, stack: Arc<Stack>) {
    world.end();
    if let Ok(stack) = Arc::try_unwrap(stack) {
        stack.stop();
    }
}

/// Submits gangs at once and waits until all are told Ready.
async fn measured(
    world: &World,
    observer: &Observer,
    queue: &str,
    prefix: &str,
    (nodes, gangs): (usize, usize),
) -> Result<Vec<Times>> {
    observer.clear();
    world.submit(prefix, queue, nodes, gangs, None).await?;
    let limit = Duration::from_secs(120 + (nodes * gangs / 2) as u64);
    let done =
        |times: &[Times]| times.len() == gangs && times.iter().all(|t| t.told.is_some() && t.ready.is_some());
    until(observer, limit, done).await.with_context(|| format!("not all gangs of {prefix} were told Ready"))
}

/// Waits until what was seen is enough.
async fn until(observer: &Observer, limit: Duration, done: impl Fn(&[Times]) -> bool) -> Option<Vec<Times>> {
    let start = Instant::now();
    while start.elapsed() < limit {
        let times: Vec<Times> = observer.times().into_values().collect();
        if done(&times) {
            return Some(times);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    None
}

/// From the submission of ten Jobs of eight pods until all pods are bound: with Setu, and with Karpenter alone.
async fn bound(world: &World, observer: &Observer) -> Vec<(&'static str, Vec<f64>)> {
    let (nodes, gangs) = (8, 10);
    let mut all = Vec::new();
    for (queue, system) in [("queue", "Setu"), ("plain", "Karpenter alone, no check")] {
        observer.clear();
        let start = Instant::now();
        if world.submit(&format!("bound-{queue}"), queue, nodes, gangs, None).await.is_err() {
            continue;
        }
        let done = |times: &[Times]| times.len() == gangs && times.iter().all(|t| t.bindings == nodes);
        let times = until(observer, Duration::from_mins(3), done).await.unwrap_or_default();
        let took = times.iter().filter_map(|t| Some((t.bound? - start).as_secs_f64())).collect();
        println!("{system}: submitted until all bound {took:.1?}");
        all.push((system, took));
        if let Err(error) = world.clear().await {
            eprintln!("{error:#}");
        }
    }
    all
}
