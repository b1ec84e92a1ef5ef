//! What has no known price, and how it is reported.

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
