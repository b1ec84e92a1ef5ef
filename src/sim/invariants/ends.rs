//! The outcome of each Job: whether it finished, and how long that took. Invariant: its pods can be started.

use super::Committed;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use setu_sim::actors::kueue::FAILED_TO_START;
use setu_sim::api::Change;
use setu_sim::values::{condition, created, flag, is, list, name, text};
use std::collections::BTreeMap;

/// The outcome of a Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Whether it finished.
    pub finished: bool,
    /// Whether its Workload was deactivated.
    pub given_up: bool,
    /// Time from submission to that; `None` while neither has happened.
    pub took: Option<SignedDuration>,
}

/// The record of Jobs, by name.
#[derive(Default)]
pub struct EndsRecord {
    submitted: BTreeMap<String, Timestamp>,
    ends: BTreeMap<String, End>,
}

impl EndsRecord {
    /// The outcome of each Job.
    pub fn ends(&self) -> BTreeMap<String, End> {
        self.ends.clone()
    }
}

/// A Job was written.
pub fn job_changed(committed: &mut Committed, change: &Change) {
    if let (None, Some(job)) = (&change.before, &change.after) {
        committed.ends_record.submitted.insert(name(job).to_owned(), created(job));
        committed.ends_record.ends.insert(name(job).to_owned(), End::default());
    }
}

/// A Workload was written.
pub fn workload_changed(committed: &mut Committed, change: &Change) {
    let Some(workload) = &change.after else { return };
    let (finished, given_up) = (is(workload, "Finished"), is_given_up(workload));
    if !finished && !given_up {
        return;
    }
    if change.before.as_deref().is_none_or(|before| !is(before, "Finished")) {
        started(committed, workload);
    }
    let now = committed.now;
    let record = &mut committed.ends_record;
    for owner in list(workload, "/metadata/ownerReferences") {
        let job = text(owner, "/name");
        let Some(end) = record.ends.get_mut(job).filter(|end| end.took.is_none()) else { continue };
        let since = record.submitted.get(job).copied().unwrap_or(now);
        *end = End { finished, given_up, took: Some(now.duration_since(since)) };
    }
}

/// A Workload has ended. Kueue must have been able to start its pods.
fn started(committed: &mut Committed, workload: &Value) {
    if let Some(end) = condition(workload, "Finished").filter(|end| text(end, "/reason") == FAILED_TO_START) {
        let what = format!("{} cannot be started: {}", name(workload), text(end, "/message"));
        committed.violated("startable", what);
    }
}

fn is_given_up(workload: &Value) -> bool {
    workload.pointer("/spec/active").is_some() && !flag(workload, "/spec/active")
}
