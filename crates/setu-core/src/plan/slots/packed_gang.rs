//! The nodes of all pod set groups of a gang, packed so that together they are within the bounds where possible.

use super::bounds::{self, Ceiling, ExceededBound, Measure};
use super::{GroupPlanner, PodSetGroup, daemons, fit};
use crate::api::parameters::{GateMode, PackingMode, Pinning};
use crate::plan::cost::Cost;
use crate::plan::gates::capacity;
use crate::plan::{Obstacle, ObstacleReason, PlanRequest, PlanSnapshot, Slot};
use crate::policy::MOST_NODES;
use crate::words::counted;
use std::cell::OnceCell;
use std::sync::Arc;

/// The nodes of a gang.
#[derive(Default)]
pub(super) struct PackedGang {
    /// One slot for each node, not numbered yet.
    pub slots: Vec<Slot>,
    /// How the pods were packed.
    pub facts: Vec<String>,
    /// Caveats for the user.
    pub notes: Vec<String>,
}

/// Most packings that are tried for a gang that exceeds a bound.
const PACKINGS: usize = 16;

/// Packs the pods of a gang, and keeps the last result of each pod set group.
struct GangPacker<'p> {
    cluster: &'p PlanSnapshot<'p>,
    request: &'p PlanRequest<'p>,
    pinning: Pinning,
    /// Slots and notes of each pod set group, until something of the pod set group changes.
    last: Vec<Option<(Vec<Slot>, Vec<String>)>>,
    /// Packings that may still be tried.
    left: usize,
}

impl PackedGang {
    /// Nodes for all pods. If shared nodes exceed a bound together, smaller nodes are tried. If the policy leaves packing open,
    /// one node for each pod is the last try. If nothing is within the bounds, the first packing is returned.
    ///
    /// # Errors
    /// The obstacle of pods that no node holds.
    pub fn of(
        cluster: &PlanSnapshot<'_>,
        request: &PlanRequest<'_>,
        groups: &mut [PodSetGroup<'_>],
        pinning: Pinning,
    ) -> Result<Self, Obstacle> {
        let last = groups.iter().map(|_| None).collect();
        let mut packer = GangPacker { cluster, request, pinning, last, left: PACKINGS };
        let (shared, passed) = packer.pack(groups)?;
        let Some(passed) = passed.filter(|_| groups.iter().any(|group| group.fills)) else {
            return Ok(shared);
        };
        let amounts = shared.words(cluster, request);
        let why = format!("where they share the largest they take {amounts}, which is over {}", passed.bound);
        let mut found = packer.smaller(groups, passed);
        if found.is_none() && request.policy.packing == PackingMode::Auto {
            for group in groups.iter_mut() {
                group.fills = false;
            }
            packer.last.fill_with(|| None);
            found = packer.within(groups).and_then(|(made, passed)| passed.is_none().then_some(made));
        }
        Ok(found.map_or(shared, |made| made.because(&why, cluster, request)))
    }

    /// Adds a note why its nodes are not as large as they could be.
    fn because(mut self, why: &str, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Self {
        let share = self.slots.iter().any(Slot::is_shared);
        let have = if share { "the pods share smaller nodes" } else { "each pod gets a node of its own" };
        let cost = self.cost(cluster, request).clause();
        self.notes.push(format!("{have}{cost}: {why}"));
        self
    }

    /// Whether there are more nodes than a bound allows.
    fn are_too_many(
        &self,
        cluster: &PlanSnapshot<'_>,
        request: &PlanRequest<'_>,
        groups: &[PodSetGroup<'_>],
    ) -> bool {
        let policy = request.policy;
        let of_queue = cluster.guards.and_then(|guards| guards.per_local_queue.nodes);
        let most = policy.budget.max_nodes.into_iter().chain(of_queue).fold(policy.gang_nodes, u32::min);
        let is_over = |group: &PodSetGroup<'_>| {
            let limits = group.draft.limits().filter(|_| policy.capacity_gate == GateMode::Enforce);
            let of_pool = self.slots.iter().filter(|slot| slot.node_pool == group.draft.node_pool).count();
            limits.is_some_and(|limits| capacity::are_too_many(saturated(of_pool), limits))
        };
        self.nodes() > most || groups.iter().any(is_over)
    }

    fn nodes(&self) -> u32 {
        saturated(self.slots.len())
    }

    /// The number of nodes and their cost, in words.
    fn words(&self, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> String {
        let cost = self.cost(cluster, request);
        let cost = match cost.known() {
            Some(most) if cost.at_least < most => {
                format!(", {} {} an hour", cost.range(), cost.currency)
            }
            _ => cost.clause(),
        };
        format!("{}{cost}", counted(self.nodes(), "node"))
    }

    fn cost(&self, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Cost {
        let groups = self.slots.chunk_by(|a, b| Arc::ptr_eq(&a.template, &b.template));
        let nodes = groups.filter_map(|group| Some((&*group.first()?.template, saturated(group.len()))));
        cluster.prices(request.policy).of_nodes(nodes)
    }
}

/// Refuses more nodes than any gang can have, before they take memory: a tenant picks the number of pods.
pub(super) fn require_possible(nodes: usize, more: u32) -> Result<(), Obstacle> {
    let nodes = saturated(nodes).saturating_add(more);
    if nodes <= MOST_NODES {
        return Ok(());
    }
    let message = format!(
        "the gang needs more than the {MOST_NODES} nodes that any gang can have; use fewer pods, or pods that share nodes"
    );
    Err(Obstacle::new(ObstacleReason::TooManyNodes, message))
}

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl GangPacker<'_> {
    /// Nodes within all bounds. Makes nodes that exceed a bound smaller step by step, group by group.
    fn smaller(&mut self, groups: &mut [PodSetGroup<'_>], first: ExceededBound) -> Option<PackedGang> {
        let mut passed = first;
        // Pod set groups that no step could make smaller for this measure.
        let mut settled: Vec<(usize, Measure)> = Vec::new();
        loop {
            let wanted = passed.smaller.iter().find(|s| !settled.contains(&(s.group_index, s.of.clone())))?;
            let (group_index, of) = (wanted.group_index, wanted.of.clone());
            let mut next = None;
            // Try a long step first, to need fewer.
            for below in [wanted.counts.saturating_mul(3) / 4, wanted.counts] {
                groups.get_mut(group_index)?.ceilings.push(Ceiling { of: of.clone(), below });
                let before = self.last.get_mut(group_index)?.take();
                match self.within(groups) {
                    Some((made, None)) => return Some(made),
                    Some((_, Some(over))) if self.has_changed(group_index, before.as_ref()) => {
                        next = Some(over);
                        break;
                    }
                    _ => {
                        groups.get_mut(group_index)?.ceilings.pop();
                        *self.last.get_mut(group_index)? = before;
                    }
                }
            }
            match next {
                Some(over) => passed = over,
                None => settled.push((group_index, of)),
            }
        }
    }

    /// Whether a pod set group has nodes other than these.
    fn has_changed(&self, group_index: usize, before: Option<&(Vec<Slot>, Vec<String>)>) -> bool {
        let now = self.last.get(group_index).and_then(Option::as_ref);
        now.map(|(slots, _)| slots) != before.map(|(slots, _)| slots)
    }

    /// The nodes of all pod set groups unless there are too many, with a bound that they exceed together, if there is one.
    fn within(&mut self, groups: &[PodSetGroup<'_>]) -> Option<(PackedGang, Option<ExceededBound>)> {
        self.left = self.left.checked_sub(1)?;
        let (made, passed) = self.pack(groups).ok()?;
        (!made.are_too_many(self.cluster, self.request, groups)).then_some((made, passed))
    }

    /// The nodes of all pod set groups, with a bound that they exceed together, if there is one.
    fn pack(&mut self, groups: &[PodSetGroup<'_>]) -> Result<(PackedGang, Option<ExceededBound>), Obstacle> {
        let (cluster, request) = (self.cluster, self.request);
        let mut planners = Vec::new();
        for group in groups {
            let taints = group.draft.taints(request.gang_label, self.pinning);
            for set in &group.sets {
                if let Some(why) = daemons::taken_port(group.draft, &taints, cluster, &set.spec) {
                    let message = format!("pod set {}: {why}", set.pod_set.name);
                    return Err(Obstacle::new(ObstacleReason::RequirementsClash, message));
                }
            }
            // With packing, a DaemonSet that may appear takes a pod's room, so it counts. A node for a single pod has room to
            // spare, or shows after launch that it has none.
            let daemons = daemons::overhead(group.draft, &taints, cluster, group.fills)?;
            planners.push(GroupPlanner {
                cluster,
                request,
                group,
                taints,
                daemons,
                has_offers: OnceCell::new(),
            });
        }
        let mut made = PackedGang::default();
        let mut all: Vec<Vec<Slot>> = Vec::new();
        for (planner, last) in planners.iter().zip(&mut self.last) {
            if last.is_none() {
                let mut notes = Vec::new();
                let slots = if planner.group.fills {
                    planner.filled(&mut notes)?
                } else {
                    planner.one_each(&mut notes)?
                };
                *last = Some((slots, notes));
            }
            let Some((slots, notes)) = last else { continue };
            require_possible(all.iter().map(Vec::len).sum(), saturated(slots.len()))?;
            all.push(slots.clone());
            made.notes.extend_from_slice(notes);
        }
        let passed = bounds::enforce(&planners, &mut all, &mut made.notes);
        for (planner, slots) in planners.iter().zip(all) {
            made.facts.extend(fit::shared(request, planner.group, &slots));
            made.facts.extend(planner.packed(&slots));
            made.facts.extend(planner.without_those_out(&slots));
            made.slots.extend(slots);
        }
        Ok((made, passed))
    }
}

#[cfg(test)]
mod tests {
    use crate::api::parameters::PackingMode;
    use crate::names;
    use crate::plan::fixtures::{Fixture, market, offer, patched, pod_set, pool};
    use crate::plan::{ObstacleReason, Plan, Slot};
    use serde_json::{Value, json};
    use std::collections::BTreeSet;

    /// `pods` pods of one GPU on EC2's family g5, with this budget and these limits.
    fn family(pods: i32, budget: &Value, limits: &Value) -> Fixture {
        let mut world = Fixture::new().workload(&json!({"spec": {"podSets": [pod_set("main", pods)]}}));
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let g5 = json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["g5"]});
        let zone = json!({"key": names::ZONE, "operator": "In", "values": ["us-east-1a"]});
        let spec = json!({"nodeClassRef": class, "requirements": [g5, zone]});
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"limits": limits, "template": {"spec": spec}}}))];
        world.policy.budget = serde_json::from_value(budget.clone()).unwrap();
        world
    }

    fn nodes_and_cost(plan: &Plan) -> (usize, String) {
        (plan.slots.len(), plan.cost.at_most.to_string())
    }

    #[test]
    fn a_type_over_the_budget_is_not_used_for_packing() {
        let plan = family(8, &json!({"maxHourlyCost": "12"}), &json!({})).provisioned();
        assert_eq!(
            nodes_and_cost(&plan),
            (2, "11.35".to_owned()),
            "two g5.12xlarge rather than one g5.48xlarge"
        );
    }

    #[test]
    fn auto_packing_gives_each_pod_a_node_if_only_that_is_within_the_budget() {
        let mut world = family(8, &json!({"maxHourlyCost": "10"}), &json!({}));
        let plan = world.provisioned();
        assert_eq!(plan.slots.len(), 8);
        assert!(plan.cost.known().unwrap() <= "10".parse().unwrap(), "{:?}", plan.cost);
        let words = "they take 2 nodes, 11.35 to 32.58 USD an hour, which is over gates.budget.maxHourlyCost of 10 USD";
        assert!(plan.notes.iter().any(|note| note.ends_with(words)), "{:?}", plan.notes);
        world.policy.packing = PackingMode::Fill;
        assert_eq!(world.provisioned().slots.len(), 8, "one pod fills the node that the budget allows");
        let no_more_nodes = family(8, &json!({"maxHourlyCost": "10", "maxNodes": 7}), &json!({}));
        assert!(no_more_nodes.obstacle().1.contains("an hour, and gates.budget allows 10 USD"));
    }

    #[test]
    fn a_single_pod_node_uses_no_type_that_is_too_small_even_to_meet_the_budget() {
        let mut world = family(8, &json!({"maxHourlyCost": "10"}), &json!({}));
        let listed = json!([
            {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5.xlarge", "g5.12xlarge", "g5.48xlarge"]},
            {"key": names::ZONE, "operator": "In", "values": ["us-east-1a"]},
        ]);
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let spec = json!({"nodeClassRef": class, "requirements": listed});
        world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        assert_eq!(world.provisioned().slots.len(), 8, "each on a g5.xlarge");
        let requests = json!({"cpu": "8", "nvidia.com/gpu": "1"});
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}});
        let set = patched(pod_set("main", 8), &spec);
        world = world.workload(&json!({"spec": {"podSets": [set]}}));
        assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
    }

    #[test]
    fn a_large_pod_keeps_its_node_while_other_nodes_become_smaller() {
        let gpus = |name: &str, pods, gpus: &str| {
            let requests = json!({"cpu": "3", "memory": "6Gi", "nvidia.com/gpu": gpus});
            let spec = json!({"containers": [{"resources": {"requests": requests, "limits": {"nvidia.com/gpu": gpus}}}]});
            patched(pod_set(name, pods), &json!({"template": {"spec": spec}}))
        };
        let sets = [gpus("leader", 1, "8"), gpus("worker", 8, "1")];
        let assigned: Vec<Value> =
            sets.iter().map(|set| json!({"name": set["name"], "flavors": {"cpu": "gpu"}})).collect();
        let change =
            json!({"spec": {"podSets": sets}, "status": {"admission": {"podSetAssignments": assigned}}});
        for budget in [json!({"maxResources": {"cpu": "300"}}), json!({"maxHourlyCost": "29"})] {
            let mut world = family(1, &budget, &json!({})).workload(&change);
            world.policy.packing = PackingMode::Fill;
            let plan = world.provisioned();
            assert_eq!(plan.slots.len(), 3, "a g5.48xlarge and two g5.12xlarge: {:?}", plan.notes);
        }
    }

    #[test]
    fn the_search_for_smaller_nodes_ends_if_no_type_states_the_bounded_resource() {
        let requests = json!({"cpu": "1", "ephemeral-storage": "10Gi"});
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}});
        let mut world = family(8, &json!({"maxResources": {"ephemeral-storage": "50Gi"}}), &json!({}));
        world = world.workload(&json!({"spec": {"podSets": [patched(pod_set("main", 8), &spec)]}}));
        for mode in [PackingMode::Auto, PackingMode::Fill] {
            world.policy.packing = mode;
            assert_eq!(world.obstacle().0, ObstacleReason::BudgetExceeded);
        }
    }

    #[test]
    fn the_next_smaller_type_is_tried_even_if_it_is_hardly_cheaper() {
        let types = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["a", "b"]}]);
        let requests = json!({"cpu": "10"});
        let spec = json!({"template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}});
        let mut world =
            Fixture::new().workload(&json!({"spec": {"podSets": [patched(pod_set("main", 20), &spec)]}}));
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": types}}}}))];
        world.policy.packing = PackingMode::Fill;
        let shape =
            |name: &str, cpu: u8| json!({"instanceType": name, "allocatable": {"cpu": cpu, "memory": "1Ti"}});
        world.policy.shapes = serde_json::from_value(json!([shape("a", 50), shape("b", 40)])).unwrap();
        let prices = json!({"a": {"on-demand": "10"}, "b": {"on-demand": "7.6"}});
        world.policy.budget =
            serde_json::from_value(json!({"maxHourlyCost": "39", "prices": prices})).unwrap();
        assert_eq!(world.provisioned().slots.len(), 5);
    }

    #[test]
    fn pods_are_not_packed_into_types_that_are_not_sold_in_the_zones() {
        let mut world = family(8, &json!({}), &json!({}));
        let line = |name: &str, zone: &str, value: &str| offer("available", [name, "on-demand", zone], value);
        let of_types =
            |plan: &Plan| plan.slots.iter().flat_map(Slot::instance_types).cloned().collect::<BTreeSet<_>>();
        for elsewhere in [String::new(), line("g5.48xlarge", "us-east-1b", "1")] {
            let page =
                line("g5.xlarge", "us-east-1a", "1") + &line("g5.12xlarge", "us-east-1a", "1") + &elsewhere;
            world.market = Some(market(&page));
            let plan = world.provisioned();
            assert_eq!(plan.slots.len(), 2);
            assert_eq!(of_types(&plan), BTreeSet::from(["g5.12xlarge".to_owned()]));
        }
        // Metrics without any line for these nodes, or with lines that cannot be read, change nothing.
        for page in [
            line("m5.large", "us-east-1a", "1"),
            line("m5.large", "us-east-1a", "1") + &line("g5.48xlarge", "us-east-1a", "NaN"),
        ] {
            world.market = Some(market(&page));
            assert_eq!(world.provisioned().slots.len(), 1, "a g5.48xlarge");
        }
    }

    #[test]
    fn pods_are_not_packed_into_types_that_the_catalogue_does_not_list_in_the_region() {
        let claim = |zone: &str, types: &[&str]| {
            let mut world = family(8, &json!({}), &json!({}));
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let is = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
            let asked = json!([is(names::INSTANCE_TYPE, types), is(names::ZONE, &[zone])]);
            let spec = json!({"nodeClassRef": class, "requirements": asked});
            world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
            world
        };
        let types_of = |world: &Fixture| {
            let plan = world.provisioned();
            let types: BTreeSet<String> = plan.slots.iter().flat_map(Slot::instance_types).cloned().collect();
            let facts = plan.facts.iter().filter(|fact| fact.contains("not sold in the region"));
            (types.into_iter().collect::<Vec<_>>(), facts.count())
        };
        // p5.48xlarge has no price in eu-central-1.
        let both = ["g5.48xlarge", "p5.48xlarge"];
        assert_eq!(types_of(&claim("eu-central-1a", &both)), (vec!["g5.48xlarge".to_owned()], 1));
        assert_eq!(types_of(&claim("us-east-1a", &both)).1, 0);
        let mut priced = claim("eu-central-1a", &both);
        priced.policy.budget =
            serde_json::from_value(json!({"prices": {"p5.48xlarge": {"on-demand": "60"}}})).unwrap();
        assert_eq!(types_of(&priced).1, 0, "a stated price shows that it is sold");
        let alone = claim("eu-central-1a", &["p5.48xlarge"]);
        assert_eq!(
            alone.provisioned().slots.len(),
            1,
            "the catalogue may be old, and nothing else holds the pods"
        );
    }

    #[test]
    fn types_out_of_capacity_are_named_if_they_would_hold_the_pods() {
        let mut world = family(8, &json!({}), &json!({}));
        let page = |in_stock: &[&str]| {
            let types = ["g5.xlarge", "g5.12xlarge", "g5.24xlarge", "g5.48xlarge"];
            let line = |name: &&str| {
                let value = if in_stock.contains(name) { "1" } else { "0" };
                offer("available", [*name, "on-demand", "us-east-1a"], value)
            };
            Some(market(&types.iter().map(line).collect::<String>()))
        };
        let why = "out of capacity by Karpenter's metrics wherever the nodes may be";
        for (mode, in_stock, expected) in [
            (
                PackingMode::Auto,
                &["g5.xlarge", "g5.12xlarge"][..],
                Some("types g5.24xlarge, g5.48xlarge are"),
            ),
            (PackingMode::Auto, &["g5.48xlarge"], None),
            (PackingMode::Auto, &[], None),
            (PackingMode::PerPod, &["g5.12xlarge", "g5.24xlarge", "g5.48xlarge"], Some("type g5.xlarge is")),
        ] {
            world.policy.packing = mode;
            world.market = page(in_stock);
            let plan = world.provisioned();
            let expected: Vec<String> =
                expected.iter().map(|expected| format!("{expected} left out: {why}")).collect();
            let facts: Vec<&String> = plan.facts.iter().filter(|fact| fact.contains("left out")).collect();
            assert_eq!(facts, expected.iter().collect::<Vec<_>>(), "{in_stock:?}: {:?}", plan.slots);
            assert!(plan.notes.is_empty(), "{:?}", plan.notes);
        }
    }

    #[test]
    fn a_type_that_karpenter_does_not_have_does_not_count_for_min_values() {
        let line = |name: &str| offer("available", [name, "on-demand", "us-east-1a"], 1);
        let types = |least: u8| {
            let values = ["g5.xlarge", "g5.12xlarge", "g5.48xlarge"];
            let listed =
                json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": values, "minValues": least});
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let zone = json!({"key": names::ZONE, "operator": "In", "values": ["us-east-1a"]});
            vec![pool(
                "gpu",
                &json!({"spec": {"template": {"spec": {"nodeClassRef": class, "requirements": [listed, zone]}}}}),
            )]
        };
        let pods = |gpus: &str| {
            let requests = json!({"cpu": "1", "nvidia.com/gpu": gpus});
            let spec = json!({"containers": [{"resources": {"requests": requests, "limits": {"nvidia.com/gpu": gpus}}}]});
            let set = patched(pod_set("main", 2), &json!({"template": {"spec": spec}}));
            let mut world = family(2, &json!({}), &json!({})).workload(&json!({"spec": {"podSets": [set]}}));
            world.market = Some(market(&(line("g5.xlarge") + &line("g5.12xlarge"))));
            world
        };
        let mut world = pods("4");
        world.objects.node_pools = types(2);
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash, "{message}");
        assert!(
            message.contains("without g5.48xlarge, for which Karpenter's metrics list no offering"),
            "{message}"
        );
        let mut world = pods("8");
        world.objects.node_pools = types(1);
        let note = "Karpenter's metrics list no offering of g5.48xlarge in the allowed zones";
        let notes = world.provisioned().notes;
        assert!(notes.iter().any(|one| one.starts_with(note)), "{notes:?}");
    }

    #[test]
    fn the_most_expensive_and_largest_types_are_left_out_to_meet_each_bound() {
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
        let (cpu, gpus) = (json!({"cpu": "200", "nvidia.com/gpu": "16"}), json!({"maxHourlyCost": "25"}));
        for (budget, limits) in
            [(json!({}), cpu.clone()), (json!({"maxResources": cpu}), json!({})), (gpus, json!({}))]
        {
            let mut world = family(16, &budget, &limits);
            for mode in [PackingMode::Auto, PackingMode::Fill] {
                world.policy.packing = mode;
                let plan = world.provisioned();
                assert_eq!(plan.slots.len(), 4, "four g5.12xlarge: {:?}", plan.notes);
                let noted = |note: &String| note.starts_with("the pods share smaller nodes, ");
                assert!(plan.notes.iter().any(noted), "{:?}", plan.notes);
            }
        }
        let mut few_nodes = family(16, &json!({}), &json!({"cpu": "200", "nodes": "3"}));
        assert_eq!(few_nodes.obstacle().0, ObstacleReason::LimitTooSmall);
        few_nodes = family(16, &json!({}), &json!({"cpu": "70"}));
        assert_eq!(few_nodes.provisioned().slots.len(), 16, "a g5.xlarge for each");
        let refused = family(9, &json!({"maxResources": {"nvidia.com/gpu": "8"}}), &json!({}));
        assert_eq!(refused.obstacle().0, ObstacleReason::BudgetExceeded);
        let free = family(9, &json!({}), &json!({})).provisioned();
        assert!(free.notes.is_empty(), "{:?}", free.notes);
    }
}
