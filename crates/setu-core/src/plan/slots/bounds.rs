//! Bounds on all nodes of a gang together. The most expensive and the largest types are left out until the nodes are within the
//! bounds.
//!
//! Rule: only bounds on the gang alone count, not what other gangs leave of them, because that changes while the claims are
//! created. If leaving out types does not help, none is left out: `packed_gang` then packs the pods into smaller nodes. If that
//! does not help either, the gates report what the gang would take.

use super::GroupPlanner;
use crate::api::amount::{Money, Price};
use crate::api::parameters::GateMode;
use crate::api::pod::ResourceList;
use crate::names;
use crate::plan::gates::capacity::limit;
use crate::plan::resources::{amount, shown};
use crate::plan::{PlanRequest, PlanSnapshot, Slot};
use crate::words::few;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A bound that the nodes exceed together, with any choice of their types.
pub(super) struct ExceededBound {
    /// The bound, for messages.
    pub bound: String,
    /// Nodes that may become smaller, the largest first.
    pub smaller: Vec<ShrinkableNode>,
}

/// Shared nodes that count towards a bound.
pub(super) struct ShrinkableNode {
    /// Index of their pod set group.
    pub group_index: usize,
    pub of: Measure,
    /// The amount that the smallest of their types counts with, in the unit of the measure.
    pub counts: i128,
}

/// The measure by which a node counts towards a bound.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Measure {
    /// Its price, in millionths.
    Price,
    /// The amount of this resource, in billionths.
    Resource(String),
}

/// Shared nodes must count with less than this.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Ceiling {
    pub of: Measure,
    pub below: i128,
}

/// Identical nodes, with the possible types that hold their pods.
struct NodeGroup<'s> {
    /// Index of its pod set group.
    group_index: usize,
    planner: &'s GroupPlanner<'s>,
    slot: Slot,
    nodes: i128,
    types: Vec<String>,
    /// The amounts that the node counts with, by type. Computed on first use.
    each: OnceCell<Vec<ResourceList>>,
}

/// A bound on all nodes together.
struct Bound {
    of: Measure,
    most: i128,
    /// The bound, for messages.
    name: String,
    /// The amounts that a node of each group counts with, by type.
    counts: Vec<Vec<i128>>,
}

/// For each group, the indices of the types that are left.
type RemainingTypes = Vec<Vec<usize>>;

/// Leaves out types until the nodes are within every bound on all of them together. Returns a bound that the nodes still exceed,
/// if there is one.
pub(super) fn enforce(
    planners: &[GroupPlanner<'_>],
    made: &mut [Vec<Slot>],
    notes: &mut Vec<String>,
) -> Option<ExceededBound> {
    let of_planner = |(group_index, (planner, slots))| groups(group_index, planner, slots);
    let groups: Vec<NodeGroup<'_>> =
        planners.iter().zip(made.iter().map(Vec::as_slice)).enumerate().flat_map(of_planner).collect();
    let bounds = bounds(&groups);
    let all: RemainingTypes = groups.iter().map(|group| (0..group.types.len()).collect()).collect();
    let mut left = all.clone();
    let mut kept = BTreeSet::new();
    while let Some(bound) = bounds.iter().find(|bound| bound.sum(&groups, &left) > bound.most) {
        kept.insert(bound.name.as_str());
        if !bound.lower(&groups, &mut left) {
            return Some(bound.passed(&groups));
        }
    }
    if left == all {
        return None;
    }
    let narrower: Option<Vec<Slot>> =
        groups.iter().zip(&left).map(|(group, left)| group.narrowed(left)).collect();
    let Some(narrower) = narrower else {
        return bounds.iter().find(|bound| bound.sum(&groups, &all) > bound.most).map(|b| b.passed(&groups));
    };
    let mut narrower = narrower.into_iter();
    for slots in made.iter_mut() {
        for alike in slots.chunk_by_mut(|a, b| Arc::ptr_eq(&a.template, &b.template)) {
            if let Some(slot) = narrower.next() {
                alike.fill(slot);
            }
        }
    }
    let out = groups.iter().zip(&left).flat_map(|(group, left)| group.without(left));
    let out: BTreeSet<&str> = out.collect();
    let (types, are) = if out.len() == 1 { ("type", "is") } else { ("types", "are") };
    notes.push(format!(
        "{types} {} {are} left out of some nodes: with them all nodes together may be over {}",
        few(out.into_iter()),
        few(kept.into_iter())
    ));
    None
}

fn groups<'s>(group_index: usize, planner: &'s GroupPlanner<'s>, slots: &[Slot]) -> Vec<NodeGroup<'s>> {
    let alike = slots.chunk_by(|a, b| Arc::ptr_eq(&a.template, &b.template));
    let group = |alike: &[Slot]| {
        let slot = alike.first()?.clone();
        let requests = &*slot.template.needs();
        let types = slot.instance_types().filter(|name| planner.holds(name, requests)).cloned().collect();
        let nodes = i128::try_from(alike.len()).ok()?;
        Some(NodeGroup { group_index, planner, slot, nodes, types, each: OnceCell::new() })
    };
    alike.filter_map(group).collect()
}

impl NodeGroup<'_> {
    /// The amounts of a resource that the node counts with, in billionths, by type.
    fn amounts(&self, key: &str) -> Vec<i128> {
        let requests = &*self.slot.template.needs();
        let of_type = |name: &String| self.planner.most(requests, std::slice::from_ref(name)).resources;
        let each = self.each.get_or_init(|| match self.types.as_slice() {
            [] => vec![self.slot.most.resources.clone()],
            types => types.iter().map(of_type).collect(),
        });
        each.iter().map(|list| amount(list, key).nanos()).collect()
    }

    /// The highest price of the node, by type. A type without a price ranks as the most expensive.
    fn prices(&self) -> Vec<i128> {
        let price = |name: &String| {
            self.planner.highest_price(name).map_or(i128::from(u64::MAX), |p| i128::from(p.micros))
        };
        if self.types.is_empty() {
            vec![i128::from(u64::MAX)]
        } else {
            self.types.iter().map(price).collect()
        }
    }

    /// The slot with only these types. `None` if they leave too few values to choose from.
    fn narrowed(&self, left: &[usize]) -> Option<Slot> {
        if left.len() == self.types.len() {
            return Some(self.slot.clone());
        }
        let types: Vec<String> = left.iter().filter_map(|nth| self.types.get(*nth)).cloned().collect();
        let requests = &*self.slot.template.needs();
        let types = self.planner.cheapest(types, requests, &mut Vec::new()).ok()?;
        let mut template = (*self.slot.template).clone();
        for asked in &mut template.spec.requirements {
            if asked.key == names::INSTANCE_TYPE && asked.operator == "In" {
                asked.values.retain(|name| types.contains(name));
            }
        }
        let most = Arc::new(self.planner.most(requests, &types));
        let shape = self.slot.shape.as_ref().and_then(|packed| {
            let is_left = types.contains(&packed.instance_type);
            self.planner.shape(if is_left { &packed.instance_type } else { types.first()? }).cloned()
        });
        Some(Slot { template: Arc::new(template), most, shape, ..self.slot.clone() })
    }

    /// The types that are not left.
    fn without(&self, left: &[usize]) -> impl Iterator<Item = &str> {
        let is_out = |(nth, _): &(usize, &String)| !left.contains(nth);
        self.types.iter().enumerate().filter(is_out).map(|(_, name)| name.as_str())
    }
}

/// The lowest bound on what a gang may cost an hour, if there is any.
pub(super) fn most_money(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Option<Price> {
    let of_queue = cluster.guards.and_then(|guards| guards.per_local_queue.max_hourly_cost);
    request.policy.budget.max_hourly_cost.into_iter().chain(of_queue).min()
}

/// Every bound on the resources and the cost of these nodes together.
fn bounds(groups: &[NodeGroup<'_>]) -> Vec<Bound> {
    let Some(GroupPlanner { cluster, request, .. }) = groups.first().map(|group| group.planner) else {
        return Vec::new();
    };
    let policy = request.policy;
    let mut all = Vec::new();
    if let Some(price) = most_money(cluster, request) {
        let money = Money { price, currency: policy.budget.currency.unwrap_or_default() };
        let is_own = policy.budget.max_hourly_cost == Some(price);
        let key = if is_own { "gates.budget.maxHourlyCost" } else { "guards.perLocalQueue.maxHourlyCost" };
        let counts = groups.iter().map(NodeGroup::prices).collect();
        let (of, most) = (Measure::Price, i128::from(price.micros));
        all.push(Bound { of, most, name: format!("{key} of {money}"), counts });
    }
    let bound = |bounds: &ResourceList, key: &str, name: String, pool: Option<&str>| {
        let counts = |group: &NodeGroup<'_>| {
            let counts = pool.is_none_or(|pool| group.slot.node_pool == pool);
            if counts { group.amounts(key) } else { vec![0; group.types.len()] }
        };
        let (of, most) = (Measure::Resource(key.to_owned()), amount(bounds, key).nanos());
        Bound { of, most, name, counts: groups.iter().map(counts).collect() }
    };
    let of_queue = cluster.guards.and_then(|guards| guards.per_local_queue.max_resources.as_ref());
    for (what, bounds) in
        [("gates.budget", policy.budget.max_resources.as_ref()), ("guards.perLocalQueue", of_queue)]
    {
        for (bounds, key) in bounds.into_iter().flat_map(|bounds| bounds.keys().map(move |key| (bounds, key)))
        {
            let name = format!("{what}.maxResources of {} {key}", shown(bounds, key));
            all.push(bound(bounds, key, name, None));
        }
    }
    let mut pools = BTreeSet::new();
    for group in groups.iter().filter(|_| policy.capacity_gate == GateMode::Enforce) {
        let pool = group.slot.node_pool.as_str();
        let limits = group.planner.group.draft.limits().filter(|_| pools.insert(pool));
        for (limits, key) in limits.into_iter().flat_map(|limits| limits.keys().map(move |key| (limits, key)))
        {
            let name = format!("the limit of {} of NodePool {pool}", limit(limits, key));
            all.push(bound(limits, key, name, Some(pool)));
        }
    }
    all
}

impl Bound {
    /// The most that all nodes count with.
    fn sum(&self, groups: &[NodeGroup<'_>], left: &RemainingTypes) -> i128 {
        let most = |counts: &Vec<i128>, left: &Vec<usize>| {
            let of_left = left.iter().filter_map(|nth| counts.get(*nth)).max();
            of_left.or(counts.first()).copied().unwrap_or_default()
        };
        let each = self.counts.iter().zip(left).zip(groups);
        each.map(|((counts, left), group)| most(counts, left).saturating_mul(group.nodes))
            .fold(0, i128::saturating_add)
    }

    /// The report that these nodes exceed it with any choice of their types.
    fn passed(&self, groups: &[NodeGroup<'_>]) -> ExceededBound {
        ExceededBound { bound: self.name.clone(), smaller: self.smaller(groups) }
    }

    /// The shared nodes that may become smaller, the largest first. None if the pods' requests alone exceed the bound.
    fn smaller(&self, groups: &[NodeGroup<'_>]) -> Vec<ShrinkableNode> {
        if let Measure::Resource(key) = &self.of {
            let asked = |(counts, group): (&Vec<i128>, &NodeGroup<'_>)| {
                let counts = counts.iter().any(|count| *count > 0);
                let requests = group.slot.template.needs();
                if counts { amount(&requests, key).nanos().saturating_mul(group.nodes) } else { 0 }
            };
            if self.counts.iter().zip(groups).map(asked).fold(0, i128::saturating_add) > self.most {
                return Vec::new();
            }
        }
        let large = |(counts, group): (&Vec<i128>, &NodeGroup<'_>)| {
            let counts = counts.iter().min().copied().filter(|least| *least > 0)?;
            let may_share = group.planner.group.fills && !group.types.is_empty();
            may_share.then(|| ShrinkableNode { group_index: group.group_index, of: self.of.clone(), counts })
        };
        let mut all: Vec<ShrinkableNode> = self.counts.iter().zip(groups).filter_map(large).collect();
        all.sort_by_key(|large| std::cmp::Reverse(large.counts));
        all
    }

    /// Leaves out the most expensive or largest types of the group where that saves most. Returns whether there were any.
    fn lower(&self, groups: &[NodeGroup<'_>], left: &mut RemainingTypes) -> bool {
        let saving = |counts: &Vec<i128>, left: &Vec<usize>, nodes: i128| {
            let levels: BTreeSet<i128> = left.iter().filter_map(|nth| counts.get(*nth)).copied().collect();
            let mut levels = levels.into_iter().rev();
            let (most, next) = (levels.next()?, levels.next()?);
            Some((most.saturating_sub(next).saturating_mul(nodes), most))
        };
        let each = self.counts.iter().zip(left.iter()).zip(groups).enumerate();
        let savings = each.filter_map(|(group_index, ((counts, left), group))| {
            saving(counts, left, group.nodes).map(|(saved, most)| (saved, group_index, most))
        });
        let Some((_, group_index, most)) = savings.max() else { return false };
        let Some((counts, left)) = self.counts.get(group_index).zip(left.get_mut(group_index)) else {
            return false;
        };
        left.retain(|nth| counts.get(*nth).is_some_and(|count| *count < most));
        true
    }
}
