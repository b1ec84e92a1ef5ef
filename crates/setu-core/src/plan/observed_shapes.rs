//! Shapes that nodes of each instance type have shown, and how long they count.
//!
//! Kept for each NodePool, because each may share devices differently. The ledger holds it, and `setu plan` rebuilds it. Rule: a node
//! counts for its type while it exists; deleted nodes count until an hour after the first of them went. So an attempt that failed
//! because of a node is not repeated unchanged, and an unhealthy node is dropped in time.

use super::resources;
use super::shape::Shape;
use super::source::Source;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How long the shapes of deleted nodes are kept.
const PAST: SignedDuration = SignedDuration::from_hours(1);

/// Observed shapes, by instance type and NodePool.
#[derive(Debug, Default)]
pub struct ObservedShapes(BTreeMap<(String, String), ObservedType>);

/// Observations of one type in one NodePool.
#[derive(Debug, Default)]
struct ObservedType {
    /// Existing nodes, by what they show. Mostly all show the same.
    present: Vec<(Shape, BTreeSet<String>)>,
    /// The shape that deleted nodes showed.
    past: Option<DeletedNodes>,
    /// The provider's estimate.
    estimate: Option<Estimate>,
}

#[derive(Debug)]
struct DeletedNodes {
    shape: Shape,
    nodes: BTreeSet<String>,
    /// When it stops counting.
    until: Timestamp,
}

/// The provider's estimate of a node. It counts if no node was seen. It also bounds what nodes show, because the provider launches
/// nothing for a claim that asks for more.
#[derive(Debug)]
struct Estimate {
    /// The shape of the youngest claim.
    shape: Shape,
    /// Creation time and name of that claim.
    youngest: (Timestamp, String),
    /// Existing claims.
    claims: BTreeSet<String>,
    /// When it stops counting, once there are no claims.
    until: Option<Timestamp>,
}

impl ObservedShapes {
    /// Records what a node shows, or what is expected of one. Returns whether the type is newly known in its NodePool, or is now
    /// known to have more.
    pub fn note(&mut self, shape: Shape, now: Timestamp) -> bool {
        let key = (shape.instance_type.clone(), shape.node_pool.clone());
        let seen = self.0.entry(key).or_default();
        if seen.has(&shape) {
            return false;
        }
        let before = seen.shape(now);
        match shape.source.clone() {
            Source::Node { name, .. } => seen.note_node(&name, shape),
            Source::NodeClaim { name, seen: created } => seen.note_claim(name, created, shape),
            Source::Policy | Source::Metrics { .. } | Source::Catalogue { .. } => {}
        }
        let grew = |after: &Shape| {
            let has_more =
                |before: &Shape| resources::first_insufficient(&after.allocatable, &before.allocatable);
            before.as_ref().is_none_or(|before| has_more(before).is_some())
        };
        seen.shape(now).is_some_and(|after| grew(&after))
    }

    /// Records that a node is gone.
    pub fn forget_node(&mut self, name: &str, now: Timestamp) {
        for seen in self.0.values_mut() {
            let Some(shape) = seen.take(name) else { continue };
            let past = seen.past.take().filter(|past| past.until > now);
            let until = past.as_ref().map(|past| past.until).or_else(|| now.checked_add(PAST).ok());
            let (shape, mut nodes) = match past {
                Some(past) => (past.shape.with(&shape), past.nodes),
                None => (shape, BTreeSet::new()),
            };
            nodes.insert(name.to_owned());
            seen.past = until.map(|until| DeletedNodes { shape, nodes, until });
        }
    }

    /// Records that a claim is gone.
    pub fn forget_claim(&mut self, name: &str, now: Timestamp) {
        for estimate in self.0.values_mut().filter_map(|seen| seen.estimate.as_mut()) {
            if estimate.claims.remove(name) && estimate.claims.is_empty() {
                estimate.until = now.checked_add(PAST).ok();
            }
        }
    }

    /// One shape for each type in each NodePool.
    pub fn shapes(&self, now: Timestamp) -> impl Iterator<Item = Shape> {
        self.0.values().filter_map(move |seen| seen.shape(now))
    }
}

impl ObservedType {
    /// Whether this is already recorded. Most updated objects show what they showed before.
    fn has(&self, shape: &Shape) -> bool {
        match &shape.source {
            Source::Node { name, .. } => {
                self.present.iter().any(|(known, nodes)| is_alike(known, shape) && nodes.contains(name))
            }
            Source::NodeClaim { name, .. } => {
                let known = self.estimate.as_ref().filter(|known| known.claims.contains(name));
                known.is_some_and(|known| {
                    known.youngest.1 != *name || known.shape.allocatable == shape.allocatable
                })
            }
            Source::Policy | Source::Metrics { .. } | Source::Catalogue { .. } => true,
        }
    }

    fn note_node(&mut self, name: &str, shape: Shape) {
        // What it showed before is no longer true of any node.
        self.take(name);
        if let Some(past) = &mut self.past {
            past.nodes.remove(name);
        }
        match self.present.iter_mut().find(|(known, _)| is_alike(known, &shape)) {
            Some((known, nodes)) => {
                known.source = shape.source;
                nodes.insert(name.to_owned());
            }
            None => self.present.push((shape, BTreeSet::from([name.to_owned()]))),
        }
    }

    fn note_claim(&mut self, name: String, created: Timestamp, shape: Shape) {
        let youngest = (created, name.clone());
        let Some(estimate) = &mut self.estimate else {
            self.estimate = Some(Estimate { shape, youngest, claims: BTreeSet::from([name]), until: None });
            return;
        };
        estimate.claims.insert(name);
        estimate.until = None;
        if youngest >= estimate.youngest {
            (estimate.shape, estimate.youngest) = (shape, youngest);
        }
    }

    fn take(&mut self, name: &str) -> Option<Shape> {
        let (shape, nodes) = self.present.iter_mut().find(|(_, nodes)| nodes.contains(name))?;
        nodes.remove(name);
        let shape = shape.clone();
        self.present.retain(|(_, nodes)| !nodes.is_empty());
        Some(shape)
    }

    fn shape(&self, now: Timestamp) -> Option<Shape> {
        let past = || self.past.iter().filter(|past| past.until > now);
        let shapes = past().map(|past| &past.shape).chain(self.present.iter().map(|(shape, _)| shape));
        let all =
            |all: Option<Shape>, one: &Shape| Some(all.map_or_else(|| one.clone(), |all| all.with(one)));
        let estimate = self.estimate.as_ref().filter(|e| e.until.is_none_or(|until| until > now));
        let estimate = estimate.map(|estimate| &estimate.shape);
        let Some(shown) = shapes.fold(None, all) else { return estimate.map(Shape::with_margin) };
        let names = past().map(|past| &past.nodes).chain(self.present.iter().map(|(_, nodes)| nodes));
        let nodes = names.map(BTreeSet::len).fold(0, usize::saturating_add);
        let shape = Shape { nodes: u32::try_from(nodes).unwrap_or(u32::MAX), ..shown };
        Some(match estimate {
            Some(estimate) => shape.within(estimate),
            None => shape,
        })
    }
}

/// Whether two nodes show the same.
fn is_alike(one: &Shape, other: &Shape) -> bool {
    one.allocatable == other.allocatable && one.labels == other.labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Node, NodeClaim};
    use crate::names;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn node(name: &str, cpu: &str, gpus: &str, seconds: i64) -> Shape {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {(names::INSTANCE_TYPE): "p5", (names::INITIALIZED): "true"}},
            "status": {
                "allocatable": {"cpu": cpu, "nvidia.com/gpu": gpus},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .unwrap();
        Shape::of_node(&node, at(seconds)).unwrap()
    }

    fn figures(observed_shapes: &ObservedShapes, now: i64) -> Option<(String, String)> {
        let shape = observed_shapes.shapes(at(now)).next()?;
        Some((shape.allocatable["cpu"].0.clone(), shape.allocatable["nvidia.com/gpu"].0.clone()))
    }

    fn is(observed_shapes: &ObservedShapes, now: i64, cpu: &str, gpus: &str) {
        assert_eq!(figures(observed_shapes, now), Some((cpu.to_owned(), gpus.to_owned())));
    }

    #[test]
    fn one_node_with_a_broken_device_does_not_count_for_its_type() {
        let mut all = ObservedShapes::default();
        for shape in [node("n1", "190", "8", 1), node("n2", "190", "7", 2), node("n3", "190", "8", 3)] {
            all.note(shape, at(0));
        }
        is(&all, 4, "190", "8");
        all.note(node("n1", "190", "6", 5), at(0));
        // Another node has all devices.
        is(&all, 6, "190", "8");
    }

    #[test]
    fn the_least_that_nodes_show_counts_until_an_hour_after_they_are_gone() {
        let mut all = ObservedShapes::default();
        all.note(node("n1", "190", "8", 1), at(0));
        all.note(node("n2", "188", "8", 2), at(0));
        is(&all, 3, "188", "8");
        all.forget_node("n2", at(10));
        all.forget_node("n2", at(3_000));
        is(&all, 3_000, "188", "8");
        is(&all, 3_610, "190", "8");
        all.forget_node("n1", at(4_000));
        is(&all, 7_000, "190", "8");
        assert_eq!(figures(&all, 7_600), None);
    }

    #[test]
    fn a_node_that_shows_more_than_before_counts_with_that() {
        let mut all = ObservedShapes::default();
        all.note(node("n1", "100", "8", 1), at(0));
        all.note(node("n1", "190", "8", 2), at(0));
        is(&all, 3, "190", "8");
    }

    fn expected() -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": {(names::INSTANCE_TYPE): "p5"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            "status": {"allocatable": {"cpu": "190", "nvidia.com/gpu": "8"}},
        }))
        .unwrap()
    }

    #[test]
    fn fewer_devices_than_expected_count_if_two_nodes_show_them() {
        let mut all = ObservedShapes::default();
        all.note(Shape::of_claim(&expected()).unwrap(), at(0));
        all.note(node("n1", "190", "8", 2), at(0));
        all.note(node("n1", "190", "7", 3), at(0));
        is(&all, 4, "190", "8");
        all.forget_node("n1", at(5));
        is(&all, 6, "190", "8");
        all.note(node("n2", "190", "7", 7), at(0));
        is(&all, 8, "190", "7");
    }

    #[test]
    fn device_sharing_of_one_pool_does_not_affect_another() {
        let of = |pool: &str, name: &str, gpus: &str| Shape {
            node_pool: pool.into(),
            ..node(name, "190", gpus, 1)
        };
        let mut all = ObservedShapes::default();
        all.note(of("plain", "n1", "8"), at(0));
        all.note(of("sliced", "n2", "32"), at(0));
        let shapes: Vec<(String, String)> =
            all.shapes(at(2)).map(|s| (s.node_pool, s.allocatable["nvidia.com/gpu"].0.clone())).collect();
        assert_eq!(shapes, [("plain".into(), "8".into()), ("sliced".into(), "32".into())]);
    }

    /// A claim created at this second, with these expected amounts.
    fn claim(name: &str, created: i64, cpu: &str, memory: &str) -> Shape {
        let mut claim = expected();
        claim.metadata.name = Some(name.to_owned());
        claim.metadata.creation_timestamp = Some(Time(at(created)));
        let status = claim.status.as_mut().unwrap();
        for (key, amount) in [("cpu", cpu), ("memory", memory)] {
            status.allocatable.insert(key.to_owned(), Quantity(amount.to_owned()));
        }
        Shape::of_claim(&claim).unwrap()
    }

    #[test]
    fn the_estimate_bounds_what_nodes_show() {
        let mut all = ObservedShapes::default();
        all.note(claim("c", 1, "6", "1000"), at(1));
        let shape = all.shapes(at(1)).next().unwrap();
        assert_eq!(shape.allocatable["memory"].0, "950", "with a margin");
        all.note(node("n1", "190", "8", 2), at(2));
        all.note(node("n2", "190", "8", 2), at(2));
        is(&all, 2, "6", "8");
        all.note(node("n1", "5", "8", 3), at(3));
        is(&all, 3, "5", "8");
        all.note(claim("older", 0, "4", "1000"), at(4));
        is(&all, 4, "5", "8");
        all.note(claim("younger", 5, "4", "1000"), at(5));
        is(&all, 5, "4", "8");
        // Two claims of the same second do not alternate.
        assert!(!all.note(claim("same-second", 5, "3", "1000"), at(5)));
        assert!(!all.note(claim("younger", 5, "4", "1000"), at(6)));
        is(&all, 6, "4", "8");
    }

    #[test]
    fn an_estimate_counts_for_an_hour_after_the_last_claim() {
        let mut all = ObservedShapes::default();
        assert!(all.note(claim("a", 1, "6", "1000"), at(1)));
        all.note(claim("b", 2, "6", "1000"), at(2));
        all.forget_claim("b", at(10));
        is(&all, 9_000, "6", "8");
        all.forget_claim("a", at(9_000));
        is(&all, 12_599, "6", "8");
        assert_eq!(figures(&all, 12_600), None);
        assert!(all.note(claim("c", 3, "6", "1000"), at(12_600)), "it was forgotten");
    }

    #[test]
    fn a_device_that_appears_late_counts_for_the_type() {
        let without = |name: &str| {
            let mut shape = node(name, "190", "8", 1);
            shape.allocatable.remove("nvidia.com/gpu");
            shape
        };
        let mut all = ObservedShapes::default();
        all.note(claim("c", 1, "190", "1000"), at(1));
        all.note(without("n1"), at(2));
        is(&all, 2, "190", "8");
        assert!(!all.note(node("n1", "190", "8", 3), at(3)), "no more than expected");
        let mut all = ObservedShapes::default();
        assert!(all.note(without("n1"), at(1)));
        assert!(all.note(node("n1", "190", "8", 2), at(2)));
        assert!(!all.note(node("n1", "190", "8", 3), at(3)));
    }
}
