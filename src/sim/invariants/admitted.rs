//! Invariants of admitted gangs: which Ready they were admitted on, and what may not be taken from them.

use super::{Committed, read_journal};
use crate::api::Workload;
use crate::api::workload::Verdict;
use crate::gang::{AdmissionId, Reservation};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// How long a Ready for an earlier admission may remain after faults have ended. A replica may first have to
/// restart, and to wait after its last failure.
const REACTION: SignedDuration = SignedDuration::from_mins(2);

/// UID of a Workload, and the check.
type GangKey = (String, String);

/// The record of admitted gangs.
#[derive(Default)]
pub struct AdmittedRecord {
    /// The attempt whose nodes each gang runs on.
    runs: BTreeMap<GangKey, u32>,
    /// The admission that each Ready was given for.
    ready_for: BTreeMap<GangKey, AdmissionId>,
    /// Since when a gang has been admitted on a Ready for an earlier admission.
    stale: BTreeMap<GangKey, Timestamp>,
    /// When faults ended.
    calm: Option<Timestamp>,
}

impl AdmittedRecord {
    /// The attempt whose nodes the gang runs on, if it runs.
    pub fn runs(&self, uid: &str, check: &str) -> Option<u32> {
        self.runs.get(&(uid.to_owned(), check.to_owned())).copied()
    }

    /// Records that faults have ended.
    pub fn calm(&mut self, now: Timestamp) {
        self.calm = Some(now);
    }
}

/// Setu has set a check to Ready.
pub fn ready_written(committed: &mut Committed, workload: &Workload, check: &str) {
    let place = (workload.uid().unwrap_or_default(), check.to_owned());
    if let Reservation::Held { admission, .. } = Reservation::of(workload, check) {
        committed.admitted_record.ready_for.insert(place, admission);
    }
}

/// A Workload is gone.
pub fn gone(committed: &mut Committed, uid: &str) {
    committed.admitted_record.runs.retain(|place, _| place.0 != uid);
    committed.admitted_record.stale.retain(|place, _| place.0 != uid);
}

/// A Workload was written by any client.
pub fn changed(committed: &mut Committed, workload: &Workload) {
    let uid = workload.uid().unwrap_or_default();
    let admitted = workload.is_admitted() && workload.has_quota() && !workload.is_finished();
    if !admitted {
        return gone(committed, &uid);
    }
    for (key, text) in workload.annotations() {
        let Some(check) = key.strip_prefix(names::JOURNAL_PREFIX) else { continue };
        let place = (uid.clone(), check.to_owned());
        let (now, record) = (committed.now, &mut committed.admitted_record);
        let is_ready = workload.check(check).is_some_and(|entry| entry.state == Verdict::Ready);
        let held = match Reservation::of(workload, check) {
            Reservation::Held { admission, .. } => Some(admission),
            _ => None,
        };
        let journal = read_journal(text, &uid).filter(|j| j.state.holds_nodes());
        if let Some(journal) = journal
            && is_ready
            && held.as_ref() == Some(&journal.memory.admission)
        {
            record.runs.insert(place.clone(), journal.memory.attempt);
        }
        if is_ready
            && held.is_some()
            && record.ready_for.get(&place).is_some_and(|e| held.as_ref() != Some(e))
        {
            record.stale.entry(place).or_insert(now);
        } else {
            record.stale.remove(&place);
        }
    }
}

/// Checks for Ready verdicts of an earlier admission that have remained for too long.
pub fn check_stale(committed: &mut Committed) {
    let Some(calm) = committed.admitted_record.calm else { return };
    let now = committed.now;
    let late = |since: &Timestamp| now.duration_since(calm.max(*since)) > REACTION;
    let stale = &mut committed.admitted_record.stale;
    let Some(place) = stale.iter().find(|(_, since)| late(since)).map(|(place, _)| place.clone()) else {
        return;
    };
    stale.remove(&place);
    let (uid, check) = place;
    committed
        .violated("right-admission", format!("{uid} runs on a Ready of {check} for an earlier admission"));
}
