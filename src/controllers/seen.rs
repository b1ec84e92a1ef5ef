//! Every gang as this replica last saw it: what its spans, its events and the gauges are made from.
//!
//! Rule: written by the gangs' looks alone, and nothing is decided on it.

use super::board::uid_of;
use crate::api::{NodeClaim, Workload};
use crate::gang::event::Reason;
use crate::gang::identity::gang_of;
use crate::gang::trace::Subject;
use crate::gang::{Journal, StateName};
use crate::names;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Gangs by their ids.
#[derive(Debug, Default)]
pub struct Seen(Mutex<BTreeMap<String, Glimpse>>);

#[derive(Debug)]
struct Glimpse {
    object: ObjectRef<Workload>,
    journal: Journal,
    subject: Subject,
    /// What the gang's owner was told last of its waiting, and after which transition.
    told: (u64, String),
    /// Whether it waits for what may take as long as it takes: another check, or an administrator.
    lasts: bool,
}

impl Seen {
    fn gangs(&self) -> MutexGuard<'_, BTreeMap<String, Glimpse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where a gang is. `lasts` says that it waits for what may take as long as it takes.
    pub fn note(&self, workload: &Workload, journal: &Journal, subject: Subject, lasts: bool) {
        let mut gangs = self.gangs();
        let told = gangs.remove(&subject.gang).map(|before| before.told).unwrap_or_default();
        let object = ObjectRef::from_obj(workload);
        gangs
            .insert(subject.gang.clone(), Glimpse { object, journal: journal.clone(), subject, told, lasts });
    }

    /// Whether this replica has looked at the gang before.
    pub fn knows(&self, gang: &str) -> bool {
        self.gangs().contains_key(gang)
    }

    /// Notes what the owner of a gang is told of its waiting; returns whether that is new.
    pub fn tells(&self, gang: &str, seq: u64, topic: &str) -> bool {
        let mut gangs = self.gangs();
        let Some(glimpse) = gangs.get_mut(gang) else { return false };
        let told = (seq, topic.to_owned());
        let new = glimpse.told != told;
        glimpse.told = told;
        new
    }

    /// Forgets a gang, and says where it was.
    pub fn forget(&self, gang: &str) -> Option<(Journal, Subject)> {
        self.gangs().remove(gang).map(|glimpse| (glimpse.journal, glimpse.subject))
    }

    /// Forgets the gangs of all Workloads whose UID fits.
    pub fn forget_all(&self, fits: impl Fn(&str) -> bool) {
        self.gangs().retain(|_, glimpse| !fits(uid_of(&glimpse.object)));
    }

    /// Why the attempt that a claim was made for was taken back before a pod could run.
    pub fn taken_back(&self, claim: &NodeClaim) -> Option<Reason> {
        let attempt = claim.label(names::ATTEMPT).parse().ok()?;
        self.gangs().get(&gang_of(claim))?.journal.taken_back(attempt)
    }

    /// State and Workload of every gang.
    pub fn standings(&self) -> BTreeMap<String, (StateName, ObjectRef<Workload>)> {
        let standing = |glimpse: &Glimpse| (glimpse.journal.state.name(), glimpse.object.clone());
        self.gangs().iter().map(|(gang, glimpse)| (gang.clone(), standing(glimpse))).collect()
    }

    /// How many gangs are in each state, and how long the oldest of them has been there that should not be there
    /// for long.
    pub fn by_state(&self, now: Timestamp) -> BTreeMap<StateName, (usize, Duration)> {
        let mut all: BTreeMap<StateName, (usize, Duration)> = BTreeMap::new();
        for glimpse in self.gangs().values() {
            let (count, oldest) = all.entry(glimpse.journal.state.name()).or_default();
            *count += 1;
            let age = now.duration_since(glimpse.journal.entered_at);
            if !glimpse.lasts {
                *oldest = Duration::try_from(age).unwrap_or_default().max(*oldest);
            }
        }
        all
    }
}
