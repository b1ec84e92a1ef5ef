//! The nodes of all families of a gang, which are within a budget together where any packing is.

use super::types::most_money;
use super::{Family, Site, bounds, daemons, fit};
use crate::api::amount::Money;
use crate::api::parameters::{PackingMode, Pinning};
use crate::plan::cost::Cost;
use crate::plan::{Cluster, Obstacle, Request, Slot};
use crate::words::counted;
use std::sync::Arc;

/// The nodes of a gang.
#[derive(Default)]
pub(super) struct Made {
    /// One for each node, not numbered yet.
    pub slots: Vec<Slot>,
    /// How the pods were packed.
    pub facts: Vec<String>,
    /// What is to be said against it.
    pub notes: Vec<String>,
}

impl Made {
    /// Nodes for all pods. Where the policy leaves packing open and only a node for each pod is within the budget, each pod gets
    /// one.
    ///
    /// # Errors
    /// What no node holds.
    pub fn of(
        cluster: &Cluster<'_>,
        request: &Request<'_>,
        families: &mut [Family<'_>],
        pinning: Pinning,
    ) -> Result<Self, Obstacle> {
        let shared = Self::packed(cluster, request, families, pinning)?;
        let is_open =
            request.policy.packing == PackingMode::Auto && families.iter().any(|family| family.fills);
        let Some(price) = most_money(cluster, request).filter(|_| is_open) else { return Ok(shared) };
        let within = |cost: &Cost| cost.known().is_some_and(|known| known <= price);
        let takes = shared.cost(cluster, request);
        if within(&takes) {
            return Ok(shared);
        }
        for family in families.iter_mut() {
            family.fills = false;
        }
        let Ok(mut each) = Self::packed(cluster, request, families, pinning) else { return Ok(shared) };
        let cost = each.cost(cluster, request);
        let policy = request.policy;
        let nodes = u32::try_from(each.slots.len()).unwrap_or(u32::MAX);
        let too_many = nodes > policy.gang_nodes || policy.budget.max_nodes.is_some_and(|most| nodes > most);
        if too_many || !within(&cost) {
            return Ok(shared);
        }
        let takes = match takes.known() {
            Some(most) if takes.at_least < most => {
                format!(", {} to {most} {} an hour", takes.at_least, takes.currency)
            }
            _ => takes.clause(),
        };
        each.notes.push(format!(
            "each pod gets a node of its own{}: where they share nodes the gang takes {}{takes}, and the budget allows {}",
            cost.clause(),
            counted(u32::try_from(shared.slots.len()).unwrap_or(u32::MAX), "node"),
            Money { price, currency: cost.currency },
        ));
        Ok(each)
    }

    fn packed(
        cluster: &Cluster<'_>,
        request: &Request<'_>,
        families: &[Family<'_>],
        pinning: Pinning,
    ) -> Result<Self, Obstacle> {
        let mut sites = Vec::new();
        for family in families {
            let taints = family.draft.taints(request.gang, pinning);
            // Where pods share nodes a DaemonSet that may come takes the room of one; a node for each has room to spare,
            // or shows that it has not.
            let daemons = daemons::overhead(family.draft, &taints, cluster, family.fills)?;
            sites.push(Site { cluster, request, family, taints, daemons });
        }
        let mut made = Self::default();
        let mut all: Vec<Vec<Slot>> = Vec::new();
        for site in &sites {
            let notes = &mut made.notes;
            all.push(if site.family.fills { site.filled(notes)? } else { site.one_each(notes)? });
        }
        bounds::hold(&sites, &mut all, &mut made.notes);
        for (site, slots) in sites.iter().zip(all) {
            made.facts.extend(fit::shared(request, site.family, &slots));
            made.facts.extend(site.packed(&slots));
            made.slots.extend(slots);
        }
        Ok(made)
    }

    fn cost(&self, cluster: &Cluster<'_>, request: &Request<'_>) -> Cost {
        let groups = self.slots.chunk_by(|a, b| Arc::ptr_eq(&a.template, &b.template));
        let nodes = groups.filter_map(|group| {
            Some((&*group.first()?.template, u32::try_from(group.len()).unwrap_or(u32::MAX)))
        });
        cluster.prices(request.policy).of_nodes(nodes)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::parameters::PackingMode;
    use crate::names;
    use crate::plan::fixtures::{World, patched, pod_set, pool};
    use crate::plan::{ObstacleReason, Plan, Slot};
    use serde_json::{Value, json};

    /// So many pods of one GPU on EC2's family g5, with this budget and these limits.
    fn family(pods: i32, budget: &Value, limits: &Value) -> World {
        let mut world = World::new().workload(&json!({"spec": {"podSets": [pod_set("main", pods)]}}));
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let g5 = json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["g5"]});
        let zone = json!({"key": names::ZONE, "operator": "In", "values": ["us-east-1a"]});
        let spec = json!({"nodeClassRef": class, "requirements": [g5, zone]});
        world.pools = vec![pool("gpu", &json!({"spec": {"limits": limits, "template": {"spec": spec}}}))];
        world.policy.budget = serde_json::from_value(budget.clone()).unwrap();
        world
    }

    fn takes(plan: &Plan) -> (usize, String) {
        (plan.slots.len(), plan.cost.at_most.to_string())
    }

    #[test]
    fn a_type_that_is_dearer_than_the_budget_is_not_packed_into() {
        let plan = family(8, &json!({"maxHourlyCost": "12"}), &json!({})).provisioned();
        assert_eq!(takes(&plan), (2, "11.35".to_owned()), "two g5.12xlarge rather than one g5.48xlarge");
    }

    #[test]
    fn each_pod_gets_a_node_of_its_own_where_only_that_is_within_the_budget_and_packing_is_left_open() {
        let mut world = family(8, &json!({"maxHourlyCost": "10"}), &json!({}));
        let plan = world.provisioned();
        assert_eq!(plan.slots.len(), 8);
        assert!(plan.cost.known().unwrap() <= "10".parse().unwrap(), "{:?}", plan.cost);
        let words = "where they share nodes the gang takes 2 nodes, 11.35 to 32.58 USD an hour, and the budget allows 10 USD";
        assert!(plan.notes.iter().any(|note| note.ends_with(words)), "{:?}", plan.notes);
        world.policy.packing = PackingMode::Fill;
        assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
        let no_more_nodes = family(8, &json!({"maxHourlyCost": "10", "maxNodes": 7}), &json!({}));
        assert!(no_more_nodes.obstacle().1.contains("an hour, and gates.budget allows 10 USD"));
    }

    #[test]
    fn a_node_for_each_pod_is_of_no_type_that_does_not_hold_it_though_only_such_types_are_within_the_budget()
    {
        let mut world = family(8, &json!({"maxHourlyCost": "10"}), &json!({}));
        let listed = json!([
            {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5.xlarge", "g5.12xlarge", "g5.48xlarge"]},
            {"key": names::ZONE, "operator": "In", "values": ["us-east-1a"]},
        ]);
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let spec = json!({"nodeClassRef": class, "requirements": listed});
        world.pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        assert_eq!(world.provisioned().slots.len(), 8, "each on a g5.xlarge");
        let requests = json!({"cpu": "8", "nvidia.com/gpu": "1"});
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}});
        let set = patched(pod_set("main", 8), &spec);
        world = world.workload(&json!({"spec": {"podSets": [set]}}));
        assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
    }

    #[test]
    fn all_nodes_together_are_held_to_each_bound_by_leaving_out_the_dearest_and_largest_types() {
        let gpus = json!({"nvidia.com/gpu": "12"});
        for (budget, limits, bound) in [
            (json!({"maxHourlyCost": "20"}), json!({}), "gates.budget.maxHourlyCost of 20 USD"),
            (json!({"maxResources": gpus}), json!({}), "gates.budget.maxResources of 12 nvidia.com/gpu"),
            (json!({}), gpus.clone(), "the limit of 12 nvidia.com/gpu of NodePool gpu"),
        ] {
            let plan = family(9, &budget, &limits).provisioned();
            assert_eq!(plan.slots.len(), 2, "{bound}");
            let of_a_type_left = |slot: &Slot| {
                let shape = slot.shape.as_ref().map(|shape| &shape.instance_type);
                shape.is_some_and(|shape| slot.instance_types().any(|name| name == shape))
            };
            assert!(plan.slots.iter().all(of_a_type_left), "{bound}: {:?}", plan.slots);
            let noted = plan.notes.iter().any(|note| note.contains("left out") && note.contains(bound));
            assert!(noted, "{bound}: {:?}", plan.notes);
        }
        let refused = family(9, &json!({"maxResources": {"nvidia.com/gpu": "8"}}), &json!({}));
        assert_eq!(refused.obstacle().0, ObstacleReason::BudgetExceeded);
        let free = family(9, &json!({}), &json!({})).provisioned();
        assert!(free.notes.is_empty(), "{:?}", free.notes);
    }
}
