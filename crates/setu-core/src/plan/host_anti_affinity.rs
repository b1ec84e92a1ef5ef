//! Which pods of a gang may not run on one node, according to their templates.
//!
//! Rule: in doubt, they may not. One more node costs money, but a pod without a place keeps the gang from running.

use crate::api::pod::PodSpec;
use crate::api::workload::PodSet;
use crate::names;
use k8s_openapi::api::core::v1::ContainerPort;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::{BTreeMap, BTreeSet};

/// How many pods of the set may share a node: one if they have anti-affinity to each other by host name or use a host port, and at
/// most `maxSkew` if they spread over host names.
pub fn per_node(pod_set: &PodSet) -> u32 {
    let (spec, labels) = (&pod_set.template.spec, &pod_set.template.metadata.labels);
    let is_apart =
        excluded_pods(spec).any(|selector| selector.is_none_or(|selector| may_select(selector, labels)));
    if is_apart || !ports(spec).is_empty() {
        return 1;
    }
    let spread = spec.topology_spread_constraints.iter().filter(|constraint| {
        constraint.topology_key == names::HOSTNAME
            && constraint.when_unsatisfiable == "DoNotSchedule"
            && constraint.label_selector.as_ref().is_some_and(|selector| may_select(selector, labels))
    });
    let skews = spread.map(|constraint| u32::try_from(constraint.max_skew).unwrap_or(1));
    skews.min().unwrap_or(u32::MAX)
}

/// Whether a pod of one set and a pod of the other cannot share a node: one has anti-affinity to the other there, or both use the
/// same host port.
pub fn exclude_each_other(one: &PodSet, other: &PodSet) -> bool {
    let keeps_off = |a: &PodSet, b: &PodSet| {
        let labels = &b.template.metadata.labels;
        excluded_pods(&a.template.spec)
            .any(|selector| selector.is_none_or(|selector| may_select(selector, labels)))
    };
    keeps_off(one, other)
        || keeps_off(other, one)
        || !ports(&one.template.spec).is_disjoint(&ports(&other.template.spec))
}

/// The selectors of pods that these must not share a host with. `None` is a missing selector, which counts as matching any pod.
fn excluded_pods(spec: &PodSpec) -> impl Iterator<Item = Option<&LabelSelector>> {
    let affinity = spec.affinity.iter().filter_map(|a| a.pod_anti_affinity.as_ref());
    let terms = affinity.flat_map(|a| a.required_during_scheduling_ignored_during_execution.iter().flatten());
    terms.filter(|term| term.topology_key == names::HOSTNAME).map(|term| term.label_selector.as_ref())
}

/// Whether pods that start with these labels may match: controllers add labels to those of the template.
pub(super) fn may_select(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = |(key, value): (&String, &String)| labels.get(key).is_none_or(|has| has == value);
    let fits = |operator: &str, values: &[String], has: &String| match operator {
        "In" => values.contains(has),
        "NotIn" => !values.contains(has),
        "DoesNotExist" => false,
        _ => true,
    };
    selector.match_labels.iter().flatten().all(equal)
        && selector.match_expressions.iter().flatten().all(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            labels.get(&expression.key).is_none_or(|has| fits(&expression.operator, values, has))
        })
}

/// Whether pods that start with these labels match for certain, or through labels that their controller adds.
pub(super) fn surely_selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let is_there = |key: &String| labels.contains_key(key) || is_of_controller(key);
    let expressions = selector.match_expressions.iter().flatten();
    let mut wanted = expressions.filter(|e| !["NotIn", "DoesNotExist"].contains(&e.operator.as_str()));
    may_select(selector, labels)
        && selector.match_labels.iter().flatten().all(|(key, _)| is_there(key))
        && wanted.all(|expression| is_there(&expression.key))
}

/// Whether Job controllers add a label with this key to their pods.
fn is_of_controller(key: &str) -> bool {
    const NAMES: [&str; 4] = ["controller-revision-hash", "controller-uid", "job-name", "pod-template-hash"];
    const GROUPS: [&str; 11] = [
        "apps.kubernetes.io",
        "batch.kubernetes.io",
        "jobset.sigs.k8s.io",
        "kueue.x-k8s.io",
        "leaderworkerset.sigs.k8s.io",
        "ray.io",
        "sparkoperator.k8s.io",
        "statefulset.kubernetes.io",
        "trainer.kubeflow.org",
        "training.kubeflow.org",
        "workload.codeflare.dev",
    ];
    NAMES.contains(&key) || key.split_once('/').is_some_and(|(group, _)| GROUPS.contains(&group))
}

/// Host ports of the pods, with their protocol.
fn ports(spec: &PodSpec) -> BTreeSet<(i32, &str)> {
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let all = spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    // With host networking, the API server uses the container port as the host port, but only in the pod.
    let same = |port: &ContainerPort| spec.host_network.then_some(port.container_port);
    let of_host =
        all.filter_map(|p| Some((p.host_port.or(same(p))?, p.protocol.as_deref().unwrap_or("TCP"))));
    of_host.filter(|(port, _)| *port > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{object, patched, pod_set};
    use super::*;
    use serde_json::{Value, json};

    fn set(labels: &Value, spec: &Value) -> PodSet {
        let template = json!({"template": {"metadata": {"labels": labels}, "spec": spec}});
        object(patched(pod_set("main", 1), &template))
    }

    fn anti(selector: &Value) -> Value {
        let term = json!({"topologyKey": names::HOSTNAME, "labelSelector": selector});
        json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    }

    #[test]
    fn anti_affinity_of_either_pod_set_applies_unless_labels_rule_it_out() {
        let js = json!({"app": "js"});
        for (selector, labels, expected) in [
            (json!({"matchLabels": js}), js.clone(), true),
            (json!({"matchLabels": js}), json!({}), true),
            (json!({"matchLabels": js}), json!({"app": "other"}), false),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["js"]}]}),
                json!({"app": "other"}),
                false,
            ),
            (
                json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
                json!({"app": "other"}),
                true,
            ),
            (json!({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}), js.clone(), false),
        ] {
            let (one, other) = (set(&js, &anti(&selector)), set(&labels, &json!({})));
            assert_eq!(
                (exclude_each_other(&one, &other), exclude_each_other(&other, &one)),
                (expected, expected),
                "{selector} {labels}"
            );
            assert_eq!(per_node(&other), u32::MAX);
        }
    }

    #[test]
    fn only_rules_that_concern_pods_of_the_set_keep_them_apart() {
        let js = json!({"app": "js"});
        let spread = |skew: u32, selector: &Value| {
            json!({"topologySpreadConstraints": [{
                "topologyKey": names::HOSTNAME, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": skew, "labelSelector": selector,
            }]})
        };
        let own = json!({"matchLabels": {"app": "js"}});
        let other = json!({"matchLabels": {"app": "other"}});
        for (spec, most) in [
            (anti(&own), 1),
            (anti(&Value::Null), 1),
            (anti(&other), u32::MAX),
            (spread(1, &own), 1),
            (spread(8, &own), 8),
            (spread(1, &other), u32::MAX),
        ] {
            assert_eq!(per_node(&set(&js, &spec)), most, "{spec}");
        }
    }

    #[test]
    fn pods_with_the_same_host_port_do_not_share_a_node() {
        let listens = |port: i32, protocol: &str| {
            set(
                &json!({}),
                &json!({"containers": [{"ports": [
                    {"containerPort": port, "hostPort": port, "protocol": protocol},
                ]}]}),
            )
        };
        assert!(exclude_each_other(&listens(80, "TCP"), &listens(80, "TCP")));
        assert!(
            !exclude_each_other(&listens(80, "TCP"), &listens(80, "UDP"))
                && !exclude_each_other(&listens(80, "TCP"), &listens(81, "TCP"))
        );
        assert_eq!(per_node(&listens(80, "TCP")), 1);
    }

    #[test]
    fn with_host_network_container_ports_are_host_ports_including_sidecars() {
        let port = json!([{"ports": [{"containerPort": 80}]}]);
        let plain = set(&json!({}), &json!({"containers": port}));
        let on_host = set(&json!({}), &json!({"hostNetwork": true, "containers": port}));
        let sidecar = json!([{"restartPolicy": "Always", "ports": [{"containerPort": 80, "hostPort": 80}]}]);
        let with_sidecar = set(&json!({}), &json!({"initContainers": sidecar}));
        assert_eq!((per_node(&plain), per_node(&on_host)), (u32::MAX, 1));
        assert!(exclude_each_other(&on_host, &with_sidecar));
    }
}
