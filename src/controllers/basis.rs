//! What plans are made from that changes by itself: what is known now, and as it was when each gang was planned.

use crate::plan::market::Market;
use crate::plan::shapes::Shape;
use std::collections::{BTreeMap, BTreeSet};
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
    /// The same with this market, where its own is not kept any more.
    #[must_use]
    pub fn or_market(self, market: Option<Arc<Market>>) -> Self {
        Self { market: self.market.or(market), ..self }
    }
}

/// What each gang was planned by, until it is over: what is mended is planned by it again.
#[derive(Debug, Default)]
pub struct Bases {
    of_gangs: BTreeMap<String, Basis>,
    /// The last of each, which most gangs share: what says the same is in memory once.
    latest: Basis,
}

impl Bases {
    /// Forgets all gangs.
    pub fn forget_gangs(&mut self) {
        self.of_gangs.clear();
    }

    /// Takes another page of metrics. Of too many that gangs were planned by, the oldest is dropped from all that have it.
    pub fn take_market(&mut self, market: &Arc<Market>) {
        if self.latest.market.as_ref().is_some_and(|before| market.says_the_same_as(before)) {
            return;
        }
        self.latest.market = Some(Arc::clone(market));
        let seen = |basis: &Basis| basis.market.as_ref().map(|market| market.seen);
        let times: BTreeSet<_> = self.of_gangs.values().filter_map(seen).collect();
        if times.len() >= MARKETS {
            let oldest = times.first().copied();
            let with_oldest = self.of_gangs.values_mut().filter(|basis| seen(basis) == oldest);
            with_oldest.for_each(|basis| basis.market = None);
        }
    }

    /// Keeps what a gang is planned by: these shapes, and the last page of metrics where it counts.
    pub fn keep(&mut self, gang: &str, shapes: Arc<[Shape]>, market_counts: bool) -> Basis {
        if self.latest.shapes != shapes {
            self.latest.shapes = shapes;
        }
        let market = self.latest.market.clone().filter(|_| market_counts);
        let basis = Basis { market, shapes: Arc::clone(&self.latest.shapes) };
        self.of_gangs.insert(gang.to_owned(), basis.clone());
        basis
    }

    /// What a gang was planned by.
    pub fn of(&self, gang: &str) -> Option<&Basis> {
        self.of_gangs.get(gang)
    }

    /// A gang is over.
    pub fn forget(&mut self, gang: &str) {
        self.of_gangs.remove(gang);
    }

    /// How many gangs there are.
    pub fn count(&self) -> usize {
        self.of_gangs.len()
    }
}
