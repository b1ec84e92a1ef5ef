//! Kubernetes Events on the Workload, one per step of its gang.
//!
//! They are written so that whoever shows the Workload's events to a user, as notebook spawners do,
//! shows what happens and what comes next. Publishing never holds up the gang.

use crate::api::Workload;
use crate::gang::{Journal, StateName};
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest note that the API server takes is 1024 bytes.
const NOTE_LIMIT: usize = 900;

/// The reason of the event for a transition, or `None` for one that needs no telling.
fn reason(from: StateName, to: StateName) -> Option<(&'static str, EventType)> {
    Some(match (from, to) {
        (_, StateName::Provisioning) => ("GangProvisioning", EventType::Normal),
        (_, StateName::WaitingReady) => ("GangWaiting", EventType::Normal),
        (_, StateName::Approved) => ("GangReady", EventType::Normal),
        (_, StateName::RollingBack) => ("GangRollingBack", EventType::Warning),
        (_, StateName::BackingOff | StateName::Yielded) => ("GangRetrying", EventType::Normal),
        (_, StateName::Rejected) => ("GangRejected", EventType::Warning),
        (_, StateName::Released) => ("GangReleased", EventType::Normal),
        (_, StateName::Validating) => return None,
    })
}

/// Publishes the event of the last transition of `journal`, if it has one, in the background.
pub fn publish(recorder: &Recorder, workload: &Workload, journal: &Journal, text: &str) {
    let Some(step) = journal.history.last() else {
        return;
    };
    let Some((reason, mut kind)) = reason(step.from, step.to) else {
        return;
    };
    let failed =
        journal.memory.last_failure.as_ref().filter(|f| step.reason.to_string() == f.reason.to_string());
    if step.to == StateName::RollingBack && failed.is_none() {
        // Giving back what is no longer needed is no failure.
        kind = EventType::Normal;
    }
    let mut events = vec![(reason, kind, text.to_owned())];
    if (step.from, step.to) == (StateName::Validating, StateName::Provisioning) {
        let planned = format!("{} nodes are needed, and nothing is in the way", journal.memory.slots);
        events.insert(0, ("GangValidated", EventType::Normal, planned));
    }
    if step.to == StateName::RollingBack
        && let Some(failure) = failed
    {
        events.insert(0, ("NodeClaimFailed", EventType::Warning, failure.to_string()));
    }
    for (reason, kind, note) in events {
        send(recorder, workload, reason, kind, &note);
    }
}

/// Publishes one event on an object in the background.
pub fn send(
    recorder: &Recorder,
    object: &impl Resource<DynamicType = ()>,
    reason: &'static str,
    kind: EventType,
    note: &str,
) {
    let event = Event {
        type_: kind,
        reason: reason.to_owned(),
        note: Some(note.chars().take(NOTE_LIMIT).collect()),
        action: "Provisioning".to_owned(),
        secondary: None,
    };
    let recorder = recorder.clone();
    let object = object.object_ref(&());
    tokio::spawn(async move {
        match tokio::time::timeout(TIMEOUT, recorder.publish(&event, &object)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(reason, error = %error, "an event was not published"),
            Err(_) => tracing::debug!(reason, "an event was not published in time"),
        }
    });
}
