//! Known shapes of instance types: stated by the policy, learnt from observed nodes, sized by Karpenter's metrics, or listed in the
//! provider's catalogue.
//!
//! No API object lists instance types. Rule: observed Nodes win over estimates.

mod measured;

use super::catalogue::{self, Catalogue};
use super::market::Market;
use super::resources;
use super::shape::{Accelerators, DISK, Shape, devices};
use super::source::Source;
use crate::api::parameters::StatedShape;
use crate::api::pod::ResourceList;
use crate::api::requirements::Requirements;
use crate::names;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A type on a NodePool that only other NodePools' nodes have shown: the least of those nodes and the catalogue, with the
/// catalogue's devices, because each NodePool may share devices differently.
fn by_others(shown: &ResourceList, listed: &ResourceList) -> ResourceList {
    let mut least = resources::min(shown, listed);
    least.retain(|key, _| !resources::is_device(key));
    least.extend(devices(listed));
    least
}

/// Whether the NodeClass decides how much of a resource a node has, whatever its type.
fn is_of_node_class(resource: &str) -> bool {
    resource == DISK || resource.starts_with("hugepages-")
}

/// The resources of a list that the NodeClass decides.
fn of_node_class(list: &ResourceList) -> impl Iterator<Item = (String, Quantity)> {
    let decided = list.iter().filter(|(resource, _)| is_of_node_class(resource));
    decided.map(|(resource, amount)| (resource.clone(), amount.clone()))
}

/// The known types that a node with these requirements may be of.
#[derive(Clone, Debug, Default)]
pub struct KnownTypes {
    /// One shape for each type.
    pub shapes: Vec<Arc<Shape>>,
    /// Whether an unknown type is possible.
    pub others: bool,
    /// Whether the possible types are listed, by the requirements or by the provider's catalogue.
    pub is_bounded: bool,
    /// Types that the requirements list and the provider's catalogue lacks.
    pub uncatalogued: Vec<String>,
    /// The provider's catalogue.
    pub catalogue: Option<&'static Catalogue>,
}

impl KnownTypes {
    /// Whether nodes of these types certainly lack a resource that no shape has. True if no shape is stated, and the provider's
    /// catalogue lists the resource or nodes have shown every shape.
    pub fn are_without(&self, resource: &str) -> bool {
        let is_of_provider = || self.catalogue.is_some_and(|c| c.has(resource));
        let is_stated = |shape: &Arc<Shape>| shape.source == Source::Policy;
        !self.shapes.iter().any(is_stated) && (is_of_provider() || self.shapes.iter().all(|s| s.is_shown()))
    }
}

/// The sources of shapes.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Shapes that the policy states.
    pub stated: &'a [StatedShape],
    /// Shapes learnt from Nodes and NodeClaims.
    pub learnt: &'a [Shape],
    /// API group of the NodeClass, which identifies the provider.
    pub group: &'a str,
    /// Karpenter's metrics, if they are read.
    pub market: Option<&'a Market>,
    /// Whether pods ask for devices, which the metrics do not cover.
    pub asks_devices: bool,
}

/// One shape for each type on a NodePool: what its own nodes showed, or else the least of what other pools' nodes showed, the
/// catalogue, and what is expected of its own. Nodes of other pools do not show what the NodeClass decides.
fn of_pool(learnt: &[Shape], node_pool: &str, catalogue: Option<&Catalogue>) -> Vec<Shape> {
    let types: BTreeSet<&str> = learnt.iter().map(|shape| shape.instance_type.as_str()).collect();
    let least = |a: Shape, b: &Shape| Shape {
        allocatable: resources::min(&a.allocatable, &b.allocatable),
        capacity: resources::max(&a.capacity, &b.capacity),
        nodes: a.nodes.min(b.nodes),
        ..a
    };
    let of_type = |instance_type: &str| {
        let all: Vec<&Shape> = learnt.iter().filter(|s| s.instance_type == instance_type).collect();
        let is_own = |shape: &Shape| shape.node_pool == node_pool;
        let own = all.iter().copied().filter(|shape| is_own(shape));
        if let Some(own) = own.clone().find(|shape| shape.is_shown()) {
            return Some(own.clone());
        }
        let mut by_node_class = ResourceList::new();
        own.for_each(|own| by_node_class.extend(of_node_class(&own.allocatable)));
        let any_shown = all.iter().any(|s| s.is_shown());
        let (shown, expected): (Vec<&Shape>, Vec<&Shape>) = all.into_iter().partition(|s| s.is_shown());
        let counts = |shape: &&Shape| !any_shown || is_own(shape);
        let mut counted = shown.into_iter().chain(expected.into_iter().filter(counts));
        let first = counted.next()?.clone();
        let mut known = counted.fold(first, least);
        if let Some(listed) = catalogue.and_then(|c| c.get(instance_type)).filter(|_| any_shown) {
            known.allocatable = by_others(&known.allocatable, &listed.shape.allocatable);
        }
        known.allocatable.retain(|resource, _| !is_of_node_class(resource));
        known.allocatable.extend(by_node_class);
        Some(known)
    };
    types.into_iter().filter_map(of_type).collect()
}

/// The stated shapes, lowered where Nodes showed less, plus the learnt shapes of other types.
fn with_stated(stated: &[StatedShape], learnt: Vec<Shape>) -> Vec<Shape> {
    let stated = stated.iter().map(|shape| Shape {
        instance_type: shape.instance_type.clone(),
        allocatable: shape.allocatable.clone(),
        capacity: ResourceList::new(),
        labels: BTreeMap::new(),
        node_pool: String::new(),
        nodes: 0,
        accelerators: Accelerators::Stated,
        source: Source::Policy,
    });
    let mut all: Vec<Shape> = stated.collect();
    for shape in learnt {
        let Some(known) = all.iter_mut().find(|s| s.instance_type == shape.instance_type) else {
            all.push(shape);
            continue;
        };
        if shape.is_shown() {
            if let Some(pods) = shape.allocatable.get("pods") {
                // A shape without a number of pods says nothing about them.
                known.allocatable.entry("pods".to_owned()).or_insert_with(|| pods.clone());
            }
            let believed = |key: &str| {
                known.allocatable.contains_key(key) && (!resources::is_device(key) || shape.nodes > 1)
            };
            let shown = shape.allocatable.iter().filter(|(key, _)| believed(key));
            let shown: ResourceList = shown.map(|(k, v)| (k.clone(), v.clone())).collect();
            let less = resources::min(&known.allocatable, &shown);
            if resources::first_insufficient(&known.allocatable, &less).is_some() {
                (known.allocatable, known.source) = (less, shape.source.clone());
            }
        }
        known.labels.clone_from(&shape.labels);
        known.capacity.clone_from(&shape.capacity);
    }
    all
}

/// The shapes that a node of this NodePool with these requirements may have: those of the policy, else the learnt ones, else
/// those from Karpenter's metrics or the provider's catalogue.
pub fn known(from: Sources<'_>, requirements: &Requirements, node_pool: &str) -> KnownTypes {
    let catalogue = catalogue::of(from.group);
    let matching = catalogue.map(|c| c.matching(requirements)).unwrap_or_default();
    let matches: BTreeSet<&str> = matching.iter().map(|t| t.shape.instance_type.as_str()).collect();
    let mut all = with_stated(from.stated, of_pool(from.learnt, node_pool, catalogue));
    let listed = requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed());
    let is_in_catalogue = |name: &str| catalogue.is_some_and(|c| c.get(name).is_some());
    for name in listed.into_iter().flatten().filter(|name| !is_in_catalogue(name)) {
        if !all.iter().any(|shape| shape.instance_type == *name) {
            all.extend(from.by_metrics(name));
        }
    }
    let sourced: BTreeSet<String> = all.iter().map(|shape| shape.instance_type.clone()).collect();
    all.retain(|shape| {
        let name = shape.instance_type.as_str();
        if is_in_catalogue(name) { matches.contains(name) } else { shape.may_be(requirements) }
    });
    for shape in &mut all {
        if let Some(listed) = catalogue.and_then(|c| c.get(&shape.instance_type)) {
            shape.capacity = resources::max(&shape.capacity, &listed.shape.counts_with());
            shape.accelerators = listed.shape.accelerators;
        }
    }
    let is_known =
        |name: &String| is_in_catalogue(name) || all.iter().any(|shape| shape.instance_type == *name);
    let unknown: Vec<String> = listed.into_iter().flatten().filter(|name| !is_known(name)).cloned().collect();
    let others = if listed.is_some() { !unknown.is_empty() } else { catalogue.is_none() };
    let more = matching.iter().filter(|t| !sourced.contains(&t.shape.instance_type));
    let resized = |shape: &Arc<Shape>| catalogue.and_then(|c| from.resized(shape, c)).map(Arc::new);
    let more = more.map(|t| resized(&t.shape).unwrap_or_else(|| Arc::clone(&t.shape)));
    let shapes = all.into_iter().map(Arc::new).chain(more).collect();
    let uncatalogued = if catalogue.is_some() { unknown } else { Vec::new() };
    KnownTypes {
        shapes,
        others,
        is_bounded: listed.is_some() || catalogue.is_some(),
        uncatalogued,
        catalogue,
    }
}

/// How many devices a node may have, if its requirements state that.
pub fn devices_per_node(requirements: &Requirements) -> BTreeSet<u32> {
    let counts = |key: &&str| {
        let values = requirements.get(key)?.listed()?;
        Some(values.iter().filter_map(|v| v.parse::<u32>().ok()).filter(|n| *n > 0).collect())
    };
    names::DEVICE_COUNTS.iter().find_map(counts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Node, NodeClaim};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn stated(instance_type: &str) -> Vec<StatedShape> {
        serde_json::from_value(json!([{"instanceType": instance_type, "allocatable": {"cpu": 8}}])).unwrap()
    }

    fn from<'a>(stated: &'a [StatedShape], learnt: &'a [Shape]) -> Sources<'a> {
        Sources { stated, learnt, group: "karpenter.kwok.sh", market: None, asks_devices: false }
    }

    fn requirements(list: &Value) -> Requirements {
        let list: Vec<crate::api::node_claim::Requirement> = serde_json::from_value(list.clone()).unwrap();
        let mut requirements = Requirements::default();
        requirements.add_all(&list).unwrap();
        requirements
    }

    fn is(key: &str, value: &str) -> Value {
        json!({"key": key, "operator": "In", "values": [value]})
    }

    fn node(name: &str, cpu: &str, seconds: i64) -> Shape {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {
                (names::INSTANCE_TYPE): "m5", (names::INITIALIZED): "true", (names::ARCH): "amd64",
                (names::ZONE): "a", "karpenter.k8s.aws/instance-family": "m", "karpenter.k8s.aws/ec2nodeclass": "x",
            }},
            "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap();
        Shape::of_node(&node, Timestamp::from_second(seconds).unwrap()).unwrap()
    }

    #[test]
    fn a_shape_holds_for_nodes_that_may_be_of_its_type() {
        let family = "karpenter.k8s.aws/instance-family";
        let class = is("karpenter.k8s.aws/ec2nodeclass", "gpu");
        for (asked, learnt, expected) in [
            (json!([class]), vec![], 1),
            (json!([is(names::INSTANCE_TYPE, "m5"), is(family, "m")]), vec![], 1),
            (json!([is(names::INSTANCE_TYPE, "other")]), vec![], 0),
            (json!([is(family, "m")]), vec![], 0),
            (json!([is(family, "m"), is(names::ZONE, "b")]), vec![node("n", "8", 1)], 1),
            (json!([is(family, "p")]), vec![node("n", "8", 1)], 0),
            (json!([is(names::ARCH, "arm64")]), vec![node("n", "8", 1)], 0),
        ] {
            let found = known(from(&stated("m5"), &learnt), &requirements(&asked), "gpu");
            assert_eq!(found.shapes.len(), expected, "{asked}");
        }
    }

    #[test]
    fn the_lesser_of_two_shapes_counts_and_an_estimate_leaves_memory_free() {
        let seen = node("n1", "8", 1).with(&node("n2", "7", 2)).with(&node("n3", "9", 3));
        assert_eq!(seen.allocatable["cpu"].0, "7");
        assert_eq!(seen.source.to_string(), "Node n3, seen 1970-01-01T00:00:03Z");
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": {(names::INSTANCE_TYPE): "m5"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            "status": {"allocatable": {"cpu": "6", "memory": "100"}},
        }))
        .unwrap();
        let estimate = Shape::of_claim(&claim).unwrap().with_margin();
        assert_eq!(estimate.allocatable["memory"].0, "95");
    }

    #[test]
    fn an_unhealthy_device_still_counts_for_the_type() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {(names::INSTANCE_TYPE): "p5", (names::INITIALIZED): "true"}},
            "status": {
                "allocatable": {"cpu": "8", "nvidia.com/gpu": "7"},
                "capacity": {"cpu": "9", "nvidia.com/gpu": "8"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap();
        let shape = Shape::of_node(&node, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            (shape.allocatable["cpu"].0.as_str(), shape.allocatable["nvidia.com/gpu"].0.as_str()),
            ("8", "8")
        );
    }

    #[test]
    fn a_single_node_that_lacks_a_stated_device_is_not_trusted() {
        let stated: Vec<StatedShape> = serde_json::from_value(json!([
            {"instanceType": "p5", "allocatable": {"cpu": 8, "nvidia.com/gpu": 8}}]))
        .unwrap();
        let shown = |nodes: u32| Shape {
            instance_type: "p5".into(),
            allocatable: serde_json::from_value(json!({"cpu": "7", "nvidia.com/gpu": "6"})).unwrap(),
            nodes,
            ..node("n", "7", 1)
        };
        for (nodes, gpus) in [(1, "8"), (2, "6")] {
            let shape =
                known(from(&stated, &[shown(nodes)]), &requirements(&json!([])), "gpu").shapes.remove(0);
            let amounts = ["cpu", "nvidia.com/gpu"].map(|key| shape.allocatable[key].0.clone());
            assert_eq!(amounts, ["7", gpus], "{nodes}");
        }
    }

    #[test]
    fn a_stated_shape_without_a_number_of_pods_has_that_of_the_catalogue_or_of_a_node() {
        let stated: Vec<StatedShape> =
            serde_json::from_value(json!([{"instanceType": "m5.large", "allocatable": {"cpu": "1930m"}}]))
                .unwrap();
        let asked = requirements(&json!([is(names::INSTANCE_TYPE, "m5.large")]));
        let pods = |learnt: &[Shape]| {
            let sources = Sources { group: "karpenter.k8s.aws", ..from(&stated, learnt) };
            let shape = known(sources, &asked, "pool").shapes.remove(0);
            shape.room(&ResourceList::new())["pods"].0.clone()
        };
        assert_eq!(pods(&[]), "29");
        let shown = Shape {
            instance_type: "m5.large".into(),
            allocatable: serde_json::from_value(json!({"cpu": "1930m", "pods": "17"})).unwrap(),
            ..node("n", "2", 1)
        };
        assert_eq!(pods(&[shown]), "17");
    }

    #[test]
    fn a_node_pool_uses_its_own_nodes_or_else_the_least_of_others() {
        let of = |pool: &str, name: &str, cpu: &str| Shape { node_pool: pool.into(), ..node(name, cpu, 1) };
        let expected = Shape {
            source: Source::NodeClaim { name: "c".into(), seen: Timestamp::UNIX_EPOCH },
            nodes: 0,
            ..of("expected", "c", "6")
        };
        let learnt = [of("plain", "n1", "8"), of("sliced", "n2", "32"), expected];
        for (pool, cpu) in [("plain", "8"), ("sliced", "32"), ("third", "8"), ("expected", "6")] {
            let found = known(from(&[], &learnt), &requirements(&json!([])), pool).shapes;
            assert_eq!((found.len(), found[0].allocatable["cpu"].0.as_str()), (1, cpu), "{pool}");
        }
    }

    #[test]
    fn nodes_of_another_node_pool_do_not_change_the_devices() {
        let shown = |pool: &str, allocatable: Value| Shape {
            instance_type: "p5.48xlarge".into(),
            node_pool: pool.into(),
            allocatable: serde_json::from_value(allocatable).unwrap(),
            nodes: 2,
            ..node("n", "7", 1)
        };
        let gpu = "nvidia.com/gpu";
        let learnt = [
            shown("sliced", json!({"cpu": "190", "pods": "20", gpu: "32"})),
            shown("bare", json!({"cpu": "190", "pods": "800"})),
        ];
        let asked = requirements(&json!([is(names::INSTANCE_TYPE, "p5.48xlarge")]));
        let of = |learnt: &[Shape], pool: &str| {
            let from = Sources { group: "karpenter.k8s.aws", ..from(&[], learnt) };
            let shape = known(from, &asked, pool).shapes.remove(0);
            [gpu, "pods"]
                .map(|key| shape.allocatable.get(key).map(|amount| amount.0.clone()).unwrap_or_default())
        };
        assert_eq!(of(&learnt, "sliced"), ["32", "20"]);
        assert_eq!(of(&learnt, "third"), ["8", "20"]);
        let listed = of(&[], "third");
        assert_eq!(of(&learnt[1..], "third"), listed, "no more pods than the catalogue lists");
    }

    #[test]
    fn disks_and_huge_pages_of_another_pool_say_nothing_about_this_one() {
        let shown = |pool: &str, disk: &str| Shape {
            node_pool: pool.into(),
            allocatable: serde_json::from_value(
                json!({"cpu": "7", "ephemeral-storage": disk, "hugepages-2Mi": "0"}),
            )
            .unwrap(),
            ..node("n", "7", 1)
        };
        let asked = requirements(&json!([is(names::INSTANCE_TYPE, "m5")]));
        let of = |stated: &[StatedShape], learnt: &[Shape]| {
            let shape = known(from(stated, learnt), &asked, "gpu").shapes.remove(0);
            ["cpu", "ephemeral-storage", "hugepages-2Mi"]
                .map(|key| shape.allocatable.get(key).map(|a| a.0.clone()))
        };
        let some = |text: &str| Some(text.to_owned());
        let others = [shown("other", "17Gi")];
        assert_eq!(of(&[], &others), [some("7"), None, None]);
        let all = [shown("other", "17Gi"), shown("gpu", "400Gi")];
        assert_eq!(of(&[], &all), [some("7"), some("400Gi"), some("0")]);
        let large: Vec<StatedShape> = serde_json::from_value(json!([
            {"instanceType": "m5", "allocatable": {"cpu": 8, "ephemeral-storage": "450Gi"}},
        ]))
        .unwrap();
        assert_eq!(of(&large, &others), [some("7"), some("450Gi"), None]);
    }

    #[test]
    fn other_types_are_ruled_out_only_by_a_type_list() {
        let others = |asked: Value| known(from(&stated("m5"), &[]), &requirements(&asked), "gpu").others;
        assert!(others(json!([])));
        assert!(!others(json!([is(names::INSTANCE_TYPE, "m5")])));
        assert!(others(json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["m5", "m6"]}])));
    }

    #[test]
    fn the_catalogue_fills_in_what_policy_and_nodes_do_not_state() {
        let family = |name| json!([is("karpenter.k8s.aws/instance-family", name)]);
        let of = |asked: &Value, stated: &[StatedShape], learnt: &[Shape]| {
            let from =
                Sources { stated, learnt, group: "karpenter.k8s.aws", market: None, asks_devices: false };
            known(from, &requirements(asked), "gpu")
        };
        let found = of(&family("p5"), &[], &[]);
        let types: Vec<(&str, String)> =
            found.shapes.iter().map(|s| (s.instance_type.as_str(), s.source.to_string())).collect();
        let date = found.catalogue.unwrap().date();
        let source = format!("the catalogue of {date}");
        assert_eq!(types, [("p5.48xlarge", source.clone()), ("p5.4xlarge", source)]);
        assert!(!found.others && found.is_bounded);
        let found = of(&family("p5"), &stated("p5.48xlarge"), &[]);
        assert_eq!(
            found.shapes[0].source,
            Source::Policy,
            "the catalogue has the labels that the policy does not state"
        );
        assert_eq!((found.shapes[0].allocatable["cpu"].0.as_str(), found.shapes.len()), ("8", 2));
        let seen = Shape { instance_type: "p5.4xlarge".into(), ..node("n", "7", 1) };
        let found = of(&family("p5"), &[], &[seen]);
        assert_eq!((found.shapes[0].allocatable["cpu"].0.as_str(), found.shapes.len()), ("7", 2));
        assert!(
            of(&family("m5"), &stated("p5.48xlarge"), &[])
                .shapes
                .iter()
                .all(|s| s.instance_type.starts_with("m5."))
        );
        let listed =
            json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge", "p9.huge"]}]);
        let found = of(&listed, &[], &[]);
        assert_eq!(
            (found.shapes.len(), found.others, found.uncatalogued),
            (1, true, vec!["p9.huge".to_owned()])
        );
        let other_arch = json!([is(names::INSTANCE_TYPE, "p5.48xlarge"), is(names::ARCH, "arm64")]);
        let found = of(&other_arch, &[], &[]);
        assert!(found.shapes.is_empty() && !found.others, "it is known that there is none");
    }
}
