//! Finds label keys that nearly match one that Karpenter or Kubernetes sets. Any node would satisfy such a misspelt requirement.
//!
//! Rule: only a key within two edits of a known one counts as misspelt. A key that resembles none may belong to a newer provider.

use super::catalogue;
use crate::api::requirements::{Requirements, WELL_KNOWN};
use crate::names;
use strsim::damerau_levenshtein;

/// Most edits by which a misspelt key may differ.
const LETTERS: usize = 2;

/// Further keys that nodes of every provider have.
const OF_NODES: [&str; 5] =
    [names::HOSTNAME, names::REGISTERED, names::INITIALIZED, names::RESERVATION_ID, names::RESERVATION_TYPE];

/// The first misspelt key and the known key that it resembles, for NodeClasses of this API group.
pub fn misspelt<'r>(requirements: &'r Requirements, group: &str) -> Option<(&'r str, String)> {
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
