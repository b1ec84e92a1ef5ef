//! Kubernetes quantities as exact numbers.
//!
//! Amounts are counted in billionths, the finest unit of Kubernetes, so that sums and comparisons are exact. (With the existing
//! crate, `500m` plus `1` gives 513.00005.) Amounts over 10^29 are refused.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in one.
pub const ONE: i128 = 1_000_000_000;

/// An exact amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

impl Amount {
    /// Parses `500m`, `2`, `1.5Gi`, `1e3` and the like.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(end)?;
        let (numerator, denominator) = scale(suffix)?;
        let (digits, decimals) = decimal(number)?;
        let shift = 10_i128.checked_pow(decimals)?;
        let nanos = digits.checked_mul(numerator)?.checked_mul(ONE)?;
        // Fractions of a billionth are rounded up, as in Kubernetes.
        let divisor = shift.checked_mul(denominator)?;
        let rest = i128::from(nanos.rem_euclid(divisor) != 0);
        Some(Self(nanos.div_euclid(divisor).checked_add(rest)?))
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference; zero if `other` is larger.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0).max(0))
    }

    /// The amount multiplied by `count`.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        Self(self.0.saturating_mul(i128::from(count)))
    }

    /// The amount divided by `of`.
    #[must_use]
    pub fn part(self, of: u32) -> Self {
        Self(self.0 / i128::from(of.max(1)))
    }

    /// The amount in billionths.
    pub fn nanos(self) -> i128 {
        self.0
    }

    /// The amount in the largest binary unit that divides it, such as `512Gi`. `None` if 1Ki does not divide it.
    pub fn in_binary_units(self) -> Option<String> {
        UNITS.into_iter().find_map(|unit| self.whole_in(unit).filter(|_| self.0 != 0))
    }

    /// Both amounts in the largest binary unit that divides both, or else in bytes.
    pub fn in_one_unit(self, other: Self) -> (String, String) {
        let both = UNITS.into_iter().find_map(|unit| Some((self.whole_in(unit)?, other.whole_in(unit)?)));
        both.unwrap_or_else(|| (self.in_decimals(), other.in_decimals()))
    }

    /// The amount as a decimal number, such as `382.97`.
    pub fn in_decimals(self) -> String {
        let (whole, rest) = (self.0 / ONE, (self.0 % ONE).abs());
        let rest = format!("{rest:09}");
        let rest = rest.trim_end_matches('0');
        if rest.is_empty() { whole.to_string() } else { format!("{whole}.{rest}") }
    }

    /// The amount in this unit. `None` if the unit does not divide it.
    fn whole_in(self, unit: &str) -> Option<String> {
        let size = scale(unit)?.0.checked_mul(ONE)?;
        (self.0 % size == 0).then(|| format!("{}{unit}", self.0 / size))
    }
}

impl From<Amount> for Quantity {
    fn from(amount: Amount) -> Self {
        let nanos = amount.0;
        Self(match (nanos % ONE, nanos % 1_000_000) {
            (0, _) => (nanos / ONE).to_string(),
            (_, 0) => format!("{}m", nanos / 1_000_000),
            _ => format!("{nanos}n"),
        })
    }
}

/// Binary units, the largest first.
const UNITS: [&str; 6] = ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"];

/// The factor of a suffix, as a fraction.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let decimal = |power: u32| 10_i128.checked_pow(power).map(|n| (n, 1));
    let binary = |power: u32| 1024_i128.checked_pow(power).map(|n| (n, 1));
    match suffix {
        "" => Some((1, 1)),
        "n" => Some((1, ONE)),
        "u" => Some((1, 1_000_000)),
        "m" => Some((1, 1_000)),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let size = 10_i128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, size) } else { (size, 1) })
        }
    }
}

/// The digits without the point, and the number of digits after it.
fn decimal(number: &str) -> Option<(i128, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let unsigned = whole.strip_prefix(['+', '-']).unwrap_or(whole);
    let all_digits = unsigned.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit());
    if !all_digits || (unsigned.is_empty() && fraction.is_empty()) {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse().ok()?;
    Some((digits, u32::try_from(fraction.len()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amount(text: &str) -> Amount {
        Amount::parse(text).unwrap_or_else(|| panic!("{text} was not read"))
    }

    #[test]
    fn every_notation_of_kubernetes_is_read() {
        for (left, right) in [
            ("1", "1000m"),
            ("1Gi", "1073741824"),
            ("1.5Gi", "1610612736"),
            ("1e3", "1k"),
            ("1E", "1000P"),
            ("5e-1", "500m"),
            (".5", "500m"),
            ("0.1", "100m"),
            ("100u", "100000n"),
            ("-1", "-1000m"),
        ] {
            assert_eq!(amount(left), amount(right), "{left} {right}");
        }
    }

    #[test]
    fn binary_units_are_used_only_if_they_divide_the_amount() {
        let shown = |text: &str| amount(text).in_binary_units();
        assert_eq!(shown("2048Mi").as_deref(), Some("2Gi"));
        assert_eq!(shown("1536Mi").as_deref(), Some("1536Mi"));
        assert_eq!((shown("1000"), shown("0"), shown("0.5")), (None, None, None));
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", " ", "lots", "1x", "1.2.3", "--1", "1 Gi", "1Gib", "e3", ".", "9e99", "1_0", "٣"] {
            assert_eq!(Amount::parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_amount_survives_a_round_trip_through_text(nanos in -1_000_000_000_000_i128..1_000_000_000_000_000) {
            let Quantity(text) = Amount(nanos).into();
            prop_assert_eq!(Amount::parse(&text), Some(Amount(nanos)), "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[-+.0-9eEinumkKMGTP]{0,40}") {
            let _ = Amount::parse(&text);
        }
    }
}
