//! What a NodeClaim may become: combinations of instance type, zone and capacity type.
//!
//! A provider runs out of exactly such combinations, so shortages are remembered in these terms, by
//! all gangs together. Where a claim leaves the type open, the NodePool stands for it.

use super::requirements::Requirements;
use crate::api::NodeClaim;
use crate::api::node_claim::Requirement;
use crate::names;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// Stands for whatever zone or capacity type the provider takes.
const ANY: &str = "any";
/// More combinations than this are told by their NodePool alone.
const MOST: usize = 2_048;

/// One combination.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Offering {
    /// The machine.
    #[serde(flatten)]
    pub what: What,
    /// Zone, or `any`.
    pub zone: String,
    /// Capacity type, or `any`.
    pub capacity_type: String,
}

/// The machine of an offering.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// An instance type.
    InstanceType(String),
    /// Whatever type a NodePool gives.
    NodePool(String),
}

impl Offering {
    /// Every combination that a claim may become.
    pub fn of(claim: &NodeClaim) -> BTreeSet<Self> {
        Self::among(claim.label(names::NODEPOOL), &claim.spec.requirements)
    }

    /// Every combination that a claim of this NodePool with these requirements may become.
    pub fn among(node_pool: &str, list: &[Requirement]) -> BTreeSet<Self> {
        let mut requirements = Requirements::default();
        // What cannot be read narrows nothing.
        let _ = requirements.add_all(list);
        let listed = |key: &str| -> Option<Vec<String>> {
            let values = requirements.get(key)?.listed()?;
            Some(values.iter().cloned().collect())
        };
        let or_any = |key: &str| listed(key).unwrap_or_else(|| vec![ANY.to_owned()]);
        let (zones, capacity_types) = (or_any(names::ZONE), or_any(names::CAPACITY_TYPE));
        let pool = || vec![What::NodePool(node_pool.to_owned())];
        let few = |types: &Vec<String>| types.len() * zones.len() * capacity_types.len() <= MOST;
        let whats = listed(names::INSTANCE_TYPE)
            .filter(few)
            .map_or_else(pool, |types| types.into_iter().map(What::InstanceType).collect());
        let mut all = BTreeSet::new();
        for what in whats {
            for zone in &zones {
                for capacity_type in &capacity_types {
                    let (zone, capacity_type) = (zone.clone(), capacity_type.clone());
                    all.insert(Self { what: what.clone(), zone, capacity_type });
                }
            }
        }
        all
    }

    /// Whether it is out of capacity: itself, or a wider one that has it in it.
    pub fn is_in(&self, short: &BTreeSet<Self>) -> bool {
        let with = |zone: &str, capacity_type: &str| {
            let (zone, capacity_type) = (zone.to_owned(), capacity_type.to_owned());
            short.contains(&Self { what: self.what.clone(), zone, capacity_type })
        };
        short.contains(self) || with(ANY, &self.capacity_type) || with(&self.zone, ANY) || with(ANY, ANY)
    }
}

impl fmt::Display for Offering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::InstanceType(name) => write!(f, "{name}")?,
            What::NodePool(name) => write!(f, "NodePool {name}")?,
        }
        write!(f, " ({} capacity in {} zone)", self.capacity_type, self.zone)
    }
}

/// Whether nothing that a claim may become has capacity, as far as is remembered.
pub fn is_short(claim: &NodeClaim, short: &BTreeSet<Offering>) -> bool {
    !short.is_empty() && Offering::of(claim).iter().all(|offering| offering.is_in(short))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(requirements: &[(&str, &[&str])]) -> NodeClaim {
        let list: Vec<_> = requirements
            .iter()
            .map(|(key, values)| json!({"key": key, "operator": "In", "values": values}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": {(names::NODEPOOL): "gpu"}},
            "spec": {"requirements": list, "nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_may_become_every_combination_it_lists() {
        let types: (&str, &[&str]) = (names::INSTANCE_TYPE, &["a", "b"]);
        assert_eq!(Offering::of(&claim(&[types, (names::ZONE, &["x", "y", "z"])])).len(), 6);
        let open = Offering::of(&claim(&[]));
        let text = serde_json::to_value(open.first().unwrap()).unwrap();
        assert_eq!(text, json!({"nodePool": "gpu", "zone": "any", "capacityType": "any"}));
    }

    #[test]
    fn a_claim_is_short_only_if_nothing_it_may_become_is_left() {
        let both = claim(&[(names::INSTANCE_TYPE, &["a", "b"]), (names::ZONE, &["x"])]);
        let one = claim(&[(names::INSTANCE_TYPE, &["a"]), (names::ZONE, &["x"])]);
        let spot = claim(&[
            (names::INSTANCE_TYPE, &["a"]),
            (names::ZONE, &["x"]),
            (names::CAPACITY_TYPE, &["spot"]),
        ]);
        assert!(!is_short(&both, &Offering::of(&one)));
        assert!(is_short(&one, &Offering::of(&both)) && is_short(&both, &Offering::of(&both)));
        assert!(is_short(&spot, &Offering::of(&one)), "any capacity type was out, so spot was");
        assert!(!is_short(&one, &Offering::of(&spot)), "on-demand may be there");
        assert!(!is_short(&one, &BTreeSet::new()));
        assert!(!is_short(&one, &Offering::of(&claim(&[]))), "another type of the NodePool was out");
    }
}
