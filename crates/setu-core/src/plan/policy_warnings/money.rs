//! Prices and multipliers that are probably mistakes.

use crate::api::amount::{Currency, Price};
use crate::api::parameters::{Budget, CAPACITY_TYPES};
use crate::plan::catalogue::{self, Catalogue, ListPrice};
use crate::policy::path::{Finding, Path};

/// API group of the provider whose instance types are all in the catalogue.
const EC2: &str = "karpenter.k8s.aws";
/// In dollars, a price above this many times the list price is probably a mistake, and so is a multiplier above this.
const FACTOR: u64 = 10;
/// A price below the list price divided by this is probably a mistake too: no discount is that high. So is a multiplier below 1/`PART`.
const PART: u64 = 20;
const MICROS: u64 = 1_000_000;
/// More than any machine costs per hour, in millionths.
const MOST_EXPENSIVE: u64 = 10_000 * MICROS;

/// Reports prices that are zero, far from the list price or of unknown types, multipliers with such faults, and list prices that
/// count unchanged in another currency.
pub fn absurd(at: &Path, budget: &Budget) -> Vec<Finding> {
    let in_dollars = budget.currency.unwrap_or_default() == Currency::default();
    let Some(catalogue) = catalogue::of(EC2) else { return Vec::new() };
    let mut found = Vec::new();
    if !in_dollars && budget.multiplier.is_none() && budget.prices.is_none() {
        let why = "list prices are in USD, and count unchanged in this currency without budget.multiplier";
        found.push((at.key("currency"), why.to_owned()));
    }
    for (name, prices) in budget.prices.iter().flatten() {
        let at = at.key("prices").key(name);
        found.extend(unknown(name, catalogue, "price").map(|why| (at.clone(), why)));
        for (kind, price) in prices {
            let why = of_price(*price, name).filter(|_| in_dollars || price.micros == 0);
            found.extend(why.map(|why| (at.key(kind), why)));
        }
    }
    for (key, factor) in budget.multiplier.iter().flatten() {
        let why = of_multiplier(*factor, in_dollars).or_else(|| of_key(key, catalogue));
        found.extend(why.map(|why| (at.key("multiplier").key(key), why)));
    }
    found
}

/// EC2 names have one dot, between family and size; names of other providers have none.
fn is_of_ec2(name: &str) -> bool {
    name.split('.').count() == 2
}

/// Reports an instance type that has the form of an EC2 name but is not in the EC2 catalogue.
fn unknown(name: &str, catalogue: &Catalogue, what: &str) -> Option<String> {
    (is_of_ec2(name) && catalogue.get(name).is_none()).then(|| {
        format!(
            "the catalogue of {} knows no instance type {name}, so the {what} may never count",
            catalogue.date()
        )
    })
}

/// As `unknown`, but only if the catalogue has other types of the family.
pub fn misspelt(name: &str, what: &str) -> Option<String> {
    let (catalogue, family) = (catalogue::of(EC2)?, name.split_once('.')?.0);
    let is_of_family = |known: &str| known.split_once('.').is_some_and(|(of, _)| of == family);
    unknown(name, catalogue, what).filter(|_| catalogue.names().any(is_of_family))
}

/// Says what is odd about a price, compared with the list price of any provider that has the type; `None` if nothing is.
fn of_price(price: Price, name: &str) -> Option<String> {
    if price.micros == 0 {
        return Some(
            "0 is not a price: the nodes would cost nothing; leave it out where it is not known".to_owned(),
        );
    }
    if let Some(ListPrice::Usual(list)) = catalogue::all().find_map(|catalogue| catalogue.price(name, None)) {
        let is_more = price.micros > list.micros.saturating_mul(FACTOR);
        let is_less = price.micros < list.micros / PART;
        let (times, than) =
            if is_more { (format!("{FACTOR} times"), "more") } else { (format!("1/{PART} of"), "less") };
        return (is_more || is_less)
            .then(|| format!("{} is {than} than {times} the list price, {list} an hour", price.exact()));
    }
    (price.micros > MOST_EXPENSIVE).then(|| format!("{price} an hour is more than any machine costs"))
}

fn of_multiplier(factor: Price, in_dollars: bool) -> Option<String> {
    if factor.micros == 0 {
        return Some("0 makes every price nothing, so that no budget is kept".to_owned());
    }
    let is_odd = factor.micros > FACTOR * MICROS || factor.micros < MICROS / PART;
    (in_dollars && is_odd).then(|| {
        let factor = factor.exact();
        format!("{factor} times the price is hardly meant where currency is USD: 0.7 takes 30 % off")
    })
}

/// Reports the key of a multiplier that is no capacity type, instance type or family.
fn of_key(key: &str, catalogue: &Catalogue) -> Option<String> {
    if let Some(kind) = CAPACITY_TYPES.iter().find(|kind| **kind != key && kind.eq_ignore_ascii_case(key)) {
        return Some(format!("no capacity type is named {key}; did you mean {kind}?"));
    }
    let knows = |of: &Catalogue| of.get(key).is_some() || of.families().any(|family| family == key);
    let is_known = CAPACITY_TYPES.contains(&key) || catalogue::all().any(knows);
    // Other providers use names of another form.
    let is_ec2 = is_of_ec2(key) || key.chars().any(|c| c.is_ascii_digit()) && !key.contains(['_', '-']);
    (is_ec2 && !is_known).then(|| {
        format!(
            "the catalogue of {} knows no family or instance type {key}, so it may never count",
            catalogue.date()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(budget: &serde_json::Value) -> Vec<String> {
        absurd(&Path::default(), &serde_json::from_value(budget.clone()).unwrap())
            .into_iter()
            .map(|(_, why)| why)
            .collect()
    }

    #[test]
    fn only_odd_prices_and_multipliers_are_reported() {
        let price = |name: &str, price: &str| json!({"prices": {name: {"on-demand": price}}});
        for (budget, words) in [
            (price("p5.48xlarge", "0"), Some("0 is not a price")),
            (price("p5.48xlarge", "99999999"), Some("99999999 is more than 10 times the list price")),
            (price("Standard_ND96isr", "99999999"), Some("an hour is more than any machine costs")),
            (price("p5.84xlarge", "98"), Some("knows no instance type p5.84xlarge")),
            (price("p5.48xlarge", "0.001"), Some("0.001 is less than 1/20 of the list price")),
            (price("p5.48xlarge", "98.32"), None),
            (price("Standard_D4s_v5", "9"), Some("9 is more than 10 times the list price, ")),
            (price("Standard_ND96isr_H100_v5", "1"), Some("1 is less than 1/20 of the list price")),
            (price("Standard_D4s_v5", "0.19"), None),
            (price("e2-standard-4", "9"), Some("9 is more than 10 times the list price, ")),
            (price("e2-standard-4", "0.001"), Some("0.001 is less than 1/20 of the list price")),
            (price("e2-standard-4", "0.13"), None),
            (price("Standard_ND96isr", "98.32"), None),
            (json!({"multiplier": {"p5": "1000"}}), Some("1000 times the price is hardly meant")),
            (json!({"multiplier": {"spot": "0"}}), Some("0 makes every price nothing")),
            (json!({"multiplier": {"on-demand": "0.0001"}}), Some("0.0001 times the price is hardly meant")),
            (json!({"multiplier": {"Spot": "0.5"}}), Some("did you mean spot?")),
            (json!({"currency": "EUR"}), Some("list prices are in USD")),
            (json!({"multiplier": {"p55": "0.7"}}), Some("knows no family or instance type p55")),
            (json!({"multiplier": {"p5": "0.7", "p5.48xlarge": "0.5", "reserved": "0.1"}}), None),
            (json!({"currency": "JPY", "multiplier": {"on-demand": "150"}}), None),
            (json!({"currency": "JPY", "prices": {"p5.48xlarge": {"on-demand": "15000"}}}), None),
        ] {
            let found = found(&budget);
            let is_reported = words.is_none_or(|words| found.iter().any(|why| why.contains(words)));
            assert!(is_reported && found.len() == usize::from(words.is_some()), "{budget}: {found:?}");
        }
    }
}
