//! Turns pod sets and their drafts into slots: one pod on each node, or as many pods as a node's shape has room for.
//!
//! Rule: pods of several sets share a node only if their drafts are identical.

mod apart;
mod batches;
mod bounds;
mod choice;
mod crowding;
pub mod fit;
mod packed_gang;
mod pinning;
mod types;

use super::claim::Draft;
use super::demand::PodSetDemand;
use super::offering;
use super::packing::{Batch, Filled, Misfit, NodeKind, pack};
use super::shape::Shape;
use super::shapes::{KnownTypes, Sources, devices_per_node, known};
use super::{
    Obstacle, ObstacleReason, Plan, PlanRequest, PlanSnapshot, PodShare, Slot, daemons, devices, lifetime,
    recorded, resources,
};
use crate::api::parameters::NodeDevices;
use crate::api::pod::ResourceList;
use crate::names;
use crate::words::few;
use bounds::Ceiling;
use fit::Shortfall;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use packed_gang::{PackedGang, require_possible};
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Plans the slots of all pod sets. `drafts` has one draft for each pod set.
pub fn plan(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    demand: &[PodSetDemand<'_>],
    drafts: &[Draft],
) -> Result<Plan, Obstacle> {
    let mut notes: Vec<String> = drafts.iter().flat_map(|draft| draft.notes.clone()).collect();
    notes.extend(demand.iter().flat_map(|wanted| devices::device_requests::notes(cluster, wanted.pod_set)));
    // A node's age counts from its creation, a Job's time limit from its admission.
    let deadlines = &request.policy.deadlines;
    let older = deadlines.gang.0.saturating_add(deadlines.admit.0);
    notes.extend(lifetime::notes(request.workload, demand, drafts, older));
    let pinning = pinning::of(cluster, request, demand, drafts, &mut notes);
    let mut groups = pod_set_groups(cluster, request, demand, drafts);
    notes.extend(groups.iter().filter_map(|group| fit::note(request, group)));
    let PackedGang { mut slots, facts, notes: own } = PackedGang::of(cluster, request, &mut groups, pinning)?;
    notes.extend(own);
    let domain_keys: Arc<[String]> = offering::domain_keys(request.policy).into();
    for (index, slot) in (0..).zip(&mut slots) {
        (slot.index, slot.domain_keys) = (index, Arc::clone(&domain_keys));
    }
    notes.extend(fit::several_gpus(&slots));
    notes.extend(crowding::separate_pod_sets(&mut slots, request, pinning, demand, drafts));
    notes.dedup();
    Ok(Plan {
        slots,
        pinning,
        facts: facts.into(),
        notes,
        tier: 0,
        option_name: Box::default(),
        option_index: 0,
        option_count: 1,
        reports: Arc::default(),
        cost: Arc::default(),
        reused: Arc::default(),
        passed_over: Arc::default(),
    })
}

/// Pod sets whose nodes are identical.
struct PodSetGroup<'a> {
    draft: &'a Draft,
    sets: Vec<&'a PodSetDemand<'a>>,
    known: KnownTypes,
    /// Whether pods share nodes.
    fills: bool,
    /// Upper bounds on the size of shared nodes, set where larger nodes exceed a bound.
    ceilings: Vec<Ceiling>,
}

fn pod_set_groups<'a>(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    demand: &'a [PodSetDemand<'a>],
    drafts: &'a [Draft],
) -> Vec<PodSetGroup<'a>> {
    let mut groups: Vec<PodSetGroup<'a>> = Vec::new();
    let each = || demand.iter().zip(drafts);
    for (wanted, draft) in each() {
        if let Some(group) = groups.iter_mut().find(|f| f.fills && f.draft.is_like(draft)) {
            group.sets.push(wanted);
            continue;
        }
        let known = of_draft(cluster, request, draft, demand.iter().any(PodSetDemand::asks_devices));
        let alike = each().filter(|(_, other)| other.is_like(draft)).map(|(set, _)| set);
        let fills = fit::fills(request.policy, draft, &known, alike);
        groups.push(PodSetGroup { draft, sets: vec![wanted], known, fills, ceilings: Vec::new() });
    }
    groups
}

/// The known types that nodes of a draft may be of. `asks_devices` says whether pods ask for devices.
fn of_draft(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    draft: &Draft,
    asks_devices: bool,
) -> KnownTypes {
    let (stated, learnt, market) = (request.policy.shapes.as_slice(), cluster.shapes, cluster.market);
    let from = Sources { stated, learnt, group: draft.node_class_group(), market, asks_devices };
    let mut known = known(from, &draft.requirements, &draft.node_pool);
    let devices = devices::certain(&request.policy.devices, &draft.requirements);
    for shape in known.shapes.iter_mut().filter(|_| !devices.is_empty()) {
        devices::add_to(Arc::make_mut(shape), &devices);
    }
    known
}

/// Everything that the nodes of one pod set group are planned from.
struct GroupPlanner<'a> {
    cluster: &'a PlanSnapshot<'a>,
    request: &'a PlanRequest<'a>,
    group: &'a PodSetGroup<'a>,
    taints: Vec<Taint>,
    daemons: ResourceList,
    /// Whether Karpenter's metrics list any offering that the nodes may be of. Computed on first use.
    has_offers: OnceCell<bool>,
}

impl GroupPlanner<'_> {
    /// One node for each pod. The provider picks the type, so only pods that no type can hold are refused.
    fn one_each(&self, notes: &mut Vec<String>) -> Result<Vec<Slot>, Obstacle> {
        let KnownTypes { shapes, others, .. } = &self.group.known;
        let listed =
            self.group.draft.requirements.get(names::INSTANCE_TYPE).is_some_and(|v| v.listed().is_some());
        let mut slots = Vec::new();
        // If pods share nodes, `filled` adds this note.
        notes.extend(self.by_disk().filter(|_| !self.group.fills));
        for (index, set) in self.group.sets.iter().enumerate() {
            let fits =
                |s: &Arc<Shape>| resources::first_insufficient(&set.each, &s.room(&self.daemons)).is_none();
            let holding: Vec<&Arc<Shape>> = shapes.iter().filter(|s| fits(s)).collect();
            if !others && holding.is_empty() {
                return Err(self.too_large(set));
            }
            let pods = self.shares(|n| u32::from(n == index));
            let shape = holding.first().filter(|_| shapes.len() == 1 && !others).copied();
            let types = if *others { Vec::new() } else { apart::fitting(&set.each, self.to_be_had(holding)) };
            let all_listed = listed && types.len() == shapes.len() && !self.asks_choice();
            let types = if all_listed { Vec::new() } else { types };
            self.add((pods, set.pods), &types, shape, &mut slots, notes)?;
        }
        Ok(slots)
    }

    /// As many pods on each node as its shape has room for.
    fn filled(&self, notes: &mut Vec<String>) -> Result<Vec<Slot>, Obstacle> {
        let KnownTypes { shapes, others, .. } = &self.group.known;
        if shapes.is_empty() {
            return if *others {
                self.by_devices(notes)
            } else {
                Err(fit::no_type(self.group.draft, &self.group.known))
            };
        }
        let mut batches = self.batches();
        notes.extend(self.by_disk());
        let kinds: Vec<NodeKind> = shapes.iter().map(|shape| self.kind(shape)).collect();
        let usable = self.usable(&kinds);
        let affordable = self.affordable(&usable);
        let affordable = affordable.as_deref().unwrap_or(&usable);
        let with_choice = self.with_choice(affordable);
        let mut alone = Vec::new();
        let (filled, kinds) = loop {
            let spread = |into: &[NodeKind]| self.spread(&batches, into);
            let of_usable = spread(&with_choice).or_else(|_| spread(affordable)).or_else(|_| spread(&usable));
            let of_usable = of_usable.map(|filled| (filled, &usable));
            match of_usable.or_else(|_| spread(&kinds).map(|filled| (filled, &kinds))) {
                Ok(found) => break found,
                Err(Misfit { batch }) => {
                    let set = self.group.sets.get(batch).ok_or_else(|| self.too_large_for_all())?;
                    if !others {
                        return Err(self.too_large(set));
                    }
                    notes.push(format!(
                        "no known shape holds a pod of pod set {}, so each gets a node of its own",
                        set.pod_set.name
                    ));
                    alone.push(batch);
                    batches.iter_mut().enumerate().filter(|(n, _)| *n == batch).for_each(|(_, b)| b.pods = 0);
                }
            }
        };
        let mut slots = self.of(&filled, &batches, kinds, notes)?;
        for batch in alone {
            let pods = self.group.sets.get(batch).map_or(0, |set| set.pods);
            let shares = self.shares(|n| u32::from(n == batch));
            self.add((shares, pods), &[], None, &mut slots, notes)?;
        }
        Ok(slots)
    }

    /// The shapes that the slots were packed into.
    fn packed(&self, slots: &[Slot]) -> BTreeSet<String> {
        let shapes = slots.iter().filter(|_| self.group.fills).filter_map(|slot| slot.shape.as_ref());
        shapes
            .map(|shape| format!("packed into shape {} as known from {}", shape.instance_type, shape.source))
            .collect()
    }

    fn of(
        &self,
        filled: &[Filled],
        batches: &[Batch],
        kinds: &[NodeKind],
        notes: &mut Vec<String>,
    ) -> Result<Vec<Slot>, Obstacle> {
        let shapes = &self.group.known.shapes;
        let mut slots = Vec::new();
        for node in filled {
            let content = content(batches, &node.pods);
            let holds = |kind: &NodeKind| resources::first_insufficient(&content, &kind.room).is_none();
            let holding = shapes.iter().zip(kinds).filter(|(_, kind)| holds(kind)).map(|(shape, _)| shape);
            let types = apart::fitting(&content, holding.collect());
            let pods = self.shares(|n| node.pods.get(n).copied().unwrap_or(0));
            self.add((pods, node.nodes), &types, shapes.get(node.kind), &mut slots, notes)?;
        }
        Ok(slots)
    }

    /// Packing without a known shape: by the devices of a node, if the requirements state how many it has.
    fn by_devices(&self, notes: &mut Vec<String>) -> Result<Vec<Slot>, Obstacle> {
        let pool = &self.group.draft.node_pool;
        let sets = &self.group.sets;
        let mut room = devices::per_node(self.devices());
        room.retain(|key, _| sets.iter().any(|set| set.each.contains_key(key)));
        if !room.is_empty() {
            notes.push(format!(
                "no shape of NodePool {pool} is known yet: packed by the devices that the policy states alone, so the sum of CPU and memory may be more than a node has"
            ));
            return self.packed_by(room, notes);
        }
        let counts = devices_per_node(&self.group.draft.requirements);
        let asked = || sets.iter().flat_map(|set| set.each.keys()).filter(|key| resources::is_device(key));
        let key = asked().find(|key| resources::is_accelerator(key)).or_else(|| asked().next());
        let (Some(most), Some(key)) = (counts.last(), key) else {
            notes.push(match self.may_be_stated() {
                Some(remedy) => format!("each pod gets a node of its own: {remedy}"),
                None => format!(
                    "no shape of NodePool {pool} is known yet, so each pod gets a node of its own; state shapes under packing.shapes"
                ),
            });
            return self.one_each(notes);
        };
        let room = |devices: &u32| ResourceList::from([(key.clone(), Quantity(devices.to_string()))]);
        let holds = |devices: &u32, set: &PodSetDemand<'_>| {
            resources::amount(&set.each, key) <= resources::amount(&room(devices), key)
        };
        if let Some(set) = sets.iter().find(|set| !holds(most, set)) {
            return Err(Obstacle::new(
                ObstacleReason::TooLarge,
                format!(
                    "a pod of pod set {} requests more {key} than the {most} of a node of NodePool {pool}; request fewer per pod",
                    set.pod_set.name
                ),
            ));
        }
        // A node may come with the smallest device count that holds a pod. Count on no more than that.
        let devices = counts.iter().find(|n| sets.iter().all(|set| holds(n, set))).unwrap_or(most);
        notes.push(format!(
            "no shape of NodePool {pool} is known yet: packed by its {devices} {key} per node alone, so the sum of CPU and memory may be more than a node has"
        ));
        self.packed_by(room(devices), notes)
    }

    /// Packing into nodes with this room, where only its resources count.
    fn packed_by(&self, room: ResourceList, notes: &mut Vec<String>) -> Result<Vec<Slot>, Obstacle> {
        notes.extend(self.may_be_stated());
        let batches = self.batches_of(&room);
        let filled = pack(&batches, &[NodeKind { room, price: None, has_accelerator: true }])
            .map_err(|Misfit { .. }| self.too_large_for_all())?;
        let mut slots = Vec::new();
        for node in &filled {
            let pods = self.shares(|n| node.pods.get(n).copied().unwrap_or(0));
            self.add((pods, node.nodes), &[], None, &mut slots, notes)?;
        }
        Ok(slots)
    }

    /// The entries of the policy whose devices each node has.
    fn devices(&self) -> Vec<&NodeDevices> {
        devices::certain(&self.request.policy.devices, &self.group.draft.requirements)
    }

    /// The remedy where shapes are stated but the NodePool does not list its instance types.
    fn may_be_stated(&self) -> Option<String> {
        let unlisted = !self.request.policy.shapes.is_empty() && !self.group.known.is_bounded;
        unlisted.then(|| {
            format!(
                "NodePool {} lists no instance types, so it is not known whether the stated shapes are among them; list {} in \
                 NodePool or tier",
                self.group.draft.node_pool,
                names::INSTANCE_TYPE
            )
        })
    }

    fn kind(&self, shape: &Shape) -> NodeKind {
        let price = self.price(&shape.instance_type);
        NodeKind { room: shape.room(&self.daemons), price, has_accelerator: shape.has_accelerator() }
    }

    /// Adds `count` nodes with these pods on each, of one of these types if any are given.
    fn add(
        &self,
        (pods, count): (Vec<PodShare>, u32),
        types: &[String],
        shape: Option<&Arc<Shape>>,
        slots: &mut Vec<Slot>,
        notes: &mut Vec<String>,
    ) -> Result<(), Obstacle> {
        require_possible(slots.len(), count)?;
        let of_pods = self.requests_of(&pods);
        let requests = resources::sum(&self.daemons, &of_pods);
        let types = self.possible(types, count, &requests, notes);
        notes.extend(self.not_sold(&types));
        let types = self.cheapest(types, &requests, notes)?;
        let asked = self.asked_types(&types, &requests, notes);
        let mut template = self.group.draft.claim(requests, self.taints.clone(), asked.as_ref())?;
        devices::record(&mut template, &self.devices());
        recorded::record(&mut template, of_pods, self.group.known.catalogue);
        let template = Arc::new(template);
        let most = Arc::new(self.most(&template.needs(), &types));
        let pods: Arc<[PodShare]> = pods.into();
        let (domain_keys, held_to): (Arc<[String]>, Arc<BTreeSet<String>>) = Default::default();
        let slot = |_| Slot {
            index: 0,
            pods: Arc::clone(&pods),
            node_pool: self.group.draft.node_pool.clone(),
            template: Arc::clone(&template),
            shape: shape.cloned(),
            most: Arc::clone(&most),
            domain_keys: Arc::clone(&domain_keys),
            pod_sets: None,
            held_to: Arc::clone(&held_to),
        };
        slots.extend((0..count).map(slot));
        Ok(())
    }

    fn too_large_for_all(&self) -> Obstacle {
        Obstacle::new(
            ObstacleReason::TooLarge,
            format!("no shape of NodePool {} holds the pods", self.group.draft.node_pool),
        )
    }

    /// The refusal for a pod that no shape holds: what the nearest shape lacks.
    fn too_large(&self, set: &PodSetDemand<'_>) -> Obstacle {
        let shapes = &self.group.known.shapes;
        if shapes.is_empty() {
            return fit::no_type(self.group.draft, &self.group.known);
        }
        let name = &set.pod_set.name;
        let pool = &self.group.draft.node_pool;
        let rooms: Vec<ResourceList> = shapes.iter().map(|s| s.room(&self.daemons)).collect();
        let types = few(shapes.iter().map(|s| s.instance_type.as_str()));
        let daemons = if self.daemons.is_empty() { "" } else { " with DaemonSets taken off" };
        let message = match fit::lack(&set.each, &rooms) {
            Shortfall::Resource(key) if self.group.known.are_without(&key) => {
                let remedy = "correct the request, or name a NodePool that has it";
                format!("pod set {name}: {}; {remedy}", fit::none_has(pool, &key))
            }
            Shortfall::Resource(key) => format!(
                "pod set {name} requests {key}, which no node shape of NodePool {pool} has ({types}); correct the request, or \
                 state the resource under packing.shapes"
            ),
            Shortfall::Room(lack) => format!(
                "a pod of pod set {name} fits on no node shape of NodePool {pool} ({types}), which{daemons} has too little {lack}; request less per pod or name a larger NodePool"
            ),
        };
        Obstacle::new(ObstacleReason::TooLarge, message)
    }
}

/// The total requests of these pods.
fn content(batches: &[Batch], pods: &[u32]) -> ResourceList {
    let each = batches.iter().zip(pods).map(|(batch, pods)| resources::times(&batch.needs, *pods));
    each.fold(ResourceList::new(), |sum, more| resources::sum(&sum, &more))
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, daemon_set, object, pod_set, pool};
    use super::super::source::Source;
    use super::*;
    use crate::api::parameters::{PackingMode, StatedShape};
    use serde_json::{Value, json};

    fn stated(list: &Value) -> Vec<StatedShape> {
        serde_json::from_value(list.clone()).unwrap()
    }

    fn typed(types: &[&str]) -> Value {
        json!({"spec": {"template": {"spec": {"requirements":
            [{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]}}}})
    }

    /// These pod sets on a NodePool of these types, with packing `Fill`.
    fn filled(sets: &[Value], types: &[&str], shapes: &Value) -> Fixture {
        let assigned: Vec<Value> =
            sets.iter().map(|s| json!({"name": s["name"], "flavors": {"cpu": "gpu"}})).collect();
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": sets}, "status": {"admission": {"podSetAssignments": assigned}},
        }));
        world.objects.node_pools = vec![pool("gpu", &typed(types))];
        world.policy.packing = PackingMode::Fill;
        world.policy.shapes = stated(shapes);
        world
    }

    fn pods(plan: &Plan) -> Vec<Vec<(&str, u32)>> {
        plan.slots.iter().map(|s| s.pods.iter().map(|p| (p.pod_set.as_str(), p.pods)).collect()).collect()
    }

    fn eight() -> Value {
        json!([{"instanceType": "p5", "allocatable": {"cpu": 190, "memory": "2000Gi", "nvidia.com/gpu": 8}}])
    }

    #[test]
    fn four_gpu_pods_share_one_node_of_eight_or_get_four_nodes() {
        let mut world = filled(&[pod_set("main", 4)], &["p5"], &eight());
        let plan = world.provisioned();
        assert_eq!(pods(&plan), [[("main", 4)]]);
        let requests = &plan.slots[0].template.spec.resources.requests;
        assert_eq!(
            ["cpu", "nvidia.com/gpu", "pods"].map(|key| requests[key].0.as_str()),
            ["8", "4", "4"],
            "the claim asks for the sum of its pods"
        );
        world.policy.packing = PackingMode::PerPod;
        assert_eq!(world.provisioned().slots.len(), 4);
    }

    #[test]
    fn pod_sets_share_nodes_only_if_the_nodes_are_identical() {
        let sets = [pod_set("lead", 1), pod_set("main", 7)];
        let mut world = filled(&sets, &["p5"], &eight());
        let plan = world.provisioned();
        assert_eq!(pods(&plan), [[("lead", 1), ("main", 7)]]);
        assert_eq!(plan.pod_sets(), ["lead", "main"]);
        let zoned = json!({"template": {"spec": {"nodeSelector": {(names::ZONE): "a"}}}});
        let sets = [super::super::fixtures::patched(pod_set("lead", 1), &zoned), pod_set("main", 7)];
        world.workload = filled(&sets, &["p5"], &eight()).workload;
        assert_eq!(pods(&world.provisioned()), [[("lead", 1)], [("main", 7)]]);
    }

    #[test]
    fn daemon_set_requests_are_subtracted_before_a_node_is_filled() {
        let shapes = json!([{"instanceType": "p5", "allocatable": {"cpu": 8, "nvidia.com/gpu": 8}}]);
        let mut world = filled(&[pod_set("main", 4)], &["p5"], &shapes);
        assert_eq!(world.provisioned().slots.len(), 1);
        world.objects.daemon_sets =
            vec![daemon_set("logs", &json!({"tolerations": [{"operator": "Exists"}]}))];
        assert_eq!(pods(&world.provisioned()), [[("main", 3)], [("main", 1)]]);
    }

    #[test]
    fn a_claim_lists_every_known_type_that_holds_its_pods_and_no_other() {
        let shapes = json!([
            {"instanceType": "small", "allocatable": {"cpu": 8, "nvidia.com/gpu": 1}},
            {"instanceType": "large", "allocatable": {"cpu": 64, "nvidia.com/gpu": 4}},
            {"instanceType": "huge", "allocatable": {"cpu": 96, "nvidia.com/gpu": 8}},
            {"instanceType": "elsewhere", "allocatable": {"cpu": 960, "nvidia.com/gpu": 80}},
        ]);
        let world = filled(&[pod_set("main", 4)], &["small", "large", "huge"], &shapes);
        let plan = world.provisioned();
        let requirement =
            plan.slots[0].template.spec.requirements.iter().find(|r| r.key == names::INSTANCE_TYPE).unwrap();
        assert_eq!(
            (plan.slots.len(), requirement.values.clone()),
            (1, vec!["huge".to_owned(), "large".into()])
        );
        assert_eq!(
            plan.slots[0].shape.as_ref().unwrap().instance_type,
            "large",
            "the smallest that holds them"
        );
    }

    #[test]
    fn pods_with_anti_affinity_get_a_node_each() {
        let apart = json!({"template": {"spec": {"affinity": {"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": names::HOSTNAME}]}}}}});
        let set = super::super::fixtures::patched(pod_set("main", 3), &apart);
        assert_eq!(filled(&[set], &["p5"], &eight()).provisioned().slots.len(), 3);
    }

    #[test]
    fn pods_of_two_sets_with_anti_affinity_do_not_share_a_node() {
        let apart = json!({"template": {"metadata": {"labels": {"app": "js"}}, "spec": {"affinity": {"podAntiAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": names::HOSTNAME, "labelSelector": {"matchLabels": {"app": "js"}}},
        ]}}}}});
        let set = |name, count| super::super::fixtures::patched(pod_set(name, count), &apart);
        let plan = filled(&[set("lead", 1), set("main", 3)], &["p5"], &eight()).provisioned();
        assert_eq!(pods(&plan), [[("lead", 1)], [("main", 1)], [("main", 1)], [("main", 1)]]);
    }

    fn learnt(instance_type: &str, gpus: u32) -> Shape {
        Shape {
            instance_type: instance_type.into(),
            allocatable: object(
                json!({"cpu": "64", "memory": "256Gi", "pods": "58", "nvidia.com/gpu": gpus.to_string()}),
            ),
            capacity: ResourceList::new(),
            labels: std::collections::BTreeMap::new(),
            node_pool: "gpu".into(),
            nodes: 2,
            accelerators: super::super::shape::Accelerators::Stated,
            source: Source::Node { name: "n1".into(), seen: jiff::Timestamp::UNIX_EPOCH },
        }
    }

    #[test]
    fn the_plan_names_the_node_that_a_shape_was_learnt_from_and_the_time() {
        let mut world = filled(&[pod_set("main", 8)], &["g5"], &json!([]));
        assert_eq!(world.provisioned().slots.len(), 8);
        let note = &world.provisioned().notes[0];
        assert!(note.contains("no shape of NodePool gpu is known yet, so each pod gets a node"), "{note}");
        world.shapes = vec![learnt("g5", 4)];
        let plan = world.provisioned();
        assert_eq!(plan.slots.len(), 2);
        assert_eq!(*plan.facts, ["packed into shape g5 as known from Node n1, seen 1970-01-01T00:00:00Z"]);
    }

    #[test]
    fn an_observed_shape_overrides_a_larger_stated_shape() {
        let mut world = filled(&[pod_set("main", 8)], &["p5"], &eight());
        world.shapes = vec![learnt("p5", 6)];
        let plan = world.provisioned();
        assert_eq!(pods(&plan), [[("main", 6)], [("main", 2)]]);
        assert!(plan.facts[0].contains("Node n1"), "{:?}", plan.facts);
    }

    #[test]
    fn packing_places_every_pod_once_on_at_most_one_node_per_pod() {
        let mut seed = 7_u64;
        let mut roll = |sides: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % sides
        };
        let mut planned = 0;
        for round in 0..300 {
            let sets: Vec<Value> = (0..=roll(3))
                .map(|n| {
                    let limits =
                        json!({"cpu": (1 + roll(9)).to_string(), "nvidia.com/gpu": roll(5).to_string()});
                    let count = 1 + i32::try_from(roll(6)).unwrap();
                    let spec = json!({"containers": [{"resources": {"limits": limits}}]});
                    super::super::fixtures::patched(
                        pod_set(&format!("s{n}"), count),
                        &json!({"template": {"spec": spec}}),
                    )
                })
                .collect();
            let shape = |name: &str, cpu: u64, gpus: u64| json!({"instanceType": name, "allocatable": {"cpu": cpu, "nvidia.com/gpu": gpus}});
            let known = [shape("p4", 4 + roll(9), roll(5)), shape("p5", 8 + roll(30), 4 + roll(5))];
            let stated = usize::try_from(roll(3)).unwrap();
            let mut world = filled(&sets, &["p4", "p5"], &json!(known[..stated]));
            if stated == 0 && roll(2) == 0 {
                let counts = json!({"key": names::DEVICE_COUNTS[0], "operator": "In", "values": [(1 + roll(4)).to_string(), "4", "8"]});
                let requirements = json!({"spec": {"template": {"spec": {"requirements": [counts]}}}});
                world.objects.node_pools = vec![pool("gpu", &requirements)];
            }
            let fill = world.plan();
            world.policy.packing = PackingMode::PerPod;
            match (fill, world.plan()) {
                (super::super::Outcome::Provision(fill), super::super::Outcome::Provision(each)) => {
                    planned += 1;
                    assert!(fill.nodes() <= each.nodes(), "round {round}");
                    let placed = |plan: &Plan| -> u32 {
                        plan.slots.iter().flat_map(|s| s.pods.iter()).map(|p| p.pods).sum()
                    };
                    assert_eq!(placed(&fill), placed(&each), "round {round}");
                    for slot in &fill.slots {
                        let Some(shape) = &slot.shape else { continue };
                        let requests = &slot.template.spec.resources.requests;
                        let room = shape.room(&ResourceList::new());
                        assert_eq!(resources::shortage(requests, &room), None, "round {round}");
                    }
                }
                (fill, each) => {
                    let context = format!("round {round}: {fill:?} {each:?}");
                    assert_eq!(std::mem::discriminant(&fill), std::mem::discriminant(&each), "{context}");
                }
            }
        }
        assert!(planned > 100, "{planned}");
    }

    #[test]
    fn packing_uses_the_smallest_device_count_that_holds_every_pod() {
        let half = json!({"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}});
        let set = super::super::fixtures::patched(pod_set("main", 3), &half);
        let mut world = filled(&[set], &["p5"], &json!([]));
        let counted = |counts: &[&str]| {
            let requirement = json!({"key": names::DEVICE_COUNTS[0], "operator": "In", "values": counts});
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": [requirement]}}}}))]
        };
        world.objects.node_pools = counted(&["1", "8"]);
        assert_eq!(pods(&world.provisioned()), [vec![("main", 2)], vec![("main", 1)]]);
        world.objects.node_pools = counted(&["4", "8"]);
        assert_eq!(world.provisioned().slots.len(), 3);
        world.objects.node_pools = counted(&["1", "2"]);
        assert!(world.obstacle().1.contains("more nvidia.com/gpu than the 2 of a node"));
    }

    #[test]
    fn without_a_shape_pods_are_packed_by_devices() {
        let mut world = filled(&[pod_set("main", 9)], &["p5"], &json!([]));
        let counted = json!({"spec": {"template": {"spec": {"requirements":
            [{"key": names::DEVICE_COUNTS[0], "operator": "In", "values": ["4"]}]}}}});
        world.objects.node_pools = vec![pool("gpu", &counted)];
        let plan = world.provisioned();
        assert_eq!(pods(&plan), [[("main", 4)], [("main", 4)], [("main", 1)]]);
        assert!(plan.notes[0].contains("packed by its 4 nvidia.com/gpu per node alone"), "{:?}", plan.notes);
    }

    #[test]
    fn a_pod_that_no_shape_holds_is_refused_with_figures_in_both_modes() {
        let big =
            json!({"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "400"}}}]}}});
        let odd = json!({"template": {"spec": {"containers": [{"resources": {"requests": {"example.com/fpga": "1"}}}]}}});
        for mode in [PackingMode::Fill, PackingMode::PerPod] {
            for (change, words) in [
                (&big, "has too little cpu (190 of 400)"),
                (&odd, "requests example.com/fpga, which no node shape of NodePool gpu has (p5)"),
            ] {
                let set = super::super::fixtures::patched(pod_set("main", 2), change);
                let mut world = filled(&[set], &["p5"], &eight());
                world.policy.packing = mode;
                let (reason, message) = world.obstacle();
                assert_eq!(reason, ObstacleReason::TooLarge);
                assert!(message.contains(words), "{message}");
            }
        }
    }

    #[test]
    fn an_unknown_type_may_hold_pods_that_known_types_do_not() {
        let big =
            json!({"template": {"spec": {"containers": [{"resources": {"requests": {"cpu": "400"}}}]}}});
        let sets = [super::super::fixtures::patched(pod_set("big", 2), &big), pod_set("main", 8)];
        let plan = filled(&sets, &["p5", "unheard-of"], &eight()).provisioned();
        assert_eq!(pods(&plan), [vec![("main", 8)], vec![("big", 1)], vec![("big", 1)]]);
        assert!(plan.notes[0].contains("no known shape holds a pod of pod set big"), "{:?}", plan.notes);
    }

    #[test]
    fn a_type_whose_nodes_were_too_small_is_left_out() {
        let mut world = filled(&[pod_set("main", 2)], &["g5", "p5"], &json!([]));
        world.policy.packing = PackingMode::PerPod;
        let types = |world: &Fixture| {
            let plan = world.provisioned();
            let requirements = plan.slots[0].template.spec.requirements.clone();
            let listed = requirements.iter().find(|r| r.key == names::INSTANCE_TYPE).unwrap().values.clone();
            (listed.join(" "), plan.notes)
        };
        world.shapes = vec![Shape { allocatable: object(json!({"cpu": "1"})), ..learnt("g5", 1) }];
        let note = "type g5 is left out: its nodes have shown that they do not hold the pods";
        assert_eq!(types(&world), ("p5".into(), vec![note.to_owned()]));
        let source = Source::NodeClaim { name: "c".into(), seen: jiff::Timestamp::UNIX_EPOCH };
        world.shapes[0].source = source;
        assert_eq!(types(&world), ("g5 p5".into(), vec![]), "what was only expected may be wrong");
    }

    #[test]
    fn a_type_whose_nodes_were_too_small_is_excluded_where_the_type_is_open() {
        let mut world = filled(&[pod_set("main", 2)], &["g5"], &json!([]));
        world.objects.node_pools = vec![pool("gpu", &json!({}))];
        world.policy.packing = PackingMode::PerPod;
        let types = |world: &Fixture| {
            let requirements = world.provisioned().slots[0].template.spec.requirements.clone();
            let asked = requirements.into_iter().find(|r| r.key == names::INSTANCE_TYPE);
            asked.map(|asked| (asked.operator, asked.values.join(" ")))
        };
        assert_eq!(types(&world), None);
        let first = world.provisioned();
        let small = |name: &str| Shape { allocatable: object(json!({"cpu": "1"})), ..learnt(name, 1) };
        world.shapes = vec![small("g6"), small("g5"), learnt("p5", 8)];
        assert_eq!(types(&world), Some(("NotIn".to_owned(), "g5 g6".to_owned())));
        let now = world.provisioned();
        let note = "types g5, g6 are left out: their nodes have shown that they do not hold the pods";
        assert_eq!(now.notes, [note]);
        // A gang that has begun goes on as before.
        assert!(!now.is_hashed(&first.hash()) && now.replaces(&first.hash()));
        let mut begun = (*first.slots[0].template).clone();
        begun.metadata.labels.get_or_insert_default().insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
        let again = now.with_types_of(&[begun], false).unwrap();
        assert_eq!(again.hash(), first.hash());
        let mut listed = filled(&[pod_set("main", 2)], &["g5", "p5"], &json!([]));
        listed.shapes = world.shapes.clone();
        listed.policy.packing = PackingMode::PerPod;
        assert_eq!(types(&listed), Some(("In".to_owned(), "p5".to_owned())));
    }

    #[test]
    fn the_note_asks_for_a_type_list_if_stated_shapes_cannot_be_matched() {
        let mut world = filled(&[pod_set("main", 2)], &["p5"], &eight());
        let requirement =
            json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": ["p5"]});
        let families = json!({"spec": {"template": {"spec": {"requirements": [requirement]}}}});
        world.objects.node_pools = vec![pool("gpu", &families)];
        assert_eq!(
            world.provisioned().notes,
            [
                "each pod gets a node of its own: NodePool gpu lists no instance types, so it is not known whether the stated shapes are among them; list node.kubernetes.io/instance-type in NodePool or tier"
            ]
        );
    }

    #[test]
    fn a_gang_of_more_nodes_than_any_can_have_is_refused_before_its_slots_take_memory() {
        let shapes =
            json!([{"instanceType": "big", "allocatable": {"cpu": 110, "nvidia.com/gpu": 110, "pods": 110}}]);
        for mode in [PackingMode::PerPod, PackingMode::Fill, PackingMode::Auto] {
            for sets in
                [vec![pod_set("main", i32::MAX)], vec![pod_set("a", i32::MAX), pod_set("b", i32::MAX)]]
            {
                let mut world = filled(&sets, &["big"], &shapes);
                world.policy.packing = mode;
                let (reason, message) = world.obstacle();
                assert_eq!(reason, ObstacleReason::TooManyNodes, "{mode:?}: {message}");
                assert!(message.contains("more than the 16384 nodes that any gang can have"), "{message}");
            }
        }
        let mut many = filled(&[pod_set("a", 9_000), pod_set("b", 9_000)], &["big"], &shapes);
        many.policy.packing = PackingMode::PerPod;
        assert_eq!(many.obstacle().0, ObstacleReason::TooManyNodes, "the sum of two pod sets counts");
    }

    #[test]
    fn the_plan_counts_on_the_cheaper_of_two_fitting_types() {
        let shapes = json!([
            {"instanceType": "old", "allocatable": {"cpu": 96, "nvidia.com/gpu": 8}},
            {"instanceType": "new", "allocatable": {"cpu": 190, "nvidia.com/gpu": 8}},
        ]);
        let mut world = filled(&[pod_set("main", 8)], &["old", "new"], &shapes);
        world.policy.budget = serde_json::from_value(json!({"prices": {
            "old": {"on-demand": "32.77", "spot": "13"}, "new": {"on-demand": "98.32", "spot": "12"},
        }}))
        .unwrap();
        assert_eq!(world.provisioned().slots[0].shape.as_ref().unwrap().instance_type, "new");
        let cost = world.provisioned().cost;
        assert_eq!((cost.at_most.to_string().as_str(), cost.unpriced), ("98.32", 0));
    }
}
