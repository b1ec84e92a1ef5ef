//! Starts one watch per kind and passes its changes to the loops that need them.

use super::replica::Parts;
use crate::api::{AdmissionCheck, Cohort, LocalQueue, Namespace, NodePool, RawParameters, Topology};
use crate::cluster::lease::Shards;
use crate::cluster::outage::Outage;
use crate::cluster::store::{Keeping, Object};
use crate::cluster::watch::{Gates, Touched, watch, watch_keeping};
use crate::controllers::Context;
use crate::controllers::context::{Optional, Stores, Wakers};
use crate::controllers::plan_kinds::{PlanChanges, PlanStores};
use crate::controllers::queue::Key;
use crate::controllers::summary::{ClaimSummary, WorkloadSummary};
use crate::controllers::workloads::{self, Requests};
use crate::names;
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::api::core::v1::{Event, LimitRange};
use kube::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::Config;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::watch;

/// How often all that wait for a plan are woken: what plans are made from changes with every gang that moves.
const PACE: Duration = Duration::from_millis(100);

/// Keys to reconcile, one after the other.
type Wakes = BoxStream<'static, Key>;

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
    pub fn start(parts: Parts, shards: Shards, outage: Outage) -> (Self, Arc<Context>) {
        let client = &parts.client;
        let gates = Gates::default();
        let all = Config::default;
        let ours = || Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let of_gangs = || Config::default().labels(names::GANG);
        let open = Some(&gates);
        // Kinds with thousands of objects are kept packed.
        let workloads = Keeping { summary: WorkloadSummary::of, index: |_| "", packed: true };
        let workloads = watch_keeping("workloads", Api::all(client.clone()), all(), open, workloads);
        let checks = watch::<AdmissionCheck>("admissionchecks", Api::all(client.clone()), all(), open);
        // Without permission to read them nothing starts, so they are watched only where they count.
        let serves_requests = parts.options.provisioning_requests;
        let topologies = (parts.options.tas_compat || serves_requests)
            .then(|| watch::<Topology>("topologies", Api::all(client.clone()), all(), open));
        let (requests, of_requests) = workloads::watch(client, serves_requests.then_some(&gates));
        let (requests, all_workloads) = Requests::new(requests, workloads.store);
        let (plan, changes) = PlanStores::watch(client, &gates);
        let claims = Keeping { summary: ClaimSummary::of, index: ClaimSummary::workload_uid, packed: true };
        let claims = watch_keeping("nodeclaims", Api::all(client.clone()), ours(), open, claims);
        let nodes = Keeping { packed: true, ..Keeping::default() };
        let nodes = watch_keeping("nodes", Api::all(client.clone()), of_gangs(), open, nodes);
        let limit_ranges = watch::<LimitRange>("limitranges", Api::all(client.clone()), all(), open);
        let local_queues = watch::<LocalQueue>("localqueues", Api::all(client.clone()), all(), None);
        let cohorts = watch::<Cohort>("cohorts", Api::all(client.clone()), all(), None);
        let namespaces = watch::<Namespace>("namespaces", Api::all(client.clone()), all(), None);
        let parameters =
            watch::<RawParameters>("provisioningparameters", Api::all(client.clone()), all(), None);
        // Karpenter reports a claim that found no capacity only in an Event.
        let warnings = Config::default().fields("involvedObject.kind=NodeClaim,type=Warning");
        let warnings = watch::<Event>("events", Api::namespaced(client.clone(), "default"), warnings, open);
        let stores = Stores {
            plan,
            workloads: all_workloads,
            requests: Arc::new(requests),
            checks: checks.store,
            topologies: topologies.as_ref().map(|watched| watched.store.clone()).unwrap_or_default(),
            claims: claims.store,
            nodes: nodes.store,
            limit_ranges: limit_ranges.store,
            local_queues: Optional { store: local_queues.store, listed: local_queues.listed },
            cohorts: Optional { store: cohorts.store, listed: cohorts.listed },
            namespaces: Optional { store: namespaces.store, listed: namespaces.listed },
            parameters: parameters.store,
        };
        let (wake_workload, wake_workloads) = unbounded_channel();
        let (wake_claim, wake_claims) = unbounded_channel();
        let (wake_check, wake_checks) = unbounded_channel();
        let (wake_parameter, wake_parameters) = unbounded_channel();
        let wake = Wakers {
            workload: wake_workload,
            claim: wake_claim,
            check: wake_check,
            parameters: wake_parameter,
        };
        let context = Arc::new(Context::new(parts, shards, stores, (gates, wake, outage)));
        let plans = Plans::default();
        let of_plans = Arc::clone(&context);
        tokio::spawn(at_most_every(PACE, plans.0.subscribe(), move || of_plans.next_turn()));
        let PlanChanges { pools, queues, flavors, runtime_classes, device_classes, daemon_sets } = changes;
        spawn(pools, &context, plans.on_pool_change());
        spawn(queues, &context, plans.on_change());
        spawn(flavors, &context, plans.on_change());
        spawn(runtime_classes, &context, plans.on_change());
        spawn(device_classes, &context, plans.on_change());
        spawn(local_queues.touched, &context, plans.on_change());
        spawn(cohorts.touched, &context, plans.on_change());
        spawn(namespaces.touched, &context, plans.on_change());
        if let Some(requests) = of_requests {
            spawn(requests, &context, Context::request_touched);
        }
        if let Some(topologies) = topologies {
            spawn(topologies.touched, &context, |_, _| {});
        }
        let mut generations = BTreeMap::new();
        let by_daemons = plans.clone();
        spawn(daemon_sets, &context, move |context, set| {
            // Its status changes with every node, and that does not matter.
            let exists = context.stores.plan.daemon_sets.get(&ObjectRef::from_obj(set)).is_some();
            let generation = exists.then_some(set.metadata.generation);
            if generations.insert(Key::of(set), generation) != Some(generation) {
                by_daemons.may_change();
            }
        });
        spawn(limit_ranges.touched, &context, plans.on_change());
        spawn(nodes.touched, &context, |context, node| {
            context.node_touched(node);
        });
        spawn(warnings.touched, &context, |context, event| {
            warned(context, event);
        });
        let [of_workloads, of_claims, of_checks, of_parameters] = [(); 4].map(|()| Arc::clone(&context));
        let feeds = Self {
            workloads: wakes(workloads.touched, wake_workloads, move |w| of_workloads.workload_touched(w)),
            checks: wakes(checks.touched, wake_checks, move |_| of_checks.checks_touched()),
            claims: wakes(claims.touched, wake_claims, move |c| of_claims.claim_touched(c)),
            parameters: wakes(parameters.touched, wake_parameters, move |p| {
                parameters_touched(&of_parameters, p);
            }),
        };
        (feeds, context)
    }
}

/// Keys of changed objects, after `note`, and of objects that are woken for another reason.
fn wakes<K: Object + Send + Sync + 'static, G: Send + Sync + 'static>(
    touched: Touched<K, G>,
    woken: UnboundedReceiver<ObjectRef<K>>,
    note: impl Fn(&K) + Send + 'static,
) -> Wakes {
    let touched = stream::unfold(touched, |mut t| async move { t.recv().await.map(|object| (object, t)) });
    let touched = touched.map(move |object| {
        note(&object);
        Key::of(&*object)
    });
    let woken = stream::unfold(woken, |mut w| async move { w.recv().await.map(|object| (object, w)) });
    stream::select(touched, woken.map(Key::from)).boxed()
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

/// Signals that something changed that plans are made from: every Workload that waits for a plan is reconciled again.
#[derive(Clone, Default)]
struct Plans(watch::Sender<()>);

impl Plans {
    fn may_change(&self) {
        self.0.send_replace(());
    }

    /// Signals for every object.
    fn on_change<K>(&self) -> impl FnMut(&Context, &K) + Send + use<K> {
        let plans = self.clone();
        move |_, _| plans.may_change()
    }

    /// Signals for every NodePool, except one that was edited and that Karpenter has not reconciled yet: nothing can be
    /// planned from it, and Karpenter's update comes as another change.
    fn on_pool_change(&self) -> impl FnMut(&Context, &NodePool) + Send + use<> {
        let plans = self.clone();
        move |context, pool| {
            let found = context.stores.plan.pools.get(&ObjectRef::from_obj(pool));
            if found.is_none_or(|pool| !pool.is_unseen()) {
                plans.may_change();
            }
        }
    }
}

/// Acts on a change, and once for all changes within a period after that, until no sender is left.
async fn at_most_every(period: Duration, mut changes: watch::Receiver<()>, act: impl Fn()) {
    while changes.changed().await.is_ok() {
        act();
        tokio::time::sleep(period).await;
    }
}

fn parameters_touched(context: &Context, parameters: &RawParameters) {
    for check in context.stores.checks.state() {
        let named = check.spec.parameters.as_ref().map(|p| p.name.as_str());
        if named == parameters.metadata.name.as_deref() {
            // Fails only while the process ends.
            let _ = context.wake.check.send(ObjectRef::from_obj(&*check));
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
        let (plans, start) = (Plans::default(), Instant::now());
        let seen = RefCell::new(Vec::new());
        let acts =
            at_most_every(PACE, plans.0.subscribe(), || seen.borrow_mut().push(start.elapsed().as_millis()));
        let changes = async move {
            for _ in 0..15 {
                plans.may_change();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(PACE * 5).await;
            plans.may_change();
            tokio::time::sleep(PACE).await;
        };
        tokio::join!(acts, changes);
        assert_eq!(*seen.borrow(), [0, 100, 200, 650]);
    }
}
