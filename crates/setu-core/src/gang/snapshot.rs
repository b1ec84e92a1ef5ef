//! What a gang's next step may depend on, taken at one instant.
//!
//! Rule: data only; what it means is for [`observe`](super::observe) to say.

use super::claims::ClaimView;
use super::loss::Loss;
use super::reservation::Reservation;
use super::unbound::UnboundPods;
use crate::api::workload::Verdict;
use crate::plan::Outcome;
use crate::policy::Policy;
use jiff::Timestamp;
use std::collections::BTreeMap;

/// Everything a gang's next step may depend on, taken at one instant.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    /// The instant.
    pub now: Timestamp,
    /// Whether the Workload carried no journal of this gang.
    pub fresh: bool,
    /// Kueue's reservation.
    pub reservation: &'a Reservation,
    /// What Kueue was told last.
    pub reported: Verdict,
    /// The plan, where the state needs one.
    pub plan: Option<&'a Outcome>,
    /// Every NodeClaim that carries the gang's label.
    pub claims: &'a [ClaimView],
    /// What became of slots whose claim is missing or going. While claims are being created, a slot that is not
    /// known to have had one is not among them.
    pub losses: &'a BTreeMap<u32, Loss>,
    /// How the claims were read.
    pub freshness: Freshness,
    /// Whether others have given back as many nodes as the gang has since it ran short of them, as far as is known.
    pub capacity_back: bool,
    /// Why the API server refused a NodeClaim of the attempt, if it did.
    pub create_refused: Option<&'a str>,
    /// The refusal that stands, as nothing has changed since.
    pub refusal: Option<Refusal>,
    /// The gang's policy.
    pub policy: &'a Policy,
    /// What can be told of the time to come.
    pub outlook: Outlook<'a>,
}

static NO_LOSSES: BTreeMap<u32, Loss> = BTreeMap::new();

impl<'a> Snapshot<'a> {
    /// What caches show of a gang of which nothing is known but its reservation.
    pub fn of(now: Timestamp, reservation: &'a Reservation, policy: &'a Policy) -> Self {
        Self {
            now,
            fresh: false,
            reservation,
            reported: Verdict::Pending,
            plan: None,
            claims: &[],
            losses: &NO_LOSSES,
            freshness: Freshness::Cached,
            capacity_back: false,
            create_refused: None,
            refusal: None,
            policy,
            outlook: Outlook::default(),
        }
    }
}

/// A gang that was refused stays out of Kueue's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Until when, if nothing changes before.
    pub until: Timestamp,
    /// When quota that it gets all the same is given back.
    pub again_at: Timestamp,
}

/// What can be told of an attempt besides what is: words for people, on which nothing depends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outlook<'a> {
    /// When its last node is usually ready, by what was seen of others.
    pub ready_by: Option<Timestamp>,
    /// Name of its tier.
    pub tier: Option<&'a str>,
    /// Whether Kueue has yet to find a place in the topology for some of the pods.
    pub unplaced: bool,
    /// Pods that are not bound to a node although they may run.
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
