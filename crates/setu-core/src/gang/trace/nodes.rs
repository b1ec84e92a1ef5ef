//! Spans for the nodes of an attempt: one per slot, with the phases of its NodeClaim.
//!
//! They are below the state that decided the outcome. Their times come from the claim's conditions.

use super::{Span, Status, Subject, Value, base, number, text};
use crate::api::NodeClaim;
use crate::gang::journal::{Journal, Step};
use crate::gang::state::StateName;
use crate::names;
use jiff::Timestamp;

/// Phases of a NodeClaim: the span's name and the condition that ends it.
const PHASES: [(&str, &str); 3] =
    [("launch", "Launched"), ("register", "Registered"), ("initialize", "Initialized")];

/// The gang's NodeClaims as known when its spans are made.
#[derive(Clone, Copy, Debug)]
pub enum Claims<'a> {
    /// All of them, as they were at the last transition.
    Then(&'a [NodeClaim]),
    /// Those that still exist some time later. Claims that are gone or may have progressed since get no span, so that each
    /// span equals the one made at the transition.
    Left(&'a [NodeClaim]),
    /// Nothing.
    Unknown,
}

/// The spans of the NodeClaims whose outcome a step decided.
pub(super) fn spans(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    match (step.from, step.to) {
        (StateName::Provisioning, StateName::WaitingReady) => Vec::new(),
        (StateName::Provisioning | StateName::WaitingReady, _) => of_attempt(journal, step, claims, subject),
        (StateName::Approved, _) => replacements(journal, step, claims, subject),
        _ => Vec::new(),
    }
}

/// The NodeClaims that an attempt succeeded or failed with, or those that it lost on the way.
fn of_attempt(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    // The attempt continues: only the nodes that it lost have an outcome.
    let goes_on = step.to == StateName::Provisioning;
    let (claims, left_only) = match claims {
        Claims::Then(claims) => (claims, false),
        // A claim that is being deleted now may have been healthy then.
        Claims::Left(claims) if !goes_on => (claims, true),
        Claims::Left(_) | Claims::Unknown => return Vec::new(),
    };
    let earlier = || journal.history.iter().rev().filter(|s| s.seq < step.seq && s.attempt == step.attempt);
    // If the gang was approved before in this attempt, only claims created since then came up in this state.
    let ready_before = earlier().find(|s| s.to == StateName::Approved).map(|s| s.at);
    let attempt = step.attempt.to_string();
    let of_slot = |slot: u32| {
        let of_attempt = claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt);
        of_attempt.filter(|c| c.slot() == Some(slot)).max_by_key(|c| c.generation())
    };
    let gets_span = |claim: Option<&NodeClaim>| {
        let is_new = || claim.and_then(created) >= ready_before;
        let is_lost = || claim.is_none_or(|c| c.metadata.deletion_timestamp.is_some());
        let is_known = || !left_only || claim.is_some_and(|c| has_stood_still(c, step.at));
        is_new() && (!goes_on || is_lost()) && is_known()
    };
    (0..journal.memory.slots)
        .map(|slot| (slot, of_slot(slot)))
        .filter(|(_, claim)| gets_span(*claim))
        .flat_map(|slot| node(journal, step, slot, subject))
        .collect()
}

/// The NodeClaims that replaced lost ones while the gang ran. Each span is below the Approved state in which the claim became
/// ready, or below the last one if it never did.
fn replacements(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    let (claims, left_only) = match claims {
        Claims::Then(claims) => (claims, false),
        Claims::Left(claims) => (claims, true),
        Claims::Unknown => return Vec::new(),
    };
    // A stay that replaces nodes begins with their loss: a step from Approved to Approved.
    let loss = journal.history.iter().find(|s| s.seq.checked_add(1) == Some(step.seq));
    let Some(loss) = loss.filter(|s| s.from == StateName::Approved) else { return Vec::new() };
    let attempt = step.attempt.to_string();
    let goes_on = step.to == StateName::Approved;
    let gets_span = |claim: &&NodeClaim| match since(claim, "Initialized") {
        // Conditions have a resolution of one second. The second of a step counts for the stay that follows.
        Some(at) if goes_on => (loss.at.as_second()..step.at.as_second()).contains(&at.as_second()),
        Some(at) => loss.at.as_second() <= at.as_second(),
        None => !goes_on,
    };
    let is_known = |claim: &&NodeClaim| !left_only || has_stood_still(claim, step.at);
    let ours = claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt && c.generation() > 0);
    ours.filter(gets_span)
        .filter(is_known)
        .filter_map(|claim| Some((claim.slot()?, Some(claim))))
        .flat_map(|slot| node(journal, step, slot, subject))
        .collect()
}

/// Whether a NodeClaim was created before `at` and has reached no phase since.
fn has_stood_still(claim: &NodeClaim, at: Timestamp) -> bool {
    let is_older = |time: Timestamp| time.as_second() < at.as_second();
    created(claim).is_some_and(is_older)
        && PHASES.iter().all(|(_, condition)| since(claim, condition).is_none_or(is_older))
}

/// The start and end of an attempt's spans: from its first step to this one.
fn window(journal: &Journal, step: &Step) -> (Timestamp, Timestamp) {
    let mut earlier = journal.history.iter().rev().filter(|s| s.seq < step.seq && s.attempt == step.attempt);
    let began = earlier.find(|s| s.to == StateName::Provisioning && !is_under_way(s.from));
    let began = began.map_or(journal.trace.since, |s| s.at);
    // Another replica's clock may have been ahead of this one's.
    (began, step.at.max(began))
}

/// Whether an attempt was already running before a step out of this state.
fn is_under_way(state: StateName) -> bool {
    matches!(state, StateName::Provisioning | StateName::WaitingReady | StateName::Approved)
}

fn created(claim: &NodeClaim) -> Option<Timestamp> {
    claim.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

/// The spans of one slot: its NodeClaim, and the claim's phases.
fn node(
    journal: &Journal,
    step: &Step,
    (slot, claim): (u32, Option<&NodeClaim>),
    subject: &Subject,
) -> Vec<Span> {
    let (began, end) = window(journal, step);
    let context = journal.trace_context();
    let about = [step.attempt.to_string(), slot.to_string()];
    // A claim that was lost while the attempt continued is identified by the step that lost it.
    let is_lost = step.from != StateName::Approved && step.to == StateName::Provisioning;
    let life = if is_lost {
        format!("lost at {}", step.seq)
    } else {
        claim.map_or(0, NodeClaim::generation).to_string()
    };
    let id_of = |what: &str| context.span(&["claim", &about[0], &about[1], &life, what]);
    let created = claim.and_then(created).unwrap_or(began);
    let initialized = claim.and_then(|c| since(c, "Initialized"));
    // Conditions have a resolution of one second, so a phase may seem to begin before its cause.
    let (start, ready) = (created.clamp(began, end), initialized.unwrap_or(end).clamp(began, end));
    let mut whole = base(&context, id_of("whole"), "NodeClaim", (start, ready), &step.by);
    whole.parent = Some(context.state(step.seq.saturating_sub(1)));
    whole.attributes = subject.attributes();
    whole.attributes.extend([("setu.attempt", number(step.attempt)), ("setu.slot", number(slot))]);
    let gave_up = || {
        let how = match step.from {
            _ if is_lost => "lost",
            StateName::Approved => "not ready when the gang's nodes were given back",
            _ => "not ready when the attempt was given up",
        };
        Status::Failed(format!("{how}: {}", step.reason))
    };
    whole.status = if initialized.is_some() && !is_lost { Status::Good } else { gave_up() };
    if step.to == StateName::Approved && initialized.is_none() {
        // Its claim existed then and is gone since.
        return Vec::new();
    }
    let Some(claim) = claim else {
        if !is_lost {
            whole.status = Status::Failed(format!("there was no NodeClaim: {}", step.reason));
        }
        return vec![whole];
    };
    whole.attributes.extend(claim_attributes(claim));
    let mut spans = vec![whole];
    let mut from = start;
    for (name, condition) in PHASES {
        let done = since(claim, condition);
        let to = done.map_or(ready, |t| t.clamp(from, ready.max(from)));
        let mut phase = base(&context, id_of(name), name, (from, to), &step.by);
        phase.parent = Some(id_of("whole"));
        phase.status = if done.is_some() { Status::Good } else { gave_up() };
        spans.push(phase);
        from = to;
        if done.is_none() {
            break;
        }
    }
    spans
}

fn since(claim: &NodeClaim, condition: &str) -> Option<Timestamp> {
    claim.is(condition).then(|| claim.since(condition)).flatten()
}

fn claim_attributes(claim: &NodeClaim) -> Vec<(&'static str, Value)> {
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
