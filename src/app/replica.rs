//! One replica of the controller: its watches, its memory and its loops, without the process around them.

use super::feeds::Feeds;
use crate::controllers::claims::{Suspects, Sweeper};
pub use crate::controllers::context::Parts;
use crate::controllers::{Context, admission_check, claims, workload};
use futures::StreamExt;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Config as Loop};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Workloads looked at at the same time.
const CONCURRENCY: u16 = 64;

/// A replica whose watches run.
pub struct Replica {
    context: Arc<Context>,
    feeds: Feeds,
}

impl Replica {
    /// Starts the watches. Nothing is decided before [`Replica::work`].
    pub fn start(parts: Parts) -> Self {
        let (feeds, context) = Feeds::start(parts);
        Self { context, feeds }
    }

    /// What the loops share.
    pub fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// Runs the loops until `stop`; looks that are under way are finished.
    pub async fn work(self, stop: &CancellationToken) {
        let Self { context, feeds } = self;
        let stores = context.stores.clone();
        let sweeper = Arc::new(Sweeper { context: Arc::clone(&context), suspects: Suspects::default() });
        let workloads = Controller::for_stream(feeds.workloads, stores.workloads)
            .with_config(Loop::default().concurrency(CONCURRENCY))
            .reconcile_on(feeds.wake_workloads)
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(workload::reconcile, workload::on_error, Arc::clone(&context));
        let checks = Controller::for_stream(feeds.checks, stores.checks)
            .reconcile_on(feeds.wake_checks)
            .graceful_shutdown_on(stop.clone().cancelled_owned())
            .run(
                admission_check::reconcile,
                |check, error, _| retry("AdmissionCheck", &kube::ResourceExt::name_any(&*check), error),
                Arc::clone(&context),
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
}

fn retry(kind: &str, name: &str, error: &crate::error::Error) -> Action {
    tracing::warn!(kind, name, error = %error, "could not finish a look");
    Action::requeue(Duration::from_secs(5))
}
