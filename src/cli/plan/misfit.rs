//! Whether Kueue would put the pods of a pod set on a flavor, by the labels and taints of its nodes.

use crate::api::ResourceFlavor;
use crate::api::requirements::is_met;
use crate::api::workload::PodSet;
use crate::plan::taints;
use k8s_openapi::api::core::v1::{NodeSelectorTerm, Toleration};
use std::collections::BTreeSet;

/// Why Kueue would not, as a clause about the flavor; `None` if it would. `keys` are the label keys of all flavors among which Kueue
/// chooses. It looks at no others.
pub(super) fn misfit(flavor: &ResourceFlavor, set: &PodSet, keys: &BTreeSet<&str>) -> Option<String> {
    let (pod, labels) = (&set.template.spec, &flavor.spec.node_labels);
    let tolerations: Vec<Toleration> =
        pod.tolerations.iter().chain(&flavor.spec.tolerations).cloned().collect();
    if let Some(taint) = flavor.spec.node_taints.iter().find(|taint| !taints::tolerates(&tolerations, taint))
    {
        return Some(format!("has taint {}, which its pods do not tolerate", taint.key));
    }
    let differs = |(key, value): (&String, &String)| {
        keys.contains(key.as_str()) && labels.get(key).is_none_or(|label| label != value)
    };
    if pod.node_selector.iter().any(differs) {
        return Some("has other labels than its node selector asks for".to_owned());
    }
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.map_or(&[][..], |required| &required.node_selector_terms);
    let is_met = |term: &NodeSelectorTerm| {
        term.match_expressions
            .iter()
            .flatten()
            .filter(|r| keys.contains(r.key.as_str()))
            .all(|r| is_met(&r.operator, r.values.as_deref().unwrap_or_default(), labels.get(&r.key)))
    };
    let is_unmet = !terms.is_empty() && !terms.iter().any(is_met);
    is_unmet.then(|| "has other labels than its node affinity asks for".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Why the flavor `spot`, whose nodes have a label and a taint, does not fit a pod with this spec; `None` if it does.
    fn why(spec: &Value, tolerations: &Value) -> Option<String> {
        let flavor = serde_json::from_value(json!({
            "metadata": {"name": "spot"},
            "spec": {
                "nodeLabels": {"capacity": "spot"}, "tolerations": tolerations,
                "nodeTaints": [
                    {"key": "spot", "value": "true", "effect": "NoSchedule"},
                    {"key": "slow", "effect": "PreferNoSchedule"},
                ],
            },
        }));
        let set = serde_json::from_value(json!({"name": "main", "count": 1, "template": {"spec": spec}}));
        misfit(&flavor.unwrap(), &set.unwrap(), &["capacity", "rack"].into())
    }

    #[test]
    fn a_flavor_with_a_taint_takes_only_pods_that_tolerate_it() {
        let tolerates = json!([{"key": "spot", "operator": "Exists"}]);
        assert_eq!(why(&json!({}), &json!([])).unwrap(), "has taint spot, which its pods do not tolerate");
        assert_eq!(why(&json!({"tolerations": tolerates}), &json!([])), None);
        assert_eq!(why(&json!({}), &tolerates), None, "the flavor gives its pods the toleration");
    }

    #[test]
    fn node_selector_and_required_affinity_choose_among_flavors_by_their_labels() {
        let tolerates = json!([{"operator": "Exists"}]);
        let selects = |selector: Value| why(&json!({"nodeSelector": selector}), &tolerates);
        assert_eq!(selects(json!({"capacity": "spot", "zone": "a"})), None);
        assert!(selects(json!({"capacity": "on-demand"})).unwrap().contains("node selector"));
        assert!(
            selects(json!({"rack": "1"})).unwrap().contains("node selector"),
            "another flavor has that label"
        );
        let terms = |terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            let affinity =
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            why(&json!({"affinity": affinity}), &tolerates)
        };
        let asks = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        assert_eq!(terms(json!([asks("capacity", "In", &["spot"])])), None);
        assert_eq!(terms(json!([asks("capacity", "In", &["on-demand"]), asks("zone", "In", &["a"])])), None);
        for (key, operator, values) in
            [("capacity", "NotIn", &["spot"][..]), ("rack", "Exists", &[]), ("capacity", "Gt", &["1"])]
        {
            let refused = terms(json!([asks(key, operator, values)]));
            assert!(refused.unwrap().contains("node affinity"), "{key} {operator}");
        }
        assert_eq!(terms(json!([asks("rack", "DoesNotExist", &[])])), None);
    }
}
