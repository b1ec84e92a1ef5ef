//! A replica and one reconcile, write by write, in the order of the core's `reconcile`.
//!
//! Rule: between two requests anything else may happen. Each request or its reply may be lost, and the
//! replica may die.

use crate::core::{self, ModelJournal, ModelState, StepInput, Write};
use crate::world::{Broken, CachedView, Claim, KueuePhase, ModelPlan, ModelWorld, Work};
use setu_core::api::workload::Verdict;
use setu_core::gang::step::commit::Permitted;
use setu_core::gang::step::reconcile::{Next, STEPS};
use setu_core::gang::{Commit, Freshness, Precondition, Then};
use setu_core::planted::{Planted, is_planted};

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ModelReplica {
    pub ongoing: Option<Box<OngoingReconcile>>,
    /// Whether it made a write that the old cache does not show.
    pub has_written: bool,
}

/// A reconcile in progress.
#[expect(clippy::struct_excessive_bools, reason = "they do not depend on each other")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OngoingReconcile {
    seen: StepInput,
    /// The annotation as last read or written.
    stored: Option<ModelJournal>,
    next: NextRequest,
    /// At some instant since the reconcile began, the cluster's journal was the one it uses.
    current: bool,
    /// At some instant since the reconcile began, no claim existed.
    clean: bool,
    /// The last attempt whose nodes were all ready at some instant since the reconcile began, and its
    /// reservation.
    ready: Option<(u8, u8)>,
    /// The same, if it held when the reconcile began and at every read since.
    ready_before: Option<(u8, u8)>,
    /// At some instant since the reconcile began, the gang's plan failed.
    plan_failed: bool,
    /// Whether a step refused the gang, or ended its attempt, because of its plan.
    by_plan: bool,
    lawful: bool,
}

/// The next request of a reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NextRequest {
    /// Lists the claims from the API server.
    Read,
    /// Lists what plans are made from.
    ReadPlanObjects,
    /// Writes the journal, then runs these writes.
    Commit(Vec<Write>),
    /// Checks that the journal is unchanged, then runs these writes.
    Confirm { writes: Vec<Write>, failed: bool },
    /// Runs these writes, one after the other.
    Run { writes: Vec<Write>, failed: bool },
    /// Writes the journal at the end of a reconcile.
    Settle,
    /// Writes the verdict for Kueue.
    Report(Verdict),
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    /// The replica dies after the first of several concurrent writes.
    DiesAfterOne,
}

/// The old caches that a reconcile starts from; `None` where a cache is current.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caches<'p> {
    pub work: Option<&'p CachedView>,
    pub claims: Option<&'p CachedView>,
    pub plan: Option<&'p CachedView>,
}

impl ModelReplica {
    /// Starts a reconcile from these caches.
    pub fn start(
        world: &ModelWorld,
        old: Caches<'_>,
        (late, unread): (bool, bool),
    ) -> Option<OngoingReconcile> {
        let work = old.work.map_or(&world.work, |p| &p.work);
        if work.phase == KueuePhase::Deleted {
            return None;
        }
        let claims = old.claims.map_or(&world.claims, |p| &p.claims);
        let (journal, is_substitute) = core::load(work, claims)?;
        let ready = world.ready_attempt().map(|attempt| (attempt, world.reservation));
        let ongoing = OngoingReconcile {
            stored: work.journal,
            seen: StepInput {
                journal,
                is_substitute,
                work: work.clone(),
                claims: claims.clone(),
                freshness: Freshness::Cached,
                planned: old.plan.map_or(world.planned, |p| p.planned),
                plan_freshness: Freshness::Cached,
                late,
                unread,
            },
            next: NextRequest::Settle,
            current: world.work.journal == work.journal && world.work.phase != KueuePhase::Deleted,
            clean: world.is_clean(),
            ready,
            ready_before: ready,
            plan_failed: world.planned != ModelPlan::Provision,
            by_plan: false,
            lawful: true,
        };
        ongoing.advance()
    }
}

impl OngoingReconcile {
    /// Takes steps until the next request; `None` if the reconcile is over.
    fn advance(mut self) -> Option<Self> {
        for _ in 0..STEPS {
            let step = core::step_once(&self.seen);
            if let Some(moved) = step.moved {
                self.seen.journal = moved.journal;
                self.by_plan |= moved.by_plan;
                self.lawful &= moved.lawful;
            }
            match step.next {
                Next::ReadGang => {
                    self.next = NextRequest::Read;
                    return Some(self);
                }
                Next::ReadPlanObjects => {
                    self.next = NextRequest::ReadPlanObjects;
                    return Some(self);
                }
                Next::Step => {}
                Next::Commit(writes) if writes.is_empty() => panic!("a step has effects that write nothing"),
                Next::Commit(writes) if self.is_unsaved() && !is_planted(Planted::CreateWithoutJournal) => {
                    self.next = NextRequest::Commit(writes);
                    return Some(self);
                }
                Next::Commit(writes) => return self.after_commit(Commit::Unneeded, writes),
                Next::Report => break,
            }
        }
        if self.is_unsaved() {
            self.next = NextRequest::Settle;
            return Some(self);
        }
        self.report_verdict()
    }

    fn is_unsaved(&self) -> bool {
        self.seen.journal.is_stored && self.stored != Some(self.seen.journal)
    }

    /// Continues with those of the writes that are permitted after this commit.
    fn after_commit(mut self, commit: Commit, writes: Vec<Write>) -> Option<Self> {
        let permitted = Permitted::after(commit, &core::reservation(&self.seen.work), writes);
        let (writes, failed) = (permitted.effects, !matches!(commit, Commit::Unneeded | Commit::Written));
        if writes.is_empty() {
            return if failed { None } else { self.advance() };
        }
        self.next = if permitted.needs_confirmation {
            NextRequest::Confirm { writes, failed }
        } else {
            NextRequest::Run { writes, failed }
        };
        Some(self)
    }

    fn report_verdict(mut self) -> Option<Self> {
        self.next = NextRequest::Report(core::report(&self.seen)?);
        Some(self)
    }

    /// Makes the next request. Returns the reconcile if it continues.
    pub fn step(mut self, world: &mut ModelWorld, fate: Fate) -> Option<Self> {
        match std::mem::replace(&mut self.next, NextRequest::Read) {
            NextRequest::Read => self.read(world, fate),
            NextRequest::ReadPlanObjects => self.read_plan_objects(world, fate),
            NextRequest::Commit(writes) => self.commit(world, fate, writes),
            NextRequest::Confirm { writes, failed } => self.confirm(world, fate, writes, failed),
            NextRequest::Run { writes, failed } => self.run(world, fate, writes, failed),
            NextRequest::Settle => self.settle(world, fate),
            NextRequest::Report(verdict) => {
                if fate != Fate::RequestLost && world.work == self.seen.work {
                    self.record_verdict(world, verdict);
                }
                None
            }
        }
    }

    fn read(mut self, world: &ModelWorld, fate: Fate) -> Option<Self> {
        if fate != Fate::Answered {
            return None;
        }
        self.seen.claims.clone_from(&world.claims);
        self.seen.freshness = Freshness::Quorum;
        core::verify(&mut self.seen);
        self.note(world);
        self.advance()
    }

    fn read_plan_objects(mut self, world: &ModelWorld, fate: Fate) -> Option<Self> {
        if fate != Fate::Answered {
            return None;
        }
        (self.seen.planned, self.seen.plan_freshness) = (world.planned, Freshness::Quorum);
        self.note(world);
        self.advance()
    }

    /// Records what is true at this instant, for the properties.
    fn note(&mut self, world: &ModelWorld) {
        self.clean |= world.is_clean();
        self.plan_failed |= world.planned != ModelPlan::Provision;
        let ready = world.ready_attempt().map(|attempt| (attempt, world.reservation));
        self.ready_before = self.ready_before.filter(|before| Some(*before) == ready);
        if let Some(attempt) = world.ready_attempt() {
            self.ready = Some((attempt, world.reservation));
        }
    }

    /// Whether the API server accepts the journal.
    fn is_accepted(&self, work: &Work) -> bool {
        let is_permitted = match core::precondition(self.seen.journal, self.stored) {
            Precondition::Journal => true,
            Precondition::Workload => *work == self.seen.work,
        };
        work.phase != KueuePhase::Deleted && work.journal == self.stored && is_permitted
    }

    /// Writes the journal.
    fn write_journal(&mut self, world: &mut ModelWorld, fate: Fate) -> Commit {
        if fate == Fate::RequestLost {
            return Commit::Unanswered;
        }
        if !self.is_accepted(&world.work) {
            return Commit::Conflict;
        }
        self.check_write(world);
        world.work.journal = Some(self.seen.journal);
        world.announced = world.announced.max(self.seen.journal.attempt);
        if fate == Fate::ReplyLost {
            return Commit::Unanswered;
        }
        self.seen.work = world.work.clone();
        self.seen.is_substitute = false;
        self.stored = world.work.journal;
        self.current = true;
        Commit::Written
    }

    fn check_write(&self, world: &mut ModelWorld) {
        let (old, new) = (world.work.journal, self.seen.journal);
        if !self.lawful {
            world.breaks(Broken::Unlawful);
        }
        if new.attempt > world.announced && !self.clean {
            world.breaks(Broken::Overlap);
        }
        let rolled_back = old.is_some_and(|o| matches!(o.place, ModelState::RollingBack(_)));
        let goes_on = matches!(new.place, ModelState::RollingBack(_));
        if rolled_back && !goes_on && !self.clean {
            world.breaks(Broken::EarlyEnd);
        }
        let waited = old.filter(|o| matches!(o.place, ModelState::Provisioning | ModelState::WaitingReady));
        let up = waited.map(|o| (o.attempt, world.reservation));
        let gives_up = new.place == ModelState::RollingBack(Then::BackingOff);
        let was_up = up.is_some()
            && up == self.ready_before
            && world.ready_attempt() == up.map(|(attempt, _)| attempt);
        // A gang whose journal a tenant deleted starts with the times from its claims.
        if gives_up && was_up && !world.erased {
            world.breaks(Broken::GivenUpWhileUp);
        }
        if self.by_plan && !self.plan_failed {
            world.breaks(Broken::JudgedByOldPlan);
        }
        if gives_up && waited.is_some() && self.seen.unread {
            world.breaks(Broken::JudgedUnread);
        }
    }

    fn commit(mut self, world: &mut ModelWorld, fate: Fate, writes: Vec<Write>) -> Option<Self> {
        let commit = self.write_journal(world, fate);
        self.after_commit(commit, writes)
    }

    fn confirm(mut self, world: &ModelWorld, fate: Fate, writes: Vec<Write>, failed: bool) -> Option<Self> {
        // A write without a reply may have happened.
        let stands = world.work.journal == Some(self.seen.journal) || self.is_accepted(&world.work);
        if fate != Fate::Answered || world.work.phase == KueuePhase::Deleted || !stands {
            return None;
        }
        self.current = true;
        self.next = NextRequest::Run { writes, failed };
        Some(self)
    }

    /// Runs all writes, which a replica sends concurrently. If one is lost, it is the first.
    fn run(mut self, world: &mut ModelWorld, fate: Fate, writes: Vec<Write>, failed: bool) -> Option<Self> {
        self.seen.freshness = Freshness::Cached;
        for (n, write) in writes.into_iter().enumerate() {
            match (n, fate) {
                (0, Fate::RequestLost) => {}
                (1, Fate::DiesAfterOne) => return None,
                _ => self.write(world, write),
            }
        }
        if failed || fate != Fate::Answered { None } else { self.advance() }
    }

    fn write(&mut self, world: &mut ModelWorld, write: Write) {
        match write {
            Write::Create { attempt, slot, generation } => self.create(world, (attempt, slot, generation)),
            Write::Delete(claim) => self.delete(world, claim),
        }
    }

    /// Whether dying now may leave some of its writes undone.
    pub fn runs_many(&self) -> bool {
        matches!(&self.next, NextRequest::Run { writes, .. } if writes.len() > 1)
    }

    fn create(&mut self, world: &mut ModelWorld, name: (u8, u8, u8)) {
        let (attempt, slot, generation) = name;
        if !self.current {
            world.breaks(Broken::UnfencedCreate);
        }
        if attempt > world.announced {
            world.breaks(Broken::Unannounced);
        }
        let there = world.claims.iter().find(|c| c.name() == name).copied();
        let claim = match there {
            Some(claim) if core::names_are_stable() => claim,
            _ => {
                if there.is_some_and(|c| !c.deleting) {
                    world.breaks(Broken::DoubleSlot);
                }
                let make = world.next_make(attempt, slot, generation);
                let claim = Claim { attempt, slot, generation, make, ready: false, deleting: false };
                world.claims.push(claim);
                world.claims.sort_unstable();
                claim
            }
        };
        self.seen.claims.retain(|c| c.name() != name);
        self.seen.claims.push(claim);
        self.seen.claims.sort_unstable();
    }

    fn delete(&mut self, world: &mut ModelWorld, meant: Claim) {
        if !self.current {
            world.breaks(Broken::UnfencedDelete);
        }
        let same = |c: &Claim| (c.name(), c.make) == (meant.name(), meant.make);
        let hit = |c: &Claim| same(c) || is_planted(Planted::DeleteWithoutUid) && c.name() == meant.name();
        let wanted = !meant.is_superseded(&world.claims);
        let approved = world.work.journal.is_some_and(|j| {
            matches!(j.place, ModelState::Approved(_))
                && j.wants(&meant, &world.claims)
                && j.admission == core::admission(&world.work)
        });
        // Pods that Kueue started while the check was off do not use our nodes.
        let pods_run = world.pods_run()
            && !world.without_us
            && (approved || wanted && world.home == Some(meant.attempt));
        // After a tenant deletes the journal, an earlier reconcile may write an old one back, or a delete may arrive
        // that was right when it was sent. A gang that starts over, though, reads the claims first.
        let moved_on = world.work.journal != self.stored;
        let misled = world.erased && (self.seen.journal.attempt > 0 || moved_on);
        match world.claims.iter_mut().find(|c| hit(c)) {
            Some(claim) => {
                let (is_another, first) = (!same(claim), !claim.deleting);
                claim.deleting = true;
                if is_another {
                    world.breaks(Broken::WrongVictim);
                } else if pods_run && first && !misled {
                    world.breaks(Broken::Kill);
                }
                for seen in self.seen.claims.iter_mut().filter(|c| same(c)) {
                    seen.deleting = true;
                }
            }
            None => self.seen.claims.retain(|c| !same(c)),
        }
    }

    fn settle(mut self, world: &mut ModelWorld, fate: Fate) -> Option<Self> {
        if self.write_journal(world, fate) == Commit::Written { self.report_verdict() } else { None }
    }

    fn record_verdict(&self, world: &mut ModelWorld, verdict: Verdict) {
        let journal = self.seen.journal;
        match verdict {
            Verdict::Ready => {
                match self.ready {
                    // Ready changes nothing once Kueue has admitted.
                    _ if journal.slots == 0 || world.work.phase == KueuePhase::Admitted => {}
                    Some((attempt, reservation)) if attempt == journal.attempt => {
                        if reservation != world.reservation {
                            world.breaks(Broken::OldReady);
                        }
                    }
                    _ => world.breaks(Broken::DishonestReady),
                }
                world.home = (journal.slots > 0).then_some(journal.attempt);
            }
            Verdict::Retry | Verdict::Rejected => {
                let recorded = world
                    .work
                    .journal
                    .is_some_and(|j| matches!(j.place, ModelState::Yielded | ModelState::Rejected));
                if !recorded {
                    world.breaks(Broken::EarlyVerdict);
                }
                if world.without_us && world.work.phase == KueuePhase::Admitted {
                    world.breaks(Broken::UnboughtEviction);
                }
            }
            Verdict::Pending => world.home = None,
        }
        world.work.entry = Some(verdict);
    }
}

impl std::fmt::Display for OngoingReconcile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let StepInput { journal, freshness, late, unread, .. } = &self.seen;
        write!(
            f,
            "{:?}, {:?} {}, {freshness:?}, late {late}, unread {unread}",
            self.next, journal.place, journal.attempt
        )
    }
}
