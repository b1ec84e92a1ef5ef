//! How the nodes of an attempt came up, or did not: one span per slot, with the phases of its NodeClaim.
//!
//! They hang below the state in which their fate was sealed, and their times are those of the claim's
//! own conditions.

use super::{Span, Status, Subject, Value, base, number, text};
use crate::api::NodeClaim;
use crate::gang::claims::generation;
use crate::gang::journal::{Journal, Step};
use crate::gang::state::StateName;
use crate::names;
use jiff::Timestamp;

/// Phases of a NodeClaim: the span's name, and the condition that ends it.
const PHASES: [(&str, &str); 3] =
    [("launch", "Launched"), ("register", "Registered"), ("initialize", "Initialized")];

/// The NodeClaims of the attempt whose fate a step sealed.
pub(super) fn spans(journal: &Journal, step: &Step, claims: &[NodeClaim], subject: &Subject) -> Vec<Span> {
    if step.from == StateName::Provisioning && step.to == StateName::WaitingReady {
        return Vec::new();
    }
    // The attempt goes on: only of the nodes that it lost it is known how they ended.
    let goes_on = step.to == StateName::Provisioning;
    let earlier = || journal.history.iter().rev().filter(|s| s.seq < step.seq && s.attempt == step.attempt);
    // A gang that waits again after its nodes were ready has only those come up that it got since.
    let ready_before = earlier().find(|s| s.to == StateName::Approved).map(|s| s.at);
    let began = earlier().find(|s| s.to == StateName::Provisioning && !is_under_way(s.from));
    let began = began.map_or(journal.trace.since, |s| s.at);
    // Another replica's clock may have been ahead of this one's.
    let window = (began, step.at.max(began));
    let attempt = step.attempt.to_string();
    let of_slot = |slot: u32| {
        let slot = slot.to_string();
        let of_attempt = claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt);
        of_attempt.filter(|c| c.label(names::SLOT) == slot).max_by_key(|c| generation(c))
    };
    let is_told = |claim: Option<&NodeClaim>| {
        let is_new = || claim.and_then(created) >= ready_before;
        let is_lost = || claim.is_none_or(|c| c.metadata.deletion_timestamp.is_some());
        is_new() && (!goes_on || is_lost())
    };
    (0..journal.memory.slots)
        .map(|slot| (slot, of_slot(slot)))
        .filter(|(_, claim)| is_told(*claim))
        .flat_map(|slot| node(journal, step, slot, window, subject))
        .collect()
}

/// Whether the attempt had begun before a step out of this state.
fn is_under_way(state: StateName) -> bool {
    matches!(state, StateName::Provisioning | StateName::WaitingReady | StateName::Approved)
}

fn created(claim: &NodeClaim) -> Option<Timestamp> {
    claim.metadata.creation_timestamp.as_ref().map(|t| t.0)
}

/// One slot: the life of its NodeClaim, and the phases of that life.
fn node(
    journal: &Journal,
    step: &Step,
    (slot, claim): (u32, Option<&NodeClaim>),
    (began, end): (Timestamp, Timestamp),
    subject: &Subject,
) -> Vec<Span> {
    let context = journal.trace_context();
    let about = [step.attempt.to_string(), slot.to_string()];
    // One that the attempt outlived is told of by the step that it was lost at.
    let is_lost = step.to == StateName::Provisioning;
    let life =
        if is_lost { format!("lost at {}", step.seq) } else { claim.map_or(0, generation).to_string() };
    let id_of = |what: &str| context.span(&["claim", &about[0], &about[1], &life, what]);
    let created = claim.and_then(created).unwrap_or(began);
    let initialized = claim.and_then(|c| since(c, "Initialized"));
    // Conditions tell whole seconds only, so that a phase may seem to begin before what led to it.
    let (start, ready) = (created.clamp(began, end), initialized.unwrap_or(end).clamp(began, end));
    let mut whole = base(&context, id_of("whole"), "NodeClaim", (start, ready), &step.by);
    whole.parent = Some(context.state(step.seq.saturating_sub(1)));
    whole.attributes = subject.attributes();
    whole.attributes.extend([("setu.attempt", number(step.attempt)), ("setu.slot", number(slot))]);
    let gave_up = || {
        let how = if is_lost { "lost" } else { "not ready when the attempt was given up" };
        Status::Failed(format!("{how}: {}", step.reason))
    };
    whole.status = if initialized.is_some() && !is_lost { Status::Good } else { gave_up() };
    if step.to == StateName::Approved && initialized.is_none() {
        // Its claim was there then, and went since.
        return Vec::new();
    }
    let Some(claim) = claim else {
        if !is_lost {
            whole.status = Status::Failed(format!("there was no NodeClaim: {}", step.reason));
        }
        return vec![whole];
    };
    whole.attributes.extend(told_of(claim));
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

fn told_of(claim: &NodeClaim) -> Vec<(&'static str, Value)> {
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
