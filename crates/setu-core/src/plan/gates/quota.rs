//! Checks that the quota that Kueue has reserved adds up. A diagnostic, because Kueue has already decided.
//!
//! Usage over the nominal quota is borrowed within a tree of cohorts (`cohorts`). The gate also reports a LocalQueue that is
//! deleted or points to another ClusterQueue.

use super::cohorts::{self, CannotBorrow, QuotaItem, amount};
use super::{Gate, GateAnswer, GateReport};
use crate::api::ClusterQueue;
use crate::api::quantity::Amount;
use crate::api::queue::{ResourceQuota, quota_of};
use crate::names;
use crate::plan::resources::shown;
use crate::plan::{ObstacleReason, PlanRequest, PlanSnapshot};
use std::collections::BTreeSet;

/// One report for the LocalQueue, and one for each resource of each flavor of the gang's admission.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Vec<GateReport> {
    let Some(queue) = cluster.cluster_queue else {
        return Vec::new();
    };
    let name = queue.metadata.name.as_deref().unwrap_or_default();
    let report = || GateReport::of(Gate::Quota, name, ObstacleReason::QuotaExceeded);
    let assignments = request.workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
    let granted: BTreeSet<(&String, &String)> =
        assignments.flat_map(|psa| &psa.flavors).map(|(resource, flavor)| (flavor, resource)).collect();
    let mut reports = vec![of_local_queue(cluster, request, name, report())];
    for (flavor, resource) in granted {
        let what = format!("{resource} in ResourceFlavor {flavor}");
        reports.push(match quota_of(&queue.spec.resource_groups, flavor, resource) {
            None => report().answer(
                GateAnswer::Wait,
                format!("ClusterQueue {name} has no quota of {what} any more; add it to spec.resourceGroups"),
            ),
            Some(quota) => of_resource(cluster, queue, (flavor, quota), &what, report()),
        });
    }
    reports
}

fn of_local_queue(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    queue: &str,
    report: GateReport,
) -> GateReport {
    let name = &request.workload.spec.queue_name;
    if name.is_empty() {
        let label = names::QUEUE;
        return report.answer(
            GateAnswer::Wait,
            format!("no LocalQueue is named, so Kueue would not take the Job; name one by its label {label}"),
        );
    }
    let Some(known) = cluster.local_queues else {
        return report
            .answer(GateAnswer::Warn, format!("LocalQueue {name} cannot be read, so it is not checked"));
    };
    let namespace = request.workload.metadata.namespace.as_ref();
    let found = known
        .iter()
        .find(|q| q.metadata.name.as_ref() == Some(name) && q.metadata.namespace.as_ref() == namespace);
    match found {
        None => report.answer(
            GateAnswer::Wait,
            format!("LocalQueue {name} does not exist, though quota was reserved through it; create it"),
        ),
        Some(found) if found.spec.cluster_queue != queue => report.answer(
            GateAnswer::Wait,
            format!(
                "LocalQueue {name} leads to ClusterQueue {}, but quota was reserved in {queue}",
                found.spec.cluster_queue
            ),
        ),
        Some(_) => report.allow(format!("LocalQueue {name} leads to ClusterQueue {queue}")),
    }
}

fn of_resource(
    cluster: &PlanSnapshot<'_>,
    queue: &ClusterQueue,
    (flavor, quota): (&str, &ResourceQuota),
    what: &str,
    report: GateReport,
) -> GateReport {
    let Some(reserved) = queue.reserved(flavor, &quota.name) else {
        return report.answer(
            GateAnswer::Unknown,
            format!("Kueue has not reported yet how much of {what} is reserved"),
        );
    };
    let (total, nominal) = (amount(reserved), amount(&quota.nominal_quota));
    let show = |amount: Amount| shown(&[(quota.name.clone(), amount.into())].into(), &quota.name);
    let figures = format!("{} of {} {what} reserved", show(total), show(nominal));
    let borrowed = total.minus(nominal);
    if borrowed == Amount::default() {
        return report.allow(figures);
    }
    let over = |why: String| format!("{figures}: {why}");
    let cohort = &queue.spec.cohort_name;
    if cohort.is_empty() {
        return report.answer(
            GateAnswer::Wait,
            over("more than its quota, and it has no cohort to borrow from".to_owned()),
        );
    }
    if let Some(limit) = quota.borrowing_limit.as_ref().filter(|limit| borrowed > amount(limit)) {
        let why = format!("{} borrowed, and its borrowingLimit is {}", show(borrowed), show(amount(limit)));
        return report.answer(GateAnswer::Wait, over(why));
    }
    match cohorts::borrow(cluster, queue, QuotaItem { flavor, resource: &quota.name }) {
        Ok(from) => report.allow(format!("{figures}, {} of it borrowed in cohort {from}", show(borrowed))),
        Err(obstacle) => report.answer(GateAnswer::Wait, over(why(&obstacle, borrowed, show))),
    }
}

fn why(obstacle: &CannotBorrow, own: Amount, show: impl Fn(Amount) -> String) -> String {
    match obstacle {
        CannotBorrow::Limit { cohort, borrowed, limit } => {
            format!("cohort {cohort} borrows {}, and its borrowingLimit is {}", show(*borrowed), show(*limit))
        }
        CannotBorrow::Whole { root, quota, used } => {
            format!("the cohort {root} as a whole has {} and {} are reserved", show(*quota), show(*used))
        }
        CannotBorrow::Lent { root, most } => {
            format!("{} borrowed, and the others in cohort {root} lend {} at most", show(own), show(*most))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::Cohort;
    use crate::api::parameters::GateMode;
    use crate::plan::fixtures::{Fixture, object};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// A queue with this quota of GPUs and this much of it reserved.
    pub(in crate::plan::gates) fn queue(
        name: &str,
        cohort: &str,
        quota: &Value,
        reserved: &str,
    ) -> ClusterQueue {
        let mut resource = quota.clone();
        resource["name"] = json!("nvidia.com/gpu");
        object(json!({
            "metadata": {"name": name},
            "spec": {
                "cohortName": cohort,
                "admissionChecksStrategy": {"admissionChecks": [{"name": "prov"}]},
                "resourceGroups": [{"flavors": [{"name": "gpu", "resources": [
                    resource, {"name": "cpu", "nominalQuota": "100"},
                ]}]}],
            },
            "status": {"flavorsReservation": [{"name": "gpu", "resources": [
                {"name": "nvidia.com/gpu", "total": reserved}, {"name": "cpu", "total": "4"},
            ]}]},
        }))
    }

    pub(in crate::plan::gates) fn world(queues: Vec<ClusterQueue>) -> Fixture {
        let mut world = Fixture::new();
        world.queue = queues.first().cloned();
        world.objects.cluster_queues = queues.into_iter().map(Arc::new).collect();
        world.policy.quota_gate = GateMode::Enforce;
        world
    }

    pub(in crate::plan::gates) fn nominal(amount: &str) -> Value {
        json!({"nominalQuota": amount})
    }

    pub(in crate::plan::gates) fn gpus(world: &Fixture) -> GateReport {
        let reports = reports_of(&world.cluster(), &world.request());
        reports.into_iter().find(|r| r.message.contains("nvidia.com/gpu")).unwrap()
    }

    #[test]
    fn usage_within_the_nominal_quota_is_allowed() {
        let report = gpus(&world(vec![queue("q", "", &nominal("8"), "8")]));
        assert_eq!(report.answer, GateAnswer::Allow);
        assert_eq!(report.message, "8 of 8 nvidia.com/gpu in ResourceFlavor gpu reserved");
    }

    #[test]
    fn usage_over_the_nominal_quota_must_be_borrowed() {
        let own = |quota: &Value| queue("q", "c", quota, "12");
        let other = |quota: &Value, used: &str| queue("other", "c", quota, used);
        for (queues, answer, words) in [
            (vec![queue("q", "", &nominal("8"), "12")], GateAnswer::Wait, "no cohort to borrow from"),
            (
                vec![own(&nominal("8")), other(&nominal("4"), "0")],
                GateAnswer::Allow,
                "4 of it borrowed in cohort c",
            ),
            (
                vec![own(&nominal("8")), other(&nominal("4"), "2")],
                GateAnswer::Wait,
                "as a whole has 12 and 14 are reserved",
            ),
            (
                vec![own(&json!({"nominalQuota": "8", "borrowingLimit": "3"})), other(&nominal("99"), "0")],
                GateAnswer::Wait,
                "4 borrowed, and its borrowingLimit is 3",
            ),
            (
                vec![own(&nominal("8")), other(&json!({"nominalQuota": "99", "lendingLimit": "1"}), "0")],
                GateAnswer::Wait,
                "4 borrowed, and the others in cohort c lend 1 at most",
            ),
        ] {
            let report = gpus(&world(queues));
            assert_eq!(report.answer, answer, "{}", report.message);
            assert!(report.message.contains(words), "{}", report.message);
        }
    }

    #[test]
    fn cohorts_of_one_tree_share_their_quota_and_have_their_own() {
        let mut world =
            world(vec![queue("q", "left", &nominal("8"), "12"), queue("other", "right", &nominal("2"), "0")]);
        let cohort = |name: &str, parent: &str, quota: &str| -> Arc<Cohort> {
            Arc::new(object(json!({"metadata": {"name": name}, "spec": {
                "parentName": parent,
                "resourceGroups": [{"flavors": [{"name": "gpu", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": quota}]}]}],
            }})))
        };
        assert_eq!(gpus(&world).answer, GateAnswer::Wait, "a queue of another cohort does not lend");
        world.cohorts = vec![cohort("left", "top", "0"), cohort("right", "top", "0"), cohort("top", "", "2")];
        let report = gpus(&world);
        assert_eq!(
            (report.answer, report.message.contains("cohort top")),
            (GateAnswer::Allow, true),
            "{}",
            report.message
        );
        world.cohorts[2] = cohort("top", "left", "2");
        assert_eq!(gpus(&world).gate, Gate::Quota, "a ring of cohorts ends too");
    }

    #[test]
    fn a_deleted_or_moved_local_queue_is_reported() {
        let mut world = world(vec![queue("q", "", &nominal("8"), "8")]);
        assert_eq!(world.provisioned().slots.len(), 2);
        world.local_queues = Vec::new();
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::QuotaExceeded);
        assert_eq!(message, "LocalQueue lq does not exist, though quota was reserved through it; create it");
        world.workload.spec.queue_name.clear();
        assert!(world.obstacle().1.contains("name one by its label kueue.x-k8s.io/queue-name"));
        world.workload.spec.queue_name.push_str("lq");
        world.local_queues = vec![crate::plan::fixtures::local_queue("lq", "elsewhere")];
        assert!(world.obstacle().1.contains("leads to ClusterQueue elsewhere"));
        world.policy.quota_gate = GateMode::Warn;
        assert!(world.provisioned().notes[0].contains("elsewhere"));
    }

    #[test]
    fn a_reservation_that_kueue_has_not_reported_is_unknown_and_does_not_block() {
        let mut silent = queue("q", "", &nominal("8"), "8");
        silent.status = None;
        let world = world(vec![silent]);
        let report = gpus(&world);
        let expected =
            "Kueue has not reported yet how much of nvidia.com/gpu in ResourceFlavor gpu is reserved";
        assert_eq!((report.answer, report.message.as_str()), (GateAnswer::Unknown, expected));
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn removed_quota_is_reported() {
        let mut world = world(vec![queue("q", "", &nominal("8"), "8")]);
        world.objects.flavors.push(crate::plan::fixtures::flavor("old", &json!({})));
        world.workload = object(json!({
            "metadata": {"name": "w", "namespace": "ns"},
            "spec": {"queueName": "lq", "podSets": [crate::plan::fixtures::pod_set("main", 2)]},
            "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [
                {"name": "main", "flavors": {"nvidia.com/gpu": "old"}}]}},
        }));
        assert!(
            world
                .obstacle()
                .1
                .starts_with("ClusterQueue q has no quota of nvidia.com/gpu in ResourceFlavor old any more")
        );
    }
}
