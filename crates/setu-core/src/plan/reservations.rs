//! The room in the capacity reservations of a tier, and which nodes take it.
//!
//! Rule: a node counts for the reservation in its label. Before launch, it counts for the first reservation with room that its
//! claim may launch into.

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
        let (ids, asked) = (ids(claim), Requirements::readable(&claim.spec.requirements));
        let may_be = |key: &str, value: &Option<String>| {
            value.as_ref().is_none_or(|value| asked.get(key).is_none_or(|values| values.allows(value)))
        };
        self.give_where(nodes, |one| {
            ids.contains(&one.id)
                && may_be(names::INSTANCE_TYPE, &one.instance_type)
                && may_be(names::ZONE, &one.zone)
        })
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
