//! Amounts as users write them in YAML: quantities that may be bare numbers, and money.

use super::pod::ResourceList;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Amounts by resource name; each may be written as `8` or as `"8Gi"`.
pub type Amounts = ResourceList;

/// A quantity or a whole number.
struct WrittenAmount(String);

impl<'de> Deserialize<'de> for WrittenAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;
        impl Visitor<'_> for AmountVisitor {
            type Value = WrittenAmount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 8, 1500m or 2000Gi")
            }

            fn visit_u64<E>(self, number: u64) -> Result<WrittenAmount, E> {
                Ok(WrittenAmount(number.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<WrittenAmount, E> {
                Ok(WrittenAmount(text.to_owned()))
            }
        }
        deserializer.deserialize_any(AmountVisitor)
    }
}

/// Reads amounts by resource name.
pub fn amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Amounts, D::Error> {
    let all = BTreeMap::<String, WrittenAmount>::deserialize(deserializer)?;
    Ok(all.into_iter().map(|(name, amount)| (name, Quantity(amount.0))).collect())
}

/// Reads amounts that may be absent.
pub fn some_amounts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Amounts>, D::Error> {
    let all = Option::<BTreeMap<String, WrittenAmount>>::deserialize(deserializer)?;
    Ok(all.map(|all| all.into_iter().map(|(name, amount)| (name, Quantity(amount.0))).collect()))
}

/// The schema of amounts by resource name.
pub fn amounts_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "x-kubernetes-int-or-string": true,
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?$",
        },
    })
}

/// An amount of money, exact to a millionth of its unit. Users see whole cents, rounded up, so that an amount above a limit
/// never looks equal to it. Programs get every digit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Price {
    /// Millionths of the unit.
    pub micros: u64,
}

const MICROS: u64 = 1_000_000;
/// Millionths of the unit in a hundredth of it.
pub const MICROS_OF_A_CENT: u64 = MICROS / 100;

impl Price {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { micros: self.micros.saturating_add(other.micros) }
    }

    /// In units, for metrics.
    #[expect(clippy::cast_precision_loss, reason = "a metric needs no more digits")]
    pub fn units(self) -> f64 {
        self.micros as f64 / MICROS as f64
    }

    /// With every digit, in the form that is parsed.
    pub fn exact(self) -> String {
        let (whole, rest) = (self.micros / MICROS, self.micros % MICROS);
        if rest == 0 {
            return whole.to_string();
        }
        let rest = format!("{rest:06}");
        let digits = rest.trim_end_matches('0');
        format!("{whole}.{digits:0<2}")
    }
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cents = self.micros.div_ceil(MICROS_OF_A_CENT);
        match (cents / 100, cents % 100) {
            (whole, 0) => write!(f, "{whole}"),
            (whole, cents) => write!(f, "{whole}.{cents:02}"),
        }
    }
}

impl std::str::FromStr for Price {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("{text:?} is not a price such as \"98.32\"");
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(rest) || rest.len() > 6 {
            return Err(bad());
        }
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        let rest: u64 = format!("{rest:0<6}").parse().map_err(|_| bad())?;
        let micros = whole.checked_mul(MICROS).and_then(|m| m.checked_add(rest)).ok_or_else(bad)?;
        Ok(Self { micros })
    }
}

/// A currency by its ISO 4217 code, such as USD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Currency([u8; 3]);

impl Default for Currency {
    fn default() -> Self {
        Self(*b"USD")
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| write!(f, "{}", char::from(*letter)))
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let code = <[u8; 3]>::try_from(text.as_bytes()).ok();
        let code = code.filter(|code| code.iter().all(u8::is_ascii_uppercase));
        code.map(Self).ok_or_else(|| D::Error::custom(format!("{text:?} is not a currency code such as USD")))
    }
}

impl JsonSchema for Currency {
    fn schema_name() -> Cow<'static, str> {
        "Currency".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Z]{3}$" })
    }
}

/// A price with its currency, as users see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Money {
    /// How much.
    pub price: Price,
    /// In which currency.
    pub currency: Currency,
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.price, self.currency)
    }
}

/// Sums of money, one for each currency.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct Sums(BTreeMap<Currency, Price>);

impl Sums {
    /// Adds money to the sum of its currency.
    pub fn add(&mut self, money: Money) {
        let sum = self.0.entry(money.currency).or_default();
        *sum = sum.plus(money.price);
    }

    /// Each sum, by currency.
    pub fn iter(&self) -> impl Iterator<Item = Money> {
        self.0.iter().map(|(currency, price)| Money { price: *price, currency: *currency })
    }
}

impl Serialize for Price {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.exact())
    }
}

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for Price {
    fn schema_name() -> Cow<'static, str> {
        "Price".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,6})?$" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_keeps_its_digits() {
        for (text, written, micros) in [
            ("98.32", "98.32", 98_320_000),
            ("2500", "2500", 2_500_000_000),
            ("0.5", "0.50", 500_000),
            ("21.957642", "21.957642", 21_957_642),
        ] {
            let price: Price = text.parse().unwrap();
            assert_eq!((serde_json::to_value(price).unwrap(), price.micros), (written.into(), micros));
        }
        for bad in ["", ".5", "5.", "-1", "1e3", "1.0000001", "99999999999999999999", "1,5"] {
            assert!(bad.parse::<Price>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_currency_is_three_capital_letters() {
        let read = |text: &str| serde_json::from_value::<Currency>(text.into());
        assert_eq!(read("EUR").unwrap().to_string(), "EUR");
        for bad in ["", "eur", "EURO", "E1R", "\u{20ac}"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prices_are_shown_in_whole_cents_rounded_up() {
        for (price, shown) in [
            ("21.957642", "21.96"),
            ("6.496", "6.50"),
            ("0.000001", "0.01"),
            ("1.999999", "2"),
            ("98.32", "98.32"),
            ("0", "0"),
            ("18446744073709.551615", "18446744073709.56"),
        ] {
            assert_eq!(price.parse::<Price>().unwrap().to_string(), shown);
        }
    }
}
