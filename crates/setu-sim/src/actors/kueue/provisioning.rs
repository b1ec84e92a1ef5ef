//! Kueue's own provisioning check: requests capacity with a ProvisioningRequest, and answers according to its conditions.

use super::set_status;
use crate::api::kinds;
use crate::api::{Preconditions, User};
use crate::values::{condition, is, list, name, namespace, number, seconds, set, text, with_condition};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use setu_core::names;
use std::sync::Arc;

/// Retries of a check, and seconds before the first of them; each further one doubles it.
const RETRIES: i64 = 3;
const BACKOFF: i64 = 60;

/// The configuration that a check names, where it is one of Kueue's provisioning checks.
fn config_of(user: &User, check: &str) -> Option<Arc<Value>> {
    let check = user.get(&kinds::ADMISSION_CHECK, "", check)?;
    let is_ours = text(&check, "/spec/controllerName") == names::PROVISIONING_REQUEST
        && text(&check, "/spec/parameters/kind") == kinds::PROVISIONING_REQUEST_CONFIG.kind;
    let config = text(&check, "/spec/parameters/name");
    user.get(&kinds::PROVISIONING_REQUEST_CONFIG, "", config).filter(|_| is_ours)
}

/// Sets Active on the checks that can be answered.
pub fn activate(user: &User, now: Timestamp) {
    for check in user.list(&kinds::ADMISSION_CHECK) {
        if config_of(user, name(&check)).is_some() && !is(&check, "Active") {
            let why = ("Active", "The admission check is active");
            let conditions = with_condition(&check, ("Active", "True"), why, now);
            let _ = user.merge_status(
                &kinds::ADMISSION_CHECK,
                "",
                name(&check),
                &json!({"status": {"conditions": conditions}}),
            );
        }
    }
}

/// Brings the requests of a Workload, and the checks that they answer, up to date.
pub fn sync(user: &User, workload: &Value, now: Timestamp) {
    let old = list(workload, "/status/admissionChecks");
    let mut entries = old.to_vec();
    for entry in &mut entries {
        let Some(config) = config_of(user, text(entry, "/name")) else { continue };
        let prefix = format!("{}-{}-", name(workload), text(entry, "/name"));
        let requests = requests_of(user, workload, &prefix);
        if is(workload, "Evicted") || is(workload, "Finished") {
            for (_, request) in requests {
                let (namespace, name) = (namespace(&request), name(&request));
                let _ = user.delete(&kinds::PROVISIONING_REQUEST, namespace, name, Preconditions::default());
            }
            continue;
        }
        if !is(workload, "QuotaReserved") {
            // Kueue's controller returns early: it neither reads nor deletes requests.
            continue;
        }
        if let Some((attempt, request)) = requests.last() {
            answer(entry, request, (*attempt, &config), workload, now);
        }
        let ended = requests.last().is_some_and(|(_, last)| is(last, "Failed") || is(last, "BookingExpired"));
        let is_wanted = text(entry, "/state") == "Pending" && (requests.is_empty() || ended);
        if is_wanted {
            let attempt = requests.last().map_or(number(entry, "/retryCount"), |(last, _)| *last) + 1;
            let request = request(workload, &format!("{prefix}{attempt}"), &config);
            let _ = user.create(&kinds::PROVISIONING_REQUEST, request);
        }
    }
    if entries != old {
        set_status(user, workload, &json!({"admissionChecks": entries}));
    }
}

/// The requests of a Workload whose names begin like this, by their attempts.
fn requests_of(user: &User, workload: &Value, prefix: &str) -> Vec<(i64, Arc<Value>)> {
    let attempt = |request: &Arc<Value>| name(request).strip_prefix(prefix)?.parse().ok();
    let owner = |request: &Value| text(request, "/metadata/ownerReferences/0/uid").to_owned();
    let all = user.list(&kinds::PROVISIONING_REQUEST).into_iter();
    let own = all.filter(|request| owner(request) == text(workload, "/metadata/uid"));
    let mut found: Vec<(i64, Arc<Value>)> = own.filter_map(|r| Some((attempt(&r)?, r))).collect();
    found.sort_by_key(|(attempt, _)| *attempt);
    found
}

/// Whether the pods of this pod set request a resource that the check manages.
fn is_managed(workload: &Value, pod_set: &str, config: &Value) -> bool {
    let managed = list(config, "/spec/managedResources");
    let set = list(workload, "/spec/podSets").iter().find(|set| text(set, "/name") == pod_set);
    let containers = set.into_iter().flat_map(|set| list(set, "/template/spec/containers"));
    let requests: Vec<&Value> = containers.filter_map(|c| c.pointer("/resources/requests")).collect();
    managed.is_empty()
        || managed.iter().filter_map(Value::as_str).any(|r| requests.iter().any(|all| all.get(r).is_some()))
}

fn request(workload: &Value, request: &str, config: &Value) -> Value {
    let assigned = list(workload, "/status/admission/podSetAssignments").iter();
    let pod_sets = assigned.filter(|set| is_managed(workload, text(set, "/name"), config)).map(|set| {
        let template = format!("ppt-{request}-{}", text(set, "/name"));
        json!({"podTemplateRef": {"name": template}, "count": number(set, "/count")})
    });
    let of = |object: &Value, path: &str| object.pointer(path).and_then(Value::as_object).cloned();
    let mut parameters: Map<String, Value> = of(config, "/spec/parameters").unwrap_or_default();
    let annotations = of(workload, "/metadata/annotations").unwrap_or_default().into_iter();
    parameters.extend(
        annotations.filter_map(|(key, value)| {
            Some((key.strip_prefix("provreq.kueue.x-k8s.io/")?.to_owned(), value))
        }),
    );
    json!({
        "apiVersion": kinds::PROVISIONING_REQUEST.api_version(),
        "kind": kinds::PROVISIONING_REQUEST.kind,
        "metadata": {
            "name": request,
            "namespace": namespace(workload),
            "labels": {"kueue.x-k8s.io/managed": "true"},
            "ownerReferences": [{
                "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "name": name(workload),
                "uid": text(workload, "/metadata/uid"), "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "provisioningClassName": text(config, "/spec/provisioningClassName"),
            "parameters": parameters,
            "podSets": pod_sets.collect::<Vec<_>>(),
        },
    })
}

/// Puts what a request says into the entry of its check.
fn answer(
    entry: &mut Value,
    request: &Value,
    (attempt, config): (i64, &Value),
    workload: &Value,
    now: Timestamp,
) {
    let message = |kind| condition(request, kind).map_or("", |c| text(c, "/message")).to_owned();
    let is_provisioned = is(request, "Provisioned");
    let failed = ["Failed", "BookingExpired"].into_iter().find(|kind| is(request, kind));
    let failed = failed.filter(|kind| *kind == "Failed" || !is(workload, "Admitted"));
    match failed {
        Some(kind) if attempt > RETRIES => set_state(entry, "Rejected", &message(kind), now),
        Some(kind) if attempt > number(entry, "/retryCount") => {
            set_state(entry, "Retry", &format!("Retrying after failure: {}", message(kind)), now);
            set(entry, &["requeueAfterSeconds"], json!(BACKOFF << (attempt - 1).clamp(0, 8)));
        }
        None if is_provisioned && text(entry, "/state") != "Ready" => {
            set_state(entry, "Ready", &message("Provisioned"), now);
            set(entry, &["podSetUpdates"], updates(request, config, workload));
        }
        None if is(request, "Accepted") && !is_provisioned => {
            set_state(entry, "Pending", &message("Provisioned"), now);
        }
        _ => {}
    }
}

fn set_state(entry: &mut Value, state: &str, message: &str, now: Timestamp) {
    if text(entry, "/state") != state {
        set(entry, &["state"], json!(state));
        set(entry, &["lastTransitionTime"], json!(seconds(now)));
    }
    set(entry, &["message"], json!(message));
}

fn updates(request: &Value, config: &Value, workload: &Value) -> Value {
    let selector: Map<String, Value> = list(config, "/spec/podSetUpdates/nodeSelector")
        .iter()
        .filter_map(|wanted| {
            let details = request.pointer("/status/provisioningClassDetails")?;
            let value = details.get(text(wanted, "/valueFromProvisioningClassDetail"))?;
            Some((text(wanted, "/key").to_owned(), value.clone()))
        })
        .collect();
    let sets = list(workload, "/status/admission/podSetAssignments").iter();
    let annotations = json!({
        "autoscaling.x-k8s.io/consume-provisioning-request": name(request),
        "autoscaling.x-k8s.io/provisioning-class-name": text(request, "/spec/provisioningClassName"),
    });
    let sets = sets.filter(|set| is_managed(workload, text(set, "/name"), config));
    sets.map(|set| json!({"name": text(set, "/name"), "annotations": annotations, "nodeSelector": selector}))
        .collect()
}
