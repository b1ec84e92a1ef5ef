//! The types that a claim leaves the provider to choose from: the cheapest, with as many distinct values of a label as `minValues`
//! asks for.
//!
//! Karpenter launches nothing for a claim whose types have fewer values of a label than that. So the claim lists types with enough
//! values, and pods are packed only into kinds of nodes whose content enough types can hold.

use super::GroupPlanner;
use crate::api::pod::ResourceList;
use crate::names;
use crate::plan::demand::PodSetDemand;
use crate::plan::offering::SHORTAGE_TTL;
use crate::plan::packing::NodeKind;
use crate::plan::resources::{amount, first_insufficient};
use crate::plan::shape::Shape;
use crate::plan::{Obstacle, ObstacleReason, resources};
use crate::words::few;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most types that a claim lists; Karpenter asks the provider for the same number.
pub(super) const MOST_TYPES: usize = 60;

impl GroupPlanner<'_> {
    /// The cheapest of these types for nodes with these requests: at most as many as a claim may list, with the requested number
    /// of distinct values of each label. `types` is empty if the claim lists the types of its requirements, or none.
    ///
    /// # Errors
    /// If the types have too few values of a label.
    pub(super) fn cheapest(
        &self,
        mut types: Vec<String>,
        requests: &ResourceList,
        notes: &mut Vec<String>,
    ) -> Result<Vec<String>, Obstacle> {
        let price = |name: &String| self.price(name).map_or(u64::MAX, |price| price.micros);
        types.sort_by_cached_key(price);
        let listed = self.group.draft.requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed());
        let possible: Vec<&String> =
            if types.is_empty() { listed.into_iter().flatten().collect() } else { types.iter().collect() };
        let mut chosen: BTreeSet<&String> = BTreeSet::new();
        for (key, least) in self.asked() {
            if !self.is_of_types(key) {
                notes.extend(self.too_few_places(key, least));
            } else if !possible.is_empty() {
                let mut first: BTreeMap<&str, &String> = BTreeMap::new();
                for &name in &possible {
                    if let Some(value) = self.value(name, key).filter(|_| first.len() < least) {
                        first.entry(value).or_insert(name);
                    }
                }
                // The values of types that the catalogue lacks are unknown.
                let others = possible.iter().filter(|name| !self.knows_label_of(name, key)).count();
                if first.len().saturating_add(others) < least {
                    return Err(self.too_few(key, least, &first, requests));
                }
                chosen.extend(first.into_values());
            }
        }
        for name in &types {
            if chosen.len() < MOST_TYPES {
                chosen.insert(name);
            }
        }
        let chosen: BTreeSet<String> = chosen.into_iter().cloned().collect();
        types.retain(|name| chosen.contains(name));
        Ok(types)
    }

    /// These kinds. A kind gets no room if it is so large that too few types can hold its content.
    pub(super) fn with_choice(&self, kinds: &[NodeKind]) -> Vec<NodeKind> {
        if !self.asks_choice() {
            return kinds.to_vec();
        }
        // The largest first, because they hold what most others hold.
        let mut others: Vec<(&NodeKind, &str)> = kinds
            .iter()
            .zip(self.group.known.shapes.iter().map(|shape| shape.instance_type.as_str()))
            .collect();
        others.sort_by_key(|(kind, _)| std::cmp::Reverse(amount(&kind.room, "cpu")));
        let has_choice = |kind: &NodeKind| {
            let content = self.most_content(&kind.room);
            let holds = |other: &NodeKind| {
                (kind.has_accelerator || !other.has_accelerator)
                    && first_insufficient(&content, &other.room).is_none()
            };
            self.asked().filter(|(key, _)| self.is_of_types(key)).all(|(key, least)| {
                let holding = others.iter().filter(|(other, _)| holds(other));
                let mut values = BTreeSet::new();
                holding.filter_map(|(_, name)| self.value(name, key)).any(|value| {
                    values.insert(value);
                    values.len() >= least
                })
            })
        };
        self.with_room(kinds, |kind, _| has_choice(kind))
    }

    /// The most of each resource that pods in this room may take together.
    fn most_content(&self, room: &ResourceList) -> ResourceList {
        let fit = |set: &PodSetDemand<'_>| {
            let asked =
                set.each.keys().map(|key| (amount(room, key).nanos(), amount(&set.each, key).nanos()));
            let most = asked.filter_map(|(room, each)| room.checked_div(each)).min().unwrap_or_default();
            u32::try_from(most).unwrap_or(u32::MAX).min(set.pods)
        };
        let alone = self.group.sets.iter().map(|set| resources::times(&set.each, fit(set)));
        let all = alone.fold(ResourceList::new(), |all, more| resources::sum(&all, &more));
        let mut most = resources::min(&all, room);
        most.retain(|key, _| all.contains_key(key));
        most
    }

    /// Whether a minimum number of values is asked for of a label that the types determine.
    pub(super) fn asks_choice(&self) -> bool {
        self.asked().any(|(key, _)| self.is_of_types(key))
    }

    /// Labels with a minimum number of distinct values.
    fn asked(&self) -> impl Iterator<Item = (&String, usize)> {
        let requirements = self.group.draft.requirements.iter();
        requirements.filter_map(|(key, values)| Some((key, values.at_least().filter(|least| *least > 0)?)))
    }

    /// Whether the instance type determines the label.
    fn is_of_types(&self, key: &str) -> bool {
        key == names::INSTANCE_TYPE || self.group.known.catalogue.is_some_and(|c| c.has_label(key))
    }

    /// The value of a label of a type.
    fn value<'n>(&self, name: &'n str, key: &str) -> Option<&'n str> {
        if key == names::INSTANCE_TYPE { Some(name) } else { self.group.known.catalogue?.label(name, key) }
    }

    /// Whether the type's value of a label is known, or known to be absent.
    fn knows_label_of(&self, name: &str, key: &str) -> bool {
        key == names::INSTANCE_TYPE || self.group.known.catalogue.is_some_and(|c| c.get(name).is_some())
    }

    /// The obstacle that too few values of a label are left. It is temporary if types that are out of capacity have the missing
    /// values.
    fn too_few(
        &self,
        key: &str,
        least: usize,
        found: &BTreeMap<&str, &String>,
        requests: &ResourceList,
    ) -> Obstacle {
        let pool = &self.group.draft.node_pool;
        let asks = format!("NodePool {pool} asks for {least} values of {key} to choose from");
        let holds = |shape: &&Arc<Shape>| self.holds(&shape.instance_type, requests);
        let out: Vec<&str> = self.out().filter(holds).map(|shape| shape.instance_type.as_str()).collect();
        let values: BTreeSet<&str> = out.iter().filter_map(|name| self.value(name, key)).collect();
        let more = values.iter().filter(|value| !found.contains_key(*value)).count();
        if found.len().saturating_add(more) >= least {
            let message = format!(
                "{asks}, and Karpenter's metrics hold {} for out of capacity; nothing is requested until they show capacity",
                few(out.into_iter())
            );
            let until = self.cluster.market.map(|market| market.seen + SHORTAGE_TTL);
            return Obstacle { until, ..Obstacle::new(ObstacleReason::CapacityShort, message) };
        }
        let absent: Vec<&str> =
            self.absent().filter(holds).map(|shape| shape.instance_type.as_str()).collect();
        let (but, remedy) = if absent.is_empty() {
            (String::new(), "request less per pod")
        } else {
            let absent = few(absent.into_iter());
            (
                format!(
                    " without {absent}, for which Karpenter's metrics list no offering in the allowed zones and capacity types"
                ),
                "allow more zones",
            )
        };
        let message = format!(
            "{asks}, and the types that hold the pods have {}{but}; lower minValues or {remedy}",
            found.len(),
        );
        Obstacle::new(ObstacleReason::RequirementsClash, message)
    }

    /// A note that the claims drop `minValues` for a label because they allow fewer values.
    fn too_few_places(&self, key: &str, least: usize) -> Option<String> {
        let listed = self.group.draft.requirements.get(key)?.listed()?;
        let pool = &self.group.draft.node_pool;
        (listed.len() < least).then(|| {
            format!(
                "minValues {least} of {key} is left out, as nodes of NodePool {pool} may have {} of them here",
                listed.len()
            )
        })
    }
}
