//! Of which instance types the nodes of a slot may be, and what the largest of them has.

use super::Site;
use super::bounds::Measure;
use crate::api::amount::Price;
use crate::api::parameters::Gate;
use crate::api::pod::ResourceList;
use crate::names;
use crate::plan::cost::{Prices, times};
use crate::plan::packing::Kind;
use crate::plan::shapes::{Shape, devices_per_node};
use crate::plan::{Cluster, Most, Request, Slot, resources};
use crate::policy::file::QueueGuards;
use crate::words::{counted, few};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The lowest bound in money on what a gang may take an hour, if there is any.
pub(super) fn most_money(cluster: &Cluster<'_>, request: &Request<'_>) -> Option<Price> {
    let of_queue = cluster.guards.and_then(|guards| guards.per_local_queue.max_hourly_cost);
    request.policy.budget.max_hourly_cost.into_iter().chain(of_queue).min()
}

impl Site<'_> {
    /// The lowest price by which types are compared.
    pub(super) fn price(&self, instance_type: &str) -> Option<Price> {
        let requirements = &self.family.draft.requirements;
        self.prices().cheapest(instance_type, requirements, self.family.draft.node_class_group())
    }

    /// The highest price that a node of this type may have; none where it may be bought as something that has no price.
    pub(super) fn dearest(&self, instance_type: &str) -> Option<Price> {
        let draft = self.family.draft;
        self.prices().dearest_of(instance_type, &draft.requirements, draft.node_class_group())
    }

    /// These kinds of nodes, one for each known shape, without room on those that no node can be of now: one alone would be
    /// over the limits, or Karpenter holds the type for out of capacity.
    pub(super) fn usable(&self, kinds: &[Kind]) -> Vec<Kind> {
        self.with_room(kinds, |_, shape| {
            self.why_not(shape, 1, &ResourceList::new()).is_none() && !self.is_out(shape)
        })
    }

    /// The same without room on those of which one alone would be over the bounds in money; `None` where there are none.
    pub(super) fn affordable(&self, kinds: &[Kind]) -> Option<Vec<Kind>> {
        most_money(self.cluster, self.request)?;
        Some(self.with_room(kinds, |_, shape| self.too_dear(&shape.instance_type, 1).is_none()))
    }

    /// The same without room on those that are not smaller than the nodes which are to be shared.
    pub(super) fn small(&self, kinds: &[Kind]) -> Vec<Kind> {
        let counts = |shape: &Shape, of: &Measure| match of {
            Measure::Price => self.dearest(&shape.instance_type).map_or(i128::MAX, |p| i128::from(p.micros)),
            Measure::Resource(key) => resources::amount(&shape.counts_with(), key).nanos(),
        };
        let ceilings = &self.family.ceilings;
        self.with_room(kinds, |_, shape| ceilings.iter().all(|most| counts(shape, &most.of) < most.below))
    }

    /// The same without room on those that are not to have any.
    pub(super) fn with_room(&self, kinds: &[Kind], has_room: impl Fn(&Kind, &Shape) -> bool) -> Vec<Kind> {
        let with_room = |(kind, shape): (&Kind, &Arc<Shape>)| {
            let room = if has_room(kind, shape) { kind.room.clone() } else { ResourceList::new() };
            Kind { room, ..*kind }
        };
        kinds.iter().zip(&self.family.known.shapes).map(with_room).collect()
    }

    /// These types without those that are out of capacity, or all where all are.
    pub(super) fn to_be_had<'s>(&self, types: Vec<&'s Arc<Shape>>) -> Vec<&'s Arc<Shape>> {
        let left: Vec<_> = types.iter().copied().filter(|shape| !self.is_out(shape)).collect();
        if left.is_empty() { types } else { left }
    }

    /// The types that Karpenter holds for out of capacity wherever the nodes may be.
    pub(super) fn out(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.family.known.shapes.iter().filter(|shape| self.has(shape) == Some(false))
    }

    /// The types that Karpenter's metrics do not have where the nodes may be, though they have others.
    pub(super) fn absent(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.family.known.shapes.iter().filter(|shape| self.is_absent(shape))
    }

    fn is_absent(&self, shape: &Shape) -> bool {
        self.has(shape).is_none() && self.is_out(shape)
    }

    /// That nodes are asked for that none of these types will be launched as, where that is so.
    pub(super) fn not_sold(&self, types: &[String]) -> Option<String> {
        let is_absent = |name: &String| self.shape(name).is_some_and(|shape| self.is_absent(shape));
        (!types.is_empty() && types.iter().all(is_absent)).then(|| {
            format!(
                "Karpenter's metrics do not have {} where the nodes may be, and no other type holds the pods: it may launch nothing",
                few(types.iter().map(String::as_str))
            )
        })
    }

    /// Whether Karpenter holds a type for out of capacity wherever the nodes may be, or has others for them and not this one: it
    /// is not sold there.
    fn is_out(&self, shape: &Shape) -> bool {
        match self.has(shape) {
            Some(has) => !has,
            None => *self
                .tells_offers
                .get_or_init(|| self.family.known.shapes.iter().any(|other| self.has(other).is_some())),
        }
    }

    /// Whether Karpenter has capacity of a type wherever the nodes may be, as far as its metrics tell.
    fn has(&self, shape: &Shape) -> Option<bool> {
        let requirements = &self.family.draft.requirements;
        let allows = |key: &str, value: &str| requirements.get(key).is_none_or(|values| values.allows(value));
        self.cluster.market?.has(&shape.instance_type, |zone, kind| {
            allows(names::ZONE, zone) && allows(names::CAPACITY_TYPE, kind)
        })
    }

    /// What is known of a type.
    pub(super) fn shape(&self, instance_type: &str) -> Option<&Arc<Shape>> {
        self.family.known.shapes.iter().find(|shape| shape.instance_type == instance_type)
    }

    /// Whether a node of this type holds what it is to have, as far as is known.
    pub(super) fn holds(&self, instance_type: &str, requests: &ResourceList) -> bool {
        self.shape(instance_type)
            .is_none_or(|shape| resources::first_short(requests, &shape.room(&ResourceList::new())).is_none())
    }

    /// Types that can supply `count` nodes, of these or else of those that are listed. As given where none
    /// that holds the pods would be left, or all are.
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
            let of_size = self.shape(name).and_then(|shape| self.why_not(shape, count, requests));
            of_size.or_else(|| self.too_dear(name, count))
        };
        let (left, out): (Vec<&String>, Vec<&String>) = all.into_iter().partition(|t| why_not(t).is_none());
        if out.is_empty() || !left.iter().any(|name| self.holds(name, requests)) {
            return types.to_vec();
        }
        let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in out {
            reasons.entry(why_not(name).unwrap_or_default()).or_default().push(name);
        }
        notes.extend(reasons.into_iter().map(|(why, types)| left_out(&types, &why)));
        left.into_iter().cloned().collect()
    }

    /// That nodes are of none of the types that would hold their pods and are out of capacity, the cheapest first, and who says so;
    /// nothing where there are no such types.
    pub(super) fn without_those_out(&self, slots: &[Slot]) -> Option<String> {
        let alike = || slots.chunk_by(|a, b| Arc::ptr_eq(&a.template, &b.template)).filter_map(<[_]>::first);
        let is_left_out = |shape: &&Arc<Shape>| {
            let name = &shape.instance_type;
            alike().any(|slot| {
                let mut listed = slot.instance_types().peekable();
                listed.peek().is_some()
                    && listed.all(|of| of != name)
                    && self.holds(name, &slot.template.spec.resources.requests)
            })
        };
        let mut out: Vec<&str> = self.out().filter(is_left_out).map(|s| s.instance_type.as_str()).collect();
        out.sort_by_cached_key(|name| (self.price(name).map_or(u64::MAX, |price| price.micros), *name));
        let why = "out of capacity by Karpenter's metrics wherever the nodes may be";
        (!out.is_empty()).then(|| left_out(&out, why))
    }

    fn prices(&self) -> Prices<'_> {
        self.cluster.prices(self.request.policy)
    }

    /// Bounds on what the gangs of its LocalQueue hold.
    fn of_queue(&self) -> Option<&QueueGuards> {
        self.cluster.guards.map(|guards| &guards.per_local_queue)
    }

    /// Why so many nodes that are to have this cannot be of a type: it would be waited for in vain, or fail again.
    fn why_not(&self, shape: &Shape, nodes: u32, requests: &ResourceList) -> Option<String> {
        let policy = self.request.policy;
        if shape.is_shown() && resources::first_short(requests, &shape.room(&ResourceList::new())).is_some() {
            return Some("its nodes have shown that they do not hold the pods".to_owned());
        }
        // Not what is left of the limits: that changes while the claims are created.
        let limits = self.family.draft.limits().filter(|_| policy.capacity_gate == Gate::Enforce);
        let all = resources::times(&shape.counts_with(), nodes);
        let of_queue = self.of_queue().and_then(|queue| queue.max_resources.as_ref());
        let mut bounds = limits.into_iter().chain(policy.budget.max_resources.as_ref()).chain(of_queue);
        let over = bounds.any(|bounds| {
            bounds.keys().any(|key| resources::amount(&all, key) > resources::amount(bounds, key))
        });
        over.then(|| {
            let are = if nodes == 1 { "is" } else { "are" };
            format!("{} of such a type {are} over the limits", counted(nodes, "node"))
        })
    }

    /// Why so many nodes of a type are not within the bounds in money, if there are any.
    fn too_dear(&self, instance_type: &str, nodes: u32) -> Option<String> {
        let most = most_money(self.cluster, self.request)?;
        let Some(price) = self.dearest(instance_type) else {
            return Some("no price is known, and a budget is to be kept".to_owned());
        };
        (times(price, nodes) > most).then(|| {
            format!("the budget is less than the price of {} of such a type", counted(nodes, "node"))
        })
    }

    /// The most that a node may have which is to have this: that of the largest type it may be of.
    pub(super) fn most(&self, requests: &ResourceList, types: &[String]) -> Most {
        let shapes = || self.family.known.shapes.iter();
        let may_be = |shape: &&Arc<Shape>| {
            let named = types.is_empty() || types.contains(&shape.instance_type);
            named && resources::first_short(requests, &shape.room(&ResourceList::new())).is_none()
        };
        let listed = !types.is_empty() || self.family.known.is_bounded;
        // Where any type is possible, that a large one is known does not make it likely.
        let holding = || shapes().filter(|_| listed).filter(may_be);
        let mut most =
            holding().fold(requests.clone(), |most, shape| resources::max(&most, &shape.counts_with()));
        let catalogue = self.family.known.catalogue;
        let untold = holding().flat_map(|shape| shape.untold(catalogue)).collect();
        let is_known = |name: &String| shapes().any(|shape| shape.instance_type == *name);
        let or_more = if types.is_empty() { self.family.known.others } else { !types.iter().all(is_known) };
        let mut counted = None;
        let device = requests.keys().find(|key| resources::is_device(key));
        if let (true, Some(key), Some(count)) =
            (or_more, device, devices_per_node(&self.family.draft.requirements).last())
        {
            let count = ResourceList::from([(key.clone(), Quantity(count.to_string()))]);
            most = resources::max(&most, &count);
            counted = Some(key.clone());
        }
        Most { resources: most, or_more, counted, untold }
    }
}

/// That nodes are of none of these types, and why.
fn left_out(types: &[&str], why: &str) -> String {
    match types {
        [only] => format!("type {only} is left out: {why}"),
        several => format!("types {} are left out: {why}", few(several.iter().copied())),
    }
}
