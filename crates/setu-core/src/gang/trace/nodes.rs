//! Spans for the nodes of an attempt: one per slot, with the phases of its NodeClaim.
//!
//! They are below the state that decided the outcome. Their times come from the claim's conditions.

use super::{AttributeValue, SpanStatus, Subject, TraceSpan, base, number, text};
use crate::api::NodeClaim;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::StateName;
use crate::gang::statechart::transition::Transition;
use crate::names;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Phases of a NodeClaim: the span's name and the condition that ends it.
const PHASES: [(&str, &str); 3] =
    [("launch", "Launched"), ("register", "Registered"), ("initialize", "Initialized")];

/// The gang's NodeClaims as known when its spans are made.
#[derive(Clone, Copy, Debug)]
pub enum KnownClaims<'a> {
    /// All of them, as they were at the last transition.
    Then(&'a [Arc<NodeClaim>]),
    /// Those that still exist some time later. Claims that are gone or may have progressed since get no span, so that each
    /// span equals the one made at the transition.
    Left(&'a [Arc<NodeClaim>]),
}

impl<'a> KnownClaims<'a> {
    /// The claims, and whether they are only those that still exist.
    const fn parts(self) -> (&'a [Arc<NodeClaim>], bool) {
        match self {
            Self::Then(claims) => (claims, false),
            Self::Left(claims) => (claims, true),
        }
    }
}

/// The spans of the NodeClaims whose outcome a transition decided.
pub(super) fn spans(
    journal: &Journal,
    end: &Transition,
    claims: KnownClaims<'_>,
    subject: &Subject,
) -> Vec<TraceSpan> {
    match (end.from, end.to) {
        (StateName::Provisioning, StateName::WaitingReady) => Vec::new(),
        (StateName::Provisioning | StateName::WaitingReady, _) => of_attempt(journal, end, claims, subject),
        (StateName::Approved, _) => replacements(journal, end, claims, subject),
        _ => Vec::new(),
    }
}

/// The NodeClaims that an attempt succeeded or failed with, or those that it lost on the way.
fn of_attempt(
    journal: &Journal,
    end: &Transition,
    claims: KnownClaims<'_>,
    subject: &Subject,
) -> Vec<TraceSpan> {
    // The attempt continues: only the nodes that it lost have an outcome.
    let goes_on = end.to == StateName::Provisioning;
    let (claims, left_only) = claims.parts();
    // A claim that is being deleted now may have been healthy then.
    if left_only && goes_on {
        return Vec::new();
    }
    let earlier = || journal.history.iter().rev().filter(|s| s.seq < end.seq && s.attempt == end.attempt);
    // If the gang was approved before in this attempt, only claims created since then came up in this state.
    let ready_before = earlier().find(|s| s.to == StateName::Approved).map(|s| s.at);
    let attempt = end.attempt.to_string();
    let mut by_slot = BTreeMap::<u32, &NodeClaim>::new();
    for claim in claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt) {
        let Some(slot) = claim.slot() else { continue };
        let last = by_slot.entry(slot).or_insert(claim);
        if claim.generation() >= last.generation() {
            *last = claim;
        }
    }
    let gets_span = |claim: Option<&NodeClaim>| {
        let is_new = || claim.and_then(created) >= ready_before;
        let is_lost = || claim.is_none_or(NodeClaim::is_deleting);
        let is_known = || !left_only || claim.is_some_and(|c| has_stood_still(c, end.at));
        is_new() && (!goes_on || is_lost()) && is_known()
    };
    (0..journal.memory.slots)
        .map(|slot| (slot, by_slot.get(&slot).copied()))
        .filter(|(_, claim)| gets_span(*claim))
        .flat_map(|slot| node(journal, end, slot, subject))
        .collect()
}

/// The NodeClaims that replaced lost ones while the gang ran. Each span is below the Approved state in which the claim became
/// ready, or below the last one if it never did.
fn replacements(
    journal: &Journal,
    end: &Transition,
    claims: KnownClaims<'_>,
    subject: &Subject,
) -> Vec<TraceSpan> {
    let (claims, left_only) = claims.parts();
    // A stay that replaces nodes begins with their loss: a transition from Approved to Approved.
    let loss = journal.history.iter().find(|s| s.seq.checked_add(1) == Some(end.seq));
    let Some(loss) = loss.filter(|s| s.from == StateName::Approved) else { return Vec::new() };
    let attempt = end.attempt.to_string();
    let goes_on = end.to == StateName::Approved;
    let gets_span = |claim: &&NodeClaim| match since(claim, "Initialized") {
        // Conditions have a resolution of one second. The second of a transition counts for the stay that follows.
        Some(at) if goes_on => (loss.at.as_second()..end.at.as_second()).contains(&at.as_second()),
        Some(at) => loss.at.as_second() <= at.as_second(),
        None => !goes_on,
    };
    let is_known = |claim: &&NodeClaim| !left_only || has_stood_still(claim, end.at);
    let ours =
        claims.iter().map(|c| &**c).filter(|c| c.label(names::ATTEMPT) == attempt && c.generation() > 0);
    ours.filter(gets_span)
        .filter(is_known)
        .filter_map(|claim| Some((claim.slot()?, Some(claim))))
        .flat_map(|slot| node(journal, end, slot, subject))
        .collect()
}

/// Whether a NodeClaim was created before `at` and has reached no phase since.
fn has_stood_still(claim: &NodeClaim, at: Timestamp) -> bool {
    let is_older = |time: Timestamp| time.as_second() < at.as_second();
    created(claim).is_some_and(is_older)
        && PHASES.iter().all(|(_, condition)| since(claim, condition).is_none_or(is_older))
}

/// The start and end of an attempt's spans: from its first transition to this one.
fn window(journal: &Journal, end: &Transition) -> (Timestamp, Timestamp) {
    let mut earlier = journal.history.iter().rev().filter(|s| s.seq < end.seq && s.attempt == end.attempt);
    let began = earlier.find(|s| s.to == StateName::Provisioning && !s.from.wants_claims());
    let began = began.map_or(journal.trace.since, |s| s.at);
    // Another replica's clock may have been ahead of this one's.
    (began, end.at.max(began))
}

fn created(claim: &NodeClaim) -> Option<Timestamp> {
    claim.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

/// The spans of one slot: its NodeClaim, and the claim's phases.
fn node(
    journal: &Journal,
    end: &Transition,
    (slot, claim): (u32, Option<&NodeClaim>),
    subject: &Subject,
) -> Vec<TraceSpan> {
    let initialized = claim.and_then(|c| since(c, "Initialized"));
    if end.to == StateName::Approved && initialized.is_none() {
        // Its claim existed then and is gone since.
        return Vec::new();
    }
    let context = journal.trace_context();
    let about = [end.attempt.to_string(), slot.to_string(), life(end, claim)];
    let id_of = |what: &str| context.span(&["claim", &about[0], &about[1], &about[2], what]);
    // Conditions have a resolution of one second, so a phase may seem to begin before its cause.
    let (began, ended) = window(journal, end);
    let start = claim.and_then(created).unwrap_or(began).clamp(began, ended);
    let ready = initialized.unwrap_or(ended).clamp(began, ended);
    let mut whole = base(&context, id_of("whole"), "NodeClaim", (start, ready), &end.by);
    whole.parent = Some(context.state(end.seq.saturating_sub(1)));
    whole.attributes = subject.attributes();
    whole.attributes.extend([("setu.attempt", number(end.attempt)), ("setu.slot", number(slot))]);
    let gave_up = SpanStatus::Failed(format!("{}: {}", how_it_failed(end), end.reason));
    whole.status = match claim {
        _ if loses_claims(end) => gave_up.clone(),
        None => SpanStatus::Failed(format!("there was no NodeClaim: {}", end.reason)),
        Some(_) if initialized.is_some() => SpanStatus::Good,
        Some(_) => gave_up.clone(),
    };
    let Some(claim) = claim else { return vec![whole] };
    whole.attributes.extend(claim_attributes(claim));
    let phases = phases(claim, &whole, id_of, &gave_up);
    std::iter::once(whole).chain(phases).collect()
}

/// The spans of a claim's phases, up to the first that it did not complete.
fn phases(
    claim: &NodeClaim,
    whole: &TraceSpan,
    id_of: impl Fn(&str) -> [u8; 8],
    gave_up: &SpanStatus,
) -> Vec<TraceSpan> {
    let mut spans = Vec::new();
    let mut from = whole.start;
    for (name, condition) in PHASES {
        let done = since(claim, condition);
        let to = done.map_or(whole.end, |t| t.clamp(from, whole.end.max(from)));
        spans.push(TraceSpan {
            id: id_of(name),
            parent: Some(whole.id),
            name,
            start: from,
            end: to.max(from),
            attributes: Vec::new(),
            status: if done.is_some() { SpanStatus::Good } else { gave_up.clone() },
            ..whole.clone()
        });
        from = to;
        if done.is_none() {
            break;
        }
    }
    spans
}

/// Whether this transition lost claims of an attempt that continued.
fn loses_claims(end: &Transition) -> bool {
    end.from != StateName::Approved && end.to == StateName::Provisioning
}

/// Distinguishes a claim from the others of its slot: by its generation, or by the transition that lost it.
fn life(end: &Transition, claim: Option<&NodeClaim>) -> String {
    if loses_claims(end) {
        return format!("lost at {}", end.seq);
    }
    claim.map_or(0, NodeClaim::generation).to_string()
}

/// How a claim that was not ready at this transition failed, in words.
fn how_it_failed(end: &Transition) -> &'static str {
    match end.from {
        _ if loses_claims(end) => "lost",
        StateName::Approved => "not ready when the gang's nodes were given back",
        _ => "not ready when the attempt was given up",
    }
}

fn since(claim: &NodeClaim, condition: &str) -> Option<Timestamp> {
    claim.is(condition).then(|| claim.since(condition)).flatten()
}

fn claim_attributes(claim: &NodeClaim) -> Vec<(&'static str, AttributeValue)> {
    let known = [
        ("setu.nodeclaim", claim.metadata.name.as_deref().unwrap_or_default()),
        ("k8s.node.name", claim.node_name().unwrap_or_default()),
        ("karpenter.nodepool", claim.label(names::NODEPOOL)),
        ("karpenter.capacity_type", claim.label(names::CAPACITY_TYPE)),
        ("host.type", claim.label(names::INSTANCE_TYPE)),
        ("cloud.availability_zone", claim.label(names::ZONE)),
    ];
    known.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key, text(value))).collect()
}
