//! This replica's memory of each gang and of each Workload, behind one lock.
//!
//! Rule: forgetting removes the entry. The lock is never held across an await, and under it only stores are read. All of it may
//! be lost at any time.

use super::gang_entry::{ForgetReason, GangEntry, OrphanedGang, Unanswered, UnansweredWrites};
use super::own_write::{CacheLag, OwnWrite};
use super::policies::{Notices, SharedPolicies};
use crate::api::{NodeClaim, Workload};
use crate::cluster::lock;
use crate::gang::identity::gang_of;
use crate::gang::snapshot::expectation::{ClaimEvent, Expectation};
use crate::gang::statechart::event::Reason;
use crate::gang::trace::Subject;
use crate::gang::{Journal, PodCheck, StateName};
use crate::names;
use crate::policy::Policy;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Gangs and Workloads. A type that is kept under a lock of its own says why in its comment.
#[derive(Debug, Default)]
pub struct GangRegistry(Mutex<RegistryEntries>);

#[derive(Debug, Default)]
struct RegistryEntries {
    /// By their ids.
    gangs: BTreeMap<String, OfGang>,
    /// By their UIDs.
    workloads: BTreeMap<String, OfWorkload>,
    /// Gangs whose Workload or check is gone, by their ids.
    orphaned: BTreeMap<String, OrphanedGang>,
    /// Notices that Workloads got about their policies. Their number is bounded over all Workloads.
    notices: Notices,
    /// The policies that attempts share.
    policies: SharedPolicies,
}

/// The memory of one gang.
#[derive(Debug, Default)]
struct OfGang {
    /// Where it is, as last committed.
    entry: Option<GangEntry>,
    /// Journal writes with an unknown outcome.
    unanswered: UnansweredWrites,
    /// The policy of its attempt.
    policy: Option<(u32, Arc<Policy>)>,
    /// When its nodes are expected to be ready, and after which transition that was first estimated. It stays fixed, or every
    /// node that becomes ready would change the message of every waiting gang.
    ready_by: Option<(u64, Timestamp)>,
    /// Which events of its NodeClaims are due at once; `None` if all are.
    expectation: Option<Expectation>,
    /// The latest event of each NodeClaim since its reconcile began; `None` if none runs.
    meanwhile: Option<BTreeMap<String, ClaimEvent>>,
    /// The last check of its pods.
    pod_check: Option<PodCheck>,
    /// When the pods on its nodes were last listed.
    pods_listed: Option<Timestamp>,
}

/// The memory of one Workload.
#[derive(Debug, Default)]
struct OfWorkload {
    /// The gangs that may have an entry.
    gangs: BTreeSet<String>,
    /// When pods were last seen on the nodes of a standalone request, or when this replica first asked.
    used_at: Option<Timestamp>,
    /// How many of its reconciles have failed in a row.
    failures: u32,
    /// Our last write that the cache does not show yet.
    own_write: OwnWrite,
}

/// A gang that was forgotten, with its last journal.
pub type LastJournal = (String, Journal, Subject);

impl GangRegistry {
    fn entries(&self) -> MutexGuard<'_, RegistryEntries> {
        lock(&self.0)
    }

    /// Adds the gangs of a Workload that is about to be reconciled.
    pub fn add(&self, uid: &str, gangs: impl Iterator<Item = String>) {
        self.entries().workloads.entry(uid.to_owned()).or_default().gangs.extend(gangs);
    }

    /// UIDs of the Workloads that fit.
    pub fn uids(&self, fits: impl Fn(&str) -> bool) -> Vec<String> {
        self.entries().workloads.keys().filter(|uid| fits(uid)).cloned().collect()
    }

    /// Forgets the gangs of one Workload, and returns their ids and where they were. `claims` names its NodeClaims that still
    /// exist: why an attempt was wasted is kept until they are measured.
    pub fn forget(
        &self,
        uid: &str,
        cause: ForgetReason<'_>,
        claims: &BTreeSet<String>,
    ) -> (BTreeSet<String>, Vec<LastJournal>) {
        let mut entries = self.entries();
        let gangs = match cause {
            ForgetReason::Deleted { .. } => {
                entries.notices.forget(uid);
                entries.workloads.remove(uid).unwrap_or_default().gangs
            }
            ForgetReason::CheckGone { kept, .. } => entries.leave(uid, kept),
            ForgetReason::TermOver => entries.end_term(uid),
        };
        let mut journals = Vec::new();
        for gang in &gangs {
            let Some(entry) = entries.gangs.remove(gang).and_then(|gang| gang.entry) else { continue };
            if let Some(orphaned) = cause.end().and_then(|end| entry.orphaned(end, claims)) {
                entries.orphaned.insert(gang.clone(), orphaned);
            }
            journals.push((gang.clone(), entry.journal, entry.subject));
        }
        (gangs, journals)
    }

    /// Whether a Workload has gangs besides these.
    pub fn has_others(&self, uid: &str, kept: &BTreeSet<String>) -> bool {
        self.entries().workloads.get(uid).is_some_and(|workload| !workload.gangs.is_subset(kept))
    }

    /// How many entries there are of each kind.
    pub fn counts(&self) -> [(&'static str, usize); 4] {
        let entries = self.entries();
        let RegistryEntries { gangs, workloads, orphaned, notices, policies: _ } = &*entries;
        [
            ("gangs", gangs.len()),
            ("workloads", workloads.len()),
            ("orphaned", orphaned.len()),
            ("notices", notices.count()),
        ]
    }

    /// Records where a gang is, if its Workload `is_there`; returns whether it is. That is checked under the lock,
    /// because a deletion forgets the gangs only once, at any moment of a reconcile.
    pub fn note(&self, entry: GangEntry, is_there: impl FnOnce() -> bool) -> bool {
        let mut entries = self.entries();
        if !is_there() {
            return false;
        }
        entries.orphaned.remove(&entry.subject.gang);
        let gang = entries.gangs.entry(entry.subject.gang.clone()).or_default();
        gang.entry = Some(entry.after(gang.entry.take()));
        true
    }

    /// Keeps the reports of a write without a reply, if its Workload `is_there`.
    pub fn keep(&self, gang: &str, write: Unanswered, is_there: impl FnOnce() -> bool) {
        let mut entries = self.entries();
        if is_there() {
            entries.gangs.entry(gang.to_owned()).or_default().unanswered.keep(write);
        }
    }

    /// Takes the unanswered write that led to this journal. `seq` is the number of the journal's last transition. Forgets
    /// writes that can no longer appear.
    pub fn take_applied(&self, gang: &str, journal: Option<&str>, seq: u64) -> Option<Unanswered> {
        self.entries().gangs.get_mut(gang)?.unanswered.take_applied(journal, seq)
    }

    /// Whether this replica has reconciled the gang before.
    pub fn knows(&self, gang: &str) -> bool {
        self.entries().gangs.get(gang).is_some_and(|gang| gang.entry.is_some())
    }

    /// Records the wait notice for a gang's owner; returns whether it is new.
    pub fn note_wait(&self, gang: &str, seq: u64, topic: &str) -> bool {
        let mut entries = self.entries();
        let entry = entries.gangs.get_mut(gang).and_then(|gang| gang.entry.as_mut());
        entry.is_some_and(|entry| entry.note_wait(seq, topic))
    }

    /// Records that a NodeClaim was measured that may be orphaned. After the last one, the reason is forgotten.
    pub fn forget_orphaned(&self, workload: &str, claim: &str) {
        self.entries().orphaned.retain(|_, gang| gang.measured(claim) || gang.workload != workload);
    }

    /// Forgets the gangs of deleted Workloads whose UID fits.
    pub fn forget_orphaned_where(&self, fits: impl Fn(&str) -> bool) {
        self.entries().orphaned.retain(|_, gang| !fits(&gang.workload));
    }

    /// Why the attempt that a claim was made for was taken back before a pod could run.
    pub fn taken_back(&self, claim: &NodeClaim) -> Option<Reason> {
        let (gang, attempt) = (gang_of(claim), claim.label(names::ATTEMPT).parse().ok()?);
        let entries = self.entries();
        if let Some(entry) = entries.gangs.get(&gang).and_then(|gang| gang.entry.as_ref()) {
            return entry.journal.taken_back(attempt);
        }
        let orphaned = entries.orphaned.get(&gang).filter(|orphaned| orphaned.attempt == attempt);
        orphaned.map(|orphaned| orphaned.reason)
    }

    /// State and Workload of each gang.
    pub fn states(&self) -> BTreeMap<String, (StateName, ObjectRef<Workload>)> {
        let entries = self.entries();
        let state = |gang: &OfGang| {
            let entry = gang.entry.as_ref()?;
            Some((entry.journal.state.name(), entry.object.clone()))
        };
        entries.gangs.iter().filter_map(|(id, gang)| Some((id.clone(), state(gang)?))).collect()
    }

    /// How many gangs are in each state, and for how long the oldest whose wait has a deadline has been there.
    pub fn by_state(&self, now: Timestamp) -> BTreeMap<StateName, (usize, Duration)> {
        let mut all: BTreeMap<StateName, (usize, Duration)> = BTreeMap::new();
        for entry in self.entries().gangs.values().filter_map(|gang| gang.entry.as_ref()) {
            let (count, oldest) = all.entry(entry.journal.state.name()).or_default();
            *count += 1;
            *oldest = entry.age(now).max(*oldest);
        }
        all
    }

    /// Keeps the policy of a gang's attempt.
    pub fn keep_policy(&self, gang: &str, attempt: u32, policy: &Arc<Policy>) {
        let mut entries = self.entries();
        let policy = entries.policies.one_like(policy);
        entries.gangs.entry(gang.to_owned()).or_default().policy = Some((attempt, policy));
    }

    /// The policy of a gang's attempt, if it is known here.
    pub fn policy(&self, gang: &str, attempt: u32) -> Option<Arc<Policy>> {
        let entries = self.entries();
        let (of, policy) = entries.gangs.get(gang)?.policy.as_ref()?;
        (*of == attempt).then(|| Arc::clone(policy))
    }

    /// Forgets the policy of a gang that has no attempt in flight.
    pub fn forget_policy(&self, gang: &str) {
        if let Some(gang) = self.entries().gangs.get_mut(gang) {
            gang.policy = None;
        }
    }

    /// When a gang's nodes are usually ready. The first estimate after the transition `seq` is kept.
    pub fn fix_ready_by(
        &self,
        gang: &str,
        seq: u64,
        estimate: impl FnOnce() -> Option<Timestamp>,
    ) -> Option<Timestamp> {
        let reported = self.entries().gangs.get(gang).and_then(|gang| gang.ready_by);
        if let Some((_, reported)) = reported.filter(|(at, _)| *at == seq) {
            return Some(reported);
        }
        let estimated = estimate()?;
        self.entries().gangs.entry(gang.to_owned()).or_default().ready_by = Some((seq, estimated));
        Some(estimated)
    }

    /// Records the last check of a gang's pods, and when the pods on its nodes were last listed.
    pub fn note_pods(&self, gang: &str, check: Option<PodCheck>, listed: Option<Timestamp>) {
        if let Some(of) = self.entries().gangs.get_mut(gang) {
            (of.pod_check, of.pods_listed) = (check, listed);
        }
    }

    /// The last check of a gang's pods.
    pub fn pod_check(&self, gang: &str) -> Option<PodCheck> {
        self.entries().gangs.get(gang)?.pod_check.clone()
    }

    /// When the pods on a gang's nodes were last listed.
    pub fn pods_listed(&self, gang: &str) -> Option<Timestamp> {
        self.entries().gangs.get(gang)?.pods_listed
    }

    /// Records that a reconcile of the gang begins, if its Workload `is_there`.
    pub fn begin(&self, gang: &str, is_there: impl FnOnce() -> bool) {
        let mut entries = self.entries();
        if is_there() {
            entries.gangs.entry(gang.to_owned()).or_default().meanwhile = Some(BTreeMap::new());
        }
    }

    /// Records what the gang expects after its reconcile; `None` if every event of its NodeClaims is due. Returns whether an
    /// event that came during the reconcile is due.
    pub fn expect(&self, gang: &str, expectation: Option<Expectation>) -> bool {
        let mut entries = self.entries();
        let Some(of) = entries.gangs.get_mut(gang) else { return false };
        of.expectation = expectation;
        let meanwhile = of.meanwhile.take().unwrap_or_default();
        meanwhile.iter().fold(false, |due, (claim, event)| of.takes(claim, *event) || due)
    }

    /// Records an event of a gang's NodeClaim; returns whether a reconcile is due at once.
    pub fn note_event(&self, gang: &str, claim: &str, event: ClaimEvent) -> bool {
        let mut entries = self.entries();
        let Some(of) = entries.gangs.get_mut(gang) else { return true };
        if let Some(meanwhile) = &mut of.meanwhile {
            meanwhile.insert(claim.to_owned(), event);
        }
        of.takes(claim, event)
    }

    /// Records that a Workload with this UID gets this notice about its policy; returns whether it is new.
    pub fn note_notice(&self, uid: &str, notice: &str) -> bool {
        self.entries().notices.note(uid, notice)
    }

    /// Records that a reconcile of the Workload with this UID failed. Returns how many have failed in a row.
    pub fn failed(&self, uid: &str) -> u32 {
        let mut entries = self.entries();
        let workload = entries.workloads.entry(uid.to_owned()).or_default();
        workload.failures = workload.failures.saturating_add(1);
        workload.failures
    }

    /// Records whether pods run on the nodes of the standalone request with this UID, and returns when they last did. That is
    /// `now` if this replica asks for the first time: another replica may have seen them.
    pub fn note_use(&self, uid: &str, runs: bool, now: Timestamp) -> Timestamp {
        let mut entries = self.entries();
        let used_at = &mut entries.workloads.entry(uid.to_owned()).or_default().used_at;
        *used_at.insert(used_at.filter(|_| !runs).unwrap_or(now))
    }

    /// Records that a reconcile of the Workload with this UID succeeded.
    pub fn succeeded(&self, uid: &str) {
        if let Some(workload) = self.entries().workloads.get_mut(uid) {
            workload.failures = 0;
        }
    }

    /// Records the Workload as one of our writes returned it.
    pub fn wrote(&self, workload: &Workload) {
        self.own_write(workload, |write| write.note(workload));
    }

    /// Records that a write failed because someone else wrote the Workload.
    pub fn note_conflict(&self, workload: &Workload) {
        self.own_write(workload, |write| write.note_conflict(workload));
    }

    fn own_write(&self, workload: &Workload, act: impl FnOnce(&mut OwnWrite)) {
        let Some(uid) = workload.uid() else { return };
        act(&mut self.entries().workloads.entry(uid).or_default().own_write);
    }

    /// Records the Workload as read by name: a cache that shows this version is current.
    pub fn was_read(&self, workload: &Workload) {
        let mut entries = self.entries();
        if let Some(of) = workload.uid().and_then(|uid| entries.workloads.get_mut(&uid)) {
            of.own_write.was_read(workload);
        }
    }

    /// How this view of the Workload compares with our last write to it. What it shows is not waited for again.
    pub fn advance_cache_lag(&self, workload: &Workload) -> CacheLag {
        let mut entries = self.entries();
        let of = workload.uid().and_then(|uid| entries.workloads.get_mut(&uid));
        of.map_or(CacheLag::Current, |of| of.own_write.advance_cache_lag(workload))
    }
}

impl OfGang {
    fn takes(&mut self, claim: &str, event: ClaimEvent) -> bool {
        self.expectation.as_mut().is_none_or(|expectation| expectation.takes(claim, event))
    }
}

impl RegistryEntries {
    /// Drops the gangs of a Workload except these, and returns them.
    fn leave(&mut self, uid: &str, kept: &BTreeSet<String>) -> BTreeSet<String> {
        let Some(of) = self.workloads.get_mut(uid) else { return BTreeSet::new() };
        let left = of.gangs.extract_if(.., |gang| !kept.contains(gang)).collect();
        if of.gangs.is_empty() && !of.own_write.is_awaited() {
            self.workloads.remove(uid);
        }
        left
    }

    /// Drops what a Workload has for one term as leader, and returns its gangs. Notices and writes stay valid for any leader.
    fn end_term(&mut self, uid: &str) -> BTreeSet<String> {
        let Some(OfWorkload { gangs, own_write, .. }) = self.workloads.remove(uid) else {
            return BTreeSet::new();
        };
        if own_write.is_awaited() {
            self.workloads.insert(uid.to_owned(), OfWorkload { own_write, ..OfWorkload::default() });
        }
        gangs
    }
}

#[cfg(test)]
mod tests {
    use super::super::policies::Policies;
    use super::*;
    use crate::policy::PolicyFile;

    #[test]
    fn an_attempt_keeps_its_policy_and_the_next_one_takes_the_new_one() {
        let (policies, registry) = (Policies::default(), GangRegistry::default());
        let old = Arc::new(policies.settings().policy("c", None));
        registry.keep_policy("g", 1, &old);
        let text =
            "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\ndefaults: {deadlines: {launch: 9s}}";
        policies.replace(PolicyFile::parse(text).unwrap(), Vec::new());
        assert_ne!(policies.settings().policy("c", None), *old);
        assert_eq!(registry.policy("g", 1), Some(old));
        assert_eq!((registry.policy("g", 2), registry.policy("h", 1)), (None, None));
        registry.forget_policy("g");
        assert_eq!(registry.policy("g", 1), None);
    }

    #[test]
    fn attempts_of_equal_policies_share_one() {
        let (policies, registry) = (Policies::default(), GangRegistry::default());
        for gang in ["g", "h"] {
            registry.keep_policy(gang, 1, &Arc::new(policies.settings().policy("c", None)));
        }
        let [g, h] = ["g", "h"].map(|gang| registry.policy(gang, 1).unwrap());
        assert!(Arc::ptr_eq(&g, &h));
    }

    #[test]
    fn an_estimate_stays_until_the_gang_moves_or_is_forgotten() {
        let registry = GangRegistry::default();
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        registry.add("u", ["g".to_owned()].into_iter());
        assert_eq!(registry.fix_ready_by("g", 1, || None), None);
        assert_eq!(registry.fix_ready_by("g", 1, || at(170)), at(170));
        assert_eq!(registry.fix_ready_by("g", 1, || at(600)), at(170), "it was answered before");
        assert_eq!(registry.fix_ready_by("g", 2, || at(600)), at(600));
        assert_eq!(registry.fix_ready_by("g", 3, || None), None);
        registry.forget("u", ForgetReason::TermOver, &BTreeSet::new());
        assert_eq!(registry.fix_ready_by("g", 2, || at(900)), at(900));
    }

    #[test]
    fn the_end_of_a_term_keeps_only_what_is_true_for_any_leader() {
        let registry = GangRegistry::default();
        let workload: Workload = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "w", "namespace": "n", "uid": "u", "resourceVersion": "7"}, "spec": {},
        }))
        .unwrap();
        registry.add("u", ["g".to_owned()].into_iter());
        registry.keep_policy("g", 1, &Arc::new(Policy::default()));
        registry.failed("u");
        registry.wrote(&workload);
        let left = || registry.counts().map(|(_, count)| count);
        assert_eq!(left(), [1, 1, 0, 0]);
        let (gangs, _) = registry.forget("u", ForgetReason::TermOver, &BTreeSet::new());
        assert_eq!((gangs.len(), left()), (1, [0, 1, 0, 0]));
        assert_eq!(registry.failed("u"), 1);
        registry.forget("u", ForgetReason::Deleted { ran: false }, &BTreeSet::new());
        assert_eq!(left(), [0, 0, 0, 0]);
    }
}
