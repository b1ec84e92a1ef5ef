//! Check entries: synced with the queue, reset by evictions, read for admission.

use super::{FINALIZER, conditions, set_status, topology};
use crate::api::User;
use crate::api::kinds;
use crate::values::{condition, flag, is, list, number, seconds, set, text};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Time between two topology placement attempts; the real Kueue sometimes waits longer.
const SECOND_PASS: SignedDuration = SignedDuration::from_secs(20);

/// The ClusterQueue a Workload was submitted to.
pub fn queue_of(user: &User, workload: &Value) -> Option<Arc<Value>> {
    let namespace = text(workload, "/metadata/namespace");
    let local = user.get(&kinds::LOCAL_QUEUE, namespace, text(workload, "/spec/queueName"))?;
    user.get(&kinds::CLUSTER_QUEUE, "", text(&local, "/spec/clusterQueue"))
}

/// How a queue is stopped.
pub struct Stop {
    /// Reason of the evictions it causes.
    pub reason: &'static str,
    /// Whether admitted Workloads are evicted too.
    pub drains: bool,
}

/// How the Workload's ClusterQueue or LocalQueue is stopped, if it is.
pub fn stop_of(user: &User, workload: &Value, queue: &Value) -> Option<Stop> {
    let namespace = text(workload, "/metadata/namespace");
    let local = user.get(&kinds::LOCAL_QUEUE, namespace, text(workload, "/spec/queueName"));
    let stop = |queue: &Value, reason| match text(queue, "/spec/stopPolicy") {
        "Hold" => Some(Stop { reason, drains: false }),
        "HoldAndDrain" => Some(Stop { reason, drains: true }),
        _ => None,
    };
    let of_cluster = stop(queue, "ClusterQueueStopped");
    of_cluster.or_else(|| stop(local.as_deref()?, "LocalQueueStopped"))
}

/// Whether `spec.active` is false.
pub fn is_inactive(workload: &Value) -> bool {
    workload.pointer("/spec/active").is_some() && !flag(workload, "/spec/active")
}

/// Checks that a Workload must pass. With a reservation: those that cover one of its flavors. Without:
/// those that cover all flavors of the queue.
fn wanted(workload: &Value, queue: &Value) -> BTreeSet<String> {
    let assigned: BTreeSet<&str> = list(workload, "/status/admission/podSetAssignments")
        .iter()
        .filter_map(|a| a.pointer("/flavors").and_then(Value::as_object))
        .flat_map(|flavors| flavors.values().filter_map(Value::as_str))
        .collect();
    let reserved = is(workload, "QuotaReserved");
    list(queue, "/spec/admissionChecksStrategy/admissionChecks")
        .iter()
        .filter(|check| {
            let flavors = list(check, "/onFlavors");
            flavors.is_empty()
                || (reserved && flavors.iter().filter_map(Value::as_str).any(|f| assigned.contains(f)))
        })
        .map(|check| text(check, "/name").to_owned())
        .collect()
}

/// Adds missing entries as Pending and drops those that are no longer wanted.
pub fn sync_entries(user: &User, workload: &Value, queue: &Value, now: Timestamp) {
    let wanted = wanted(workload, queue);
    let old = list(workload, "/status/admissionChecks");
    let mut entries: Vec<Value> = old.iter().filter(|e| wanted.contains(text(e, "/name"))).cloned().collect();
    for name in &wanted {
        if !entries.iter().any(|e| text(e, "/name") == name) {
            entries.push(json!({
                "name": name, "state": "Pending", "message": "", "lastTransitionTime": seconds(now),
            }));
        }
    }
    if entries != old {
        set_status(user, workload, &json!({"admissionChecks": entries}));
    }
}

/// The end of a Retry's delay. Until then nothing is done, and quota stays reserved.
pub fn backoff(user: &User, workload: &Value, now: Timestamp) -> Option<Timestamp> {
    let delayed = list(workload, "/status/admissionChecks").iter().filter(|c| text(c, "/state") == "Retry");
    let until = delayed
        .filter_map(|c| {
            let from: Timestamp = text(c, "/lastTransitionTime").parse().ok()?;
            from.checked_add(SignedDuration::from_secs(number(c, "/requeueAfterSeconds"))).ok()
        })
        .max();
    let stored: Option<Timestamp> = text(workload, "/status/requeueState/requeueAt").parse().ok();
    match until.filter(|u| *u > now && stored.is_none_or(|s| *u > s)) {
        Some(until) => {
            set_status(user, workload, &json!({"requeueState": {"requeueAt": seconds(until)}}));
            Some(until)
        }
        None => stored.filter(|s| *s > now),
    }
}

/// The first check in state Retry, before its eviction.
pub fn retried(workload: &Value) -> Option<&str> {
    let first = list(workload, "/status/admissionChecks").iter().find(|c| text(c, "/state") == "Retry");
    first.map(|c| text(c, "/name"))
}

/// Evicts a Workload that has quota reserved.
pub fn evict(user: &User, workload: &Value, why: (&str, &str), now: Timestamp) {
    if !is(workload, "Evicted") && is(workload, "QuotaReserved") {
        set_status(user, workload, &eviction(workload, why, now));
    }
}

/// The status changes of an eviction with this reason and message: checks are reset, except those that are
/// Pending.
///
/// Other fields that the check's controller applied remain, as in the real Kueue.
pub fn eviction(workload: &Value, (reason, message): (&str, &str), now: Timestamp) -> Value {
    let mut entries = list(workload, "/status/admissionChecks").to_vec();
    for entry in entries.iter_mut().filter(|e| text(e, "/state") != "Pending") {
        let old = text(entry, "/state").to_owned();
        let retries = number(entry, "/retryCount");
        set(entry, &["message"], json!(format!("Reset to Pending after eviction. Previously: {old}")));
        set(entry, &["state"], json!("Pending"));
        set(entry, &["lastTransitionTime"], json!(seconds(now)));
        if old == "Retry" {
            set(entry, &["retryCount"], json!(retries + 1));
        } else if let Some(entry) = entry.as_object_mut() {
            entry.remove("retryCount");
        }
    }
    let mut evictions = list(workload, "/status/schedulingStats/evictions").to_vec();
    match evictions.iter_mut().find(|e| text(e, "/reason") == reason) {
        Some(stat) => {
            let count = number(stat, "/count") + 1;
            set(stat, &["count"], json!(count));
        }
        None => evictions.push(json!({"reason": reason, "underlyingCause": "", "count": 1})),
    }
    let conditions = conditions(workload, &[("Evicted", "True", reason, message)], now);
    json!({"conditions": conditions, "admissionChecks": entries, "schedulingStats": {"evictions": evictions}})
}

/// Releases the reservation. Checks are left as they are.
pub fn release(user: &User, workload: &Value, now: Timestamp) {
    let reason = condition(workload, "Evicted").map_or("Pending", |c| text(c, "/reason"));
    let set = [
        ("QuotaReserved", "False", "Pending", "quota was given back"),
        ("Admitted", "False", "NoReservation", "The workload has no reservation"),
        ("Requeued", "True", reason, "the workload is queued again"),
    ];
    let conditions = conditions(workload, &set, now);
    set_status(user, workload, &json!({"conditions": conditions, "admission": null, "requeueState": null}));
}

/// Releases a reservation without an eviction, if the Workload is not admitted yet.
pub fn lose_quota(user: &User, workload: &Value, now: Timestamp) {
    if is(workload, "QuotaReserved") && !is(workload, "Admitted") && !is(workload, "Finished") {
        release(user, workload, now);
    }
}

/// Admits a Workload whose checks are all Ready. Returns when to try again if its pods cannot be placed yet.
pub fn admit(user: &User, workload: &Value, now: Timestamp) -> Option<Timestamp> {
    let ready = list(workload, "/status/admissionChecks").iter().all(|c| text(c, "/state") == "Ready");
    if !is(workload, "QuotaReserved") || is(workload, "Admitted") || is(workload, "Evicted") || !ready {
        return None;
    }
    if !topology::place(user, workload) {
        return now.checked_add(SECOND_PASS).ok();
    }
    let set = [("Admitted", "True", "Admitted", "The workload is admitted")];
    set_status(user, workload, &json!({"conditions": conditions(workload, &set, now)}));
    None
}

/// Removes Kueue's finalizer from a Workload that is being deleted.
pub fn drop_finalizer(user: &User, workload: &Value) {
    let all = list(workload, "/metadata/finalizers");
    if all.iter().any(|f| f == FINALIZER) {
        let others: Vec<&Value> = all.iter().filter(|f| *f != FINALIZER).collect();
        let _ = user.merge(
            &kinds::WORKLOAD,
            text(workload, "/metadata/namespace"),
            text(workload, "/metadata/name"),
            &json!({"metadata": {"finalizers": others}}),
        );
    }
}
