//! Inputs of plans that change by themselves: as known now, and as known when each gang was planned.

use crate::plan::market::Market;
use crate::plan::shape::Shape;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The most pages of Karpenter's metrics kept for gangs. A page has every type in every zone, and a gang may run for
/// weeks.
const MARKETS: usize = 8;

/// Shapes and offerings as known at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownCapacity {
    /// The shapes learnt from nodes.
    pub shapes: Arc<[Shape]>,
    /// Karpenter's metrics, if they were read.
    pub market: Option<Arc<Market>>,
}

impl KnownCapacity {
    /// This basis, with `market` if its own is no longer kept.
    #[must_use]
    pub fn or_market(self, market: Option<Arc<Market>>) -> Self {
        Self { market: self.market.or(market), ..self }
    }
}

/// The known capacity that each gang was planned from, until it is over. Replacements are planned from it again.
#[derive(Debug, Default)]
pub struct CapacityByGang {
    of_gangs: BTreeMap<String, KnownCapacity>,
    /// The latest of each, which most gangs share: equal data is in memory once.
    latest: KnownCapacity,
}

impl CapacityByGang {
    /// Forgets all gangs.
    pub fn forget_gangs(&mut self) {
        self.of_gangs.clear();
    }

    /// Takes another page of metrics. If gangs use too many pages, the oldest is dropped from all of them.
    pub fn take_market(&mut self, market: &Arc<Market>) {
        if self.latest.market.as_ref().is_some_and(|before| market.has_same_offers(before)) {
            return;
        }
        self.latest.market = Some(Arc::clone(market));
        let seen = |capacity: &KnownCapacity| capacity.market.as_ref().map(|market| market.seen);
        let times: BTreeSet<_> = self.of_gangs.values().filter_map(seen).collect();
        if times.len() >= MARKETS {
            let oldest = times.first().copied();
            let with_oldest = self.of_gangs.values_mut().filter(|capacity| seen(capacity) == oldest);
            with_oldest.for_each(|capacity| capacity.market = None);
        }
    }

    /// Keeps what a gang is planned from: these shapes, and the last page of metrics if it counts.
    pub fn keep(&mut self, gang: &str, shapes: Arc<[Shape]>, market_counts: bool) -> KnownCapacity {
        if self.latest.shapes != shapes {
            self.latest.shapes = shapes;
        }
        let market = self.latest.market.clone().filter(|_| market_counts);
        let capacity = KnownCapacity { market, shapes: Arc::clone(&self.latest.shapes) };
        self.of_gangs.insert(gang.to_owned(), capacity.clone());
        capacity
    }

    /// The known capacity that a gang was planned from; `None` if it is not kept.
    pub fn of(&self, gang: &str) -> Option<&KnownCapacity> {
        self.of_gangs.get(gang)
    }

    /// Forgets a gang that is over.
    pub fn forget(&mut self, gang: &str) {
        self.of_gangs.remove(gang);
    }

    /// How many gangs there are.
    pub fn count(&self) -> usize {
        self.of_gangs.len()
    }
}
