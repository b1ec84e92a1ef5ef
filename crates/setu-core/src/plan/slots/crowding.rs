//! Keeps the scheduler from placing pods so that others of the gang find no room.
//!
//! Where all pods of a gang select its nodes by one label alone, a small pod may land on a node that was planned for a large one.

use crate::api::parameters::Pinning;
use crate::api::pod::ResourceList;
use crate::api::requirements::{Requirements, Values};
use crate::plan::claim::Draft;
use crate::plan::demand::PodSetDemand;
use crate::plan::pod_set_labels::lists;
use crate::plan::{PlanRequest, PodShare, Slot, pod_set_labels, resources};
use std::sync::Arc;

/// Has the pods of different pod sets select different nodes, where that is possible. Otherwise a note says what may happen.
pub(super) fn separate_pod_sets(
    slots: &mut [Slot],
    request: &PlanRequest<'_>,
    pinning: Pinning,
    demand: &[PodSetDemand<'_>],
    drafts: &[Draft],
) -> Option<String> {
    if pinning == Pinning::None {
        return None;
    }
    pod_set_labels::record(slots, request, demand);
    note(slots, demand, drafts)
}

/// A note that names two such pod sets. `None` if no pod of one set can take the room of another set's pods.
fn note(slots: &[Slot], demand: &[PodSetDemand<'_>], drafts: &[Draft]) -> Option<String> {
    let mut kinds: Vec<&Slot> = slots.iter().collect();
    kinds.dedup_by(|one, other| Arc::ptr_eq(&one.template, &other.template));
    let selects = |guest: &PodSetDemand<'_>, slot: &Slot| {
        slot.pod_sets.as_deref().is_none_or(|value| lists(value, &guest.pod_set.name))
    };
    // Whether the guest leaves too little room for the pods of a slot, and these have none where the guest was planned.
    let crowds = |guest: &PodSetDemand<'_>, slot: &Slot| {
        let planned = &*slot.template.needs();
        let mut homes = kinds.iter().filter(|home| is_home(guest, home));
        let takes_room = fits(&guest.each, slot) == Some(true)
            && fits(&resources::sum(planned, &guest.each), slot) == Some(false);
        !is_home(guest, slot)
            && selects(guest, slot)
            && takes_room
            && homes.any(|home| fits(planned, home) == Some(false))
    };
    // Whether the guest's node selector, affinity and flavors suit the node of a slot.
    let may_go_to = |draft: &Draft, slot: &Slot| {
        let mut both = draft.requirements.clone();
        let labels = slot.template.metadata.labels.iter().flatten();
        let of_node = Requirements::readable(&slot.template.spec.requirements);
        draft.node_pool == slot.node_pool
            && of_node.iter().all(|(key, values)| both.add(key, values).is_ok())
            && labels.into_iter().all(|(key, value)| both.add(key, &Values::one(value)).is_ok())
    };
    let (guest, host) = demand.iter().zip(drafts).find_map(|(guest, draft)| {
        let is_host = |slot: &&&Slot| {
            may_go_to(draft, slot) && (crowds(guest, slot) || exceeds_share(slots, demand, guest, slot))
        };
        let host = kinds.iter().find(is_host)?;
        let others = host.pods.iter().find(|share| share.pod_set != guest.pod_set.name)?;
        Some((&guest.pod_set.name, &others.pod_set))
    })?;
    Some(format!(
        "a pod of pod set {guest} may take the room of a pod of pod set {host}, because both select the gang's label; give them \
         ResourceFlavors whose nodeLabels differ"
    ))
}

/// Whether these requests fit on the node of a slot; `None` if its size is not known.
fn fits(requests: &ResourceList, slot: &Slot) -> Option<bool> {
    let room = slot.shape.as_ref().map(|shape| &shape.allocatable);
    room.map(|room| resources::first_insufficient(requests, room).is_none())
}

/// Whether pods of this set were planned for the node of a slot.
fn is_home(guest: &PodSetDemand<'_>, slot: &Slot) -> bool {
    slot.pods.iter().any(|share| share.pod_set == guest.pod_set.name)
}

/// Whether more pods of the guest than planned may come to a node that it shares, in place of a pod of another set that does not fit
/// where they were planned.
fn exceeds_share(slots: &[Slot], demand: &[PodSetDemand<'_>], guest: &PodSetDemand<'_>, slot: &Slot) -> bool {
    let with_one_more = resources::sum(&slot.template.needs(), &guest.each);
    let is_displaced = |share: &PodShare| {
        let other = demand.iter().find(|wanted| wanted.pod_set.name == share.pod_set);
        other.is_some_and(|other| {
            resources::first_insufficient(&other.each, &guest.each).is_some()
                && fits(&resources::minus(&with_one_more, &other.each), slot) == Some(true)
        })
    };
    is_home(guest, slot)
        && fits(&with_one_more, slot) == Some(false)
        && slot.pods.iter().any(is_displaced)
        && slots.iter().filter(|home| is_home(guest, home)).nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::super::fixtures::{Fixture, patched, pod_set, pool};
    use crate::names;
    use serde_json::{Value, json};

    /// The notes for an elastic Job of one pod of `head` and one of `worker` with these CPUs, on EC2 machines of 4 and 16. `head` has
    /// this node selector.
    fn notes(head: &str, worker: &str, selector: &Value) -> Vec<String> {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let types = json!([{
            "key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.xlarge", "m5.4xlarge"],
        }]);
        let spec = json!({"nodeClassRef": class, "requirements": types});
        let set = |name: &str, cpu: &str, selector: &Value| {
            let containers = json!([{"name": "main", "resources": {"requests": {"cpu": cpu}}}]);
            let spec = json!({"containers": containers, "nodeSelector": selector});
            patched(pod_set(name, 1), &json!({"template": {"spec": spec}}))
        };
        let assigned: Vec<Value> =
            ["head", "worker"].map(|name| json!({"name": name, "flavors": {"cpu": "gpu"}})).to_vec();
        let mut world = Fixture::new().workload(&json!({
            "metadata": {"annotations": {names::ELASTIC_JOB: "true"}},
            "spec": {"podSets": [set("head", head, selector), set("worker", worker, &json!({}))]},
            "status": {"admission": {"podSetAssignments": assigned}},
        }));
        world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        world.provisioned().notes
    }

    #[test]
    fn a_small_pod_that_may_take_the_room_of_a_large_one_is_noted() {
        let crowds = |notes: &[String]| notes.iter().any(|note| note.contains("may take the room"));
        let any = json!({});
        let crowded = notes("2", "15", &any);
        assert!(crowds(&crowded), "{crowded:?}");
        let words = "a pod of pod set head may take the room of a pod of pod set worker";
        assert!(crowded.iter().any(|note| note.starts_with(words)), "{crowded:?}");
        assert!(!crowds(&notes("2", "12", &any)), "there is room for both");
        assert!(!crowds(&notes("15", "15", &any)), "their nodes are alike");
        let small = json!({"node.kubernetes.io/instance-type": "m5.xlarge"});
        assert!(!crowds(&notes("2", "15", &small)), "it cannot go there");
    }

    #[test]
    fn pods_that_may_exceed_their_share_of_a_node_are_noted() {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let types =
            json!([{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.4xlarge"]}]);
        let spec = json!({"nodeClassRef": class, "requirements": types});
        let notes = |lead: &str, worker: &str| {
            let set = |name: &str, pods: i32, cpu: &str| {
                let containers = json!([{"name": "main", "resources": {"requests": {"cpu": cpu}}}]);
                patched(pod_set(name, pods), &json!({"template": {"spec": {"containers": containers}}}))
            };
            let assigned: Vec<Value> =
                ["workers", "lead"].map(|name| json!({"name": name, "flavors": {"cpu": "gpu"}})).to_vec();
            let mut world = Fixture::new().workload(&json!({
                "spec": {"podSets": [set("workers", 5, worker), set("lead", 1, lead)]},
                "status": {"admission": {"podSetAssignments": assigned}},
            }));
            world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
            world.provisioned().notes
        };
        let words = "a pod of pod set workers may take the room of a pod of pod set lead";
        let is_noted = |notes: Vec<String>| notes.iter().any(|note| note.starts_with(words));
        // On nodes of 15.89 CPUs, one is planned for the lead and a worker, and one for four workers.
        assert!(is_noted(notes("10", "3500m")));
        assert!(!is_noted(notes("3", "3500m")), "the lead fits where a worker was planned");
    }
}
