//! What nodes cost an hour: by the administrator's own table, or else by Karpenter's metrics, or else by the catalogue.
//!
//! Rule: an unknown price is said to be unknown, never taken for nothing. Where a claim may become several things, a bound
//! counts the dearest and a choice the cheapest. Nothing is dearer than on demand, so that stands for the price of spot and
//! reserved capacity of which nothing else is known.

use super::Plan;
use super::catalogue;
use super::market::Market;
use super::requirements::{Requirements, Values};
use crate::api::NodeClaim;
use crate::api::amount::{Currency, Money, Price};
use crate::api::parameters::Budget;
use crate::names;
use crate::words::{counted, few};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

const ON_DEMAND: &str = "on-demand";
/// Every capacity type.
const KINDS: [&str; 3] = ["reserved", "spot", ON_DEMAND];

/// Where prices come from.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// What the policy states.
    pub budget: &'a Budget,
    /// What Karpenter says.
    pub market: Option<&'a Market>,
}

/// What a gang costs an hour.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The most that the nodes with a known price cost together.
    pub at_most: Price,
    /// The currency of that.
    pub currency: Currency,
    /// Nodes whose price is known.
    pub priced: u32,
    /// Nodes whose price is not known.
    pub unpriced: u32,
    /// What no price is known for.
    pub missing: BTreeSet<Unpriced>,
}

impl Cost {
    /// What all nodes cost, if there are any and all their prices are known.
    pub fn known(&self) -> Option<Price> {
        (self.unpriced == 0 && self.priced > 0).then_some(self.at_most)
    }

    /// The same for people.
    pub fn shown(&self) -> Option<Money> {
        self.known().map(|price| Money { price, currency: self.currency })
    }

    /// What the nodes cost an hour, for people, behind a comma: nothing where no price is known, and what is missing where some
    /// are.
    pub fn clause(&self) -> String {
        let Self { at_most: price, currency, .. } = *self;
        match (self.priced, self.unpriced) {
            (0, _) => String::new(),
            (_, 0) => format!(", at most {} an hour", Money { price, currency }),
            _ => format!(", at most {} an hour and {}", Money { price, currency }, self.lack()),
        }
    }

    /// What no price is known for, in words.
    pub fn lack(&self) -> String {
        let missing: Vec<String> = self.missing.iter().map(ToString::to_string).collect();
        let nodes = counted(self.unpriced, "node");
        format!("no price for {} ({nodes})", few(missing.iter().map(String::as_str)))
    }

    /// What is to be done about it.
    pub fn remedy(&self) -> &'static str {
        if self.missing.contains(&Unpriced::OpenType) {
            "name instance types in NodePool or tier"
        } else {
            "state prices under gates.budget.prices"
        }
    }
}

/// What no price is known for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unpriced {
    /// Nodes of a type that nobody names.
    OpenType,
    /// An instance type with a capacity type.
    Type(String, String),
}

impl fmt::Display for Unpriced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenType => f.write_str("nodes whose instance type is open"),
            Self::Type(name, kind) => write!(f, "{name}, {kind}"),
        }
    }
}

/// What one instance type is asked for.
struct Wanted<'r> {
    requirements: &'r Requirements,
    /// API group of the NodeClass.
    group: &'r str,
}

impl Wanted<'_> {
    /// The capacity types that are possible.
    fn kinds(&self) -> BTreeSet<String> {
        let listed = self.requirements.get(names::CAPACITY_TYPE).and_then(|v| v.listed()).cloned();
        listed.unwrap_or_else(|| BTreeSet::from([ON_DEMAND.to_owned()]))
    }

    /// The region, or a zone of it.
    fn place(&self) -> Option<&str> {
        let first = |key| self.requirements.get(key).and_then(Values::listed).and_then(|all| all.first());
        first(names::REGION).or_else(|| first(names::ZONE)).map(String::as_str)
    }
}

impl Prices<'_> {
    /// What prices and bounds are in.
    pub fn currency(&self) -> Currency {
        self.budget.currency.unwrap_or_default()
    }

    /// The lowest price that a node of this type and with these requirements may have.
    pub fn cheapest(&self, instance_type: &str, requirements: &Requirements, group: &str) -> Option<Price> {
        let wanted = Wanted { requirements, group };
        let allowed = requirements.get(names::CAPACITY_TYPE);
        let kinds = KINDS.into_iter().filter(|kind| allowed.is_none_or(|v| v.allows(kind)));
        kinds.filter_map(|kind| self.range(instance_type, kind, &wanted)).map(|(least, _)| least).min()
    }

    /// The highest price that a node of this type and with these requirements may have.
    pub fn dearest_of(&self, instance_type: &str, requirements: &Requirements, group: &str) -> Option<Price> {
        self.highest(instance_type, &Wanted { requirements, group }).flatten().max()
    }

    /// The highest price that a node of this claim may have.
    ///
    /// # Errors
    /// What no price is known for, among what it may become.
    pub fn dearest(&self, claim: &NodeClaim) -> Result<Price, Unpriced> {
        let mut requirements = Requirements::default();
        requirements.add_all(&claim.spec.requirements).map_err(|_| Unpriced::OpenType)?;
        for key in [names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::ZONE, names::REGION] {
            let launched_as = claim.label(key);
            if !launched_as.is_empty() {
                // What it was launched as is among what was asked for.
                let _ = requirements.add(key, &Values::one(launched_as));
            }
        }
        let types = requirements.get(names::INSTANCE_TYPE).and_then(|v| v.listed());
        let wanted = Wanted { requirements: &requirements, group: &claim.spec.node_class_ref.group };
        let mut dearest = None;
        for name in types.into_iter().flatten() {
            for price in self.highest(name, &wanted) {
                dearest = dearest.max(Some(price?));
            }
        }
        dearest.ok_or(Unpriced::OpenType)
    }

    /// What all nodes of a plan cost.
    pub fn of_plan(&self, plan: &Plan) -> Cost {
        self.of_nodes(plan.groups().into_iter().map(|(slot, count)| (&*slot.template, count)))
    }

    /// What so many nodes of each of these claims cost.
    pub fn of_nodes<'c>(&self, nodes: impl IntoIterator<Item = (&'c NodeClaim, u32)>) -> Cost {
        let mut cost = Cost { currency: self.currency(), ..Cost::default() };
        for (claim, count) in nodes {
            match self.dearest(claim) {
                Ok(price) => {
                    cost.priced = cost.priced.saturating_add(count);
                    cost.at_most = cost.at_most.plus(times(price, count));
                }
                Err(unpriced) => {
                    cost.unpriced = cost.unpriced.saturating_add(count);
                    cost.missing.insert(unpriced);
                }
            }
        }
        cost
    }

    /// The highest price of a type with each capacity type that is possible.
    fn highest(
        &self,
        instance_type: &str,
        wanted: &Wanted<'_>,
    ) -> impl Iterator<Item = Result<Price, Unpriced>> {
        wanted.kinds().into_iter().map(move |kind| {
            let range = self.range(instance_type, &kind, wanted);
            range.map(|(_, most)| most).ok_or_else(|| Unpriced::Type(instance_type.to_owned(), kind))
        })
    }

    /// The lowest and the highest price of a type with this capacity type.
    fn range(&self, instance_type: &str, kind: &str, wanted: &Wanted<'_>) -> Option<(Price, Price)> {
        let stated = |kind: &str| self.budget.prices.as_ref()?.get(instance_type)?.get(kind).copied();
        if let Some(price) = stated(kind) {
            return Some((price, price));
        }
        let zones = wanted.requirements.get(names::ZONE);
        let allowed = |zone: &str| zones.is_none_or(|zones| zones.allows(zone));
        let told = |kind: &str| -> Option<(Price, Price)> {
            let prices: Vec<Price> = self.market?.prices(instance_type, kind, allowed).collect();
            Some((prices.iter().copied().min()?, prices.iter().copied().max()?))
        };
        let of_catalogue = || catalogue::of(wanted.group)?.price(instance_type, wanted.place());
        let on_demand = || {
            let stated = stated(ON_DEMAND).map(|price| (price, price));
            let told = || told(ON_DEMAND);
            stated.or_else(told).or_else(|| of_catalogue().map(|price| (price, price)))
        };
        let (least, most) = told(kind).or_else(on_demand)?;
        let factor = self.budget.multiplier(instance_type, kind);
        Some((scaled(least, factor), scaled(most, factor)))
    }
}

/// What nodes cost by the catalogue alone, for who does not know the policy of the controller.
pub fn by_list<'c>(claims: impl IntoIterator<Item = &'c NodeClaim>) -> Cost {
    let budget = Budget::default();
    let nodes = claims.into_iter().map(|claim| (claim, 1));
    Prices { budget: &budget, market: None }.of_nodes(nodes)
}

/// A number that claims with the same price have in common, by whichever prices of their check, as long as none changes.
pub fn priced_as(claim: &NodeClaim) -> u64 {
    let mut hasher = DefaultHasher::new();
    claim.annotation(names::CHECK).hash(&mut hasher);
    claim.spec.node_class_ref.group.hash(&mut hasher);
    for key in [names::NODEPOOL, names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::ZONE, names::REGION] {
        claim.label(key).hash(&mut hasher);
    }
    for asked in &claim.spec.requirements {
        (&asked.key, &asked.operator, &asked.values).hash(&mut hasher);
    }
    hasher.finish()
}

/// So many times a price.
pub fn times(price: Price, count: u32) -> Price {
    Price { micros: price.micros.saturating_mul(u64::from(count)) }
}

/// A price with a factor on it; none where no factor is stated.
fn scaled(price: Price, factor: Option<Price>) -> Price {
    let Some(factor) = factor else { return price };
    let micros = u128::from(price.micros) * u128::from(factor.micros) / 1_000_000;
    Price { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
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
        Prices { budget: &budget, market: None }.dearest(&claim.unwrap()).ok()
    }

    #[test]
    fn what_nobody_states_costs_what_karpenter_or_else_the_catalogue_says_with_the_factor_of_the_policy() {
        let page = r#"karpenter_cloudprovider_instance_type_offering_available{instance_type="p5.48xlarge",capacity_type="spot",zone="us-east-1a"} 1
karpenter_cloudprovider_instance_type_offering_price_estimate{instance_type="p5.48xlarge",capacity_type="spot",zone="us-east-1a"} 20"#;
        let market = Market::read(page, jiff::Timestamp::UNIX_EPOCH).unwrap();
        let claim = |kind: &str, zone: &str| -> NodeClaim {
            let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
            let requirements = [
                is(names::INSTANCE_TYPE, "p5.48xlarge"),
                is(names::CAPACITY_TYPE, kind),
                is(names::ZONE, zone),
            ];
            serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
                "spec": {"requirements": requirements, "nodeClassRef": {"group": "karpenter.k8s.aws"}},
            }))
            .unwrap()
        };
        let of_catalogue =
            catalogue::of("karpenter.k8s.aws").unwrap().price("p5.48xlarge", Some("us-east-1")).unwrap();
        let budget = |value: Value| -> Budget { serde_json::from_value(value).unwrap() };
        let half = budget(json!({"multiplier": {"p5": "0.5", "on-demand": "0.1"}}));
        let none = Budget::default();
        for (budget, kind, zone, expected) in [
            (&none, "on-demand", "us-east-1b", of_catalogue),
            (&none, "spot", "us-east-1a", "20".parse().unwrap()),
            (&none, "spot", "us-east-1b", of_catalogue),
            (&half, "spot", "us-east-1a", "10".parse().unwrap()),
            (&half, "on-demand", "us-east-1a", scaled(of_catalogue, Some("0.5".parse().unwrap()))),
        ] {
            let prices = Prices { budget, market: Some(&market) };
            assert_eq!(prices.dearest(&claim(kind, zone)), Ok(expected), "{kind} {zone}");
        }
        let prices = Prices { budget: &none, market: None };
        let mut other = claim("spot", "us-east-1a");
        other.spec.node_class_ref.group = "karpenter.kwok.sh".to_owned();
        assert_eq!(prices.dearest(&other), Err(Unpriced::Type("p5.48xlarge".to_owned(), "spot".to_owned())));
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
