//! Keeps the scheduler from placing pods so that others of the gang find no room.
//!
//! Where all pods of a gang select its nodes by one label alone, a small pod may land on a node that was planned for a large one.

use crate::api::parameters::Pinning;
use crate::api::pod::ResourceList;
use crate::api::requirements::{Requirements, Values};
use crate::plan::claim::Draft;
use crate::plan::demand::PodSetDemand;
use crate::plan::pod_set_labels::lists;
use crate::plan::{PlanRequest, Slot, pod_set_labels, resources};
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
    let fits = |requests: &ResourceList, slot: &Slot| {
        let room = slot.shape.as_ref().map(|shape| &shape.allocatable);
        room.map(|room| resources::first_insufficient(requests, room).is_none())
    };
    let selects = |guest: &PodSetDemand<'_>, slot: &Slot| {
        slot.pod_sets.as_deref().is_none_or(|value| lists(value, &guest.pod_set.name))
    };
    let is_home = |guest: &PodSetDemand<'_>, slot: &Slot| {
        slot.pods.iter().any(|share| share.pod_set == guest.pod_set.name)
    };
    // Whether the guest leaves too little room for the pods of a slot, and these have none where the guest was planned.
    let crowds = |guest: &PodSetDemand<'_>, slot: &Slot| {
        let planned = &slot.template.spec.resources.requests;
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
        let host = kinds.iter().find(|slot| may_go_to(draft, slot) && crowds(guest, slot))?;
        Some((&guest.pod_set.name, &host.pods.first()?.pod_set))
    })?;
    Some(format!(
        "a pod of pod set {guest} may take the room of a pod of pod set {host}, because both select the gang's label; give them \
         ResourceFlavors whose nodeLabels differ"
    ))
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
}
