//! `setu demo`: runs the real controller in the embedded cluster, and shows it.

mod chosen;
mod live;
mod serve;
mod summary;

use super::CliError;
use crate::names;
use crate::policy::PolicyFile;
use crate::sim::cluster::SimCluster;
use crate::sim::embedded::EmbeddedTheatre;
use crate::sim::scenario::{self, Run};
use crate::sim::show::{Spectator, play::Play, speed};
use jiff::Timestamp;
use live::Screen;
use serve::DemoServer;
use setu_clock::Clock;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Printed when Setu is killed after a write.
const KILLED: &str = "— Setu is killed right after this write, and starts again";
/// Lowest speed. A second of the demo takes up to 50 seconds; much lower speeds would overflow.
const SLOWEST: f64 = 0.02;
/// How often the screen is redrawn while a scenario is played.
const DRAW: Duration = Duration::from_millis(100);

/// Shows Setu at work in an embedded cluster: no Kubernetes is needed.
///
/// Example: setu demo --speed 4
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A scenario to play instead, such as shortage, or a scenario file; `list` shows the names.
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// How many times as fast as the wall clock time goes; 0 means as fast as the machine can.
    #[arg(long, default_value_t = 2.0)]
    speed: f64,
    /// Seed of the random numbers: the same seed repeats the run exactly.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serve the cluster to kubectl at this address, in real time and until Ctrl-C.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "speed")]
    serve: Option<SocketAddr>,
}

impl Args {
    /// Runs the demo to its end.
    pub async fn run(self) -> Result<(), CliError> {
        if !self.speed.is_finite() || (self.speed != 0.0 && self.speed < SLOWEST) {
            return Err(CliError::Invalid(format!(
                "--speed {}: give 0 or a number from {SLOWEST} on",
                self.speed
            )));
        }
        if self.scenario.as_deref() == Some(chosen::LIST) {
            super::print(&chosen::list()?);
            return Ok(());
        }
        let runs = self.scenario.as_deref().map(chosen::runs).transpose()?;
        let server = self.serve.map(DemoServer::bind).transpose()?;
        // Virtual time needs a separate runtime with one thread.
        let shown = tokio::task::spawn_blocking(move || self.show(runs, server));
        shown.await.map_err(|e| CliError::Failed(format!("the demo broke off: {e}")))?
    }

    fn show(&self, runs: Option<Vec<Run>>, server: Option<DemoServer>) -> Result<(), CliError> {
        let runs = runs.unwrap_or_default();
        match (runs.first(), server) {
            (None, server) => self.on_stage(self.play(server))?,
            (Some(first), Some(server)) => {
                let name = self.scenario.as_deref().unwrap_or_default();
                if let Some(what) = chosen::left_out(name, &runs) {
                    super::print(&format!("{what}\n"));
                }
                self.on_stage(self.scenario(first, None, Some(server)))?;
            }
            (Some(_), None) => runs.iter().try_for_each(|run| self.lives(run))?,
        }
        super::print(summary::DEEPER);
        Ok(())
    }

    /// Plays a run. Then, if the scenario asks for it, plays it again for each write, with Setu killed right after that write.
    fn lives(&self, run: &Run) -> Result<(), CliError> {
        let writes = self.on_stage(self.scenario(run, None, None))?;
        let kills = if run.scenario.kill_after_each_write { writes } else { 0 };
        (1..=kills).try_for_each(|write| {
            super::print(&format!("\nkilled right after write {write} of {kills}: "));
            self.on_stage(self.scenario(run, Some(write), None)).map(drop)
        })
    }

    /// Runs a future in virtual time, or in real time if the cluster is served to kubectl.
    fn on_stage<T>(&self, show: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        let paused = self.serve.is_none();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(paused).build();
        let runtime = runtime.map_err(|e| CliError::Failed(format!("no runtime: {e}")))?;
        runtime.block_on(async {
            if paused && self.speed > 0.0 {
                tokio::spawn(speed::keep(self.speed));
            }
            show.await
        })
    }

    fn clock(&self) -> Clock {
        if self.serve.is_some() {
            // kubectl computes ages from its own clock.
            return Clock::wall();
        }
        // A fixed date, so that a run is reproducible to the byte.
        Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap_or(Timestamp::UNIX_EPOCH))
    }

    fn cluster(&self, controller_name: &str, policy: PolicyFile, clock: &Clock) -> (SimCluster, Spectator) {
        let cluster = SimCluster::start(self.seed, clock, controller_name, policy);
        let spectator = Spectator::default();
        cluster.server.observe(Box::new(spectator.clone()));
        (cluster, spectator)
    }

    async fn play(&self, server: Option<DemoServer>) -> Result<(), CliError> {
        let policy = Play::policy().map_err(CliError::Failed)?;
        let (cluster, spectator) = self.cluster(names::CONTROLLER_NAME, policy, &self.clock());
        let mut play = Play::new(cluster, spectator.clone()).map_err(CliError::Failed)?;
        let keeps_open = server.is_some();
        let _kubeconfig = server.map(|server| server.serve(play.cluster())).transpose()?;
        let mut screen = Screen::new(std::io::stdout().is_terminal());
        let shown = async {
            play.play(|spectator| screen.draw(spectator)).await;
            if keeps_open {
                screen.print_above(
                    "the demo's own gangs are over; apply yours now. The cluster runs until Ctrl-C",
                );
                play.go_on(|spectator| screen.draw(spectator)).await;
            }
        };
        unless_interrupted(keeps_open, shown).await;
        screen.close();
        super::print(&summary::text(&spectator.gangs(), columns()));
        Ok(())
    }

    /// Plays a run, with Setu killed right after the given write, if any. Returns how many writes Setu made, or 0
    /// if it was killed or interrupted.
    async fn scenario(
        &self,
        run: &Run,
        kill_after: Option<u64>,
        server: Option<DemoServer>,
    ) -> Result<u64, CliError> {
        let invalid = |e: anyhow::Error| CliError::Invalid(format!("{e:#}"));
        let clock = self.clock();
        let policy = scenario::policy(run, clock.now()).map_err(invalid)?;
        let policy: PolicyFile = serde_yaml::from_str(&policy)
            .map_err(|e| CliError::Invalid(format!("the policy of {}: {e}", run.title)))?;
        let (mut cluster, spectator) = self.cluster(&scenario::controller_name(run), policy, &clock);
        let witness = spectator.clone();
        cluster.on_fault(Arc::new(move |_, _| witness.announce(clock.now(), KILLED)));
        super::print(&format!("{}\n", run.title));
        let keeps_open = server.is_some();
        let _kubeconfig = server.map(|server| server.serve(&cluster)).transpose()?;
        let mut screen = Screen::new(std::io::stdout().is_terminal());
        let mut world =
            scenario::ScenarioWorld::new(EmbeddedTheatre::new(cluster), run).await.map_err(invalid)?;
        let mut played = None;
        let shown = async {
            let mut playing = std::pin::pin!(scenario::play(&mut world, run, kill_after));
            played = Some(loop {
                tokio::select! {
                    biased;
                    played = &mut playing => break played,
                    () = tokio::time::sleep(DRAW) => screen.draw(&spectator),
                }
            });
            screen.draw(&spectator);
            if keeps_open {
                screen.print_above("the scenario is over; the cluster stays until Ctrl-C");
                loop {
                    tokio::time::sleep(DRAW).await;
                    screen.draw(&spectator);
                }
            }
        };
        unless_interrupted(keeps_open, shown).await;
        screen.close();
        super::print(&summary::text(&spectator.gangs(), columns()));
        played.map_or(Ok(0), |played| played.map_err(|e| CliError::Failed(format!("{e:#}"))))
    }
}

/// Width of the terminal, if standard output is one.
fn columns() -> Option<usize> {
    let width = std::io::stdout().is_terminal().then(terminal_size::terminal_size)??.0;
    Some(usize::from(width.0))
}

/// Waits for the end of the future. With `keeps_open`, Ctrl-C ends it too.
async fn unless_interrupted(keeps_open: bool, show: impl Future<Output = ()>) {
    let interrupted = async {
        if !keeps_open || tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = interrupted => {}
        () = show => {}
    }
}
