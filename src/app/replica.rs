//! One replica of the controller: its watches, its memory and its loops, without the process around them.

use super::feeds::Feeds;
use crate::cluster::lease::{ElectionSettings, Elector, Shards};
use crate::cluster::outage::Outage;
use crate::cluster::time::timed;
use crate::controllers::claims::{Failures, MissingChecks, SWEEP_FLOW, SeenUids, Sweeper};
use crate::controllers::context::ContextParts;
use crate::controllers::queue::{self, Action, QueueKey, QueueLimits};
use crate::controllers::{Context, admission_check, claims, parameters, stray_nodes, workload};
use crate::telemetry::metrics;
use crate::telemetry::traces::own;
use futures::future::{BoxFuture, join_all, select};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Client;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;
use tracing::field::Empty;

/// Objects of one kind that are reconciled at the same time.
const AT_ONCE: QueueLimits = QueueLimits { all: 512, flow: 32, first: 512 };
const ONE: QueueLimits = QueueLimits { all: 1, flow: 1, first: 0 };
/// How long the leases wait for running reconciles after `stop`: another replica should lead within a second.
const LAST_RECONCILES: Duration = Duration::from_millis(400);
/// When a failed reconcile of a check or of parameters is repeated.
const RETRY: Duration = Duration::from_secs(5);

/// A replica whose watches run.
pub struct Replica {
    context: Arc<Context>,
    feeds: Feeds,
    electors: Vec<Elector>,
    /// Cancelled once no reconcile is running, or the leases no longer wait for it.
    idle: CancellationToken,
}

/// How a replica takes part in the elections.
pub struct ElectionParts {
    /// Whose Leases, and how often they are renewed.
    pub settings: ElectionSettings,
    /// The API server client, made on `runtime`: its connections are served there.
    pub client: Client,
    /// Where [`Replica::elections`] runs. It has threads of its own: a reconcile may compute for seconds, and a Lease
    /// that is not renewed meanwhile is lost, with everything kept in memory about its gangs.
    pub runtime: Handle,
}

/// A runtime on a thread of its own, for [`ElectionParts::runtime`]. It lasts as long as the process.
pub fn election_runtime() -> std::io::Result<Handle> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("elections".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    Ok(handle)
}

impl Replica {
    /// Starts the watches. Nothing is decided before [`Replica::work`]. Without an election it acts for all shards. Must
    /// be called within a tokio runtime.
    pub fn start(mut parts: ContextParts, election: Option<ElectionParts>) -> Self {
        let outage = Outage::default();
        let (electors, shards) = match election {
            None => (Vec::new(), Shards::sole()),
            Some(ElectionParts { settings, client, runtime }) => {
                let _entered = runtime.enter();
                Elector::enter(&timed(&outage.observe(&client), &parts.clock), settings, &parts.clock)
            }
        };
        parts.client = timed(&outage.observe(&parts.client), &parts.clock);
        let (feeds, context) = Feeds::start(parts, shards, outage);
        Self { context, feeds, electors, idle: CancellationToken::new() }
    }

    /// The context that the loops share.
    pub fn context(&self) -> Arc<Context> {
        Arc::clone(&self.context)
    }

    /// Takes part in the elections once everything is listed: before that, this replica could not act for a shard that it
    /// leads. Gives the leases up once [`Self::work`] is done, or shortly after `stop` if running reconciles take longer.
    /// Runs on the runtime of [`ElectionParts`].
    pub fn elections(&mut self, stop: &CancellationToken) -> impl Future<Output = ()> + Send + 'static {
        let (electors, idle, stop) = (std::mem::take(&mut self.electors), self.idle.clone(), stop.clone());
        let lists = self.context.first_lists.clone();
        let taking_part = {
            let idle = idle.clone();
            async move {
                if idle.run_until_cancelled(lists.complete()).await.is_some() {
                    join_all(electors.into_iter().map(|elector| elector.run(idle.clone()).boxed())).await;
                }
            }
        };
        let late = async move {
            stop.cancelled().await;
            tokio::time::sleep(LAST_RECONCILES).await;
            idle.cancel();
            std::future::pending::<()>().await;
        };
        select(taking_part.boxed(), late.boxed()).map(drop)
    }

    /// Runs the loops, which act for the shards that this replica leads, until `stop`. Running reconciles are finished, but
    /// their writes are refused once the leases are given up.
    pub async fn work(self, stop: &CancellationToken) {
        let Self { context, feeds, idle, .. } = self;
        let loops = async {
            loops(feeds, &context, stop).await;
            idle.cancel();
        };
        let leaderships = async {
            join_all((0..context.shards.count()).map(|shard| follow_leadership(&context, shard))).await;
        };
        run_all([loops.boxed(), leaderships.boxed()]).await;
    }
}

/// Follows whether this replica leads a shard, while it takes part in the election.
async fn follow_leadership(context: &Context, shard: usize) {
    let Some(mut leadership) = context.shards.all().nth(shard).cloned() else { return };
    let label = (context.shards.count() > 1).then_some(shard);
    metrics::leader(label, leadership.leads());
    while let Some(term) = leadership.changed().await {
        metrics::leader(label, term.is_some());
        context.on_leadership_change(shard, term);
    }
}

/// Runs the loops until `stop`.
async fn loops(feeds: Feeds, context: &Arc<Context>, stop: &CancellationToken) {
    let sweeper = Arc::new(Sweeper {
        context: Arc::clone(context),
        suspects: SeenUids::default(),
        missing_checks: MissingChecks::default(),
        ended: SeenUids::default(),
        failures: Failures::default(),
    });
    // An object that is not listed yet would count as missing.
    let listed = context.first_lists.complete().shared();
    let opened = async {
        listed.clone().await;
        context.mirror_requests();
        context.wait_for_begun(|uid| context.acts_for(uid));
    };
    let workloads = queue::work(
        queue::buffered_until(feeds.workloads, opened),
        AT_ONCE,
        |key| workload::flow(key, context),
        |key| reconcile_workload(key, context),
        stop,
    );
    let checks = queue::work(feeds.checks, ONE, QueueKey::flow, |key| reconcile_check(key, context), stop);
    let claims = queue::work(
        queue::buffered_until(feeds.claims, listed.clone()),
        AT_ONCE,
        QueueKey::flow,
        |key| reconcile_claim(key, &sweeper),
        stop,
    );
    let named =
        queue::work(feeds.parameters, ONE, QueueKey::flow, |key| reconcile_parameters(key, context), stop);
    // The result of each reconcile is logged where it ends.
    run_all([
        workloads.boxed(),
        checks.boxed(),
        claims.boxed(),
        named.boxed(),
        sweeper.sweep(stop).boxed(),
        stray_nodes::sweep(context, stop).boxed(),
    ])
    .await;
}

/// Runs all of these to their ends. Each has a waker of its own: what wakes one does not poll the others.
async fn run_all<const N: usize>(all: [BoxFuture<'_, ()>; N]) {
    all.into_iter().collect::<FuturesUnordered<_>>().collect::<()>().await;
}

async fn reconcile_workload(key: QueueKey, context: &Arc<Context>) -> Action {
    let Some(workload) = context.stores.workloads.get(&key.object()) else {
        context.waiting().served(&key, Instant::now());
        return Action::await_change();
    };
    let reconcile = workload::reconcile(Arc::clone(&workload), Arc::clone(context)).boxed();
    let queue = workload.local_queue();
    let reconcile = context.writes.within(&queue, reconcile);
    let action = match measured(("workload", &key), reconcile).await {
        Ok(action) => action,
        Err(error) => workload::on_error(&workload, &error, context),
    };
    context.forget_if_over(&workload);
    action
}

async fn reconcile_check(key: QueueKey, context: &Arc<Context>) -> Action {
    let Some(check) = context.stores.checks.get(&key.object()) else {
        return Action::await_change();
    };
    let reconcile = Box::pin(admission_check::reconcile(check, Arc::clone(context)));
    let result = measured(("admissioncheck", &key), reconcile).await;
    result.unwrap_or_else(|error| retry(context, ("AdmissionCheck", &key), &error, RETRY))
}

async fn reconcile_claim(key: QueueKey, sweeper: &Arc<Sweeper>) -> Action {
    let reconcile = Box::pin(claims::reconcile(key.object(), Arc::clone(sweeper)));
    match measured(("nodeclaim", &key), sweeper.context.writes.within(SWEEP_FLOW, reconcile)).await {
        Ok(action) => {
            sweeper.failures.clear(&key.name);
            action
        }
        Err(error) => retry(&sweeper.context, ("NodeClaim", &key), &error, sweeper.failures.note(&key.name)),
    }
}

async fn reconcile_parameters(key: QueueKey, context: &Arc<Context>) -> Action {
    let Some(object) = context.stores.parameters.get(&key.object()) else {
        return Action::await_change();
    };
    let result =
        measured(("provisioningparameters", &key), parameters::reconcile(object, Arc::clone(context))).await;
    result.unwrap_or_else(|error| retry(context, ("ProvisioningParameters", &key), &error, RETRY))
}

/// Measures a reconcile of this controller, and traces it.
async fn measured<E: Display>(
    (controller, key): (&'static str, &QueueKey),
    reconcile: impl Future<Output = Result<Action, E>>,
) -> Result<Action, E> {
    let began = Instant::now();
    let span = tracing::info_span!(
        target: own::TARGET, parent: None, "reconcile",
        setu.controller = controller, setu.namespace = key.namespace, setu.name = key.name, trace_id = Empty,
    );
    own::identify(&span);
    let result = reconcile.instrument(span.clone()).await;
    if let Err(error) = &result {
        own::failed(&span, error);
    }
    metrics::reconciled(controller, result.is_ok(), began.elapsed());
    result
}

/// Logs that a reconcile failed. It is repeated after this wait.
fn retry(
    context: &Context,
    (kind, key): (&str, &QueueKey),
    error: &crate::error::Error,
    wait: Duration,
) -> Action {
    if context.is_quiet_about(error) {
        tracing::debug!(kind, name = key.name, error = %error.in_full(), "failed to reconcile");
    } else {
        tracing::warn!(kind, name = key.name, error = %error.in_full(), "failed to reconcile");
    }
    Action::requeue(wait)
}
