//! Quota: which ClusterQueues are active, what each Workload is assigned, and which ones are preempted.

use super::{NamespacedName, checks, conditions, holds_quota, order, set_status, topology};
use crate::api::User;
use crate::api::kinds;
use crate::values::{condition, is, is_going, list, map, name, number, text, with_condition};
use jiff::Timestamp;
use serde_json::{Value, json};
use setu_core::api::quantity::Amount;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The resources as which devices are counted, by DeviceClass: `deviceClassMappings` of the real test cluster's Kueue.
const DEVICE_CLASS_MAPPINGS: [(&str, &str); 1] = [("gpu.example.com", "gpus")];

/// Amounts by flavor and resource.
type Usage = BTreeMap<(String, String), Amount>;

/// The state of Kueue's queues for waiting Workloads.
#[derive(Default)]
pub struct Queues {
    /// Workloads that had a failed check when they reached the head, with their state at that time. They are tried again
    /// once that state or something about the queue changes.
    inadmissible: BTreeMap<NamespacedName, [Value; 3]>,
    /// Workloads that held quota at the last check.
    holders: BTreeSet<NamespacedName>,
}

impl Queues {
    /// The queues changed: makes all Workloads admissible again.
    pub fn reset(&mut self) {
        self.inadmissible.clear();
    }

    /// Resets if quota was released since the last call.
    fn follow(&mut self, all: &[Arc<Value>]) {
        let holders: BTreeSet<NamespacedName> =
            all.iter().filter(|w| holds_quota(w)).map(|w| key(w)).collect();
        if !self.holders.is_subset(&holders) {
            self.reset();
        }
        self.holders = holders;
    }

    /// Whether a Workload may come to the head of its queue.
    fn admits(&mut self, workload: &Value) -> bool {
        // Kueue's job controller, or another client, keeps it out.
        if condition(workload, "Requeued").is_some_and(|requeued| text(requeued, "/status") == "False") {
            return false;
        }
        let key = key(workload);
        let is_same = self.inadmissible.get(&key).is_some_and(|then| *then == features(workload));
        if !is_same {
            self.inadmissible.remove(&key);
        }
        !is_same
    }
}

fn key(workload: &Value) -> NamespacedName {
    (text(workload, "/metadata/namespace").to_owned(), name(workload).to_owned())
}

/// The parts of a Workload whose change makes Kueue try it again. The states of its checks are not among them.
fn features(workload: &Value) -> [Value; 3] {
    let of = |kind: &str| condition(workload, kind).cloned().unwrap_or_default();
    [workload.get("spec").cloned().unwrap_or_default(), of("Evicted"), of("Requeued")]
}

/// Sets a ClusterQueue's Active condition.
pub fn queue_conditions(user: &User, queue: &Value, now: Timestamp) {
    let inactive = list(queue, "/spec/admissionChecksStrategy/admissionChecks")
        .iter()
        .map(|c| text(c, "/name"))
        .find(|n| user.get(&kinds::ADMISSION_CHECK, "", n).is_none_or(|check| !is(&check, "Active")));
    let (status, reason, message) = if !text(queue, "/spec/stopPolicy").trim_matches(|c| c == 'N').is_empty()
        && text(queue, "/spec/stopPolicy") != "None"
    {
        ("False", "Stopped", "Can't admit new workloads: is stopped".to_owned())
    } else if let Some(check) = inactive {
        (
            "False",
            "AdmissionCheckInactive",
            format!("Can't admit new workloads: references inactive AdmissionCheck(s): {check}."),
        )
    } else {
        ("True", "Ready", "Can admit new workloads".to_owned())
    };
    let all = with_condition(queue, ("Active", status), (reason, &message), now);
    if all != list(queue, "/status/conditions") {
        let _ = user.merge_status(
            &kinds::CLUSTER_QUEUE,
            "",
            name(queue),
            &json!({"status": {"conditions": all}}),
        );
    }
}

/// Reserves quota for every waiting Workload that fits, in queue order.
///
/// In a `StrictFIFO` ClusterQueue, a Workload that cannot be admitted blocks those behind it. In others, a Workload
/// with a failed check becomes inadmissible and is not tried again until something changes.
pub fn schedule(user: &User, queues: &mut Queues, now: Timestamp) {
    let all = user.list(&kinds::WORKLOAD);
    queues.follow(&all);
    let mut waiting: Vec<&Arc<Value>> = all.iter().filter(|w| waits(w)).collect();
    waiting.sort_by_key(|w| order(w));
    let mut blocked = BTreeSet::new();
    for workload in waiting {
        let Some(queue) = checks::queue_of(user, workload).filter(|q| is(q, "Active")) else { continue };
        if checks::stop_of(user, workload, &queue).is_some()
            || blocked.contains(name(&queue))
            || !queues.admits(workload)
        {
            continue;
        }
        let is_strict = text(&queue, "/spec/queueingStrategy") == "StrictFIFO";
        let is_reserved = if has_failed_checks(workload) {
            if !is_strict {
                queues.inadmissible.insert(key(workload), features(workload));
            }
            false
        } else {
            try_to_reserve(user, workload, &queue, now)
        };
        if is_strict && !is_reserved {
            blocked.insert(name(&queue).to_owned());
        }
    }
}

fn try_to_reserve(user: &User, workload: &Value, queue: &Value, now: Timestamp) -> bool {
    let taken = taken(user, name(queue));
    let assigned = assign(user, workload, queue, &taken);
    if let Some(assignments) = assigned.and_then(|assigned| topology::placed(user, workload, assigned)) {
        reserve(user, workload, queue, &assignments, now);
        return true;
    }
    pend(user, workload, now);
    preempt(user, workload, queue, now);
    false
}

pub fn waits(workload: &Value) -> bool {
    !is(workload, "QuotaReserved")
        && !is(workload, "Finished")
        && !checks::is_inactive(workload)
        && !is_going(workload)
}

fn has_failed_checks(workload: &Value) -> bool {
    let checks = list(workload, "/status/admissionChecks").iter();
    checks.map(|c| text(c, "/state")).any(|state| matches!(state, "Retry" | "Rejected"))
}

/// Usage of the Workloads that hold quota of a ClusterQueue.
fn taken(user: &User, queue: &str) -> Usage {
    let mut usage = Usage::new();
    let all = user.list(&kinds::WORKLOAD);
    for workload in
        all.iter().filter(|w| holds_quota(w) && text(w, "/status/admission/clusterQueue") == queue)
    {
        for assignment in list(workload, "/status/admission/podSetAssignments") {
            for (resource, flavor) in map(assignment, "/flavors") {
                let amount = map(assignment, "/resourceUsage").get(&resource).and_then(|q| Amount::parse(q));
                let sum = usage.entry((flavor, resource)).or_default();
                *sum = sum.plus(amount.unwrap_or_default());
            }
        }
    }
    usage
}

/// The assignment of each pod set; `None` if they do not fit.
fn assign(user: &User, workload: &Value, queue: &Value, taken: &Usage) -> Option<Vec<Value>> {
    let mut taken = taken.clone();
    list(workload, "/spec/podSets")
        .iter()
        .map(|pod_set| {
            let total = total(user, text(workload, "/metadata/namespace"), pod_set);
            assign_one(user, pod_set, &total, queue, &mut taken)
        })
        .collect()
}

fn assign_one(
    user: &User,
    pod_set: &Value,
    total: &BTreeMap<String, Amount>,
    queue: &Value,
    taken: &mut Usage,
) -> Option<Value> {
    let count = number(pod_set, "/count");
    let mut flavors = BTreeMap::new();
    let mut usage = BTreeMap::new();
    for group in list(queue, "/spec/resourceGroups") {
        let covered: Vec<&str> = list(group, "/coveredResources").iter().filter_map(Value::as_str).collect();
        let wanted: BTreeMap<&str, Amount> =
            covered.iter().filter_map(|r| total.get(*r).map(|a| (*r, *a))).collect();
        if wanted.is_empty() {
            continue;
        }
        let flavor = list(group, "/flavors").iter().find(|flavor| {
            selects(user, pod_set, text(flavor, "/name"))
                && wanted.iter().all(|(r, a)| fits(flavor, r, *a, taken))
        })?;
        for (resource, amount) in wanted {
            let key = (text(flavor, "/name").to_owned(), resource.to_owned());
            let sum = taken.entry(key.clone()).or_default();
            *sum = sum.plus(amount);
            flavors.insert(resource.to_owned(), key.0);
            usage.insert(
                resource.to_owned(),
                k8s_openapi::apimachinery::pkg::api::resource::Quantity::from(amount).0,
            );
        }
    }
    let mut assigned =
        json!({"name": text(pod_set, "/name"), "flavors": flavors, "resourceUsage": usage, "count": count});
    if let Some(fields) = assigned.as_object_mut().filter(|_| topology::is_put_off(user, queue, &flavors)) {
        fields.insert("delayedTopologyRequest".to_owned(), json!("Pending"));
    }
    Some(assigned)
}

/// Total requests of a pod set, with the devices that its pods claim by templates.
fn total(user: &User, namespace: &str, pod_set: &Value) -> BTreeMap<String, Amount> {
    let mut sum = BTreeMap::<String, Amount>::new();
    let mut add = |resource: &str, amount: Amount| {
        for _ in 0..number(pod_set, "/count") {
            let all = sum.entry(resource.to_owned()).or_default();
            *all = all.plus(amount);
        }
    };
    for container in list(pod_set, "/template/spec/containers") {
        let mut requests = map(container, "/resources/limits");
        requests.extend(map(container, "/resources/requests"));
        for (resource, amount) in requests {
            add(&resource, Amount::parse(&amount).unwrap_or_default());
        }
    }
    for claim in list(pod_set, "/template/spec/resourceClaims") {
        let template =
            user.get(&kinds::RESOURCE_CLAIM_TEMPLATE, namespace, text(claim, "/resourceClaimTemplateName"));
        let requests =
            template.as_deref().map(|t| list(t, "/spec/spec/devices/requests")).unwrap_or_default();
        for exactly in requests.iter().filter_map(|request| request.get("exactly")) {
            let class = text(exactly, "/deviceClassName");
            let count = exactly.get("count").and_then(Value::as_i64).unwrap_or(1);
            for (_, resource) in DEVICE_CLASS_MAPPINGS.iter().filter(|(of, _)| *of == class) {
                add(resource, Amount::parse(&count.to_string()).unwrap_or_default());
            }
        }
    }
    sum
}

/// Whether the pods' node selector is compatible with the flavor.
fn selects(user: &User, pod_set: &Value, flavor: &str) -> bool {
    let Some(flavor) = user.get(&kinds::RESOURCE_FLAVOR, "", flavor) else { return false };
    let selector = map(pod_set, "/template/spec/nodeSelector");
    map(&flavor, "/spec/nodeLabels").iter().all(|(key, value)| selector.get(key).is_none_or(|v| v == value))
}

fn fits(flavor: &Value, resource: &str, amount: Amount, taken: &Usage) -> bool {
    let quota = list(flavor, "/resources").iter().find(|r| text(r, "/name") == resource);
    let nominal = quota
        .and_then(|r| r.get("nominalQuota"))
        .map(|q| q.as_str().map_or_else(|| q.to_string(), str::to_owned));
    let nominal = nominal.and_then(|q| Amount::parse(&q)).unwrap_or_default();
    let held =
        taken.get(&(text(flavor, "/name").to_owned(), resource.to_owned())).copied().unwrap_or_default();
    held.plus(amount) <= nominal
}

fn reserve(user: &User, workload: &Value, queue: &Value, assignments: &[Value], now: Timestamp) {
    let mut set = vec![("QuotaReserved", "True", "QuotaReserved", "Quota reserved")];
    if is(workload, "Evicted") {
        set.push(("Evicted", "False", "QuotaReserved", "Previously evicted"));
    }
    let status = json!({
        "admission": {"clusterQueue": name(queue), "podSetAssignments": assignments},
        "conditions": conditions(workload, &set, now),
    });
    set_status(user, workload, &status);
}

/// Sets QuotaReserved to False on a Workload that does not fit.
fn pend(user: &User, workload: &Value, now: Timestamp) {
    let is_said = list(workload, "/status/conditions").iter().any(|c| text(c, "/type") == "QuotaReserved");
    if !is_said {
        let set = [("QuotaReserved", "False", "Pending", "couldn't assign flavors to the pod sets")];
        set_status(user, workload, &json!({"conditions": conditions(workload, &set, now)}));
    }
}

/// Evicts a Workload of lower priority, if the queue allows preemption.
fn preempt(user: &User, workload: &Value, queue: &Value, now: Timestamp) {
    if text(queue, "/spec/preemption/withinClusterQueue") != "LowerPriority" {
        return;
    }
    let priority = number(workload, "/spec/priority");
    let all = user.list(&kinds::WORKLOAD);
    let mut lower: Vec<&Arc<Value>> = all
        .iter()
        .filter(|w| holds_quota(w) && text(w, "/status/admission/clusterQueue") == name(queue))
        .filter(|w| number(w, "/spec/priority") < priority && !is(w, "Evicted"))
        .collect();
    lower.sort_by_key(|w| std::cmp::Reverse(order(w)));
    if let Some(victim) = lower.first() {
        checks::evict(
            user,
            victim,
            ("Preempted", "Preempted to accommodate a workload of higher priority"),
            now,
        );
    }
}
