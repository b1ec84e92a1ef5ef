//! Karpenter's algebra of requirements on node labels.
//!
//! For each key: a set of values that is allowed or, complemented, excluded; optional numeric bounds; and whether the label must
//! exist. An intersection is never wider than its operands.

use crate::api::node_claim::Requirement;
use crate::names;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The values that one label key may have.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Values {
    /// Whether `listed` is excluded instead of allowed.
    complement: bool,
    /// Shared, because a tenant can list any number, and each draft of a NodeClaim has a copy.
    listed: Arc<BTreeSet<String>>,
    /// Greater than.
    above: Option<i64>,
    /// Less than.
    below: Option<i64>,
    at_least: Option<i32>,
    /// The label must exist, with any value, even if other requirements allow its absence.
    present: bool,
}

/// Operators that compare numbers.
const COMPARING: [&str; 4] = ["Gt", "Gte", "Lt", "Lte"];

/// No label can have this value, so excluding it allows any label, or none.
const NO_VALUE: &str = "!";

/// Requirements by label key. A key without requirements may have any value.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Requirements(BTreeMap<String, Values>);

/// A key that cannot be satisfied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The key.
    pub key: String,
    /// The values that one side asks for, in words.
    pub asked: String,
    /// The values that the other side offers, in words. Empty if the requirement cannot be read.
    pub offered: String,
}

impl Clash {
    /// The message: who asks for what, and why the NodePool cannot give it.
    pub fn in_words(&self, who: &str, node_pool: &str) -> String {
        let Self { key, asked, offered } = self;
        if offered.is_empty() {
            return format!("{who} states a requirement on {key} that cannot be read: {asked}");
        }
        format!("{who} asks for {key} {asked}, but NodePool {node_pool} offers {offered}")
    }
}

/// The clash for a requirement that cannot be read.
fn unreadable(asked: &Requirement) -> Clash {
    let Requirement { key, operator, values, .. } = asked;
    let asked = if COMPARING.contains(&operator.as_str()) {
        let stated = if values.is_empty() { "none".to_owned() } else { values.join(" ") };
        format!("{operator} takes one whole number, not {stated}")
    } else {
        format!("{operator} is not an operator; write In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt or Lte")
    };
    Clash { key: key.clone(), asked, offered: String::new() }
}

/// Label keys that every provider sets at launch.
pub const WELL_KNOWN: [&str; 9] = [
    names::NODEPOOL,
    names::ZONE,
    names::ZONE_ID,
    names::REGION,
    names::INSTANCE_TYPE,
    names::ARCH,
    names::OS,
    names::CAPACITY_TYPE,
    names::WINDOWS_BUILD,
];

/// Machine labels that AKS and GKE set outside the domains of their Karpenter providers.
const OF_MACHINES: [&str; 3] =
    ["cloud.google.com/gke-accelerator", "kubernetes.azure.com/sku-cpu", "kubernetes.azure.com/sku-memory"];

/// Whether the provider sets a label at launch.
pub fn is_well_known(key: &str) -> bool {
    const DOMAINS: [&str; 5] = [
        "karpenter.k8s.aws",
        "karpenter.azure.com",
        "karpenter.k8s.gcp",
        "karpenter.kwok.sh",
        "eks.amazonaws.com",
    ];
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    WELL_KNOWN.contains(&key) || OF_MACHINES.contains(&key) || DOMAINS.contains(&domain)
}

/// The API groups of providers' NodeClasses, each with the domains of the labels that its nodes have.
const PROVIDERS: [(&str, &[&str]); 4] = [
    ("karpenter.k8s.aws", &["karpenter.k8s.aws"]),
    ("eks.amazonaws.com", &["eks.amazonaws.com", "karpenter.k8s.aws"]),
    ("karpenter.azure.com", &["karpenter.azure.com", "kubernetes.azure.com"]),
    ("karpenter.k8s.gcp", &["karpenter.k8s.gcp", "cloud.google.com"]),
];

/// Whether only other providers set a label at launch, not the one whose NodeClasses have this API group.
pub fn is_of_another_provider(key: &str, group: &str) -> bool {
    let has =
        |(_, domains): &(&str, &[&str])| key.split_once('/').is_some_and(|(of, _)| domains.contains(&of));
    let own = PROVIDERS.iter().find(|(known, _)| *known == group);
    is_well_known(key) && own.is_some_and(|own| !has(own)) && PROVIDERS.iter().any(has)
}

/// Whether Karpenter or the kubelet sets a label itself, so that no claim may state it.
pub fn is_reserved(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default();
    let open = [names::CAPACITY_TYPE, names::NODEPOOL].contains(&key);
    key == names::HOSTNAME || (domain.ends_with(names::KARPENTER_DOMAIN) && !open)
}

/// The key that Karpenter uses instead of an outdated key or a CSI driver's key.
pub fn normalized(key: &str) -> &str {
    match key {
        "beta.kubernetes.io/arch" => names::ARCH,
        "beta.kubernetes.io/os" => names::OS,
        "beta.kubernetes.io/instance-type" => names::INSTANCE_TYPE,
        "failure-domain.beta.kubernetes.io/zone"
        | "topology.ebs.csi.aws.com/zone"
        | "topology.gke.io/zone"
        | "topology.disk.csi.azure.com/zone" => names::ZONE,
        "failure-domain.beta.kubernetes.io/region" => names::REGION,
        other => other,
    }
}

/// Whether this is a valid label key.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    let good_prefix = |p: &str| !p.is_empty() && p.len() <= 253 && p.chars().all(inner);
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(good_prefix)
}

/// Whether a label meets an operator of a selector or of node affinity with these values.
pub fn is_met(operator: &str, values: &[String], label: Option<&String>) -> bool {
    let is_listed = || label.is_some_and(|label| values.contains(label));
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<i64>().ok());
    let both = || number(label).zip(number(values.first()));
    match operator {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => label.is_some(),
        "DoesNotExist" => label.is_none(),
        "Gt" => both().is_some_and(|(label, bound)| label > bound),
        "Lt" => both().is_some_and(|(label, bound)| label < bound),
        _ => false,
    }
}

/// Whether this is a valid label value.
pub fn is_label_value(value: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    value.len() <= 63
        && value.chars().all(inner)
        && edge(value.chars().next())
        && edge(value.chars().next_back())
}

impl Values {
    /// Exactly one value.
    pub fn one(value: &str) -> Self {
        Self { listed: Arc::new([value.to_owned()].into()), ..Self::default() }
    }

    /// One of these values.
    pub fn of(values: &[String]) -> Self {
        Self { listed: Arc::new(values.iter().cloned().collect()), ..Self::default() }
    }

    /// Any value, but the label must exist.
    pub fn any() -> Self {
        Self { complement: true, ..Self::default() }
    }

    /// Any value, or no label.
    pub fn any_or_none() -> Self {
        Self { listed: Arc::new([NO_VALUE.to_owned()].into()), ..Self::any() }
    }

    /// Parses an operator and its values. `None` if the operator is unknown or its number is missing.
    pub fn read(operator: &str, values: &[String], min_values: Option<i32>) -> Option<Self> {
        let set = || Arc::new(values.iter().cloned().collect());
        let number = || values.first().and_then(|v| v.parse::<i64>().ok());
        let mut read = match operator {
            "In" => Self { listed: set(), ..Self::default() },
            "NotIn" => Self { listed: set(), ..Self::any() },
            "Exists" => Self { present: true, ..Self::any() },
            "DoesNotExist" => Self::default(),
            "Gt" => Self { above: Some(number()?), ..Self::any() },
            "Gte" => Self { above: Some(number()?.checked_sub(1)?), ..Self::any() },
            "Lt" => Self { below: Some(number()?), ..Self::any() },
            "Lte" => Self { below: Some(number()?.checked_add(1)?), ..Self::any() },
            _ => return None,
        };
        read.at_least = min_values;
        Some(read)
    }

    /// The allowed values, if they are listed.
    pub fn listed(&self) -> Option<&BTreeSet<String>> {
        (!self.complement).then(|| &*self.listed)
    }

    /// The minimum number of distinct values to choose from.
    pub fn at_least(&self) -> Option<usize> {
        self.at_least.and_then(|least| usize::try_from(least).ok())
    }

    /// Whether a label with this value satisfies it.
    pub fn allows(&self, value: &str) -> bool {
        let in_bounds = match (self.above, self.below) {
            (None, None) => true,
            (above, below) => {
                value.parse::<i64>().is_ok_and(|n| above.is_none_or(|a| n > a) && below.is_none_or(|b| n < b))
            }
        };
        in_bounds && (self.listed.contains(value) != self.complement)
    }

    /// The intersection of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let above = self.above.max(other.above);
        let below = match (self.below, other.below) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let at_least = self.at_least.max(other.at_least);
        let present = self.present || other.present;
        let bounded = Self { complement: true, listed: Arc::default(), above, below, at_least, present };
        if self.complement && other.complement {
            return Self { listed: Arc::new(&*self.listed | &*other.listed), ..bounded };
        }
        let (named, rest) = if self.complement { (other, self) } else { (self, other) };
        let values: BTreeSet<String> =
            named.listed.iter().filter(|v| rest.allows(v) && bounded.allows(v)).cloned().collect();
        // A label that has one of the listed values exists.
        let present = present && values.is_empty();
        Self { complement: false, listed: Arc::new(values), above: None, below: None, at_least, present }
    }

    /// Whether a node without the label satisfies it, as `NotIn` and `DoesNotExist` do.
    pub fn allows_absence(&self) -> bool {
        let bounded = self.above.is_some() || self.below.is_some();
        if self.present {
            return false;
        }
        if self.complement { !bounded && !self.listed.is_empty() } else { self.listed.is_empty() }
    }

    /// One value that satisfies it, always the same: the first listed one, or the smallest number.
    pub fn pick(&self) -> Option<String> {
        if !self.complement {
            return self.listed.first().cloned();
        }
        // Among as many numbers as are excluded, plus one, at least one is not excluded. Label numbers are not negative.
        let start = self.above.map_or(0, |a| a.saturating_add(1).max(0));
        let tries = i64::try_from(self.listed.len()).unwrap_or(i64::MAX);
        (start..=start.saturating_add(tries)).map(|n| n.to_string()).find(|n| self.allows(n))
    }

    /// The allowed values in words, for messages.
    pub fn words(&self) -> String {
        let listed: Vec<&str> = self.listed.iter().map(String::as_str).filter(|v| *v != NO_VALUE).collect();
        let list = listed.join(" ");
        match (self.complement, listed.is_empty(), self.above, self.below) {
            (false, true, ..) => "nothing".to_owned(),
            (false, false, ..) => format!("[{list}]"),
            (true, _, Some(a), Some(b)) => format!("more than {a} and less than {b}"),
            (true, _, Some(a), None) => format!("more than {a}"),
            (true, _, None, Some(b)) => format!("less than {b}"),
            (true, true, None, None) => "any value".to_owned(),
            (true, false, None, None) => format!("anything but [{list}]"),
        }
    }

    fn render(&self, key: &str) -> Vec<Requirement> {
        // The API server refuses a minimum above the number of listed values.
        let listed = i32::try_from(self.listed.len()).unwrap_or(i32::MAX);
        let min_values = self.at_least.filter(|least| self.complement || *least <= listed);
        let make = |operator: &str, values: Vec<String>| Requirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values,
            min_values,
        };
        if !self.complement {
            let operator = if self.listed.is_empty() { "DoesNotExist" } else { "In" };
            return vec![make(operator, self.listed.iter().cloned().collect())];
        }
        let mut all = Vec::new();
        // It also refuses negative bounds. They exclude nothing, because label numbers are not negative.
        all.extend(self.above.filter(|a| *a >= 0).map(|a| make("Gt", vec![a.to_string()])));
        all.extend(self.below.map(|b| make("Lt", vec![b.to_string()])));
        if !self.listed.is_empty() {
            all.push(make("NotIn", self.listed.iter().cloned().collect()));
        }
        if all.is_empty() {
            all.push(make("Exists", Vec::new()));
        }
        all
    }
}

impl Requirements {
    /// The requirements on a key.
    pub fn get(&self, key: &str) -> Option<&Values> {
        self.0.get(key)
    }

    /// These requirements without those on a key.
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let mut rest = self.clone();
        rest.0.remove(key);
        rest
    }

    /// Narrows one key.
    ///
    /// # Errors
    /// The clash if no value would be left. The requirements are then unchanged.
    pub fn add(&mut self, key: &str, values: &Values) -> Result<(), Clash> {
        let key = normalized(key);
        let Some(offered) = self.0.get(key) else {
            self.0.insert(key.to_owned(), values.clone());
            return Ok(());
        };
        let both = offered.and(values);
        if both.pick().is_none() && !(offered.allows_absence() && values.allows_absence()) {
            return Err(Clash { key: key.to_owned(), asked: values.words(), offered: offered.words() });
        }
        self.0.insert(key.to_owned(), both);
        Ok(())
    }

    /// Narrows by requirements from Karpenter objects or pods. An unknown operator is a clash.
    pub fn add_all(&mut self, list: &[Requirement]) -> Result<(), Clash> {
        for r in list {
            let values = Values::read(&r.operator, &r.values, r.min_values).ok_or_else(|| unreadable(r))?;
            self.add(&r.key, &values)?;
        }
        Ok(())
    }

    /// Requirements up to the first one that cannot be read: the rest narrows nothing.
    pub fn readable(list: &[Requirement]) -> Self {
        let mut readable = Self::default();
        let _ = readable.add_all(list);
        readable
    }

    /// The first listed value that is not a valid label value, with its key.
    pub fn bad_value(&self) -> Option<(&str, &str)> {
        let all = self.0.iter().flat_map(|(key, v)| v.listed.iter().map(move |value| (key, value)));
        all.map(|(key, value)| (key.as_str(), value.as_str())).find(|(_, value)| !is_label_value(value))
    }

    /// The keys and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Values)> {
        self.0.iter()
    }

    /// The requirements as a NodeClaim states them, without keys that a NodeClaim may not require.
    pub fn render(&self) -> Vec<Requirement> {
        let stated = self.0.iter().filter(|(key, _)| !is_reserved(key));
        stated.flat_map(|(key, values)| values.render(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(operator: &str, list: &[&str]) -> Values {
        let list: Vec<String> = list.iter().map(|v| (*v).to_owned()).collect();
        Values::read(operator, &list, None).unwrap()
    }

    fn any_values() -> impl Strategy<Value = Values> {
        let list = proptest::collection::vec((0..8_i64).prop_map(|n| n.to_string()), 0..4);
        (
            prop_oneof![
                Just("In"),
                Just("NotIn"),
                Just("Exists"),
                Just("Gt"),
                Just("Lt"),
                Just("Gte"),
                Just("Lte")
            ],
            list,
        )
            .prop_filter_map("bounds need a number", |(operator, list)| Values::read(operator, &list, None))
    }

    proptest! {
        #[test]
        fn the_intersection_allows_a_value_exactly_if_both_do(a in any_values(), b in any_values(), n in -1..9_i64) {
            let value = n.to_string();
            prop_assert_eq!(a.and(&b).allows(&value), a.allows(&value) && b.allows(&value));
            prop_assert_eq!(a.and(&b), b.and(&a));
        }

        #[test]
        fn a_picked_value_is_allowed(a in any_values()) {
            let picked = a.pick();
            if let Some(value) = &picked {
                prop_assert!(a.allows(value));
            }
            let is_listed = a.listed().is_some_and(|values| !values.is_empty());
            prop_assert!(picked.is_some() || !is_listed, "{a:?} has values");
        }
    }

    #[test]
    fn outdated_keys_are_normalized() {
        let mut all = Requirements::default();
        all.add("beta.kubernetes.io/arch", &Values::one("arm64")).unwrap();
        assert!(all.add(names::ARCH, &Values::one("amd64")).is_err());
        assert_eq!(all.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [names::ARCH]);
    }

    #[test]
    fn absence_satisfies_only_not_in_and_does_not_exist() {
        let compatible = |a: (&str, &[&str]), b: (&str, &[&str])| {
            let mut all = Requirements::default();
            all.add("k", &values(a.0, a.1)).unwrap();
            all.add("k", &values(b.0, b.1)).is_ok()
        };
        let absent = ("DoesNotExist", &[][..]);
        for (other, expected) in [
            (absent, true),
            (("NotIn", &["a"][..]), true),
            (("Exists", &[]), false),
            (("In", &["a"]), false),
            (("Gt", &["1"]), false),
        ] {
            assert_eq!(
                (compatible(absent, other), compatible(other, absent)),
                (expected, expected),
                "{other:?}"
            );
        }
    }

    #[test]
    fn exists_holds_in_any_order_with_other_requirements() {
        let (exists, absent) = (values("Exists", &[]), values("DoesNotExist", &[]));
        for other in [Values::any_or_none(), values("NotIn", &["a"])] {
            for order in [[&exists, &other], [&other, &exists]] {
                let mut all = Requirements::default();
                for values in order {
                    all.add("k", values).unwrap();
                }
                let clash = all.add("k", &absent).unwrap_err();
                assert!(!clash.offered.contains('!'), "{clash:?}");
            }
            let mut all = Requirements::default();
            all.add("k", &other).unwrap();
            all.add("k", &absent).unwrap();
            assert!(all.add("k", &exists).is_err());
        }
        assert_eq!(exists.and(&Values::one("a")), Values::one("a"));
    }

    #[test]
    fn bounds_that_leave_no_number_clash() {
        for (first, second) in [
            (("Gt", &["3"][..]), ("Lt", &["4"][..])),
            (("Gte", &["4"]), ("Lte", &["3"])),
            (("Gt", &["3"]), ("In", &["3", "x"])),
        ] {
            let mut all = Requirements::default();
            all.add("n", &values(first.0, first.1)).unwrap();
            assert!(all.add("n", &values(second.0, second.1)).is_err(), "{first:?} {second:?}");
        }
        let mut all = Requirements::default();
        all.add("n", &values("Gt", &["3"])).unwrap();
        all.add("n", &values("Lt", &["5"])).unwrap();
        assert!(all.add("n", &values("NotIn", &["4"])).is_err());
    }

    #[test]
    fn min_values_and_bounds_that_the_api_server_refuses_are_not_rendered() {
        let rendered = |v: &Values| {
            v.render("n")
                .into_iter()
                .map(|r| (r.operator, r.values.join(" "), r.min_values))
                .collect::<Vec<_>>()
        };
        assert_eq!(rendered(&values("Gte", &["0"])), [("Exists".into(), String::new(), None)]);
        assert_eq!(rendered(&values("Gte", &["4"])), [("Gt".into(), "3".into(), None)]);
        let flexible = Values::read("In", &["a".into(), "b".into()], Some(2)).unwrap();
        assert_eq!(rendered(&flexible), [("In".into(), "a b".into(), Some(2))]);
        assert_eq!(rendered(&flexible.and(&Values::one("a"))), [("In".into(), "a".into(), None)]);
    }

    #[test]
    fn an_unknown_operator_or_one_without_a_number_is_reported() {
        for (operator, list) in [("Near", vec!["1"]), ("Gt", vec![]), ("Lt", vec!["x"])] {
            let bad = Requirement {
                key: "n".into(),
                operator: operator.into(),
                values: list.iter().map(ToString::to_string).collect(),
                min_values: None,
            };
            assert!(Requirements::default().add_all(&[bad]).unwrap_err().asked.contains(operator));
        }
    }

    #[test]
    fn keys_of_a_providers_domain_are_well_known_and_look_alikes_are_not() {
        for (key, expected) in [
            ("karpenter.k8s.aws/instance-gpu-count", true),
            ("eks.amazonaws.com/instance-category", true),
            (names::ZONE, true),
            (names::ZONE_ID, true),
            ("cloud.google.com/gke-accelerator", true),
            ("cloud.google.com/gke-nodepool", false),
            ("not.karpenter.k8s.aws/x", false),
            ("team", false),
        ] {
            assert_eq!(is_well_known(key), expected, "{key}");
        }
    }

    #[test]
    fn labels_of_another_provider_are_told_from_those_that_every_node_has() {
        for (key, group, expected) in [
            ("eks.amazonaws.com/capacityType", "karpenter.k8s.aws", true),
            ("cloud.google.com/gke-accelerator", "karpenter.azure.com", true),
            ("cloud.google.com/gke-accelerator", "karpenter.k8s.gcp", false),
            ("karpenter.k8s.aws/instance-family", "eks.amazonaws.com", false),
            ("karpenter.k8s.aws/instance-family", "karpenter.kwok.sh", false),
            (names::ZONE, "karpenter.k8s.aws", false),
            ("team", "karpenter.k8s.aws", false),
        ] {
            assert_eq!(is_of_another_provider(key, group), expected, "{key} of {group}");
        }
    }

    #[test]
    fn invalid_label_values_are_found() {
        let longest = "x".repeat(63);
        for (value, good) in [("", true), ("a.b_c-9", true), (&longest, true), ("-a", false), ("a b", false)]
        {
            assert_eq!(is_label_value(value), good, "{value:?}");
        }
        assert!(!is_label_value(&"x".repeat(64)));
        let mut all = Requirements::default();
        all.add("k", &values("NotIn", &["fine", "not fine"])).unwrap();
        assert_eq!(all.bad_value(), Some(("k", "not fine")));
    }

    #[test]
    fn a_clash_names_both_sides() {
        let mut offered = Requirements::default();
        offered.add(names::ZONE, &values("In", &["a", "b"])).unwrap();
        let clash = offered.add("failure-domain.beta.kubernetes.io/zone", &values("In", &["x"])).unwrap_err();
        assert_eq!((clash.asked.as_str(), clash.offered.as_str()), ("[x]", "[a b]"));
        assert_eq!(offered.get(names::ZONE), Some(&values("In", &["a", "b"])));
    }

    #[test]
    fn keys_that_a_node_claim_may_not_require_are_left_out() {
        let mut all = Requirements::default();
        for key in [names::HOSTNAME, names::REGISTERED, names::CAPACITY_TYPE, "example.com/tier"] {
            all.add(key, &Values::one("x")).unwrap();
        }
        let keys: Vec<String> = all.render().into_iter().map(|r| r.key).collect();
        assert_eq!(keys, ["example.com/tier", names::CAPACITY_TYPE]);
    }

    #[test]
    fn bounds_are_kept_as_bounds() {
        let mut all = Requirements::default();
        all.add("n", &values("Gt", &["3"])).unwrap();
        all.add("n", &values("Lt", &["9"])).unwrap();
        let rendered: Vec<(String, Vec<String>)> =
            all.render().into_iter().map(|r| (r.operator, r.values)).collect();
        assert_eq!(
            rendered,
            [("Gt".to_owned(), vec!["3".to_owned()]), ("Lt".to_owned(), vec!["9".to_owned()])]
        );
        assert!(all.add("n", &values("In", &["9", "12"])).is_err());
        all.add("n", &values("In", &["4", "12"])).unwrap();
        assert_eq!(all.get("n"), Some(&values("In", &["4"])));
    }
}
