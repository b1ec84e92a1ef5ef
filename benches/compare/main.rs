//! Compares Setu with its alternatives on one real control plane, one after the other in one run: what each adds
//! before and after the cloud's own time, how long a Job waits for its pods, and what a shortage costs.
//!
//! `just bench-compare` runs it with the binary of the image. `--full` adds the larger cells and writes
//! docs/performance/comparison.md and docs/images/comparison.svg. `--shortage` only prints how long Jobs wait and
//! what a shortage costs, `--cell NODESxGANGS` the results of one cell, with `--queue NAME` for one system. With
//! `--most-share PERCENT` it fails if Setu used a larger share than this of Karpenter's CPU time.

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

use anyhow::{Context as _, Result, bail};
use report::{Cell, Found, Process};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use watch::{Observer, Times};
use world::World;

/// The systems to compare, by LocalQueue.
pub const SYSTEMS: [(&str, &str); 4] = [
    ("queue", "Setu"),
    ("requests", "Kueue's check with Setu behind it"),
    ("kueue", "Kueue's ProvisioningRequest check"),
    ("poller", "15 s poller (imitation)"),
];

/// Setu writes Events last. The writes until Ready are counted after this time, once the Events are sent.
const EVENTS: Duration = Duration::from_secs(1);

/// Nodes, concurrent gangs, and rounds.
const CELLS: [(usize, usize, usize); 6] =
    [(1, 1, 10), (8, 1, 10), (64, 1, 5), (1, 10, 2), (1, 100, 1), (8, 10, 1)];
const MORE_CELLS: [(usize, usize, usize); 3] = [(256, 1, 2), (64, 10, 1), (8, 100, 1)];
const MOST_GANGS: (usize, usize, usize) = (1, 1000, 1);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let chosen = value(&arguments, "--cell").map(cell).transpose()?;
    let queue = value(&arguments, "--queue");
    if queue.is_some() && chosen.is_none() {
        bail!("--queue goes with --cell: the tables are of all systems");
    }
    let systems = SYSTEMS.into_iter().filter(|(name, _)| queue.is_none_or(|q| q == *name)).collect();
    if arguments.iter().any(|a| a == "--shortage") {
        let mut bench = Bench::start(systems, Found::default()).await?;
        bench.jobs().await?;
        bench.end();
        return Ok(());
    }
    let most_share = value(&arguments, "--most-share").map(str::parse::<f64>).transpose()?;
    let mut bench = Bench::start(systems, Found::default()).await?;
    if let Some(cell) = chosen {
        bench.cell(cell).await?;
        let (_, found) = bench.end();
        return most_share.map_or(Ok(()), |most| found.uses_at_most(most));
    }
    bench.cells(&CELLS).await?;
    bench.jobs().await?;
    report::write(&bench.found)?;
    if arguments.iter().any(|a| a == "--full") {
        bench.cells(&MORE_CELLS).await?;
        // The API server of a control plane that has worked for an hour is slower.
        let (systems, found) = bench.end();
        bench = Bench::start(systems, found).await?;
        bench.cells(&[MOST_GANGS]).await?;
    }
    bench.end();
    Ok(())
}

type Systems = Vec<(&'static str, &'static str)>;

/// A control plane with the systems to compare, and the results so far.
struct Bench {
    world: World,
    /// Background tasks, which end with the bench.
    tasks: JoinSet<()>,
    systems: Systems,
    observer: Observer,
    found: Found,
}

impl Bench {
    /// Starts a control plane. The poller runs all the time, so that gangs meet it at any moment of its interval.
    async fn start(systems: Systems, found: Found) -> Result<Self> {
        let world = World::start().await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(systems::grant_everything(world.client.clone()));
        tasks.spawn(world.poller());
        let observer = Observer::default();
        observer.start(&world.client, &mut tasks);
        Ok(Self { world, tasks, systems, observer, found })
    }

    /// Stops the control plane.
    fn end(self) -> (Systems, Found) {
        drop(self.tasks);
        self.world.end();
        (self.systems, self.found)
    }

    /// Measures these cells. Writes the results after each, because a later one may fail.
    async fn cells(&mut self, cells: &[(usize, usize, usize)]) -> Result<()> {
        for cell in cells {
            self.cell(*cell).await?;
            report::write(&self.found)?;
        }
        Ok(())
    }

    /// Runs Jobs with Setu and without. The shortage comes last: while Setu keeps it, gangs take turns.
    async fn jobs(&mut self) -> Result<()> {
        self.found.bound = bound(&self.world, &self.observer).await?;
        self.found.shortages = shortage::both(&self.world, &self.observer).await?;
        Ok(())
    }

    /// Measures one cell for every system.
    async fn cell(&mut self, (nodes, gangs, rounds): (usize, usize, usize)) -> Result<()> {
        for (queue, system) in self.systems.clone() {
            // The imitation takes up to half a minute, and one round shows that.
            let rounds = if queue == "poller" { rounds.min(2) } else { rounds };
            let mut cell = Cell::new(system, nodes, gangs);
            for round in 0..rounds {
                let before = Process::of(&self.world.setu)?;
                let prefix = format!("{queue}-{nodes}-{gangs}-{round}");
                let meter = self.world.meter().await?;
                let times = measured(&self.world, &self.observer, queue, &prefix, (nodes, gangs)).await;
                let used = meter.read();
                match times {
                    Ok(times) => {
                        cell.take(times);
                        cell.used.add(used);
                    }
                    Err(error) => eprintln!("{prefix}: {error:#}"),
                }
                println!("{} {}", jiff::Zoned::now().strftime("%T"), cell.line());
                tokio::time::sleep(EVENTS).await;
                let ready = Process::of(&self.world.setu)?;
                let cleared = self.world.clear().await;
                cleared.context("what is left would be at work in whatever is measured next")?;
                if queue == "queue" {
                    let after = Process::of(&self.world.setu)?;
                    cell.until_ready.add(&before, &ready);
                    cell.in_all.add(&before, &after);
                    self.found.process.add(&before, &after);
                }
            }
            if queue == "queue" {
                println!("{}", cell.written());
            }
            self.found.cells.push(cell);
        }
        Ok(())
    }
}

/// The argument after this one.
fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let at = arguments.iter().position(|a| a == name)?;
    arguments.get(at + 1).map(String::as_str)
}

/// Parses a cell given as `NODESxGANGS`.
fn cell(text: &str) -> Result<(usize, usize, usize)> {
    let (nodes, gangs) = text.split_once('x').context("a cell is given as NODESxGANGS, such as 1x1000")?;
    Ok((nodes.parse()?, gangs.parse()?, 1))
}

/// Submits concurrent gangs and waits until all are Ready.
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
    let done = |times: &[Times]| {
        times.len() == gangs && times.iter().all(|t| t.verdict.is_some() && t.ready.is_some())
    };
    until(observer, limit, done).await.with_context(|| format!("not all gangs of {prefix} were told Ready"))
}

/// Waits until the observations suffice.
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

/// The time from submitting ten Jobs of eight pods until all pods are bound: with Setu, and with Karpenter alone.
async fn bound(world: &World, observer: &Observer) -> Result<Vec<(&'static str, Vec<f64>)>> {
    let (nodes, gangs) = (8, 10);
    let mut all = Vec::new();
    for (queue, system) in [("queue", "Setu"), ("plain", "Karpenter alone, no check")] {
        observer.clear();
        let start = Instant::now();
        world.submit(&format!("bound-{queue}"), queue, nodes, gangs, None).await?;
        let done = |times: &[Times]| times.len() == gangs && times.iter().all(|t| t.bindings == nodes);
        let times = until(observer, Duration::from_mins(3), done).await.unwrap_or_default();
        let took = times.iter().filter_map(|t| Some((t.bound? - start).as_secs_f64())).collect();
        println!("{system}: submitted until all bound {took:.1?}");
        all.push((system, took));
        world.clear().await?;
    }
    Ok(all)
}
