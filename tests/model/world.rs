//! The cluster of the model: one Workload, its claims, and what Kueue, Karpenter, an administrator or
//! chance may do to them.
//!
//! Rule: every move is one commit of the API server. `replica` has what replicas do.

use crate::core::{self, ModelJournal, ModelState, SLOTS};
use crate::replica::{Caches, ModelReplica};
use setu_core::api::workload::Verdict;

/// How far Kueue is with the Workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KueuePhase {
    /// No quota.
    Queued,
    /// Quota is reserved.
    Reserved,
    /// Its pods may run.
    Admitted,
    /// Evicted=True, quota still held; `ran` if pods are still running.
    Evicting { ran: bool },
    /// All pods are done.
    Finished,
    /// The object is gone.
    Deleted,
}

/// The Workload object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Work {
    pub phase: KueuePhase,
    /// The time of the last reservation, in seconds.
    pub second: u8,
    pub evictions: u8,
    pub active: bool,
    /// Our check's entry; absent while the check is not on the Workload.
    pub entry: Option<Verdict>,
    /// The annotation.
    pub journal: Option<ModelJournal>,
}

/// A NodeClaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    pub attempt: u8,
    pub slot: u8,
    /// The replacement round that created it.
    pub generation: u8,
    /// Stands for the UID: differs between objects that had the same name.
    pub make: u8,
    pub ready: bool,
    pub deleting: bool,
}

impl Claim {
    /// The key that a create looks for.
    pub fn name(self) -> (u8, u8, u8) {
        (self.attempt, self.slot, self.generation)
    }

    /// Whether a later claim has replaced it.
    pub fn is_superseded(self, all: &[Self]) -> bool {
        let later = |c: &Self| !c.deleting && c.generation > self.generation;
        all.iter().any(|c| (c.attempt, c.slot) == (self.attempt, self.slot) && later(c))
    }
}

/// A snapshot that a cache may still show.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CachedView {
    pub work: Work,
    pub claims: Vec<Claim>,
    pub planned: ModelPlan,
}

/// The outcome of a plan of the gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelPlan {
    Provision,
    /// It waits for capacity.
    Wait,
    /// It is refused.
    Refuse,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MoveBudget {
    /// Replicas that die during a reconcile.
    pub crashes: u8,
    /// Reconciles that start from an old cache.
    pub stale: u8,
    /// Reconciles that start while the terms of an attempt cannot be read.
    pub unread: u8,
    /// Requests or replies that are lost.
    pub lost: u8,
    /// Claims that Karpenter, a cloud or a user deletes.
    pub losses: u8,
    /// Reservations.
    pub reservations: u8,
    /// Evictions that Kueue decides on.
    pub evictions: u8,
    /// Quota that is lost without an eviction.
    pub quota_losses: u8,
    /// Times the check is removed from the Workload.
    pub delistings: u8,
    /// Times a tenant deletes the journal.
    pub erasures: u8,
    /// Times the Workload is deleted.
    pub deletions: u8,
    /// Times the gang's plan fails: capacity runs out, or an administrator narrows what it may have.
    pub plan_failures: u8,
}

/// Violations, each with the text of its property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Broken {
    DishonestReady,
    OldReady,
    DoubleSlot,
    Overlap,
    Unannounced,
    UnfencedCreate,
    UnfencedDelete,
    WrongVictim,
    Unlawful,
    EarlyEnd,
    EarlyVerdict,
    GivenUpWhileUp,
    JudgedUnread,
    Kill,
    UnboughtEviction,
    Orphan,
    JudgedByOldPlan,
}

impl Broken {
    pub const ALL: [(Self, &'static str); 17] = [
        (
            Self::DishonestReady,
            "Ready is reported only after all nodes were seen ready in the same reconcile",
        ),
        (Self::OldReady, "Ready is never reported for an admission that is over"),
        (Self::DoubleSlot, "a slot never has two claims of one generation"),
        (Self::Overlap, "an attempt starts only after no claim was seen to be left"),
        (Self::Unannounced, "a claim is created only after its attempt is in the journal"),
        (
            Self::UnfencedCreate,
            "no reconcile that began after the rollback of an attempt creates a claim of it",
        ),
        (Self::UnfencedDelete, "no reconcile deletes on a journal that was overtaken before it began"),
        (Self::WrongVictim, "the object that is deleted is the one that was read"),
        (Self::Unlawful, "every journal write is a path of the statechart"),
        (Self::EarlyEnd, "a rollback ends only after no claim was seen to be left"),
        (Self::EarlyVerdict, "Retry and Rejected are reported only once the journal says so"),
        (
            Self::GivenUpWhileUp,
            "an attempt is not given up by a reconcile that finds all nodes ready, from before it began on",
        ),
        (Self::JudgedUnread, "no attempt is given up by a reconcile that does not know what it is judged by"),
        (Self::Kill, "no node of an admitted gang is taken away while its reservation stands"),
        (Self::UnboughtEviction, "a gang that was admitted without us is not evicted by us"),
        (Self::Orphan, "once nothing moves, every claim is wanted"),
        (
            Self::JudgedByOldPlan,
            "no plan refuses a gang or ends its attempt unless it failed at some instant of the reconcile",
        ),
    ];
}

/// The whole state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelWorld {
    pub work: Work,
    pub claims: Vec<Claim>,
    pub replicas: [ModelReplica; 2],
    /// The plan objects, by the outcome of a plan that is made from them.
    pub planned: ModelPlan,
    pub past: Option<CachedView>,
    pub budget: MoveBudget,
    /// The number of distinct reservations so far.
    pub reservation: u8,
    /// Evictions up to the last reservation.
    evictions_before: u8,
    /// The attempt that was reported Ready under this reservation.
    pub home: Option<u8>,
    /// Whether a tenant has deleted the journal.
    pub erased: bool,
    /// Whether Kueue admitted while our check was off the Workload.
    pub without_us: bool,
    /// The highest attempt that was ever in a journal.
    pub announced: u8,
    /// How many objects have had each name.
    makes: [[[u8; 4]; SLOTS as usize]; 8],
    pub broken: Option<Broken>,
}

/// A move by anyone but a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelMove {
    Reserve {
        same_second: bool,
    },
    Admit,
    Evict,
    ReactToVerdict,
    Release,
    LoseQuota,
    Finish,
    Delist,
    Relist,
    DeleteWorkload,
    EraseJournal,
    FailPlan(ModelPlan),
    RepairPlan,
    Launch(usize),
    Lose(usize),
    Finalize(usize),
    Sweep(usize),
    /// From here on a cache may show the current state.
    Remember,
}

impl ModelMove {
    /// Whether it is not a fault: it happens by itself sooner or later.
    pub fn is_calm(self) -> bool {
        !matches!(
            self,
            Self::Evict
                | Self::LoseQuota
                | Self::Delist
                | Self::DeleteWorkload
                | Self::EraseJournal
                | Self::FailPlan(_)
                | Self::Lose(_)
                | Self::Remember
        )
    }
}

impl ModelWorld {
    pub fn new(budget: MoveBudget) -> Self {
        let work = Work {
            phase: KueuePhase::Queued,
            second: 0,
            evictions: 0,
            active: true,
            entry: Some(Verdict::Pending),
            journal: None,
        };
        Self {
            work,
            claims: Vec::new(),
            replicas: [ModelReplica::default(), ModelReplica::default()],
            planned: ModelPlan::Provision,
            past: None,
            budget,
            reservation: 0,
            evictions_before: 0,
            home: None,
            erased: false,
            without_us: false,
            announced: 0,
            makes: Default::default(),
            broken: None,
        }
    }

    /// Every move that is possible now.
    pub fn moves(&self) -> Vec<ModelMove> {
        let (work, budget) = (&self.work, &self.budget);
        let holds = matches!(work.phase, KueuePhase::Reserved | KueuePhase::Admitted);
        let exists = work.phase != KueuePhase::Deleted;
        let answered = matches!(work.entry, Some(Verdict::Retry | Verdict::Rejected));
        let listed = work.entry.is_some();
        let may_admit =
            work.phase == KueuePhase::Reserved && matches!(work.entry, None | Some(Verdict::Ready));
        let can_reserve = work.phase == KueuePhase::Queued && work.active && budget.reservations > 0;
        let works = self.planned == ModelPlan::Provision;
        let runs = self.claims.iter().filter(|c| c.ready && !c.deleting).count() >= usize::from(SLOTS);
        let mut moves: Vec<ModelMove> = [
            (can_reserve, ModelMove::Reserve { same_second: false }),
            (can_reserve && work.second > 0, ModelMove::Reserve { same_second: true }),
            (may_admit, ModelMove::Admit),
            (holds && budget.evictions > 0, ModelMove::Evict),
            (holds && answered, ModelMove::ReactToVerdict),
            (matches!(work.phase, KueuePhase::Evicting { .. }), ModelMove::Release),
            (work.phase == KueuePhase::Reserved && budget.quota_losses > 0, ModelMove::LoseQuota),
            (work.phase == KueuePhase::Admitted && (runs || self.without_us), ModelMove::Finish),
            (holds && listed && budget.delistings > 0, ModelMove::Delist),
            (exists && !listed, ModelMove::Relist),
            (exists && budget.deletions > 0, ModelMove::DeleteWorkload),
            (work.journal.is_some() && budget.erasures > 0, ModelMove::EraseJournal),
            (works && budget.plan_failures > 0, ModelMove::FailPlan(ModelPlan::Wait)),
            (works && budget.plan_failures > 0, ModelMove::FailPlan(ModelPlan::Refuse)),
            (!works, ModelMove::RepairPlan),
            (budget.stale > 0 && self.past.is_none(), ModelMove::Remember),
        ]
        .into_iter()
        .filter_map(|(possible, action)| possible.then_some(action))
        .collect();
        // Slots are interchangeable, so only the first candidate moves.
        moves.extend(self.claims.iter().position(|c| c.deleting).map(ModelMove::Finalize));
        moves.extend(self.claims.iter().position(|c| !c.deleting && !c.ready).map(ModelMove::Launch));
        for (n, _) in self.claims.iter().enumerate().filter(|(_, c)| !c.deleting) {
            if budget.losses > 0 {
                moves.push(ModelMove::Lose(n));
            }
            if !exists {
                moves.push(ModelMove::Sweep(n));
            }
        }
        moves
    }

    /// Makes a move.
    pub fn make(&mut self, action: ModelMove) {
        match action {
            ModelMove::Reserve { same_second } => {
                self.budget.reservations -= 1;
                let alike = same_second && self.work.evictions == self.evictions_before;
                self.reservation += u8::from(!alike);
                self.evictions_before = self.work.evictions;
                self.home = None;
                self.without_us = false;
                self.work.phase = KueuePhase::Reserved;
                self.work.second += u8::from(!same_second);
            }
            ModelMove::Admit => {
                self.without_us = self.work.entry.is_none();
                self.home = self.home.filter(|_| !self.without_us);
                self.work.phase = KueuePhase::Admitted;
            }
            ModelMove::Evict => {
                self.budget.evictions -= 1;
                self.evict();
            }
            ModelMove::ReactToVerdict => {
                self.work.active &= self.work.entry != Some(Verdict::Rejected);
                self.evict();
            }
            ModelMove::Release => self.work.phase = KueuePhase::Queued,
            ModelMove::LoseQuota => {
                self.budget.quota_losses -= 1;
                self.work.phase = KueuePhase::Queued;
            }
            ModelMove::Finish => self.work.phase = KueuePhase::Finished,
            ModelMove::Delist => {
                self.budget.delistings -= 1;
                self.work.entry = None;
            }
            ModelMove::Relist => self.work.entry = Some(Verdict::Pending),
            ModelMove::DeleteWorkload => {
                self.budget.deletions -= 1;
                self.work.phase = KueuePhase::Deleted;
                self.work.journal = None;
            }
            ModelMove::EraseJournal => {
                self.budget.erasures -= 1;
                self.erased = true;
                self.work.journal = None;
            }
            ModelMove::FailPlan(planned) => {
                self.budget.plan_failures -= 1;
                self.planned = planned;
            }
            ModelMove::RepairPlan => self.planned = ModelPlan::Provision,
            ModelMove::Launch(n) => self.claims[n].ready = true,
            ModelMove::Lose(n) => {
                self.budget.losses -= 1;
                self.claims[n].deleting = true;
            }
            ModelMove::Finalize(n) => {
                self.claims.remove(n);
            }
            ModelMove::Sweep(n) => self.claims[n].deleting = true,
            ModelMove::Remember => {
                let (work, claims) = (self.work.clone(), self.claims.clone());
                self.past = Some(CachedView { work, claims, planned: self.planned });
                for replica in &mut self.replicas {
                    replica.has_written = false;
                }
            }
        }
    }

    fn evict(&mut self) {
        self.work.phase = KueuePhase::Evicting { ran: self.work.phase == KueuePhase::Admitted };
        self.work.evictions += 1;
        if self.work.entry.is_some() {
            self.work.entry = Some(Verdict::Pending);
        }
    }

    /// The number of an object that is about to get this name.
    pub fn next_make(&mut self, attempt: u8, slot: u8, generation: u8) -> u8 {
        let makes = &mut self.makes[usize::from(attempt)][usize::from(slot)][usize::from(generation)];
        *makes += 1;
        *makes
    }

    /// Whether pods of the gang may be running under a current reservation.
    pub fn pods_run(&self) -> bool {
        matches!(self.work.phase, KueuePhase::Admitted | KueuePhase::Evicting { ran: true })
    }

    /// Whether no claim is left.
    pub fn is_clean(&self) -> bool {
        self.claims.is_empty()
    }

    /// The attempt whose slots all have a ready node.
    pub fn ready_attempt(&self) -> Option<u8> {
        let ready = |attempt: u8| {
            (0..SLOTS).all(|slot| {
                let up = |c: &Claim| (c.attempt, c.slot) == (attempt, slot) && c.ready && !c.deleting;
                self.claims.iter().any(up)
            })
        };
        self.claims.iter().map(|c| c.attempt).find(|attempt| ready(*attempt))
    }

    pub fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    /// Whether no replica has anything to do and no deletion is in progress.
    pub fn is_still(&self) -> bool {
        let idle = self.replicas.iter().all(|r| r.ongoing.is_none());
        let sweeping = self.work.phase == KueuePhase::Deleted && !self.claims.is_empty();
        let evicting = matches!(self.work.phase, KueuePhase::Evicting { .. });
        idle && !sweeping
            && !evicting
            && self.claims.iter().all(|c| !c.deleting)
            && [false, true]
                .iter()
                .all(|late| ModelReplica::start(self, Caches::default(), (*late, false)).is_none())
    }

    /// Whether everything may stay as it is: nothing is held needlessly, and nothing waits for us.
    pub fn is_settled(&self) -> bool {
        if !self.is_still() {
            return false;
        }
        match self.work.phase {
            KueuePhase::Deleted | KueuePhase::Finished => self.is_clean(),
            KueuePhase::Queued => self.is_clean() && self.work.entry != Some(Verdict::Ready),
            KueuePhase::Admitted => match (self.work.entry, self.work.journal) {
                (None, _) => true,
                (Some(Verdict::Ready), Some(journal)) => {
                    let whole = self.ready_attempt() == Some(journal.attempt);
                    matches!(journal.place, ModelState::Approved(_))
                        && journal.admission == core::admission(&self.work)
                        && (whole || !journal.may_replace())
                }
                _ => false,
            },
            KueuePhase::Reserved | KueuePhase::Evicting { .. } => false,
        }
    }
}
