//! A span of time as users write it in YAML: `90s`, `15m`, `1h30m`.

use humantime::DurationError;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

/// A non-negative span of time with the precision of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub std::time::Duration);

impl Span {
    /// A span of whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(std::time::Duration::from_secs(seconds))
    }

    /// A span of whole minutes.
    pub const fn minutes(minutes: u64) -> Self {
        Self::seconds(minutes * 60)
    }

    /// As a signed duration, for arithmetic with timestamps; at most a century.
    pub fn signed(self) -> jiff::SignedDuration {
        const CENTURY: u64 = 100 * 366 * 86_400;
        jiff::SignedDuration::try_from(self.0.min(std::time::Duration::from_secs(CENTURY)))
            .unwrap_or(jiff::SignedDuration::ZERO)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(3_600, "h"), (60, "m"), (1, "s")];
        let mut seconds = self.0.as_secs();
        for (size, unit) in UNITS {
            if seconds >= size {
                write!(f, "{}{unit}", seconds / size)?;
                seconds %= size;
            }
        }
        match self.0.subsec_millis() {
            0 if self.0.as_secs() == 0 => f.write_str("0s"),
            0 => Ok(()),
            millis => write!(f, "{millis}ms"),
        }
    }
}

/// Accepted units.
const UNITS: [&str; 26] = [
    "millis", "msec", "ms", "seconds", "second", "secs", "sec", "s", "minutes", "minute", "mins", "min", "m",
    "hours", "hour", "hrs", "hr", "h", "days", "day", "d", "weeks", "week", "wks", "wk", "w",
];

/// Why a text is not a span.
#[derive(Debug, thiserror::Error)]
pub enum SpanError {
    /// It has a wrong form.
    #[error(transparent)]
    Form(DurationError),
    /// A policy has no spans in months, years or units below a millisecond.
    #[error("{0} is not a unit: write ms, s, m, h, d or w")]
    Unit(String),
}

impl std::str::FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let span = humantime::parse_duration(text).map(Self).map_err(|error| match error {
            DurationError::UnknownUnit { unit, .. } if !unit.is_empty() => SpanError::Unit(unit),
            other => SpanError::Form(other),
        })?;
        let mut units = text.split(|c: char| !c.is_alphabetic()).filter(|unit| !unit.is_empty());
        units
            .find(|unit| !UNITS.contains(unit))
            .map_or(Ok(span), |unit| Err(SpanError::Unit(unit.to_owned())))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;
        impl serde::de::Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string with a duration such as 90s or 15m")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                let bad = |e| E::custom(format!("{text:?} is not a valid duration such as 90s or 15m: {e}"));
                text.parse().map_err(bad)
            }
        }
        deserializer.deserialize_str(SpanVisitor)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let units = UNITS.join("|");
        json_schema!({ "type": "string", "pattern": format!("^([0-9]+([.][0-9]+)? *({units}) *)+$") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_spans_with_accepted_units_are_parsed() {
        for text in ["90s", "1h30m", "1h 30m", "1.5h", "2 weeks", "0s", "250ms", "15 mins"] {
            assert!(text.parse::<Span>().is_ok(), "{text}");
        }
        for text in ["100ns", "3us", "1M", "1y", "5years", "2 months", "90", "-5s", "", "s"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        assert_eq!(
            "5 lunches".parse::<Span>().unwrap_err().to_string(),
            "lunches is not a unit: write ms, s, m, h, d or w"
        );
        assert_eq!(
            "1M".parse::<Span>().unwrap_err().to_string(),
            "M is not a unit: write ms, s, m, h, d or w"
        );
    }

    #[test]
    fn a_span_is_shown_in_hours_and_less_and_parsed_again() {
        for (text, shown) in [
            ("24h", "24h"),
            ("1d 90s", "24h1m30s"),
            ("15m", "15m"),
            ("1500ms", "1s500ms"),
            ("0s", "0s"),
            ("250ms", "250ms"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string(), shown);
            assert_eq!(shown.parse::<Span>().unwrap(), span);
        }
    }
}
