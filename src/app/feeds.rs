//! Starts one watch per kind and passes its changes to the loops that need them.

use crate::api::{AdmissionCheck, Node, NodeClaim, RawParameters, Workload};
use crate::cluster::lease::Shards;
use crate::cluster::outage::Outage;
use crate::cluster::store::{Keeping, Object, Store, differ_in_version};
use crate::cluster::watch::{FirstLists, Touched, watch, watch_keeping};
use crate::controllers::Context;
use crate::controllers::context::{ContextParts, Options, Wakers};
use crate::controllers::plan_kinds::{OnPlanChange, PlanStores};
use crate::controllers::queue::{QueueKey, Wake};
use crate::controllers::stores::{Optional, Stores};
use crate::controllers::summary::{ClaimSummary, WorkloadSummary};
use crate::controllers::workload_store::{self, Requests, Workloads};
use crate::names;
use crate::plan::PlanChange;
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::Event;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The shortest time between two wakes of the Workloads that wait for a plan: the inputs of plans change whenever a gang moves.
const PACE: Duration = Duration::from_millis(100);

/// How NodeClaims are kept.
const CLAIMS: Keeping<NodeClaim, ClaimSummary> = Keeping {
    summary: ClaimSummary::of,
    indexes: ClaimSummary::indexes,
    packed: true,
    is_heartbeat: Some(differ_in_version),
};

/// How objects are kept whose changes count only where Setu reads them.
fn without_heartbeats<K: Object + PartialEq>() -> Keeping<K, ()> {
    Keeping { is_heartbeat: Some(differ_in_version), ..Keeping::default() }
}

/// Objects to reconcile, one after the other.
type Wakes = BoxStream<'static, Wake>;

/// The inputs of the loops.
pub struct Feeds {
    /// Workloads to reconcile.
    pub workloads: Wakes,
    /// AdmissionChecks to reconcile.
    pub checks: Wakes,
    /// NodeClaims to reconcile.
    pub claims: Wakes,
    /// ProvisioningParameters to reconcile.
    pub parameters: Wakes,
}

impl Feeds {
    /// Starts every watch.
    pub fn start(parts: ContextParts, shards: Shards, outage: Outage) -> (Self, Arc<Context>) {
        let (client, options, lists) = (parts.client.clone(), parts.options, FirstLists::default());
        let (sender, of_plans) = unbounded_channel();
        let plans = Plans(sender);
        let mut watches = Watches { client, lists: lists.clone(), reactions: Vec::new() };
        let (stores, changes) = watches.start(options, &plans);
        let (wake, woken) = wakers(plans.0.clone());
        let context = Arc::new(Context::new(parts, shards, stores, (lists, wake, outage)));
        // The context has a sender, so it must not be kept by the receiver.
        let waking = Arc::downgrade(&context);
        tokio::spawn(at_most_every(PACE, of_plans, move |change| {
            if let Some(context) = waking.upgrade() {
                context.wake_waiting(change);
            }
        }));
        watches.reactions.into_iter().for_each(|start| start(&context));
        let feeds = Self {
            workloads: wakes(changes.workloads, woken.workloads, &context, Context::workload_touched),
            checks: wakes(changes.checks, woken.checks, &context, Context::check_touched),
            claims: wakes(changes.claims, woken.claims, &context, Context::claim_touched),
            parameters: wakes(changes.parameters, woken.parameters, &context, parameters_touched),
        };
        (feeds, context)
    }
}

/// The changes of the kinds that are reconciled.
struct Changes {
    workloads: Touched<Workload, WorkloadSummary>,
    checks: Touched<AdmissionCheck>,
    claims: Touched<NodeClaim, ClaimSummary>,
    parameters: Touched<RawParameters>,
}

/// Objects to reconcile for another reason than a change.
struct Woken {
    workloads: UnboundedReceiver<Wake>,
    checks: UnboundedReceiver<ObjectRef<AdmissionCheck>>,
    claims: UnboundedReceiver<ObjectRef<NodeClaim>>,
    parameters: UnboundedReceiver<ObjectRef<RawParameters>>,
}

fn wakers(plan: UnboundedSender<PlanChange>) -> (Wakers, Woken) {
    let (workload, workloads) = unbounded_channel();
    let (check, checks) = unbounded_channel();
    let (claim, claims) = unbounded_channel();
    let (parameters, woken) = unbounded_channel();
    (
        Wakers { workload, claim, check, parameters, plan },
        Woken { workloads, checks, claims, parameters: woken },
    )
}

/// Starts to act on the changes of a kind.
type Reaction = Box<dyn FnOnce(&Arc<Context>)>;

/// Starts watches, and keeps what follows from their changes until there is a context.
struct Watches {
    client: Client,
    lists: FirstLists,
    reactions: Vec<Reaction>,
}

impl Watches {
    /// Watches every kind.
    fn start(&mut self, options: Options, plans: &Plans) -> (Stores, Changes) {
        let (client, lists) = (self.client.clone(), self.lists.clone());
        let (all, open) = (Config::default, Some(&lists));
        // Kinds with thousands of objects are kept packed.
        let workloads =
            watch_keeping("workloads", Api::all(client.clone()), all(), open, workload_store::WORKLOADS);
        let checks = watch("admissionchecks", Api::all(client.clone()), all(), open);
        // Without permission to read a required kind nothing starts, so these two are watched only where they are needed.
        let serves_requests = options.provisioning_requests;
        let topologies = if options.tas_compat || serves_requests {
            self.required("topologies", all(), |_, _| {})
        } else {
            Store::default()
        };
        let (requests, all_workloads) = self.requests(serves_requests, workloads.store);
        let plan = PlanStores::watch(&client, &lists, &mut PlanReactions { watches: self, plans });
        let ours = all().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let claims = watch_keeping("nodeclaims", Api::all(client.clone()), ours, open, CLAIMS);
        let nodes = self.nodes();
        let limit_ranges = self.required("limitranges", all(), plans.on_change());
        let local_queues = self.optional("localqueues", plans.on_change());
        let cohorts = self.optional("cohorts", plans.on_change());
        let namespaces = self.optional("namespaces", plans.on_change());
        let parameters = watch("provisioningparameters", Api::all(client), all(), None);
        self.warnings();
        let stores = Stores {
            plan,
            workloads: all_workloads,
            requests: Arc::new(requests),
            checks: checks.store,
            topologies,
            claims: claims.store,
            nodes,
            limit_ranges,
            local_queues,
            cohorts,
            namespaces,
            parameters: parameters.store,
        };
        let changes = Changes {
            workloads: workloads.touched,
            checks: checks.touched,
            claims: claims.touched,
            parameters: parameters.touched,
        };
        (stores, changes)
    }

    /// Watches a kind that must be listed before anything is reconciled.
    fn required<K: Object + PartialEq + Debug + Send + Sync + 'static>(
        &mut self,
        kind: &'static str,
        config: Config,
        act: impl FnMut(&Context, &K) + Send + 'static,
    ) -> Store<K> {
        let lists = Some(&self.lists);
        let watched = watch_keeping(kind, Api::all(self.client.clone()), config, lists, without_heartbeats());
        self.react(watched.touched, act);
        watched.store
    }

    /// Watches a kind that the controller can do without.
    fn optional<K: Object + PartialEq + Debug + Send + Sync + 'static>(
        &mut self,
        kind: &'static str,
        act: impl FnMut(&Context, &K) + Send + 'static,
    ) -> Optional<K> {
        let (api, all) = (Api::all(self.client.clone()), Config::default());
        let watched = watch_keeping(kind, api, all, None, without_heartbeats());
        self.react(watched.touched, act);
        Optional { store: watched.store, listed: watched.listed }
    }

    /// Watches requests if they are served, and joins the Workloads of both front-ends.
    fn requests(
        &mut self,
        are_served: bool,
        of_kueue: Store<Workload, WorkloadSummary>,
    ) -> (Requests, Workloads) {
        let (requests, changes) = workload_store::watch(&self.client, are_served.then_some(&self.lists));
        if let Some(changes) = changes {
            self.react(changes, Context::request_touched);
        }
        Requests::new(requests, of_kueue)
    }

    /// Watches the Nodes of gangs.
    fn nodes(&mut self) -> Store<Node> {
        let keeping = Keeping { packed: true, ..without_heartbeats() };
        let of_gangs = Config::default().labels(names::GANG);
        let (api, lists) = (Api::all(self.client.clone()), Some(&self.lists));
        let watched = watch_keeping("nodes", api, of_gangs, lists, keeping);
        self.react(watched.touched, Context::node_touched);
        watched.store
    }

    /// Watches the Events on NodeClaims: Karpenter reports a claim that found no capacity only there.
    fn warnings(&mut self) {
        let of_claims = Config::default().fields("involvedObject.kind=NodeClaim,type=Warning");
        let api = Api::namespaced(self.client.clone(), "default");
        let watched = watch("events", api, of_claims, Some(&self.lists));
        self.react(watched.touched, warned);
    }

    fn react<K: Object + Send + Sync + 'static, G: Send + Sync + 'static>(
        &mut self,
        changes: Touched<K, G>,
        act: impl FnMut(&Context, &K) + Send + 'static,
    ) {
        self.reactions.push(Box::new(|context| spawn(changes, context, act)));
    }
}

/// Changed objects, after `note`, and objects that are woken for another reason.
fn wakes<K: Object + Send + Sync + 'static, G: Send + Sync + 'static>(
    touched: Touched<K, G>,
    woken: UnboundedReceiver<impl Into<Wake> + Send + 'static>,
    context: &Arc<Context>,
    note: impl Fn(&Context, &K) + Send + 'static,
) -> Wakes {
    let context = Arc::clone(context);
    let touched = stream::unfold(touched, |mut t| async move { t.recv().await.map(|object| (object, t)) });
    let touched = touched.map(move |object| {
        note(&context, &object);
        Wake::from(QueueKey::of(&*object))
    });
    let woken = stream::unfold(woken, |mut w| async move { w.recv().await.map(|object| (object, w)) });
    stream::select(touched, woken.map(Into::into)).boxed()
}

fn spawn<K: Object + Send + Sync + 'static, G: Send + Sync + 'static>(
    mut touched: Touched<K, G>,
    context: &Arc<Context>,
    mut act: impl FnMut(&Context, &K) + Send + 'static,
) {
    let context = Arc::clone(context);
    tokio::spawn(async move {
        while let Some(item) = touched.recv().await {
            act(&context, &item);
        }
    });
}

/// Signals changes of what plans are made from. Workloads that may get a plan by them are reconciled again.
#[derive(Clone)]
struct Plans(UnboundedSender<PlanChange>);

impl Plans {
    fn may_change(&self, change: PlanChange) {
        // Fails only while the process ends.
        let _ = self.0.send(change);
    }

    /// Signals for every object.
    fn on_change<K>(&self) -> impl FnMut(&Context, &K) + Send + use<K> {
        let plans = self.clone();
        move |_, _| plans.may_change(PlanChange::Other)
    }
}

/// Signals for changes of what plans are made from.
struct PlanReactions<'w> {
    watches: &'w mut Watches,
    plans: &'w Plans,
}

impl OnPlanChange for PlanReactions<'_> {
    fn on_change<K: Object + Send + Sync + 'static>(
        &mut self,
        touched: Touched<K>,
        mut change: impl FnMut(&K) -> Option<PlanChange> + Send + 'static,
    ) {
        let plans = self.plans.clone();
        self.watches.react(touched, move |_, object| {
            if let Some(change) = change(object) {
                plans.may_change(change);
            }
        });
    }
}

/// Acts on a change, and once for all equal changes within a period after that, until no sender is left.
async fn at_most_every(
    period: Duration,
    mut changes: UnboundedReceiver<PlanChange>,
    act: impl Fn(PlanChange),
) {
    while let Some(first) = changes.recv().await {
        let mut all = BTreeSet::from([first]);
        while let Ok(another) = changes.try_recv() {
            all.insert(another);
        }
        // It wakes those that the rest would wake.
        match all.take(&PlanChange::Other) {
            Some(other) => act(other),
            None => all.into_iter().for_each(&act),
        }
        tokio::time::sleep(period).await;
    }
}

fn parameters_touched(context: &Context, parameters: &RawParameters) {
    for check in context.stores.checks.state() {
        if check.parameters_name() == parameters.metadata.name.as_deref() {
            context.wake.check(&check);
        }
    }
}

fn warned(context: &Context, event: &Event) {
    let name = event.involved_object.name.as_deref().unwrap_or_default();
    let reason = event.reason.as_deref().unwrap_or_default();
    let message = event.message.as_deref().unwrap_or_default();
    if name.starts_with(names::CLAIM_PREFIX) {
        context.on_claim_warning(name, reason, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn the_first_change_acts_at_once_and_later_ones_together() {
        let ((sender, receiver), start) = (unbounded_channel(), Instant::now());
        let (plans, seen) = (Plans(sender), RefCell::new(Vec::new()));
        let acts = at_most_every(PACE, receiver, |change| {
            seen.borrow_mut().push((change, start.elapsed().as_millis()));
        });
        let changes = async move {
            for _ in 0..15 {
                plans.may_change(PlanChange::QuotaUsage);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(PACE * 5).await;
            plans.may_change(PlanChange::QuotaUsage);
            tokio::time::sleep(Duration::from_millis(10)).await;
            for change in [PlanChange::QuotaUsage, PlanChange::NodePoolUsage] {
                plans.may_change(change);
            }
            tokio::time::sleep(PACE).await;
            for change in [PlanChange::QuotaUsage, PlanChange::Other] {
                plans.may_change(change);
            }
            tokio::time::sleep(PACE).await;
        };
        tokio::join!(acts, changes);
        let (pool, queue) = (PlanChange::NodePoolUsage, PlanChange::QuotaUsage);
        let all = [
            (queue, 0),
            (queue, 100),
            (queue, 200),
            (queue, 650),
            (pool, 750),
            (queue, 750),
            (PlanChange::Other, 850),
        ];
        assert_eq!(*seen.borrow(), all);
    }
}
