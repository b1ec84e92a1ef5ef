//! The room in the capacity reservations of a tier, and which nodes take it.
//!
//! Rule: a node counts for the reservation in its label. Before launch, it counts for the first reservation with room that its
//! claim may launch into.

pub mod held;

use crate::api::NodeClaim;
use crate::api::parameters::{CapacityReservation, Tier};
use crate::api::requirements::Requirements;
use crate::names;
use std::collections::BTreeSet;

/// Ids of the reservations that the node of a claim may launch into, or of the one that it is in. Empty if it uses none.
pub fn ids(claim: &NodeClaim) -> BTreeSet<String> {
    let launched = claim.label(names::RESERVATION_ID);
    if !launched.is_empty() {
        return BTreeSet::from([launched.to_owned()]);
    }
    // Karpenter removes the label from a node whose reservation has ended.
    if claim.is_launched() {
        return BTreeSet::new();
    }
    let asked = Requirements::readable(&claim.spec.requirements);
    let listed = asked.get(names::RESERVATION_ID).and_then(|values| values.listed());
    listed.cloned().unwrap_or_default()
}

/// Free instances in the reservations of a tier.
#[derive(Debug)]
pub struct Room<'t>(Vec<(&'t CapacityReservation, u32)>);

impl<'t> Room<'t> {
    /// The room when no node uses the reservations.
    pub fn of(tier: &'t Tier) -> Self {
        Self(tier.reservations.iter().map(|one| (one, one.nodes)).collect())
    }

    /// The number of free instances.
    pub fn free(&self) -> u32 {
        self.0.iter().map(|(_, left)| *left).fold(0, u32::saturating_add)
    }

    /// Takes instances for nodes that may launch into reservations with these ids. Returns how many were free.
    pub fn give(&mut self, nodes: u32, ids: &BTreeSet<String>) -> u32 {
        self.give_where(nodes, |one| ids.contains(&one.id))
    }

    /// Takes instances for nodes like this claim. Returns how many were free.
    pub fn give_like(&mut self, nodes: u32, claim: &NodeClaim) -> u32 {
        let wanted = Wanted::of(claim);
        self.give_where(nodes, |one| wanted.may_use(one))
    }

    /// The reservations with free instances that nodes like this claim may launch into, with their number.
    fn for_like(&self, claim: &NodeClaim) -> Vec<(&'t CapacityReservation, u32)> {
        let wanted = Wanted::of(claim);
        self.0.iter().copied().filter(|(one, left)| *left > 0 && wanted.may_use(one)).collect()
    }

    fn give_where(&mut self, nodes: u32, fits: impl Fn(&CapacityReservation) -> bool) -> u32 {
        let mut without = nodes;
        for (_, left) in self.0.iter_mut().filter(|(one, _)| fits(one)) {
            let given = without.min(*left);
            *left = left.saturating_sub(given);
            without = without.saturating_sub(given);
        }
        nodes.saturating_sub(without)
    }
}

/// What a claim that is not launched yet asks for.
struct Wanted {
    ids: BTreeSet<String>,
    asked: Requirements,
}

impl Wanted {
    fn of(claim: &NodeClaim) -> Self {
        Self { ids: ids(claim), asked: Requirements::readable(&claim.spec.requirements) }
    }

    /// Whether its node may launch into a reservation, as far as the policy states the type and zone.
    fn may_use(&self, one: &CapacityReservation) -> bool {
        let may_be = |key: &str, value: &Option<String>| {
            value.as_ref().is_none_or(|value| self.asked.get(key).is_none_or(|values| values.allows(value)))
        };
        self.ids.contains(&one.id)
            && may_be(names::INSTANCE_TYPE, &one.instance_type)
            && may_be(names::ZONE, &one.zone)
    }
}
