//! The Workload of a pod group: Kueue makes one of all its pods, with a pod set for each role.
//!
//! Rule: Kueue names a pod set by a hash of its role. It is known only if the pods have it as an annotation; otherwise the
//! name is the role's number.

use super::manifest::with_pod_sets;
use super::pod_sets::{annotation, label, text};
use crate::api::Workload;
use crate::api::pod::{Container, PodSpec};
use crate::names;
use crate::plan::resources;
use crate::words::counted;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Deserialize;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Pods that share a pod set.
struct Role<'v> {
    /// The key that tells it from other roles.
    shape: (String, PodSpec),
    /// The first of them.
    pod: &'v Value,
    count: u32,
}

/// The group of a pod. An object that is no pod has none.
pub fn name(object: &Value) -> Option<&str> {
    let mut named = [annotation(object, names::POD_GROUP), label_text(object, names::POD_GROUP)].into_iter();
    named.find(|name| !name.is_empty() && text(object, "/kind") == "Pod")
}

/// The Workload that Kueue would create for the pods of a group.
pub fn workload(pods: &[Value]) -> Result<Workload, String> {
    let [first, others @ ..] = pods else { return Err("a pod group has no pods".to_owned()) };
    let total = agreed(first, others, "total counts", total)?;
    agreed(first, others, "namespaces", |pod| Ok(text(pod, "/metadata/namespace")))?;
    agreed(first, others, "LocalQueues", |pod| Ok(label_text(pod, names::QUEUE)))?;
    let fast = format!("values of {}", names::POD_GROUP_FAST);
    let is_fast = agreed(first, others, &fast, |pod| Ok(annotation(pod, names::POD_GROUP_FAST) == "true"))?;

    let group = name(first).unwrap_or_default();
    let there = u32::try_from(pods.len()).unwrap_or(u32::MAX);
    let difference = counted(there.abs_diff(total), "pod");
    let counts = format!("the files have {there}, and its total count is {total}");
    if there > total {
        return Err(format!("pod group {group} has {difference} too many: {counts}"));
    }
    if there < total && !is_fast {
        return Err(format!("pod group {group} lacks {difference}: {counts}"));
    }
    let roles = if is_fast { vec![Role { count: total, ..Role::of(first)? }] } else { roles(pods)? };
    let sets: Vec<Value> = (1..).zip(&roles).map(|(number, role)| role.pod_set(number)).collect();
    with_pod_sets(first, &json!(group), &sets)
}

/// A label of an object; empty if it does not have it.
fn label_text<'v>(object: &'v Value, key: &str) -> &'v str {
    label(object, key).and_then(Value::as_str).unwrap_or_default()
}

/// The value that all pods of a group must have alike, or an error that names two pods in which it differs.
fn agreed<'v, T: PartialEq + Debug>(
    first: &'v Value,
    others: &'v [Value],
    what: &str,
    of: impl Fn(&'v Value) -> Result<T, String>,
) -> Result<T, String> {
    let value = of(first)?;
    for pod in others {
        let other = of(pod)?;
        if other != value {
            let [one, another] = [first, pod].map(|pod| text(pod, "/metadata/name"));
            let group = name(first).unwrap_or_default();
            return Err(format!(
                "pods {one} and {another} of pod group {group} have different {what}: {value:?} and {other:?}"
            ));
        }
    }
    Ok(value)
}

/// The number of pods in the group, as one of them states it.
fn total(pod: &Value) -> Result<u32, String> {
    let stated = annotation(pod, names::POD_GROUP_TOTAL).parse().ok();
    stated.filter(|total| *total > 0).ok_or_else(|| {
        format!(
            "pod {} of pod group {} needs the annotation {} with the number of pods in the group, in quotes",
            text(pod, "/metadata/name"),
            name(pod).unwrap_or_default(),
            names::POD_GROUP_TOTAL
        )
    })
}

/// The roles of these pods, in the order of their first pods.
fn roles(pods: &[Value]) -> Result<Vec<Role<'_>>, String> {
    let mut roles: Vec<Role<'_>> = Vec::new();
    for pod in pods {
        let role = Role::of(pod)?;
        match roles.iter_mut().find(|known| known.shape == role.shape) {
            Some(known) => known.count += 1,
            None => roles.push(role),
        }
    }
    Ok(roles)
}

impl<'v> Role<'v> {
    /// The role of a pod: its hash, or else its priority and what Kueue hashes of its spec.
    fn of(pod: &'v Value) -> Result<Self, String> {
        let hash = annotation(pod, names::POD_ROLE);
        if !hash.is_empty() {
            return Ok(Self { shape: (hash.to_owned(), PodSpec::default()), pod, count: 1 });
        }
        let mut spec = PodSpec::deserialize(pod.get("spec").unwrap_or(&Value::Null))
            .map_err(|e| format!("pod {} cannot be read: {e}", text(pod, "/metadata/name")))?;
        for container in spec.containers.iter_mut().chain(&mut spec.init_containers) {
            let resources = requested(&container.resources.take().unwrap_or_default());
            let ports = std::mem::take(&mut container.ports);
            *container = Container { resources: Some(resources), ports, ..Container::default() };
        }
        let spec = PodSpec {
            host_network: false,
            active_deadline_seconds: None,
            volumes: Vec::new(),
            resources: spec.resources.as_ref().map(requested),
            ..spec
        };
        let priority = pod.pointer("/spec/priority").unwrap_or(&Value::Null);
        let priority = format!("{} {priority}", text(pod, "/spec/priorityClassName"));
        Ok(Self { shape: (priority, spec), pod, count: 1 })
    }

    /// Its pod set. Kueue leaves the labels and annotations of the pods out.
    fn pod_set(&self, number: u32) -> Value {
        let hash = annotation(self.pod, names::POD_ROLE);
        let name = if hash.is_empty() { format!("role-{number}") } else { hash.to_owned() };
        json!({"name": name, "count": self.count, "template": {"spec": self.pod.get("spec")}})
    }
}

/// The requests alone, in one notation.
fn requested(stated: &ResourceRequirements) -> ResourceRequirements {
    let requests = resources::times(&resources::effective(stated), 1);
    ResourceRequirements { requests: Some(requests), ..ResourceRequirements::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod of the group `ray` with this name and request of CPU.
    fn pod(name: &str, cpu: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "ns",
                "labels": {(names::QUEUE): "lq", (names::POD_GROUP): "ray"},
                "annotations": {(names::POD_GROUP_TOTAL): "3"},
            },
            "spec": {"containers": [{"name": name, "resources": {"requests": {"cpu": cpu}}}]},
        })
    }

    /// A head and two workers.
    fn pods() -> [Value; 3] {
        [pod("head", "1"), pod("worker-0", "4"), pod("worker-1", "4000m")]
    }

    /// The same with something written into the pod of that index.
    fn with(index: usize, map: &str, key: &str, value: &str) -> [Value; 3] {
        let mut pods = pods();
        pods[index]["metadata"][map][key] = json!(value);
        pods
    }

    fn sets(pods: &[Value]) -> Vec<(String, i32)> {
        workload(pods).unwrap().spec.pod_sets.into_iter().map(|set| (set.name, set.count)).collect()
    }

    #[test]
    fn the_pods_of_a_group_are_one_workload_of_its_name_with_a_pod_set_for_each_role() {
        let made = workload(&pods()).unwrap();
        assert_eq!((made.full_name().as_str(), made.spec.queue_name.as_str()), ("ns/ray", "lq"));
        let requests = |set: usize| {
            made.spec.pod_sets[set].template.spec.containers[0].resources.clone().unwrap().requests.unwrap()
        };
        assert_eq!((requests(0)["cpu"].0.as_str(), requests(1)["cpu"].0.as_str()), ("1", "4"));
        assert_eq!(sets(&pods()), [("role-1".to_owned(), 1), ("role-2".to_owned(), 2)]);
    }

    #[test]
    fn a_role_hash_names_the_pod_set_and_a_priority_makes_another_role() {
        let named = [("3f2a".to_owned(), 1), ("role-2".to_owned(), 2)];
        assert_eq!(sets(&with(0, "annotations", names::POD_ROLE, "3f2a")), named);
        let mut urgent = pods();
        urgent[2]["spec"]["priorityClassName"] = json!("high");
        assert_eq!(sets(&urgent).len(), 3);
    }

    #[test]
    fn with_fast_admission_one_pod_stands_for_all() {
        let mut head = pod("head", "1");
        head["metadata"]["annotations"][names::POD_GROUP_FAST] = json!("true");
        assert_eq!(sets(&[head]), [("role-1".to_owned(), 3)]);
    }

    #[test]
    fn missing_and_surplus_pods_are_counted() {
        let missing = workload(&pods()[..1]).unwrap_err();
        assert_eq!(missing, "pod group ray lacks 2 pods: the files have 1, and its total count is 3");
        let surplus = workload(&[&pods()[..], &[pod("worker-2", "4")]].concat()).unwrap_err();
        assert_eq!(surplus, "pod group ray has 1 pod too many: the files have 4, and its total count is 3");
    }

    #[test]
    fn pods_that_do_not_fit_together_are_named() {
        let total = format!("needs the annotation {}", names::POD_GROUP_TOTAL);
        for (pods, words) in [
            (with(1, "annotations", names::POD_GROUP_TOTAL, "0"), total.as_str()),
            (
                with(2, "annotations", names::POD_GROUP_TOTAL, "4"),
                "pods head and worker-1 of pod group ray have different total counts: 3 and 4",
            ),
            (with(1, "labels", names::QUEUE, "other"), "have different LocalQueues: \"lq\" and \"other\""),
            (
                with(1, "annotations", names::POD_GROUP_FAST, "true"),
                "pod-group-fast-admission: false and true",
            ),
        ] {
            let refused = workload(&pods).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        let mut elsewhere = pods();
        elsewhere[1]["metadata"]["namespace"] = json!("other");
        let refused = workload(&elsewhere).unwrap_err();
        assert!(refused.ends_with("different namespaces: \"ns\" and \"other\""), "{refused}");
    }

    #[test]
    fn the_annotation_counts_before_the_label_and_only_pods_have_a_group() {
        let [head, ..] = with(0, "annotations", names::POD_GROUP, "first");
        assert_eq!((name(&head), name(&pod("p", "1"))), (Some("first"), Some("ray")));
        let mut job = head;
        job["kind"] = json!("Job");
        assert_eq!(name(&job), None);
    }
}
