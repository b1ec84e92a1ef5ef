//! What no price is known for, and how it is told.

use crate::words::few;
use std::collections::BTreeSet;
use std::fmt;

/// What no price is known for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unpriced {
    /// Nodes of a type that nobody names.
    OpenType,
    /// An instance type with a capacity type, and the region where that is known.
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

/// What no price is known for, in words, and what several things of it have in common.
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
