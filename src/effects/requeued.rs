//! Takes a Workload out of Kueue's queue, or puts it back: the condition `Requeued`, by server-side apply.
//!
//! While it is False, Kueue queues the Workload under no queueing strategy. Once it is True, Kueue queues it at once.
//! Nothing else brings back a Workload that failed a check at the head of its queue: Kueue ignores later changes of the
//! check.
//!
//! Rule: only a condition with our own reason is ever taken back. What Kueue keeps out for other reasons stays out.

use crate::api::{Workload, condition};
use crate::effects::{status_of, whole_seconds, write};
use crate::error::Error;
use crate::names;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Whether Setu lets a Workload into Kueue's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// It may be queued.
    Allowed,
    /// It is kept out.
    KeptOut,
}

impl Queueing {
    /// Reads it from the Workload's conditions.
    pub fn of(workload: &Workload) -> Self {
        let found = condition::find(workload.conditions(), names::REQUEUED);
        let is_kept_out = found.is_some_and(|c| c.status == "False" && c.reason == names::REFUSED);
        if is_kept_out { Self::KeptOut } else { Self::Allowed }
    }
}

/// Applies the condition and returns the resulting Workload.
///
/// # Errors
/// [`Error::Conflict`] if the Workload has changed since it was read.
pub async fn apply(
    client: &Client,
    workload: &Workload,
    queueing: Queueing,
    now: Timestamp,
) -> Result<Workload, Error> {
    let api: Api<Workload> = Api::namespaced(client.clone(), &workload.namespace().unwrap_or_default());
    let params = PatchParams::apply(names::QUEUE_MANAGER).force();
    let body = body(workload, queueing, now);
    let (name, patch) = (workload.name_any(), Patch::Apply(&body));
    let action = "writing the condition Requeued of Workload";
    write(action, &workload.full_name(), api.patch_status(&name, &params, &patch)).await
}

fn body(workload: &Workload, queueing: Queueing, now: Timestamp) -> Value {
    let (status, reason, message) = match queueing {
        Queueing::Allowed => ("True", names::ALLOWED, "what it was refused for may have changed"),
        Queueing::KeptOut => ("False", names::REFUSED, "Setu refuses it; the message of its check says why"),
    };
    let condition = json!({
        "type": names::REQUEUED,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": whole_seconds(now),
        "observedGeneration": workload.metadata.generation,
    });
    status_of::<Workload>(&workload.name_any(), &workload.metadata, &json!({ "conditions": [condition] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_kept_out_only_by_setus_own_condition() {
        let workload = |status: &str, reason: &str| -> Workload {
            let condition = json!({
                "type": "Requeued", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            serde_json::from_value(
                json!({"metadata": {"name": "w"}, "spec": {}, "status": {"conditions": [condition]}}),
            )
            .unwrap()
        };
        let never: Workload = serde_json::from_value(json!({"metadata": {"name": "w"}, "spec": {}})).unwrap();
        assert_eq!(Queueing::of(&never), Queueing::Allowed);
        for (status, reason, of) in [
            ("False", names::REFUSED, Queueing::KeptOut),
            ("True", names::REFUSED, Queueing::Allowed),
            ("False", "Deactivated", Queueing::Allowed),
            ("False", "ClusterQueueStopped", Queueing::Allowed),
        ] {
            assert_eq!(Queueing::of(&workload(status, reason)), of, "{status} {reason}");
        }
        for queueing in [Queueing::KeptOut, Queueing::Allowed] {
            let written = body(&never, queueing, Timestamp::UNIX_EPOCH);
            let condition = &written["status"]["conditions"][0];
            let read = workload(condition["status"].as_str().unwrap(), condition["reason"].as_str().unwrap());
            assert_eq!(Queueing::of(&read), queueing);
        }
    }
}
