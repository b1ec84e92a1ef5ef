//! The hourly cost of nodes: from the policy's price table, else from Karpenter's metrics, else from the catalogue.
//!
//! Rule: an unknown price is reported as unknown and never counts as zero. If a claim may become several offerings, a bound uses
//! the most expensive and a choice the cheapest. Nothing costs more than on-demand, so that price stands in for unknown spot and
//! reserved prices. A price of another region is used only to compare types, never for a bound.

mod alike;
mod compared;
mod unpriced;

pub use alike::priced_as;
pub use unpriced::Unpriced;

use super::catalogue::{self, ListPrice, region_of};
use super::market::Market;
use super::source::Source;
use crate::api::NodeClaim;
use crate::api::amount::{Currency, Money, Price};
use crate::api::parameters::{Budget, CAPACITY_TYPES};
use crate::api::requirements::{Requirements, Values};
use crate::names;
use crate::words::counted;
use std::collections::BTreeSet;

const ON_DEMAND: &str = "on-demand";

/// Where prices come from.
#[derive(Clone, Copy, Debug)]
pub struct Prices<'a> {
    /// The budget of the policy, with its price table.
    pub budget: &'a Budget,
    /// Karpenter's metrics, if they are read.
    pub market: Option<&'a Market>,
}

/// The hourly cost of a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The sum of the lowest known prices of what the nodes may become.
    pub at_least: Price,
    /// The sum of the highest known prices.
    pub at_most: Price,
    /// The currency of both.
    pub currency: Currency,
    /// Nodes for which every possible offering has a price.
    pub priced: u32,
    /// Nodes for which only some offerings have a price.
    pub partly_priced: u32,
    /// Nodes for which no offering has a price.
    pub unpriced: u32,
    /// Kwok nodes among the unpriced. They are simulated and cost nothing.
    pub simulated: u32,
    /// Types without a known price.
    pub missing: BTreeSet<Unpriced>,
    /// The default region that some prices are of, set if the nodes' region is unknown.
    pub usual: Option<&'static str>,
    /// The sources of the prices.
    pub sources: BTreeSet<Source>,
}

impl Cost {
    /// The highest total cost, if there are nodes and all their prices are known.
    pub fn known(&self) -> Option<Price> {
        (self.not_known() == 0 && self.priced > 0).then_some(self.at_most)
    }

    /// Nodes with a possible offering that has no known price.
    pub fn not_known(&self) -> u32 {
        self.unpriced.saturating_add(self.partly_priced)
    }

    /// The price of [`Self::known`] with its currency, for display.
    pub fn shown(&self) -> Option<Money> {
        self.known().map(|price| Money { price, currency: self.currency })
    }

    /// Clause after a comma: the hourly cost, and what has no known price.
    pub fn clause(&self) -> String {
        let Self { at_least, at_most: price, currency, .. } = *self;
        let most = Money { price, currency };
        let by = self.usual.map_or_else(String::new, |region| format!(" by {region}'s prices"));
        match (self.priced, self.partly_priced, self.unpriced) {
            (0, 0, _) => self.unpaid().map_or_else(String::new, |lack| format!(", {lack}")),
            (_, 0, 0) => format!(", at most {most} an hour{by}"),
            (_, 0, _) => format!(", at most {most} an hour{by} and {}", self.lack()),
            _ if at_least < price => format!(", {at_least} to {most} an hour{by} and {}", self.lack()),
            _ => format!(", {most} an hour{by} and {}", self.lack()),
        }
    }

    /// Says that prices are those of a default region because the nodes' region is unknown, and the remedy. `None` otherwise.
    pub fn unplaced(&self) -> Option<String> {
        self.usual.map(|region| {
            format!(
                "by {region}'s prices: nothing says in which region the nodes would be; list {} or {} in NodePool or tier, \
                 or state prices under gates.budget.prices",
                names::REGION,
                names::ZONE
            )
        })
    }

    /// Says what has no known price, and for how many nodes.
    pub fn lack(&self) -> String {
        let (what, mut common) = unpriced::in_words(&self.missing);
        common.push(counted(self.not_known(), "node"));
        format!("no price for {what} ({})", common.join(", "))
    }

    /// As [`Self::lack`]. `None` if only simulated nodes lack a price.
    pub fn unpaid(&self) -> Option<String> {
        (self.not_known() > self.simulated).then(|| self.lack())
    }

    /// The remedy for missing prices.
    pub fn remedy(&self) -> &'static str {
        if self.missing.contains(&Unpriced::OpenType) {
            "name instance types in NodePool or tier"
        } else {
            "let Setu read Karpenter's metrics (--karpenter-metrics), or state prices under gates.budget.prices"
        }
    }
}

/// The requirements that an instance type is priced for.
struct PriceQuery<'r> {
    requirements: &'r Requirements,
    /// API group of the NodeClass.
    group: &'r str,
}

impl PriceQuery<'_> {
    /// The possible capacity types, and whether the requirements leave them open with on-demand among them.
    fn kinds(&self) -> (BTreeSet<String>, bool) {
        let asked = self.requirements.get(names::CAPACITY_TYPE);
        if let Some(listed) = asked.and_then(Values::listed) {
            return (listed.clone(), false);
        }
        let allowed = |kind: &&str| asked.is_none_or(|asked| asked.allows(kind));
        let kinds: BTreeSet<String> = CAPACITY_TYPES.into_iter().filter(allowed).map(str::to_owned).collect();
        let is_open = kinds.contains(ON_DEMAND);
        (kinds, is_open)
    }

    /// The first region, or the region of the first zone.
    fn region(&self) -> Option<&str> {
        self.regions().first().copied()
    }

    /// Every listed region, or the region of each listed zone.
    fn regions(&self) -> Vec<&str> {
        let listed = |key| self.requirements.get(key).and_then(Values::listed);
        let places = listed(names::REGION).filter(|all| !all.is_empty()).or_else(|| listed(names::ZONE));
        places.into_iter().flatten().map(|place| region_of(place)).collect()
    }
}

/// The price range of a node.
#[derive(Clone, Debug)]
struct Range {
    least: Price,
    most: Price,
    of: Region,
    source: Source,
}

/// Which region a price belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    /// The nodes' region, or a price for any region.
    Right,
    /// This default region, because no region is named.
    Usual(&'static str),
    /// The provider's default region, although another one is named.
    Wrong,
}

impl Region {
    /// The default region, if the price belongs to it.
    const fn usual(self) -> Option<&'static str> {
        if let Self::Usual(region) = self { Some(region) } else { None }
    }
}

/// The prices that a node may have, over everything it may become.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// The lowest and the highest known price.
    pub known: Option<(Price, Price)>,
    /// The default region that some prices are of, set if the node's region is unknown.
    pub usual: Option<&'static str>,
    /// Types without a known price.
    pub missing: BTreeSet<Unpriced>,
    /// The sources of the prices.
    pub sources: BTreeSet<Source>,
}

impl Spread {
    fn add(&mut self, found: Result<Range, Unpriced>) {
        match found {
            Ok(Range { least, most, of, source }) => {
                self.sources.insert(source);
                self.usual = self.usual.or(of.usual());
                let (lowest, highest) = self.known.unwrap_or((least, most));
                self.known = Some((lowest.min(least), highest.max(most)));
            }
            Err(unpriced) => {
                self.missing.insert(unpriced);
            }
        }
    }

    /// The highest price, if everything has one.
    pub fn dearest(&self) -> Option<Price> {
        self.known.filter(|_| self.missing.is_empty()).map(|(_, highest)| highest)
    }
}

impl Prices<'_> {
    /// The currency of prices and bounds.
    pub fn currency(&self) -> Currency {
        self.budget.currency.unwrap_or_default()
    }

    /// The lowest price that a node of this type with these requirements may have.
    pub fn cheapest(&self, instance_type: &str, requirements: &Requirements, group: &str) -> Option<Price> {
        let wanted = PriceQuery { requirements, group };
        let allowed = requirements.get(names::CAPACITY_TYPE);
        let kinds = CAPACITY_TYPES.into_iter().filter(|kind| allowed.is_none_or(|v| v.allows(kind)));
        kinds.filter_map(|kind| self.range(instance_type, kind, &wanted)).map(|range| range.least).min()
    }

    /// Whether the catalogue has no price of a type in any region that these requirements name, although it knows these regions.
    /// A price in the policy shows that the type is sold.
    pub fn is_unsold(&self, instance_type: &str, requirements: &Requirements, group: &str) -> bool {
        let is_stated = self.budget.prices.as_ref().is_some_and(|prices| prices.contains_key(instance_type));
        let (Some(catalogue), false) = (catalogue::of(group), is_stated) else { return false };
        let wanted = PriceQuery { requirements, group };
        let regions = wanted.regions();
        let is_elsewhere = |region: &&str| {
            catalogue.knows(region)
                && matches!(catalogue.price(instance_type, Some(region)), Some(ListPrice::Elsewhere(_)))
        };
        !regions.is_empty() && regions.iter().all(is_elsewhere)
    }

    /// The lowest known price that a node of this claim may have.
    pub fn least(&self, claim: &NodeClaim) -> Option<Price> {
        self.by_price(claim).into_iter().find_map(|(_, price)| price)
    }

    /// The instance types that a claim lists, each with its lowest price, the cheapest first.
    pub fn by_price(&self, claim: &NodeClaim) -> Vec<(String, Option<Price>)> {
        let requirements = Requirements::readable(&claim.spec.requirements);
        let group = &claim.spec.node_class_ref.group;
        let types = requirements.get(names::INSTANCE_TYPE).and_then(Values::listed).into_iter().flatten();
        let mut types: Vec<_> =
            types.map(|name| (name.clone(), self.cheapest(name, &requirements, group))).collect();
        types.sort_by_key(|(_, price)| price.map_or(u64::MAX, |price| price.micros));
        types
    }

    /// The highest price that a node of this type with these requirements may have. `None` if it may become an offering without a
    /// price.
    pub fn dearest_of(&self, instance_type: &str, requirements: &Requirements, group: &str) -> Option<Price> {
        let mut spread = Spread::default();
        self.ranges(instance_type, &PriceQuery { requirements, group }).for_each(|found| spread.add(found));
        spread.dearest()
    }

    /// The prices that a node of this claim may have.
    pub fn spread(&self, claim: &NodeClaim) -> Spread {
        let mut requirements = Requirements::default();
        let is_read = requirements.add_all(&claim.spec.requirements).is_ok();
        for key in [names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::ZONE, names::REGION] {
            let launched_as = claim.label(key);
            if !launched_as.is_empty() {
                // The launched value is one of those requested, so this cannot fail.
                let _ = requirements.add(key, &Values::one(launched_as));
            }
        }
        let types = requirements.get(names::INSTANCE_TYPE).and_then(Values::listed).filter(|_| is_read);
        let wanted = PriceQuery { requirements: &requirements, group: &claim.spec.node_class_ref.group };
        let mut spread = Spread::default();
        for name in types.into_iter().flatten() {
            self.ranges(name, &wanted).for_each(|found| spread.add(found));
        }
        if spread.known.is_none() && spread.missing.is_empty() {
            spread.missing.insert(Unpriced::OpenType);
        }
        spread
    }

    /// The cost of `count` nodes of each of these claims.
    pub fn of_nodes<'c>(&self, nodes: impl IntoIterator<Item = (&'c NodeClaim, u32)>) -> Cost {
        let mut cost = Cost { currency: self.currency(), ..Cost::default() };
        for (claim, count) in alike::together(nodes) {
            let Spread { known, usual, missing, sources } = self.spread(claim);
            let nodes = match (known, missing.is_empty()) {
                (Some(_), true) => &mut cost.priced,
                (Some(_), false) => &mut cost.partly_priced,
                (None, _) => &mut cost.unpriced,
            };
            *nodes = nodes.saturating_add(count);
            if known.is_none() && claim.spec.node_class_ref.is_kwok() {
                cost.simulated = cost.simulated.saturating_add(count);
            }
            let (lowest, highest) = known.unwrap_or_default();
            cost.at_least = cost.at_least.plus(times(lowest, count));
            cost.at_most = cost.at_most.plus(times(highest, count));
            cost.usual = cost.usual.or(usual);
            cost.missing.extend(missing);
            cost.sources.extend(sources);
        }
        cost
    }

    /// The price range of a type for each possible capacity type.
    fn ranges(
        &self,
        instance_type: &str,
        wanted: &PriceQuery<'_>,
    ) -> impl Iterator<Item = Result<Range, Unpriced>> {
        let (kinds, is_open) = wanted.kinds();
        // On-demand is an upper bound for the others, so if capacity types are open only its price is needed.
        let is_missed = move |kind: &str| !is_open || kind == ON_DEMAND;
        kinds.into_iter().filter_map(move |kind| {
            let range = self.range(instance_type, &kind, wanted).filter(|range| range.of != Region::Wrong);
            match range {
                Some(range) => Some(Ok(range)),
                None if is_missed(&kind) => {
                    let region = catalogue::of(wanted.group).and_then(|_| wanted.region());
                    let region = region.map(str::to_owned);
                    Some(Err(Unpriced::Type(instance_type.to_owned(), kind, region)))
                }
                None => None,
            }
        })
    }

    /// The lowest and the highest price of a type with this capacity type.
    fn range(&self, instance_type: &str, kind: &str, wanted: &PriceQuery<'_>) -> Option<Range> {
        let right = |least: Price, most: Price, source| Range { least, most, of: Region::Right, source };
        let stated = |kind: &str| self.budget.prices.as_ref()?.get(instance_type)?.get(kind).copied();
        if let Some(price) = stated(kind) {
            return Some(right(price, price, Source::Policy));
        }
        let zones = wanted.requirements.get(names::ZONE);
        let allowed = |zone: &str| zones.is_none_or(|zones| zones.allows(zone));
        // If one of the offerings has no price, the prices of the others do not cover it.
        let of_market = |kind: &str| -> Option<Range> {
            let market = self.market?;
            let (least, most) = market.prices(instance_type, kind, allowed)?;
            Some(right(least, most, Source::Metrics { read: market.seen }))
        };
        let of_catalogue = || {
            let catalogue = catalogue::of(wanted.group)?;
            let (price, of, source) = match catalogue.price(instance_type, wanted.region())? {
                ListPrice::There(price) => (price, Region::Right, catalogue.source()),
                ListPrice::Estimate(price) => (price, Region::Right, catalogue.source_of_estimates()),
                ListPrice::Usual(price) => {
                    (price, Region::Usual(catalogue.usual_region()), catalogue.source())
                }
                ListPrice::Elsewhere(price) => (price, Region::Wrong, catalogue.source()),
            };
            Some(Range { least: price, most: price, of, source })
        };
        if let Some(bound) = stated(ON_DEMAND).filter(|_| of_market(kind).is_none()) {
            return Some(right(bound, bound, Source::Policy));
        }
        let range = of_market(kind).or_else(|| of_market(ON_DEMAND)).or_else(of_catalogue)?;
        let family = catalogue::of(wanted.group).and_then(|catalogue| catalogue.family(instance_type));
        let family = family.or_else(|| instance_type.split('.').next()).unwrap_or_default();
        let factor = self.budget.multiplier(instance_type, family, kind);
        Some(Range { least: scaled(range.least, factor), most: scaled(range.most, factor), ..range })
    }
}

/// A price multiplied by `count`.
pub fn times(price: Price, count: u32) -> Price {
    Price { micros: price.micros.saturating_mul(u64::from(count)) }
}

/// A price multiplied by a factor. Unchanged if there is no factor.
fn scaled(price: Price, factor: Option<Price>) -> Price {
    let Some(factor) = factor else { return price };
    let micros = u128::from(price.micros) * u128::from(factor.micros) / 1_000_000;
    Price { micros: u64::try_from(micros).unwrap_or(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{market, offer};
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
        Prices { budget: &budget, market: None }.spread(&claim.unwrap()).dearest()
    }

    #[test]
    fn unstated_prices_come_from_karpenter_or_the_catalogue_times_the_policy_factor() {
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
        let of_catalogue = "55.04".parse().unwrap();
        let budget = |value: Value| -> Budget { serde_json::from_value(value).unwrap() };
        let half = budget(json!({"multiplier": {"p5": "0.5", "on-demand": "0.1"}}));
        let of_type = budget(json!({"multiplier": {"p5.48xlarge": "0.5"}}));
        let none = Budget::default();
        for (budget, kind, zone, expected) in [
            (&none, "on-demand", "us-east-1b", of_catalogue),
            (&none, "spot", "us-east-1a", "20".parse().unwrap()),
            (&none, "spot", "us-east-1b", of_catalogue),
            (&half, "spot", "us-east-1a", "20".parse().unwrap()),
            (&of_type, "spot", "us-east-1a", "20".parse().unwrap()),
            (&of_type, "on-demand", "us-east-1a", scaled(of_catalogue, Some("0.5".parse().unwrap()))),
            (&half, "on-demand", "us-east-1a", scaled(of_catalogue, Some("0.5".parse().unwrap()))),
        ] {
            let prices = Prices { budget, market: Some(&market) };
            let spread = prices.spread(&claim(kind, zone));
            assert_eq!((spread.dearest(), spread.usual), (Some(expected), None), "{kind} {zone}");
        }
        let prices = Prices { budget: &none, market: None };
        let mut other = claim("spot", "us-east-1a");
        other.spec.node_class_ref.group = "karpenter.kwok.sh".to_owned();
        let unpriced = Unpriced::Type("p5.48xlarge".to_owned(), "spot".to_owned(), None);
        assert_eq!(prices.spread(&other), Spread { missing: [unpriced].into(), ..Spread::default() });
    }

    #[test]
    fn prices_of_another_region_are_not_used_and_default_region_prices_are_marked() {
        let of = |place: Option<(&str, &str)>, budget: &Budget| -> Cost {
            let is = |(key, value): (&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
            let requirements: Vec<Value> =
                [Some((names::INSTANCE_TYPE, "p5.48xlarge")), place].into_iter().flatten().map(is).collect();
            let claim: NodeClaim = serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
                "spec": {"requirements": requirements, "nodeClassRef": {"group": "karpenter.k8s.aws"}},
            }))
            .unwrap();
            Prices { budget, market: None }.of_nodes([(&claim, 2)])
        };
        let (none, stated) = (Budget::default(), json!({"prices": {"p5.48xlarge": {"on-demand": "60"}}}));
        let stated: Budget = serde_json::from_value(stated).unwrap();
        for place in [(names::ZONE, "eu-central-1b"), (names::REGION, "eu-central-1")] {
            let cost = of(Some(place), &none);
            assert_eq!(cost.lack(), "no price for p5.48xlarge, on-demand, eu-central-1 (2 nodes)");
            assert_eq!(of(Some(place), &stated).clause(), ", at most 120 USD an hour");
        }
        let usual = of(None, &none);
        assert!(usual.clause().ends_with(" USD an hour by us-east-1's prices"), "{}", usual.clause());
        assert!(usual.unplaced().unwrap().starts_with("by us-east-1's prices: nothing says"));
        let right = of(Some((names::ZONE, "us-east-1a")), &none);
        assert_eq!((right.usual, right.unplaced(), right.at_most), (None, None, usual.at_most));
        let requirements = |zone: &str| {
            let mut requirements = Requirements::default();
            requirements.add(names::ZONE, &Values::one(zone)).unwrap();
            requirements
        };
        let prices = Prices { budget: &none, market: None };
        let least = |zone| prices.cheapest("p5.48xlarge", &requirements(zone), "karpenter.k8s.aws");
        assert_eq!(least("eu-central-1a"), least("us-east-1a"), "types are compared by it");
    }

    #[test]
    fn a_stated_price_has_no_factor_and_a_missing_offering_price_falls_back_to_on_demand() {
        let spot = json!(["spot"]);
        let budget = |more: &Value| -> Budget {
            let mut budget = json!({"prices": {"p5.48xlarge": {"on-demand": "60"}}});
            budget.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            serde_json::from_value(budget).unwrap()
        };
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
            "spec": {"nodeClassRef": {}, "requirements": [
                {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]},
                {"key": names::CAPACITY_TYPE, "operator": "In", "values": spot},
            ]},
        }))
        .unwrap();
        let highest = |budget: &Budget, market: Option<&Market>| {
            Prices { budget, market }.spread(&claim).dearest().unwrap().to_string()
        };
        assert_eq!(highest(&budget(&json!({"multiplier": {"p5": "0.5"}})), None), "60");
        let page = |of_b: &str| {
            let spot = |zone| ["p5.48xlarge", "spot", zone];
            let of_a = offer("available", spot("a"), 1) + &offer("price_estimate", spot("a"), 5);
            market(&(of_a + &offer("available", spot("b"), of_b)))
        };
        assert_eq!(highest(&budget(&json!({})), Some(&page("0"))), "5", "b is out");
        assert_eq!(highest(&budget(&json!({})), Some(&page("1"))), "60", "b may cost as much as on demand");
    }

    #[test]
    fn reserved_capacity_costs_as_much_as_on_demand_despite_karpenters_metrics() {
        let of = |kind| ["p5.48xlarge", kind, "us-east-1a"];
        let reserved =
            offer("available", of("reserved"), 1) + &offer("price_estimate", of("reserved"), "0.000005504");
        let market = market(&(reserved + &offer("price_estimate", of("on-demand"), 54)));
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
            "spec": {"nodeClassRef": {"group": "karpenter.k8s.aws"}, "requirements": [
                {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]},
                {"key": names::CAPACITY_TYPE, "operator": "In", "values": ["reserved"]},
            ]},
        }))
        .unwrap();
        let stated = json!({"prices": {"p5.48xlarge": {"on-demand": "60"}}});
        for (budget, price) in [(json!({}), "54"), (stated, "60")] {
            let budget: Budget = serde_json::from_value(budget).unwrap();
            let prices = Prices { budget: &budget, market: Some(&market) };
            assert_eq!(prices.spread(&claim).dearest().unwrap().to_string(), price);
        }
    }

    #[test]
    fn a_node_without_a_named_capacity_type_is_priced_without_the_type_factor() {
        let budget = json!({"multiplier": {"p5.48xlarge": "0.5"}});
        let budget: Budget = serde_json::from_value(budget).unwrap();
        let prices = Prices { budget: &budget, market: None };
        let highest = |requirements: &Requirements| {
            prices.dearest_of("p5.48xlarge", requirements, "karpenter.k8s.aws").unwrap().to_string()
        };
        let mut requirements = Requirements::default();
        assert_eq!(highest(&requirements), "55.04");
        requirements.add(names::CAPACITY_TYPE, &Values::one(ON_DEMAND)).unwrap();
        assert_eq!(highest(&requirements), "27.52");
    }

    #[test]
    fn a_family_factor_applies_to_the_types_of_each_provider() {
        for (group, family, name, full, half) in [
            ("karpenter.k8s.aws", "p5", "p5.48xlarge", "55.04", "27.52"),
            ("karpenter.k8s.gcp", "a2", "a2-highgpu-1g", "3.68", "1.84"),
            ("karpenter.azure.com", "N", "Standard_NC24ads_A100_v4", "3.68", "1.84"),
        ] {
            let requirements = Requirements::default();
            let price = |multiplier: &Value| {
                let budget = serde_json::from_value(json!({"multiplier": multiplier})).unwrap();
                let prices = Prices { budget: &budget, market: None };
                prices.cheapest(name, &requirements, group).unwrap().to_string()
            };
            assert_eq!(
                (price(&json!({})), price(&json!({family: "0.5"}))),
                (full.into(), half.into()),
                "{name}"
            );
        }
    }

    #[test]
    fn types_without_a_price_are_named_and_known_prices_are_shown_as_a_range() {
        let cost = |types: &[&str], nodes: u32| -> Cost {
            let claim: NodeClaim = serde_json::from_value(json!({
                "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim", "metadata": {},
                "spec": {
                    "requirements": [{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}],
                    "nodeClassRef": {"group": "example.com"},
                },
            }))
            .unwrap();
            let budget = json!({"prices": {"a": {"on-demand": "13.36"}, "b": {"on-demand": "98.32"}}});
            Prices { budget: &serde_json::from_value(budget).unwrap(), market: None }
                .of_nodes([(&claim, nodes)])
        };
        for (types, clause) in [
            (vec!["a", "b"], ", at most 196.64 USD an hour"),
            (
                vec!["a", "b", "c", "d"],
                ", 26.72 to 196.64 USD an hour and no price for c, d (on-demand, 2 nodes)",
            ),
            (vec!["a", "c"], ", 26.72 USD an hour and no price for c, on-demand (2 nodes)"),
            (vec!["c"], ", no price for c, on-demand (2 nodes)"),
        ] {
            let cost = cost(&types, 2);
            assert_eq!(cost.clause(), clause);
            let is_known = types.len() == 2 && types[1] == "b";
            assert_eq!(cost.known().is_some(), is_known, "a budget is kept by {types:?}");
        }
    }

    #[test]
    fn a_node_counts_with_its_highest_price_or_as_unknown_if_one_is_missing() {
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
