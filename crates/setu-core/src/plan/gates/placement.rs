//! Where gangs may run: namespaces and flavors. Zones are not checked here; they are a requirement of every claim.

use super::{Gate, GateAnswer, GateReport};
use crate::api::requirements;
use crate::plan::{ObstacleReason, PlanRequest, PlanSnapshot, demand};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use std::collections::{BTreeMap, BTreeSet};

/// One report for each rule that the policy states.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Vec<GateReport> {
    let placement = &request.policy.placement;
    let report = || GateReport::of(Gate::Placement, "", ObstacleReason::PlacementForbidden);
    let namespace = request.workload.metadata.namespace.as_deref().unwrap_or_default();
    let of_namespace = placement.namespaces.as_ref().filter(|s| !is_empty(s)).map(|selector| {
        match cluster.namespace_labels {
            Some(labels) if matches(selector, labels) => {
                report().allow(format!("namespace {namespace} has the labels that are asked for"))
            }
            Some(_) => report().answer(
                GateAnswer::Refuse,
                format!(
                    "namespace {namespace} does not have the labels that gates.placement.namespaces asks for; label it, or submit \
                     elsewhere"
                ),
            ),
            None => report().answer(GateAnswer::Wait, format!("the labels of namespace {namespace} are not known yet")),
        }
    });
    let allowed = placement.flavors.as_deref().unwrap_or_default();
    let assignments = request.workload.admission().into_iter().flat_map(|a| &a.pod_set_assignments);
    let provided = demand::pinned(cluster.cluster_queue, request);
    let of_check = assignments.filter(|assigned| provided.contains(&assigned.name));
    let assigned: BTreeSet<&String> = of_check.flat_map(|assigned| assigned.flavors.values()).collect();
    let of_flavors = (!allowed.is_empty()).then(|| match assigned.iter().find(|f| !allowed.contains(f)) {
        None => report().allow("every flavor is among those allowed"),
        Some(flavor) => report().answer(
            GateAnswer::Refuse,
            format!("ResourceFlavor {flavor} is not among gates.placement.flavors ({})", allowed.join(", ")),
        ),
    });
    of_namespace.into_iter().chain(of_flavors).collect()
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key) == Some(value);
    let expressed = |r: &LabelSelectorRequirement| {
        requirements::is_met(&r.operator, r.values.as_deref().unwrap_or_default(), labels.get(&r.key))
    };
    selector.match_labels.iter().flatten().all(equal)
        && selector.match_expressions.iter().flatten().all(expressed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::Fixture;
    use serde_json::{Value, json};

    fn world(placement: &Value, labels: &[(&str, &str)]) -> Fixture {
        let mut world = Fixture::new();
        world.policy.placement = serde_json::from_value(placement.clone()).unwrap();
        world.namespace = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        world
    }

    #[test]
    fn a_namespace_without_the_labels_is_refused() {
        let research = json!({"namespaces": {"matchLabels": {"class": "research"}}});
        assert_eq!(world(&research, &[("class", "research")]).provisioned().slots.len(), 2);
        assert_eq!(world(&research, &[]).obstacle().0, ObstacleReason::PlacementForbidden);
        for (operator, values, allowed) in [
            ("In", vec!["a", "b"], true),
            ("NotIn", vec!["a"], false),
            ("Exists", vec![], true),
            ("DoesNotExist", vec![], false),
        ] {
            let rule = json!({"namespaces": {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}});
            let reports = reports_of(&world(&rule, &[("k", "a")]).cluster(), &world(&rule, &[]).request());
            assert_eq!(reports[0].answer == GateAnswer::Allow, allowed, "{operator}");
        }
    }

    #[test]
    fn a_flavor_that_is_not_listed_is_refused_and_an_empty_list_allows_all() {
        assert_eq!(world(&json!({"flavors": []}), &[]).provisioned().slots.len(), 2);
        assert_eq!(world(&json!({"flavors": ["gpu"]}), &[]).provisioned().slots.len(), 2);
        let message = world(&json!({"flavors": ["cpu"]}), &[]).obstacle().1;
        assert_eq!(message, "ResourceFlavor gpu is not among gates.placement.flavors (cpu)");
    }

    #[test]
    fn flavors_of_pod_sets_that_get_no_nodes_are_not_refused() {
        let mut world = world(&json!({"flavors": ["gpu"]}), &[]).workload(&json!({
            "spec": {"podSets": [
                {"name": "main", "count": 2, "template": {"spec": {"containers": [
                    {"name": "c", "image": "i", "resources": {"requests": {"nvidia.com/gpu": "1"}}},
                ]}}},
                {"name": "launcher", "count": 1, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
            ]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "main", "flavors": {"nvidia.com/gpu": "gpu"}, "count": 2},
                {"name": "launcher", "flavors": {"cpu": "cpu"}, "count": 1},
            ]}},
        }));
        world.policy.managed_resources = vec!["nvidia.com/gpu".to_owned()];
        let reports = reports_of(&world.cluster(), &world.request());
        assert!(reports.iter().all(|report| report.answer == GateAnswer::Allow), "{reports:?}");
    }

    #[test]
    fn allowed_zones_become_a_requirement_of_every_node() {
        let plan = world(&json!({"zones": ["b", "c"]}), &[]).provisioned();
        let zones =
            plan.slots[0].template.spec.requirements.iter().find(|r| r.key == crate::names::ZONE).unwrap();
        assert_eq!(zones.values, ["b"]);
        let message = world(&json!({"zones": ["x"]}), &[]).obstacle().1;
        assert_eq!(
            message,
            "gates.placement asks for topology.kubernetes.io/zone [x], but NodePool gpu offers [a b]"
        );
    }
}
