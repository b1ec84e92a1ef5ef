//! Whether a plan gives nodes as a gang has them already: what is mended, and what another replica began, is planned again.

use super::outcome::{Plan, Slot};
use super::resources;
use crate::api::NodeClaim;
use crate::api::node_claim::Requirement;
use crate::names;
use std::sync::Arc;

impl Plan {
    /// Whether it has nodes that are asked for as this claim is.
    pub fn has_like(&self, claim: &NodeClaim) -> bool {
        let like = |slot: &Slot| slot.template.spec.requirements == claim.spec.requirements;
        self.groups().iter().any(|(slot, _)| is_within(slot, claim) && like(slot))
    }

    /// Whether it has nodes that are asked for as this claim is, but in fewer zones: volumes were bound meanwhile.
    pub fn has_narrower(&self, claim: &NodeClaim) -> bool {
        let (asked, asked_rest) = split(&claim.spec.requirements, names::ZONE);
        let is_narrower = |(zones, rest): (Vec<Requirement>, Vec<Requirement>)| {
            let was_asked = |zone: &String| {
                asked.iter().all(|asked| asked.operator == "In" && asked.values.contains(zone))
            };
            rest == asked_rest
                && zones.iter().all(|now| now.operator == "In" && now.values.iter().all(was_asked))
        };
        let narrower = |slot: &Slot| is_narrower(split(&slot.template.spec.requirements, names::ZONE));
        self.groups().iter().any(|(slot, _)| is_within(slot, claim) && narrower(slot))
    }

    /// The same with the instance types of this claim, where it has nodes that differ from it in these alone: prices have
    /// changed since, and so which types are among the cheapest. `None` where it has no such nodes, or none of its types is
    /// one of the claim's.
    #[must_use]
    pub fn with_types_of(mut self, claim: &NodeClaim) -> Option<Self> {
        let (types, rest) = split(&claim.spec.requirements, names::INSTANCE_TYPE);
        let is_asked = |name: &String| types.iter().any(|asked| asked.values.contains(name));
        let requests = &claim.spec.resources.requests;
        let is_like = |slot: &Slot| {
            let spec = &slot.template.spec;
            is_within(slot, claim)
                && resources::first_short(requests, &spec.resources.requests).is_none()
                && split(&spec.requirements, names::INSTANCE_TYPE).1 == rest
                && slot.instance_types().any(is_asked)
        };
        let mut is_found = false;
        for alike in self.slots.chunk_by_mut(|a, b| Arc::ptr_eq(&a.template, &b.template)) {
            let Some(first) = alike.first().filter(|slot| is_like(slot)) else { continue };
            is_found = true;
            let mut template = (*first.template).clone();
            template.spec.requirements.clone_from(&claim.spec.requirements);
            let template = Arc::new(template);
            for slot in alike {
                slot.template = Arc::clone(&template);
                slot.shape = slot.shape.take().filter(|shape| is_asked(&shape.instance_type));
            }
        }
        is_found.then_some(self)
    }
}

/// Whether a node is of the NodePool of this claim and asks for no more than it.
fn is_within(slot: &Slot, claim: &NodeClaim) -> bool {
    let requests = &slot.template.spec.resources.requests;
    slot.node_pool == claim.label(names::NODEPOOL)
        && resources::first_short(requests, &claim.spec.resources.requests).is_none()
}

/// The requirements of this label, and the others.
fn split(list: &[Requirement], key: &str) -> (Vec<Requirement>, Vec<Requirement>) {
    list.iter().cloned().partition(|requirement| requirement.key == key)
}

#[cfg(test)]
mod tests {
    use crate::api::NodeClaim;
    use crate::plan::fixtures::{self, World, offer, pod_set, pool};
    use crate::plan::market::Market;
    use crate::plan::{Cluster, Outcome, Plan, Request, Ways, catalogue};
    use serde_json::json;

    /// What Karpenter's metrics say of all types of EC2 if `dear` ones cost a hundred times as much as the others.
    fn market(dear: impl Fn(usize) -> bool) -> Market {
        let line = |(nth, name): (usize, &str)| {
            let of = [name, "on-demand", "a"];
            offer("available", of, 1) + &offer("price_estimate", of, if dear(nth) { 100 } else { 1 })
        };
        let names = catalogue::of("karpenter.k8s.aws").unwrap().names();
        fixtures::market(&names.enumerate().map(line).collect::<String>())
    }

    fn planned(world: &World, market: &Market, ways: Ways<'_>) -> Option<Plan> {
        let cluster = Cluster { market: Some(market), ..world.cluster() };
        match crate::plan::plan(&cluster, &Request { ways, ..world.request() }) {
            Outcome::Provision(plan) => Some(plan),
            _ => None,
        }
    }

    #[test]
    fn a_gang_that_has_nodes_is_planned_as_before_though_prices_now_have_other_types_listed() {
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "1"}}}]}}});
        let set = crate::plan::fixtures::patched(pod_set("main", 2), &spec);
        let mut world = World::new().workload(&json!({"spec": {"podSets": [set]}}));
        let of = |category: &str| {
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let label = "karpenter.k8s.aws/instance-category";
            let asked = json!([{"key": label, "operator": "In", "values": [category]}]);
            let spec = json!({"requirements": asked, "nodeClassRef": class});
            vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))]
        };
        world.pools = of("m");
        let (before, after) = (market(|nth| nth % 2 == 0), market(|nth| nth % 3 == 0));
        let first = planned(&world, &before, Ways::From(0)).unwrap();
        assert_ne!(
            planned(&world, &after, Ways::From(0)).unwrap().hash(),
            first.hash(),
            "the list is another"
        );
        let begun: NodeClaim = (*first.slots[0].template).clone();
        let mut begun = begun;
        let labels = begun.metadata.labels.get_or_insert_default();
        labels.insert(crate::names::NODEPOOL.to_owned(), "gpu".to_owned());
        let again = planned(&world, &after, Ways::Like(&begun)).unwrap();
        assert_eq!(again.hash(), first.hash());
        world.pools = of("c");
        assert_eq!(planned(&world, &after, Ways::Like(&begun)), None, "those are other nodes");
    }
}
