//! What a claim records of its pods' requests, besides what it requests itself.

use super::catalogue::Catalogue;
use super::devices;
use super::shape::OF_EVERY_NODE;
use crate::api::NodeClaim;
use crate::api::pod::ResourceList;
use crate::names;

/// Records in a claim what its pods request of what a Node reports. Leaves out of the claim's own requests what its provider does not
/// know, by its catalogue.
pub fn record(claim: &mut NodeClaim, mut of_pods: ResourceList, catalogue: Option<&Catalogue>) {
    of_pods.retain(|key, _| devices::class_of(key).is_none());
    if let Some(catalogue) = catalogue {
        leave_out_unknown(claim, &of_pods, catalogue);
    }
    annotate(claim, names::POD_REQUESTS, &of_pods);
}

/// Takes out of the requests what the provider does not know: it launches nothing for a claim that requests such a resource. What pods
/// request of it is recorded, because the node must have it nevertheless.
fn leave_out_unknown(claim: &mut NodeClaim, of_pods: &ResourceList, catalogue: &Catalogue) {
    let requests = std::mem::take(&mut claim.spec.resources.requests);
    let is_known = |key: &str| OF_EVERY_NODE.contains(&key) || catalogue.has(key);
    let (known, mut unknown): (ResourceList, ResourceList) =
        requests.into_iter().partition(|(key, _)| is_known(key));
    claim.spec.resources.requests = known;
    unknown.retain(|key, _| of_pods.contains_key(key));
    if !unknown.is_empty() {
        annotate(claim, names::UNREQUESTED, &unknown);
    }
}

fn annotate(claim: &mut NodeClaim, key: &str, amounts: &ResourceList) {
    let recorded = serde_json::to_string(amounts).unwrap_or_default();
    claim.metadata.annotations.get_or_insert_default().insert(key.to_owned(), recorded);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{Fixture, daemon_set, object, pool};
    use crate::plan::warm;
    use serde_json::{Value, json};

    /// Two pods with a device and huge pages of their own, on EC2 machines of a type whose shape states both.
    fn world(group: &str) -> Fixture {
        let requests = json!({"cpu": "4", "nvidia.com/gpu": "1", "rdma/hca": "1", "hugepages-2Mi": "1Gi"});
        let mut world = Fixture::new().pods(&json!({"containers": [{"resources": {"limits": requests}}]}));
        let class = json!({"group": group, "kind": "EC2NodeClass", "name": "default"});
        let types = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge", "p5e.48xlarge"]}]);
        let spec = json!({"nodeClassRef": class, "requirements": types});
        world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        world.policy.shapes = object(json!([{"instanceType": "p5.48xlarge", "allocatable": {
            "cpu": 180, "memory": "1900Gi", "nvidia.com/gpu": 8, "rdma/hca": 8, "hugepages-2Mi": "5Gi",
        }}]));
        world
    }

    fn keys(list: &ResourceList) -> Vec<&str> {
        list.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_claim_does_not_request_what_its_provider_does_not_know_and_its_node_must_have_it() {
        let plan = world("karpenter.k8s.aws").provisioned();
        let claim = &plan.slots[0].template;
        assert_eq!(plan.nodes(), 1);
        assert_eq!(keys(&claim.spec.resources.requests), ["cpu", "nvidia.com/gpu", "pods"]);
        let needs = claim.needs();
        assert_eq!(keys(&needs), ["cpu", "hugepages-2Mi", "nvidia.com/gpu", "pods", "rdma/hca"]);
        assert_eq!((needs["rdma/hca"].0.as_str(), needs["hugepages-2Mi"].0.as_str()), ("2", "2147483648"));
        assert_eq!(keys(&claim.pod_requests().unwrap()), keys(&needs));
        let types: Vec<&String> = plan.slots[0].instance_types().collect();
        assert_eq!(types, ["p5.48xlarge"], "the other has none");
    }

    #[test]
    fn a_provider_without_a_catalogue_is_asked_for_everything() {
        let claim = world("example.com").provisioned().slots[0].template.clone();
        assert!(claim.spec.resources.requests.contains_key("rdma/hca"));
        assert_eq!(claim.annotation(names::UNREQUESTED), "");
    }

    #[test]
    fn what_only_daemon_sets_request_is_left_out() {
        let mut world = world("karpenter.k8s.aws");
        let spec = json!({"tolerations": [{"operator": "Exists"}], "containers": [{"resources": {"limits": {"example.com/fuse": "1"}}}]});
        world.objects.daemon_sets = vec![daemon_set("fuse", &spec)];
        world.policy.shapes[0].allocatable.insert("example.com/fuse".to_owned(), object(json!("1")));
        let claim = world.provisioned().slots[0].template.clone();
        assert!(!claim.needs().contains_key("example.com/fuse"));
    }

    #[test]
    fn plans_and_kept_nodes_tell_apart_what_is_not_requested() {
        let of = |amount: &Value| {
            let mut world = world("karpenter.k8s.aws");
            let set = &mut world.workload.spec.pod_sets[0];
            let limits = &mut set.template.spec.containers[0].resources.as_mut().unwrap().limits;
            limits.as_mut().unwrap().insert("rdma/hca".to_owned(), object(amount.clone()));
            world.provisioned()
        };
        let (one, four) = (of(&json!("1")), of(&json!("4")));
        assert_eq!(one.slots[0].template.spec, four.slots[0].template.spec);
        assert_ne!(one.hash(), four.hash());
        let kept = |plan: &crate::plan::Plan| {
            let mut claim = (*plan.slots[0].template).clone();
            claim
                .metadata
                .labels
                .get_or_insert_default()
                .insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
            vec![claim]
        };
        assert_eq!(warm::of_plan(&one, &kept(&one)).len(), 1);
        assert!(warm::of_plan(&four, &kept(&one)).is_empty());
        assert!(one.has_like(&kept(&four)) && !four.has_like(&kept(&one)));
    }
}
