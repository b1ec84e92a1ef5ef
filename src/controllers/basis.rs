//! What a plan is made from that changes by itself, as it was when a plan was made.

use crate::plan::market::Market;
use crate::plan::shapes::Shape;
use std::sync::Arc;

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
}
