//! Missing prices, and how they are reported.

use super::Cost;
use crate::words::few;
use std::collections::BTreeSet;
use std::fmt;

/// Something without a known price.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unpriced {
    /// Nodes whose claim names no instance type.
    OpenType,
    /// An instance type with a capacity type, and the region if it is known.
    Type(String, String, Option<String>),
}

impl fmt::Display for Unpriced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenType => f.write_str("nodes whose instance type is open"),
            Self::Type(name, kind, None) => write!(f, "{name}, {kind}"),
            Self::Type(name, kind, Some(region)) => write!(f, "{name}, {kind}, {region}"),
        }
    }
}

/// Lists what has no known price, and what several entries have in common.
pub fn in_words(missing: &BTreeSet<Unpriced>) -> (String, Vec<String>) {
    let (mut names, mut kinds, mut regions) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for one in missing {
        let Unpriced::Type(name, kind, region) = one else { continue };
        names.insert(name.as_str());
        kinds.insert(kind.as_str());
        regions.extend(region.as_deref());
    }
    if missing.len() < 2 || missing.contains(&Unpriced::OpenType) {
        let all: Vec<String> = missing.iter().map(ToString::to_string).collect();
        return (few(all.iter().map(String::as_str)), Vec::new());
    }
    let any_of = |values: BTreeSet<&str>| values.into_iter().collect::<Vec<_>>().join(" or ");
    let common = [any_of(kinds), any_of(regions)];
    (few(names.into_iter()), common.into_iter().filter(|words| !words.is_empty()).collect())
}

impl Cost {
    /// A note about missing prices for the reader of a plan. `None` if every price is known.
    pub fn note(&self) -> Option<String> {
        match self.unpaid() {
            Some(lack) => Some(format!("{lack}, so the total cost is unknown: {}", self.remedy())),
            None if self.simulated > 0 => Some("nodes of kwok are simulated and cost nothing".to_owned()),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_how_to_state_a_missing_price_and_that_simulated_nodes_cost_nothing() {
        let missing = BTreeSet::from([Unpriced::Type("p5".into(), "spot".into(), None)]);
        let unpriced = Cost { unpriced: 2, missing, ..Cost::default() };
        assert_eq!(
            unpriced.note().as_deref(),
            Some(
                "no price for p5, spot (2 nodes), so the total cost is unknown: let Setu read Karpenter's metrics \
                 (--karpenter-metrics), or state prices under gates.budget.prices"
            )
        );
        let simulated = Cost { simulated: 2, ..unpriced };
        assert_eq!(simulated.note().as_deref(), Some("nodes of kwok are simulated and cost nothing"));
        let priced = Cost { priced: 2, ..Cost::default() };
        assert_eq!(priced.note(), None);
    }
}
