//! What nodes cost an hour, by the administrator's own table.
//!
//! Rule: an unknown price is said to be unknown, never taken for nothing. Where a claim may become
//! several things, a bound counts the dearest and a choice the cheapest.

use super::Plan;
use super::requirements::{Requirements, Values};
use crate::api::NodeClaim;
use crate::api::amount::Price;
use crate::api::parameters::Budget;
use crate::names;

/// What a gang costs an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The most that the nodes with a known price cost together.
    pub at_most: Price,
    /// Nodes whose price is not known.
    pub unpriced: u32,
}

/// The prices of an instance type under the capacity types that are allowed.
fn prices<'a>(
    budget: &'a Budget,
    instance_type: &str,
    requirements: &'a Requirements,
) -> impl Iterator<Item = Price> + 'a {
    let table = budget.prices.as_ref().and_then(|p| p.get(instance_type));
    let allowed = requirements.get(names::CAPACITY_TYPE);
    table
        .into_iter()
        .flatten()
        .filter(move |(kind, _)| allowed.is_none_or(|v| v.allows(kind)))
        .map(|(_, price)| *price)
}

/// The lowest price that a node of this type and with these requirements may have.
pub fn cheapest(budget: &Budget, instance_type: &str, requirements: &Requirements) -> Option<Price> {
    prices(budget, instance_type, requirements).min()
}

/// The highest price that a node of this claim may have; `None` if one it may have is not known.
pub fn dearest(budget: &Budget, claim: &NodeClaim) -> Option<Price> {
    let launched_as = |key| Some(claim.label(key)).filter(|value| !value.is_empty());
    let mut requirements = Requirements::default();
    requirements.add_all(&claim.spec.requirements).ok()?;
    if let Some(kind) = launched_as(names::CAPACITY_TYPE) {
        requirements.add(names::CAPACITY_TYPE, &Values::one(kind)).ok()?;
    }
    let types: Vec<&str> = match (
        launched_as(names::INSTANCE_TYPE),
        requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed()),
    ) {
        (Some(only), _) => vec![only],
        (None, Some(listed)) => listed.iter().map(String::as_str).collect(),
        (None, None) => return None,
    };
    let dearest: Option<Vec<Price>> =
        types.iter().map(|instance_type| prices(budget, instance_type, &requirements).max()).collect();
    dearest?.into_iter().max()
}

/// So many times a price.
pub fn times(price: Price, count: u32) -> Price {
    Price { micros: price.micros.saturating_mul(u64::from(count)) }
}

/// What all nodes of a plan cost.
pub fn of_plan(budget: &Budget, plan: &Plan) -> Cost {
    of_nodes(budget, plan.groups().into_iter().map(|(slot, count)| (&*slot.template, count)))
}

/// What so many nodes of each of these claims cost.
pub fn of_nodes<'c>(budget: &Budget, nodes: impl IntoIterator<Item = (&'c NodeClaim, u32)>) -> Cost {
    let mut cost = Cost::default();
    for (claim, count) in nodes {
        match dearest(budget, claim) {
            Some(price) => {
                cost.at_most.micros = cost.at_most.micros.saturating_add(times(price, count).micros);
            }
            None => cost.unpriced = cost.unpriced.saturating_add(count),
        }
    }
    cost
}
