//! What a planned gang is about to take from each NodePool. It counts for other gangs before its nodes exist.

use super::outcome::Plan;
use super::shapes::Untold;
use super::{reservations, resources};
use crate::api::pod::ResourceList;
use std::collections::{BTreeMap, BTreeSet};

/// What a gang is about to create in one NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// The gang.
    pub gang: String,
    /// The NodePool.
    pub node_pool: String,
    /// The number of nodes.
    pub nodes: u32,
    /// The known most that all of them may have.
    pub most: ResourceList,
    /// How many of them may have even more, because their type is unknown.
    pub or_more: u32,
    /// The devices that these cannot have more of even so.
    pub counted: BTreeSet<String>,
    /// Resources whose amount is unknown for some of them.
    pub untold: BTreeSet<Untold>,
    /// Number of nodes by the ids of the capacity reservations that they may launch into. Omits nodes that use none.
    pub drawn: BTreeMap<BTreeSet<String>, u32>,
}

impl Plan {
    /// What this plan takes from each NodePool.
    pub fn reservations(&self, gang: &str) -> Vec<Reservation> {
        let mut all: Vec<Reservation> = Vec::new();
        for (slot, count) in self.groups() {
            let most = resources::times(&slot.most.resources, count);
            let or_more = if slot.most.or_more { count } else { 0 };
            let counted: BTreeSet<String> = slot.most.counted.iter().cloned().collect();
            let untold = slot.most.untold.clone();
            let ids = reservations::ids(&slot.template);
            let drawn = BTreeMap::from_iter((!ids.is_empty()).then_some((ids, count)));
            match all.iter_mut().find(|r| r.node_pool == slot.node_pool) {
                Some(r) => {
                    r.nodes = r.nodes.saturating_add(count);
                    r.most = resources::sum(&r.most, &most);
                    r.untold.extend(untold);
                    for (ids, nodes) in drawn {
                        let all = r.drawn.entry(ids).or_default();
                        *all = all.saturating_add(nodes);
                    }
                    if or_more > 0 {
                        r.counted = if r.or_more > 0 { &r.counted & &counted } else { counted };
                        r.or_more = r.or_more.saturating_add(or_more);
                    }
                }
                None => all.push(Reservation {
                    gang: gang.to_owned(),
                    node_pool: slot.node_pool.clone(),
                    nodes: count,
                    most,
                    or_more,
                    counted,
                    untold,
                    drawn,
                }),
            }
        }
        all
    }
}
