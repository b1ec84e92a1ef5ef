//! Which instance types the nodes of a slot may be of, and what the largest of them has.

use super::GroupPlanner;
use super::bounds::{Measure, most_money};
use super::choice::MOST_TYPES;
use crate::api::amount::Price;
use crate::api::parameters::GateMode;
use crate::api::pod::ResourceList;
use crate::api::requirements::Values;
use crate::names;
use crate::plan::catalogue::{self, Catalogue};
use crate::plan::cost::{Prices, times};
use crate::plan::packing::NodeKind;
use crate::plan::shape::Shape;
use crate::plan::shapes::devices_per_node;
use crate::plan::{NodeMaximum, Slot, devices, resources};
use crate::policy::file::QueueGuards;
use crate::words::{counted, few};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why a type whose nodes were too small is left out.
const TOO_SMALL: &str = "nodes have shown that they do not hold the pods";

impl GroupPlanner<'_> {
    /// The lowest price, by which types are compared.
    pub(super) fn price(&self, instance_type: &str) -> Option<Price> {
        let requirements = &self.group.draft.requirements;
        self.prices().cheapest(instance_type, requirements, self.group.draft.node_class_group())
    }

    /// The highest price that a node of this type may have. `None` if it may be bought as an offering without a price.
    pub(super) fn highest_price(&self, instance_type: &str) -> Option<Price> {
        let draft = self.group.draft;
        self.prices().dearest_of(instance_type, &draft.requirements, draft.node_class_group())
    }

    /// These kinds, one for each known shape. A kind gets no room if no node can be of it now: one node alone exceeds the limits,
    /// or the type is out of capacity or not sold there.
    pub(super) fn usable(&self, kinds: &[NodeKind]) -> Vec<NodeKind> {
        self.with_room(kinds, |_, shape| {
            self.why_not(shape, 1, &ResourceList::new()).is_none() && !self.is_out(shape)
        })
    }

    /// As [`Self::usable`], but a kind gets no room if one node alone exceeds the cost bound. `None` without a bound.
    pub(super) fn affordable(&self, kinds: &[NodeKind]) -> Option<Vec<NodeKind>> {
        most_money(self.cluster, self.request)?;
        Some(self.with_room(kinds, |_, shape| self.too_expensive(&shape.instance_type, 1).is_none()))
    }

    /// As [`Self::usable`], but a kind gets no room if it is not below the pod set group's ceilings.
    pub(super) fn small(&self, kinds: &[NodeKind]) -> Vec<NodeKind> {
        let counts = |shape: &Shape, of: &Measure| match of {
            Measure::Price => {
                self.highest_price(&shape.instance_type).map_or(i128::MAX, |p| i128::from(p.micros))
            }
            Measure::Resource(key) => resources::amount(&shape.counts_with(), key).nanos(),
        };
        let ceilings = &self.group.ceilings;
        self.with_room(kinds, |_, shape| ceilings.iter().all(|most| counts(shape, &most.of) < most.below))
    }

    /// These kinds; a kind gets no room if `has_room` rejects it.
    pub(super) fn with_room(
        &self,
        kinds: &[NodeKind],
        has_room: impl Fn(&NodeKind, &Shape) -> bool,
    ) -> Vec<NodeKind> {
        let with_room = |(kind, shape): (&NodeKind, &Arc<Shape>)| {
            let room = if has_room(kind, shape) { kind.room.clone() } else { ResourceList::new() };
            NodeKind { room, ..*kind }
        };
        kinds.iter().zip(&self.group.known.shapes).map(with_room).collect()
    }

    /// These types without those out of capacity, or all of them if all are out.
    pub(super) fn to_be_had<'s>(&self, types: Vec<&'s Arc<Shape>>) -> Vec<&'s Arc<Shape>> {
        let left: Vec<_> = types.iter().copied().filter(|shape| !self.is_out(shape)).collect();
        if left.is_empty() { types } else { left }
    }

    /// The types that Karpenter marks as out of capacity everywhere the nodes may be.
    pub(super) fn out(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.group.known.shapes.iter().filter(|shape| self.has(shape) == Some(false))
    }

    /// The types that Karpenter's metrics lack where the nodes may be, though they list others.
    pub(super) fn absent(&self) -> impl Iterator<Item = &Arc<Shape>> {
        self.group.known.shapes.iter().filter(|shape| self.is_absent(shape))
    }

    fn is_absent(&self, shape: &Shape) -> bool {
        self.has(shape).is_none() && self.has_offers()
    }

    /// A note that none of these types can launch where the nodes may be, if that is the case.
    pub(super) fn not_sold(&self, types: &[String]) -> Option<String> {
        let is_absent = |name: &String| self.shape(name).is_some_and(|shape| self.is_absent(shape));
        (!types.is_empty() && types.iter().all(is_absent)).then(|| {
            format!(
                "Karpenter's metrics list no offering of {} in the allowed zones and capacity types, and no other type holds \
                 the pods; the launch may fail",
                few(types.iter().map(String::as_str))
            )
        })
    }

    /// Whether no node can be of a type now: Karpenter marks it as out of capacity everywhere the nodes may be, or it is not sold
    /// there.
    fn is_out(&self, shape: &Shape) -> bool {
        match self.has(shape) {
            Some(has) => !has,
            None => self.has_offers() || self.is_unsold(shape),
        }
    }

    /// Whether Karpenter's metrics list any offering that the nodes may be of.
    fn has_offers(&self) -> bool {
        let is_listed = || self.group.known.shapes.iter().any(|shape| self.has(shape).is_some());
        *self.has_offers.get_or_init(is_listed)
    }

    /// Whether the catalogue knows the region of the nodes, and has no price of the type there. Karpenter's metrics, where they
    /// list offerings, know better.
    fn is_unsold(&self, shape: &Shape) -> bool {
        let draft = self.group.draft;
        let is_unsold =
            || self.prices().is_unsold(&shape.instance_type, &draft.requirements, draft.node_class_group());
        !self.has_offers() && is_unsold()
    }

    /// Whether Karpenter has capacity of a type anywhere the nodes may be. `None` if its metrics do not say.
    fn has(&self, shape: &Shape) -> Option<bool> {
        let requirements = &self.group.draft.requirements;
        let allows = |key: &str, value: &str| requirements.get(key).is_none_or(|values| values.allows(value));
        self.cluster.market?.has(&shape.instance_type, |zone, kind| {
            allows(names::ZONE, zone) && allows(names::CAPACITY_TYPE, kind)
        })
    }

    /// The shape of a type, if it is known.
    pub(super) fn shape(&self, instance_type: &str) -> Option<&Arc<Shape>> {
        self.group.known.shapes.iter().find(|shape| shape.instance_type == instance_type)
    }

    /// Whether a node of this type holds the requests. True for unknown types.
    pub(super) fn holds(&self, instance_type: &str, requests: &ResourceList) -> bool {
        self.shape(instance_type).is_none_or(|shape| {
            resources::first_insufficient(requests, &shape.room(&ResourceList::new())).is_none()
        })
    }

    /// The types that can supply `count` nodes, out of these or else the listed ones. Returned unchanged if all can, or if none
    /// that holds the pods would be left.
    pub(super) fn possible(
        &self,
        types: &[String],
        count: u32,
        requests: &ResourceList,
        notes: &mut Vec<String>,
    ) -> Vec<String> {
        let listed = self.group.draft.requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed());
        let all: Vec<&String> =
            if types.is_empty() { listed.into_iter().flatten().collect() } else { types.iter().collect() };
        let why_not = |name: &String| {
            let of_size = self.shape(name).and_then(|shape| self.why_not(shape, count, requests));
            of_size.or_else(|| self.too_expensive(name, count))
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

    /// What a claim with these requests asks of its type: one of these, if there are any. Where the type is open, any but those whose
    /// nodes have shown that they do not hold the pods: the provider would pick the same again. `None` for any type.
    pub(super) fn asked_types(
        &self,
        types: &[String],
        requests: &ResourceList,
        notes: &mut Vec<String>,
    ) -> Option<Values> {
        if !types.is_empty() {
            return Some(Values::of(types));
        }
        let listed = self.group.draft.requirements.get(names::INSTANCE_TYPE).and_then(Values::listed);
        let shapes = self.group.known.shapes.iter().filter(|_| listed.is_none());
        let out = shapes.filter(|shape| is_shown_too_small(shape, requests));
        let mut out: Vec<&str> = out.map(|shape| shape.instance_type.as_str()).collect();
        if out.is_empty() {
            return None;
        }
        out.sort_unstable();
        out.truncate(MOST_TYPES);
        let whose = if out.len() == 1 { "its" } else { "their" };
        notes.push(left_out(&out, &format!("{whose} {TOO_SMALL}")));
        let out: Vec<String> = out.into_iter().map(str::to_owned).collect();
        Values::read("NotIn", &out, None)
    }

    /// Facts that name the types that would hold the pods but are out of capacity or not sold, the cheapest first.
    pub(super) fn without_those_out(&self, slots: &[Slot]) -> impl Iterator<Item = String> {
        let out = self.unlisted(slots, |shape| self.has(shape) == Some(false));
        let unsold = self.unlisted(slots, |shape| self.is_unsold(shape));
        let by = catalogue::of(self.group.draft.node_class_group()).map(Catalogue::source);
        let by = by.map(|source| source.to_string()).unwrap_or_default();
        let out = out.map(|types| {
            left_out(&types, "out of capacity by Karpenter's metrics wherever the nodes may be")
        });
        let unsold = unsold.map(|types| left_out(&types, &format!("not sold in the region by {by}")));
        out.into_iter().chain(unsold)
    }

    /// The types without capacity that would hold the pods and that the slots do not list. `None` if there are none.
    fn unlisted(&self, slots: &[Slot], is_out: impl Fn(&Shape) -> bool) -> Option<Vec<&str>> {
        let alike = || slots.chunk_by(|a, b| Arc::ptr_eq(&a.template, &b.template)).filter_map(<[_]>::first);
        let is_left_out = |shape: &&Arc<Shape>| {
            let name = &shape.instance_type;
            alike().any(|slot| {
                let mut listed = slot.instance_types().peekable();
                listed.peek().is_some()
                    && listed.all(|of| of != name)
                    && self.holds(name, &slot.template.needs())
            })
        };
        let shapes = self.group.known.shapes.iter().filter(|shape| is_out(shape)).filter(is_left_out);
        let mut types: Vec<&str> = shapes.map(|shape| shape.instance_type.as_str()).collect();
        types.sort_by_cached_key(|name| (self.price(name).map_or(u64::MAX, |price| price.micros), *name));
        (!types.is_empty()).then_some(types)
    }

    fn prices(&self) -> Prices<'_> {
        self.cluster.prices(self.request.policy)
    }

    /// Bounds on what the gangs of the LocalQueue hold.
    fn of_queue(&self) -> Option<&QueueGuards> {
        self.cluster.guards.map(|guards| &guards.per_local_queue)
    }

    /// Why `nodes` nodes with these requests cannot be of a type: they would never come, or fail again.
    fn why_not(&self, shape: &Shape, nodes: u32, requests: &ResourceList) -> Option<String> {
        let policy = self.request.policy;
        if is_shown_too_small(shape, requests) {
            return Some(format!("its {TOO_SMALL}"));
        }
        // Not what is left of the limits, because that changes while the claims are created.
        let limits = self.group.draft.limits().filter(|_| policy.capacity_gate == GateMode::Enforce);
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

    /// Why `nodes` nodes of a type exceed the cost bound, if there is one and they do.
    fn too_expensive(&self, instance_type: &str, nodes: u32) -> Option<String> {
        let most = most_money(self.cluster, self.request)?;
        let Some(price) = self.highest_price(instance_type) else {
            return Some("no price is known, and a budget is to be kept".to_owned());
        };
        (times(price, nodes) > most).then(|| {
            format!("the budget is less than the price of {} of such a type", counted(nodes, "node"))
        })
    }

    /// The most that a node with these requests may have: that of its largest possible type.
    pub(super) fn most(&self, requests: &ResourceList, types: &[String]) -> NodeMaximum {
        let shapes = || self.group.known.shapes.iter();
        let may_be = |shape: &&Arc<Shape>| {
            let named = types.is_empty() || types.contains(&shape.instance_type);
            named && resources::first_insufficient(requests, &shape.room(&ResourceList::new())).is_none()
        };
        let listed = !types.is_empty() || self.group.known.is_bounded;
        // If any type is possible, a large type is not likely just because it is known.
        let holding = || shapes().filter(|_| listed).filter(may_be);
        let stated = devices::counts(&self.devices());
        let mut most = holding().fold(resources::max(requests, &stated), |most, shape| {
            resources::max(&most, &shape.counts_with())
        });
        let listed_devices = self.group.known.catalogue.map(Catalogue::resources);
        let unknown = holding().flat_map(|shape| shape.unknown_amounts(listed_devices)).collect();
        let is_known = |name: &String| shapes().any(|shape| shape.instance_type == *name);
        let or_more = if types.is_empty() { self.group.known.others } else { !types.iter().all(is_known) };
        let mut counted = BTreeSet::new();
        let device = requests.keys().find(|key| resources::is_device(key));
        if let (true, Some(key), Some(count)) =
            (or_more, device, devices_per_node(&self.group.draft.requirements).last())
        {
            let count = ResourceList::from([(key.clone(), Quantity(count.to_string()))]);
            most = resources::max(&most, &count);
            counted.insert(key.clone());
        }
        if or_more {
            counted.extend(stated.into_keys());
        }
        NodeMaximum { resources: most, or_more, counted, unknown }
    }
}

/// Whether nodes of a type have shown that they have no room for these requests.
fn is_shown_too_small(shape: &Shape, requests: &ResourceList) -> bool {
    shape.is_shown() && resources::first_insufficient(requests, &shape.room(&ResourceList::new())).is_some()
}

/// The note that types are left out, and why.
fn left_out(types: &[&str], why: &str) -> String {
    match types {
        [only] => format!("type {only} is left out: {why}"),
        several => format!("types {} are left out: {why}", few(several.iter().copied())),
    }
}
