//! Amounts of resources: arithmetic, and what one pod takes by the scheduler's formula.
//!
//! The formula is that of Kubernetes' component-helpers: the larger of what runs together and of what
//! starts up, sidecars included, plus overhead. A limit without a request is a request.

use super::quantity::Amount;
use crate::api::pod::{Container, PodSpec, ResourceList};
use k8s_openapi::api::core::v1::{LimitRange, ResourceRequirements};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::sync::Arc;

/// A quantity that is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{resource}: {text:?} is no quantity")]
pub struct BadQuantity {
    /// The resource.
    pub resource: String,
    /// What stands there.
    pub text: String,
}

fn parse(quantity: &Quantity) -> Option<Amount> {
    Amount::parse(&quantity.0)
}

/// Checks that every amount can be read.
pub fn validate(list: &ResourceList) -> Result<(), BadQuantity> {
    match list.iter().find(|(_, q)| parse(q).is_none()) {
        None => Ok(()),
        Some((resource, q)) => Err(BadQuantity { resource: resource.clone(), text: q.0.clone() }),
    }
}

fn amount(list: &ResourceList, key: &str) -> Amount {
    list.get(key).and_then(parse).unwrap_or_default()
}

fn merged(a: &ResourceList, b: &ResourceList, pick: impl Fn(Amount, Amount) -> Amount) -> ResourceList {
    let mut all = a.clone();
    for key in b.keys() {
        all.insert(key.clone(), pick(amount(a, key), amount(b, key)).into());
    }
    all
}

/// Both together.
pub fn sum(a: &ResourceList, b: &ResourceList) -> ResourceList {
    merged(a, b, Amount::plus)
}

/// The larger of both, for each resource.
pub fn max(a: &ResourceList, b: &ResourceList) -> ResourceList {
    merged(a, b, Ord::max)
}

/// The first resource of which `offered` has less than `wanted`, in words.
pub fn shortage(wanted: &ResourceList, offered: &ResourceList) -> Option<String> {
    wanted.iter().find_map(|(key, want)| {
        let short = amount(wanted, key) > amount(offered, key);
        let has = offered.get(key).map_or("0", |q| q.0.as_str());
        short.then(|| format!("{key} ({has} of {})", want.0))
    })
}

/// Whether an amount is more than nothing.
pub fn is_positive(quantity: &Quantity) -> bool {
    parse(quantity).is_some_and(|q| q > Amount::default())
}

/// Where defaults for a pod's resources come from besides the pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults<'a> {
    /// LimitRanges of the namespace.
    pub limit_ranges: &'a [Arc<LimitRange>],
    /// Every RuntimeClass.
    pub runtime_classes: &'a [Arc<RuntimeClass>],
}

/// What one pod of this spec takes from a node, its place among the node's pods included.
pub fn of_pod(spec: &PodSpec, defaults: Defaults<'_>) -> Result<ResourceList, BadQuantity> {
    let requests = |container: &Container| container_requests(container, defaults.limit_ranges);
    let mut main = ResourceList::new();
    for container in &spec.containers {
        main = sum(&main, &requests(container)?);
    }
    let mut sidecars = ResourceList::new();
    let mut peak = ResourceList::new();
    for container in &spec.init_containers {
        let own = requests(container)?;
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sum(&sidecars, &own);
            peak = max(&peak, &sidecars);
        } else {
            peak = max(&peak, &sum(&sidecars, &own));
        }
    }
    let mut total = max(&sum(&main, &sidecars), &peak);
    if let Some(pod_level) = &spec.resources {
        for (key, quantity) in effective(pod_level) {
            if key == "cpu" || key == "memory" || key.starts_with("hugepages-") {
                total.insert(key, quantity);
            }
        }
    }
    total = sum(&total, &overhead(spec, defaults.runtime_classes));
    total.insert("pods".to_owned(), Quantity("1".to_owned()));
    validate(&total)?;
    Ok(total)
}

fn overhead(spec: &PodSpec, runtime_classes: &[Arc<RuntimeClass>]) -> ResourceList {
    if let Some(own) = spec.overhead.as_ref().filter(|o| !o.is_empty()) {
        return own.clone();
    }
    let Some(class) = &spec.runtime_class_name else {
        return ResourceList::new();
    };
    runtime_classes
        .iter()
        .find(|c| c.metadata.name.as_ref() == Some(class))
        .and_then(|c| c.overhead.as_ref())
        .and_then(|o| o.pod_fixed.clone())
        .unwrap_or_default()
}

/// Requests, with each limit that has no request counted as one.
fn effective(requirements: &ResourceRequirements) -> ResourceList {
    let mut requests = requirements.limits.clone().unwrap_or_default();
    requests.extend(requirements.requests.clone().unwrap_or_default());
    requests
}

fn container_requests(
    container: &Container,
    limit_ranges: &[Arc<LimitRange>],
) -> Result<ResourceList, BadQuantity> {
    let stated = container.resources.clone().unwrap_or_default();
    let mut requests = effective(&stated);
    let items = limit_ranges.iter().flat_map(|r| r.spec.iter()).flat_map(|s| &s.limits);
    for item in items.filter(|i| i.type_ == "Container") {
        // A default request fills what is not stated, then a default limit does.
        for list in [&item.default_request, &item.default].into_iter().flatten() {
            for (key, quantity) in list {
                requests.entry(key.clone()).or_insert_with(|| quantity.clone());
            }
        }
    }
    validate(&requests)?;
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(pairs: &[(&str, &str)]) -> ResourceList {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), Quantity((*v).to_owned()))).collect()
    }

    fn same(a: &ResourceList, b: &[(&str, &str)]) {
        let b = list(b);
        assert!(shortage(a, &b).is_none() && shortage(&b, a).is_none(), "{a:?} against {b:?}");
    }

    fn pod(value: serde_json::Value) -> ResourceList {
        of_pod(&serde_json::from_value(value).unwrap(), Defaults::default()).unwrap()
    }

    #[test]
    fn containers_add_up_and_a_limit_without_a_request_is_one() {
        let pod = pod(json!({"containers": [
            {"resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}},
            {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4", "nvidia.com/gpu": "2"}}},
        ]}));
        same(&pod, &[("cpu", "1500m"), ("memory", "1Gi"), ("nvidia.com/gpu", "2"), ("pods", "1")]);
    }

    #[test]
    fn an_init_container_counts_only_where_it_is_the_peak_and_a_sidecar_counts_always() {
        let pod = pod(json!({
            "initContainers": [
                {"restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}},
                {"resources": {"requests": {"cpu": "5", "memory": "1Gi"}}},
            ],
            "containers": [{"resources": {"requests": {"cpu": "2", "memory": "4Gi"}}}],
        }));
        same(&pod, &[("cpu", "6"), ("memory", "4Gi"), ("pods", "1")]);
    }

    #[test]
    fn pod_level_resources_replace_the_sum_and_overhead_comes_on_top() {
        let pod = pod(json!({
            "resources": {"requests": {"cpu": "8", "example.com/x": "3"}},
            "overhead": {"cpu": "250m"},
            "containers": [{"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}],
        }));
        same(&pod, &[("cpu", "8250m"), ("nvidia.com/gpu", "1"), ("pods", "1")]);
    }

    #[test]
    fn limit_ranges_and_runtime_classes_fill_what_the_pod_leaves_open() {
        let range: LimitRange = serde_json::from_value(json!({"spec": {"limits": [
            {"type": "Container", "default": {"cpu": "2", "memory": "2Gi"}, "defaultRequest": {"cpu": "1"}},
            {"type": "Pod", "max": {"cpu": "100"}},
        ]}}))
        .unwrap();
        let class: RuntimeClass = serde_json::from_value(json!({
            "metadata": {"name": "kata"}, "handler": "kata", "overhead": {"podFixed": {"memory": "1Gi"}},
        }))
        .unwrap();
        let spec = serde_json::from_value(json!({"runtimeClassName": "kata", "containers": [{"name": "a"}]}))
            .unwrap();
        let defaults = Defaults { limit_ranges: &[Arc::new(range)], runtime_classes: &[Arc::new(class)] };
        same(&of_pod(&spec, defaults).unwrap(), &[("cpu", "1"), ("memory", "3Gi"), ("pods", "1")]);
    }

    #[test]
    fn what_is_no_quantity_is_named() {
        let spec =
            serde_json::from_value(json!({"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}))
                .unwrap();
        let error = of_pod(&spec, Defaults::default()).unwrap_err();
        assert_eq!(error.to_string(), "cpu: \"lots\" is no quantity");
    }

    #[test]
    fn a_shortage_is_told_with_its_figures() {
        let wanted = list(&[("cpu", "1"), ("nvidia.com/gpu", "8")]);
        assert_eq!(
            shortage(&wanted, &list(&[("cpu", "2"), ("nvidia.com/gpu", "4")])).unwrap(),
            "nvidia.com/gpu (4 of 8)"
        );
        assert_eq!(shortage(&wanted, &list(&[("cpu", "1000m"), ("nvidia.com/gpu", "8")])), None);
    }
}
