//! Every gang as this replica last saw it: the source of spans, Events and gauges.
//!
//! Rule: only the gangs' reconciles write it, and nothing is decided on it.

use super::board::uid_of;
use super::memory::lock;
use crate::api::{NodeClaim, Workload};
use crate::gang::event::Reason;
use crate::gang::identity::gang_of;
use crate::gang::reservation::Ending;
use crate::gang::trace::Subject;
use crate::gang::{Journal, StateName};
use crate::names;
use crate::plan::Outcome;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// The most unanswered journal writes kept of one gang. The newest count: an older one arrives late, if ever.
const UNANSWERED_KEPT: usize = 4;

/// Gangs by their ids.
#[derive(Debug, Default)]
pub struct GangRegistry {
    gangs: Mutex<BTreeMap<String, GangEntry>>,
    unanswered: Mutex<BTreeMap<String, Vec<Unanswered>>>,
    orphaned: Mutex<BTreeMap<String, Orphaned>>,
}

/// What is kept about a gang whose Workload is gone while its NodeClaims still exist.
#[derive(Debug)]
struct Orphaned {
    /// UID of the Workload.
    workload: String,
    /// Names of its NodeClaims that are not measured yet.
    claims: BTreeSet<String>,
    attempt: u32,
    /// Why that attempt was wasted.
    reason: Reason,
}

/// Where a gang is, as committed.
#[derive(Debug)]
pub struct GangEntry {
    object: ObjectRef<Workload>,
    journal: Journal,
    subject: Subject,
    /// The last wait notice for the gang's owner, and after which transition.
    reported: (u64, String),
    /// Whether its wait has no deadline: for another check, or an administrator.
    lasts: bool,
}

impl GangEntry {
    /// Where a gang is. `lasts` says that its wait has no deadline.
    pub fn new(workload: &Workload, journal: &Journal, subject: Subject, lasts: bool) -> Self {
        let object = ObjectRef::from_obj(workload);
        Self { object, journal: journal.clone(), subject, reported: <(u64, String)>::default(), lasts }
    }
}

/// A journal write without a reply, with everything to report if it did happen.
#[derive(Debug)]
pub struct Unanswered {
    /// What was written.
    pub journal: String,
    /// Number of the last transition in it.
    pub seq: u64,
    /// Where the gang was then, for users.
    pub sentence: String,
    /// Its transitions: the journal before each, and after it.
    pub steps: Vec<(Journal, Journal)>,
    /// The gang's claims as they were then.
    pub claims: Vec<NodeClaim>,
    /// The plan at that time.
    pub plan: Option<Outcome>,
}

impl GangRegistry {
    fn gangs(&self) -> MutexGuard<'_, BTreeMap<String, GangEntry>> {
        lock(&self.gangs)
    }

    fn unanswered(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Unanswered>>> {
        lock(&self.unanswered)
    }

    fn orphaned(&self) -> MutexGuard<'_, BTreeMap<String, Orphaned>> {
        lock(&self.orphaned)
    }

    /// Records where a gang is, if its Workload `is_there`; returns whether it is. That is checked under the lock,
    /// because a deletion forgets the gangs only once, at any moment of a reconcile.
    pub fn note(&self, entry: GangEntry, is_there: impl FnOnce() -> bool) -> bool {
        let mut gangs = self.gangs();
        if !is_there() {
            return false;
        }
        let gang = entry.subject.gang.clone();
        let reported = gangs.remove(&gang).map(|before| before.reported).unwrap_or_default();
        gangs.insert(gang, GangEntry { reported, ..entry });
        true
    }

    /// Keeps the reports of a write without a reply, if its Workload `is_there`.
    pub fn keep(&self, gang: &str, write: Unanswered, is_there: impl FnOnce() -> bool) {
        let mut all = self.unanswered();
        if !is_there() {
            return;
        }
        let kept = all.entry(gang.to_owned()).or_default();
        if kept.len() == UNANSWERED_KEPT {
            kept.remove(0);
        }
        kept.push(write);
    }

    /// Takes the unanswered write that led to this journal. `seq` is the number of the journal's last transition. Forgets
    /// writes that can no longer appear.
    pub fn turned_out(&self, gang: &str, journal: Option<&str>, seq: u64) -> Option<Unanswered> {
        let mut all = self.unanswered();
        let kept = all.remove(gang)?;
        let (mut happened, others): (Vec<_>, Vec<_>) =
            kept.into_iter().partition(|write| Some(write.journal.as_str()) == journal);
        let may_appear: Vec<_> = others.into_iter().filter(|write| write.seq > seq).collect();
        if !may_appear.is_empty() {
            all.insert(gang.to_owned(), may_appear);
        }
        happened.pop()
    }

    /// Whether this replica has reconciled the gang before.
    pub fn knows(&self, gang: &str) -> bool {
        self.gangs().contains_key(gang)
    }

    /// Records the wait notice for a gang's owner; returns whether it is new.
    pub fn is_news(&self, gang: &str, seq: u64, topic: &str) -> bool {
        let mut gangs = self.gangs();
        let Some(entry) = gangs.get_mut(gang) else { return false };
        let reported = (seq, topic.to_owned());
        let new = entry.reported != reported;
        entry.reported = reported;
        new
    }

    /// Forgets a gang whose Workload is gone, and returns where it was. Why its attempt was wasted is kept until its
    /// NodeClaims `claims` are measured. An approved attempt that `ran` was not wasted.
    pub fn forget(&self, gang: &str, ran: bool, claims: BTreeSet<String>) -> Option<(Journal, Subject)> {
        self.unanswered().remove(gang);
        let GangEntry { journal, subject, object, .. } = self.gangs().remove(gang)?;
        let attempt = journal.memory.attempt;
        let unused = match journal.state.name() {
            StateName::Provisioning | StateName::WaitingReady => Some(Reason::Ended(Ending::Deleted)),
            StateName::Approved if !ran => Some(Reason::Ended(Ending::Deleted)),
            _ => journal.taken_back(attempt),
        };
        if let Some(reason) = unused.filter(|_| !claims.is_empty()) {
            let workload = uid_of(&object).to_owned();
            self.orphaned().insert(gang.to_owned(), Orphaned { workload, claims, attempt, reason });
        }
        Some((journal, subject))
    }

    /// Records that a NodeClaim of a deleted Workload was measured. After the last one, the reason is forgotten.
    pub fn forget_orphaned(&self, workload: &str, claim: &str) {
        self.orphaned().retain(|_, orphaned| {
            let left = !orphaned.claims.remove(claim) || !orphaned.claims.is_empty();
            left || orphaned.workload != workload
        });
    }

    /// Forgets a gang that this replica no longer acts for, and returns where it was.
    pub fn forget_term(&self, gang: &str) -> Option<(Journal, Subject)> {
        self.unanswered().remove(gang);
        let GangEntry { journal, subject, .. } = self.gangs().remove(gang)?;
        Some((journal, subject))
    }

    /// Like [`Self::forget_orphaned`], for all Workloads whose UID fits.
    pub fn forget_orphaned_where(&self, fits: impl Fn(&str) -> bool) {
        self.orphaned().retain(|_, orphaned| !fits(&orphaned.workload));
    }

    /// How many gangs are known, how many have unanswered writes, and how many have only NodeClaims left.
    pub fn counts(&self) -> [(&'static str, usize); 3] {
        let Self { gangs, unanswered, orphaned } = self;
        let (gangs, unanswered, orphaned) = (lock(gangs), lock(unanswered), lock(orphaned));
        [("seen", gangs.len()), ("unanswered", unanswered.len()), ("orphaned", orphaned.len())]
    }

    /// Why the attempt that a claim was made for was taken back before a pod could run.
    pub fn taken_back(&self, claim: &NodeClaim) -> Option<Reason> {
        let (gang, attempt) = (gang_of(claim), claim.label(names::ATTEMPT).parse().ok()?);
        if let Some(entry) = self.gangs().get(&gang) {
            return entry.journal.taken_back(attempt);
        }
        self.orphaned()
            .get(&gang)
            .filter(|orphaned| orphaned.attempt == attempt)
            .map(|orphaned| orphaned.reason)
    }

    /// State and Workload of every gang.
    pub fn standings(&self) -> BTreeMap<String, (StateName, ObjectRef<Workload>)> {
        let standing = |entry: &GangEntry| (entry.journal.state.name(), entry.object.clone());
        self.gangs().iter().map(|(gang, entry)| (gang.clone(), standing(entry))).collect()
    }

    /// How many gangs are in each state, and for how long the oldest whose wait has a deadline has been there.
    pub fn by_state(&self, now: Timestamp) -> BTreeMap<StateName, (usize, Duration)> {
        let mut all: BTreeMap<StateName, (usize, Duration)> = BTreeMap::new();
        for entry in self.gangs().values() {
            let (count, oldest) = all.entry(entry.journal.state.name()).or_default();
            *count += 1;
            let age = now.duration_since(entry.journal.entered_at);
            if !entry.lasts {
                *oldest = Duration::try_from(age).unwrap_or_default().max(*oldest);
            }
        }
        all
    }
}
