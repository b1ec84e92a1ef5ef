//! Nodes that a planned gang is about to take from each NodePool. They count for other gangs before they exist.

use super::resources;
use super::shape::UnknownAmount;
use crate::api::pod::ResourceList;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that a gang is about to create in one NodePool.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingNodes {
    /// The gang's id.
    pub gang: String,
    /// The NodePool.
    pub node_pool: String,
    /// The number of nodes.
    pub nodes: u32,
    /// The known most that all of them may have.
    pub most: ResourceList,
    /// How many of them may have even more, because their type is unknown.
    pub or_more: u32,
    /// The devices whose highest number is known even for these nodes.
    pub counted: BTreeSet<String>,
    /// Resources whose amount is unknown for some of them.
    pub unknown: BTreeSet<UnknownAmount>,
    /// Number of nodes by the ids of the capacity reservations that they may launch into. Omits nodes that use none.
    pub drawn: BTreeMap<BTreeSet<String>, u32>,
}

impl PendingNodes {
    /// Adds nodes that the same gang is about to create in the same NodePool.
    pub fn add(&mut self, more: Self) {
        self.nodes = self.nodes.saturating_add(more.nodes);
        self.most = resources::sum(&self.most, &more.most);
        self.unknown.extend(more.unknown);
        for (ids, nodes) in more.drawn {
            let all = self.drawn.entry(ids).or_default();
            *all = all.saturating_add(nodes);
        }
        if more.or_more > 0 {
            self.counted = if self.or_more > 0 { &self.counted & &more.counted } else { more.counted };
            self.or_more = self.or_more.saturating_add(more.or_more);
        }
    }
}
