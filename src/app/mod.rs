//! Wiring: from a configuration to running loops, and their orderly shutdown.
//!
//! Order of the shutdown: readiness goes off, the controllers finish running reconciles, the leases are given up (even
//! before that, if it takes long), and the servers stop. A second signal ends the process at once.

pub mod board;
pub mod compat;
mod feeds;
pub mod heartbeat;
pub mod market;
pub mod reload;
pub mod replica;
pub mod server;
pub mod uninstall;

use crate::cluster::client;
use crate::cluster::lease::ElectionSettings;
use crate::cluster::page::Page;
use crate::controllers::Context;
use crate::controllers::context::{ContextParts, Options};
use crate::policy::Settings;
use crate::telemetry::traces::{self, Exporting, Traces};
use crate::telemetry::{Telemetry, metrics};
use heartbeat::Heartbeat;
use kube::Client;
use metrics_exporter_prometheus::PrometheusHandle;
use replica::{ElectionParts, Replica};
use setu_clock::Clock;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How often the gauges are set: as often as they are scraped, because every claim is counted.
const GAUGE_PERIOD: Duration = Duration::from_secs(15);

/// The configuration of `setu run`.
pub struct Config {
    /// The policy: file and command line.
    pub policy: Settings,
    /// Path of the policy file, to watch it.
    pub policy_file: Option<PathBuf>,
    /// `spec.controllerName` of the checks that are ours.
    pub controller_name: String,
    /// Optional behaviour.
    pub options: Options,
    /// How replicas settle who leads; `None` for a sole replica.
    pub election: Option<ElectionSettings>,
    /// Address of the metrics.
    pub metrics: SocketAddr,
    /// Address of the probes.
    pub health: SocketAddr,
    /// A unique name of this process.
    pub instance: String,
    /// How traces are exported, if at all; or which setting is wrong.
    pub traces: TraceConfig,
    /// The export of traces of Setu's own work, if that is on.
    pub own_traces: Option<Exporting>,
    /// Karpenter's own metrics page, if it is to be read.
    pub karpenter_metrics: Option<Page>,
    /// Whether a gang's Events are published on its Job too.
    pub events_on_job: bool,
    /// Whether the board is served on the probes' address.
    pub board: bool,
}

/// How traces are exported, if at all; or which setting is wrong.
pub type TraceConfig = Result<Option<traces::TraceSettings>, traces::BadSetting>;

/// Why the controller did not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// Its input cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// Its input was right, but something failed.
    #[error("{0}")]
    Failed(String),
}

/// Runs the controller until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), AppError> {
    end_on_panic();
    let stop = CancellationToken::new();
    let signals = tokio::spawn(signals(Signals::listen()?, stop.clone()));
    let handle = metrics::install().map_err(|e| AppError::Failed(format!("starting metrics: {e}")))?;
    let cluster = infer_cluster().await?;
    let client = connect(cluster.clone())?;
    let elections = config.election.map(|settings| take_part(settings, cluster)).transpose()?;
    let elections_on = elections.as_ref().map(|e| e.runtime.clone());
    if config.options.tas_compat {
        compat::refuse_two_writers(&client).await?;
    }
    let (traces, exporting) = export(&config.traces);
    let watched = config.policy_file.as_deref().map(reload::WatchedFile::start).transpose()?;
    let mut policy = config.policy;
    policy.served_groups = reload::groups_that_matter(&client, &policy).await;
    let parts = ContextParts {
        client,
        clock: Clock::wall(),
        controller_name: config.controller_name.clone(),
        options: config.options,
        policy,
        telemetry: Telemetry { instance: config.instance, traces, events_on_job: config.events_on_job },
    };
    let mut replica = Replica::start(parts, elections);
    let context = replica.context();
    let served = Ports { metrics: config.metrics, health: config.health, board: config.board };
    let heartbeat = Heartbeat::start();
    served.serve((&context, &heartbeat), &handle, &stop).await?;
    follow(watched, config.karpenter_metrics, &context, &stop).await;
    tokio::spawn(gauges(context, handle));
    tracing::info!(controller_name = config.controller_name, version = env!("CARGO_PKG_VERSION"), "started");
    let elections = elections_on.map(|runtime| runtime.spawn(replica.elections(&stop)));
    heartbeat.beat_during(replica.work(&stop)).await;
    if let Some(elections) = elections {
        // They end with the work, and a panic of theirs would have ended the process.
        let _ = elections.await;
    }
    for exporting in exporting.into_iter().chain(config.own_traces) {
        exporting.finish().await;
    }
    signals.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Addresses of the metrics and of the probes.
struct Ports {
    metrics: SocketAddr,
    health: SocketAddr,
    /// Whether the board is served beside the probes.
    board: bool,
}

impl Ports {
    /// Serves metrics, probes and the board until `stop`.
    async fn serve(
        &self,
        (context, heartbeat): (&Arc<Context>, &Heartbeat),
        handle: &PrometheusHandle,
        stop: &CancellationToken,
    ) -> Result<(), AppError> {
        let metrics_server = server::bind("metrics", self.metrics).await?;
        let health_server = server::bind("health probes", self.health).await?;
        for (what, server) in [("metrics", &metrics_server), ("probes", &health_server)] {
            let address = server.local_addr().map(|a| a.to_string()).unwrap_or_default();
            tracing::info!(what, address, "listening");
        }
        tokio::spawn(server::serve(metrics_server, server::metrics(handle.clone()), stop.clone()));
        let mut health = server::health(Arc::clone(context), stop.clone());
        health = health.merge(server::liveness(heartbeat.clone()));
        if self.board {
            let address = health_server.local_addr().map(|a| a.to_string()).unwrap_or_default();
            tracing::info!(address, "the board is served as /board");
            health = health.merge(board::router(Arc::clone(context)));
        }
        tokio::spawn(server::serve(health_server, health, stop.clone()));
        Ok(())
    }
}

/// The cluster that the environment names.
async fn infer_cluster() -> Result<kube::Config, AppError> {
    kube::Config::infer().await.map_err(|e| {
        AppError::Invalid(format!(
            "cannot reach a cluster: {e}. Set KUBECONFIG to a kubeconfig file, or run in a pod with a ServiceAccount"
        ))
    })
}

fn connect(cluster: kube::Config) -> Result<Client, AppError> {
    client::connect(cluster).map_err(|e| AppError::Invalid(format!("the kubeconfig cannot be used: {e}")))
}

/// The parts that the elections need, with a thread and connections of their own.
fn take_part(settings: ElectionSettings, cluster: kube::Config) -> Result<ElectionParts, AppError> {
    let runtime = replica::election_runtime()
        .map_err(|e| AppError::Failed(format!("starting a thread for the elections: {e}")))?;
    let _entered = runtime.enter();
    Ok(ElectionParts { settings, client: connect(cluster)?, runtime: runtime.clone() })
}

/// Takes over every new policy file and every new page of Karpenter's metrics until `stop`.
async fn follow(
    policy: Option<reload::WatchedFile>,
    market: Option<Page>,
    context: &Arc<Context>,
    stop: &CancellationToken,
) {
    if let Some(file) = policy {
        tokio::spawn(reload::follow(file, Arc::clone(context), stop.clone()));
    }
    if let Some(page) = market {
        let mut follower = market::Follower::new(page, Arc::clone(context));
        // Gangs that another replica began are planned again as soon as this one leads, and must get the same plan.
        follower.read().await;
        tokio::spawn(follower.follow(stop.clone()));
    }
}

/// Starts the export of traces, if a collector is configured. A failure costs only the traces.
fn export(settings: &TraceConfig) -> (Traces, Option<Exporting>) {
    let started = match settings {
        Ok(None) => {
            tracing::info!("no trace collector is named, so no traces are exported");
            return (Traces::default(), None);
        }
        Ok(Some(settings)) => traces::start(settings).map(|started| (started, settings.transport)),
        Err(bad) => Err(bad.clone()),
    };
    match started {
        Ok(((traces, exporting), transport)) => {
            tracing::info!(?transport, "traces are exported");
            (traces, Some(exporting))
        }
        Err(bad) => {
            tracing::error!(error = %bad, "no traces are exported; fix the setting and restart");
            (Traces::lost(), None)
        }
    }
}

/// A unique name for this process, from the pod's name and the start time.
pub fn instance() -> String {
    let host = ["POD_NAME", "HOSTNAME"].iter().find_map(|name| std::env::var(name).ok());
    let started = [jiff::Timestamp::now().to_string(), std::process::id().to_string()];
    let start = crate::digest::digest(&[&started[0], &started[1]], 6);
    format!("{}-{start}", host.as_deref().unwrap_or("setu"))
}

async fn gauges(context: Arc<Context>, handle: PrometheusHandle) {
    let mut tick = tokio::time::interval(GAUGE_PERIOD);
    loop {
        tick.tick().await;
        context.set_gauges();
        // Sorts what was recorded into buckets, so that no scrape has to do it all at once.
        handle.run_upkeep();
    }
}

/// Ends the process at any panic. Nobody would miss a task that is gone, and the next start resumes exactly.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "this is a bug in Setu: the process ends, and the next start resumes every gang");
        report(panic);
        std::process::exit(1);
    }));
}

/// SIGTERM and SIGINT. Received from the start: as the first process of a container, Setu would not end by them otherwise.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn listen() -> Result<Self, AppError> {
        let listen = |kind| signal(kind).map_err(|e| AppError::Failed(format!("receiving signals: {e}")));
        Ok(Self { term: listen(SignalKind::terminate())?, int: listen(SignalKind::interrupt())? })
    }
}

/// Stops on the first SIGTERM or SIGINT, and ends the process on the second.
async fn signals(mut signals: Signals, stop: CancellationToken) {
    for again in [false, true] {
        tokio::select! {
            _ = signals.term.recv() => {}
            _ = signals.int.recv() => {}
        }
        if again {
            std::process::exit(1);
        }
        stop.cancel();
        tracing::info!("stopping");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::traces::fixtures::span;

    #[tokio::test]
    async fn a_bad_export_setting_disables_only_traces() {
        let read = |name: &'static str, value: &'static str| {
            traces::TraceSettings::read(Some("https://127.0.0.1:4317"), |asked| {
                (asked == name).then(|| value.to_owned())
            })
        };
        for settings in [
            read("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            read("OTEL_TRACES_SAMPLER", "jaeger_remote"),
            read("OTEL_BSP_MAX_QUEUE_SIZE", "x"),
            read("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere"),
        ] {
            let recorder = metrics::recorder().unwrap();
            let (traces, exporting) = export(&settings);
            assert!(exporting.is_none());
            ::metrics::with_local_recorder(&recorder, || traces.send(vec![span("a")]));
            let page = recorder.handle().render();
            assert!(page.contains("setu_trace_export_failures_total{reason=\"bad_setting\"} 1"), "{page}");
        }
    }
}
