//! What the controllers share: the client, the stores, the policy and the replica's memory.

use super::board::{Acting, Around, Board, BoardSnapshot, Holder, Queued};
use super::forget::OfGangs;
use super::grounds;
use super::leadership;
use super::ledger::Remembered;
use super::memory::ClaimTombstones;
use super::meters::Stall;
use super::plan_kinds::PlanStores;
use super::policies::Parameters;
use super::policies::Policies;
use super::queue::Key;
use super::summary::ClaimSummary;
use super::waiting::Waiting;
use super::workloads::{Requests, Workloads};
use crate::api::{
    AdmissionCheck, Cohort, LocalQueue, Namespace, Node, NodeClaim, RawParameters, Topology, Workload,
};
use crate::clock::Clock;
use crate::cluster::batched::Batched;
use crate::cluster::joined::Joined;
use crate::cluster::lease::{self, Shards};
use crate::cluster::outage::Outage;
use crate::cluster::store::{Object, Store};
use crate::cluster::watch::{Gates, Listed};
use crate::cluster::write_limiter::WriteLimiter;
use crate::effects::events::Publisher;
use crate::error::Error;
use crate::names;
use crate::plan::market::Market;
use crate::policy::Settings;
use crate::telemetry::Telemetry;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::LimitRange;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc::UnboundedSender;

/// Every watched kind.
#[derive(Clone)]
pub struct Stores {
    /// Workloads of both front-ends.
    pub workloads: Workloads,
    /// ProvisioningRequests; empty without [`Options::provisioning_requests`].
    pub requests: Arc<Requests>,
    /// What plans are made from.
    pub plan: PlanStores,
    /// AdmissionChecks.
    pub checks: Store<AdmissionCheck>,
    /// Topologies of flavors; empty without [`Options::tas_compat`].
    pub topologies: Store<Topology>,
    /// NodeClaims of ours, found by the UID of their Workload too.
    pub claims: Store<NodeClaim, ClaimSummary>,
    /// Nodes of ours.
    pub nodes: Store<Node>,
    /// LimitRanges.
    pub limit_ranges: Store<LimitRange>,
    /// ProvisioningParameters; empty while their CRD is not installed.
    pub parameters: Store<RawParameters>,
    /// LocalQueues.
    pub local_queues: Optional<LocalQueue>,
    /// Cohorts.
    pub cohorts: Optional<Cohort>,
    /// Namespaces.
    pub namespaces: Optional<Namespace>,
}

/// A kind that the controller can do without.
#[derive(Clone)]
pub struct Optional<K> {
    /// Its objects, as far as they were read.
    pub store: Store<K>,
    /// Whether all were.
    pub listed: Listed,
}

impl<K: Object> Optional<K> {
    /// Every object, or `None` where they cannot be read.
    pub fn all(&self) -> Option<Vec<Arc<K>>> {
        self.listed.is_done().then(|| self.store.state())
    }
}

/// How loops wake each other.
#[derive(Clone)]
pub struct Wakers {
    /// Look at this Workload.
    pub workload: UnboundedSender<ObjectRef<Workload>>,
    /// Look at this NodeClaim.
    pub claim: UnboundedSender<ObjectRef<NodeClaim>>,
    /// Look at this AdmissionCheck.
    pub check: UnboundedSender<ObjectRef<AdmissionCheck>>,
    /// Look at these ProvisioningParameters.
    pub parameters: UnboundedSender<ObjectRef<RawParameters>>,
}

/// What a replica does only where it is asked to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Workloads that have nodes stay until their nodes are gone and their last transition is recorded.
    pub workload_finalizer: bool,
    /// Checks that name Kueue's own provisioning controller are answered too.
    pub tas_compat: bool,
    /// ProvisioningRequests of Setu's class are served.
    pub provisioning_requests: bool,
}

/// What a replica is made of.
pub struct Parts {
    /// The way to the API server.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// `spec.controllerName` of the checks that are ours.
    pub controller_name: String,
    /// What it does only where it is asked to.
    pub options: Options,
    /// The policy: file and command line.
    pub policy: Settings,
    /// How it is heard of.
    pub telemetry: Telemetry,
    /// How this replica and others settle who acts; `None` for one that is alone.
    pub election: Option<lease::Settings>,
}

/// What the controllers share.
pub struct Context {
    /// The way to the API server for what exists once; it refuses to write while another replica leads
    /// shard 0.
    pub client: Client,
    /// The same for the gangs of each shard.
    pub(super) clients: Vec<Client>,
    /// The time.
    pub clock: Clock,
    /// Which shards this replica leads.
    pub shards: Shards,
    /// Whether the API server answers.
    pub outage: Outage,
    /// Whose turn it is to write.
    pub writes: WriteLimiter,
    /// `spec.controllerName` of the checks that are ours.
    controller_name: String,
    /// What is done only where it is asked for.
    pub options: Options,
    /// Which policy holds.
    pub policies: Policies,
    /// Watched kinds.
    pub stores: Stores,
    /// Which of them have been listed.
    pub gates: Gates,
    /// How loops wake each other.
    pub wake: Wakers,
    /// Publishes Kubernetes Events.
    pub events: Publisher,
    /// How this replica is heard of.
    pub telemetry: Telemetry,
    /// The live claims of NodePools, by their names: gangs that are woken together need the same.
    pub(super) pool_claims: Joined<Vec<String>, [NodeClaim], Error>,
    /// What plans are made from: gangs that were woken together need the same.
    pub(super) grounds: grounds::Reads,
    /// Parameters by their checks. One read after the other, so that none undoes what a later one found.
    pub(super) parameters: Joined<String, Parameters, Error>,
    /// The Workloads of namespaces, where claims of slices are orphaned.
    pub(super) slices: Joined<String, [Workload], Error>,
    /// What gangs read past the caches, by the UIDs of their Workloads.
    pub(super) reads: Batched<String, (Vec<NodeClaim>, Vec<Node>)>,
    /// All that is remembered of gangs.
    pub(super) of_gangs: OfGangs,
    pub(super) tombstones: ClaimTombstones,
    pub(super) stall: Stall,
    turns: AtomicU64,
    better_offers: AtomicU64,
}

impl Context {
    /// Puts the parts together, with an empty memory.
    pub fn new(
        parts: Parts,
        shards: Shards,
        stores: Stores,
        (gates, wake, outage): (Gates, Wakers, Outage),
    ) -> Self {
        let writes = WriteLimiter::default();
        let (clients, for_any) = leadership::clients(&writes.heeding(&parts.client), &shards);
        let client = clients.first().unwrap_or(&parts.client).clone();
        Self {
            events: Publisher::new(for_any, writes.clone(), &parts.telemetry),
            writes,
            outage,
            telemetry: parts.telemetry,
            client,
            clients,
            clock: parts.clock,
            shards,
            controller_name: parts.controller_name,
            options: parts.options,
            policies: Policies::new(parts.policy),
            stores,
            gates,
            wake,
            pool_claims: Joined::default(),
            grounds: grounds::Reads::default(),
            parameters: Joined::default(),
            slices: Joined::default(),
            reads: Batched::default(),
            of_gangs: OfGangs::default(),
            tombstones: ClaimTombstones::default(),
            stall: Stall::default(),
            turns: AtomicU64::new(0),
            better_offers: AtomicU64::new(0),
        }
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether an error is not worth a line of its own: the outage that it is due to was told of, or will be.
    pub fn is_quiet_about(&self, error: &Error) -> bool {
        error.is_unanswered() || (matches!(error, Error::Timeout { .. }) && self.outage.is_on())
    }

    /// Since when Workloads wait to be reconciled.
    pub fn waiting(&self) -> &Waiting {
        &self.of_gangs.waiting
    }

    /// Every gang, for people and metrics.
    pub fn board(&self) -> &Board {
        &self.of_gangs.board
    }

    /// What the board page shows now.
    pub fn board_snapshot(&self) -> BoardSnapshot {
        let now = self.now();
        let shortages = self.of_gangs.ledger.open().shortages(now);
        let led = self.shards.all().filter(|shard| shard.leads()).count();
        let acting = Acting { shards: led, of: self.shards.count() };
        self.of_gangs.board.snapshot(now, Around { shortages, queued: self.queued(), acting })
    }

    /// Workloads that wait for quota of ClusterQueues with a check of ours, by LocalQueue; none while LocalQueues are not read.
    fn queued(&self) -> Vec<Queued> {
        let mut waiting: BTreeMap<String, Vec<(Timestamp, String)>> = BTreeMap::new();
        for object in self.stores.workloads.those(|known| known.queued_since.is_some()) {
            let Some(known) = self.stores.workloads.entry(&object) else { continue };
            let Some(since) = known.queued_since else { continue };
            waiting.entry(known.local_queue.clone()).or_default().push((since, object.name.clone()));
        }
        if waiting.is_empty() {
            return Vec::new();
        }
        let holders = self.holders();
        let of_queue = |(local_queue, workloads): (String, Vec<(Timestamp, String)>)| {
            let (namespace, name) = local_queue.split_once('/')?;
            let found = self.stores.local_queues.store.get(&ObjectRef::new(name).within(namespace))?;
            let cluster_queue = &found.spec.cluster_queue;
            let behind = self.stores.plan.queues.get(&ObjectRef::new(cluster_queue))?;
            let strategy = behind.spec.admission_checks_strategy.as_ref()?;
            let is_ours = strategy.admission_checks.iter().any(|rule| self.is_ours(&rule.name));
            let holders = holders.get(cluster_queue.as_str()).map(Vec::as_slice).unwrap_or_default();
            is_ours.then(|| Queued::new(&local_queue, cluster_queue, workloads, holders))
        };
        waiting.into_iter().filter_map(of_queue).collect()
    }

    /// Workloads that hold quota, by ClusterQueue, with the most pods first.
    fn holders(&self) -> BTreeMap<Box<str>, Vec<Holder>> {
        let mut all: BTreeMap<Box<str>, Vec<(String, u32)>> = BTreeMap::new();
        for object in self.stores.workloads.those(|known| known.holds.is_some()) {
            let Some(known) = self.stores.workloads.entry(&object) else { continue };
            let Some((queue, pods)) = &known.holds else { continue };
            let name = format!("{}/{}", object.namespace.unwrap_or_default(), object.name);
            all.entry(queue.clone()).or_default().push((name, *pods));
        }
        all.into_iter().map(|(queue, workloads)| (queue, Holder::largest_first(workloads))).collect()
    }

    /// Whether a check is answered by this controller.
    pub fn is_ours(&self, check: &str) -> bool {
        let found = self.stores.checks.get(&ObjectRef::new(check));
        found.is_some_and(|c| self.answers(&c))
    }

    /// Whether this is a check that we answer.
    pub fn answers(&self, check: &AdmissionCheck) -> bool {
        let name = &check.spec.controller_name;
        *name == self.controller_name || (self.options.tas_compat && name == names::PROVISIONING_REQUEST)
    }

    /// Queues a Workload for another reconcile.
    pub fn wake_workload(&self, workload: ObjectRef<Workload>) {
        self.of_gangs.waiting.note(Key::from(workload.clone()));
        // Fails only while the process ends, when nobody looks any more.
        let _ = self.wake.workload.send(workload);
    }

    /// Queues for another reconcile every Workload that carries this check, or a journal under it.
    pub fn wake_all_of(&self, check: &str) {
        let journal = names::journal_key(check);
        for workload in self.stores.workloads.each() {
            if workload.check(check).is_some() || workload.annotations().contains_key(&journal) {
                self.wake_workload(ObjectRef::from_obj(&*workload));
            }
        }
    }

    /// What is remembered of capacity, for people.
    pub fn capacity(&self) -> Remembered {
        self.of_gangs.ledger.open().remembered(self.now())
    }

    /// Takes over what Karpenter's metrics say of offerings; gangs that wait for what has capacity again are woken, and
    /// those that are refused if anything costs less.
    pub fn take_market(&self, market: Market) {
        let news = self.of_gangs.ledger.open().take_market(market);
        if news.is_better {
            self.count_better_offer();
        }
        if news.eased {
            self.next_turn();
        } else if news.is_better {
            self.wake_refused();
        }
    }

    /// A price has fallen, or the size of a type has become known: a gang that was refused may have a plan now.
    pub(super) fn count_better_offer(&self) {
        self.better_offers.fetch_add(1, Ordering::SeqCst);
    }

    /// How often that was so.
    pub(super) fn better_offers(&self) -> u64 {
        self.better_offers.load(Ordering::SeqCst)
    }

    /// Gangs that wait for another's turn, or for anything else that plans are made from, are reconciled.
    pub fn next_turn(&self) {
        self.next_turn_of(|_| true);
        self.wake_refused();
    }

    /// The same for those of them that are meant.
    pub(super) fn next_turn_of(&self, is_meant: impl Fn(&ObjectRef<Workload>) -> bool) {
        self.count_turn();
        for workload in self.of_gangs.board.waiting().into_iter().filter(is_meant) {
            self.wake_workload(workload);
        }
    }

    /// Something has changed that a gang may wait for which is not known to wait yet.
    pub(super) fn count_turn(&self) {
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// How often something has changed that gangs wait for. One that finds no plan, and whose reconcile takes a while, sees by
    /// it whether that may be out of date: only after the reconcile is it known to wait.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }
}
