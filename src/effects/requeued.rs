//! Takes a Workload out of Kueue's queue, or puts it back: the condition `Requeued`, by server-side apply.
//!
//! While it is False, Kueue queues the Workload under no queueing strategy. Once it is True, Kueue queues it at once.
//! Nothing else brings back a Workload that failed a check at the head of its queue: Kueue ignores later changes of the
//! check.
//!
//! Rule: only a condition with our own reason is ever taken back. What Kueue keeps out for other reasons stays out.

use crate::api::Workload;
use crate::effects::{status_of, whole_seconds, write};
use crate::error::Error;
use crate::gang::workload::queueing::Queueing;
use crate::names;
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

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
    let (status, reason, message) = queueing.condition();
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
    fn the_condition_that_is_written_reads_as_what_it_is_written_for() {
        let mut workload: Workload =
            serde_json::from_value(json!({"metadata": {"name": "w"}, "spec": {}, "status": {}})).unwrap();
        for queueing in [Queueing::KeptOut, Queueing::Allowed] {
            let written = body(&workload, queueing, Timestamp::UNIX_EPOCH);
            workload.status = serde_json::from_value(written["status"].clone()).unwrap();
            assert_eq!(Queueing::of(&workload), queueing);
        }
    }
}
