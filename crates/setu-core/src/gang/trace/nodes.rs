//! How the nodes of an attempt came up, or did not: one span per slot, with the phases of its NodeClaim.
//!
//! They hang below the state in which their fate was sealed, and their times are those of the claim's
//! own conditions.

use super::{Span, Status, Subject, Value, base, number, text};
use crate::api::NodeClaim;
use crate::gang::journal::{Journal, Step};
use crate::gang::state::StateName;
use crate::names;
use jiff::Timestamp;

/// Phases of a NodeClaim: the span's name, and the condition that ends it.
const PHASES: [(&str, &str); 3] =
    [("launch", "Launched"), ("register", "Registered"), ("initialize", "Initialized")];

/// What is known of a gang's NodeClaims when its spans are made.
#[derive(Clone, Copy, Debug)]
pub enum Claims<'a> {
    /// All of them, as they were when the last transition was taken.
    Then(&'a [NodeClaim]),
    /// What is left of them some time after it. Of those that are gone nothing is told, nor of those that may have
    /// come farther since: each span is to be the one that was made then.
    Left(&'a [NodeClaim]),
    /// Nothing.
    Unknown,
}

/// The NodeClaims whose fate a step sealed.
pub(super) fn spans(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    match (step.from, step.to) {
        (StateName::Provisioning, StateName::WaitingReady) => Vec::new(),
        (StateName::Provisioning | StateName::WaitingReady, _) => of_attempt(journal, step, claims, subject),
        (StateName::Approved, _) => replacements(journal, step, claims, subject),
        _ => Vec::new(),
    }
}

/// The NodeClaims with which an attempt succeeded or failed, or those that it lost on its way.
fn of_attempt(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    // The attempt goes on: only of the nodes that it lost it is known how they ended.
    let goes_on = step.to == StateName::Provisioning;
    let (claims, left_only) = match claims {
        Claims::Then(claims) => (claims, false),
        // What is being deleted now may have been in order then.
        Claims::Left(claims) if !goes_on => (claims, true),
        Claims::Left(_) | Claims::Unknown => return Vec::new(),
    };
    let earlier = || journal.history.iter().rev().filter(|s| s.seq < step.seq && s.attempt == step.attempt);
    // A gang that waits again after its nodes were ready has only those come up that it got since.
    let ready_before = earlier().find(|s| s.to == StateName::Approved).map(|s| s.at);
    let attempt = step.attempt.to_string();
    let of_slot = |slot: u32| {
        let of_attempt = claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt);
        of_attempt.filter(|c| c.slot() == Some(slot)).max_by_key(|c| c.generation())
    };
    let is_told = |claim: Option<&NodeClaim>| {
        let is_new = || claim.and_then(created) >= ready_before;
        let is_lost = || claim.is_none_or(|c| c.metadata.deletion_timestamp.is_some());
        let is_known = || !left_only || claim.is_some_and(|c| has_stood_still(c, step.at));
        is_new() && (!goes_on || is_lost()) && is_known()
    };
    (0..journal.memory.slots)
        .map(|slot| (slot, of_slot(slot)))
        .filter(|(_, claim)| is_told(*claim))
        .flat_map(|slot| node(journal, step, slot, subject))
        .collect()
}

/// The NodeClaims that took the place of lost ones while the gang ran: each below the stay in which it was ready, or,
/// if it never was, below the last one.
fn replacements(journal: &Journal, step: &Step, claims: Claims<'_>, subject: &Subject) -> Vec<Span> {
    let (claims, left_only) = match claims {
        Claims::Then(claims) => (claims, false),
        Claims::Left(claims) => (claims, true),
        Claims::Unknown => return Vec::new(),
    };
    // A stay in which nodes are replaced begins with their loss.
    let loss = journal.history.iter().find(|s| s.seq.checked_add(1) == Some(step.seq));
    let Some(loss) = loss.filter(|s| s.from == StateName::Approved) else { return Vec::new() };
    let attempt = step.attempt.to_string();
    let goes_on = step.to == StateName::Approved;
    let is_told = |claim: &&NodeClaim| match since(claim, "Initialized") {
        // Conditions tell whole seconds only: the one of a step belongs to the stay that follows.
        Some(at) if goes_on => (loss.at.as_second()..step.at.as_second()).contains(&at.as_second()),
        Some(at) => loss.at.as_second() <= at.as_second(),
        None => !goes_on,
    };
    let is_known = |claim: &&NodeClaim| !left_only || has_stood_still(claim, step.at);
    let ours = claims.iter().filter(|c| c.label(names::ATTEMPT) == attempt && c.generation() > 0);
    ours.filter(is_told)
        .filter(is_known)
        .filter_map(|claim| Some((claim.slot()?, Some(claim))))
        .flat_map(|slot| node(journal, step, slot, subject))
        .collect()
}

/// Whether what a NodeClaim shows is what it showed at that time.
fn has_stood_still(claim: &NodeClaim, at: Timestamp) -> bool {
    let is_older = |time: Timestamp| time.as_second() < at.as_second();
    created(claim).is_some_and(is_older)
        && PHASES.iter().all(|(_, condition)| since(claim, condition).is_none_or(is_older))
}

/// From when to when an attempt is told of that a step ended, or went on with.
fn window(journal: &Journal, step: &Step) -> (Timestamp, Timestamp) {
    let mut earlier = journal.history.iter().rev().filter(|s| s.seq < step.seq && s.attempt == step.attempt);
    let began = earlier.find(|s| s.to == StateName::Provisioning && !is_under_way(s.from));
    let began = began.map_or(journal.trace.since, |s| s.at);
    // Another replica's clock may have been ahead of this one's.
    (began, step.at.max(began))
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
    subject: &Subject,
) -> Vec<Span> {
    let (began, end) = window(journal, step);
    let context = journal.trace_context();
    let about = [step.attempt.to_string(), slot.to_string()];
    // One that the attempt outlived is told of by the step that it was lost at.
    let is_lost = step.from != StateName::Approved && step.to == StateName::Provisioning;
    let life = if is_lost {
        format!("lost at {}", step.seq)
    } else {
        claim.map_or(0, NodeClaim::generation).to_string()
    };
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
        let how = match step.from {
            _ if is_lost => "lost",
            StateName::Approved => "not ready when the gang's nodes were given back",
            _ => "not ready when the attempt was given up",
        };
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
