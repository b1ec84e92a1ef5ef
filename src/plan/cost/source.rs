//! Where a price is known from.

use jiff::{Timestamp, Unit};
use std::fmt;

/// Where a price is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PriceSource {
    /// The policy states it.
    Policy,
    /// Karpenter's metrics told it at this time.
    Metrics(Timestamp),
    /// The catalogue of this day has it.
    Catalogue(&'static str),
}

impl fmt::Display for PriceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("the policy"),
            Self::Metrics(read) => {
                write!(f, "Karpenter's metrics, read {}", read.round(Unit::Second).unwrap_or(*read))
            }
            Self::Catalogue(date) => write!(f, "the catalogue of {date}"),
        }
    }
}
