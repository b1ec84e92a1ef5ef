//! The label by which pods find the nodes of their own pod set.
//!
//! All pods of a gang select its nodes by one label. Where the nodes of its pod sets differ, a small pod could take the room of a
//! large one. Such nodes also name the pod sets that they were planned for, and the pods select that label too.

use super::demand::PodSetDemand;
use super::{PlanRequest, Slot};
use crate::api::NodeClaim;
use crate::names;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Longest value of a label, in characters.
const VALUE_LIMIT: usize = 63;
/// The most characters that all values together may have, because the journal keeps them.
const VALUES_LIMIT: usize = 512;

/// The values of the label [`names::POD_SETS`] on the nodes of a gang: names of pod sets, joined by dots. Empty if the pods
/// select their nodes by the gang's label alone.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(transparent)]
pub struct PodSetLabels(Vec<String>);

impl PodSetLabels {
    /// Those of planned nodes.
    pub fn of(slots: &[Slot]) -> Self {
        Self::of_values(slots.iter().filter_map(|slot| slot.pod_sets.as_deref()))
    }

    /// Those with these values, without repetition.
    pub fn of_values<'v>(values: impl Iterator<Item = &'v str>) -> Self {
        let mut known: Vec<String> = Vec::new();
        for value in values {
            if known.last().is_none_or(|last| last != value) && !known.iter().any(|k| k == value) {
                known.push(value.to_owned());
            }
        }
        Self(known)
    }

    /// Whether the pods select their nodes by the gang's label alone.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value that the pods of a pod set select.
    pub fn of_pod_set(&self, pod_set: &str) -> Option<&str> {
        self.0.iter().map(String::as_str).find(|value| lists(value, pod_set))
    }

    /// The value on the node of a slot. A gang that was adopted from its claims lacks the values of lost claims. For
    /// those slots its plan has the value.
    pub fn of_slot<'s>(&'s self, slot: &'s Slot) -> Option<&'s str> {
        let of_plan = || slot.pod_sets.as_deref().filter(|_| !self.is_empty());
        self.of_pod_set(&slot.pods.first()?.pod_set).or_else(of_plan)
    }

    /// Whether all pods of each of these slots select the same value.
    pub fn suit(&self, slots: &[Slot]) -> bool {
        let suits = |slot: &Slot| {
            let mut values = slot.pods.iter().map(|share| self.of_pod_set(&share.pod_set));
            let first = values.next();
            values.all(|value| Some(value) == first)
        };
        self.is_empty() || slots.iter().all(suits)
    }

    /// Whether a plan can have these. A tenant can write a journal.
    pub fn are_possible(&self) -> bool {
        let may_end = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_name = |name: &str| {
            name.starts_with(may_end)
                && name.ends_with(may_end)
                && name.chars().all(|c| may_end(c) || c == '-')
        };
        let names = || self.0.iter().flat_map(|value| value.split('.'));
        let is_short = self.0.iter().all(|value| value.len() <= VALUE_LIMIT)
            && self.0.iter().map(String::len).sum::<usize>() <= VALUES_LIMIT;
        is_short && names().all(is_name) && names().collect::<BTreeSet<_>>().len() == names().count()
    }
}

/// Whether a value of the label names a pod set.
pub(super) fn lists(value: &str, pod_set: &str) -> bool {
    value.split('.').any(|name| name == pod_set)
}

/// Whether the node of a claim is for one of these pod sets; `None` if the claim names none.
pub fn is_for(claim: &NodeClaim, pod_sets: &BTreeSet<String>) -> Option<bool> {
    let value = claim.label(names::POD_SETS);
    (!value.is_empty()).then(|| pod_sets.iter().any(|pod_set| lists(value, pod_set)))
}

/// Pod sets that may use each other's nodes, and the claims of these nodes.
struct Group<'s> {
    pod_sets: BTreeSet<&'s str>,
    templates: Vec<&'s NodeClaim>,
}

/// Records in each slot which pod sets its node is for, if the nodes of the pod sets differ and Kueue adds to the pods what the check
/// says.
pub(super) fn record(slots: &mut [Slot], request: &PlanRequest<'_>, demand: &[PodSetDemand<'_>]) {
    let workload = request.workload;
    // The pods that an elastic Job gets while it runs have the node selector of its first pods. With mixed tiers, a slot may have
    // pods of another pod set in the next tier.
    let may_differ = !workload.is_elastic() && !request.policy.mixed_tiers;
    if !may_differ || !workload.front_end().gets_pod_set_updates() {
        return;
    }
    let groups = groups(slots, demand);
    let values: Vec<String> =
        groups.iter().map(|g| g.pod_sets.iter().copied().collect::<Vec<_>>().join(".")).collect();
    let labels = PodSetLabels(values);
    if groups.len() < 2 || !labels.are_possible() {
        return;
    }
    let values: Vec<Arc<str>> = labels.0.iter().map(|value| Arc::from(value.as_str())).collect();
    for slot in slots {
        let of_slot = |value: &&Arc<str>| slot.pods.first().is_some_and(|pods| lists(value, &pods.pod_set));
        slot.pod_sets = values.iter().find(of_slot).cloned();
    }
}

/// Pod sets are in one group if they share a node, if their nodes are alike, or if Kueue places them together.
fn groups<'s>(slots: &'s [Slot], demand: &[PodSetDemand<'s>]) -> Vec<Group<'s>> {
    let mut groups: Vec<Group<'s>> = Vec::new();
    for kind in slots.chunk_by(|one, other| Arc::ptr_eq(&one.template, &other.template)) {
        let Some(slot) = kind.first() else { continue };
        let pod_sets = slot.pods.iter().map(|share| share.pod_set.as_str()).collect();
        merge(&mut groups, Group { pod_sets, templates: vec![&slot.template] });
    }
    let group_name = |wanted: &PodSetDemand<'s>| {
        let asked =
            wanted.pod_set.topology_request.as_ref().and_then(|asked| asked.pod_set_group_name.as_deref());
        let annotations = &wanted.pod_set.template.metadata.annotations;
        asked.or_else(|| annotations.get(names::POD_SET_GROUP).map(String::as_str))
    };
    for wanted in demand {
        let Some(name) = group_name(wanted) else { continue };
        let together = demand.iter().filter(|other| group_name(other) == Some(name));
        let pod_sets = together.map(|other| other.pod_set.name.as_str()).collect();
        merge(&mut groups, Group { pod_sets, templates: Vec::new() });
    }
    groups
}

/// Adds a group, joined with those that have to do with it.
fn merge<'s>(groups: &mut Vec<Group<'s>>, group: Group<'s>) {
    let is_joined = |known: &mut Group<'s>| {
        !known.pod_sets.is_disjoint(&group.pod_sets)
            || known.templates.iter().any(|template| group.templates.contains(template))
    };
    let joined: Vec<Group<'s>> = groups.extract_if(.., is_joined).collect();
    let all = joined.into_iter().fold(group, |mut all, one| {
        all.pod_sets.extend(one.pod_sets);
        all.templates.extend(one.templates);
        all
    });
    groups.push(all);
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, patched, pod_set};
    use super::*;
    use crate::api::provisioning_request::name_of_standalone;
    use crate::plan::{Plan, PodShare, pod_set_updates};
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::{Value, json};

    /// A Workload of one pod of `head` and two of `worker` with these CPUs. `more` changes the Workload, and `template` the pods of
    /// both.
    fn two_sets(head: &str, worker: &str, more: &Value, template: &Value) -> Fixture {
        let set = |name: &str, pods: i32, cpu: &str| {
            let containers = json!([{"name": "main", "resources": {"requests": {"cpu": cpu}}}]);
            let set =
                patched(pod_set(name, pods), &json!({"template": {"spec": {"containers": containers}}}));
            patched(set, &json!({"template": template}))
        };
        let assigned: Vec<Value> =
            ["head", "worker"].map(|name| json!({"name": name, "flavors": {"cpu": "gpu"}})).to_vec();
        let workload = json!({
            "spec": {"podSets": [set("head", 1, head), set("worker", 2, worker)]},
            "status": {"admission": {"podSetAssignments": assigned}},
        });
        Fixture::new().workload(&patched(workload, more))
    }

    fn planned(head: &str, worker: &str, more: &Value, template: &Value) -> Plan {
        two_sets(head, worker, more, template).provisioned()
    }

    fn values(plan: &Plan) -> Vec<Option<&str>> {
        plan.slots.iter().map(|slot| slot.pod_sets.as_deref()).collect()
    }

    #[test]
    fn pods_select_the_nodes_of_their_own_pod_set_where_the_nodes_differ() {
        let plan = planned("2", "15", &json!({}), &json!({}));
        assert_eq!(values(&plan), [Some("head"), Some("worker"), Some("worker")]);
        let labels = PodSetLabels::of(&plan.slots);
        let updates = pod_set_updates(&plan.pod_sets(), "g1", plan.pinning, &labels);
        let selected: Vec<&str> = updates.iter().map(|u| u.node_selector[names::POD_SETS].as_str()).collect();
        assert_eq!(selected, ["head", "worker"]);
        assert!(updates.iter().all(|update| update.node_selector[names::GANG] == "g1"));
    }

    #[test]
    fn nodes_that_are_alike_get_no_label_so_that_they_are_launched_together() {
        let plan = planned("4", "4", &json!({}), &json!({}));
        assert_eq!(values(&plan), [None; 3]);
        let updates = pod_set_updates(&plan.pod_sets(), "g1", plan.pinning, &PodSetLabels::of(&plan.slots));
        assert!(updates.iter().all(|update| update.node_selector.len() == 1));
    }

    #[test]
    fn pods_that_kueue_does_not_update_one_pod_set_at_a_time_select_by_the_gang_alone() {
        let elastic = json!({"metadata": {"annotations": {names::ELASTIC_JOB: "true"}}});
        assert_eq!(values(&planned("2", "15", &elastic, &json!({}))), [None; 3]);
        let of_request = json!({
            "metadata": {"name": name_of_standalone("r"), "annotations": {names::REQUEST: "r/uid"}},
        });
        assert_eq!(values(&planned("2", "15", &of_request, &json!({}))), [None; 3]);
        let together = json!({"metadata": {"annotations": {names::POD_SET_GROUP: "ring"}}});
        assert_eq!(values(&planned("2", "15", &json!({}), &together)), [None; 3]);
        let mut mixed = two_sets("2", "15", &json!({}), &json!({}));
        mixed.policy.mixed_tiers = true;
        assert_eq!(values(&mixed.provisioned()), [None; 3]);
    }

    /// Slots with these pod sets. Slots with the same number have the same template.
    fn slots(of: &[(u32, &[&str])]) -> Vec<Slot> {
        let first = Fixture::new().provisioned().slots.remove(0);
        let slot = |(kind, pod_sets): &(u32, &[&str])| {
            let share = |name: &&str| PodShare { pod_set: (*name).to_owned(), pods: 1 };
            let mut template = (*first.template).clone();
            template.spec.resources.requests.insert("cpu".into(), Quantity(kind.to_string()));
            let pods: Vec<PodShare> = pod_sets.iter().map(share).collect();
            Slot { pods: pods.into(), template: template.into(), ..first.clone() }
        };
        of.iter().map(slot).collect()
    }

    fn of_groups(of: &[(u32, &[&str])]) -> Vec<String> {
        let slots = slots(of);
        let mut names: Vec<String> = groups(&slots, &[])
            .iter()
            .map(|g| g.pod_sets.iter().copied().collect::<Vec<_>>().join("."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn pod_sets_that_share_a_node_or_have_nodes_that_are_alike_have_one_label() {
        assert_eq!(of_groups(&[(1, &["a"]), (2, &["b"]), (3, &["c"])]), ["a", "b", "c"]);
        assert_eq!(of_groups(&[(1, &["a"]), (2, &["b", "a"]), (3, &["c"])]), ["a.b", "c"]);
        assert_eq!(of_groups(&[(1, &["a"]), (2, &["b"]), (1, &["c"])]), ["a.c", "b"]);
        assert_eq!(of_groups(&[(1, &["a"]), (2, &["b"]), (3, &["a", "b"])]), ["a.b"]);
    }

    #[test]
    fn nodes_of_another_option_suit_if_no_node_has_pods_of_two_labels() {
        let labels = PodSetLabels::of_values(["a", "b.c", "a"].into_iter());
        assert_eq!(labels, PodSetLabels(vec!["a".into(), "b.c".into()]));
        assert!(labels.suit(&slots(&[(1, &["a"]), (2, &["c"]), (3, &["b", "c"])])));
        assert!(!labels.suit(&slots(&[(1, &["a", "b"])])));
        assert!(PodSetLabels::default().suit(&slots(&[(1, &["a", "b"])])));
        assert_eq!((labels.of_pod_set("c"), labels.of_pod_set("d")), (Some("b.c"), None));
    }

    #[test]
    fn only_short_label_values_are_possible() {
        let are_possible = |values: &[&str]| PodSetLabels::of_values(values.iter().copied()).are_possible();
        assert!(are_possible(&["a.b-1", "c"]) && are_possible(&[]));
        for value in ["", "a/b", "a.", ".a", "a..b", "-a", "a-", "A", &"a".repeat(64)] {
            assert!(!are_possible(&[value]), "{value:?}");
        }
        assert!(!are_possible(&["a", "b.a"]), "a pod set has one value");
        let long: Vec<String> = (10..19).map(|n| format!("{n}{}", "a".repeat(61))).collect();
        let long: Vec<&str> = long.iter().map(String::as_str).collect();
        assert!(are_possible(&long[..8]) && !are_possible(&long));
    }
}
