//! Additions of a RuntimeClass to the pods that name it.
//!
//! Source: the RuntimeClass admission plugin of the API server. It merges `scheduling.nodeSelector` and
//! `scheduling.tolerations` into each pod as the pod is created, so the template does not show them. It refuses pods
//! whose class does not exist, or whose node selector asks for another value of the same label.

use super::{Obstacle, ObstacleReason, Outcome};
use crate::api::pod::PodSpec;
use k8s_openapi::api::node::v1::RuntimeClass;
use std::borrow::Cow;
use std::sync::Arc;

/// The pod spec of this pod set, as the API server will create the pods.
///
/// # Errors
/// If the API server would refuse the pods.
pub fn completed<'a>(
    spec: &'a PodSpec,
    classes: &[Arc<RuntimeClass>],
    pod_set: &str,
) -> Result<Cow<'a, PodSpec>, Outcome> {
    let Some(name) = spec.runtime_class_name.as_ref().filter(|name| !name.is_empty()) else {
        return Ok(Cow::Borrowed(spec));
    };
    let class = classes.iter().find(|class| class.metadata.name.as_ref() == Some(name)).ok_or_else(|| {
        Outcome::Refuse(Obstacle::new(
            ObstacleReason::RuntimeClassMissing,
            format!("pod set {pod_set} names RuntimeClass {name}, which does not exist; create it"),
        ))
    })?;
    let Some(scheduling) = &class.scheduling else { return Ok(Cow::Borrowed(spec)) };
    let mut spec = spec.clone();
    for (key, value) in scheduling.node_selector.iter().flatten() {
        let own = spec.node_selector.entry(key.clone()).or_insert_with(|| value.clone());
        if own != value {
            return Err(Outcome::Refuse(Obstacle::new(
                ObstacleReason::RequirementsClash,
                format!(
                    "pod set {pod_set} contradicts itself: its nodeSelector wants {key} {own}, and its RuntimeClass {name} \
                     wants {value}; correct the pods"
                ),
            )));
        }
    }
    let more = scheduling.tolerations.iter().flatten();
    let more: Vec<_> = more.filter(|toleration| !spec.tolerations.contains(toleration)).cloned().collect();
    spec.tolerations.extend(more);
    Ok(Cow::Owned(spec))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, object, pool};
    use super::*;
    use crate::names;
    use serde_json::{Value, json};

    fn world(pods: &Value, scheduling: &Value) -> Fixture {
        let mut spec = json!({"runtimeClassName": "kata"});
        spec.as_object_mut().unwrap().extend(pods.as_object().unwrap().clone());
        let mut world = Fixture::new().pods(&spec);
        let class = json!({"metadata": {"name": "kata"}, "handler": "kata", "scheduling": scheduling});
        world.objects.runtime_classes = vec![Arc::new(object(class))];
        world
    }

    fn zones(world: &Fixture) -> Vec<String> {
        let plan = world.provisioned();
        let requirements = &plan.slots[0].template.spec.requirements;
        requirements.iter().find(|r| r.key == names::ZONE).unwrap().values.clone()
    }

    #[test]
    fn node_selector_of_the_runtime_class_narrows_the_nodes() {
        let in_b = json!({"nodeSelector": {(names::ZONE): "b"}});
        assert_eq!(zones(&world(&json!({}), &in_b)), ["b"]);
        assert_eq!(zones(&world(&json!({}), &Value::Null)), ["a", "b"]);
    }

    #[test]
    fn tolerations_of_the_runtime_class_are_those_of_the_pods() {
        let taint = json!({"key": "kata", "effect": "NoSchedule"});
        let taints = json!({"spec": {"template": {"spec": {"taints": [taint]}}}});
        let mut refused = world(&json!({}), &Value::Null);
        refused.objects.node_pools = vec![pool("gpu", &taints)];
        assert_eq!(refused.obstacle().0, ObstacleReason::TaintNotTolerated);
        let mut world = world(&json!({}), &json!({"tolerations": [{"key": "kata", "operator": "Exists"}]}));
        world.objects.node_pools = vec![pool("gpu", &taints)];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn pods_that_contradict_their_runtime_class_are_refused() {
        let world = world(
            &json!({"nodeSelector": {(names::ZONE): "a"}}),
            &json!({"nodeSelector": {(names::ZONE): "b"}}),
        );
        let Outcome::Refuse(obstacle) = world.plan() else { panic!("not refused") };
        assert!(obstacle.message.contains("RuntimeClass kata wants b"), "{}", obstacle.message);
    }

    #[test]
    fn a_missing_runtime_class_is_reported() {
        let mut world = world(&json!({}), &Value::Null);
        world.objects.runtime_classes.clear();
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::RuntimeClassMissing);
        assert!(message.contains("names RuntimeClass kata, which does not exist"), "{message}");
    }
}
