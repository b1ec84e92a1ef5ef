//! Of which instance types the nodes of a slot may be, and what the largest of them has.

use super::Site;
use crate::api::parameters::Gate;
use crate::api::pod::ResourceList;
use crate::names;
use crate::plan::shapes::{Shape, devices_per_node};
use crate::plan::{Most, resources};
use crate::words::counted;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

impl Site<'_> {
    /// Of these types, or else of those that are listed, the ones that so many nodes may be of. As given where none
    /// would be left, or all are.
    pub(super) fn possible(
        &self,
        types: &[String],
        count: u32,
        requests: &ResourceList,
        notes: &mut Vec<String>,
    ) -> Vec<String> {
        let listed = self.family.draft.requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed());
        let all: Vec<&String> =
            if types.is_empty() { listed.into_iter().flatten().collect() } else { types.iter().collect() };
        let why_not = |name: &String| {
            let shape = self.known.shapes.iter().find(|shape| shape.instance_type == *name)?;
            self.why_not(shape, count, requests).map(|why| format!("type {name} is left out: {why}"))
        };
        let (left, out): (Vec<&String>, Vec<&String>) = all.into_iter().partition(|t| why_not(t).is_none());
        if left.is_empty() || out.is_empty() {
            return types.to_vec();
        }
        notes.extend(out.into_iter().filter_map(why_not));
        left.into_iter().cloned().collect()
    }

    /// Why so many nodes that are to have this cannot be of a type: it would be waited for in vain, or fail again.
    fn why_not(&self, shape: &Shape, nodes: u32, requests: &ResourceList) -> Option<String> {
        let policy = self.request.policy;
        if shape.is_shown() && resources::first_short(requests, &shape.room(&ResourceList::new())).is_some() {
            return Some("its nodes have shown that they do not hold the pods".to_owned());
        }
        // Not what is left of the limits: that changes while the claims are created.
        let limits = self.family.draft.limits().filter(|_| policy.capacity_gate == Gate::Enforce);
        let all = resources::times(&shape.allocatable, nodes);
        let mut bounds = limits.into_iter().chain(policy.budget.max_resources.as_ref());
        let over = bounds.any(|bounds| {
            bounds.keys().any(|key| resources::amount(&all, key) > resources::amount(bounds, key))
        });
        over.then(|| format!("{} of it are over the limits", counted(nodes, "node")))
    }

    /// The most that a node may have which is to have this: that of the largest type it may be of.
    pub(super) fn most(&self, requests: &ResourceList, types: &[String]) -> Most {
        let shapes = || self.known.shapes.iter();
        let may_be = |shape: &&Shape| {
            let named = types.is_empty() || types.contains(&shape.instance_type);
            named && resources::first_short(requests, &shape.room(&ResourceList::new())).is_none()
        };
        let listed = !types.is_empty() || self.known.lists_types;
        // Where any type is possible, that a large one is known does not make it likely.
        let holding = shapes().filter(|_| listed).filter(may_be);
        let mut most =
            holding.fold(requests.clone(), |most, shape| resources::max(&most, &shape.allocatable));
        let is_known = |name: &String| shapes().any(|shape| shape.instance_type == *name);
        let or_more = if types.is_empty() { self.known.others } else { !types.iter().all(is_known) };
        let device = requests.keys().find(|key| resources::is_device(key));
        if let (true, Some(key), Some(count)) =
            (or_more, device, devices_per_node(&self.family.draft.requirements).last())
        {
            let count = ResourceList::from([(key.clone(), Quantity(count.to_string()))]);
            most = resources::max(&most, &count);
        }
        Most { resources: most, or_more }
    }
}
