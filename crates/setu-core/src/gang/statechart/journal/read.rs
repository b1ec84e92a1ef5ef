//! How an annotation becomes a journal.
//!
//! A tenant can write it. So it counts only on the Workload whose UID it has, its size and depth are checked before it is read,
//! and its fields are limited to what this code writes. A journal of an earlier release is read as this release would have written
//! it. A journal of a newer release is left alone.

use super::{FIRST_VERSION, Journal, SLOTS_LIMIT, TraceStart, VERSION, WRITE_LIMIT};
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::state::{Nodes, State};
use crate::plan::pod_set_labels::PodSetLabels;
use crate::planted::planted;
use crate::policy::terms::Terms;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

/// Largest annotation that is parsed, in bytes.
const READ_LIMIT: usize = 2 * WRITE_LIMIT;
/// How much the clocks of two replicas may differ. A deadline that is further off counts as forged.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(5);
/// The largest number of a transition that is accepted. No gang reaches it by itself.
const SEQ_LIMIT: u64 = u64::MAX / 2;
/// Longest admission or plan hash that is accepted, in bytes.
const WORD_LIMIT: usize = 128;

/// Why an annotation cannot be used as a journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// It is larger than any journal.
    #[error("it has {0} bytes, more than the {READ_LIMIT} that are read")]
    TooLarge(usize),
    /// It was written by a newer release.
    #[error("journal of a newer release (version {0}); this release leaves it alone")]
    Newer(u64),
    /// It is no journal.
    #[error("it is not a journal: {0}")]
    Malformed(String),
    /// It was copied from another Workload.
    #[error("it belongs to another Workload")]
    Foreign,
}

impl Journal {
    /// Reads an annotation of the Workload with this UID, which was created at `created`.
    pub fn decode(text: &str, uid: &str, created: Timestamp, now: Timestamp) -> Result<Self, JournalError> {
        let version = version_of(text)?;
        let mut journal: Self = serde_json::from_str(text).map_err(malformed)?;
        journal.migrate(version);
        if journal.workload_uid != uid && !planted!(JournalUnbound) {
            return Err(JournalError::Foreign);
        }
        if journal.memory.slots > SLOTS_LIMIT {
            return Err(JournalError::Malformed(format!("it names {} slots", journal.memory.slots)));
        }
        journal.bound_fields()?;
        if journal.memory.slots == 0 && journal.state.is_approved() {
            journal.state = State::Approved { nodes: Nodes::Unneeded };
        }
        if journal.seq > SEQ_LIMIT {
            // The next number must exist and follow the last transition.
            let transitions =
                journal.history.iter().map(|transition| transition.seq).filter(|seq| *seq <= SEQ_LIMIT);
            journal.seq = transitions.max().unwrap_or_default();
        }
        // A tenant can write times, so impossible ones are corrected.
        let possible = |time: Timestamp| time.clamp(created.min(now), now);
        journal.entered_at = possible(journal.entered_at);
        if journal.trace == TraceStart::default() {
            // A release that did not record it wrote the journal.
            journal.trace.since =
                journal.history.first().map_or(journal.entered_at, |transition| transition.at);
        }
        journal.trace.since = possible(journal.trace.since);
        journal.trim();
        Ok(journal)
    }

    /// Converts the fields of an earlier version. The version itself changes with the gang's next transition: a new release
    /// that rewrote all journals at once would cause a burst of writes and could not be rolled back.
    fn migrate(&mut self, version: u64) {
        if version == FIRST_VERSION {
            self.memory.terms = None;
        }
    }

    /// Limits the deadline of a running attempt to what the policy gives from now on, because a tenant can write it.
    pub fn bound_deadline(&mut self, now: Timestamp, limit: SignedDuration) {
        let is_running = matches!(self.state, State::Validating | State::Provisioning | State::WaitingReady);
        let Ok(bound) = now.checked_add(limit) else { return };
        let is_far = |deadline: Timestamp| deadline.duration_since(bound) > CLOCKS_APART;
        if is_running && self.memory.deadline.is_none_or(is_far) {
            self.memory.deadline = Some(bound);
        }
    }

    /// Cuts fields without a limit of their own to the length that this code writes.
    fn bound_fields(&mut self) -> Result<(), JournalError> {
        let memory = &mut self.memory;
        let plan = memory.plan.as_ref().map_or(0, String::len);
        if memory.admission.0.len().max(plan) > WORD_LIMIT {
            return Err(JournalError::Malformed("its admission or its plan is no word of ours".to_owned()));
        }
        if !memory.pod_sets.are_possible() {
            memory.pod_sets = PodSetLabels::default();
        }
        memory.terms = memory.terms.take().filter(Terms::is_small);
        memory.last_failure = memory
            .last_failure
            .take()
            .map(|f| Failure { obstacle: f.obstacle, ..Failure::new(f.reason, f.message) });
        if let Some(name) = self.memory.tier_name.take() {
            self.name_tier(Some(&name));
        }
        self.traceparent = self.trace_context().to_string();
        Ok(())
    }
}

/// The version of an annotation that this code reads.
fn version_of(text: &str) -> Result<u64, JournalError> {
    #[derive(Deserialize)]
    struct Head {
        version: u64,
    }
    if text.len() > READ_LIMIT {
        return Err(JournalError::TooLarge(text.len()));
    }
    let head: Head = serde_json::from_str(text).map_err(malformed)?;
    match head.version {
        0 => Err(JournalError::Malformed("no release wrote version 0".to_owned())),
        version if version > u64::from(VERSION) => Err(JournalError::Newer(version)),
        version => Ok(version),
    }
}

/// The error for a text that is no journal, without control characters.
#[allow(clippy::needless_pass_by_value, reason = "the signature is that of map_err")]
fn malformed(error: serde_json::Error) -> JournalError {
    JournalError::Malformed(error.to_string().escape_debug().take(120).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{at, journal};
    use super::*;
    use crate::gang::statechart::event::{ProgressReason, Reason};
    use crate::gang::statechart::failure::FailureClass;
    use crate::gang::statechart::reservation::AdmissionId;

    #[test]
    fn an_annotation_that_is_no_journal_of_this_workload_is_rejected_with_the_reason() {
        let good = journal().encode();
        let decode = |text: &str, uid: &str| Journal::decode(text, uid, at(0), at(20));
        assert_eq!(decode(&good, "uid-2"), Err(JournalError::Foreign));
        assert_eq!(
            decode(&good.replace("\"version\":2", "\"version\":7"), "uid-1"),
            Err(JournalError::Newer(7))
        );
        let zero = decode(&good.replace("\"version\":2", "\"version\":0"), "uid-1");
        assert!(matches!(zero, Err(JournalError::Malformed(_))), "{zero:?}");
        assert!(matches!(decode(&"x".repeat(100_000), "uid-1"), Err(JournalError::TooLarge(100_000))));
        for text in ["", "{}", "[[[[", "{\"version\":1}", "null", &"[".repeat(9_000), "{\"version\":-1}"] {
            assert!(matches!(decode(text, "uid-1"), Err(JournalError::Malformed(_))), "{text:.20}");
        }
    }

    #[test]
    fn the_error_for_a_forged_journal_has_no_control_characters() {
        let forged = journal().encode().replace("\"Validating\"", "\"\\u001b[2J\\nforged\"");
        let Err(JournalError::Malformed(reported)) = Journal::decode(&forged, "uid-1", at(0), at(20)) else {
            panic!("{forged}")
        };
        assert!(reported.contains("forged") && !reported.contains(char::is_control), "{reported:?}");
    }

    #[test]
    fn a_journal_with_too_many_slots_is_rejected() {
        let mut forged = journal();
        forged.memory.slots = SLOTS_LIMIT;
        assert!(Journal::decode(&forged.encode(), "uid-1", at(0), at(20)).is_ok());
        forged.memory.slots = u32::MAX;
        let refused = Journal::decode(&forged.encode(), "uid-1", at(0), at(20));
        assert_eq!(refused, Err(JournalError::Malformed("it names 4294967295 slots".into())));
    }

    #[test]
    fn a_forged_or_missing_deadline_becomes_that_of_the_policy() {
        let minute = SignedDuration::from_mins(1);
        let bound = |state: State, deadline| {
            let mut forged = Journal { state, ..journal() };
            forged.memory.deadline = deadline;
            forged.bound_deadline(at(20), minute);
            forged.memory.deadline
        };
        for far in [None, Some(at(9_999_999))] {
            assert_eq!(bound(State::WaitingReady, far), Some(at(80)));
            assert_eq!(bound(State::Released, far), far, "nothing runs there");
        }
        // Written by a replica whose clock is ahead.
        assert_eq!(bound(State::WaitingReady, Some(at(110))), Some(at(110)));
        assert_eq!(bound(State::WaitingReady, Some(at(30))), Some(at(30)));
    }

    #[test]
    fn a_forged_journal_does_not_outgrow_its_limit() {
        let decode = |journal: &Journal| Journal::decode(&journal.encode(), "uid-1", at(0), at(20));
        let mut wordy = journal();
        wordy.memory.admission = AdmissionId("e".repeat(9_000));
        assert!(matches!(decode(&wordy), Err(JournalError::Malformed(_))));
        let mut long = journal();
        long.traceparent = "t".repeat(9_000);
        long.memory.last_failure =
            Some(Failure { message: "m".repeat(5_000), ..Failure::new(FailureClass::Unknown, "") });
        let read = decode(&long).unwrap();
        assert!(read.encode().len() < 1_000, "{}", read.encode());
    }

    #[test]
    fn a_forged_time_of_entry_is_moved_into_the_lifetime_of_the_workload() {
        let future = Journal { entered_at: at(9_999_999), ..journal() };
        let read = Journal::decode(&future.encode(), "uid-1", at(0), at(20)).unwrap();
        assert_eq!(read.entered_at, at(20));
        let past = Journal { entered_at: at(-9_999_999), ..journal() };
        let read = Journal::decode(&past.encode(), "uid-1", at(0), at(20)).unwrap();
        assert_eq!(read.entered_at, at(0));
    }

    #[test]
    fn a_journal_without_a_start_of_its_trace_takes_the_oldest_it_knows() {
        let mut old = journal();
        old.record(State::BackingOff { until: at(40) }, Reason::Progress(ProgressReason::ClaimsGone), at(12));
        let text = old.encode();
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        value.as_object_mut().unwrap().remove("trace");
        let read = Journal::decode(&value.to_string(), "uid-1", at(0), at(20)).unwrap();
        assert_eq!(read.trace, TraceStart { since: at(12), ..TraceStart::default() });
    }
}
