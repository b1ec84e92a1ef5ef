//! The context that the controllers share: the client, the stores, the policy and the replica's memory.

use super::board::{Board, BoardContext, BoardSnapshot, Holder, LedShards, Queued};
use super::claim_records::ClaimRecordStore;
use super::gang_state::GangState;
use super::meters::{ReadyEstimates, Stall};
use super::plan_objects;
use super::pod_lists::PodLists;
use super::policies::{Parameters, Policies};
use super::queue::{QueueKey, Wake};
use super::stores::Stores;
use super::waiting::Waiting;
use crate::api::{AdmissionCheck, Node, NodeClaim, RawParameters, Workload};
use crate::cluster::batched::Batched;
use crate::cluster::fence::fenced;
use crate::cluster::joined::Joined;
use crate::cluster::lease::{Leadership, Shards};
use crate::cluster::outage::Outage;
use crate::cluster::watch::FirstLists;
use crate::cluster::write_limiter::WriteLimiter;
use crate::effects::events::Publisher;
use crate::error::Error;
use crate::gang::ledger::shortage::CapacityReport;
use crate::names;
use crate::plan::PlanChange;
use crate::plan::market::Market;
use crate::plan::pool_claims::PoolClaims;
use crate::policy::Settings;
use crate::telemetry::Telemetry;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use kube::{Client, ResourceExt};
use setu_clock::Clock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// How the reconcilers wake each other.
#[derive(Clone)]
pub struct Wakers {
    /// Reconcile this Workload.
    pub workload: UnboundedSender<Wake>,
    /// Reconcile this NodeClaim.
    pub claim: UnboundedSender<ObjectRef<NodeClaim>>,
    /// Reconcile this AdmissionCheck.
    pub check: UnboundedSender<ObjectRef<AdmissionCheck>>,
    /// Reconcile these ProvisioningParameters.
    pub parameters: UnboundedSender<ObjectRef<RawParameters>>,
    /// Wake the gangs that wait for such a change.
    pub plan: UnboundedSender<PlanChange>,
}

/// A receiver is gone only once the replica ends: then there is nothing to reconcile.
impl Wakers {
    /// Reconciles this NodeClaim.
    pub fn claim(&self, claim: ObjectRef<NodeClaim>) {
        let _ = self.claim.send(claim);
    }

    /// Reconciles this AdmissionCheck.
    pub fn check(&self, check: &AdmissionCheck) {
        let _ = self.check.send(ObjectRef::from_obj(check));
    }

    /// Reconciles these ProvisioningParameters.
    pub fn parameters(&self, parameters: &RawParameters) {
        let _ = self.parameters.send(ObjectRef::from_obj(parameters));
    }

    /// Reconciles a Workload.
    fn workload(&self, wake: Wake) {
        let _ = self.workload.send(wake);
    }

    /// Wakes the gangs that wait for such a change.
    fn plan(&self, change: PlanChange) {
        let _ = self.plan.send(change);
    }
}

/// Optional behaviour of a replica.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Keep Workloads with nodes until their nodes are gone and their last transition is recorded.
    pub workload_finalizer: bool,
    /// Also answer checks that name Kueue's own provisioning controller.
    pub tas_compat: bool,
    /// ProvisioningRequests of Setu's class are served.
    pub provisioning_requests: bool,
}

/// The parts of a [`Context`].
pub struct ContextParts {
    /// The API server client.
    pub client: Client,
    /// The clock.
    pub clock: Clock,
    /// `spec.controllerName` of the checks that are ours.
    pub controller_name: String,
    /// Optional behaviour.
    pub options: Options,
    /// The policy: file and command line.
    pub policy: Settings,
    /// Logs, metrics and traces.
    pub telemetry: Telemetry,
}

/// The client, the stores, the policy and the memory that the controllers share.
pub struct Context {
    /// Client for objects that belong to no gang. It refuses to write while another replica leads shard 0.
    pub client: Client,
    /// Clients for the gangs of each shard.
    pub(super) clients: Vec<Client>,
    /// The clock.
    pub clock: Clock,
    /// Which shards this replica leads.
    pub shards: Shards,
    /// Whether the API server answers.
    pub outage: Outage,
    /// Decides whose turn it is to write.
    pub writes: WriteLimiter,
    /// `spec.controllerName` of the checks that are ours.
    controller_name: String,
    /// Optional behaviour.
    pub options: Options,
    /// The policies in force.
    pub policies: Policies,
    /// Watched kinds.
    pub stores: Stores,
    /// Which of them have been listed.
    pub first_lists: FirstLists,
    /// Wakes the reconcilers.
    pub wake: Wakers,
    /// Publishes Kubernetes Events.
    pub events: Publisher,
    /// Logs, metrics and traces.
    pub telemetry: Telemetry,
    /// Reads of live claims by NodePools. Gangs that are woken together need the same ones.
    pub(super) pool_claims: Joined<Vec<String>, PoolClaims, Error>,
    /// Reads of kept claims by the label that says for whom. Gangs that are woken together need the same ones.
    pub(super) kept: Joined<String, [NodeClaim], Error>,
    /// Reads of what plans are made from. Gangs that are woken together need the same ones.
    pub(super) plan_objects: plan_objects::PlanObjectReads,
    /// Reads of parameters by check, one after the other, so that none undoes what a later one found.
    pub(super) parameters: Joined<String, Parameters, Error>,
    /// Reads of a namespace's Workloads, for orphaned claims of slices.
    pub(super) slices: Joined<String, [Workload], Error>,
    /// The pods of namespaces, for standalone requests.
    pub(super) pod_lists: PodLists,
    /// Reads of gangs past the caches, by the UIDs of their Workloads.
    pub(super) reads: Batched<String, (Vec<NodeClaim>, Vec<Node>)>,
    /// Everything kept about gangs.
    pub(super) gang_state: GangState,
    pub(super) claim_records: ClaimRecordStore,
    /// How long nodes took lately.
    pub(super) estimates: ReadyEstimates,
    /// How long Karpenter stood still.
    pub(super) stall: Stall,
    changes: AtomicU64,
    better_offers: AtomicU64,
}

impl Context {
    /// Builds a context with an empty memory.
    pub fn new(
        parts: ContextParts,
        shards: Shards,
        stores: Stores,
        (first_lists, wake, outage): (FirstLists, Wakers, Outage),
    ) -> Self {
        let writes = WriteLimiter::default();
        let (clients, for_any) = clients(&writes.limit(&parts.client), &shards);
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
            first_lists,
            wake,
            pool_claims: Joined::default(),
            kept: Joined::default(),
            plan_objects: plan_objects::PlanObjectReads::default(),
            parameters: Joined::default(),
            slices: Joined::default(),
            pod_lists: PodLists::default(),
            reads: Batched::default(),
            gang_state: GangState::default(),
            claim_records: ClaimRecordStore::default(),
            estimates: ReadyEstimates::default(),
            stall: Stall::default(),
            changes: AtomicU64::new(0),
            better_offers: AtomicU64::new(0),
        }
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether an error needs no log line, because the outage behind it was or will be logged.
    pub fn is_quiet_about(&self, error: &Error) -> bool {
        error.is_unanswered() || (matches!(error, Error::Timeout { .. }) && self.outage.is_on())
    }

    /// Since when Workloads wait to be reconciled.
    pub fn waiting(&self) -> &Waiting {
        &self.gang_state.waiting
    }

    /// Every gang, for users and metrics.
    pub fn board(&self) -> &Board {
        &self.gang_state.board
    }

    /// The current content of the board page.
    pub fn board_snapshot(&self) -> BoardSnapshot {
        let now = self.now();
        let shortages = self.gang_state.ledger().shortages(now);
        let led = self.shards.all().filter(|shard| shard.leads()).count();
        let acting = LedShards { shards: led, of: self.shards.count() };
        self.gang_state.board.snapshot(now, BoardContext { shortages, queued: self.queued(), acting })
    }

    /// Workloads that wait for quota of ClusterQueues with a check of ours, by LocalQueue; empty while LocalQueues are
    /// not read.
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
            let behind = self.stores.plan.cluster_queues.get(&ObjectRef::new(cluster_queue))?;
            let strategy = behind.spec.admission_checks_strategy.as_ref()?;
            let is_ours = strategy.admission_checks.iter().any(|rule| self.is_ours(&rule.name));
            let holders = holders.get(cluster_queue.as_str()).map(Vec::as_slice).unwrap_or_default();
            is_ours.then(|| Queued::new(&local_queue, cluster_queue, workloads, holders))
        };
        waiting.into_iter().filter_map(of_queue).collect()
    }

    /// Workloads that hold quota, by ClusterQueue; those with the most pods first.
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

    /// Whether this controller answers the check of this name.
    pub fn is_ours(&self, check: &str) -> bool {
        let found = self.stores.checks.get(&ObjectRef::new(check));
        found.is_some_and(|c| self.answers(&c))
    }

    /// Whether this controller answers this check.
    pub fn answers(&self, check: &AdmissionCheck) -> bool {
        let name = &check.spec.controller_name;
        *name == self.controller_name || (self.options.tas_compat && name == names::PROVISIONING_REQUEST)
    }

    /// Queues a Workload for another reconcile.
    pub fn wake_workload(&self, workload: ObjectRef<Workload>) {
        self.wake_workload_within(workload, Duration::ZERO);
    }

    /// Queues a Workload for another reconcile that may wait this long for more changes.
    pub(super) fn wake_workload_within(&self, workload: ObjectRef<Workload>, within: Duration) {
        let key = QueueKey::from(workload);
        if within.is_zero() {
            self.gang_state.waiting.note(key.clone());
        }
        self.wake.workload(Wake { key, within });
    }

    /// Wakes every Workload that carries this check, or has a journal for it.
    pub fn wake_all_of(&self, check: &str) {
        let journal = names::journal_key(check);
        for workload in self.stores.workloads.each() {
            if workload.check(check).is_some() || workload.annotations().contains_key(&journal) {
                self.wake_workload(ObjectRef::from_obj(&*workload));
            }
        }
    }

    /// Shortages and known shapes, for users.
    pub fn capacity(&self) -> CapacityReport {
        self.gang_state.ledger().capacity_report(self.now())
    }

    /// Takes over Karpenter's metrics about offerings. Wakes gangs that wait for capacity that is back, and refused gangs
    /// if anything costs less.
    pub fn take_market(&self, market: Market) {
        let change = self.gang_state.ledger().take_market(market);
        if change.is_better {
            self.count_better_offer();
        }
        if change.eased {
            self.wake_waiting(PlanChange::Other);
        } else if change.is_better {
            self.wake_refused();
        }
    }

    /// Counts that a price fell or the size of a type became known. A refused gang may have a plan now.
    pub(super) fn count_better_offer(&self) {
        self.better_offers.fetch_add(1, Ordering::SeqCst);
    }

    /// How often offers got better.
    pub(super) fn better_offers(&self) -> u64 {
        self.better_offers.load(Ordering::SeqCst)
    }

    /// Schedules a wake of the gangs that this change may unblock, at once or with other changes.
    pub fn plans_may_change(&self, change: PlanChange) {
        self.wake.plan(change);
    }

    /// Wakes the gangs that wait for something that this change may clear.
    pub fn wake_waiting(&self, change: PlanChange) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        for workload in self.gang_state.board.waiting_for(change) {
            self.wake_workload(workload);
        }
        if change == PlanChange::Other {
            self.wake_refused();
        }
    }

    /// Counts changes that may unblock gangs. A gang without a plan compares it after its reconcile, because earlier
    /// changes did not wake it.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }
}

/// One fenced client for each shard, and one that writes while any shard is led.
fn clients(client: &Client, shards: &Shards) -> (Vec<Client>, Client) {
    if shards.first().is_sole() {
        return (vec![client.clone()], client.clone());
    }
    let of_shard = |leadership: &Leadership| {
        let leadership = leadership.clone();
        fenced(client, move || leadership.leads())
    };
    let all = shards.clone();
    (shards.all().map(of_shard).collect(), fenced(client, move || all.any_led()))
}
