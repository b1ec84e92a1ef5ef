//! Finds labels that no node of a NodePool gets, although Karpenter's requirements can be met: a capacity type that does not exist,
//! a label of another provider, and a key that nearly matches one that Karpenter or Kubernetes sets.
//!
//! Rule: only a key within two edits of a known one counts as misspelt. A key that resembles none may belong to a newer provider.

use super::catalogue;
use crate::api::NodePool;
use crate::api::node_claim::Requirement;
use crate::api::parameters::CAPACITY_TYPES;
use crate::api::requirements::{Requirements, Values, WELL_KNOWN, is_of_another_provider, normalized};
use crate::names;
use kube_core::ResourceExt;
use strsim::damerau_levenshtein;

/// Most edits by which a misspelt key may differ.
const LETTERS: usize = 2;

/// Further keys that nodes of every provider have.
const OF_NODES: [&str; 5] =
    [names::HOSTNAME, names::REGISTERED, names::INITIALIZED, names::RESERVATION_ID, names::RESERVATION_TYPE];

/// The first label that no node of this NodePool gets, and what is wrong with it.
pub fn absent<'r>(requirements: &'r Requirements, pool: &NodePool) -> Option<(&'r str, String)> {
    let group = &pool.spec.template.spec.node_class_ref.group;
    let of_no_type = |(key, values): &(&String, &Values)| {
        key.as_str() == names::CAPACITY_TYPE && !CAPACITY_TYPES.iter().any(|known| values.allows(known))
    };
    if let Some((key, _)) = requirements.iter().find(of_no_type) {
        let known = CAPACITY_TYPES.join(", ");
        return Some((key, format!("a {key} that does not exist; the values are {known}")));
    }
    let is_foreign = |(key, values): &(&String, &Values)| {
        is_of_another_provider(key, group) && !values.allows_absence() && !states(pool, key)
    };
    if let Some((key, _)) = requirements.iter().find(is_foreign) {
        let pool = pool.name_any();
        let words =
            format!("label {key}, which nodes of NodePool {pool} do not get: it is another provider's");
        return Some((key, words));
    }
    let (key, meant) = misspelt(requirements, group)?;
    Some((key, format!("label {key}, which no node has; did you mean {meant}?")))
}

/// Whether a NodePool requires a label, or gives it to its nodes.
pub fn states(pool: &NodePool, key: &str) -> bool {
    let template = &pool.spec.template;
    requires(&template.spec.requirements, key) || template.metadata.labels.contains_key(key)
}

/// Whether a list of requirements has this label.
pub fn requires(list: &[Requirement], key: &str) -> bool {
    list.iter().any(|asked| normalized(&asked.key) == key)
}

/// The first misspelt key and the known key that it resembles, for NodeClasses of this API group.
fn misspelt<'r>(requirements: &'r Requirements, group: &str) -> Option<(&'r str, String)> {
    let catalogue = catalogue::of(group);
    let of_provider = catalogue.map_or(&[][..], catalogue::Catalogue::keys);
    let known = || WELL_KNOWN.into_iter().chain(OF_NODES).chain(of_provider.iter().map(String::as_str));
    requirements.iter().find_map(|(key, _)| {
        let name = catalogue.map_or_else(|| key.into(), |c| c.normalized(key));
        if !key.contains('/') || known().any(|known| known == name) {
            return None;
        }
        let like = |known: &&str| {
            known.len().abs_diff(name.len()) <= LETTERS && damerau_levenshtein(known, &name) <= LETTERS
        };
        known().find(like).map(|known| (key.as_str(), known.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::ObstacleReason;
    use super::super::fixtures::{Fixture, patched, pool};
    use super::*;
    use crate::api::requirements::Values;
    use serde_json::{Value, json};

    fn meant(key: &str, group: &str) -> Option<String> {
        let mut requirements = Requirements::default();
        requirements.add(key, &Values::one("x")).unwrap();
        misspelt(&requirements, group).map(|(_, known)| known)
    }

    #[test]
    fn a_key_that_is_almost_a_known_one_is_misspelt_and_no_other() {
        const AWS: &str = "karpenter.k8s.aws";
        for (key, group, known) in [
            ("karpenter.k8s.aws/instance-famly", AWS, Some("karpenter.k8s.aws/instance-family")),
            (
                "eks.amazonaws.com/instance-famly",
                "eks.amazonaws.com",
                Some("karpenter.k8s.aws/instance-family"),
            ),
            ("eks.amazonaws.com/instance-family", "eks.amazonaws.com", None),
            ("eks.amazonaws.com/compute-type", "eks.amazonaws.com", None),
            ("karpenter.k8s.aws/instance-famly", "karpenter.azure.com", None),
            ("karpenter.k8s.aws/instance-tenancy", AWS, None),
            ("karpenter.k8s.aws/ec2nodeclass", AWS, None),
            ("karpenter.azure.com/sku-famly", "karpenter.azure.com", Some("karpenter.azure.com/sku-family")),
            ("karpenter.azure.com/sku-networking-accelerated", "karpenter.azure.com", None),
            ("karpenter.azure.com/aksnodeclass", "karpenter.azure.com", None),
            (
                "karpenter.k8s.gcp/instance-famly",
                "karpenter.k8s.gcp",
                Some("karpenter.k8s.gcp/instance-family"),
            ),
            ("karpenter.k8s.gcp/instance-famly", AWS, None),
            ("karpenter.sh/capacity-typ", "karpenter.azure.com", Some(names::CAPACITY_TYPE)),
            ("topology.kuberntes.io/zone", "any", Some(names::ZONE)),
            ("kubernetes.io/arhc", "any", Some(names::ARCH)),
            ("topology.kubernetes.io/rack", "any", None),
            ("example.com/arch", "any", None),
            ("pool", "any", None),
        ] {
            assert_eq!(meant(key, group).as_deref(), known, "{key} of {group}");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused_and_its_author_is_named() {
        let requirement = |key: &str| json!([{"key": key, "operator": "In", "values": ["p5"]}]);
        let famly = "karpenter.k8s.aws/instance-famly";
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let ec2 = |spec: Value| {
            let spec = patched(json!({"nodeClassRef": class}), &spec);
            pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))
        };
        let mut by_pool = Fixture::new();
        by_pool.objects.node_pools = vec![ec2(json!({"requirements": requirement(famly)}))];
        let mut by_policy = Fixture::new();
        by_policy.objects.node_pools = vec![ec2(json!({}))];
        by_policy.policy.requirements = serde_json::from_value(requirement(famly)).unwrap();
        let mut by_tier = Fixture::new();
        by_tier.objects.node_pools = vec![ec2(json!({}))];
        let tier = json!({"name": "spot", "nodePoolName": "gpu", "requirements": requirement(famly)});
        by_tier.policy.tiers = serde_json::from_value(json!([tier])).unwrap();
        let mut by_pods = Fixture::new().pods(&json!({"nodeSelector": {famly: "p5"}}));
        by_pods.objects.node_pools = vec![ec2(json!({}))];
        for (world, who) in [
            (by_pool, "NodePool gpu"),
            (by_policy, "the policy"),
            (by_tier, "tier spot"),
            (by_pods, "pod set main"),
        ] {
            let message = format!(
                "{who} asks for label {famly}, which no node has; did you mean karpenter.k8s.aws/instance-family?"
            );
            assert_eq!(world.obstacle(), (ObstacleReason::RequirementsClash, message));
        }
    }
}
