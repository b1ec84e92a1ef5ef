//! `setu demo`: the embedded cluster with the real controller in it, before the user's eyes.

mod live;
mod summary;

use super::Failure;
use crate::clock::Clock;
use crate::policy::PolicyFile;
use crate::sim::cluster::Cluster;
use crate::sim::embedded::Embedded;
use crate::sim::scenario::{self, Run};
use crate::sim::show::{Spectator, pace, play::Play};
use jiff::Timestamp;
use live::Screen;
use std::io::IsTerminal as _;
use std::path::Path;
use std::time::Duration;

/// How often the screen is drawn anew while a scenario is played, in virtual time.
const DRAW: Duration = Duration::from_millis(100);

/// Shows Setu at work in an embedded cluster: no Kubernetes is needed.
///
/// Example: setu demo --speed 4
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A scenario file to play instead, such as examples/scenarios/shortage.yaml.
    #[arg(long, value_name = "FILE")]
    scenario: Option<String>,
    /// How many times as fast as the wall clock time goes; 0 means as fast as the machine can.
    #[arg(long, default_value_t = 1.5)]
    speed: f64,
    /// What chance is made from: the same seed repeats the same run exactly.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Args {
    /// Shows it to the end.
    pub async fn run(self) -> Result<(), Failure> {
        if !self.speed.is_finite() || self.speed < 0.0 {
            return Err(Failure::Invalid(format!("--speed {}: give 0 or a positive number", self.speed)));
        }
        let runs = self.scenario.as_deref().map(read).transpose()?;
        // Virtual time needs a runtime of its own, with one thread.
        let shown = tokio::task::spawn_blocking(move || self.show(runs));
        shown.await.map_err(|e| Failure::Failed(format!("the demo broke off: {e}")))?
    }

    fn show(&self, runs: Option<Vec<Run>>) -> Result<(), Failure> {
        match runs {
            None => self.in_virtual_time(self.play()),
            Some(runs) => runs.into_iter().try_for_each(|run| self.in_virtual_time(self.scenario(&run))),
        }
    }

    fn in_virtual_time(&self, show: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.map_err(|e| Failure::Failed(format!("no runtime: {e}")))?;
        runtime.block_on(async {
            if self.speed > 0.0 {
                tokio::spawn(pace::keep(self.speed));
            }
            show.await
        })
    }

    fn cluster(&self, controller_name: &str, policy: PolicyFile) -> (Cluster, Spectator) {
        // A fixed date, so that a run can be repeated to the last byte.
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap_or(Timestamp::UNIX_EPOCH));
        let cluster = Cluster::start(self.seed, &clock, controller_name, policy);
        let spectator = Spectator::default();
        cluster.server.observe(Box::new(spectator.clone()));
        (cluster, spectator)
    }

    async fn play(&self) -> Result<(), Failure> {
        let policy = Play::policy().map_err(Failure::Failed)?;
        let (cluster, spectator) = self.cluster(&Play::controller_name(), policy);
        let mut screen = Screen::new(std::io::stdout().is_terminal());
        let mut play = Play::new(cluster, spectator.clone()).map_err(Failure::Failed)?;
        play.play(|spectator| screen.draw(spectator)).await;
        screen.close();
        super::print(&summary::text(&spectator.gangs()));
        Ok(())
    }

    async fn scenario(&self, run: &Run) -> Result<(), Failure> {
        let invalid = |e: anyhow::Error| Failure::Invalid(format!("{e:#}"));
        let policy = scenario::policy(run).map_err(invalid)?;
        let policy: PolicyFile = serde_yaml::from_str(&policy)
            .map_err(|e| Failure::Invalid(format!("the policy of {}: {e}", run.title)))?;
        let (cluster, spectator) = self.cluster(&scenario::controller_name(run), policy);
        let theatre = Embedded::new(cluster);
        let mut screen = Screen::new(std::io::stdout().is_terminal());
        super::print(&format!("{}\n", run.title));
        let mut world = scenario::World::new(theatre, run).await.map_err(invalid)?;
        let played = {
            let mut playing = std::pin::pin!(scenario::play(&mut world, run, None));
            loop {
                tokio::select! {
                    biased;
                    played = &mut playing => break played,
                    () = tokio::time::sleep(DRAW) => screen.draw(&spectator),
                }
            }
        };
        screen.draw(&spectator);
        screen.close();
        super::print(&summary::text(&spectator.gangs()));
        played.map(drop).map_err(|e| Failure::Failed(format!("{e:#}")))
    }
}

fn read(scenario: &str) -> Result<Vec<Run>, Failure> {
    let path = Path::new(scenario);
    if !path.is_file() {
        let what =
            format!("{scenario} is no file; name a scenario file such as examples/scenarios/shortage.yaml");
        return Err(Failure::Invalid(what));
    }
    scenario::read_file(path).map_err(|e| Failure::Invalid(format!("{e:#}")))
}
