//! Runs the real core on small values: a replica's inputs go in, its next writes come out.
//!
//! Rule: nothing is decided here. A step is `Journal::decode` → `step`, `reconcile` says what follows it, and a report is
//! `verdict::desired`. Results are cached because the same small values recur.

use crate::world::{Claim, KueuePhase, ModelPlan, Work};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use setu_core::api::parameters::{OnExhausted, Pinning};
use setu_core::api::workload::{CheckState, PodSetUpdate, Verdict};
use setu_core::api::{NodeClaim, Workload};
use setu_core::gang::snapshot::loss::{ClaimRecords, GoneClaim};
use setu_core::gang::statechart::diagram;
use setu_core::gang::statechart::event::{ProgressReason, Reason};
use setu_core::gang::statechart::transition::Transition;
use setu_core::gang::step::commit::IsDeletion;
use setu_core::gang::step::reconcile::Next;
use setu_core::gang::workload::journal_load::{self, LoadedGang};
use setu_core::gang::{
    AdmissionId, ClaimView, Effect, EffectivePolicy, Event, Failure, FailureClass, Freshness, GangIdentity,
    Health, Journal, Moved, Nodes, Precondition, Reservation, Snapshot, SnapshotParts, State, StateName,
    Step, Then, WaitsFor, report::verdict, step,
};
use setu_core::names;
use setu_core::plan::{Obstacle, ObstacleReason, Outcome, Plan, PodShare, Slot};
use setu_core::policy::Policy;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

/// Nodes of the gang.
pub const SLOTS: u8 = 2;
const CHECK: &str = "c";
const UID: &str = "uid-1";

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// The time of a reconcile: before every deadline or after all of them. Any reconcile may get either, which covers
/// clock skew.
fn now(late: bool) -> Timestamp {
    if late { start() + SignedDuration::from_hours(24) } else { start() + SignedDuration::from_secs(20) }
}

static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let mut policy = Policy { on_exhausted: OnExhausted::Reject, ..Policy::default() };
    policy.in_check.limit = 1;
    policy.yielding.limit = 1;
    policy
});

static IDENTITY: LazyLock<GangIdentity> = LazyLock::new(|| GangIdentity {
    namespace: "team".into(),
    workload: "train".into(),
    uid: UID.into(),
    check: CHECK.into(),
});

static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let template = serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
        "spec": {"requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
    }));
    let template = Arc::new(template.unwrap());
    let slot = |index: u8| Slot {
        index: u32::from(index),
        pods: Arc::from([PodShare { pod_set: "main".into(), pods: 1 }]),
        node_pool: "gpu".into(),
        template: Arc::clone(&template),
        shape: None,
        most: Arc::default(),
        domain_keys: Arc::default(),
        pod_sets: None,
        held_to: Arc::default(),
    };
    Plan {
        slots: (0..SLOTS).map(slot).collect(),
        pinning: Pinning::Selector,
        facts: Arc::default(),
        notes: Vec::new(),
        tier: 0,
        option_name: Box::default(),
        option_index: 0,
        option_count: 1,
        reports: Arc::default(),
        cost: Arc::default(),
        reused: Arc::default(),
        passed_over: Arc::default(),
    }
});

/// The outcome of planning.
fn outcome(planned: ModelPlan) -> Outcome {
    match planned {
        ModelPlan::Provision => Outcome::Provision(PLAN.clone()),
        ModelPlan::Wait => Outcome::Wait(Obstacle::new(ObstacleReason::CapacityShort, "none is left")),
        ModelPlan::Refuse => Outcome::Refuse(Obstacle::new(ObstacleReason::TooManyNodes, "too many")),
    }
}

/// Every admission seen so far. A journal refers to one by its index.
static ADMISSIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn number(admission: &AdmissionId) -> u8 {
    let mut admissions = ADMISSIONS.lock().unwrap();
    let found = admissions.iter().position(|e| *e == admission.0).unwrap_or_else(|| {
        admissions.push(admission.0.clone());
        admissions.len() - 1
    });
    u8::try_from(found).unwrap()
}

/// The state of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelState {
    Validating,
    Provisioning,
    WaitingReady,
    RollingBack(Then),
    BackingOff,
    Approved(Nodes),
    Yielded,
    Rejected,
    Released,
}

/// A journal without the fields that decide nothing: history, times, texts.
#[allow(clippy::struct_excessive_bools, reason = "it mirrors the journal's fields")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelJournal {
    pub place: ModelState,
    pub admission: u8,
    pub attempt: u8,
    pub generation: u8,
    pub slots: u8,
    tries: u8,
    yields: u8,
    waits: bool,
    planned: bool,
    begun: bool,
    /// Whether it is ever written.
    pub is_stored: bool,
    /// The precondition of its write, if only its last transition is new.
    precondition: Precondition,
}

impl ModelJournal {
    fn of(journal: &Journal) -> Self {
        let memory = &journal.memory;
        let small = |n: u32| u8::try_from(n).unwrap();
        Self {
            place: match &journal.state {
                State::Validating => ModelState::Validating,
                State::Provisioning => ModelState::Provisioning,
                State::WaitingReady => ModelState::WaitingReady,
                State::RollingBack { then } => ModelState::RollingBack(*then),
                State::BackingOff { .. } => ModelState::BackingOff,
                State::Approved { nodes } => ModelState::Approved(*nodes),
                State::Yielded => ModelState::Yielded,
                State::Rejected => ModelState::Rejected,
                State::Released => ModelState::Released,
            },
            admission: number(&memory.admission),
            attempt: small(memory.attempt),
            generation: small(memory.generation),
            slots: small(memory.slots),
            tries: small(memory.tries),
            yields: small(memory.yields),
            waits: memory.not_before.is_some(),
            planned: memory.plan.is_some(),
            begun: journal.seq > 0,
            is_stored: journal.is_worth_storing(),
            precondition: journal.precondition(journal.seq),
        }
    }

    fn journal(self) -> Journal {
        let soon = start() + SignedDuration::from_mins(15);
        let admission = AdmissionId(ADMISSIONS.lock().unwrap()[usize::from(self.admission)].clone());
        let mut journal = Journal::new(UID, admission, start(), Some(soon));
        journal.state = match self.place {
            ModelState::Validating => State::Validating,
            ModelState::Provisioning => State::Provisioning,
            ModelState::WaitingReady => State::WaitingReady,
            ModelState::RollingBack(then) => State::RollingBack { then },
            ModelState::BackingOff => State::BackingOff { until: soon },
            ModelState::Approved(nodes) => State::Approved { nodes },
            ModelState::Yielded => State::Yielded,
            ModelState::Rejected => State::Rejected,
            ModelState::Released => State::Released,
        };
        journal.seq = if self.begun { 7 } else { 0 };
        journal.memory.attempt = u32::from(self.attempt);
        journal.memory.generation = u32::from(self.generation);
        journal.memory.slots = u32::from(self.slots);
        journal.memory.tries = u32::from(self.tries);
        journal.memory.yields = u32::from(self.yields);
        journal.memory.not_before = self.waits.then_some(soon);
        journal.memory.plan = self.planned.then(|| PLAN.hash());
        journal.memory.pinning = Pinning::Selector;
        if self.precondition == Precondition::Workload && !journal.state.is_over() {
            journal.history.push(end_of_approval(journal.seq));
        }
        // Encode and decode it, because every replica reads it from the annotation.
        Journal::decode(&journal.encode(), UID, start(), now(true)).unwrap()
    }

    /// Whether a node lost after admission must be replaced. A property states it, so it does not ask the core.
    pub fn may_replace(self) -> bool {
        self.slots > 0
    }

    /// Whether this claim must be kept, given the other claims. A property states it, so it does not ask the core.
    pub fn wants(self, claim: &Claim, all: &[Claim]) -> bool {
        matches!(self.place, ModelState::Provisioning | ModelState::WaitingReady | ModelState::Approved(_))
            && claim.attempt == self.attempt
            && claim.slot < self.slots
            && !claim.is_superseded(all)
    }
}

/// A transition that takes back an approval.
fn end_of_approval(seq: u64) -> Transition {
    Transition {
        seq,
        from: StateName::Approved,
        to: StateName::Provisioning,
        at: start(),
        reason: Reason::Progress(ProgressReason::Reserved),
        attempt: 0,
        tier: 0,
        by: String::new(),
    }
}

/// The precondition of a write of this journal over the stored one.
pub fn precondition(journal: ModelJournal, stored: Option<ModelJournal>) -> Precondition {
    let was_approved = stored.is_some_and(|stored| matches!(stored.place, ModelState::Approved(_)));
    if !was_approved {
        return journal.precondition;
    }
    let mut journal = journal.journal();
    journal.history.insert(0, end_of_approval(1));
    journal.precondition(0)
}

/// All inputs of one step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepInput {
    pub journal: ModelJournal,
    pub is_substitute: bool,
    pub work: Work,
    pub claims: Vec<Claim>,
    pub freshness: Freshness,
    /// The outcome of the gang's plan, by the objects that plans are made from.
    pub planned: ModelPlan,
    /// How these objects were read.
    pub plan_freshness: Freshness,
    pub late: bool,
    /// Whether the parameters cannot be read.
    pub unread: bool,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    Create { attempt: u8, slot: u8, generation: u8 },
    Delete(Claim),
}

impl IsDeletion for Write {
    fn is_deletion(&self) -> bool {
        matches!(self, Self::Delete(_))
    }
}

/// One step, and what follows it.
#[derive(Clone, Debug)]
pub struct ModelStep {
    pub next: Next<Write>,
    pub moved: Option<ModelMoved>,
}

/// The changes of a step.
#[derive(Clone, Copy, Debug)]
pub struct ModelMoved {
    pub journal: ModelJournal,
    pub lawful: bool,
    /// Whether the gang was refused, or its attempt ended, because of its plan.
    pub by_plan: bool,
}

/// The journal that a gang goes on from and whether it is a substitute; `None` if there is nothing to do.
type LoadedJournal = Option<(ModelJournal, bool)>;

#[derive(Default)]
struct StepCache {
    steps: HashMap<StepInput, ModelStep>,
    reports: HashMap<StepInput, Option<Verdict>>,
    works: HashMap<Work, (Reservation, u8)>,
    loaded: HashMap<(Work, Vec<Claim>), LoadedJournal>,
}

thread_local! {
    static CACHE: RefCell<StepCache> = RefCell::default();
}

/// One step of a reconcile.
pub fn step_once(seen: &StepInput) -> ModelStep {
    if let Some(known) = CACHE.with_borrow(|k| k.steps.get(seen).cloned()) {
        return known;
    }
    let taken = take_step(seen);
    CACHE.with_borrow_mut(|k| k.steps.insert(seen.clone(), taken.clone()));
    taken
}

/// The verdict to write at the end of a reconcile; `None` if the check already has it.
pub fn report(seen: &StepInput) -> Option<Verdict> {
    if let Some(known) = CACHE.with_borrow(|k| k.reports.get(seen).copied()) {
        return known;
    }
    let workload = workload(&seen.work);
    let verdict = workload.check(CHECK).and_then(|old| {
        let journal = seen.journal.journal();
        let desired = seen.with_snapshot(&workload, &journal, |snapshot| {
            verdict::desired(&journal, snapshot, old, Ok(updates()))
        });
        desired.map(|d| d.state).filter(|state| *state != old.state)
    });
    CACHE.with_borrow_mut(|k| k.reports.insert(seen.clone(), verdict));
    verdict
}

/// The journal that a reconcile starts from, and whether it is new; `None` if there is nothing to do.
pub fn load(work: &Work, claims: &[Claim]) -> Option<(ModelJournal, bool)> {
    let key = (work.clone(), claims.to_vec());
    if let Some(known) = CACHE.with_borrow(|k| k.loaded.get(&key).copied()) {
        return known;
    }
    let result = journal_load::load(&workload(work), &IDENTITY, &objects(claims), now(true)).unwrap();
    let loaded = result.gang.map(|gang| (ModelJournal::of(&gang.journal), gang.is_substitute));
    CACHE.with_borrow_mut(|k| k.loaded.insert(key, loaded));
    loaded
}

/// Starts over if the claims, which were just read from the API server, contradict the stored journal.
pub fn verify(seen: &mut StepInput) {
    let mut gang = LoadedGang { journal: seen.journal.journal(), is_substitute: seen.is_substitute };
    if gang.verify(&workload(&seen.work), &IDENTITY, &objects(&seen.claims), start()) {
        (seen.journal, seen.is_substitute) = (ModelJournal::of(&gang.journal), gang.is_substitute);
    }
}

/// The NodeClaims as the API server has them.
fn objects(claims: &[Claim]) -> Vec<Arc<NodeClaim>> {
    let object = |claim: &Claim| {
        json!({
            "metadata": {
                "name": name(claim), "labels": {(names::ATTEMPT): claim.attempt.to_string()},
                "annotations": {(names::SLOT): claim.slot.to_string()},
                "deletionTimestamp": claim.deleting.then(|| start().to_string()),
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        })
    };
    claims.iter().map(|claim| Arc::new(serde_json::from_value(object(claim)).unwrap())).collect()
}

/// The reservation as read from the Workload.
pub fn reservation(work: &Work) -> Reservation {
    known(work).0
}

/// The reservation as read from the Workload, and the number of its admission.
fn known(work: &Work) -> (Reservation, u8) {
    if let Some(known) = CACHE.with_borrow(|k| k.works.get(work).cloned()) {
        return known;
    }
    let object = workload(work);
    let read = (Reservation::of(&object, CHECK), number(&AdmissionId::of(&object, CHECK)));
    CACHE.with_borrow_mut(|k| k.works.insert(work.clone(), read.clone()));
    read
}

/// The number of the current admission, as a journal refers to it.
pub fn admission(work: &Work) -> u8 {
    known(work).1
}

fn take_step(seen: &StepInput) -> ModelStep {
    let workload = workload(&seen.work);
    let journal = seen.journal.journal();
    let step = seen.with_snapshot(&workload, &journal, |snapshot| step(&journal, snapshot));
    let Step::Moved(moved) = &step else {
        return ModelStep { next: seen.next(step), moved: None };
    };
    let after = &moved.journal;
    let steps = after.seq - journal.seq;
    let edge = (journal.state.name(), after.state.name());
    let lawful =
        if steps == 1 { diagram::edges().contains_key(&edge) } else { steps == 0 && edge.0 == edge.1 };
    let by_plan = match &moved.cause {
        Some(Event::Refused(_)) => true,
        Some(Event::Failed(failure)) => failure.reason == FailureClass::NotPlannable,
        _ => false,
    };
    let moved = ModelMoved { journal: ModelJournal::of(after), lawful, by_plan };
    ModelStep { next: seen.next(step), moved: Some(moved) }
}

impl StepInput {
    /// The next action after a step that was taken on this input.
    fn next(&self, step: Step) -> Next<Write> {
        let writes = match &step {
            Step::Moved(moved) => self.writes(moved),
            _ => Vec::new(),
        };
        match Next::after(step, self.freshness) {
            Next::ReadGang => Next::ReadGang,
            Next::ReadPlanObjects => Next::ReadPlanObjects,
            Next::Step => Next::Step,
            Next::Commit(_) => Next::Commit(writes),
            Next::Report => Next::Report,
        }
    }

    /// The effects of a step as single writes.
    fn writes(&self, moved: &Moved) -> Vec<Write> {
        let small = |number: u32| u8::try_from(number).unwrap();
        let memory = &moved.journal.memory;
        let mut writes = Vec::new();
        for effect in &moved.effects {
            match effect {
                Effect::CreateClaims(slots) => writes.extend(slots.iter().map(|slot| Write::Create {
                    attempt: small(memory.attempt),
                    slot: small(*slot),
                    generation: small(memory.generation),
                })),
                Effect::DeleteClaims(names) => {
                    let meant = self.claims.iter().filter(|c| names.contains(&name(c)));
                    writes.extend(meant.map(|c| Write::Delete(*c)));
                }
            }
        }
        writes
    }

    fn with_snapshot<T>(
        &self,
        workload: &Workload,
        journal: &Journal,
        then: impl FnOnce(&Snapshot<'_>) -> T,
    ) -> T {
        let fault = self.unread.then(|| Obstacle::new(ObstacleReason::NoPolicy, "unread"));
        let effective = EffectivePolicy::of(journal, &[], POLICY.clone(), fault);
        let policy = &*effective.policy;
        let runs_out = self.late && policy.deadlines.launch.signed() < SignedDuration::from_hours(24);
        let mut views: Vec<ClaimView> = self.claims.iter().map(|c| view(c, runs_out)).collect();
        views.sort_by_key(|v| v.slot);
        let outcome = journal.state.needs_plan().then(|| outcome(self.planned));
        let records = ModelRecords { late: self.late };
        let parts = SnapshotParts::of(workload, CHECK, views, now(self.late));
        let parts = parts.with_records(journal, &IDENTITY, &records, || true);
        then(&Snapshot {
            is_substitute: self.is_substitute,
            plan: outcome.as_ref(),
            freshness: self.freshness,
            plan_freshness: self.plan_freshness,
            policy_source: effective.source(),
            jitter: 0.5,
            ..parts.snapshot(policy)
        })
    }
}

/// A replica's records of deleted claims: none while no deadline has passed; that they had launched once all have passed.
struct ModelRecords {
    late: bool,
}

impl ClaimRecords for ModelRecords {
    fn refresh(&self, _: &str) {}

    fn saw_since(&self, _: &str, _: Timestamp) -> bool {
        false
    }

    fn knows(&self, _: &str) -> bool {
        false
    }

    fn taken_over(&self, _: u32, _: u32) -> Option<String> {
        None
    }

    fn note_missing(&self, _: &str, _: Timestamp) -> (GoneClaim, Option<Failure>) {
        (GoneClaim { launched: self.late, ..GoneClaim::default() }, None)
    }
}

fn view(claim: &Claim, late: bool) -> ClaimView {
    let health = match (claim.ready, late) {
        (true, _) => Health::Ready { since: start() },
        (false, false) => Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: None },
        (false, true) => Health::Failed(Failure::new(FailureClass::LaunchTimeout, "late")),
    };
    ClaimView {
        generation: u32::from(claim.generation),
        deleting: claim.deleting,
        uid: format!("{claim:?}"),
        disrupted: true,
        ..ClaimView::new(&name(claim), u32::from(claim.attempt), u32::from(claim.slot), health)
    }
}

/// The name of a claim in a view. Claims that share a name differ in `make`.
fn name(claim: &Claim) -> String {
    format!("{}-{}-{}-{}", claim.attempt, claim.slot, claim.generation, claim.make)
}

/// Whether the same claim always gets the same name.
pub fn names_are_stable() -> bool {
    IDENTITY.claim_name(1, 0) == IDENTITY.claim_name(1, 0)
}

fn updates() -> Vec<PodSetUpdate> {
    let node_selector = [(names::GANG.to_owned(), IDENTITY.id())].into();
    vec![PodSetUpdate { name: "main".into(), node_selector, ..PodSetUpdate::default() }]
}

/// The Workload as Kueue would write it.
fn workload(work: &Work) -> Workload {
    let reserved = !matches!(work.phase, KueuePhase::Queued | KueuePhase::Deleted);
    let mut conditions = Vec::new();
    let mut condition = |kind: &str, holds: bool, at: u8| {
        let at = start() + SignedDuration::from_secs(i64::from(at));
        let status = if holds { "True" } else { "False" };
        conditions.push(json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": at.to_string()}));
    };
    condition("QuotaReserved", reserved, work.second);
    let ran = matches!(
        work.phase,
        KueuePhase::Admitted | KueuePhase::Finished | KueuePhase::Evicting { ran: true }
    );
    condition("Admitted", ran, work.second);
    condition("Evicted", matches!(work.phase, KueuePhase::Evicting { .. }), work.second);
    condition("Finished", work.phase == KueuePhase::Finished, work.second);
    let mut workload: Workload = serde_json::from_value(json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": "train", "namespace": "team", "uid": UID, "creationTimestamp": start().to_string(),
            "annotations": work.journal.map(|journal| json!({(names::journal_key(CHECK)): journal.journal().encode()})),
        },
        "spec": {
            "active": work.active,
            "podSets": [{"name": "main", "count": SLOTS, "template": {"spec": {"containers": []}}}],
        },
        "status": {
            "conditions": conditions,
            "admission": reserved.then(|| json!({"clusterQueue": "q", "podSetAssignments": [{"name": "main", "count": SLOTS}]})),
            "schedulingStats": {"evictions": [{"count": work.evictions}]},
        },
    }))
    .unwrap();
    if let (Some(state), Some(status)) = (work.entry, workload.status.as_mut()) {
        status.admission_checks.push(CheckState {
            name: CHECK.into(),
            state,
            last_transition_time: start(),
            message: String::new(),
            requeue_after_seconds: Some(0),
            pod_set_updates: if state == Verdict::Ready { updates() } else { Vec::new() },
        });
    }
    workload
}
