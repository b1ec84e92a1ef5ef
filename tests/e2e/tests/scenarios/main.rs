//! Runs all scenarios of `examples/scenarios/` and of `tests/e2e/scenarios/` on the real control plane. The embedded
//! cluster cannot run the latter. All share one cluster, each has its own world, and several run at a time.
//! The short form is one run of each scenario; the ignored ones are its other combinations.

#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a test may panic"
)]
#![allow(missing_docs, reason = "the format is described where it is declared")]

mod real;
mod rights;
mod setu;

use ::setu::sim::scenario::{self, KarpenterProvider, Run, ScenarioWorld};
use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::CustomResourceExt as _;
use kube::discovery::Discovery;
use libtest_mimic::{Arguments, Failed, Trial};
use real::{Real, Shared};
use rights::Accounts;
use setu_e2e::{HarnessLayout, Stack, StackJobKinds, StackOptions, apply, versions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Runtime};

/// Scenarios that run at the same time. They mostly wait for timers of other programs.
const AT_ONCE: usize = 7;

/// Killed runs of one scenario that run at the same time.
const KILLS_AT_ONCE: usize = 2;

/// Setu is killed after every sixth write, or after every write when ignored tests are requested.
const KILLS_APART: usize = 6;

fn main() -> Result<()> {
    let mut arguments = Arguments::from_args();
    let mut runs = Vec::new();
    for folder in ["../../examples/scenarios", "scenarios"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        runs.extend(scenario::read(&folder).with_context(|| format!("reading {}", folder.display()))?);
    }
    runs.retain(|run| run.scenario.provider == KarpenterProvider::Kwok);
    let layout = HarnessLayout::default();
    let versions = versions::of(&layout)?;
    for run in std::mem::take(&mut runs) {
        if versions.reach(&layout, &run.scenario.since).with_context(|| run.title.clone())? {
            runs.push(run);
        }
    }
    let short = short_form(&runs);
    let is_long = |run: &Run| !short.contains(&run.title);
    if arguments.list {
        let named = |run: Run| Trial::test(&run.title, || Ok(())).with_ignored_flag(is_long(&run));
        libtest_mimic::run(&arguments, runs.into_iter().map(named).collect()).exit();
    }
    arguments.test_threads.get_or_insert(AT_ONCE);
    let runtime = Runtime::new()?;
    let options = StackOptions { job_kinds: StackJobKinds::Sets, ..StackOptions::default() };
    let stack = Arc::new(runtime.block_on(Stack::start(options))?);
    let crd = serde_json::to_value(::setu::api::ProvisioningParameters::crd())?;
    runtime.block_on(async { setu_e2e::apply::all(&stack.client()?, vec![crd]).await })?;
    let accounts =
        runtime.block_on(async { Accounts::make(&stack, kinds_with_ours(&stack).await?).await })?;
    let handle = runtime.handle();
    let apart = if arguments.include_ignored || arguments.ignored { 1 } else { KILLS_APART };
    let (alone, together): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(|run| run.scenario.alone);
    let trial = |run: Run| {
        let is_long = is_long(&run);
        trial(accounts.of(&run).clone(), run, apart, &stack, handle.clone()).with_ignored_flag(is_long)
    };
    let trials = |runs: Vec<Run>| runs.into_iter().map(trial).collect();
    let mut conclusion = libtest_mimic::run(&arguments, trials(together));
    if !alone.is_empty() {
        arguments.test_threads = Some(1);
        let after = libtest_mimic::run(&arguments, trials(alone));
        conclusion.num_failed += after.num_failed;
    }
    // A stack that is dropped instead of stopped keeps its logs.
    match Arc::try_unwrap(stack) {
        Ok(stack) if !conclusion.has_failed() => stack.stop(),
        other => drop(other),
    }
    conclusion.exit()
}

/// The titles of the runs that are played each time: of each scenario the first combination of its matrix.
fn short_form(runs: &[Run]) -> BTreeSet<String> {
    let mut scenarios = BTreeSet::new();
    runs.iter().filter(|run| scenarios.insert(&run.scenario.title)).map(|run| run.title.clone()).collect()
}

/// The kinds that the API server serves, once they include ours.
async fn kinds_with_ours(stack: &Stack) -> Result<Discovery> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let kinds = apply::kinds(&stack.client()?).await?;
        if kinds.has_group(::setu::names::API_GROUP) {
            return Ok(kinds);
        }
        anyhow::ensure!(Instant::now() < deadline, "ProvisioningParameters are still not served");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn trial(shared: Shared, run: Run, apart: usize, stack: &Arc<Stack>, handle: Handle) -> Trial {
    let stack = Arc::clone(stack);
    Trial::test(run.title.clone(), move || {
        handle
            .block_on(play(&stack, &shared, &run, apart))
            .map_err(|error| Failed::from(format!("{error:#}")))
    })
}

async fn play(stack: &Arc<Stack>, shared: &Shared, run: &Run, apart: usize) -> Result<()> {
    let mut world = ScenarioWorld::new(Real::new(stack, shared, run)?, run).await?;
    let writes = scenario::play(&mut world, run, None).await?;
    drop(world);
    if !run.scenario.kill_after_each_write {
        return Ok(());
    }
    anyhow::ensure!(writes > 4, "Setu made {writes} writes only, so there is nothing to kill it after");
    // Each scenario starts at a different offset, so that the first and last writes are covered too.
    let kills = (1..=writes).skip(run.title.len() % apart).step_by(apart);
    let kills = kills.map(|write| killed_after(write, stack, shared, run));
    stream::iter(kills).buffer_unordered(KILLS_AT_ONCE).try_collect().await
}

async fn killed_after(write: u64, stack: &Arc<Stack>, shared: &Shared, run: &Run) -> Result<()> {
    let run = Run { id: format!("{}-k{write}", run.id), ..run.clone() };
    let mut world = ScenarioWorld::new(Real::new(stack, shared, &run)?, &run).await?;
    let played = scenario::play(&mut world, &run, Some(write)).await;
    played.map(drop).with_context(|| format!("killed after write {write}"))
}
