//! Plans that match the nodes that a gang already has, or an accepted plan. Used to replan repairs and what another replica
//! began.

use super::obstacle::{Obstacle, ObstacleReason};
use super::outcome::{self, Outcome, Plan, Slot};
use super::resources;
use super::tiers::ProvisioningOption;
use crate::api::NodeClaim;
use crate::api::node_claim::{NodeClaimSpec, RequestedDevices, Requirement};
use crate::digest::hex_digest;
use crate::names;
use std::sync::Arc;

impl Plan {
    /// 16 hexadecimal digits that hash what would be created, a dot, and 16 that hash which pods each node is for.
    pub fn hash(&self) -> String {
        format!("{}.{}", self.hash_of(NodeClaimSpec::clone), self.hash_of_pods())
    }

    /// Whether this is the hash of what would be created now. Hashes of earlier releases have only the first part.
    pub fn is_hashed(&self, hash: &str) -> bool {
        hash.split('.').next() == Some(&self.hash_of(NodeClaimSpec::clone))
    }

    /// Whether a node of this plan can replace the node in the same slot of the plan with this hash: it is for the same pods and on
    /// the same NodePool. Its instance types, its zones, and what DaemonSets or the NodePool's template add may have changed since.
    /// Earlier releases hashed all but the types, or everything.
    pub fn replaces(&self, hash: &str) -> bool {
        let rest = hash.split_once('.').map(|(_, rest)| rest);
        let is_alike = |rest| rest == self.hash_of_pods() || rest == self.hash_of(without_types);
        rest.is_some_and(is_alike) || self.is_hashed(hash)
    }

    fn hash_of(&self, hashed: impl Fn(&NodeClaimSpec) -> NodeClaimSpec) -> String {
        // Which capacity reservation a node is held to may change while the gang's claims are created.
        let shape = |(slot, count): &(&Slot, u32)| {
            let pods: Vec<_> = slot.pods.iter().map(|share| (&share.pod_set, share.pods)).collect();
            let labels = &slot.template.metadata.labels;
            let shape = (pods, &slot.node_pool, hashed(&slot.template.spec), labels, count);
            let besides = [names::DEVICES, names::UNREQUESTED].map(|key| slot.template.annotation(key));
            serde_json::to_string(&shape).unwrap_or_default() + &besides.concat()
        };
        let shapes: Vec<String> = self.groups().iter().map(shape).collect();
        hex_digest(&shapes.iter().map(String::as_str).collect::<Vec<_>>(), 8)
    }

    fn hash_of_pods(&self) -> String {
        let mut kinds: Vec<(String, u32)> = Vec::new();
        for (slot, count) in self.groups() {
            let pods: Vec<_> = slot.pods.iter().map(|share| (&share.pod_set, share.pods)).collect();
            let devices = slot.template.annotation(names::DEVICES);
            let kind = serde_json::to_string(&(pods, &slot.node_pool, &slot.pod_sets.as_deref(), devices));
            let kind = kind.unwrap_or_default();
            match kinds.last_mut() {
                Some((last, nodes)) if *last == kind => *nodes = nodes.saturating_add(count),
                _ => kinds.push((kind, count)),
            }
        }
        let counted: Vec<String> = kinds.iter().map(|(kind, nodes)| format!("{nodes} {kind}")).collect();
        hex_digest(&counted.iter().map(String::as_str).collect::<Vec<_>>(), 8)
    }

    /// Whether each of these claims has a matching node in the plan, if nodes may be larger and in fewer zones than the claims.
    pub(super) fn has_similar(&self, claims: &[NodeClaim]) -> bool {
        let groups = self.groups();
        let without_types = |list: &[Requirement]| split(list, names::INSTANCE_TYPE).1;
        let is_similar = |slot: &Slot, claim: &NodeClaim| {
            let now = without_types(&slot.template.spec.requirements);
            slot.node_pool == claim.label(names::NODEPOOL)
                && is_narrowed(&now, &without_types(&requirements_of(claim, slot)))
        };
        claims.iter().all(|claim| groups.iter().any(|(slot, _)| is_similar(slot, claim)))
    }

    /// Whether each of these claims has a matching node in the plan.
    pub fn has_like(&self, claims: &[NodeClaim]) -> bool {
        let groups = self.groups();
        claims.iter().all(|claim| groups.iter().any(|(slot, _)| is_like(slot, claim)))
    }

    /// Whether each of these claims has a matching node in its slot of the plan.
    pub(super) fn has_like_in_slots(&self, claims: &[NodeClaim]) -> bool {
        let in_slot = |claim: &NodeClaim| self.slots.iter().find(|slot| Some(slot.index) == claim.slot());
        claims.iter().all(|claim| in_slot(claim).is_some_and(|slot| is_like(slot, claim)))
    }

    /// Takes over the instance types of these claims, for nodes that differ from a claim only in their types: price changes reorder
    /// the cheapest types. If volumes may have been bound since (`narrows`), nodes may also be in fewer zones. `None` if no nodes
    /// match a claim.
    #[must_use]
    pub fn with_types_of(mut self, claims: &[NodeClaim], narrows: bool) -> Option<Self> {
        let mut is_found = false;
        for alike in self.slots.chunk_by_mut(|a, b| Arc::ptr_eq(&a.template, &b.template)) {
            let Some(first) = alike.first() else { continue };
            let is_kept = |claim| is_like(first, claim) || (narrows && is_narrower(first, claim));
            if claims.iter().any(is_kept) {
                is_found = true;
                continue;
            }
            let needs = first.template.needs();
            let is_as_large = |claim: &&NodeClaim| claim.needs() == needs;
            let differ = claims.iter().filter(|claim| is_like_except_types(first, claim));
            let (others, disjoint): (Vec<&NodeClaim>, Vec<&NodeClaim>) =
                differ.partition(|claim| shares_types(first, claim));
            if disjoint.iter().any(is_as_large) {
                return None;
            }
            let Some(claim) = others.iter().find(|claim| is_as_large(claim)).or(others.first()) else {
                continue;
            };
            is_found = true;
            let mut template = (*first.template).clone();
            template.spec.requirements = requirements_of(claim, first);
            let template = Arc::new(template);
            for slot in alike {
                slot.template = Arc::clone(&template);
                slot.shape = slot.shape.take().filter(|shape| is_asked(&shape.instance_type, claim));
            }
        }
        is_found.then_some(self)
    }
}

/// Finds the option whose plan has this hash; it was at index `place` when it was accepted. If there is none, returns the current
/// outcome at that index, which shows what changed. Waits instead while the plan may belong to a NodePool that was just edited.
/// `like` gives a plan the instance types of the existing nodes.
pub(super) fn accepted(
    options: &[ProvisioningOption],
    place: u32,
    hash: Option<&str>,
    plan_of: impl Fn(u32, &ProvisioningOption) -> Result<Plan, Obstacle>,
    like: impl Fn(Plan) -> Option<Plan>,
) -> Outcome {
    let is_it = |plan: &Plan| hash.is_none_or(|hash| plan.is_hashed(hash));
    let mut nearest: Vec<(u32, &ProvisioningOption)> = (0..).zip(options).collect();
    nearest.sort_by_key(|(index, _)| *index != place);
    let (mut in_place, mut unseen) = (None, None);
    for (index, option) in nearest {
        match plan_of(index, option) {
            Ok(plan) if is_it(&plan) => return Outcome::Provision(plan),
            Err(obstacle) if obstacle.reason == ObstacleReason::NodePoolEdited => unseen = Some(obstacle),
            found => {
                let as_begun = found.as_ref().ok().and_then(|plan| like(plan.clone())).filter(is_it);
                if let Some(plan) = as_begun {
                    return Outcome::Provision(plan);
                }
                in_place = in_place.or(Some((option.name.as_str(), found)));
            }
        }
        if hash.is_none() {
            break;
        }
    }
    if let Some(obstacle) = unseen {
        return Outcome::Wait(obstacle);
    }
    match in_place {
        Some((_, Ok(plan))) => Outcome::Provision(plan),
        Some((name, Err(obstacle))) => outcome::closed(&[(name, obstacle)]),
        None => outcome::closed(&[]),
    }
}

/// A spec without the instance types that it lists or leaves out.
fn without_types(spec: &NodeClaimSpec) -> NodeClaimSpec {
    let mut spec = spec.clone();
    spec.requirements.retain(|asked| asked.key != names::INSTANCE_TYPE || asked.operator != "NotIn");
    let is_list = |asked: &&mut Requirement| asked.key == names::INSTANCE_TYPE && asked.operator == "In";
    for asked in spec.requirements.iter_mut().filter(is_list) {
        asked.values.clear();
    }
    spec
}

/// Whether a slot matches this claim: same NodePool and requirements, and no larger requests.
fn is_like(slot: &Slot, claim: &NodeClaim) -> bool {
    is_within(slot, claim) && slot.template.spec.requirements == requirements_of(claim, slot)
}

/// The requirements of a claim. One that is held to some of the slot's capacity reservations counts as allowing all of them.
fn requirements_of(claim: &NodeClaim, slot: &Slot) -> Vec<Requirement> {
    let mut of_slot = slot.template.spec.requirements.iter();
    let allowed = of_slot.find(|asked| asked.key == names::RESERVATION_ID && asked.operator == "In");
    let is_part = |asked: &Requirement, allowed: &Requirement| {
        (&asked.key, &asked.operator) == (&allowed.key, &allowed.operator)
            && asked.values.iter().all(|id| allowed.values.contains(id))
    };
    let whole =
        |asked: &Requirement| allowed.filter(|allowed| is_part(asked, allowed)).unwrap_or(asked).clone();
    claim.spec.requirements.iter().map(whole).collect()
}

/// Whether a slot matches this claim, but in fewer zones.
fn is_narrower(slot: &Slot, claim: &NodeClaim) -> bool {
    is_within(slot, claim) && is_narrowed(&slot.template.spec.requirements, &requirements_of(claim, slot))
}

/// Whether these requirements are the same as those before, but for fewer zones.
fn is_narrowed(requirements: &[Requirement], before: &[Requirement]) -> bool {
    let (zones, rest) = split(requirements, names::ZONE);
    let (asked, asked_rest) = split(before, names::ZONE);
    let was_asked =
        |zone: &String| asked.iter().all(|asked| asked.operator == "In" && asked.values.contains(zone));
    rest == asked_rest && zones.iter().all(|now| now.operator == "In" && now.values.iter().all(was_asked))
}

/// Whether a slot matches this claim, ignoring the instance types.
fn is_like_except_types(slot: &Slot, claim: &NodeClaim) -> bool {
    let rest = |list: &[Requirement]| split(list, names::INSTANCE_TYPE).1;
    is_within(slot, claim) && rest(&slot.template.spec.requirements) == rest(&requirements_of(claim, slot))
}

/// Whether a slot and this claim have instance types in common, or both list none.
fn shares_types(slot: &Slot, claim: &NodeClaim) -> bool {
    let lists = |asked: &Requirement| asked.key == names::INSTANCE_TYPE && asked.operator == "In";
    let is_open = |claim: &NodeClaim| !claim.spec.requirements.iter().any(lists);
    slot.instance_types().any(|name| is_asked(name, claim)) || (is_open(&slot.template) && is_open(claim))
}

/// Whether a claim lists this instance type.
fn is_asked(name: &String, claim: &NodeClaim) -> bool {
    let mut requirements = claim.spec.requirements.iter();
    requirements.any(|asked| asked.key == names::INSTANCE_TYPE && asked.values.contains(name))
}

/// Whether a slot is on this claim's NodePool and requests no more than the claim, devices included.
fn is_within(slot: &Slot, claim: &NodeClaim) -> bool {
    let (wanted, there) = (slot.template.devices(), claim.devices());
    let has = |one: &RequestedDevices| {
        there.iter().any(|of| {
            (&of.device_class, &of.driver) == (&one.device_class, &one.driver) && of.count >= one.count
        })
    };
    slot.node_pool == claim.label(names::NODEPOOL)
        && resources::first_insufficient(&slot.template.needs(), &claim.needs()).is_none()
        && wanted.iter().all(has)
}

/// The requirements on this label, and the others.
fn split(list: &[Requirement], key: &str) -> (Vec<Requirement>, Vec<Requirement>) {
    list.iter().cloned().partition(|requirement| requirement.key == key)
}

#[cfg(test)]
mod tests {
    use crate::api::{NodeClaim, NodePool};
    use crate::names;
    use crate::plan::fixtures::{self, Fixture, offer, pod_set, pool};
    use crate::plan::market::Market;
    use crate::plan::{OptionSelection, Outcome, Plan, PlanRequest, PlanSnapshot, Slot, catalogue};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// Karpenter's metrics for all EC2 types, where `dear` ones cost a hundred times as much as the others.
    fn market(dear: impl Fn(usize) -> bool) -> Market {
        let line = |(nth, name): (usize, &str)| {
            let of = [name, "on-demand", "a"];
            offer("available", of, 1) + &offer("price_estimate", of, if dear(nth) { 100 } else { 1 })
        };
        let names = catalogue::of("karpenter.k8s.aws").unwrap().names();
        fixtures::market(&names.enumerate().map(line).collect::<String>())
    }

    fn planned(world: &Fixture, market: &Market, selection: OptionSelection<'_>) -> Option<Plan> {
        let cluster = PlanSnapshot { market: Some(market), ..world.cluster() };
        match crate::plan::plan(&cluster, &PlanRequest { selection, ..world.request() }) {
            Outcome::Provision(plan) => Some(plan),
            _ => None,
        }
    }

    /// Pods of one CPU each, in these zones, on EC2 nodes of this category.
    fn world(zones: &[&str], category: &str) -> Fixture {
        let set = |zone: &&str| {
            let spec = json!({
                "nodeSelector": {(names::ZONE): zone},
                "containers": [{"resources": {"requests": {"cpu": "1"}}}],
            });
            fixtures::patched(pod_set(zone, 2), &json!({"template": {"spec": spec}}))
        };
        let sets: Vec<Value> = zones.iter().map(set).collect();
        let assigned: Vec<Value> =
            zones.iter().map(|zone| json!({"name": zone, "flavors": {"cpu": "gpu"}})).collect();
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": sets}, "status": {"admission": {"podSetAssignments": assigned}},
        }));
        world.objects.node_pools = pools(category);
        world
    }

    fn pools(category: &str) -> Vec<Arc<NodePool>> {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let label = "karpenter.k8s.aws/instance-category";
        let asked = json!([{"key": label, "operator": "In", "values": [category]}]);
        let spec = json!({"requirements": asked, "nodeClassRef": class});
        vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))]
    }

    /// One created claim for each kind of node in the plan.
    fn begun(plan: &Plan) -> Vec<NodeClaim> {
        let claim = |(slot, _): (&Slot, u32)| {
            let mut claim = (*slot.template).clone();
            let labels = claim.metadata.labels.get_or_insert_default();
            labels.insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
            claim
        };
        plan.groups().into_iter().map(claim).collect()
    }

    #[test]
    fn a_lost_node_is_replaced_after_a_daemon_set_was_added() {
        let mut world = Fixture::new();
        let first = world.provisioned();
        let begun = begun(&first);
        world.objects.daemon_sets = vec![fixtures::daemon_set("agent", &json!({}))];
        let request =
            PlanRequest { selection: OptionSelection::Like { begun: &begun, plan: None }, ..world.request() };
        let Outcome::Provision(now) = crate::plan::plan(&world.cluster(), &request) else {
            panic!("no plan")
        };
        assert!(!now.is_hashed(&first.hash()) && now.replaces(&first.hash()));
        world.workload = Fixture::new()
            .workload(&json!({"status": {"reclaimablePods": [{"name": "main", "count": 1}]}}))
            .workload;
        assert!(!world.provisioned().replaces(&first.hash()), "fewer pods are left");
    }

    #[test]
    fn gang_that_has_nodes_is_planned_as_before_when_prices_reorder_its_types() {
        let (before, after) = (market(|nth| nth % 2 == 0), market(|nth| nth % 3 == 0));
        for zones in [&["a"][..], &["a", "b"]] {
            let mut world = world(zones, "m");
            let first = planned(&world, &before, OptionSelection::From(0)).unwrap();
            assert_eq!(first.groups().len(), zones.len());
            let now = planned(&world, &after, OptionSelection::From(0)).unwrap();
            assert_ne!(now.hash(), first.hash(), "the list is another");
            let begun = begun(&first);
            let again = planned(&world, &after, OptionSelection::Like { begun: &begun, plan: None }).unwrap();
            assert_eq!(again.hash(), first.hash(), "{zones:?}");
            assert!(!now.is_hashed(&first.hash()) && now.replaces(&first.hash()), "{zones:?}");
            let of_earlier_release = first.hash().split('.').next().unwrap().to_owned();
            assert!(again.is_hashed(&of_earlier_release) && !now.replaces(&of_earlier_release));
            let of_last_release = format!("{of_earlier_release}.{}", first.hash_of(super::without_types));
            assert!(now.replaces(&of_last_release));
            world.objects.node_pools = pools("c");
            assert_eq!(
                planned(&world, &after, OptionSelection::Like { begun: &begun, plan: None }),
                None,
                "those are other nodes"
            );
        }
    }
}
