//! A replica and one look of it, write by write, in the order of `controllers::gang`: the journal, the
//! claims it speaks of, at last the verdict.
//!
//! Rule: between any two of its requests everything else may happen, each request or its reply may be
//! lost, and the replica may die.

use crate::core::{self, Kept, Place, Sighting, Turn, Write};
use crate::world::{Broken, Claim, Past, Phase, World};
use setu_core::api::workload::Verdict;
use setu_core::gang::{Freshness, Then};

/// Turns of one look, as the controller bounds them.
const TURNS: usize = 16;

/// One replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Replica {
    pub look: Option<Box<Look>>,
    /// Whether it knows of a write of its own that the old cache does not show.
    pub has_written: bool,
}

/// A look under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Look {
    seen: Sighting,
    /// The annotation as last read or written.
    stored: Option<Kept>,
    next: Request,
    /// At some instant since the look began, the cluster's journal was the one it goes by.
    current: bool,
    /// At some instant since the look began, no claim existed.
    clean: bool,
    /// The last attempt all nodes of which were ready at some instant since the look began, and under
    /// which reservation.
    ready: Option<(u8, u8)>,
    /// The same, if it was so when the look began and whenever it read since.
    ready_before: Option<(u8, u8)>,
    lawful: bool,
}

/// The request a look makes next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Lists the claims past the cache.
    Read,
    /// Writes the journal, then runs these.
    Commit(Vec<Write>),
    /// Asks whether the journal still stands, then runs these.
    Confirm { writes: Vec<Write>, failed: bool },
    /// Runs these, one after the other.
    Run { writes: Vec<Write>, failed: bool },
    /// Writes the journal at the end of a look.
    Settle,
    /// Tells Kueue.
    Tell(Verdict),
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    /// The replica dies after the first of the writes that it sends at the same time.
    DiesAfterOne,
}

impl Replica {
    /// Starts a look, with an old cache of the Workload or of the claims where one is given.
    pub fn start(
        world: &World,
        old_work: Option<&Past>,
        old_claims: Option<&Past>,
        (late, unread): (bool, bool),
    ) -> Option<Look> {
        let work = old_work.map_or(&world.work, |p| &p.work);
        if work.phase == Phase::Deleted {
            return None;
        }
        let claims = old_claims.map_or(&world.claims, |p| &p.claims);
        let (journal, fresh) = core::open(work, claims)?;
        let ready = world.ready_attempt().map(|attempt| (attempt, world.reservation));
        let look = Look {
            stored: work.journal,
            seen: Sighting {
                journal,
                fresh,
                work: work.clone(),
                claims: claims.clone(),
                freshness: Freshness::Cached,
                late,
                unread,
            },
            next: Request::Settle,
            current: world.work.journal == work.journal && world.work.phase != Phase::Deleted,
            clean: world.is_clean(),
            ready,
            ready_before: ready,
            lawful: true,
        };
        look.advance()
    }
}

impl Look {
    /// Turns until the next request; `None` if the look is over.
    fn advance(mut self) -> Option<Self> {
        for _ in 0..TURNS {
            match core::turn(&self.seen) {
                Turn::Still => break,
                Turn::NeedsQuorumRead => {
                    self.next = Request::Read;
                    return Some(self);
                }
                Turn::Moved { journal, writes, lawful } => {
                    self.seen.journal = journal;
                    self.lawful &= lawful;
                    if !writes.is_empty() {
                        self.next = self.before(writes);
                        return Some(self);
                    }
                }
            }
        }
        if self.is_unsaved() {
            self.next = Request::Settle;
            return Some(self);
        }
        self.tell()
    }

    fn is_unsaved(&self) -> bool {
        self.seen.journal.is_durable() && self.stored != Some(self.seen.journal)
    }

    /// What comes before these writes.
    fn before(&self, writes: Vec<Write>) -> Request {
        if planted!(CreateWithoutJournal) {
            return Request::Run { writes, failed: false };
        }
        match self.is_unsaved() {
            true => Request::Commit(writes),
            false if planted!(ActOnStaleJournal) => Request::Run { writes, failed: false },
            false => Request::Confirm { writes, failed: false },
        }
    }

    fn tell(mut self) -> Option<Self> {
        self.next = Request::Tell(core::report(&self.seen)?);
        Some(self)
    }

    /// Makes the next request; returns the look as it goes on, if it does.
    pub fn step(mut self, world: &mut World, fate: Fate) -> Option<Self> {
        match std::mem::replace(&mut self.next, Request::Read) {
            Request::Read => self.read(world, fate),
            Request::Commit(writes) => self.commit(world, fate, writes),
            Request::Confirm { writes, failed } => self.confirm(world, fate, writes, failed),
            Request::Run { writes, failed } => self.run(world, fate, writes, failed),
            Request::Settle => self.settle(world, fate),
            Request::Tell(verdict) => {
                if fate != Fate::RequestLost && world.work == self.seen.work {
                    self.told(world, verdict);
                }
                None
            }
        }
    }

    fn read(mut self, world: &World, fate: Fate) -> Option<Self> {
        if fate != Fate::Answered {
            return None;
        }
        self.seen.claims.clone_from(&world.claims);
        self.seen.freshness = Freshness::Quorum;
        self.note(world);
        self.advance()
    }

    /// Notes what is true at this instant, for the properties.
    fn note(&mut self, world: &World) {
        self.clean |= world.is_clean();
        let ready = world.ready_attempt().map(|attempt| (attempt, world.reservation));
        self.ready_before = self.ready_before.filter(|before| Some(*before) == ready);
        if let Some(attempt) = world.ready_attempt() {
            self.ready = Some((attempt, world.reservation));
        }
    }

    /// Writes the journal; returns whether it was written, or `None` if another one stands there.
    fn write_journal(&mut self, world: &mut World, fate: Fate) -> Option<bool> {
        if fate == Fate::RequestLost {
            return Some(false);
        }
        // A write that takes back what was approved demands the very Workload that was read.
        let revokes = self.revokes();
        if world.work.phase == Phase::Deleted
            || world.work.journal != self.stored
            || revokes && world.work != self.seen.work
        {
            return None;
        }
        self.check_write(world);
        world.work.journal = Some(self.seen.journal);
        world.announced = world.announced.max(self.seen.journal.attempt);
        if fate == Fate::ReplyLost {
            return Some(false);
        }
        self.seen.work = world.work.clone();
        self.seen.fresh = false;
        self.stored = world.work.journal;
        self.current = true;
        Some(true)
    }

    fn revokes(&self) -> bool {
        matches!(self.seen.journal.place, Place::RollingBack(_) | Place::Provisioning)
            && self.stored.is_some_and(|s| matches!(s.place, Place::Approved(_)))
    }

    fn check_write(&self, world: &mut World) {
        let (old, new) = (world.work.journal, self.seen.journal);
        if !self.lawful {
            world.breaks(Broken::Unlawful);
        }
        if new.attempt > world.announced && !self.clean {
            world.breaks(Broken::Overlap);
        }
        let rolled_back = old.is_some_and(|o| matches!(o.place, Place::RollingBack(_)));
        let goes_on = matches!(new.place, Place::RollingBack(_));
        if rolled_back && !goes_on && !self.clean {
            world.breaks(Broken::EarlyEnd);
        }
        let waited = old.filter(|o| matches!(o.place, Place::Provisioning | Place::WaitingReady));
        let up = waited.map(|o| (o.attempt, world.reservation));
        let gives_up = new.place == Place::RollingBack(Then::BackingOff);
        let was_up = up.is_some()
            && up == self.ready_before
            && world.ready_attempt() == up.map(|(attempt, _)| attempt);
        // A gang whose journal a tenant deleted begins with the times that its claims tell.
        if gives_up && was_up && !world.erased {
            world.breaks(Broken::GivenUpWhileUp);
        }
        if gives_up && waited.is_some() && self.seen.unread {
            world.breaks(Broken::JudgedUnread);
        }
    }

    fn commit(mut self, world: &mut World, fate: Fate, mut writes: Vec<Write>) -> Option<Self> {
        let written = self.write_journal(world, fate);
        if written == Some(true) {
            self.next = Request::Run { writes, failed: false };
            return Some(self);
        }
        if written == Some(false) && core::is_held(&self.seen.work) {
            return None;
        }
        writes.retain(|w| matches!(w, Write::Delete(_)));
        if written.is_none() && !planted!(ActOnConflict) || writes.is_empty() {
            return None;
        }
        self.next = if planted!(ActOnStaleJournal) || planted!(ActOnConflict) {
            Request::Run { writes, failed: true }
        } else {
            Request::Confirm { writes, failed: true }
        };
        Some(self)
    }

    fn confirm(mut self, world: &World, fate: Fate, writes: Vec<Write>, failed: bool) -> Option<Self> {
        let found = world.work.journal;
        let stands = found == self.stored || found == Some(self.seen.journal);
        if fate != Fate::Answered || world.work.phase == Phase::Deleted || !stands {
            return None;
        }
        self.current = true;
        self.next = Request::Run { writes, failed };
        Some(self)
    }

    /// Runs all writes, which a replica sends at the same time; of those that are lost, the first is.
    fn run(mut self, world: &mut World, fate: Fate, writes: Vec<Write>, failed: bool) -> Option<Self> {
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

    fn write(&mut self, world: &mut World, write: Write) {
        match write {
            Write::Create { attempt, slot, generation } => self.create(world, (attempt, slot, generation)),
            Write::Delete(claim) => self.delete(world, claim),
        }
    }

    /// Whether dying now may leave a part of its writes behind.
    pub fn runs_many(&self) -> bool {
        matches!(&self.next, Request::Run { writes, .. } if writes.len() > 1)
    }

    fn create(&mut self, world: &mut World, name: (u8, u8, u8)) {
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

    fn delete(&mut self, world: &mut World, meant: Claim) {
        if !self.current {
            world.breaks(Broken::UnfencedDelete);
        }
        let same = |c: &Claim| (c.name(), c.make) == (meant.name(), meant.make);
        let hit = |c: &Claim| same(c) || planted!(DeleteWithoutUid) && c.name() == meant.name();
        let wanted = !meant.is_superseded(&world.claims);
        let approved = world.work.journal.is_some_and(|j| {
            matches!(j.place, Place::Approved(_))
                && j.wants(&meant, &world.claims)
                && j.admission == core::admission(&world.work)
        });
        // Pods that Kueue started while our check was off know of no node of ours, and run elsewhere.
        let pods_run = world.pods_run()
            && !world.without_us
            && (approved || wanted && world.home == Some(meant.attempt));
        // Whose journal a tenant deletes, may get an old one back from a look that began before, or a delete that
        // was right when it was sent. Who starts anew, though, asks the claims first.
        let moved_on = world.work.journal != self.stored;
        let misled = world.erased && (self.seen.journal.attempt > 0 || moved_on);
        match world.claims.iter_mut().find(|c| hit(c)) {
            Some(claim) => {
                let (stranger, first) = (!same(claim), !claim.deleting);
                claim.deleting = true;
                if stranger {
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

    fn settle(mut self, world: &mut World, fate: Fate) -> Option<Self> {
        if self.write_journal(world, fate) == Some(true) { self.tell() } else { None }
    }

    fn told(&self, world: &mut World, verdict: Verdict) {
        let journal = self.seen.journal;
        match verdict {
            Verdict::Ready => {
                match self.ready {
                    // Where Kueue has admitted already, the word changes nothing.
                    _ if journal.slots == 0 || world.work.phase == Phase::Admitted => {}
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
                let said =
                    world.work.journal.is_some_and(|j| matches!(j.place, Place::Yielded | Place::Rejected));
                if !said {
                    world.breaks(Broken::EarlyVerdict);
                }
                if world.without_us && world.work.phase == Phase::Admitted {
                    world.breaks(Broken::UnboughtEviction);
                }
            }
            Verdict::Pending => world.home = None,
        }
        world.work.entry = Some(verdict);
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Sighting { journal, freshness, late, unread, .. } = &self.seen;
        write!(
            f,
            "{:?}, {:?} {}, {freshness:?}, late {late}, unread {unread}",
            self.next, journal.place, journal.attempt
        )
    }
}
