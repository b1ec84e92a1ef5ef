//! What was seen of the nodes of each instance type, and for how long it counts.
//!
//! By NodePool, because how the devices of its nodes are shared is set up for each. Kept by the ledger, and made
//! anew by `setu plan`. Rule: a node speaks for its type while it is there and for an hour from when the first one
//! went, so that an attempt that failed for it is not repeated as it was, and one that was ill is forgotten.

use super::shapes::Shape;
use super::source::Source;
use jiff::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How long what gone nodes have shown is remembered.
const PAST: SignedDuration = SignedDuration::from_hours(1);

/// What was seen, by instance type and NodePool.
#[derive(Debug, Default)]
pub struct Sightings(BTreeMap<(String, String), Seen>);

/// What was seen of one type in one NodePool.
#[derive(Debug, Default)]
struct Seen {
    /// Nodes that are there, by what they show: mostly all the same.
    present: Vec<(Shape, BTreeSet<String>)>,
    /// What nodes have shown that are gone.
    past: Option<Past>,
    /// What the provider expects, which counts where no node was seen.
    estimate: Option<Shape>,
}

#[derive(Debug)]
struct Past {
    shape: Shape,
    nodes: BTreeSet<String>,
    /// Until when it counts.
    until: Timestamp,
}

impl Sightings {
    /// Notes what a node shows, or what is expected of one. Returns whether nothing was known of its type in its NodePool.
    pub fn note(&mut self, shape: Shape) -> bool {
        let key = (shape.instance_type.clone(), shape.node_pool.clone());
        let is_new = !self.0.contains_key(&key);
        let seen = self.0.entry(key).or_default();
        match &shape.source {
            Source::Node { name, .. } => {
                let name = name.clone();
                seen.note_node(&name, shape);
            }
            Source::NodeClaim { .. } | Source::Policy | Source::Metrics { .. } | Source::Catalogue { .. } => {
                seen.estimate =
                    Some(seen.estimate.as_ref().map_or_else(|| shape.clone(), |e| e.with(&shape)));
            }
        }
        is_new
    }

    /// A node is gone.
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
            seen.past = until.map(|until| Past { shape, nodes, until });
        }
    }

    /// One shape for each type in each NodePool.
    pub fn shapes(&self, now: Timestamp) -> impl Iterator<Item = Shape> {
        self.0.values().filter_map(move |seen| seen.shape(now))
    }
}

impl Seen {
    fn note_node(&mut self, name: &str, shape: Shape) {
        let alike = |known: &Shape| known.allocatable == shape.allocatable && known.labels == shape.labels;
        if self.present.iter().any(|(known, nodes)| alike(known) && nodes.contains(name)) {
            return;
        }
        // What it showed before was true of it then, and is not true of any node now.
        self.take(name);
        match self.present.iter_mut().find(|(known, _)| alike(known)) {
            Some((known, nodes)) => {
                known.source = shape.source;
                nodes.insert(name.to_owned());
            }
            None => self.present.push((shape, BTreeSet::from([name.to_owned()]))),
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
        let Some(shown) = shapes.fold(None, all) else { return self.estimate.clone() };
        let names = past().map(|past| &past.nodes).chain(self.present.iter().map(|(_, nodes)| nodes));
        let nodes = u32::try_from(names.flatten().collect::<BTreeSet<_>>().len()).unwrap_or(u32::MAX);
        let capacity = self.estimate.as_ref().map(|estimate| estimate.capacity.clone()).unwrap_or_default();
        let shape = Shape { capacity, nodes, ..shown };
        match &self.estimate {
            // What one node alone lacks of its devices may be out of order.
            Some(estimate) if nodes < 2 => Some(shape.with_devices_of(estimate)),
            _ => Some(shape),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Node, NodeClaim};
    use crate::names;
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

    fn figures(sightings: &Sightings, now: i64) -> Option<(String, String)> {
        let shape = sightings.shapes(at(now)).next()?;
        Some((shape.allocatable["cpu"].0.clone(), shape.allocatable["nvidia.com/gpu"].0.clone()))
    }

    fn is(sightings: &Sightings, now: i64, cpu: &str, gpus: &str) {
        assert_eq!(figures(sightings, now), Some((cpu.to_owned(), gpus.to_owned())));
    }

    #[test]
    fn one_node_with_a_broken_device_does_not_speak_for_its_type() {
        let mut all = Sightings::default();
        for shape in [node("n1", "190", "8", 1), node("n2", "190", "7", 2), node("n3", "190", "8", 3)] {
            all.note(shape);
        }
        is(&all, 4, "190", "8");
        all.note(node("n1", "190", "6", 5));
        // Another node has them all.
        is(&all, 6, "190", "8");
    }

    #[test]
    fn the_least_of_what_nodes_show_counts_while_they_are_there_and_an_hour_longer() {
        let mut all = Sightings::default();
        all.note(node("n1", "190", "8", 1));
        all.note(node("n2", "188", "8", 2));
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
    fn a_node_that_shows_more_than_before_is_believed() {
        let mut all = Sightings::default();
        all.note(node("n1", "100", "8", 1));
        all.note(node("n1", "190", "8", 2));
        is(&all, 3, "190", "8");
    }

    fn expected() -> NodeClaim {
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": {(names::INSTANCE_TYPE): "p5"}},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            "status": {"allocatable": {"cpu": "6", "nvidia.com/gpu": "8"}},
        }))
        .unwrap()
    }

    #[test]
    fn that_a_type_has_fewer_devices_than_expected_is_believed_of_two_nodes() {
        let mut all = Sightings::default();
        all.note(Shape::of_claim(&expected(), at(1)).unwrap());
        all.note(node("n1", "190", "8", 2));
        all.note(node("n1", "190", "7", 3));
        is(&all, 4, "190", "8");
        all.forget_node("n1", at(5));
        is(&all, 6, "190", "8");
        all.note(node("n2", "190", "7", 7));
        is(&all, 8, "190", "7");
    }

    #[test]
    fn nodes_of_one_pool_say_nothing_of_how_those_of_another_share_their_devices() {
        let of = |pool: &str, name: &str, gpus: &str| Shape {
            node_pool: pool.into(),
            ..node(name, "190", gpus, 1)
        };
        let mut all = Sightings::default();
        all.note(of("plain", "n1", "8"));
        all.note(of("sliced", "n2", "32"));
        let shapes: Vec<(String, String)> =
            all.shapes(at(2)).map(|s| (s.node_pool, s.allocatable["nvidia.com/gpu"].0.clone())).collect();
        assert_eq!(shapes, [("plain".into(), "8".into()), ("sliced".into(), "32".into())]);
    }

    #[test]
    fn an_estimate_counts_only_where_no_node_was_seen() {
        let claim = expected();
        let mut all = Sightings::default();
        all.note(Shape::of_claim(&claim, at(1)).unwrap());
        is(&all, 2, "6", "8");
        all.note(node("n1", "190", "8", 2));
        all.note(Shape::of_claim(&claim, at(3)).unwrap());
        is(&all, 4, "190", "8");
    }
}
