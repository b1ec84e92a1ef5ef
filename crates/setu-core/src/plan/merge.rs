//! The merge that Kueue will do when it starts the pods, done before anything is bought.
//!
//! Kueue finds a clash only at the start, and then finishes the Workload as failed. So a clash must
//! never reach it.

use super::demand::{flavors, tolerations_of};
use super::taints::{in_words, tolerates};
use super::{Obstacle, ObstacleReason, PlanObjects, PlanRequest};
use crate::api::requirements::normalized;
use crate::api::workload::PodSetUpdate;
use crate::api::{Node, NodeClaim, ResourceFlavor};
use crate::names;
use k8s_openapi::api::core::v1::Taint;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Checks that template, flavors, other checks' updates and ours can be merged for every pod set.
pub fn check(
    all_flavors: &[Arc<ResourceFlavor>],
    request: &PlanRequest<'_>,
    ours: &[PodSetUpdate],
) -> Result<(), Obstacle> {
    for pod_set in &request.workload.spec.pod_sets {
        let template = &pod_set.template;
        let mut selector = Merged::new("nodeSelector", &pod_set.name);
        let mut labels = Merged::new("label", &pod_set.name);
        let mut annotations = Merged::new("annotation", &pod_set.name);
        selector.add("the pod template", &template.spec.node_selector)?;
        labels.add("the pod template", &template.metadata.labels)?;
        annotations.add("the pod template", &template.metadata.annotations)?;
        for flavor in flavors(all_flavors, request.workload, &pod_set.name)? {
            let who = format!("ResourceFlavor {}", flavor.metadata.name.as_deref().unwrap_or_default());
            selector.add(&who, &flavor.spec.node_labels)?;
        }
        let others = request.workload.checks().iter().filter(|c| c.name != request.check);
        let theirs =
            others.flat_map(|c| c.pod_set_updates.iter().map(move |u| (format!("check {}", c.name), u)));
        let all = theirs.chain(ours.iter().map(|u| (format!("check {}", request.check), u)));
        for (who, update) in all.filter(|(_, u)| u.name == pod_set.name) {
            selector.add(&who, &update.node_selector)?;
            labels.add(&who, &update.labels)?;
            annotations.add(&who, &update.annotations)?;
        }
    }
    Ok(())
}

/// Finds what keeps the pods of one of these pod sets from the gang's nodes, and says it for users; `None` if nothing does. The pod
/// template, a flavor or another check may select a label that a node has with another value, or the pods may not tolerate a taint
/// any more. `nodes` are the gang's nodes with their claims. A template may have been edited since they were made.
pub fn misplaced(
    objects: &PlanObjects,
    request: &PlanRequest<'_>,
    pod_sets: &[String],
    nodes: &[(&NodeClaim, &Node)],
) -> Option<String> {
    // A node whose claim names no pod set, or several, may be for another one.
    let is_only = pod_sets.len() == 1;
    pod_sets.iter().find_map(|pod_set| {
        let serves = |(claim, _): &&(&NodeClaim, &Node)| {
            let value = claim.label(names::POD_SETS);
            value == pod_set || (value.is_empty() && is_only)
        };
        let of_set: Vec<_> = nodes.iter().filter(serves).copied().collect();
        let elsewhere = || sent_elsewhere(&objects.flavors, request, pod_set, &of_set);
        elsewhere().or_else(|| repelled(objects, request, pod_set, &of_set))
    })
}

/// What selects other nodes for the pods of a pod set than these.
fn sent_elsewhere(
    all_flavors: &[Arc<ResourceFlavor>],
    request: &PlanRequest<'_>,
    pod_set: &str,
    nodes: &[(&NodeClaim, &Node)],
) -> Option<String> {
    let workload = request.workload;
    let others = || workload.checks().iter().filter(|c| c.name != request.check);
    let set = workload.spec.pod_sets.iter().find(|set| set.name == pod_set);
    let of_template =
        set.map(|set| ("the pod template".to_owned(), &set.template.spec.node_selector)).into_iter();
    let flavors = flavors(all_flavors, workload, pod_set).unwrap_or_default().into_iter();
    let of_flavors = flavors.filter(|_| workload.has_pods_of_kueue()).map(|flavor| {
        let name = flavor.metadata.name.as_deref().unwrap_or_default();
        (format!("ResourceFlavor {name}"), &flavor.spec.node_labels)
    });
    let updates = others().flat_map(|c| c.pod_set_updates.iter().map(move |update| (c, update)));
    let of_checks = updates
        .filter(|(_, update)| update.name == pod_set)
        .map(|(check, update)| (format!("check {}", check.name), &update.node_selector));
    of_template.chain(of_flavors).chain(of_checks).find_map(|(who, selector)| {
        let is_ours = |key: &String| [names::GANG, names::POD_SETS].contains(&key.as_str());
        selector.iter().filter(|(key, _)| !is_ours(key)).find_map(|(key, value)| {
            // A label that is not there may come later.
            let differs = |label: &str| !label.is_empty() && label != value;
            let (_, node) = nodes.iter().find(|(_, node)| differs(label_of(node, key)))?;
            let (name, has) = (node.metadata.name.as_deref().unwrap_or_default(), label_of(node, key));
            Some(format!("{who} wants {key} {value} for pod set {pod_set}, and node {name} has {has}"))
        })
    })
}

/// The taint of one of these nodes that the pods of a pod set do not tolerate. Kueue adds the toleration of the gang's taint.
fn repelled(
    objects: &PlanObjects,
    request: &PlanRequest<'_>,
    pod_set: &str,
    nodes: &[(&NodeClaim, &Node)],
) -> Option<String> {
    let set = request.workload.spec.pod_sets.iter().find(|set| set.name == pod_set)?;
    let tolerations = tolerations_of(objects, request, set).ok()?;
    let repels = |taint: &&Taint| taint.key != names::GANG && !tolerates(&tolerations, taint);
    let (taint, node) =
        nodes.iter().find_map(|(claim, node)| Some((claim.spec.taints.iter().find(repels)?, node)))?;
    let name = node.metadata.name.as_deref().unwrap_or_default();
    Some(format!("pod set {pod_set} does not tolerate taint {} of node {name} any more", in_words(taint)))
}

/// Value of a label of a Node, by its key or by the usual name of the key; empty if it has neither.
fn label_of<'n>(node: &'n Node, key: &str) -> &'n str {
    match node.label(key) {
        "" => node.label(normalized(key)),
        value => value,
    }
}

/// A map in the making that remembers who set each key.
struct Merged<'a> {
    what: &'static str,
    pod_set: &'a str,
    values: BTreeMap<String, (String, String)>,
}

impl<'a> Merged<'a> {
    fn new(what: &'static str, pod_set: &'a str) -> Self {
        Self { what, pod_set, values: BTreeMap::new() }
    }

    fn add(&mut self, who: &str, more: &BTreeMap<String, String>) -> Result<(), Obstacle> {
        for (key, value) in more {
            match self.values.get(key) {
                Some((_, old)) if old == value => {}
                Some((first, old)) => {
                    return Err(Obstacle::new(
                        ObstacleReason::UpdatesClash,
                        format!(
                            "{} {key} of pod set {} is {old} in {first} and {value} in {who}; Kueue could not start the \
                             pods, so make them agree",
                            self.what, self.pod_set
                        ),
                    ));
                }
                None => {
                    self.values.insert(key.clone(), (who.to_owned(), value.clone()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, flavor, pool};
    use super::*;
    use serde_json::{Value, json};

    fn with_other_check(update: &Value) -> Fixture {
        Fixture::new().workload(&json!({"status": {"admissionChecks": [
            {"name": "budget", "podSetUpdates": [update]},
        ]}}))
    }

    #[test]
    fn equal_values_from_several_sides_are_fine() {
        let mut world =
            with_other_check(&json!({"name": "main", "nodeSelector": {"topology.kubernetes.io/zone": "a"}}));
        world.objects.flavors = vec![flavor("gpu", &json!({"topology.kubernetes.io/zone": "a"}))];
        assert_eq!(world.provisioned().slots.len(), 2);
    }

    #[test]
    fn nodes_are_planned_for_what_another_check_adds_to_the_pods() {
        let zone = "topology.kubernetes.io/zone";
        let world = with_other_check(&json!({"name": "main", "nodeSelector": {(zone): "b"}}));
        let plan = world.provisioned();
        let asked = &plan.slots[0].template.spec.requirements;
        let zones: Vec<_> =
            asked.iter().filter(|asked| asked.key == zone).map(|asked| &asked.values).collect();
        assert_eq!(zones, [&["b".to_owned()]], "the NodePool has zones a and b");
        let toleration = json!({"key": "dedicated", "operator": "Exists"});
        let mut world = with_other_check(&json!({"name": "main", "tolerations": [toleration]}));
        let taint = json!({"key": "dedicated", "value": "ml", "effect": "NoSchedule"});
        let tainted = json!({"spec": {"template": {"spec": {"taints": [taint]}}}});
        world.objects.node_pools = vec![pool("gpu", &tainted)];
        assert_eq!(world.provisioned().slots.len(), 2);
        let without = Fixture { workload: Fixture::new().workload, ..world };
        assert_eq!(without.obstacle().0, ObstacleReason::TaintNotTolerated);
    }

    #[test]
    fn another_check_that_contradicts_the_flavor_is_named() {
        let mut world =
            with_other_check(&json!({"name": "main", "nodeSelector": {"topology.kubernetes.io/zone": "b"}}));
        world.objects.flavors = vec![flavor("gpu", &json!({"topology.kubernetes.io/zone": "a"}))];
        let expected = "nodeSelector topology.kubernetes.io/zone of pod set main is a in ResourceFlavor gpu and b in \
                        check budget; Kueue could not start the pods, so make them agree";
        assert_eq!(world.obstacle(), (ObstacleReason::UpdatesClash, expected.to_owned()));
    }

    #[test]
    fn another_checks_update_clashes_only_on_the_same_pod_set() {
        let clash =
            with_other_check(&json!({"name": "main", "nodeSelector": {(crate::names::GANG): "theirs"}}));
        assert_eq!(clash.obstacle().0, ObstacleReason::UpdatesClash);
        let apart =
            with_other_check(&json!({"name": "lead", "nodeSelector": {(crate::names::GANG): "theirs"}}));
        assert_eq!(apart.provisioned().slots.len(), 2);
    }

    #[test]
    fn labels_and_annotations_of_the_template_may_not_change_their_values() {
        for kind in ["labels", "annotations"] {
            let mut world = with_other_check(&json!({"name": "main", (kind): {"x": "2"}}));
            let metadata = &mut world.workload.spec.pod_sets[0].template.metadata;
            metadata.labels.insert("x".into(), if kind == "labels" { "1".into() } else { "2".into() });
            metadata.annotations.insert("x".into(), if kind == "labels" { "2".into() } else { "1".into() });
            assert_eq!(world.obstacle().0, ObstacleReason::UpdatesClash, "{kind}");
        }
    }

    #[test]
    fn a_node_without_the_label_that_another_check_selects_is_named() {
        let zone = "topology.kubernetes.io/zone";
        let node = |zone_of: &str, label: &str| -> (NodeClaim, Node) {
            let claim = json!({
                "metadata": {"name": "c", "labels": {(names::POD_SETS): label}},
                "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
            });
            let node = json!({"metadata": {"name": "n1", "labels": {(zone): zone_of}}});
            (super::super::fixtures::object(claim), super::super::fixtures::object(node))
        };
        let world =
            with_other_check(&json!({"name": "main", "nodeSelector": {(zone): "b", (names::GANG): "g1"}}));
        let found = |zone_of: &str, label: &str| {
            let (claim, node) = node(zone_of, label);
            misplaced(&world.objects, &world.request(), &["main".to_owned()], &[(&claim, &node)])
        };
        let said = found("a", "").unwrap();
        let words = "check budget wants topology.kubernetes.io/zone b for pod set main, and node n1 has a";
        assert_eq!(said, words);
        assert_eq!(found("b", ""), None);
        assert_eq!(found("", ""), None, "the label may come later");
        let of_driver = with_other_check(
            &json!({"name": "main", "nodeSelector": {"topology.ebs.csi.aws.com/zone": "b"}}),
        );
        let by_driver = |zone_of: &str| {
            let (claim, node) = node(zone_of, "");
            misplaced(&PlanObjects::default(), &of_driver.request(), &["main".to_owned()], &[(&claim, &node)])
        };
        assert_eq!(by_driver("b"), None, "another name of the same label");
        assert!(by_driver("a").is_some());
        assert_eq!(found("a", "other"), None, "the node is for another pod set");
        assert_eq!(found("a", "main.other"), None, "it may be for the other one alone");
        assert!(found("a", "main").is_some());
        let mut edited = Fixture::new();
        edited.workload.spec.pod_sets[0].template.spec.node_selector.insert(zone.to_owned(), "b".to_owned());
        let (claim, made) = node("a", "main");
        let said =
            misplaced(&PlanObjects::default(), &edited.request(), &["main".to_owned()], &[(&claim, &made)])
                .unwrap();
        assert!(said.starts_with("the pod template wants topology.kubernetes.io/zone b"), "{said}");
        let (claim, node) = node("a", "");
        let both = ["main".to_owned(), "other".to_owned()];
        assert_eq!(misplaced(&world.objects, &world.request(), &both, &[(&claim, &node)]), None);
    }

    #[test]
    fn a_taint_that_the_pods_do_not_tolerate_any_more_is_named() {
        let taint = |key: &str, effect: &str| json!({"key": key, "value": "ml", "effect": effect});
        let found = |world: &Fixture, taint: Value, label: &str| {
            let claim: NodeClaim = super::super::fixtures::object(json!({
                "metadata": {"name": "c", "labels": {(names::POD_SETS): label}},
                "spec": {
                    "nodeClassRef": {"group": "", "kind": "", "name": ""}, "taints": [taint],
                    "startupTaints": [{"key": "starting", "effect": "NoSchedule"}],
                },
            }));
            let node: Node = super::super::fixtures::object(json!({"metadata": {"name": "n1"}}));
            misplaced(&world.objects, &world.request(), &["main".to_owned()], &[(&claim, &node)])
        };
        let dedicated = || taint("dedicated", "NoSchedule");
        let plain = Fixture::new();
        let words = "pod set main does not tolerate taint dedicated=ml:NoSchedule of node n1 any more";
        assert_eq!(found(&plain, dedicated(), "main").as_deref(), Some(words));
        assert!(found(&plain, taint("dedicated", "NoExecute"), "").is_some());
        assert_eq!(found(&plain, taint("dedicated", "PreferNoSchedule"), ""), None);
        assert_eq!(found(&plain, dedicated(), "other"), None, "the node is for another pod set");
        assert_eq!(found(&plain, taint(names::GANG, "NoSchedule"), ""), None, "its toleration is added");
        let toleration = json!({"key": "dedicated", "operator": "Exists"});
        let of_pods = Fixture::new().pods(&json!({"tolerations": [toleration]}));
        assert_eq!(found(&of_pods, dedicated(), ""), None);
        let of_check = with_other_check(&json!({"name": "main", "tolerations": [toleration]}));
        assert_eq!(found(&of_check, dedicated(), ""), None);
        let mut of_flavor = Fixture::new();
        let mut tolerant = (*flavor("gpu", &json!({}))).clone();
        tolerant.spec.tolerations = vec![super::super::fixtures::object(toleration.clone())];
        of_flavor.objects.flavors = vec![Arc::new(tolerant)];
        assert_eq!(found(&of_flavor, dedicated(), ""), None);
        let mut of_class = Fixture::new().pods(&json!({"runtimeClassName": "kata"}));
        of_class.objects.runtime_classes = vec![Arc::new(super::super::fixtures::object(json!({
            "metadata": {"name": "kata"}, "handler": "kata", "scheduling": {"tolerations": [toleration]},
        })))];
        assert_eq!(found(&of_class, dedicated(), ""), None);
    }

    #[test]
    fn our_own_standing_entry_does_not_clash_with_us() {
        let mut world = Fixture::new();
        let stale = json!({"status": {"admissionChecks": [
            {"name": "prov", "podSetUpdates": [{"name": "main", "nodeSelector": {(crate::names::GANG): "g0"}}]},
        ]}});
        world = world.workload(&stale);
        assert_eq!(world.provisioned().slots.len(), 2);
    }
}
