//! The cost of the nodes of gangs, by the policy of the check that they were made for: for gauges, messages and the board.
//!
//! Rule: nothing is decided on it. A node costs money from its launch until it is gone.

use super::context::Context;
use super::summary::ClaimSummary;
use crate::api::NodeClaim;
use crate::api::parameters::Budget;
use crate::cluster::store::StoreEntry;
use crate::gang::snapshot::observed::capacity_type;
use crate::names;
use crate::plan::cost::{Cost, Prices, times};
use crate::telemetry::metrics::{self, NodeCosts};
use std::collections::BTreeMap;
use std::time::Duration;

/// Launched nodes, by what determines their price and what they are held for.
#[derive(Default)]
pub(super) struct Launched(BTreeMap<(u64, &'static str), Alike>);

/// Nodes with the same price: how many, and the claim of one.
#[derive(Default)]
struct Alike {
    nodes: u32,
    one: Option<StoreEntry<NodeClaim, ClaimSummary>>,
}

impl Launched {
    /// Counts a node.
    pub(super) fn add(&mut self, claim: &StoreEntry<NodeClaim, ClaimSummary>, state: &'static str) {
        let alike = self.0.entry((claim.priced_as, state)).or_default();
        alike.nodes = alike.nodes.saturating_add(1);
        alike.one.get_or_insert_with(|| claim.clone());
    }
}

impl Context {
    /// The hourly cost of these nodes at the prices of a budget.
    pub(super) fn cost<'c>(
        &self,
        budget: &Budget,
        nodes: impl IntoIterator<Item = (&'c NodeClaim, u32)>,
    ) -> Cost {
        let market = self.gang_state.ledger().market(self.now());
        Prices { budget, market: market.as_deref() }.of_nodes(nodes)
    }

    /// The budget in the policy of the check that a claim was made for.
    fn budget_of(&self, claim: &NodeClaim) -> Budget {
        let check = claim.annotation(names::CHECK);
        let parameters = self.policies.parameters(check).and_then(Result::ok).flatten();
        self.policies.settings().policy(check, parameters.as_ref()).budget
    }

    /// Sets the cost gauges of launched nodes.
    pub(super) fn set_costs(&self, launched: Launched) {
        let mut costs = NodeCosts::default();
        for ((_, state), Alike { nodes, one }) in launched.0 {
            let Some(claim) = one.and_then(|one| one.object()) else { continue };
            let cost = self.cost(&self.budget_of(&claim), [(&*claim, nodes)]);
            let pool = claim.label(names::NODEPOOL).to_owned();
            let capacity_type = capacity_type(&claim).unwrap_or_default().to_owned();
            if cost.priced > 0 {
                let sum = costs.per_hour.entry([pool, capacity_type, state.to_owned()]).or_default();
                *sum = sum.plus(cost.at_most);
            } else {
                *costs.without_price.entry([pool, capacity_type]).or_default() += nodes;
            }
        }
        metrics::node_costs(&costs);
    }

    /// Counts what a node cost that lived for this long without use. The reason is from a closed set.
    pub(super) fn count_wasted_cost(&self, claim: &NodeClaim, reason: &str, lived: Duration) {
        let seconds = u32::try_from(lived.as_secs()).unwrap_or(u32::MAX);
        let cost = self.cost(&self.budget_of(claim), [(claim, 1)]);
        let of = [claim.label(names::NODEPOOL), capacity_type(claim).unwrap_or_default(), reason];
        metrics::wasted_cost(of, times(cost.known().unwrap_or_default(), seconds));
    }
}
