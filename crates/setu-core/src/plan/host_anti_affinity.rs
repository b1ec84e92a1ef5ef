//! Which pods of a gang may not run on one node, according to their templates.
//!
//! Rule: in doubt, they may not. One more node costs money, but a pod without a place keeps the gang from running. Within a pod
//! set, a selector on a label that neither the template has nor a controller adds is about pods of others.

use crate::api::pod::PodSpec;
use crate::api::workload::PodSet;
use crate::names;
use k8s_openapi::api::core::v1::{ContainerPort, TopologySpreadConstraint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use std::collections::BTreeMap;

/// How many pods of the set may share a node: one if they have anti-affinity to each other by host name or use a host port, and at
/// most `maxSkew` if they spread over host names.
pub fn per_node(pod_set: &PodSet) -> u32 {
    let (spec, labels) = (&pod_set.template.spec, &pod_set.template.metadata.labels);
    let is_apart =
        excluded_pods(spec).any(|selector| selector.is_none_or(|selector| surely_selects(selector, labels)));
    if is_apart || ports(spec).next().is_some() {
        return 1;
    }
    let skews =
        spread_over_hosts(spec, labels).map(|constraint| u32::try_from(constraint.max_skew).unwrap_or(1));
    skews.min().unwrap_or(u32::MAX)
}

/// Whether a pod of one set and a pod of the other cannot share a node: one has anti-affinity to the other there, or both use the
/// same host port. The same where one spreads both over host names: how many of the other are on a node counts there too.
pub fn exclude_each_other(one: &PodSet, other: &PodSet) -> bool {
    let keeps_off = |a: &PodSet, b: &PodSet| {
        let (spec, labels) = (&a.template.spec, &b.template.metadata.labels);
        excluded_pods(spec).any(|selector| selector.is_none_or(|selector| may_select(selector, labels)))
            || spread_over_hosts(spec, labels).next().is_some()
    };
    keeps_off(one, other)
        || keeps_off(other, one)
        || shared_port(&one.template.spec, &other.template.spec).is_some()
}

/// The rules of these pods that must spread pods with these labels over host names.
fn spread_over_hosts<'s>(
    spec: &'s PodSpec,
    labels: &'s BTreeMap<String, String>,
) -> impl Iterator<Item = &'s TopologySpreadConstraint> {
    spec.topology_spread_constraints.iter().filter(move |constraint| {
        constraint.topology_key == names::HOSTNAME
            && constraint.when_unsatisfiable == "DoNotSchedule"
            && constraint.label_selector.as_ref().is_some_and(|selector| may_select(selector, labels))
    })
}

/// A host port that pods of both specs use, so that they cannot share a node.
pub fn shared_port(one: &PodSpec, other: &PodSpec) -> Option<i32> {
    let is_any = |address: &str| ["", "0.0.0.0", "::"].contains(&address);
    let clash = |a: &HostPort<'_>, b: &HostPort<'_>| {
        let is_same_address = a.address == b.address || is_any(a.address) || is_any(b.address);
        (a.port, a.protocol) == (b.port, b.protocol) && is_same_address
    };
    let others: Vec<HostPort<'_>> = ports(other).collect();
    ports(one).find(|port| others.iter().any(|other| clash(port, other))).map(|port| port.port)
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

/// A port of the host that a pod uses.
struct HostPort<'s> {
    port: i32,
    protocol: &'s str,
    /// Empty for all addresses of the host.
    address: &'s str,
}

/// Host ports of the pods.
fn ports(spec: &PodSpec) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = spec.init_containers.iter().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let all = spec.containers.iter().chain(sidecars).flat_map(|c| &c.ports);
    // With host networking, the API server uses the container port as the host port, but only in the pod.
    let same = |port: &ContainerPort| spec.host_network.then_some(port.container_port);
    all.filter_map(move |found| {
        let port = found.host_port.or(same(found)).filter(|port| *port > 0)?;
        let (protocol, address) = (found.protocol.as_deref(), found.host_ip.as_deref());
        Some(HostPort { port, protocol: protocol.unwrap_or("TCP"), address: address.unwrap_or_default() })
    })
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
        // The template has no such label, so the rule is about pods of others.
        assert_eq!(per_node(&set(&json!({}), &anti(&own))), u32::MAX);
        let by_job = json!({"matchLabels": {"batch.kubernetes.io/job-name": "train"}});
        assert_eq!(per_node(&set(&json!({}), &anti(&by_job))), 1, "the Job adds that label");
        // Each set may have two pods on a node, but not both sets together.
        let (one, same) = (set(&js, &spread(2, &own)), set(&js, &spread(2, &own)));
        assert!(exclude_each_other(&one, &same));
        let another = set(&json!({"app": "other"}), &spread(2, &other));
        assert!(!exclude_each_other(&one, &another), "neither counts the other");
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
    fn the_same_port_of_two_addresses_of_the_host_is_free_for_both() {
        let listens = |address: &str| -> PodSpec {
            let port = json!({"containerPort": 80, "hostPort": 80, "hostIP": address});
            serde_json::from_value(json!({"containers": [{"ports": [port]}]})).unwrap()
        };
        let (loopback, private, any) = (listens("127.0.0.1"), listens("10.0.0.1"), listens("0.0.0.0"));
        assert_eq!(shared_port(&loopback, &private), None);
        assert_eq!([shared_port(&loopback, &any), shared_port(&any, &private)], [Some(80), Some(80)]);
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
