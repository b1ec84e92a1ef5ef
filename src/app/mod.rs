//! Wiring: from a configuration to running loops, and their orderly end.
//!
//! Order at the end: readiness goes off, the controllers finish what they are doing, the servers stop.
//! A second signal ends the process at once.

mod feeds;
mod server;

use crate::cluster::client;
use crate::controllers::claims::{Suspects, Sweeper};
use crate::controllers::{Context, admission_check, claims, workload};
use crate::policy::PolicyFile;
use crate::telemetry::metrics;
use feeds::Feeds;
use futures::StreamExt;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config as Loop};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Workloads looked at at the same time.
const CONCURRENCY: u16 = 64;
/// Period in which gauges are set anew from what is known.
const GAUGE_PERIOD: Duration = Duration::from_secs(5);

/// Everything `setu run` was told.
pub struct Config {
    /// The policy.
    pub policy: PolicyFile,
    /// `spec.controllerName` of the checks that are ours.
    pub controller_name: String,
    /// Address of the metrics.
    pub metrics: SocketAddr,
    /// Address of the probes.
    pub health: SocketAddr,
}

/// Why the controller did not run.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// What it was given cannot be used.
    #[error("{0}")]
    Invalid(String),
    /// It was right, and did not work.
    #[error("{0}")]
    Failed(String),
}

/// Runs the controller until SIGTERM or SIGINT.
pub async fn run(config: Config) -> Result<(), AppError> {
    let stop = CancellationToken::new();
    let handle = metrics::install().map_err(|e| AppError::Failed(format!("starting metrics: {e}")))?;
    let kube_config = kube::Config::infer().await.map_err(|e| {
        AppError::Invalid(format!(
            "no way to a cluster: {e}. Set KUBECONFIG to a kubeconfig file, or run in a pod with a ServiceAccount"
        ))
    })?;
    let client = client::connect(kube_config)
        .map_err(|e| AppError::Invalid(format!("the kubeconfig cannot be used: {e}")))?;
    let (feeds, context) = Feeds::start(client, config.controller_name.clone(), config.policy);
    let metrics_server = server::bind("metrics", config.metrics).await?;
    let health_server = server::bind("health probes", config.health).await?;
    for (what, server) in [("metrics", &metrics_server), ("probes", &health_server)] {
        let address = server.local_addr().map(|a| a.to_string()).unwrap_or_default();
        tracing::info!(what, address, "listening");
    }
    tokio::spawn(server::serve(metrics_server, server::metrics(handle), stop.clone()));
    tokio::spawn(server::serve(
        health_server,
        server::health(Arc::clone(&context), stop.clone()),
        stop.clone(),
    ));
    tokio::spawn(gauges(Arc::clone(&context)));
    tracing::info!(controller_name = config.controller_name, version = env!("CARGO_PKG_VERSION"), "started");
    let signals = tokio::spawn(signals(stop.clone()));
    loops(feeds, &context, &stop).await;
    signals.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Runs the three controllers until they are told to stop.
async fn loops(feeds: Feeds, context: &Arc<Context>, stop: &CancellationToken) {
    let stores = context.stores.clone();
    let sweeper = Arc::new(Sweeper { context: Arc::clone(context), suspects: Suspects::default() });
    let workloads = Controller::for_stream(feeds.workloads, stores.workloads)
        .with_config(Loop::default().concurrency(CONCURRENCY))
        .reconcile_on(feeds.wake_workloads)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(workload::reconcile, workload::on_error, Arc::clone(context));
    let checks = Controller::for_stream(feeds.checks, stores.checks)
        .reconcile_on(feeds.wake_checks)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(
            admission_check::reconcile,
            |check, error, _| retry("AdmissionCheck", &kube::ResourceExt::name_any(&*check), error),
            Arc::clone(context),
        );
    let orphans = Controller::for_stream(feeds.claims, stores.claims)
        .with_config(Loop::default().concurrency(CONCURRENCY))
        .reconcile_on(feeds.wake_claims)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(
            claims::reconcile,
            |claim, error, _| retry("NodeClaim", &kube::ResourceExt::name_any(&*claim), error),
            sweeper,
        );
    // What came of each look is logged where it is taken.
    tokio::join!(
        workloads.for_each(|_| async {}),
        checks.for_each(|_| async {}),
        orphans.for_each(|_| async {}),
    );
}

fn retry(kind: &str, name: &str, error: &crate::error::Error) -> Action {
    tracing::warn!(kind, name, error = %error, "could not finish a look");
    Action::requeue(Duration::from_secs(5))
}

async fn gauges(context: Arc<Context>) {
    let mut tick = tokio::time::interval(GAUGE_PERIOD);
    loop {
        tick.tick().await;
        metrics::gangs(&context.board().by_state());
    }
}

/// Stops on the first SIGTERM or SIGINT, and ends the process on the second.
async fn signals(stop: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be received; end the process with SIGKILL");
        return;
    };
    for again in [false, true] {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if again {
            std::process::exit(1);
        }
        tracing::info!("stopping");
        stop.cancel();
    }
}
