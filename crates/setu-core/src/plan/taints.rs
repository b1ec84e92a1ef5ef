//! The taint of a gang, which pods tolerate a taint, and taints of a Node that its NodeClaim does not state: its user data or its
//! provider set them.
//!
//! Rule: a taint that the NodeClaim does not state is ignored if all pods of the gang name it in a toleration. Tolerations of every
//! taint do not count, nor do tolerations of taints by which Kubernetes or Karpenter report a temporary state.

use super::demand::tolerations;
use super::{PlanRequest, PlanSnapshot};
use crate::api::Workload;
use crate::api::workload::PodSet;
use crate::names;
use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Prefixes of taints that say that a node is not fit now, or is on its way out.
const PASSING: [&str; 3] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/", "karpenter.sh/"];

/// The taint that keeps other pods off the gang's nodes.
pub fn gang_taint(gang: &str) -> Taint {
    Taint {
        key: names::GANG.to_owned(),
        value: Some(gang.to_owned()),
        effect: "NoSchedule".to_owned(),
        time_added: None,
    }
}

/// The taint as kubectl writes it.
pub fn in_words(taint: &Taint) -> String {
    let value = taint.value.as_deref().filter(|value| !value.is_empty());
    format!("{}{}:{}", taint.key, value.map_or_else(String::new, |value| format!("={value}")), taint.effect)
}

/// Whether pods with these tolerations may run despite this taint.
pub fn tolerates(tolerations: &[Toleration], taint: &Taint) -> bool {
    if taint.effect == "PreferNoSchedule" {
        return true;
    }
    tolerations.iter().any(|t| {
        let effect = t.effect.as_deref().unwrap_or_default();
        let key = t.key.as_deref().unwrap_or_default();
        let operator = t.operator.as_deref().unwrap_or_default();
        let exists = operator == "Exists";
        let equal = matches!(operator, "" | "Equal")
            && t.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
        let value_fits = exists || equal;
        let key_fits = key == taint.key || (key.is_empty() && exists);
        (effect.is_empty() || effect == taint.effect) && key_fits && value_fits
    })
}

/// Whether a taint may stay for as long as the node.
pub fn may_stay(taint: &Taint) -> bool {
    taint.effect != "PreferNoSchedule" && !PASSING.iter().any(|prefix| taint.key.starts_with(prefix))
}

/// The taints among these that the pods of every pod set of the gang tolerate by key, without a time limit.
pub fn tolerated(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    mut taints: Vec<Taint>,
) -> Vec<Taint> {
    taints.retain(may_stay);
    if taints.is_empty() {
        return taints;
    }
    let of_pod_sets = tolerations(cluster, request).unwrap_or_default();
    if of_pod_sets.is_empty() {
        return Vec::new();
    }
    taints.retain(|taint| of_pod_sets.iter().all(|tolerations| is_named(tolerations, taint)));
    taints
}

/// Whether all pods of a Workload tolerate a lasting taint by key, as their templates say.
pub fn is_named_by_templates(workload: &Workload, taint: &Taint) -> bool {
    let names = |pod_set: &PodSet| is_named(&pod_set.template.spec.tolerations, taint);
    let pod_sets = &workload.spec.pod_sets;
    may_stay(taint) && !pod_sets.is_empty() && pod_sets.iter().all(names)
}

/// Whether one of these names the taint by key, without a time limit.
fn is_named(tolerations: &[Toleration], taint: &Taint) -> bool {
    let lasting = tolerations.iter().filter(|toleration| names_a_taint(toleration));
    tolerates(&lasting.cloned().collect::<Vec<_>>(), taint)
}

fn names_a_taint(toleration: &Toleration) -> bool {
    toleration.key.as_ref().is_some_and(|key| !key.is_empty()) && toleration.toleration_seconds.is_none()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, flavor, object};
    use super::*;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn of_pods(tolerations: &Value, key: &str, effect: &str) -> bool {
        let world = Fixture::new().pods(&json!({"tolerations": tolerations}));
        is_tolerated(&world, key, effect)
    }

    fn is_tolerated(world: &Fixture, key: &str, effect: &str) -> bool {
        let taint = object(json!({"key": key, "value": "present", "effect": effect}));
        !tolerated(&world.cluster(), &world.request(), vec![taint]).is_empty()
    }

    #[test]
    fn only_a_lasting_toleration_by_key_ignores_a_taint() {
        let gpu = |more: Value| {
            let mut toleration = json!({"key": "nvidia.com/gpu", "operator": "Exists"});
            toleration.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!([toleration])
        };
        assert!(of_pods(&gpu(json!({})), "nvidia.com/gpu", "NoSchedule"));
        assert!(of_pods(&gpu(json!({})), "nvidia.com/gpu", "NoExecute"));
        assert!(!of_pods(&gpu(json!({})), "example.com/other", "NoSchedule"));
        assert!(!of_pods(&gpu(json!({"operator": "Equal", "value": "x"})), "nvidia.com/gpu", "NoSchedule"));
        assert!(!of_pods(&gpu(json!({"tolerationSeconds": 300})), "nvidia.com/gpu", "NoExecute"));
        assert!(!of_pods(&json!([{"operator": "Exists"}]), "nvidia.com/gpu", "NoSchedule"));
        assert!(!of_pods(&json!([]), "nvidia.com/gpu", "NoSchedule"));
    }

    #[test]
    fn what_says_that_a_node_is_not_fit_now_is_not_tolerated_by_anybody() {
        for key in ["node.kubernetes.io/not-ready", "karpenter.sh/disrupted"] {
            assert!(!of_pods(&json!([{"key": key, "operator": "Exists"}]), key, "NoSchedule"), "{key}");
        }
    }

    #[test]
    fn tolerations_do_not_depend_on_how_requested_devices_are_served() {
        let gpu = json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]);
        let mut world = Fixture::new().pods(&json!({"tolerations": gpu}));
        let devices = json!([{
            "deviceClass": "gpu.nvidia.com", "driver": "gpu.nvidia.com", "extendedResource": "nvidia.com/gpu",
            "perNode": 8,
        }]);
        world.policy.devices = object(devices);
        assert!(world.demand().is_err(), "the DeviceClass is not among the objects");
        assert!(is_tolerated(&world, "nvidia.com/gpu", "NoSchedule"));
        world.queue = None;
        assert!(!is_tolerated(&world, "nvidia.com/gpu", "NoSchedule"), "its pod sets are unknown");
    }

    #[test]
    fn a_flavor_tolerates_for_its_pods() {
        let mut world = Fixture::new();
        let mut tolerant = (*flavor("gpu", &json!({}))).clone();
        tolerant.spec.tolerations = vec![object(json!({"key": "nvidia.com/gpu", "operator": "Exists"}))];
        world.objects.flavors = vec![Arc::new(tolerant)];
        assert!(is_tolerated(&world, "nvidia.com/gpu", "NoSchedule"));
    }
}
