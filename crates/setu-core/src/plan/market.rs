//! Offerings on Karpenter's metrics page: which are out of capacity, what each costs, and how large the machine is.
//!
//! Source: `karpenter_cloudprovider_instance_type_offering_available`, `…_offering_price_estimate`, `…_cpu_cores` and
//! `…_memory_bytes` of karpenter-provider-aws. It sets them every minute for the instance types of all NodePools.

use super::offering::{ANY, Offering, What};
use crate::api::amount::Price;
use crate::api::pod::ResourceList;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Whether an offering is available.
pub const AVAILABLE: &str = "karpenter_cloudprovider_instance_type_offering_available";
const PRICE: &str = "karpenter_cloudprovider_instance_type_offering_price_estimate";
const CORES: &str = "karpenter_cloudprovider_instance_type_cpu_cores";
const MEMORY: &str = "karpenter_cloudprovider_instance_type_memory_bytes";
/// Plausible cores and bytes of memory of a machine. Memory: from 256 MiB to 64 TiB.
const BELIEVED_CORES: RangeInclusive<f64> = 1.0..=4_096.0;
const BELIEVED_BYTES: RangeInclusive<f64> = 268_435_456.0..=70_368_744_177_664.0;
/// Highest plausible price per hour.
const DEAREST: f64 = 100_000.0;
const MICROS: f64 = 1_000_000.0;

/// All offerings on one page. A large region has ten thousand, so each zone with its capacity type is stored once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Market {
    /// Every zone and capacity type of an offering, sorted.
    keys: Vec<OfferingKey>,
    types: BTreeMap<Box<str>, Machine>,
    /// When the page was read.
    pub seen: Timestamp,
    /// Implausible prices on the page.
    absurd: ImplausiblePrices,
}

/// Implausible prices: negative, not a number, or too high.
#[derive(Clone, Debug, Default, PartialEq)]
struct ImplausiblePrices {
    /// How many.
    prices: u32,
    /// The first of them, with its offering.
    first: Box<str>,
}

/// Zone and capacity type.
type OfferingKey = (Box<str>, Box<str>);

/// The page's entries about an instance type.
#[derive(Clone, Debug, Default, PartialEq)]
struct Machine {
    /// Its offerings, by index into `keys`.
    offers: Vec<(usize, MarketOffer)>,
    /// Cores and bytes of memory, before anything is subtracted.
    cores: Option<u64>,
    memory: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MarketOffer {
    available: Option<bool>,
    price: Option<Price>,
}

impl Machine {
    /// Whether it is larger than `before`, or `before` had no size.
    fn is_larger_than(&self, before: Option<&Self>) -> bool {
        let (cores, memory) = before.map_or((None, None), |before| (before.cores, before.memory));
        self.cores > cores || self.memory > memory
    }
}

/// A page without offerings.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the page has no {AVAILABLE}; name the metrics endpoint of a Karpenter that reports offerings, as its AWS provider does from 1.0 on"
)]
pub struct NoOffers;

impl Market {
    /// Reads a page in Prometheus' text format. Skips lines that cannot be read, implausible prices, and prices of reserved
    /// capacity.
    ///
    /// # Errors
    /// If the page names no offering.
    pub fn read(page: &str, seen: Timestamp) -> Result<Self, NoOffers> {
        let mut market = Self { seen, ..Self::default() };
        for line in page.lines() {
            let Some((name, labels, value)) = sample(line) else { continue };
            let of = |key: &str| labels.iter().find(|(k, _)| *k == key).map(|(_, v)| v.as_str());
            let offering = || Some((of("instance_type")?, of("zone")?, of("capacity_type")?));
            match name {
                AVAILABLE if value.is_finite() => {
                    if let Some(offer) = offering().and_then(|one| market.offer(one)) {
                        offer.available = Some(value > 0.0);
                    }
                }
                PRICE => {
                    // Reservations cost the same whether they are used or not. The provider reports a ten-millionth of the
                    // on-demand price for them, so that they are used first.
                    if let Some(offering) = offering().filter(|(_, _, kind)| *kind != names::RESERVED) {
                        market.note_price(offering, value);
                    }
                }
                CORES | MEMORY => {
                    let believed = if name == CORES { BELIEVED_CORES } else { BELIEVED_BYTES };
                    if let Some(instance_type) = of("instance_type").filter(|_| believed.contains(&value)) {
                        let machine = market.types.entry(instance_type.into()).or_default();
                        *(if name == CORES { &mut machine.cores } else { &mut machine.memory }) =
                            Some(whole(value));
                    }
                }
                _ => {}
            }
        }
        if market.offers().all(|(_, _, offer)| offer.available.is_none()) {
            return Err(NoOffers);
        }
        market.arrange();
        Ok(market)
    }

    /// The offering of an instance type in a zone with a capacity type; added if missing.
    fn offer(
        &mut self,
        (instance_type, zone, capacity_type): (&str, &str, &str),
    ) -> Option<&mut MarketOffer> {
        let is_it = |key: &OfferingKey| *key.0 == *zone && *key.1 == *capacity_type;
        let index = self.keys.iter().position(is_it).unwrap_or_else(|| {
            self.keys.push((zone.into(), capacity_type.into()));
            self.keys.len().saturating_sub(1)
        });
        let offers = &mut self.types.entry(instance_type.into()).or_default().offers;
        let nth = offers.iter().position(|(at, _)| *at == index).unwrap_or_else(|| {
            offers.push((index, MarketOffer::default()));
            offers.len().saturating_sub(1)
        });
        offers.get_mut(nth).map(|(_, offer)| offer)
    }

    /// Records the price of an offering, if it is plausible.
    fn note_price(&mut self, offering: (&str, &str, &str), value: f64) {
        if let Some(price) = price(value) {
            if let Some(offer) = self.offer(offering) {
                offer.price = Some(price);
            }
        } else if value != 0.0 {
            if self.absurd.prices == 0 {
                self.absurd.first =
                    format!("{value} of {}, {} in {}", offering.0, offering.2, offering.1).into();
            }
            self.absurd.prices = self.absurd.prices.saturating_add(1);
        }
    }

    /// A message about implausible prices on the page. `None` if there are none.
    pub fn price_warning(&self) -> Option<String> {
        let ImplausiblePrices { prices, first } = &self.absurd;
        match prices {
            0 => None,
            1 => Some(format!("one price is absurd, {first}, and is left out")),
            _ => Some(format!("{prices} prices are absurd, such as {first}, and are left out")),
        }
    }

    /// Sorts zones and offerings, so that pages with the same content are equal.
    fn arrange(&mut self) {
        let before = std::mem::take(&mut self.keys);
        self.keys.clone_from(&before);
        self.keys.sort();
        let now =
            |at: usize| before.get(at).and_then(|key| self.keys.binary_search(key).ok()).unwrap_or_default();
        for machine in self.types.values_mut() {
            machine.offers.iter_mut().for_each(|(index, _)| *index = now(*index));
            machine.offers.sort_by_key(|(index, _)| *index);
            machine.offers.shrink_to_fit();
        }
    }

    /// Cores and memory of a machine of this type, before anything is subtracted. `None` unless both are known.
    pub fn size(&self, instance_type: &str) -> Option<ResourceList> {
        let machine = self.types.get(instance_type)?;
        let size = [("cpu", machine.cores?), ("memory", machine.memory?)];
        Some(size.map(|(key, amount)| (key.to_owned(), Quantity(amount.to_string()))).into())
    }

    /// Whether any allowed offering of an instance type, by zone and capacity type, is available. `None` if the page has no such
    /// offering.
    pub fn has(&self, instance_type: &str, allowed: impl Fn(&str, &str) -> bool) -> Option<bool> {
        let allowed = self.of_type(instance_type).filter(|((zone, kind), _)| allowed(zone, kind));
        allowed.filter_map(|(_, offer)| offer.available).reduce(|any, available| any || available)
    }

    /// All offerings of an instance type.
    fn of_type(&self, instance_type: &str) -> impl Iterator<Item = (&OfferingKey, &MarketOffer)> {
        let offers = self.types.get(instance_type).into_iter().flat_map(|machine| &machine.offers);
        offers.filter_map(|(index, offer)| Some((self.keys.get(*index)?, offer)))
    }

    /// All offerings, each with its instance type, zone and capacity type.
    fn offers(&self) -> impl Iterator<Item = (&str, &OfferingKey, &MarketOffer)> {
        let of_type = |name| self.of_type(name).map(move |(key, offer)| (name, key, offer));
        self.types.keys().flat_map(move |name| of_type(&**name))
    }

    /// The offerings that are out of capacity. Includes `any` zone or capacity type if no offering of that kind is left.
    pub fn exhausted(&self) -> BTreeSet<Offering> {
        let mut left = BTreeMap::<(&str, &str, &str), bool>::new();
        for (instance_type, (zone, capacity_type), offer) in self.offers() {
            let Some(available) = offer.available else { continue };
            for zone in [zone, ANY] {
                for capacity_type in [capacity_type, ANY] {
                    *left.entry((instance_type, zone, capacity_type)).or_default() |= available;
                }
            }
        }
        let exhausted = left.into_iter().filter(|(_, available)| !available);
        exhausted
            .map(|((instance_type, zone, capacity_type), _)| Offering {
                what: What::InstanceType(instance_type.to_owned()),
                machine: String::new(),
                zone: zone.to_owned(),
                capacity_type: capacity_type.to_owned(),
                domain: String::new(),
            })
            .collect()
    }

    /// Whether, compared with `before`, a price fell or became known, or a machine's size grew or became known.
    pub fn is_better_than(&self, before: Option<&Self>) -> bool {
        let fell = |(instance_type, key, offer): (&str, &OfferingKey, &MarketOffer)| {
            let mut before = before.into_iter().flat_map(|market| market.of_type(instance_type));
            let before = before.find(|(other, _)| *other == key).and_then(|(_, offer)| offer.price);
            offer.price.is_some_and(|now| before.is_none_or(|before| now < before))
        };
        let known = |name: &str| before.and_then(|market| market.types.get(name));
        self.offers().any(fell)
            || self.types.iter().any(|(name, machine)| machine.is_larger_than(known(name)))
    }

    /// Whether two pages have the same offerings and sizes, ignoring when they were read.
    pub fn has_same_offers(&self, other: &Self) -> bool {
        self.keys == other.keys && self.types == other.types
    }

    /// The lowest and the highest hourly price of an instance type with this capacity type, in the allowed zones. Offerings out
    /// of capacity do not count for the lowest while others are available, but count for the highest because they may return.
    /// `None` if an available offering has no price.
    pub fn prices(
        &self,
        instance_type: &str,
        capacity_type: &str,
        allowed: impl Fn(&str) -> bool,
    ) -> Option<(Price, Price)> {
        let offers = self
            .of_type(instance_type)
            .filter(|((zone, kind), _)| **kind == *capacity_type && allowed(zone))
            .filter(|(_, offer)| offer.price.is_some() || offer.available != Some(false))
            .map(|(_, offer)| Some((offer.available != Some(false), offer.price?)));
        let offers: Vec<(bool, Price)> = offers.collect::<Option<_>>()?;
        let to_be_had = offers.iter().filter(|(available, _)| *available).map(|(_, price)| *price).min();
        let all = || offers.iter().map(|(_, price)| *price);
        Some((to_be_had.or_else(|| all().min())?, all().max()?))
    }
}

/// A number of cores or bytes.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds")]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn price(value: f64) -> Option<Price> {
    // No price is negative, and the provider reports zero for an unknown price.
    let believed = value > 0.0 && value <= DEAREST;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds")]
    believed.then(|| Price { micros: (value * MICROS).round() as u64 })
}

/// Name, labels and value.
type Sample<'p> = (&'p str, Vec<(&'p str, String)>, f64);

/// Parses a sample. `None` for a comment, an empty line or anything else.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, rest) = line.split_once('{')?;
    let mut labels = Vec::new();
    let mut rest = rest.trim_start();
    while !rest.starts_with('}') {
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.push((key.trim(), value));
        rest = after.trim_start_matches([',', ' ']);
    }
    let value = rest.strip_prefix('}')?.split_whitespace().next()?;
    Some((name.trim(), labels, value.parse().ok()?))
}

/// A label's unescaped value up to its closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{market as market_of, offer};

    const PAGE: &str = r#"# HELP karpenter_cloudprovider_instance_type_offering_available whether
# TYPE karpenter_cloudprovider_instance_type_offering_available gauge
karpenter_cloudprovider_instance_type_offering_available{capacity_type="on-demand",instance_type="p5.48xlarge",zone="a"} 0
karpenter_cloudprovider_instance_type_offering_available{capacity_type="on-demand",instance_type="p5.48xlarge",zone="b"} 1
karpenter_cloudprovider_instance_type_offering_available{capacity_type="spot",instance_type="p5.48xlarge",zone="a"} 0
karpenter_cloudprovider_instance_type_offering_available{capacity_type="spot",instance_type="p5.48xlarge",zone="b"} 0
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="on-demand",instance_type="p5.48xlarge",zone="b"} 98.32
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="spot",instance_type="p5.48xlarge",zone="b"} -1
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="spot",instance_type="p5.48xlarge",zone="a"} NaN
karpenter_cloudprovider_instance_type_offering_price_estimate{capacity_type="spot",instance_type="g5.
karpenter_cloudprovider_instance_type_cpu_cores{instance_type="p5.48xlarge"} 192
karpenter_cloudprovider_instance_type_memory_bytes{instance_type="p5.48xlarge"} 2.199023255552e+12
karpenter_cloudprovider_instance_type_cpu_cores{instance_type="p5.4xlarge"} 16
karpenter_cloudprovider_instance_type_memory_bytes{instance_type="p5.4xlarge"} -1
go_goroutines 12
"#;

    fn market() -> Market {
        Market::read(PAGE, Timestamp::UNIX_EPOCH).unwrap()
    }

    #[test]
    fn offerings_out_of_capacity_are_short_and_any_zone_only_if_none_is_left() {
        let exhausted: Vec<String> = market().exhausted().iter().map(ToString::to_string).collect();
        let expected = [("a", "any"), ("a", "on-demand"), ("a", "spot"), ("any", "spot"), ("b", "spot")];
        let expected = expected.map(|(zone, kind)| format!("p5.48xlarge ({kind} capacity in {zone} zone)"));
        assert_eq!(exhausted, expected);
    }

    #[test]
    fn prices_are_read_and_absurd_ones_left_out() {
        let most =
            |kind: &str| market().prices("p5.48xlarge", kind, |_| true).map(|(_, most)| most.to_string());
        assert_eq!(most("on-demand").as_deref(), Some("98.32"));
        assert_eq!(most("spot"), None);
        assert_eq!(market().prices("p5.48xlarge", "on-demand", |zone| zone == "a"), None);
        assert_eq!(market().prices("p5", "on-demand", |_| true), None);
    }

    #[test]
    fn absurd_prices_are_reported_with_their_number_and_the_first_except_zero() {
        let doubt = |prices: &[&str]| {
            let price = |price: &&str| offer("price_estimate", ["m5.large", "spot", "a"], price);
            let lines: String = prices.iter().map(price).collect();
            market_of(&(offer("available", ["m5.large", "spot", "a"], 1) + &lines)).price_warning()
        };
        assert_eq!(doubt(&["1", "0"]), None, "the provider reports 0 if it has no price");
        let one = "one price is absurd, 1000000 of m5.large, spot in a, and is left out";
        assert_eq!(doubt(&["1", "1e6"]).as_deref(), Some(one));
        let two = "2 prices are absurd, such as -3 of m5.large, spot in a, and are left out";
        assert_eq!(doubt(&["-3", "NaN"]).as_deref(), Some(two));
    }

    #[test]
    fn a_page_is_better_if_a_price_fell_or_a_size_grew_or_became_known() {
        let page = |price: u8, cores: Option<u8>| {
            let offering = ["m99.huge", "spot", "a"];
            let size = |cores| {
                let of = "{instance_type=\"m99.huge\"}";
                format!("{CORES}{of} {cores}\n{MEMORY}{of} 8589934592\n")
            };
            let offers = offer("available", offering, 1) + &offer("price_estimate", offering, price);
            market_of(&(offers + &cores.map(size).unwrap_or_default()))
        };
        let before = page(2, Some(8));
        for (after, is_better) in [
            (page(2, Some(8)), false),
            (page(3, Some(8)), false),
            (page(1, Some(8)), true),
            (page(2, Some(16)), true),
            (page(2, Some(4)), false),
            (page(2, None), false),
        ] {
            assert_eq!(after.is_better_than(Some(&before)), is_better, "{after:?}");
        }
        assert!(before.is_better_than(Some(&page(2, None))) && before.is_better_than(None));
    }

    #[test]
    fn offerings_out_of_capacity_count_for_the_highest_price_and_not_the_lowest() {
        let prices = |out: [&str; 2]| {
            let of = |(zone, price): (&'static str, u8)| {
                let offering = ["m5.large", "spot", zone];
                offer("available", offering, u8::from(!out.contains(&zone)))
                    + &offer("price_estimate", offering, price)
            };
            let page: String = [("a", 1), ("b", 2), ("c", 3)].map(of).concat();
            let (least, most) = market_of(&page).prices("m5.large", "spot", |zone| zone != "d").unwrap();
            [least, most].map(|price| price.to_string())
        };
        assert_eq!(prices(["a", "c"]), ["2", "3"]);
        assert_eq!(prices(["", ""]), ["1", "3"]);
    }

    #[test]
    fn prices_of_reserved_capacity_are_ignored() {
        let page = PAGE.to_owned()
            + &format!(
                "{AVAILABLE}{{capacity_type=\"reserved\",instance_type=\"p5.48xlarge\",zone=\"b\"}} 1\n"
            )
            + &format!(
                "{PRICE}{{capacity_type=\"reserved\",instance_type=\"p5.48xlarge\",zone=\"b\"}} 9.8e-06\n"
            );
        let market = Market::read(&page, Timestamp::UNIX_EPOCH).unwrap();
        let of = |kind| market.prices("p5.48xlarge", kind, |_| true);
        assert_eq!((of("reserved"), of("on-demand").is_some()), (None, true));
    }

    #[test]
    fn absurd_sizes_are_left_out() {
        for (cores, bytes, believed) in [
            ("2", "8e9", true),
            ("1e6", "8e9", false),
            ("2", "1e15", false),
            ("2", "1", false),
            ("0.5", "8e9", false),
        ] {
            let page = format!(
                "{AVAILABLE}{{instance_type=\"m5.large\",capacity_type=\"spot\",zone=\"a\"}} 1\n\
                 {CORES}{{instance_type=\"m5.large\"}} {cores}\n{MEMORY}{{instance_type=\"m5.large\"}} {bytes}\n"
            );
            let market = Market::read(&page, Timestamp::UNIX_EPOCH).unwrap();
            assert_eq!(market.size("m5.large").is_some(), believed, "{cores} {bytes}");
        }
    }

    #[test]
    fn a_machine_has_a_size_only_if_cores_and_memory_are_known() {
        let market = market();
        let size = market.size("p5.48xlarge").unwrap();
        assert_eq!((size["cpu"].0.as_str(), size["memory"].0.as_str()), ("192", "2199023255552"));
        assert_eq!(market.size("p5.4xlarge"), None);
    }

    #[test]
    fn a_page_is_cheaper_only_if_a_price_fell_or_became_known() {
        let page = |prices: &str| {
            let line = |(nth, price): (usize, &str)| {
                format!("{PRICE}{{capacity_type=\"spot\",instance_type=\"t{nth}\",zone=\"a\"}} {price}\n")
            };
            let available =
                format!("{AVAILABLE}{{capacity_type=\"spot\",instance_type=\"t0\",zone=\"a\"}} 1\n");
            let lines: String = prices.split(' ').enumerate().map(line).collect();
            Market::read(&(available + &lines), Timestamp::UNIX_EPOCH).unwrap()
        };
        for (before, now, cheaper) in [
            ("2 3", "2 3", false),
            ("2 3", "2.5 3.5", false),
            ("2 3", "9 2.9", true),
            ("2", "2 3", true),
            ("2 3", "2", false),
        ] {
            assert_eq!(page(now).is_better_than(Some(&page(before))), cheaper, "{before} then {now}");
        }
        assert!(page("2").is_better_than(None));
    }

    #[test]
    fn a_page_of_another_product_is_refused_and_labels_may_have_escapes() {
        assert_eq!(Market::read("go_goroutines 12\n<html>", Timestamp::UNIX_EPOCH), Err(NoOffers));
        let line = r#"a{x="1\"2\\3",y="z"} 4"#;
        let (name, labels, value) = sample(line).unwrap();
        assert_eq!((name, value), ("a", 4.0));
        assert_eq!(labels, [("x", "1\"2\\3".to_owned()), ("y", "z".to_owned())]);
    }
}
