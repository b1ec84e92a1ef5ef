//! The journal: a gang's state as kept in an annotation of its Workload.
//!
//! Rule: it is a hint, not an authority. It counts only on the Workload whose UID it has, its size and depth are checked
//! before it is read, and nothing in it names an object. A journal of an earlier release is read as this release would have
//! written it. A journal of a newer release is left alone.

mod retry;
mod version;

use super::event::Reason;
use super::failure::{Failure, FailureClass};
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, Ending, ShapeMatch};
use super::state::{Nodes, State, StateName};
use super::trace_context::TraceContext;
use super::transition::Transition;
use crate::api::parameters::Pinning;
use crate::planted::planted;
use crate::policy::terms::Terms;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use version::{FIRST_VERSION, malformed, version_of};

pub use retry::RetryKind;
pub use version::VERSION;

/// Largest journal that is written, in bytes, whatever the gang's size.
pub const WRITE_LIMIT: usize = 8 * 1024;
/// Largest annotation that is parsed, in bytes.
const READ_LIMIT: usize = 2 * WRITE_LIMIT;
/// Longest name of a replica or tier, in characters.
const NAME_LIMIT: usize = 63;
/// How much the clocks of two replicas may differ. A deadline that is further off counts as forged.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(5);
/// The most slots that a journal may have. A tenant can write the number, and each slot costs a lookup.
pub(in crate::gang) const SLOTS_LIMIT: u32 = 16 * 1024;
/// The largest number of a transition that is accepted. No gang reaches it by itself.
const SEQ_LIMIT: u64 = u64::MAX / 2;
/// Most history entries kept; the oldest go first.
const HISTORY_LIMIT: usize = 32;
/// Longest admission or plan hash that is accepted, in bytes.
const WORD_LIMIT: usize = 128;

/// A gang's durable state.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Journal {
    /// Version of this format.
    pub version: u32,
    /// UID of its Workload. On any other Workload it counts as absent.
    pub workload_uid: String,
    /// Number of transitions so far.
    pub seq: u64,
    /// The gang's state.
    #[serde(flatten)]
    pub state: State,
    /// When the gang entered it.
    pub entered_at: Timestamp,
    /// What else must survive a restart.
    #[serde(flatten)]
    pub memory: Memory,
    /// W3C trace context of this admission's trace.
    pub traceparent: String,
    /// Where this admission's trace begins.
    #[serde(default)]
    pub trace: TraceStart,
    /// Transitions, newest last, bounded.
    #[serde(default)]
    pub history: Vec<Transition>,
}

/// What the cluster does not show and must survive a change of leader.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// The admission that the state belongs to.
    #[serde(rename = "epoch")]
    pub admission: AdmissionId,
    /// Whether the nodes match what that admission admits.
    #[serde(rename = "fit", default, skip_serializing_if = "ShapeMatch::is_same")]
    pub shape_match: ShapeMatch,
    /// Number of the current or last attempt; it never decreases.
    pub attempt: u32,
    /// The option that the attempt uses, or that the next attempt starts with.
    #[serde(flatten)]
    pub option: OptionPosition,
    /// The policy's name for the tier, for users; absent if the policy names no tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier_name: Option<String>,
    /// Number of the attempt's last replacement of lost nodes; 0 if there was none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u32,
    /// How many slots the attempt has.
    pub slots: u32,
    /// When the current attempt, or the validation before it, has taken too long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Attempts that failed under this admission.
    #[serde(default)]
    pub tries: u32,
    /// Times the quota was given back.
    #[serde(default)]
    pub yields: u32,
    /// Times the quota was given back since the last attempt because something was missing that may appear.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waits: u32,
    /// After giving quota back: when the next attempt may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Hash of the plan that the attempt was begun with; absent if it was adopted from its claims, or if its nodes come from
    /// several options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// How the pods find their nodes, fixed for the attempt; `Auto` if it was adopted from its claims.
    #[serde(default)]
    pub pinning: Pinning,
    /// The terms of the attempt in flight; absent if there is none, or if a release before version 2 began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<Terms>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<Failure>,
}

/// Where the trace of an admission begins.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceStart {
    /// When the admission began.
    #[serde(default)]
    pub since: Timestamp,
    /// Number of the transition that entered the admission's first state; 0 if none did.
    #[serde(default)]
    pub seq: u64,
    /// Number of the transition that resumed the admission after it had ended; 0 in its first trace.
    #[serde(default, skip_serializing_if = "is_zero_seq")]
    pub resumed: u64,
    /// The admission of the previous trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<AdmissionId>,
    /// `resumed` of the previous trace.
    #[serde(default, skip_serializing_if = "is_zero_seq")]
    pub resumed_before: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero_seq(seq: &u64) -> bool {
    *seq == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

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
    /// The journal of a new gang.
    pub fn new(uid: &str, admission: AdmissionId, now: Timestamp, deadline: Option<Timestamp>) -> Self {
        let traceparent = TraceContext::of(uid, &admission, 0).to_string();
        Self {
            version: VERSION,
            workload_uid: uid.to_owned(),
            seq: 0,
            state: State::Validating,
            entered_at: now,
            memory: Memory { admission, deadline, ..Memory::default() },
            traceparent,
            trace: TraceStart { since: now, ..TraceStart::default() },
            history: Vec::new(),
        }
    }

    /// A substitute for the missing journal of a gang without a reservation.
    pub fn released(uid: &str, now: Timestamp) -> Self {
        Self { state: State::Released, ..Self::new(uid, AdmissionId::default(), now, None) }
    }

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

    /// The text of the annotation, at most [`WRITE_LIMIT`] long. If necessary, the oldest history is dropped.
    pub fn encode(&self) -> String {
        let mut journal = self.clone();
        loop {
            let text = serde_json::to_string(&journal).unwrap_or_default();
            if text.len() <= WRITE_LIMIT || journal.history.is_empty() {
                return text;
            }
            journal.history.remove(0);
        }
    }

    /// Enters `target` and adds the transition to the history.
    pub(in crate::gang) fn record(&mut self, target: State, reason: Reason, now: Timestamp) {
        self.version = VERSION;
        self.seq = self.seq.saturating_add(1);
        self.history.push(Transition {
            seq: self.seq,
            from: self.state.name(),
            to: target.name(),
            at: now,
            reason,
            attempt: self.memory.attempt,
            tier: self.memory.option.tier,
            by: String::new(),
        });
        self.trim();
        self.state = target;
        self.entered_at = now;
    }

    /// Starts the trace of an admission that begins now, or resumes after its end.
    pub(super) fn start_trace(&mut self, before: &Self, now: Timestamp) {
        let is_resumed = self.memory.admission == before.memory.admission;
        self.trace = TraceStart {
            since: now,
            seq: self.seq,
            resumed: if is_resumed { self.seq } else { 0 },
            before: Some(before.memory.admission.clone()),
            resumed_before: before.trace.resumed,
        };
        self.traceparent = self.trace_context().to_string();
    }

    /// The trace of this admission. It is derived, so that nobody can write another trace's id into the annotation.
    pub fn trace_context(&self) -> TraceContext {
        TraceContext::of(&self.workload_uid, &self.memory.admission, self.trace.resumed)
    }

    /// Records which replica made the last transition.
    pub fn sign(&mut self, replica: &str) {
        if let Some(transition) = self.history.last_mut() {
            transition.by = replica.chars().take(NAME_LIMIT).collect();
        }
    }

    /// Records the policy's name for the tier that the nodes come from.
    pub fn name_tier(&mut self, name: Option<&str>) {
        let printable = |name: &str| name.chars().filter(|c| !c.is_control()).take(NAME_LIMIT).collect();
        self.memory.tier_name = name.map(printable);
    }

    /// Why an attempt was rolled back before a pod could run on its nodes; `None` if it was not.
    pub fn taken_back(&self, attempt: u32) -> Option<Reason> {
        let mut transitions = self.history.iter().rev().filter(|s| s.attempt == attempt);
        let back = transitions.find(|s| s.to == StateName::RollingBack)?;
        let unused =
            back.from != StateName::Approved || back.reason == Reason::Failed(FailureClass::NotAdmitted);
        unused.then_some(back.reason)
    }

    /// Why the current attempt was wasted if the Workload is deleted now; `None` if it was not. An approved attempt that `ran` was
    /// not wasted.
    pub fn wasted_by_deletion(&self, ran: bool) -> Option<Reason> {
        match self.state.name() {
            StateName::Provisioning | StateName::WaitingReady => Some(Reason::Ended(Ending::Deleted)),
            StateName::Approved if !ran => Some(Reason::Ended(Ending::Deleted)),
            _ => self.taken_back(self.memory.attempt),
        }
    }

    /// When the state that this transition left was entered; `None` if the history no longer shows it.
    pub fn entered_before(&self, seq: u64) -> Option<Timestamp> {
        let before = seq.checked_sub(1)?;
        if before == self.trace.seq {
            return Some(self.trace.since);
        }
        self.history.iter().find(|transition| transition.seq == before).map(|transition| transition.at)
    }

    /// Id of this admission's trace: 32 hexadecimal digits. `None` if `traceparent` has no valid one.
    pub fn trace_id(&self) -> Option<&str> {
        let id = self.traceparent.split('-').nth(1)?;
        (id.len() == 32 && id.chars().all(|c| c.is_ascii_hexdigit())).then_some(id)
    }

    /// Whether its last transition withdraws an approval. Another replica may be reporting Ready at that moment, and Kueue may
    /// admit on it. So this is decided only on the current Workload.
    pub fn revokes(&self) -> bool {
        matches!(self.state, State::RollingBack { .. } | State::Provisioning)
            && self.history.last().is_some_and(|transition| transition.from == StateName::Approved)
    }

    /// Cuts fields without a limit of their own to the length that this code writes.
    fn bound_fields(&mut self) -> Result<(), JournalError> {
        let memory = &mut self.memory;
        let plan = memory.plan.as_ref().map_or(0, String::len);
        if memory.admission.0.len().max(plan) > WORD_LIMIT {
            return Err(JournalError::Malformed("its admission or its plan is no word of ours".to_owned()));
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

    fn trim(&mut self) {
        let excess = self.history.len().saturating_sub(HISTORY_LIMIT);
        self.history.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::event::ProgressReason;
    use crate::policy::Policy;
    use crate::policy::terms::TERMS_LIMIT;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn journal() -> Journal {
        Journal::new("uid-1", AdmissionId("1-0-abc".into()), at(10), Some(at(99)))
    }

    #[test]
    fn a_journal_comes_back_as_it_was_written() {
        let mut journal = journal();
        journal.record(
            State::RollingBack { then: crate::gang::statechart::state::Then::Yielded },
            Reason::Failed(FailureClass::LaunchTimeout),
            at(11),
        );
        journal.record(
            State::BackingOff { until: at(40) },
            Reason::Progress(ProgressReason::ClaimsGone),
            at(12),
        );
        journal.memory.last_failure =
            Some(Failure::new(FailureClass::InsufficientCapacity, "no p5\u{7} left"));
        journal.name_tier(Some("spot"));
        assert!(journal.encode().contains(r#""tierName":"spot""#));
        assert_eq!(Journal::decode(&journal.encode(), "uid-1", at(0), at(20)), Ok(journal));
    }

    #[test]
    fn a_journal_stays_below_its_limit_whatever_happened() {
        let mut journal = journal();
        journal.memory.last_failure =
            Some(Failure::new(FailureClass::LaunchFailed, "\u{10ffff}".repeat(9_999)));
        journal.name_tier(Some(&"\u{10ffff}".repeat(9_999)));
        for n in 0..10_000 {
            journal.record(State::Validating, Reason::Failed(FailureClass::InitializationTimeout), at(n));
        }
        assert!(journal.encode().len() <= WRITE_LIMIT, "{}", journal.encode().len());
        assert_eq!(journal.seq, 10_000);
    }

    #[test]
    fn the_largest_terms_leave_room_for_all_else_and_a_history() {
        let mut policy = Policy::default();
        let mut largest = Terms::of(&policy, 0).unwrap();
        for n in 0.. {
            policy.readiness.node_labels.insert(format!("example.com/label-{n}"), "x".repeat(9));
            let Some(terms) = Terms::of(&policy, 0) else { break };
            largest = terms;
        }
        assert!(serde_json::to_string(&largest).unwrap().len() > TERMS_LIMIT - 100);
        let mut journal = journal();
        journal.memory.terms = Some(largest.clone());
        journal.memory.last_failure =
            Some(Failure::new(FailureClass::LaunchFailed, "\u{10ffff}".repeat(Failure::MESSAGE_LIMIT)));
        journal.name_tier(Some(&"\u{10ffff}".repeat(NAME_LIMIT)));
        for n in 0..40 {
            journal.record(State::Validating, Reason::Failed(FailureClass::InitializationTimeout), at(n));
            journal.sign(&"r".repeat(NAME_LIMIT));
        }
        let text = journal.encode();
        assert!(text.len() <= WRITE_LIMIT, "{}", text.len());
        let read = Journal::decode(&text, "uid-1", at(0), at(99)).unwrap();
        assert_eq!(
            (read.memory.terms, read.memory.last_failure),
            (Some(largest), journal.memory.last_failure)
        );
        assert!(read.history.len() >= 8, "{}", read.history.len());
    }

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

    #[test]
    fn the_trace_context_is_valid_and_the_same_at_every_replica() {
        let one = journal();
        let parts: Vec<&str> = one.traceparent.split('-').collect();
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [2, 32, 16, 2]);
        assert!(parts.iter().all(|p| p.chars().all(|c| c.is_ascii_hexdigit())));
        assert_eq!(one.traceparent, journal().traceparent);
    }
}
