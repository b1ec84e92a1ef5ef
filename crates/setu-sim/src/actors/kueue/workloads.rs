//! Reconciles a Workload. The order of statements is that of the real Kueue, with the pitfalls of that order.

use super::{NamespacedName, RELEASE, checks, jobs, provisioning};
use crate::api::{User, kinds};
use crate::values::{is, is_going, list, name, namespace, since, text};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

/// How long it may take until all pods of an admitted Workload run.
const PODS_READY_LIMIT: SignedDuration = SignedDuration::from_mins(30);
/// Interval at which the pods of an evicted Workload are checked.
const STOP_POLL: SignedDuration = SignedDuration::from_millis(100);

/// Reconciles a Workload. Returns when to reconcile again.
pub fn reconcile(user: &User, (namespace, name): &NamespacedName, now: Timestamp) -> Option<Timestamp> {
    let current = || user.get(&kinds::WORKLOAD, namespace, name);
    let workload = current()?;
    if is_going(&workload) {
        jobs::stop(user, &workload);
        checks::drop_finalizer(user, &workload);
        return None;
    }
    if is(&workload, "Finished") {
        return None;
    }
    let queue = checks::queue_of(user, &workload);
    if let Some(queue) = &queue {
        checks::sync_entries(user, &workload, queue, now);
    }
    provisioning::sync(user, &*current()?, now);
    let workload = current()?;
    if let Some(at) = checks::backoff(user, &workload, now) {
        return Some(at);
    }
    if is_rejected(&workload) && !checks::is_inactive(&workload) {
        deactivate(user, &workload);
        return None;
    }
    withdraw(user, &workload, queue.as_deref(), now);
    let was_evicted = is(&workload, "Evicted");
    let workload = current()?;
    if is(&workload, "Evicted") && is(&workload, "QuotaReserved") {
        return if was_evicted { release(user, &workload, now) } else { now.checked_add(RELEASE).ok() };
    }
    let again = checks::admit(user, &workload, now);
    again.into_iter().chain(evict_if_overdue(user, &workload, now)).min()
}

fn is_rejected(workload: &Value) -> bool {
    list(workload, "/status/admissionChecks").iter().any(|check| text(check, "/state") == "Rejected")
}

fn deactivate(user: &User, workload: &Value) {
    let off = json!({"spec": {"active": false}});
    let _ = user.merge(&kinds::WORKLOAD, namespace(workload), name(workload), &off);
}

/// Evicts a Workload that may not keep its quota, or releases the quota if it is not admitted yet.
fn withdraw(user: &User, workload: &Value, queue: Option<&Value>, now: Timestamp) {
    if checks::is_inactive(workload) {
        checks::evict(user, workload, ("Deactivated", "The workload is deactivated"), now);
    } else if let Some(check) = checks::retried(workload) {
        let why = format!("At least one admission check is false: {check}");
        checks::evict(user, workload, ("AdmissionCheck", &why), now);
    } else if let Some(stop) = queue.and_then(|queue| checks::stop_of(user, workload, queue)) {
        if !is(workload, "Admitted") {
            checks::lose_quota(user, workload, now);
        } else if stop.drains {
            checks::evict(user, workload, (stop.reason, "The queue is stopped"), now);
        }
    }
}

/// Releases the quota of an evicted Workload once its pods have stopped. Returns when to check again.
fn release(user: &User, workload: &Value, now: Timestamp) -> Option<Timestamp> {
    // Kueue's job controllers release the quota, and there is none for a Workload without an owner.
    if list(workload, "/metadata/ownerReferences").is_empty() {
        return None;
    }
    jobs::stop(user, workload);
    if !jobs::has_stopped(user, workload) {
        return now.checked_add(STOP_POLL).ok();
    }
    checks::release(user, workload, now);
    None
}

/// Evicts an admitted Workload whose pods do not run in time. Returns when to check again.
fn evict_if_overdue(user: &User, workload: &Value, now: Timestamp) -> Option<Timestamp> {
    // Another client may report the pods.
    if !is(workload, "Admitted") || is(workload, "Evicted") || is(workload, "PodsReady") {
        return None;
    }
    let pods = jobs::pods(user, workload);
    let runs = |p: &Arc<Value>| matches!(text(p, "/status/phase"), "Running" | "Succeeded");
    let all = !pods.is_empty() && pods.iter().all(runs);
    let due = since(workload, "Admitted").unwrap_or(now).checked_add(PODS_READY_LIMIT).ok()?;
    if all || due > now {
        return (!all).then_some(due);
    }
    checks::evict(user, workload, ("PodsReadyTimeout", "Exceeded the PodsReady timeout"), now);
    None
}
