//! A gang's trace, derived from its journal: the complete spans, with the same ids and times at every replica.
//!
//! There is one trace per admission. Below the root `gang` is one span per state. Below the states in which nodes come
//! up is one span per NodeClaim. No span is kept open: it is made after it has ended, from the times in the journal and
//! in the claims' conditions. So a replica that takes over makes the same spans as its predecessor.

mod nodes;

use crate::api::Workload;
use crate::gang::statechart::event::Reason;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::Ending;
use crate::gang::statechart::state::StateName;
use crate::gang::statechart::trace_context::TraceContext;
use crate::gang::statechart::transition::Transition;
use crate::names;
use jiff::Timestamp;
pub use nodes::KnownClaims;

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSpan {
    /// Id of the trace.
    pub trace: [u8; 16],
    /// Id of the span; the same at every replica.
    pub id: [u8; 8],
    /// The parent span; `None` for the root.
    pub parent: Option<[u8; 8]>,
    /// Its name.
    pub name: &'static str,
    /// Start.
    pub start: Timestamp,
    /// End; never before the start.
    pub end: Timestamp,
    /// Attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Events within it.
    pub events: Vec<SpanEvent>,
    /// Related spans, in this trace or in others.
    pub links: Vec<TraceContext>,
    /// Whether it succeeded.
    pub status: SpanStatus,
    /// The replica that did the work.
    pub by: String,
}

/// An event within a span.
#[derive(Clone, Debug, PartialEq)]
pub struct SpanEvent {
    /// Its name.
    pub name: &'static str,
    /// Its time.
    pub at: Timestamp,
    /// Attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttributeValue {
    /// Text.
    Text(String),
    /// A number.
    Number(i64),
}

/// Whether a span succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanStatus {
    /// Neither.
    Unset,
    /// It succeeded.
    Good,
    /// It failed, for this reason.
    Failed(String),
}

/// Facts about a gang that its spans contain besides its journal.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// Id of the gang.
    pub gang: String,
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub workload: String,
    /// The AdmissionCheck.
    pub check: String,
    /// The ClusterQueue; empty if none is known.
    pub cluster_queue: String,
    /// The trace in which the Job was submitted.
    pub submitted_in: Option<TraceContext>,
}

impl Subject {
    /// Reads it from a Workload.
    pub fn of(workload: &Workload, gang: &str, check: &str) -> Self {
        let annotations = workload.metadata.annotations.as_ref();
        let named = |key: &&str| annotations.and_then(|a| a.get(*key)).and_then(|t| TraceContext::parse(t));
        Self {
            gang: gang.to_owned(),
            namespace: workload.metadata.namespace.clone().unwrap_or_default(),
            workload: workload.metadata.name.clone().unwrap_or_default(),
            check: check.to_owned(),
            cluster_queue: workload.admission().map(|a| a.cluster_queue.clone()).unwrap_or_default(),
            submitted_in: names::TRACEPARENT.iter().find_map(named),
        }
    }

    /// Attributes that never change.
    fn attributes(&self) -> Vec<(&'static str, AttributeValue)> {
        vec![
            ("setu.gang.id", text(&self.gang)),
            ("setu.namespace", text(&self.namespace)),
            ("setu.workload", text(&self.workload)),
            ("setu.check", text(&self.check)),
        ]
    }
}

/// The spans that transitions with a number above `after` completed in the current admission. `claims` give the node
/// spans of the journal's last transition.
pub fn spans(journal: &Journal, claims: KnownClaims<'_>, subject: &Subject, after: u64) -> Vec<TraceSpan> {
    let mut all = Vec::new();
    for transition in journal.history.iter().filter(|s| s.seq > after && s.seq > journal.trace.seq) {
        if transition.from.is_over() {
            continue;
        }
        let Some(entered) = journal.entered_before(transition.seq) else { continue };
        all.push(state(journal, transition, entered, subject));
        if transition.seq == journal.seq {
            all.extend(nodes::spans(journal, transition, claims, subject));
        }
    }
    if let Some(last) = journal.history.last().filter(|s| s.seq > after && s.to.is_over()) {
        let context = journal.trace_context();
        let mut end = base(&context, context.state(last.seq), last.to.name(), (last.at, last.at), &last.by);
        end.attributes = subject.attributes();
        all.push(end);
        all.push(root(journal, last.at, subject, &last.by));
    }
    all
}

/// The end of an admission that no transition recorded.
#[derive(Clone, Copy, Debug)]
pub struct CutOff<'a> {
    /// When.
    pub at: Timestamp,
    /// Why.
    pub why: Ending,
    /// The replica that saw it.
    pub by: &'a str,
}

/// The spans of an admission that was replaced before its gang had ended: the root, the last state, and the NodeClaims
/// of that state.
pub fn cut_off(
    journal: &Journal,
    end: CutOff<'_>,
    claims: KnownClaims<'_>,
    subject: &Subject,
) -> Vec<TraceSpan> {
    let CutOff { at, why, by } = end;
    let from = journal.state.name();
    if journal.state.is_over() {
        return Vec::new();
    }
    let context = journal.trace_context();
    let span = (journal.entered_at.max(journal.trace.since), at);
    let mut state = base(&context, context.state(journal.seq), from.name(), span, by);
    state.attributes = subject.attributes();
    state.attributes.push(("setu.attempt", number(journal.memory.attempt)));
    // As if a transition had left the state.
    let last = Transition {
        seq: journal.seq.saturating_add(1),
        from,
        to: StateName::Released,
        at,
        reason: Reason::Ended(why),
        attempt: journal.memory.attempt,
        tier: journal.memory.option.tier,
        by: by.to_owned(),
    };
    let mut all = vec![state, root(journal, at, subject, by)];
    all.extend(nodes::spans(journal, &last, claims, subject));
    all
}

fn base(
    context: &TraceContext,
    id: [u8; 8],
    name: &'static str,
    (start, end): (Timestamp, Timestamp),
    by: &str,
) -> TraceSpan {
    TraceSpan {
        trace: context.trace,
        id,
        parent: Some(context.root),
        name,
        start,
        end: end.max(start),
        attributes: Vec::new(),
        events: Vec::new(),
        links: Vec::new(),
        status: SpanStatus::Unset,
        by: by.to_owned(),
    }
}

fn root(journal: &Journal, end: Timestamp, subject: &Subject, by: &str) -> TraceSpan {
    let context = journal.trace_context();
    let memory = &journal.memory;
    let mut root = base(&context, context.root, "gang", (journal.trace.since, end), by);
    root.parent = None;
    // A state span may be made again after the queue or the size changed, so only the root has these attributes.
    root.attributes = subject.attributes();
    if !subject.cluster_queue.is_empty() {
        root.attributes.push(("setu.cluster_queue", text(&subject.cluster_queue)));
    }
    root.attributes.extend([
        ("setu.attempt", number(memory.attempt)),
        ("setu.slots", number(memory.slots)),
        ("setu.outcome", text(journal.state.name().name())),
    ]);
    let before = journal.trace.before.as_ref().filter(|admission| !admission.0.is_empty());
    root.links.extend(
        before.map(|admission| {
            TraceContext::of(&journal.workload_uid, admission, journal.trace.resumed_before)
        }),
    );
    root.links.extend(subject.submitted_in);
    let approved = journal.history.iter().any(|s| s.seq > journal.trace.seq && s.from == StateName::Approved);
    root.status = match journal.state.name() {
        StateName::Rejected | StateName::Yielded => SpanStatus::Failed(
            memory.last_failure.as_ref().map_or_else(|| "quota given back".to_owned(), ToString::to_string),
        ),
        _ if approved => SpanStatus::Good,
        _ => SpanStatus::Unset,
    };
    root
}

/// The state that a transition left, from the moment it was entered.
fn state(journal: &Journal, transition: &Transition, entered: Timestamp, subject: &Subject) -> TraceSpan {
    let context = journal.trace_context();
    let id = context.state(transition.seq.saturating_sub(1));
    let mut span = base(&context, id, transition.from.name(), (entered, transition.at), &transition.by);
    let earlier = |to: StateName| {
        let mut transitions = journal.history.iter().rev().filter(|s| s.seq > journal.trace.seq);
        transitions.find(move |s| s.to == to && s.seq < transition.seq.saturating_sub(1))
    };
    span.attributes = subject.attributes();
    span.attributes.extend([
        ("setu.attempt", number(transition.attempt)),
        ("setu.tier", number(transition.tier)),
        ("setu.seq", AttributeValue::Number(i64::try_from(transition.seq).unwrap_or(i64::MAX))),
        ("setu.reason", text(&transition.reason.to_string())),
        ("setu.next_state", text(transition.to.name())),
    ]);
    if transition.from == StateName::Provisioning
        && let Some(before) = earlier(StateName::Provisioning)
    {
        span.links.push(TraceContext { root: context.state(before.seq), ..context });
    }
    let entry = journal.history.iter().find(|s| s.seq.checked_add(1) == Some(transition.seq));
    span.events = events(transition, entry, earlier(StateName::Provisioning));
    span.status = match transition.reason {
        Reason::Failed(class) => {
            let last = journal.history.iter().rev().find(|s| matches!(s.reason, Reason::Failed(_)));
            let is_last = last.is_some_and(|l| l.seq == transition.seq);
            let reported = journal.failure_of(transition).filter(|_| is_last);
            SpanStatus::Failed(reported.map_or_else(|| class.to_string(), ToString::to_string))
        }
        Reason::Progress(_) if transition.from != StateName::RollingBack => SpanStatus::Good,
        _ => SpanStatus::Unset,
    };
    span
}

/// Span events at the end of a state: verdict, retry and change of tier.
fn events(
    transition: &Transition,
    entry: Option<&Transition>,
    attempt_before: Option<&Transition>,
) -> Vec<SpanEvent> {
    let moment = |name, key, value| SpanEvent { name, at: transition.at, attributes: vec![(key, value)] };
    let verdict = match transition.to {
        StateName::Approved if transition.from != StateName::Approved => Some("Ready"),
        StateName::Yielded => Some("Retry"),
        StateName::Rejected => Some("Rejected"),
        _ => None,
    };
    let mut all: Vec<SpanEvent> =
        verdict.into_iter().map(|v| moment("verdict", "setu.verdict", text(v))).collect();
    if transition.to == StateName::BackingOff {
        all.push(moment("retry", "setu.attempt", number(transition.attempt.saturating_add(1))));
    }
    // A gang moves to another tier between two attempts; with mixed tiers a part of it moves within one.
    let tier_before = match transition {
        Transition { from: StateName::Provisioning, .. } => entry,
        Transition { to: StateName::Provisioning, .. } => attempt_before,
        _ => None,
    };
    if tier_before.is_some_and(|before| before.tier != transition.tier) {
        all.push(moment("tier change", "setu.tier", number(transition.tier)));
    }
    all
}

fn text(value: &str) -> AttributeValue {
    AttributeValue::Text(value.to_owned())
}

fn number(value: u32) -> AttributeValue {
    AttributeValue::Number(i64::from(value))
}
