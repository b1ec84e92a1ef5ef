//! Resource arithmetic, and the requests of one pod by the scheduler's formula.
//!
//! The formula is that of Kubernetes' component-helpers: the larger of what runs together and of what starts up, including
//! sidecars, plus overhead. A limit without a request counts as a request. Lists are validated before they are added, because
//! arithmetic treats unreadable amounts as zero.

use crate::api::pod::{Container, PodSpec, ResourceList};
use crate::api::quantity::Amount;
use crate::names;
use crate::policy::preset::ACCELERATORS;
use k8s_openapi::api::core::v1::{LimitRange, ResourceRequirements};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::sync::Arc;

/// An invalid quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{resource}: {text:?} is not a valid quantity")]
pub struct BadQuantity {
    /// The resource.
    pub resource: String,
    /// The invalid text.
    pub text: String,
}

fn parse(quantity: &Quantity) -> Option<Amount> {
    Amount::parse(&quantity.0)
}

/// Checks that every amount is valid.
pub fn validate(list: &ResourceList) -> Result<(), BadQuantity> {
    match list.iter().find(|(_, q)| parse(q).is_none()) {
        None => Ok(()),
        Some((resource, q)) => Err(BadQuantity { resource: resource.clone(), text: q.0.clone() }),
    }
}

/// One amount of a list. Zero if it is absent or invalid.
pub fn amount(list: &ResourceList, key: &str) -> Amount {
    list.get(key).and_then(parse).unwrap_or_default()
}

/// Whether a list has at least this amount of a resource.
pub fn has(list: &ResourceList, key: &str, wanted: &Quantity) -> bool {
    parse(wanted).is_none_or(|wanted| wanted <= amount(list, key))
}

fn merged(a: &ResourceList, b: &ResourceList, pick: impl Fn(Amount, Amount) -> Amount) -> ResourceList {
    let mut all = a.clone();
    for key in b.keys() {
        all.insert(key.clone(), pick(amount(a, key), amount(b, key)).into());
    }
    all
}

/// The sum of both.
pub fn sum(a: &ResourceList, b: &ResourceList) -> ResourceList {
    merged(a, b, Amount::plus)
}

/// The key under which a NodePool limits the number of its nodes.
pub const NODES: &str = "nodes";

/// The list with this number of nodes.
pub fn with_nodes(list: &ResourceList, nodes: u32) -> ResourceList {
    let mut list = list.clone();
    list.insert(NODES.to_owned(), Quantity(nodes.to_string()));
    list
}

/// The larger of both, for each resource.
pub fn max(a: &ResourceList, b: &ResourceList) -> ResourceList {
    merged(a, b, Ord::max)
}

/// `a` minus `b`, for the resources of `a`.
pub fn minus(a: &ResourceList, b: &ResourceList) -> ResourceList {
    a.keys().map(|key| (key.clone(), amount(a, key).minus(amount(b, key)).into())).collect()
}

/// The list multiplied by `count`.
pub fn times(list: &ResourceList, count: u32) -> ResourceList {
    list.keys().map(|key| (key.clone(), amount(list, key).times(count).into())).collect()
}

/// The smaller of both for each resource that both state, and the rest as stated.
pub fn min(a: &ResourceList, b: &ResourceList) -> ResourceList {
    let mut all = a.clone();
    all.extend(b.clone());
    for key in a.keys().filter(|key| b.contains_key(*key)) {
        all.insert(key.clone(), amount(a, key).min(amount(b, key)).into());
    }
    all
}

/// The first resource that `offered` has less of than `wanted`.
pub fn first_insufficient<'a>(wanted: &'a ResourceList, offered: &ResourceList) -> Option<&'a str> {
    wanted.keys().find(|key| amount(wanted, key) > amount(offered, key)).map(String::as_str)
}

/// The first insufficient resource, as text with both amounts.
pub fn shortage(wanted: &ResourceList, offered: &ResourceList) -> Option<String> {
    let key = first_insufficient(wanted, offered)?;
    let (has, asked) = (amount(offered, key), amount(wanted, key));
    let (has, asked) =
        if is_in_bytes(key) { has.in_one_unit(asked) } else { (has.in_decimals(), asked.in_decimals()) };
    Some(format!("{key} ({has} of {asked})"))
}

/// One amount of a list for display. Bytes are in binary units that divide the amount.
pub fn shown(list: &ResourceList, key: &str) -> String {
    let whole = if is_in_bytes(key) { amount(list, key).in_binary_units() } else { None };
    whole.unwrap_or_else(|| list.get(key).map_or_else(|| "0".to_owned(), |q| q.0.clone()))
}

fn is_in_bytes(key: &str) -> bool {
    key == "memory" || key.ends_with("storage") || key.starts_with("hugepages-")
}

/// Whether a resource is a device: an extended resource with a vendor prefix.
pub fn is_device(key: &str) -> bool {
    key.contains('/')
}

/// Whether a resource is an accelerator or a part of one: a device of a vendor of accelerators, or of any DeviceClass.
pub fn is_accelerator(key: &str) -> bool {
    let vendor = |key: &str| key.split_once('/').map(|(vendor, _)| vendor.to_owned());
    key.starts_with(names::DEVICE_CLASS_PREFIX)
        || vendor(key).is_some_and(|of| ACCELERATORS.iter().any(|known| vendor(known).as_ref() == Some(&of)))
}

/// Whether the list has an accelerator.
pub fn has_accelerator(list: &ResourceList) -> bool {
    list.iter().any(|(key, quantity)| is_accelerator(key) && is_positive(quantity))
}

/// Whether an amount is more than zero.
pub fn is_positive(quantity: &Quantity) -> bool {
    parse(quantity).is_some_and(|q| q > Amount::default())
}

/// Sources of defaults for a pod's resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults<'a> {
    /// LimitRanges of the namespace.
    pub limit_ranges: &'a [Arc<LimitRange>],
    /// Every RuntimeClass.
    pub runtime_classes: &'a [Arc<RuntimeClass>],
}

/// Resources that one pod of this spec requests from a node, including its place in the node's pod count.
pub fn of_pod(spec: &PodSpec, defaults: Defaults<'_>) -> Result<ResourceList, BadQuantity> {
    let mut total = of_containers(spec, defaults.limit_ranges)?;
    if let Some(pod_level) = &spec.resources {
        // The API server fills in pod-level requests before LimitRanges change the containers.
        let own = of_containers(spec, &[])?;
        replace_by_pod_level(&mut total, &own, pod_level)?;
    }
    let overhead = overhead(spec, defaults.runtime_classes);
    validate(&overhead)?;
    total = sum(&total, &overhead);
    // Zero of a device must not count as a request for the device.
    total.retain(|_, quantity| is_positive(quantity));
    total.insert("pods".to_owned(), Quantity("1".to_owned()));
    Ok(total)
}

/// Resources that the containers of a pod request together.
fn of_containers(spec: &PodSpec, limit_ranges: &[Arc<LimitRange>]) -> Result<ResourceList, BadQuantity> {
    let requests = |container: &Container| container_requests(container, limit_ranges);
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
    Ok(max(&sum(&main, &sidecars), &peak))
}

/// Replaces the containers' sum with the pod-level resources, as the API server fills them in. With pod-level limits, a resource that
/// has no pod-level request gets one: what the containers request by themselves (`own`), or else the limit. For huge pages the limit
/// always counts.
fn replace_by_pod_level(
    total: &mut ResourceList,
    own: &ResourceList,
    pod_level: &ResourceRequirements,
) -> Result<(), BadQuantity> {
    let none = ResourceList::new();
    let [limits, requests] =
        [&pod_level.limits, &pod_level.requests].map(|list| list.as_ref().unwrap_or(&none));
    validate(limits)?;
    validate(requests)?;
    let is_huge = |key: &str| key.starts_with("hugepages-");
    let counts = |key: &str| key == "cpu" || key == "memory" || is_huge(key);
    let mut filled = limits.clone();
    if !limits.is_empty() {
        filled.extend(own.clone().into_iter().filter(|(key, amount)| !is_huge(key) && is_positive(amount)));
    }
    filled.extend(requests.clone());
    total.extend(filled.into_iter().filter(|(key, _)| counts(key)));
    Ok(())
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

/// The requests; a limit without a request counts as one.
pub fn effective(requirements: &ResourceRequirements) -> ResourceList {
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
        // Fill unstated values from the default request, then from the default limit.
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
    use proptest::prelude::*;
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
    fn an_init_container_counts_only_if_it_is_the_peak_and_a_sidecar_counts_always() {
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
    fn a_pod_level_limit_counts_only_without_container_requests_or_for_huge_pages() {
        let pod = pod(json!({
            "resources": {"limits": {"cpu": "8", "memory": "8Gi", "hugepages-2Mi": "1Gi"}},
            "containers": [{"resources": {"requests": {"cpu": "2", "hugepages-2Mi": "512Mi"}}}],
        }));
        same(&pod, &[("cpu", "2"), ("memory", "8Gi"), ("hugepages-2Mi", "1Gi"), ("pods", "1")]);
    }

    #[test]
    fn limit_ranges_do_not_change_what_pod_level_limits_have_set() {
        let item = json!({"type": "Container", "defaultRequest": {"cpu": "100m", "memory": "128Mi"}});
        let range: LimitRange = serde_json::from_value(json!({"spec": {"limits": [item]}})).unwrap();
        let of = |spec: serde_json::Value| {
            let defaults = Defaults { limit_ranges: &[Arc::new(range.clone())], runtime_classes: &[] };
            of_pod(&serde_json::from_value(spec).unwrap(), defaults).unwrap()
        };
        let limits = json!({"limits": {"cpu": "8", "memory": "8Gi"}});
        let bare = of(json!({"resources": limits, "containers": [{"name": "a"}]}));
        same(&bare, &[("cpu", "8"), ("memory", "8Gi"), ("pods", "1")]);
        let requests = json!([{"resources": {"requests": {"cpu": "2"}}}, {"name": "b"}]);
        let stated = of(json!({"resources": limits, "containers": requests}));
        same(&stated, &[("cpu", "2"), ("memory", "8Gi"), ("pods", "1")]);
    }

    #[test]
    fn a_request_for_zero_devices_does_not_count() {
        let pod =
            pod(json!({"containers": [{"resources": {"requests": {"cpu": "1", "nvidia.com/gpu": "0"}}}]}));
        assert!(!pod.contains_key("nvidia.com/gpu"));
    }

    #[test]
    fn an_invalid_quantity_is_found_in_every_field() {
        for spec in [
            json!({"containers": [{"resources": {"limits": {"cpu": "1", "x": "?"}}}]}),
            json!({"initContainers": [{"resources": {"requests": {"x": "?"}}}]}),
            json!({"resources": {"requests": {"x": "?"}}}),
            json!({"overhead": {"x": "?"}, "containers": [{"resources": {"requests": {"x": "1"}}}]}),
        ] {
            let spec = serde_json::from_value(spec).unwrap();
            assert_eq!(of_pod(&spec, Defaults::default()).unwrap_err().resource, "x");
        }
    }

    fn small_list() -> impl Strategy<Value = ResourceList> {
        let amount = (0..5_000_u32).prop_map(|n| Quantity(format!("{n}m")));
        proptest::collection::btree_map(
            prop_oneof![Just("cpu".to_owned()), Just("x".to_owned())],
            amount,
            0..3,
        )
    }

    fn containers() -> impl Strategy<Value = Vec<Container>> {
        let container = (small_list(), any::<bool>()).prop_map(|(requests, sidecar)| Container {
            resources: Some(ResourceRequirements { requests: Some(requests), ..Default::default() }),
            restart_policy: sidecar.then(|| "Always".to_owned()),
            ..Container::default()
        });
        proptest::collection::vec(container, 0..4)
    }

    proptest! {
        #[test]
        fn more_containers_never_take_less(init in containers(), main in containers(), extra in containers()) {
            let of = |init: &[Container], main: &[Container]| {
                let spec = PodSpec { init_containers: init.to_vec(), containers: main.to_vec(), ..PodSpec::default() };
                of_pod(&spec, Defaults::default()).unwrap()
            };
            let base = of(&init, &main);
            prop_assert_eq!(shortage(&base, &of(&init, &[main.clone(), extra.clone()].concat())), None);
            prop_assert_eq!(shortage(&base, &of(&[init, extra].concat(), &main)), None);
        }

        #[test]
        fn a_sum_covers_both_and_a_maximum_covers_each(a in small_list(), b in small_list()) {
            prop_assert_eq!(shortage(&max(&a, &b), &sum(&a, &b)), None);
            prop_assert!(shortage(&a, &max(&a, &b)).is_none() && shortage(&b, &max(&a, &b)).is_none());
            let (left, right) = (sum(&a, &b), sum(&b, &a));
            prop_assert!(shortage(&left, &right).is_none() && shortage(&right, &left).is_none());
        }
    }

    #[test]
    fn an_invalid_quantity_is_named() {
        let spec =
            serde_json::from_value(json!({"containers": [{"resources": {"requests": {"cpu": "lots"}}}]}))
                .unwrap();
        let error = of_pod(&spec, Defaults::default()).unwrap_err();
        assert_eq!(error.to_string(), "cpu: \"lots\" is not a valid quantity");
    }

    #[test]
    fn a_shortage_is_reported_with_figures() {
        let wanted = list(&[("cpu", "1"), ("nvidia.com/gpu", "8")]);
        assert_eq!(
            shortage(&wanted, &list(&[("cpu", "2"), ("nvidia.com/gpu", "4")])).unwrap(),
            "nvidia.com/gpu (4 of 8)"
        );
        assert_eq!(shortage(&wanted, &list(&[("cpu", "1000m"), ("nvidia.com/gpu", "8")])), None);
        for (key, has, asked, words) in [
            ("memory", "1938410Mi", "1950Gi", "memory (1938410Mi of 1996800Mi)"),
            ("memory", "1000", "1Gi", "memory (1000 of 1073741824)"),
            ("memory", "0", "1Gi", "memory (0Gi of 1Gi)"),
            ("cpu", "382970m", "600", "cpu (382.97 of 600)"),
        ] {
            assert_eq!(shortage(&list(&[(key, asked)]), &list(&[(key, has)])).as_deref(), Some(words));
        }
    }
}
