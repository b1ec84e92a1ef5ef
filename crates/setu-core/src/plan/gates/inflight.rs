//! What exists and happens beside a gang, for the guards: NodeClaims on their way, and what other gangs of its LocalQueue hold.

use crate::api::NodeClaim;
use crate::api::pod::ResourceList;
use crate::plan::resources;
use jiff::Timestamp;
use std::sync::Arc;

/// NodeClaims in flight, recent creates and held nodes of others than this gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InflightNodes {
    /// Claims that exist or are about to be created and whose nodes are not ready.
    pub in_flight: u32,
    /// When to check that again.
    pub recheck_at: Option<Timestamp>,
    /// Claims created within a minute.
    pub last_minute: RecentCreates,
    /// Nodes held, or about to be held, for other gangs of the same LocalQueue, and nodes kept for it. Empty unless a guard is
    /// per LocalQueue.
    pub queue: Vec<HeldNodes>,
    /// Claims created for gangs of the same LocalQueue within an hour.
    pub queue_last_hour: RecentCreates,
}

/// Claims created within a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentCreates {
    /// How many.
    pub claims: u32,
    /// When the oldest of them stops counting.
    pub frees_at: Option<Timestamp>,
}

/// Identical nodes that are held or about to be held.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldNodes {
    /// How many.
    pub nodes: u32,
    /// The resources of all of them, or the known most that they may have.
    pub resources: ResourceList,
    /// The claim that each was, or will be, requested with.
    pub claim: Arc<NodeClaim>,
}

impl HeldNodes {
    /// The node of a claim that exists.
    pub fn of_claim(claim: Arc<NodeClaim>) -> Self {
        let known = claim.status.as_ref().map(|status| resources::max(&status.allocatable, &status.capacity));
        let asked = &claim.spec.resources.requests;
        let resources = known.map_or_else(|| asked.clone(), |known| resources::max(asked, &known));
        Self { nodes: 1, resources, claim }
    }
}
