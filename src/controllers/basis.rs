//! What a plan is made from that changes by itself, as it was when a plan was made.

use crate::plan::market::Market;
use crate::plan::shapes::Shape;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most pages of Karpenter's metrics that are kept for gangs. A page has every type in every zone, and a gang may run for weeks.
const MARKETS: usize = 8;

/// What was known of nodes and offerings at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Basis {
    /// The shapes of nodes that were learnt.
    pub shapes: Arc<[Shape]>,
    /// What Karpenter's own metrics said, where they were read.
    pub market: Option<Arc<Market>>,
}

impl Basis {
    /// The same, with what is equal in another in memory only once.
    #[must_use]
    pub fn sharing(self, other: &Self) -> Self {
        let shapes = if self.shapes == other.shapes { Arc::clone(&other.shapes) } else { self.shapes };
        let market = match (self.market, &other.market) {
            (Some(now), Some(before)) if now.says_the_same_as(before) => Some(Arc::clone(before)),
            (now, _) => now,
        };
        Self { shapes, market }
    }

    /// The same with this market, where its own is not kept any more.
    #[must_use]
    pub fn or_market(self, market: Option<Arc<Market>>) -> Self {
        Self { market: self.market.or(market), ..self }
    }
}

/// Keeps no more than the latest few markets: the oldest of too many is dropped from all that have it.
pub fn keep_latest_markets<'b>(all: impl Iterator<Item = &'b mut Basis>) {
    let with_market: Vec<&mut Basis> = all.filter(|basis| basis.market.is_some()).collect();
    let seen = |basis: &Basis| basis.market.as_ref().map(|market| market.seen);
    let times: BTreeSet<_> = with_market.iter().filter_map(|basis| seen(basis)).collect();
    if times.len() > MARKETS {
        let oldest = times.first().copied();
        with_market.into_iter().filter(|basis| seen(basis) == oldest).for_each(|basis| basis.market = None);
    }
}
