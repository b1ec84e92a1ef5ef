//! Shortages and known shapes, as users see them.

use crate::plan::offering::Offering;
use crate::plan::shape::Shape;
use crate::words::to_the_second;
use jiff::Timestamp;
use serde::Serialize;
use std::collections::BTreeSet;

/// Most offerings that are named.
const NAMED: usize = 2;

/// Who reports a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ShortageSource {
    /// A NodeClaim of Setu's was not launched.
    Launch,
    /// Karpenter's own metrics.
    Karpenter,
}

/// An offering that ran out of capacity lately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShortageEntry {
    /// The exhausted offering.
    #[serde(flatten)]
    pub offering: Offering,
    /// Until when it is kept.
    pub until: Timestamp,
    /// Who reports it.
    pub source: ShortageSource,
    /// The gang that tries there first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
}

/// Shortages and known shapes, for users.
#[derive(Serialize, Debug)]
pub struct CapacityReport {
    /// Offerings that ran out of capacity lately.
    pub shortages: Vec<ShortageEntry>,
    /// The shape of each instance type that was seen.
    pub shapes: Vec<Shape>,
}

/// Names which of these offerings ran out, and until when that is remembered; empty if none did.
pub fn named(wanted: &BTreeSet<Offering>, shortages: &[ShortageEntry]) -> String {
    let is_wanted = |exhausted: &&ShortageEntry| {
        let exhausted = BTreeSet::from([exhausted.offering.clone()]);
        wanted.iter().any(|offering| offering.is_in(&exhausted))
    };
    let those: Vec<&ShortageEntry> = shortages.iter().filter(is_wanted).collect();
    let Some(until) = those.iter().map(|s| s.until).min() else { return String::new() };
    let named: Vec<String> = those.iter().take(NAMED).map(|s| s.offering.to_string()).collect();
    let more = those.len().saturating_sub(NAMED);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    let who = if those.iter().all(|s| s.source == ShortageSource::Karpenter) {
        "by Karpenter's metrics "
    } else {
        ""
    };
    format!(
        ": {who}{}{more} ran out lately, and is not asked for until {}",
        named.join(", "),
        to_the_second(until)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;
    use serde_json::json;

    #[test]
    fn what_ran_out_is_named_with_the_first_time_at_which_it_is_asked_for_again() {
        let of = |pool: &str| {
            let spot = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot"]}]);
            Offering::among(pool, &serde_json::from_value::<Vec<_>>(spot).unwrap(), &[])
        };
        let exhausted = |pool: &str, until: &str| {
            let offering = of(pool).pop_first().unwrap();
            ShortageEntry {
                offering,
                until: until.parse().unwrap(),
                source: ShortageSource::Launch,
                turn: None,
            }
        };
        let all = [exhausted("gpu", "2026-11-21T10:15:02Z"), exhausted("other", "2026-11-21T10:14:00Z")];
        assert_eq!(
            named(&of("gpu"), &all),
            ": NodePool gpu (spot capacity in any zone) ran out lately, and is not asked for until 2026-11-21T10:15:02Z"
        );
        assert_eq!(named(&of("gpu"), &all[1..]), "");
    }
}
