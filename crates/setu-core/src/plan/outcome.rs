//! The outcome of planning: the slots of a gang, or what blocks it.

use super::cost::Cost;
use super::gates::inflight::HeldNodes;
use super::gates::{Gate, GateAnswer, GateReport, GateResult};
use super::obstacle::{Obstacle, ObstacleReason};
use super::offering::{Offering, is_exhausted};
use super::passed_over::PassedOver;
use super::pending_nodes::PendingNodes;
use super::shape::{Shape, UnknownAmount};
use super::{reservations, resources};
use crate::api::NodeClaim;
use crate::api::parameters::Pinning;
use crate::api::pod::ResourceList;
use crate::names;
use crate::words::counted;
use jiff::Timestamp;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Message prefix if each option is closed for a different reason.
pub const NO_TIER: &str = "no tier can be used";
/// Most options whose obstacles are listed.
const SHOWN: usize = 4;

/// The outcome of planning.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// These nodes.
    Provision(Plan),
    /// No nodes, for this reason.
    NothingNeeded(String),
    /// Not now. Something must change first.
    Wait(Obstacle),
    /// Not with this policy and Workload, even if other gangs ended.
    Refuse(Obstacle),
    /// Never with this Workload.
    Never(Obstacle),
}

impl Outcome {
    /// The plan, if nodes are to be created.
    pub fn plan(&self) -> Option<&Plan> {
        if let Self::Provision(plan) = self { Some(plan) } else { None }
    }

    /// Whether this policy and Workload get no nodes, unless something changes.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refuse(_))
    }

    /// The obstacle that the gang waits for; `None` if it need not wait, or if no wait helps.
    pub fn awaited(&self) -> Option<&Obstacle> {
        if let Self::Wait(obstacle) | Self::Refuse(obstacle) = self { Some(obstacle) } else { None }
    }

    /// The reasons why the gang waits or is refused. If one of them clears, it may have a plan.
    pub fn reasons(&self) -> BTreeSet<ObstacleReason> {
        self.awaited().map(Obstacle::reasons).unwrap_or_default()
    }

    /// The result of each gate that was asked, with its subject. `queue` is the ClusterQueue of the gang.
    pub fn gate_results<'o>(&'o self, queue: &'o str) -> Vec<(Gate, &'o str, GateResult)> {
        let closed = if self.is_refused() { GateResult::Refused } else { GateResult::Waiting };
        match (self, self.awaited()) {
            (Self::Provision(plan), _) => {
                let result = |answer| match answer {
                    GateAnswer::Warn => GateResult::Warned,
                    GateAnswer::Unknown => GateResult::Unknown,
                    _ => GateResult::Passed,
                };
                plan.reports.iter().map(|r| (r.gate, r.subject.as_str(), result(r.answer))).collect()
            }
            (_, Some(Obstacle { gate: Some((gate, subject)), .. })) => vec![(*gate, subject, closed)],
            (_, Some(Obstacle { reason: ObstacleReason::QueueUnknown, .. })) => {
                vec![(Gate::Quota, queue, GateResult::Unknown)]
            }
            _ => Vec::new(),
        }
    }

    /// Whether a gang waits for something that has no deadline.
    pub fn waits_without_deadline(&self) -> bool {
        matches!(self, Self::Wait(obstacle) if obstacle.reason.has_no_deadline())
    }

    /// When a refused gang is tried again without a change: at `again`, or when its obstacle clears by itself, if that is known.
    pub fn refused_until(&self, again: Timestamp) -> Timestamp {
        match self {
            Self::Refuse(Obstacle {
                reason: ObstacleReason::ReservationOpensLater,
                until: Some(until),
                ..
            }) => *until,
            Self::Refuse(Obstacle { until: Some(until), .. }) => again.min(*until),
            _ => again,
        }
    }
}

/// The outcome if every option is closed, with the obstacle of each. A refusal only if all are refused. The reason is that of the
/// option that may open soonest.
pub fn closed(options: &[(&str, Obstacle)]) -> Outcome {
    let openness = |reason: ObstacleReason| (reason.is_refusal(), !reason.may_appear());
    let Some((_, first)) = options.iter().min_by_key(|(_, o)| openness(o.reason)) else {
        return Outcome::Wait(Obstacle::new(ObstacleReason::CapacityShort, "no tier is left to try"));
    };
    let refused = first.reason.is_refusal();
    let mut obstacle = first.clone();
    obstacle.until = options.iter().filter_map(|(_, o)| o.until).min();
    if options.iter().any(|(_, o)| o.message != first.message) {
        let shown: Vec<String> =
            options.iter().take(SHOWN).map(|(name, o)| format!("{name}: {}", o.message)).collect();
        let more = options.len().saturating_sub(SHOWN);
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        obstacle.of_options = options.iter().flat_map(|(_, o)| o.reasons()).collect();
        obstacle.message = format!("{NO_TIER}: {}{more}", shown.join("; "));
    }
    if refused { Outcome::Refuse(obstacle) } else { Outcome::Wait(obstacle) }
}

/// The nodes of a gang, one slot each.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The slots, numbered from 0 over the pod sets in their order.
    pub slots: Vec<Slot>,
    /// How the pods find their nodes. Never `Auto`.
    pub pinning: Pinning,
    /// Caveats, which the owner sees too.
    pub notes: Vec<String>,
    /// How the pods were packed, for display.
    pub facts: Arc<Vec<String>>,
    /// Index of the tier in the policy.
    pub tier: u32,
    /// For display: tier, NodePool and place, each only if there was a choice.
    pub option_name: Box<str>,
    /// Index of the option among all.
    pub option_index: u32,
    /// How many options there are.
    pub option_count: u32,
    /// The reports of the gates.
    pub reports: Arc<Vec<GateReport>>,
    /// Slots that get a node which was kept for the gang's LocalQueue.
    pub reused: Arc<BTreeSet<u32>>,
    /// The NodePools that give none of its nodes.
    pub passed_over: Arc<Vec<PassedOver>>,
    /// The cost of its nodes.
    pub cost: Arc<Cost>,
}

/// A planned node.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Number within the gang.
    pub index: u32,
    /// Its pods.
    pub pods: Arc<[PodShare]>,
    /// Its NodePool.
    pub node_pool: String,
    /// The claim without name and gang labels, shared by all identical slots.
    pub template: Arc<NodeClaim>,
    /// The shape it was packed into, if one was known.
    pub shape: Option<Arc<Shape>>,
    /// The most that its node may have.
    pub most: Arc<NodeMaximum>,
    /// Labels by which the policy distinguishes topology domains. Shortages are recorded by them.
    pub domain_keys: Arc<[String]>,
    /// Value of [`names::POD_SETS`] on its node, if it gets that label.
    pub pod_sets: Option<Arc<str>>,
    /// Ids of the capacity reservations that it is held to. Empty for every one that the template allows.
    pub held_to: Arc<BTreeSet<String>>,
}

/// The most that a node may have, over its known possible types.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeMaximum {
    /// The amount of each resource.
    pub resources: ResourceList,
    /// Whether it may be of an unknown type and have more.
    pub or_more: bool,
    /// The devices whose highest number is known even for an unknown type, because its requirements or the policy state the number.
    pub counted: BTreeSet<String>,
    /// Resources whose amount is unknown for one of its possible types.
    pub unknown: BTreeSet<UnknownAmount>,
}

/// Pods of one pod set on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodShare {
    /// Name of the pod set.
    pub pod_set: String,
    /// How many.
    pub pods: u32,
}

impl Slot {
    /// Whether it has more than one pod.
    pub fn is_shared(&self) -> bool {
        self.pods.iter().map(|pods| pods.pods).sum::<u32>() > 1
    }

    /// The instance types that its claim lists.
    pub fn instance_types(&self) -> impl Iterator<Item = &String> {
        let asked = self.template.spec.requirements.iter();
        asked.filter(|r| r.key == names::INSTANCE_TYPE && r.operator == "In").flat_map(|r| &r.values)
    }

    /// Its claim without name and gang labels, held to its capacity reservations.
    pub fn claim(&self) -> Cow<'_, NodeClaim> {
        if self.held_to.is_empty() {
            return Cow::Borrowed(&self.template);
        }
        let mut claim = (*self.template).clone();
        let asked = claim.spec.requirements.iter_mut().filter(|asked| asked.key == names::RESERVATION_ID);
        asked.for_each(|asked| asked.values = self.held_to.iter().cloned().collect());
        Cow::Owned(claim)
    }

    /// Ids of the capacity reservations that its node may launch into. Empty if it uses none.
    pub fn reservation_ids(&self) -> BTreeSet<String> {
        if self.held_to.is_empty() { reservations::ids(&self.template) } else { (*self.held_to).clone() }
    }

    /// The offerings that its node may become.
    pub fn offerings(&self) -> BTreeSet<Offering> {
        Offering::of(&self.claim(), &self.domain_keys)
    }

    /// Whether its node has no capacity anywhere, by these shortages.
    pub fn is_exhausted(&self, exhausted: &BTreeSet<Offering>) -> bool {
        is_exhausted(&self.claim(), &self.domain_keys, exhausted)
    }

    /// Whether its node comes from the same template, held to the same capacity reservations.
    fn is_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.template, &other.template) && self.held_to == other.held_to
    }

    /// The amounts that this many nodes like it take from its NodePool.
    fn reservation(&self, gang: &str, nodes: u32) -> PendingNodes {
        let ids = self.reservation_ids();
        PendingNodes {
            gang: gang.to_owned(),
            node_pool: self.node_pool.clone(),
            nodes,
            most: resources::times(&self.most.resources, nodes),
            or_more: if self.most.or_more { nodes } else { 0 },
            counted: self.most.counted.clone(),
            unknown: self.most.unknown.clone(),
            drawn: BTreeMap::from_iter((!ids.is_empty()).then_some((ids, nodes))),
        }
    }

    /// Whether its claim exists already and is not one that the plan would create.
    pub(super) fn is_kept(&self) -> bool {
        self.template.metadata.name.as_deref().is_some_and(|name| !name.is_empty())
    }
}

impl Plan {
    /// Whether all its nodes are simulated by kwok.
    pub fn is_of_kwok(&self) -> bool {
        self.slots.iter().all(|slot| slot.template.spec.node_class_ref.is_kwok())
    }

    /// One line: nodes by NodePool and shape, with the tier and the cost.
    pub fn summary(&self) -> String {
        let mut groups: Vec<(String, u32)> = Vec::new();
        for (slot, count) in self.groups() {
            let shape = slot.shape.as_ref().map_or_else(String::new, |s| {
                let others = slot.instance_types().filter(|name| **name != s.instance_type).count();
                let others = u32::try_from(others).unwrap_or(u32::MAX);
                let others = if others == 0 {
                    String::new()
                } else {
                    format!(" or {}", counted(others, "other type"))
                };
                format!(" as {}{others}", s.instance_type)
            });
            let what = format!("from NodePool {}{shape}", slot.node_pool);
            match groups.iter_mut().find(|(known, _)| *known == what) {
                Some((_, nodes)) => *nodes = nodes.saturating_add(count),
                None => groups.push((what, count)),
            }
        }
        let groups: Vec<String> = groups.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let option =
            if self.option_name.is_empty() { String::new() } else { format!(", {}", self.option_name) };
        let cost = self.cost.clause();
        format!("{}: {}{option}{cost}", counted(self.nodes(), "node"), groups.join(", "))
    }

    /// This plan with existing claims in their slots. `most` returns the most that a claim's node may have.
    #[must_use]
    pub fn keeping(mut self, staying: &[NodeClaim], most: impl Fn(&NodeClaim) -> ResourceList) -> Self {
        for claim in staying {
            if let Some(slot) = self.slots.iter_mut().find(|s| Some(s.index) == claim.slot()) {
                claim.label(names::NODEPOOL).clone_into(&mut slot.node_pool);
                (slot.template, slot.shape) = (Arc::new(claim.clone()), None);
                slot.most = Arc::new(NodeMaximum { resources: most(claim), ..NodeMaximum::default() });
            }
        }
        self
    }

    /// The number of nodes.
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    /// The number of nodes still to be requested.
    pub fn to_create(&self) -> u32 {
        u32::try_from(self.slots.iter().filter(|slot| self.is_new(slot)).count()).unwrap_or(u32::MAX)
    }

    /// Groups of identical slots, with their size.
    pub fn groups(&self) -> Vec<(&Slot, u32)> {
        let mut groups: Vec<(&Slot, u32)> = Vec::new();
        for slot in &self.slots {
            match groups.last_mut() {
                Some((last, count)) if Arc::ptr_eq(&last.template, &slot.template) => {
                    *count = count.saturating_add(1);
                }
                _ => groups.push((slot, 1)),
            }
        }
        groups
    }

    /// As [`Self::groups`], but slots that are held to other capacity reservations are in groups of their own.
    pub fn held_groups(&self) -> impl Iterator<Item = (&Slot, u32)> {
        let groups = self.slots.chunk_by(Slot::is_like);
        groups.filter_map(|group| Some((group.first()?, u32::try_from(group.len()).unwrap_or(u32::MAX))))
    }

    /// The claim of each group of identical slots, with the number of nodes.
    pub fn claims(&self) -> impl Iterator<Item = (&NodeClaim, u32)> {
        self.groups().into_iter().map(|(slot, count)| (&*slot.template, count))
    }

    /// The nodes that this plan takes from each NodePool.
    pub fn reservations(&self, gang: &str) -> Vec<PendingNodes> {
        let mut all: Vec<PendingNodes> = Vec::new();
        for (slot, count) in self.held_groups() {
            let taken = slot.reservation(gang, count);
            match all.iter_mut().find(|r| r.node_pool == slot.node_pool) {
                Some(known) => known.add(taken),
                None => all.push(taken),
            }
        }
        all
    }

    /// All its nodes, as they count for the guards.
    pub fn held(&self) -> Vec<HeldNodes> {
        let held = |(slot, nodes): (&Slot, u32)| HeldNodes {
            nodes,
            resources: resources::times(&slot.most.resources, nodes),
            claim: Arc::clone(&slot.template),
        };
        self.groups().into_iter().map(held).collect()
    }

    /// Names of the pod sets that get nodes.
    pub fn pod_sets(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for share in self.groups().iter().flat_map(|(slot, _)| slot.pods.iter()) {
            if !names.contains(&share.pod_set) {
                names.push(share.pod_set.clone());
            }
        }
        names
    }

    /// Every combination of machine, zone, capacity type and place that one of its nodes may become.
    pub fn offerings(&self) -> BTreeSet<Offering> {
        self.wanted().flat_map(Slot::offerings).collect()
    }

    /// Whether one of its nodes has no capacity anywhere, by the recorded shortages.
    pub fn is_exhausted(&self, exhausted: Option<&BTreeSet<Offering>>) -> bool {
        exhausted.is_some_and(|exhausted| self.wanted().any(|slot| slot.is_exhausted(exhausted)))
    }

    /// One of the identical slots whose nodes are still to be requested, for each kind.
    pub fn wanted(&self) -> impl Iterator<Item = &Slot> {
        let mut wanted: Vec<&Slot> = self.slots.iter().filter(|slot| self.is_new(slot)).collect();
        wanted.dedup_by(|one, other| one.is_like(other));
        wanted.into_iter()
    }

    /// Whether the node of a slot is still to be requested.
    fn is_new(&self, slot: &Slot) -> bool {
        !slot.is_kept() && !self.reused.contains(&slot.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_an_open_option_the_reason_is_that_of_the_option_that_may_open_soonest() {
        use ObstacleReason::{CapacityShort, NodePoolMissing, TooManyNodes};
        let of = |reasons: &[ObstacleReason]| {
            let options = reasons.iter().map(|reason| ("", Obstacle::new(*reason, reason.to_string())));
            closed(&options.collect::<Vec<_>>())
        };
        for (reasons, expected, is_refused) in [
            (&[TooManyNodes, NodePoolMissing][..], NodePoolMissing, true),
            (&[NodePoolMissing, TooManyNodes][..], NodePoolMissing, true),
            (&[TooManyNodes, NodePoolMissing, CapacityShort][..], CapacityShort, false),
        ] {
            let (Outcome::Refuse(obstacle) | Outcome::Wait(obstacle)) = of(reasons) else { panic!() };
            assert_eq!(obstacle.reason, expected);
            assert_eq!(matches!(of(reasons), Outcome::Refuse(_)), is_refused, "{reasons:?}");
        }
    }
}
