//! DaemonSets on a node that does not exist yet: what they request there, and which of them the gang's taint would keep off.
//!
//! Rule: in doubt, a DaemonSet belongs on the node. If the taint keeps the device plugin off, the node never gets ready. A
//! DaemonSet that was not counted takes the room of the gang's pods.

use super::affinity::{each_constrained, keys};
use super::catalogue;
use super::claim::Draft;
use super::host_anti_affinity::shared_port;
use super::resources::{self, Defaults};
use super::taints::{gang_taint, tolerates};
use super::{Obstacle, PlanSnapshot};
use crate::api::parameters::Pinning;
use crate::api::pod::{PodSpec, ResourceList};
use crate::api::requirements::{Requirements, Values, is_reserved, is_well_known};
use crate::api::{DaemonSet, NodePool};
use crate::names;
use k8s_openapi::api::core::v1::Taint;

/// Prefix of labels that only nodes set up by hand get.
const NODE_ROLE_PREFIX: &str = "node-role.kubernetes.io/";

/// Names of the DaemonSets that run, or may run later, on one of these nodes and do not tolerate the gang's taint.
pub fn kept_off_by_taint<'a>(
    drafts: impl Iterator<Item = &'a Draft>,
    cluster: &PlanSnapshot<'_>,
    gang: &str,
) -> Vec<String> {
    let taint = gang_taint(gang);
    let excluded: Vec<&DaemonSet> = cluster
        .objects
        .daemon_sets
        .iter()
        .map(AsRef::as_ref)
        .filter(|d| !tolerates(&d.spec.template.spec.tolerations, &taint))
        .collect();
    let mut names: Vec<String> = drafts
        .flat_map(|draft| {
            let taints = draft.taints("", Pinning::None);
            excluded.iter().filter(move |d| may_belong(&d.spec.template.spec, draft, &taints, cluster))
        })
        .map(|d| name(d))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Sum of the requests of the DaemonSets on such a node. `in_doubt` includes those that may run there later.
///
/// # Errors
/// The DaemonSet whose requests cannot be read, and which request it is.
pub fn overhead(
    draft: &Draft,
    taints: &[Taint],
    cluster: &PlanSnapshot<'_>,
    in_doubt: bool,
) -> Result<ResourceList, Obstacle> {
    let mut total = ResourceList::new();
    for daemon in &cluster.objects.daemon_sets {
        let spec = &daemon.spec.template.spec;
        let belongs = belongs(spec, draft, taints);
        let may_appear = || in_doubt && may_belong(spec, draft, taints, cluster);
        if !belongs && !may_appear() {
            continue;
        }
        let limit_ranges = cluster.limit_ranges.of(daemon.metadata.namespace.as_deref());
        let defaults = Defaults { limit_ranges, runtime_classes: &cluster.objects.runtime_classes };
        let mut pod = resources::of_pod(spec, defaults)
            .map_err(|e| super::bad_quantity(&format!("DaemonSet {}", name(daemon)), &e))?;
        // The node may lack a device that only a possible DaemonSet asks for, so do not request it.
        pod.retain(|key, _| belongs || !resources::is_device(key));
        total = resources::sum(&total, &pod);
    }
    Ok(total)
}

/// Why pods of this spec cannot run on such a node: a DaemonSet that belongs there has one of their host ports. `None` if none has.
pub fn taken_port(
    draft: &Draft,
    taints: &[Taint],
    cluster: &PlanSnapshot<'_>,
    pods: &PodSpec,
) -> Option<String> {
    cluster.objects.daemon_sets.iter().find_map(|daemon| {
        let spec = &daemon.spec.template.spec;
        let port = shared_port(pods, spec).filter(|_| belongs(spec, draft, taints))?;
        let (name, pool) = (name(daemon), &draft.node_pool);
        Some(format!(
            "host port {port} belongs to DaemonSet {name} on the nodes of NodePool {pool}; use another port"
        ))
    })
}

fn name(daemon: &DaemonSet) -> String {
    let namespace = daemon.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", daemon.metadata.name.as_deref().unwrap_or_default())
}

/// Whether pods of this spec would run on a node made from this draft with these taints.
fn belongs(spec: &PodSpec, draft: &Draft, taints: &[Taint]) -> bool {
    taints.iter().all(|taint| tolerates(&spec.tolerations, taint))
        && each_constrained(&draft.requirements, spec).iter().any(|node| is_of_a_type(node, draft))
}

/// Whether a machine of the provider meets these requirements, which narrow those of the draft. True if the draft asks for no type of
/// the provider's catalogue, or for one that it lacks.
fn is_of_a_type(node: &Requirements, draft: &Draft) -> bool {
    let Some(catalogue) = catalogue::of(draft.node_class_group()).filter(|_| *node != draft.requirements)
    else {
        return true;
    };
    let listed = draft.requirements.get(names::INSTANCE_TYPE).and_then(Values::listed);
    let is_known = listed.into_iter().flatten().all(|name| catalogue.get(name).is_some());
    !is_known || !catalogue.matching(node).is_empty() || catalogue.matching(&draft.requirements).is_empty()
}

/// Whether they would run once the node gets more labels. Device plugins select on labels that a feature discovery sets and that
/// no NodePool knows.
fn may_belong(spec: &PodSpec, draft: &Draft, taints: &[Taint], cluster: &PlanSnapshot<'_>) -> bool {
    let mut later = draft.clone();
    for key in keys(spec) {
        let by_hand = is_reserved(key) || key.starts_with(NODE_ROLE_PREFIX);
        let known = is_well_known(key) || cluster.objects.node_pools.iter().any(|pool| defines(pool, key));
        if !by_hand && !known && later.requirements.get(key).is_none() {
            // A key without requirements can always be narrowed.
            let _ = later.requirements.add(key, &Values::any_or_none());
        }
    }
    belongs(spec, &later, taints)
}

fn defines(pool: &NodePool, key: &str) -> bool {
    let template = &pool.spec.template;
    template.metadata.labels.contains_key(key) || template.spec.requirements.iter().any(|r| r.key == key)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, daemon_set, object, patched, pool};
    use super::*;
    use crate::api::parameters::PackingMode;
    use crate::api::parameters::Pinning;
    use crate::plan::limit_ranges::LimitRanges;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn pinned(daemons: &[Value]) -> (Pinning, Vec<String>) {
        let mut world = Fixture::new();
        world.objects.daemon_sets = daemons.iter().map(|spec| daemon_set("d", spec)).collect();
        let plan = world.provisioned();
        (plan.pinning, plan.notes)
    }

    #[test]
    fn a_daemon_set_without_requests_takes_what_the_limit_range_of_its_namespace_says() {
        let mut world = Fixture::new();
        let bare = json!({"containers": [{"name": "agent", "resources": null}], "tolerations": everything()});
        world.objects.daemon_sets = vec![daemon_set("agent", &bare)];
        let requested = |world: &Fixture| {
            let requests = world.provisioned().slots[0].template.spec.resources.requests.clone();
            resources::amount(&requests, "cpu")
        };
        let before = requested(&world);
        let range = |namespace: &str| {
            Arc::new(object(json!({
                "metadata": {"name": "defaults", "namespace": namespace},
                "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500m"}}]},
            })))
        };
        let with = |world: &mut Fixture, namespace: &str| {
            let daemon_sets = world.objects.daemon_sets.clone();
            world.limit_ranges = LimitRanges::for_plan([range(namespace)], "ns", &daemon_sets);
            requested(world)
        };
        assert_eq!(with(&mut world, "another"), before);
        assert!(with(&mut world, "sys") > before);
    }

    fn everything() -> Value {
        json!([{"operator": "Exists"}])
    }

    fn needs_label(key: &str) -> Value {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}}}})
    }

    #[test]
    fn a_toleration_matches_by_key_effect_and_value() {
        let taint: Taint = object(json!({"key": "k", "value": "v", "effect": "NoSchedule"}));
        for (toleration, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}), true),
            (json!({"key": "k", "value": "w"}), false),
            (json!({"key": "l", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "k", "operator": "Gt", "value": "v"}), false),
        ] {
            assert_eq!(tolerates(&[object(toleration.clone())], &taint), expected, "{toleration}");
        }
        assert!(tolerates(&[], &object(json!({"key": "k", "effect": "PreferNoSchedule"}))));
    }

    #[test]
    fn the_taint_is_set_where_every_daemon_set_of_the_node_tolerates_it() {
        assert_eq!(pinned(&[]), (Pinning::SelectorAndTaint, Vec::new()));
        assert_eq!(pinned(&[json!({"tolerations": everything()})]).0, Pinning::SelectorAndTaint);
    }

    #[test]
    fn a_daemon_set_for_types_that_the_pool_does_not_have_does_not_count() {
        let pinned = |selector: Value| {
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let asked = json!([{"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c", "g"]}]);
            let arch = json!([{"key": names::ARCH, "operator": "In", "values": ["amd64"]}]);
            let requirements: Vec<Value> =
                [asked, arch].iter().flat_map(|l| l.as_array().unwrap().clone()).collect();
            let template = json!({"spec": {"requirements": requirements, "nodeClassRef": class}});
            let mut world = Fixture::new();
            world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": template}}))];
            world.objects.daemon_sets = vec![daemon_set("d", &json!({"nodeSelector": selector}))];
            world.provisioned().pinning
        };
        for (key, value, expected) in [
            ("karpenter.k8s.aws/instance-gpu-manufacturer", "nvidia", Pinning::Selector),
            ("karpenter.k8s.aws/instance-accelerator-name", "trainium", Pinning::SelectorAndTaint),
            (names::INSTANCE_TYPE, "trn1.32xlarge", Pinning::SelectorAndTaint),
        ] {
            assert_eq!(pinned(json!({key: value})), expected, "{key}");
        }
    }

    #[test]
    fn a_daemon_set_that_does_not_tolerate_the_taint_prevents_it_and_is_named() {
        let note = "the nodes get no taint: DaemonSets sys/d would not run on them";
        assert_eq!(pinned(&[json!({})]), (Pinning::Selector, vec![note.to_owned()]));
    }

    #[test]
    fn a_daemon_set_of_other_nodes_does_not_count() {
        for spec in [
            json!({"nodeSelector": {"topology.kubernetes.io/zone": "c"}}),
            json!({"nodeSelector": {"team": "web"}}),
            json!({"nodeSelector": {"kubernetes.io/hostname": "n1"}}),
            needs_label("node-role.kubernetes.io/control-plane"),
        ] {
            assert_eq!(pinned(std::slice::from_ref(&spec)).0, Pinning::SelectorAndTaint, "{spec}");
        }
    }

    #[test]
    fn pods_that_use_the_host_port_of_a_daemon_set_are_refused() {
        let port =
            |port: i32| json!({"containers": [{"ports": [{"containerPort": port, "hostPort": port}]}]});
        let with = |daemon: &Value| {
            let mut world = Fixture::new();
            world.workload.spec.pod_sets[0].template.spec = serde_json::from_value(port(9_100)).unwrap();
            world.objects.daemon_sets = vec![daemon_set("exporter", daemon)];
            world
        };
        let expected = "pod set main: host port 9100 belongs to DaemonSet sys/exporter on the nodes of NodePool gpu; use \
                        another port";
        let (reason, message) = with(&port(9_100)).obstacle();
        assert_eq!(reason, crate::plan::ObstacleReason::RequirementsClash);
        assert!(message.contains(expected), "{message}");
        assert_eq!(with(&port(9_101)).provisioned().slots.len(), 2);
        let elsewhere = patched(port(9_100), &json!({"nodeSelector": {"topology.kubernetes.io/zone": "c"}}));
        assert_eq!(with(&elsewhere).provisioned().slots.len(), 2);
    }

    #[test]
    fn a_daemon_set_that_selects_an_unknown_label_may_run_on_the_node() {
        let plugin = needs_label("feature.node.kubernetes.io/pci-10de.present");
        assert_eq!(pinned(std::slice::from_ref(&plugin)).0, Pinning::Selector);
        let mut world = Fixture::new();
        world.objects.daemon_sets = vec![daemon_set("d", &plugin)];
        let labelled = json!({"spec": {"template": {"metadata": {"labels":
            {"feature.node.kubernetes.io/pci-10de.present": "true"}}}}});
        world.objects.node_pools.push(pool("a-labelled-one", &labelled));
        assert_eq!(world.provisioned().pinning, Pinning::SelectorAndTaint);
    }

    #[test]
    fn a_daemon_set_that_excludes_an_unknown_label_runs_on_the_node() {
        let excluding = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "team/opt-out", "operator": "DoesNotExist"}]}]}}}});
        assert_eq!(pinned(std::slice::from_ref(&excluding)).0, Pinning::Selector);
    }

    #[test]
    fn a_requested_taint_is_kept_with_a_note_about_the_daemon_sets_it_keeps_off() {
        let mut world = Fixture::new();
        world.objects.daemon_sets = vec![daemon_set("d", &json!({}))];
        world.policy.pinning = Pinning::SelectorAndTaint;
        let plan = world.provisioned();
        assert_eq!(plan.pinning, Pinning::SelectorAndTaint);
        assert!(plan.notes[0].contains("sys/d"), "{:?}", plan.notes);
        assert_eq!(plan.slots[0].template.spec.resources.requests["cpu"].0, "2", "it takes nothing there");
    }

    #[test]
    fn daemon_set_requests_are_added_including_their_pod_count() {
        let mut world = Fixture::new();
        world.objects.daemon_sets = vec![
            daemon_set("all", &json!({"tolerations": everything()})),
            daemon_set("elsewhere", &json!({"nodeSelector": {"team": "web"}})),
        ];
        let requests = &world.provisioned().slots[0].template.spec.resources.requests;
        assert_eq!((requests["cpu"].0.as_str(), requests["pods"].0.as_str()), ("2100m", "2"));
    }

    #[test]
    fn a_daemon_set_that_waits_for_a_later_label_counts_without_its_devices() {
        let requests = json!([{"resources": {"requests": {"cpu": "2", "example.com/nic": "1"}}}]);
        let spec = |selector: Value| json!({"tolerations": everything(), "nodeSelector": selector, "containers": requests});
        let asked_by = |packing: PackingMode, selector: Value| {
            let mut world = Fixture::new();
            world.policy.packing = packing;
            world.objects.daemon_sets = vec![daemon_set("d", &spec(selector))];
            world.provisioned().slots[0].template.spec.resources.requests.clone()
        };
        let asked = |selector: Value| asked_by(PackingMode::Fill, selector);
        let later = || json!({"nvidia.com/gpu.deploy.dcgm": "true"});
        let counted = asked(later());
        assert_eq!((counted["cpu"].0.as_str(), counted.get("example.com/nic")), ("4", None));
        assert_eq!(
            asked_by(PackingMode::PerPod, later())["cpu"].0,
            "2",
            "a pod that fits is not refused for it"
        );
        let sure = asked(json!({}));
        assert_eq!((sure["cpu"].0.as_str(), sure["example.com/nic"].0.as_str()), ("4", "1"));
        assert_eq!(asked(json!({"team": "web"}))["cpu"].0, "2");
    }

    #[test]
    fn a_daemon_set_that_selects_registered_nodes_runs_on_the_node() {
        let registered = json!({"nodeSelector": {(names::REGISTERED): "true"}});
        assert_eq!(pinned(&[registered]).0, Pinning::Selector);
    }
}
