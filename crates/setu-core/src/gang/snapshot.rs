//! Everything that a gang's next step depends on, at one instant.
//!
//! Rule: it says how things are; [`observe`](crate::gang::observe) says what follows.

pub mod attempt;
pub mod claims;
mod deadlines;
pub mod expectation;
pub mod foreign_pods;
pub mod health;
pub mod loss;
pub mod observed;
pub mod phase;
pub mod pod_list;
pub mod resource_slices;
pub mod unbound;
pub mod waits;

use crate::api::workload::Verdict;
use crate::api::{FrontEnd, Workload};
use crate::gang::identity::GangIdentity;
use crate::gang::statechart::attempt_terms::PolicySource;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::reservation::Reservation;
use crate::gang::statechart::rules::Eviction;
use crate::plan::Outcome;
use crate::policy::Policy;
use claims::ClaimView;
use jiff::Timestamp;
use loss::{ClaimRecords, Loss, losses};
use std::collections::BTreeMap;
use unbound::UnboundPods;

/// Everything that a gang's next step depends on, at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The instant.
    pub now: Timestamp,
    /// The gang's front-end.
    pub front_end: FrontEnd,
    /// Whether the Workload has no usable journal of this gang, so that one was rebuilt.
    pub is_substitute: bool,
    /// Kueue's reservation.
    pub reservation: &'a Reservation,
    /// The verdict that Kueue has.
    pub reported: Verdict,
    /// The plan, if the state needs one.
    pub plan: Option<&'a Outcome>,
    /// Every NodeClaim with the gang's label.
    pub claims: &'a [ClaimView],
    /// Losses of slots whose claim is missing or being deleted, by slot. While claims are being created, slots that are not known
    /// to have had one are left out.
    pub losses: &'a BTreeMap<u32, Loss>,
    /// How the claims and their Nodes were read.
    pub freshness: Freshness,
    /// How the objects that the plan is made from were read.
    pub plan_freshness: Freshness,
    /// Whether the plan passes over a NodePool whose last edit Karpenter has not seen.
    pub passes_over_edited: bool,
    /// Whether others have given back as many nodes as the gang needs since it ran out of capacity; false if that is unknown.
    pub capacity_back: bool,
    /// Why the API server refused a NodeClaim of the attempt, if it did.
    pub create_refused: Option<&'a str>,
    /// Why the pods of a gang that is not admitted yet would not get to its nodes; `None` if nothing sends them away.
    pub misplaced: Option<&'a str>,
    /// The refusal that still stands because nothing has changed.
    pub refusal: Option<Refusal>,
    /// The gang's policy.
    pub policy: &'a Policy,
    /// Where that policy comes from.
    pub policy_source: PolicySource<'a>,
    /// Whether the Workload may be evicted to give its quota back.
    pub eviction: Eviction,
    /// A number in `0.0..1.0` that spreads the waits of different gangs.
    pub jitter: f64,
    /// Forecasts.
    pub forecast: Forecast<'a>,
}

static NO_LOSSES: BTreeMap<u32, Loss> = BTreeMap::new();

impl<'a> Snapshot<'a> {
    /// A cached snapshot of a gang with only its reservation known. What its plan is made from counts as current.
    pub fn of(now: Timestamp, reservation: &'a Reservation, policy: &'a Policy) -> Self {
        Self {
            now,
            front_end: FrontEnd::Workload,
            is_substitute: false,
            reservation,
            reported: Verdict::Pending,
            plan: None,
            claims: &[],
            losses: &NO_LOSSES,
            freshness: Freshness::Cached,
            plan_freshness: Freshness::Quorum,
            passes_over_edited: false,
            capacity_back: false,
            create_refused: None,
            misplaced: None,
            refusal: None,
            policy,
            policy_source: PolicySource::Policy(policy),
            eviction: Eviction::default(),
            jitter: 0.0,
            forecast: Forecast::default(),
        }
    }

    /// Whether the plan says that no node is needed.
    pub(super) fn needs_no_nodes(&self) -> bool {
        matches!(self.plan, Some(Outcome::NothingNeeded(_)))
    }
}

/// The owned parts of a [`Snapshot`]: what a gang's Workload, its claims and the records of a replica show at one instant.
#[derive(Clone, Debug)]
pub struct SnapshotParts {
    /// The instant.
    pub now: Timestamp,
    /// Kueue's reservation.
    pub reservation: Reservation,
    /// Losses of slots whose claim is missing or being deleted, by slot.
    pub losses: BTreeMap<u32, Loss>,
    misplaced: Option<String>,
    front_end: FrontEnd,
    reported: Verdict,
    eviction: Eviction,
    claims: Vec<ClaimView>,
}

impl SnapshotParts {
    /// The parts of a gang with these claims, without the records of any replica.
    pub fn of(workload: &Workload, check: &str, claims: Vec<ClaimView>, now: Timestamp) -> Self {
        Self {
            now,
            reservation: Reservation::of(workload, check),
            losses: BTreeMap::new(),
            misplaced: None,
            reported: workload.check(check).map(|c| c.state).unwrap_or_default(),
            front_end: workload.front_end(),
            eviction: Eviction::of(workload),
            claims,
        }
    }

    /// This snapshot, with the losses that these records show. `needs_nodes` returns whether the gang needs what it has lost; it is
    /// called only if something is lost.
    #[must_use]
    pub fn with_records(
        self,
        journal: &Journal,
        identity: &GangIdentity,
        records: &impl ClaimRecords,
        needs_nodes: impl FnOnce() -> bool,
    ) -> Self {
        let mut losses = losses(journal, identity, &self.claims, records, self.now);
        if !losses.is_empty() && !needs_nodes() {
            losses.clear();
        }
        Self { losses, ..self }
    }

    /// These parts, for a gang whose pods this sends away from its nodes.
    #[must_use]
    pub fn with_misplaced(self, misplaced: Option<String>) -> Self {
        Self { misplaced, ..self }
    }

    /// The snapshot of a gang with this policy, as far as these parts show it.
    pub fn snapshot<'a>(&'a self, policy: &'a Policy) -> Snapshot<'a> {
        Snapshot {
            front_end: self.front_end,
            reported: self.reported,
            claims: &self.claims,
            losses: &self.losses,
            misplaced: self.misplaced.as_deref(),
            eviction: self.eviction,
            ..Snapshot::of(self.now, &self.reservation, policy)
        }
    }
}

/// A refused gang, which stays out of Kueue's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Until when, if nothing changes before.
    pub until: Timestamp,
    /// When it gives back quota that it gets anyway.
    pub again_at: Timestamp,
}

/// Forecasts about an attempt: for texts only, no decision depends on them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Forecast<'a> {
    /// When its last node is usually ready, based on other nodes.
    pub ready_by: Option<Timestamp>,
    /// Name of its tier.
    pub tier: Option<&'a str>,
    /// Whether Kueue has not yet placed some of the pods in the topology.
    pub unplaced: bool,
    /// Pods that may run but are not bound to a node.
    pub unbound: Option<&'a UnboundPods>,
}

/// How a list was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// From a watch cache, which may lag.
    Cached,
    /// From the API server, current.
    Quorum,
}
