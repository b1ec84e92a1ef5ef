//! Offerings that a NodeClaim may become: combinations of instance type, zone and capacity type, and values of other labels by
//! which the policy distinguishes topology domains.
//!
//! A provider runs out of exactly such combinations, so shortages are recorded in these terms, for all gangs together. If a claim
//! leaves the type open, the NodePool stands for it, with all machine requirements: a shortage of one family says nothing about
//! another.

use super::shape::is_of_machine;
use crate::api::NodeClaim;
use crate::api::node_claim::Requirement;
use crate::api::requirements::{Requirements, normalized};
use crate::digest::hex_digest;
use crate::names;
use crate::policy::Policy;
use crate::words::few;
use jiff::SignedDuration;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// How long a shortage of capacity is kept: as long as in AWS' own cache.
pub const SHORTAGE_TTL: SignedDuration = SignedDuration::from_mins(3);
/// Stands for any zone or capacity type that the provider picks.
pub const ANY: &str = "any";
/// With more combinations than this, the NodePool stands for the types.
const MOST_OFFERINGS: usize = 2_048;
/// Labels that an offering states in other fields.
const OWN_LABELS: [&str; 4] = [names::ZONE, names::CAPACITY_TYPE, names::INSTANCE_TYPE, names::NODEPOOL];
/// Longest text of machine requirements. A longer text is replaced by its digest.
const LONGEST: usize = 200;

/// One combination.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Offering {
    /// The machine.
    #[serde(flatten)]
    pub what: What,
    /// The machine requirements as text if the type is open. Empty if there are none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Zone, or `any`.
    pub zone: String,
    /// Capacity type, or `any`.
    pub capacity_type: String,
    /// Values of the labels, besides the zone, by which the policy distinguishes topology domains, as text. Empty for any.
    #[serde(rename = "place", skip_serializing_if = "String::is_empty")]
    pub domain: String,
}

/// The machine of an offering.
#[derive(Serialize, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum What {
    /// An instance type.
    InstanceType(String),
    /// Any type that a NodePool gives.
    NodePool(String),
}

impl Offering {
    /// Every combination that a claim may become, with domains distinguished by these labels.
    pub fn of(claim: &NodeClaim, domain_keys: &[String]) -> BTreeSet<Self> {
        Self::among(claim.label(names::NODEPOOL), &claim.spec.requirements, domain_keys)
    }

    /// Every combination that a claim of this NodePool with these requirements may become, with domains distinguished by these
    /// labels.
    pub fn among(node_pool: &str, list: &[Requirement], domain_keys: &[String]) -> BTreeSet<Self> {
        let requirements = Requirements::readable(list);
        let listed = |key: &str| -> Option<Vec<String>> {
            let values = requirements.get(key)?.listed()?;
            Some(values.iter().cloned().collect())
        };
        let or_any = |key: &str| listed(key).unwrap_or_else(|| vec![ANY.to_owned()]);
        let (mut zones, mut capacity_types) = (or_any(names::ZONE), or_any(names::CAPACITY_TYPE));
        // A tenant can name any number of values.
        capacity_types.truncate(MOST_OFFERINGS);
        zones.truncate((MOST_OFFERINGS / capacity_types.len().max(1)).max(1));
        let pool = || vec![(What::NodePool(node_pool.to_owned()), machine(&requirements))];
        let few = |types: &Vec<String>| types.len() * zones.len() * capacity_types.len() <= MOST_OFFERINGS;
        let types = listed(names::INSTANCE_TYPE).filter(few);
        // If the type is open, `machine` already covers the machine labels.
        let keys = domain_keys.iter().filter(|key| types.is_some() || !is_of_machine(key));
        let whats = types.as_ref().map_or_else(pool, |types| {
            types.iter().map(|t| (What::InstanceType(t.clone()), String::new())).collect()
        });
        let room = MOST_OFFERINGS / (whats.len() * zones.len() * capacity_types.len()).max(1);
        let lists = keys.filter_map(|key| Some((key.as_str(), listed(key)?))).collect();
        let domains =
            domains(lists).filter(|domains| domains.len() <= room).unwrap_or_else(|| vec![String::new()]);
        let mut all = BTreeSet::new();
        for (what, machine) in whats {
            for zone in &zones {
                for capacity_type in &capacity_types {
                    for domain in &domains {
                        let (what, machine, domain) = (what.clone(), machine.clone(), domain.clone());
                        let (zone, capacity_type) = (zone.clone(), capacity_type.clone());
                        all.insert(Self { what, machine, zone, capacity_type, domain });
                    }
                }
            }
        }
        all
    }

    /// Whether it is out of capacity, itself or as part of a wider offering.
    pub fn is_in(&self, exhausted: &BTreeSet<Self>) -> bool {
        let with = |machine: &str, domain: &str, zone: &str, capacity_type: &str| {
            exhausted.contains(&Self {
                what: self.what.clone(),
                machine: machine.to_owned(),
                zone: zone.to_owned(),
                capacity_type: capacity_type.to_owned(),
                domain: domain.to_owned(),
            })
        };
        let (zone, capacity_type) = (self.zone.as_str(), self.capacity_type.as_str());
        let kinds = [(zone, capacity_type), (ANY, capacity_type), (zone, ANY), (ANY, ANY)];
        let any_kind = |machine: &str, domain: &str| {
            kinds.into_iter().any(|(zone, capacity_type)| with(machine, domain, zone, capacity_type))
        };
        let machines = [self.machine.as_str(), ""];
        machines
            .into_iter()
            .any(|machine| [self.domain.as_str(), ""].into_iter().any(|p| any_kind(machine, p)))
    }
}

impl fmt::Display for Offering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::InstanceType(name) => write!(f, "{name}")?,
            What::NodePool(name) => write!(f, "NodePool {name}")?,
        }
        if !self.machine.is_empty() {
            write!(f, " with {}", self.machine)?;
        }
        write!(f, " ({} capacity in {} zone", self.capacity_type, self.zone)?;
        if self.domain.is_empty() { f.write_str(")") } else { write!(f, ", {})", self.domain) }
    }
}

/// The machine requirements as text, equal for equal requirements.
fn machine(requirements: &Requirements) -> String {
    let all = requirements.iter().filter(|(key, _)| is_of_machine(key));
    let text = all.map(|(key, values)| format!("{key} {}", values.words())).collect::<Vec<_>>().join(", ");
    if text.len() > LONGEST { format!("requirements {}", hex_digest(&[&text], 4)) } else { text }
}

/// Labels by which a policy distinguishes domains and that an offering does not state in other fields: the shared label and the
/// labels in tier requirements. Never labels that pods ask for, because tenants write those.
pub fn domain_keys(policy: &Policy) -> Vec<String> {
    let shared = policy.colocation.iter().map(|colocation| colocation.topology_key.as_str());
    let asked = policy.tiers.iter().flat_map(|tier| &tier.requirements).map(|r| r.key.as_str());
    // Machines are distinguished by their types.
    let reserved = policy.tiers.iter().any(|tier| !tier.reservations.is_empty());
    let reserved = reserved.then_some(names::RESERVATION_ID);
    let asked = asked.filter(|key| !is_of_machine(normalized(key)));
    let all = shared.chain(asked).chain(reserved).map(normalized);
    let keys: BTreeSet<&str> = all.filter(|key| !OWN_LABELS.contains(key)).collect();
    keys.into_iter().map(str::to_owned).collect()
}

/// Every combination of the values of these labels, as text. `None` if there are too many.
fn domains(lists: Vec<(&str, Vec<String>)>) -> Option<Vec<String>> {
    let mut all = vec![String::new()];
    for (key, values) in lists {
        if all.len().saturating_mul(values.len()) > MOST_OFFERINGS {
            return None;
        }
        let with = |domain: &String, value: &String| {
            let comma = if domain.is_empty() { "" } else { ", " };
            format!("{domain}{comma}{key} {value}")
        };
        all = all.iter().flat_map(|domain| values.iter().map(move |value| with(domain, value))).collect();
    }
    Some(all)
}

/// Whether every offering that a claim may become is in `exhausted`, with domains distinguished by these labels.
pub fn is_exhausted(claim: &NodeClaim, domain_keys: &[String], exhausted: &BTreeSet<Offering>) -> bool {
    !exhausted.is_empty() && Offering::of(claim, domain_keys).iter().all(|offering| offering.is_in(exhausted))
}

/// Describes the request of a claim of this NodePool with these requirements, for users: `on-demand g5.48xlarge in us-east-1a`.
/// Empty if its NodePool is not known.
pub fn describe_request(node_pool: &str, list: &[Requirement]) -> String {
    if node_pool.is_empty() {
        return String::new();
    }
    let requirements = Requirements::readable(list);
    let listed = |key: &str| {
        let values = requirements.get(key)?.listed()?;
        Some(few(values.iter().map(String::as_str)))
    };
    let capacity_types = listed(names::CAPACITY_TYPE).map_or_else(String::new, |types| format!("{types} "));
    let types = listed(names::INSTANCE_TYPE).unwrap_or_else(|| format!("nodes of NodePool {node_pool}"));
    let zones = listed(names::ZONE).map_or_else(String::new, |zones| format!(" in {zones}"));
    format!("{capacity_types}{types}{zones}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::ColocationMode;
    use crate::policy::SharedLabel;
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

    fn of(claim: &NodeClaim) -> BTreeSet<Offering> {
        Offering::of(claim, &[])
    }

    fn is_exhausted_for(claim: &NodeClaim, exhausted: &BTreeSet<Offering>) -> bool {
        is_exhausted(claim, &[], exhausted)
    }

    #[test]
    fn what_a_claim_asks_for_names_capacity_type_machine_and_zone() {
        let on_demand: (&str, &[&str]) = (names::CAPACITY_TYPE, &["on-demand"]);
        let types: (&str, &[&str]) = (names::INSTANCE_TYPE, &["a", "b", "c", "d", "e", "f"]);
        let narrow = claim(&[on_demand, types, (names::ZONE, &["x"])]);
        let in_words = |claim: &NodeClaim| describe_request("gpu", &claim.spec.requirements);
        assert_eq!(in_words(&narrow), "on-demand a, b, c, d and 2 more in x");
        assert_eq!(in_words(&claim(&[])), "nodes of NodePool gpu");
        assert_eq!(describe_request("", &narrow.spec.requirements), "");
    }

    #[test]
    fn a_claim_may_become_every_combination_it_lists() {
        let types: (&str, &[&str]) = (names::INSTANCE_TYPE, &["a", "b"]);
        assert_eq!(of(&claim(&[types, (names::ZONE, &["x", "y", "z"])])).len(), 6);
        let open = of(&claim(&[]));
        let text = serde_json::to_value(open.first().unwrap()).unwrap();
        assert_eq!(text, json!({"nodePool": "gpu", "zone": "any", "capacityType": "any"}));
    }

    #[test]
    fn with_an_open_type_a_short_family_leaves_another_available() {
        let family =
            |name: &'static str| -> (&str, Vec<&str>) { ("karpenter.k8s.aws/instance-family", vec![name]) };
        let (p5, p4d) = (family("p5"), family("p4d"));
        let (p5, p4d) = (claim(&[(p5.0, &p5.1)]), claim(&[(p4d.0, &p4d.1)]));
        let exhausted = of(&p5);
        assert!(is_exhausted_for(&p5, &exhausted) && !is_exhausted_for(&p4d, &exhausted));
        let text = exhausted.first().unwrap().to_string();
        assert_eq!(
            text,
            "NodePool gpu with karpenter.k8s.aws/instance-family [p5] (any capacity in any zone)"
        );
        assert!(is_exhausted_for(&p5, &of(&claim(&[]))), "the NodePool had nothing at all");
        assert!(!is_exhausted_for(&claim(&[]), &exhausted));
    }

    #[test]
    fn a_claim_is_short_only_if_all_its_offerings_are_short() {
        let both = claim(&[(names::INSTANCE_TYPE, &["a", "b"]), (names::ZONE, &["x"])]);
        let one = claim(&[(names::INSTANCE_TYPE, &["a"]), (names::ZONE, &["x"])]);
        let spot = claim(&[
            (names::INSTANCE_TYPE, &["a"]),
            (names::ZONE, &["x"]),
            (names::CAPACITY_TYPE, &["spot"]),
        ]);
        assert!(!is_exhausted_for(&both, &of(&one)));
        assert!(is_exhausted_for(&one, &of(&both)) && is_exhausted_for(&both, &of(&both)));
        assert!(is_exhausted_for(&spot, &of(&one)), "any capacity type was out, so spot was");
        assert!(!is_exhausted_for(&one, &of(&spot)), "on-demand may be there");
        assert!(!is_exhausted_for(&one, &BTreeSet::new()));
        assert!(!is_exhausted_for(&one, &of(&claim(&[]))), "another type of the NodePool was out");
    }

    #[test]
    fn a_short_rack_leaves_the_other_racks_available() {
        const RACK: &str = "example.com/rack";
        let on = |racks: &[&str]| claim(&[(names::INSTANCE_TYPE, &["a"]), (RACK, racks)]);
        let keys = [RACK.to_owned()];
        let of = |claim: &NodeClaim| Offering::of(claim, &keys);
        let is_exhausted =
            |claim: &NodeClaim, exhausted: &BTreeSet<Offering>| is_exhausted(claim, &keys, exhausted);
        let (first, second, both) = (on(&["r1"]), on(&["r2"]), on(&["r1", "r2"]));
        assert!(is_exhausted(&first, &of(&first)) && !is_exhausted(&second, &of(&first)));
        assert!(is_exhausted(&first, &of(&both)) && !is_exhausted(&both, &of(&first)), "r2 may be there");
        let anywhere = Offering::of(&both, &[]);
        assert!(is_exhausted(&first, &anywhere), "whoever may have any rack found none");
        assert!(!is_exhausted_for(&both, &of(&first)), "of one rack nothing follows for who may have any");
        let shown = of(&first).pop_first().unwrap();
        assert_eq!(shown.to_string(), "a (any capacity in any zone, example.com/rack r1)");
        assert_eq!(serde_json::to_value(&shown).unwrap()["place"], "example.com/rack r1");
        let keys = ["example.com/block".to_owned(), RACK.to_owned()];
        let domains =
            |claim: &NodeClaim| Offering::of(claim, &keys).into_iter().map(|o| o.domain).collect::<Vec<_>>();
        let blocks = claim(&[("example.com/block", &["b1", "b2"]), (RACK, &["r1"])]);
        let expected =
            ["example.com/block b1, example.com/rack r1", "example.com/block b2, example.com/rack r1"];
        assert_eq!(domains(&blocks), expected);
        let racks: Vec<String> = (0..=MOST_OFFERINGS).map(|n| format!("r{n}")).collect();
        let many = claim(&[(RACK, &racks.iter().map(String::as_str).collect::<Vec<_>>())]);
        assert_eq!(domains(&many), [""], "too many domains count as one");
    }

    #[test]
    fn place_keys_are_policy_labels_that_an_offering_does_not_state() {
        const FAMILY: &str = "karpenter.k8s.aws/instance-family";
        let shared = |key: &str| {
            let topology_key = key.to_owned();
            Policy {
                colocation: Some(SharedLabel { topology_key, mode: ColocationMode::Required }),
                ..Policy::default()
            }
        };
        for key in [
            names::ZONE,
            "failure-domain.beta.kubernetes.io/zone",
            names::CAPACITY_TYPE,
            names::INSTANCE_TYPE,
        ] {
            assert_eq!(domain_keys(&shared(key)), [""; 0], "{key}");
        }
        let mut policy = shared("example.com/rack");
        let of = |key: &str| json!({"name": key, "requirements": [{"key": key, "operator": "In", "values": ["x"]}]});
        policy.tiers = ["example.com/block", FAMILY, names::CAPACITY_TYPE]
            .map(|key| serde_json::from_value(of(key)).unwrap())
            .to_vec();
        assert_eq!(domain_keys(&policy), ["example.com/block", "example.com/rack"]);
        let keys = domain_keys(&shared(FAMILY));
        let open = claim(&[(FAMILY, &["p5"]), (names::ZONE, &["x"])]);
        assert_eq!(Offering::of(&open, &keys), Offering::of(&open, &[]), "the machine states it");
        let typed = claim(&[(names::INSTANCE_TYPE, &["a"]), (FAMILY, &["p5"])]);
        assert_eq!(
            Offering::of(&typed, &keys).first().unwrap().domain,
            "karpenter.k8s.aws/instance-family p5"
        );
    }
}
