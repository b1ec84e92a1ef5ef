//! Counts beside a gang, for the guards: NodeClaims in flight, recent creates, and nodes held for other gangs of its LocalQueue.

use crate::api::NodeClaim;
use crate::api::pod::ResourceList;
use crate::plan::resources;
use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;

/// The span over which the whole controller's creates are counted.
pub const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// The span over which the creates for one LocalQueue are counted.
pub const HOUR: SignedDuration = SignedDuration::from_hours(1);

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

impl InflightNodes {
    /// Adds a claim of another gang whose node is not ready.
    pub fn add_in_flight(&mut self) {
        self.in_flight = self.in_flight.saturating_add(1);
    }

    /// Adds the node of a claim that is held for the same LocalQueue.
    pub fn add_held(&mut self, claim: Arc<NodeClaim>) {
        self.queue.push(HeldNodes::of_claim(claim));
    }

    /// Adds the creation of a claim at this time.
    pub fn add_created(&mut self, at: Timestamp, is_of_queue: bool, now: Timestamp) {
        self.last_minute.add(at + MINUTE, now);
        if is_of_queue {
            self.queue_last_hour.add(at + HOUR, now);
        }
    }
}

/// Claims created within a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentCreates {
    /// How many.
    pub claims: u32,
    /// When the oldest of them stops counting.
    pub frees_at: Option<Timestamp>,
}

impl RecentCreates {
    /// Counts one more claim, until that time.
    fn add(&mut self, until: Timestamp, now: Timestamp) {
        if until > now {
            self.claims = self.claims.saturating_add(1);
            self.frees_at = self.frees_at.into_iter().chain([until]).min();
        }
    }
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
        let asked = claim.needs();
        let resources = known.map_or_else(|| (*asked).clone(), |known| resources::max(&asked, &known));
        Self { nodes: 1, resources, claim }
    }
}
