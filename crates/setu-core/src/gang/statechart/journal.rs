//! The journal: a gang's state as kept in an annotation of its Workload.
//!
//! Rule: it is a hint, not an authority, and nothing in it names an object. `read` checks and bounds what an annotation has.
//!
//! Some fields have other names in the annotation, as the first releases wrote them: `epoch` (the admission), `fit` (the shape
//! match), `choice` and `choices` (the option), and `mending` (whether an approved gang is being repaired).

mod read;
mod retry;

use super::event::{ProgressReason, Reason};
use super::failure::Failure;
use super::option_position::OptionPosition;
use super::reservation::{AdmissionId, AssignmentMatch, Ending};
use super::state::{State, StateName};
use super::trace_context::TraceContext;
use super::transition::Transition;
use crate::api::parameters::Pinning;
use crate::plan::pod_set_labels::PodSetLabels;
use crate::policy::MOST_NODES;
use crate::policy::terms::Terms;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use read::JournalError;
pub use retry::RetryKind;

/// The version that this code writes. Version 2 added `terms`.
pub const VERSION: u32 = 2;
/// The first version. It has no `terms` and is otherwise read like version 2.
const FIRST_VERSION: u64 = 1;
/// Largest journal that is written, in bytes, whatever the gang's size.
pub const WRITE_LIMIT: usize = 8 * 1024;
/// Longest name of a replica or tier, in characters.
const NAME_LIMIT: usize = 63;
/// The most slots that a journal may have. A tenant can write the number, and each slot costs a lookup.
pub(in crate::gang) const SLOTS_LIMIT: u32 = MOST_NODES;
/// Most history entries kept; the oldest go first.
const HISTORY_LIMIT: usize = 32;

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
    /// Everything else that must survive a restart.
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

/// Data that the cluster does not show and that must survive a change of leader.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// The admission that the state belongs to.
    #[serde(rename = "epoch")]
    pub admission: AdmissionId,
    /// Whether the nodes match what that admission admits.
    #[serde(rename = "fit", default, skip_serializing_if = "AssignmentMatch::is_same")]
    pub assignment_match: AssignmentMatch,
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
    /// The labels by which the pods find the nodes of their own pod sets, fixed for the attempt.
    #[serde(default, skip_serializing_if = "PodSetLabels::is_empty")]
    pub pod_sets: PodSetLabels,
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

impl TraceStart {
    /// Those transitions of the history that belong to the admission, with the one that entered its first state.
    pub fn of_this_admission<'h>(&self, history: &'h [Transition]) -> &'h [Transition] {
        let start = history.partition_point(|step| step.seq < self.seq);
        history.get(start..).unwrap_or_default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero_seq(seq: &u64) -> bool {
    *seq == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_zero(number: &u32) -> bool {
    *number == 0
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
        let is_unused = matches!(back.reason, Reason::Failed(class) if !class.blames_nodes());
        let unused = back.from != StateName::Approved || is_unused;
        unused.then_some(back.reason)
    }

    /// Why the current attempt was wasted if it ends now, without a step; `None` if it was not. An approved attempt that `ran` was
    /// not wasted.
    pub fn wasted_by(&self, ending: Ending, ran: bool) -> Option<Reason> {
        match self.state.name() {
            StateName::Provisioning | StateName::WaitingReady => Some(Reason::Ended(ending)),
            StateName::Approved if !ran => Some(Reason::Ended(ending)),
            _ => self.taken_back(self.memory.attempt),
        }
    }

    /// The last failure, if it is what this transition was taken for. A gang that succeeded still has its last failure.
    pub fn failure_of(&self, step: &Transition) -> Option<&Failure> {
        self.memory.last_failure.as_ref().filter(|failure| step.reason == Reason::Failed(failure.reason))
    }

    /// Whether the history shows that an attempt was never approved. A journal that found its claims may have lost that.
    pub fn was_never_approved(&self, attempt: u32) -> bool {
        let planned = Reason::Progress(ProgressReason::PlanAccepted);
        let of_attempt = || self.history.iter().filter(|s| s.attempt == attempt);
        let is_approved = |s: &Transition| s.from == StateName::Approved || s.to == StateName::Approved;
        of_attempt().any(|s| s.begins() && s.reason == planned)
            && !self.state.is_approved()
            && !of_attempt().any(is_approved)
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

    fn trim(&mut self) {
        let excess = self.history.len().saturating_sub(HISTORY_LIMIT);
        self.history.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::event::ProgressReason;
    use crate::gang::statechart::failure::FailureClass;
    use crate::policy::Policy;
    use crate::policy::terms::TERMS_LIMIT;

    pub(super) fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    pub(super) fn journal() -> Journal {
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
        let names: Vec<String> = (10..18).map(|n| format!("{n}{}", "a".repeat(61))).collect();
        journal.memory.pod_sets = PodSetLabels::of_values(names.iter().map(String::as_str));
        assert!(journal.memory.pod_sets.are_possible());
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
    fn the_trace_context_is_valid_and_the_same_at_every_replica() {
        let one = journal();
        let parts: Vec<&str> = one.traceparent.split('-').collect();
        assert_eq!(parts.iter().map(|p| p.len()).collect::<Vec<_>>(), [2, 32, 16, 2]);
        assert!(parts.iter().all(|p| p.chars().all(|c| c.is_ascii_hexdigit())));
        assert_eq!(one.traceparent, journal().traceparent);
    }
}
