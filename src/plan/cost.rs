//! What nodes cost an hour, by the administrator's own table.
//!
//! Rule: an unknown price is said to be unknown, never taken for nothing or for another. Where a claim may become
//! several things, a bound counts the dearest and a choice the cheapest.

use super::Plan;
use super::requirements::{Requirements, Values};
use crate::api::NodeClaim;
use crate::api::amount::Price;
use crate::api::parameters::Budget;
use crate::names;
use std::collections::BTreeSet;

/// What a gang costs an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The most that the nodes with a known price cost together.
    pub at_most: Price,
    /// Nodes whose price is not known.
    pub unpriced: u32,
}

/// The lowest price that a node of this type and with these requirements may have.
pub fn cheapest(budget: &Budget, instance_type: &str, requirements: &Requirements) -> Option<Price> {
    let table = budget.prices.as_ref()?.get(instance_type)?;
    let allowed = requirements.get(names::CAPACITY_TYPE);
    table.iter().filter(|(kind, _)| allowed.is_none_or(|v| v.allows(kind))).map(|(_, price)| *price).min()
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
    // Nothing is dearer than on-demand, so that is what a node of any capacity type counts with.
    let on_demand = BTreeSet::from(["on-demand".to_owned()]);
    let kinds = requirements.get(names::CAPACITY_TYPE).and_then(|v| v.listed()).unwrap_or(&on_demand);
    let table = budget.prices.as_ref()?;
    let dearest = |instance_type: &&str| {
        let of_type = table.get(*instance_type)?;
        let all: Option<Vec<Price>> = kinds.iter().map(|kind| of_type.get(kind).copied()).collect();
        all?.into_iter().max()
    };
    types.iter().map(dearest).collect::<Option<Vec<Price>>>()?.into_iter().max()
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn price_of(capacity_types: &Value, prices: &Value) -> Option<Price> {
        let budget: Budget = serde_json::from_value(json!({"prices": {"p5.48xlarge": prices}})).unwrap();
        let mut requirements =
            vec![json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]})];
        if !capacity_types.is_null() {
            requirements
                .push(json!({"key": names::CAPACITY_TYPE, "operator": "In", "values": capacity_types}));
        }
        let claim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
            "spec": {"requirements": requirements, "nodeClassRef": {}},
        }));
        dearest(&budget, &claim.unwrap())
    }

    #[test]
    fn a_node_costs_the_most_that_it_may_and_nothing_known_where_one_price_is_missing() {
        let (both, spot) = (json!({"on-demand": "98", "spot": "39"}), json!({"spot": "39"}));
        for (capacity_types, prices, cost) in [
            (json!(["on-demand", "spot"]), &both, Some("98")),
            (json!(["spot"]), &both, Some("39")),
            (json!(["on-demand", "spot"]), &spot, None),
            (Value::Null, &both, Some("98")),
            (Value::Null, &spot, None),
        ] {
            let cost = cost.map(|text| serde_json::from_value(json!(text)).unwrap());
            assert_eq!(price_of(&capacity_types, prices), cost, "{capacity_types} {prices}");
        }
    }
}
