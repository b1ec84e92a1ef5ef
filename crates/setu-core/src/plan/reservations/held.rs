//! Which capacity reservation each node of a plan is held to, if Karpenter would not use all that a claim allows.
//!
//! Karpenter's AWS provider launches a claim into one reservation of each instance type and zone, and into one Capacity Block. It
//! picks the same for all claims that allow the same, because it counts an instance only once it is launched. So a gang that needs
//! several of them names one in each claim.
//!
//! Rule: a slot that has a claim is held to the reservation of that claim. The others get what is left, so that a plan made again
//! adds up to the same. The hash of a plan and its likeness with claims leave the reservation out.

use super::{Room, ids};
use crate::api::NodeClaim;
use crate::api::parameters::{CapacityReservation, ReservationType, Tier};
use crate::names;
use crate::plan::offering::Offering;
use crate::plan::{Plan, PlanRequest, PlanSnapshot, Slot, tiers, warm};
use crate::policy::Policy;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Whether nodes of some tier are held to one of its reservations.
pub fn is_needed(policy: &Policy) -> bool {
    policy.tiers.iter().any(|tier| !are_used_together(tier))
}

/// Whether nodes of a tier are held to one of its reservations, and the type or zone of some of these is not known.
pub fn is_unsure(tier: &Tier) -> bool {
    !are_used_together(tier) && !tier.reservations.iter().all(is_stated)
}

fn is_stated(one: &CapacityReservation) -> bool {
    one.instance_type.is_some() && one.zone.is_some()
}

/// The plan with its slots held to reservations that have room for them. A slot stays as it is if none has room, or if Karpenter uses
/// all reservations of the tier together.
#[must_use]
pub fn to_reservations(mut plan: Plan, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> Plan {
    let tiers = tiers::of_policy(request.policy);
    let tier = usize::try_from(plan.tier).ok().and_then(|index| tiers.get(index));
    let Some(tier) = tier.filter(|tier| !are_used_together(tier)) else { return plan };
    let mut holder = Holder::of(&plan, cluster, request, tier);
    for alike in plan.slots.chunk_by_mut(|a, b| Arc::ptr_eq(&a.template, &b.template)) {
        let mut open: Vec<&mut Slot> = Vec::new();
        for slot in alike.iter_mut().filter(|slot| !slot.is_kept()) {
            match holder.filled.get(&slot.index) {
                Some(ids) => slot.held_to = Arc::new(ids.clone()),
                None => open.push(slot),
            }
        }
        holder.hold(open);
    }
    plan
}

impl<'t> Room<'t> {
    /// The room beside the nodes of others, and what is planned for them.
    pub fn beside(
        cluster: &PlanSnapshot<'_>,
        request: &PlanRequest<'_>,
        plan: &Plan,
        tier: &'t Tier,
    ) -> Self {
        let mut room = Self::of(tier);
        let taken = warm::of_plan(plan, cluster.warm);
        let taken: BTreeSet<&str> =
            taken.values().filter_map(|claim| claim.metadata.name.as_deref()).collect();
        let is_taken = |claim: &NodeClaim| claim.metadata.name.as_deref().is_some_and(|n| taken.contains(n));
        // A claim that is being deleted keeps its instance until it is gone.
        let all = cluster.pool_claims.each_other(cluster.pending);
        for claim in all.filter(|claim| !is_own(claim, request) && !is_taken(claim)) {
            room.give(1, &ids(claim));
        }
        for (ids, nodes) in cluster.pending.iter().flat_map(|other| &other.drawn) {
            room.give(*nodes, ids);
        }
        room
    }
}

/// Whether a claim is of the gang that is planned.
fn is_own(claim: &NodeClaim, request: &PlanRequest<'_>) -> bool {
    let uid = request.workload.metadata.uid.as_deref().unwrap_or_default();
    claim.label(names::GANG) == request.gang_label && claim.label(names::WORKLOAD_UID) == uid
}

/// Whether Karpenter uses all reservations of a tier for claims that allow all of them.
fn are_used_together(tier: &Tier) -> bool {
    let all = &tier.reservations;
    (1..).zip(all).all(|(next, one)| all.iter().skip(next).all(|other| differ(one, other)))
}

/// Whether two reservations are of different types or zones, and none is a Capacity Block.
fn differ(one: &CapacityReservation, other: &CapacityReservation) -> bool {
    let are_stated_apart =
        |a: &Option<String>, b: &Option<String>| a.as_ref().zip(b.as_ref()).is_some_and(|(a, b)| a != b);
    [one, other].iter().all(|of| of.kind == ReservationType::Default)
        && (are_stated_apart(&one.instance_type, &other.instance_type)
            || are_stated_apart(&one.zone, &other.zone))
}

/// Holds slots to the reservations of a tier.
struct Holder<'t, 'c> {
    room: Room<'t>,
    /// Reservations of the claims that fill slots.
    filled: BTreeMap<u32, BTreeSet<String>>,
    /// Ids that nodes of the gang use.
    used: BTreeSet<String>,
    exhausted: Option<&'c BTreeSet<Offering>>,
}

impl<'t, 'c> Holder<'t, 'c> {
    fn of(plan: &Plan, cluster: &PlanSnapshot<'c>, request: &PlanRequest<'_>, tier: &'t Tier) -> Self {
        let mut room = Room::beside(cluster, request, plan, tier);
        let known: BTreeSet<String> = tier.reservations.iter().map(|one| one.id.clone()).collect();
        let own = cluster.pool_claims.each_other(cluster.pending).filter(|claim| is_own(claim, request));
        let (going, there): (Vec<_>, Vec<_>) = own.partition(|c| c.is_deleting());
        // An instance stays until its claim is gone.
        for claim in going {
            room.give(1, &ids(claim));
        }
        let there = there.into_iter().filter_map(|claim| Some((claim.slot()?, &**claim)));
        let kept: BTreeMap<u32, &NodeClaim> =
            warm::of_plan(plan, cluster.warm).into_iter().chain(there).collect();
        let of_known = |(slot, claim): (u32, &NodeClaim)| (slot, &ids(claim) & &known);
        let mut filled: BTreeMap<u32, BTreeSet<String>> = kept.into_iter().map(of_known).collect();
        filled.retain(|_, ids| !ids.is_empty());
        for ids in filled.values() {
            room.give(1, ids);
        }
        let used = filled.values().flatten().cloned().collect();
        Self { room, filled, used, exhausted: cluster.exhausted }
    }

    /// Holds identical slots to one reservation with room for all of them, or else to several one after the other.
    fn hold(&mut self, slots: Vec<&mut Slot>) {
        let Some(first) = slots.first() else { return };
        let mut fit = self.room.for_like(&first.template);
        // Slots that are planned again go where the others went, and to none that ran out lately.
        fit.sort_by_cached_key(|(one, _)| (self.is_exhausted(first, one), !self.used.contains(&one.id)));
        let nodes = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        let enough: Vec<&CapacityReservation> =
            fit.iter().filter(|(_, left)| *left >= nodes).map(|(one, _)| *one).collect();
        // Where one may be of another type or zone than the nodes, Karpenter picks it.
        let picked = if fit.iter().all(|(one, _)| is_stated(one)) { 1 } else { enough.len() };
        let ids_of_all: Arc<BTreeSet<String>> =
            Arc::new(enough.iter().take(picked).map(|one| one.id.clone()).collect());
        if !ids_of_all.is_empty() {
            self.room.give(nodes, &ids_of_all);
            for slot in slots {
                slot.held_to = Arc::clone(&ids_of_all);
            }
            return;
        }
        let mut slots = slots.into_iter();
        for (one, left) in fit {
            let id = Arc::new(BTreeSet::from([one.id.clone()]));
            for slot in slots.by_ref().take(usize::try_from(left).unwrap_or(usize::MAX)) {
                self.room.give(1, &id);
                slot.held_to = Arc::clone(&id);
            }
        }
    }

    /// Whether nodes of a slot ran out of capacity lately in a reservation.
    fn is_exhausted(&self, slot: &Slot, one: &CapacityReservation) -> bool {
        let held = Slot { held_to: Arc::new(BTreeSet::from([one.id.clone()])), ..slot.clone() };
        self.exhausted.is_some_and(|exhausted| held.is_exhausted(exhausted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{Fixture, object, patched, pod_set, pool};
    use crate::plan::{OptionSelection, Outcome, option_reports};
    use serde_json::{Value, json};

    /// A gang of this many nodes, whose only tier has these reservations.
    fn world(nodes: i32, reservations: &Value) -> Fixture {
        let mut world = Fixture::new().workload(&json!({
            "metadata": {"uid": "own"}, "spec": {"podSets": [pod_set("main", nodes)]},
        }));
        let asked = |key: &str, values: &[&str]| json!({"key": key, "operator": "In", "values": values});
        let requirements = json!([
            asked(names::CAPACITY_TYPE, &["reserved"]),
            asked(names::INSTANCE_TYPE, &["p4", "p5"]),
            asked(names::ZONE, &["a", "b"]),
        ]);
        let spec = json!({"spec": {"template": {"spec": {"requirements": requirements}}}});
        world.objects.node_pools = vec![pool("gpu", &spec)];
        world.policy.tiers = object(json!([{"name": "reserved", "reservations": reservations}]));
        world
    }

    fn stated(id: &str, nodes: u32) -> Value {
        json!({"id": id, "nodes": nodes, "instanceType": "p5", "zone": "a"})
    }

    fn pair(first: u32, second: u32) -> Value {
        json!([stated("cr-1", first), stated("cr-2", second)])
    }

    fn blocks(nodes: u32, places: [(&str, &str); 2]) -> Value {
        let block = |(id, (instance_type, zone)): (&str, (&str, &str))| {
            let kind = json!({"type": "capacity-block", "instanceType": instance_type, "zone": zone});
            patched(stated(id, nodes), &kind)
        };
        Value::Array(["cr-1", "cr-2"].into_iter().zip(places).map(block).collect())
    }

    /// The number of nodes by the ids in the requirements of their claims.
    fn named(plan: &Plan) -> BTreeMap<String, usize> {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for slot in &plan.slots {
            *found.entry(ids_of(&slot.claim())).or_default() += 1;
        }
        found
    }

    fn ids_of(claim: &NodeClaim) -> String {
        ids(claim).into_iter().collect::<Vec<_>>().join(" ")
    }

    fn counts(of: &[(&str, usize)]) -> BTreeMap<String, usize> {
        of.iter().map(|(ids, nodes)| ((*ids).to_owned(), *nodes)).collect()
    }

    /// The claim of a gang's slot, launched into a reservation.
    fn launched(gang: &str, slot: u32, id: &str) -> Arc<NodeClaim> {
        object(json!({
            "metadata": {
                "name": format!("{gang}-{slot}"), "annotations": {(names::SLOT): slot.to_string()},
                "labels": {(names::GANG): "g1", (names::WORKLOAD_UID): gang, (names::RESERVATION_ID): id},
            },
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
    }

    #[test]
    fn a_gang_that_needs_two_reservations_of_one_type_and_zone_names_one_in_each_claim() {
        let two = world(16, &pair(8, 8));
        let plan = two.provisioned();
        assert_eq!(named(&plan), counts(&[("cr-1", 8), ("cr-2", 8)]));
        let drawn = &plan.reservations("g1")[0].drawn;
        let both: BTreeMap<_, _> = ["cr-1", "cr-2"].map(|id| (BTreeSet::from([id.to_owned()]), 8)).into();
        assert_eq!(*drawn, both);
        let reports = option_reports(&two.cluster(), &two.request()).unwrap();
        assert_eq!(named(reports[0].plan.as_ref().unwrap()), named(&plan), "setu plan says the same");
        assert_eq!(named(&world(8, &pair(8, 8)).provisioned()), counts(&[("cr-1", 8)]));
        assert_eq!(named(&world(8, &pair(4, 8)).provisioned()), counts(&[("cr-2", 8)]));
    }

    #[test]
    fn each_claim_names_one_capacity_block_and_a_reservation_is_not_used_beside_one() {
        for places in [[("p5", "a"), ("p5", "a")], [("p5", "a"), ("p5", "b")], [("p5", "a"), ("p4", "b")]] {
            let plan = world(4, &blocks(2, places)).provisioned();
            assert_eq!(named(&plan), counts(&[("cr-1", 2), ("cr-2", 2)]), "{places:?}");
        }
        let mut mixed = blocks(2, [("p5", "a"), ("p4", "b")]);
        mixed[1]["type"] = json!("default");
        assert_eq!(named(&world(4, &mixed).provisioned()), counts(&[("cr-1", 2), ("cr-2", 2)]));
    }

    #[test]
    fn reservations_of_different_types_or_zones_stay_in_one_list() {
        for other in [json!({"zone": "b"}), json!({"instanceType": "p4"})] {
            let both = json!([stated("cr-1", 2), patched(stated("cr-2", 2), &other)]);
            assert_eq!(named(&world(4, &both).provisioned()), counts(&[("cr-1 cr-2", 4)]), "{other}");
            assert!(!is_needed(&world(4, &both).policy));
        }
        assert!(is_needed(&world(4, &pair(2, 2)).policy));
    }

    #[test]
    fn of_reservations_in_unknown_places_karpenter_picks_one_with_room_for_all() {
        let open = |nodes: [u32; 3]| {
            let all = ["cr-1", "cr-2", "cr-3"].into_iter().zip(nodes);
            Value::Array(all.map(|(id, nodes)| json!({"id": id, "nodes": nodes})).collect())
        };
        let named = |nodes, of| named(&world(nodes, &open(of)).provisioned());
        assert_eq!(named(4, [4, 4, 2]), counts(&[("cr-1 cr-2", 4)]));
        assert_eq!(named(6, [4, 4, 2]), counts(&[("cr-1", 4), ("cr-2", 2)]));
    }

    #[test]
    fn nodes_are_held_to_room_that_others_and_the_own_claims_leave() {
        let mut world = world(8, &pair(8, 8));
        let begun = world.provisioned();
        world.claims = (0..4).map(|slot| launched("other", slot, "cr-1")).collect();
        assert_eq!(named(&world.provisioned()), counts(&[("cr-2", 8)]));
        world.claims.push(launched("other", 9, "cr-2"));
        assert_eq!(named(&world.provisioned()), counts(&[("cr-1", 4), ("cr-2", 4)]));
        // Half of the gang is there, in the reservation that would come second now.
        world.claims = (4..8).map(|slot| launched("own", slot, "cr-2")).collect();
        world.selection = OptionSelection::Accepted { option_index: 0, plan: None, begun: &[] };
        let again = world.provisioned();
        assert_eq!(named(&again), counts(&[("cr-2", 8)]), "it goes on where it began");
        assert_eq!(again.hash(), begun.hash());
        // The node of a claim that is being deleted keeps its place.
        Arc::make_mut(&mut world.claims[0]).metadata.deletion_timestamp =
            object(json!("2026-01-01T00:00:00Z"));
        world.policy.tiers[0].reservations[1].nodes = 4;
        assert_eq!(named(&world.provisioned()), counts(&[("cr-1", 5), ("cr-2", 3)]));
    }

    #[test]
    fn what_exceeds_the_room_allows_all_and_the_gate_counts_the_room() {
        let world = world(8, &pair(4, 2));
        let reports = option_reports(&world.cluster(), &world.request()).unwrap();
        let plan = reports[0].plan.as_ref().unwrap();
        assert_eq!(named(plan), counts(&[("cr-1", 4), ("cr-1 cr-2", 2), ("cr-2", 2)]));
        let expected = "reservation cr-1, reservation cr-2 have room for 6 of 8 nodes";
        assert_eq!(world.obstacle().1, expected);
    }

    #[test]
    fn a_reservation_that_ran_out_lately_comes_last() {
        let mut world = world(4, &pair(4, 4));
        world.exhausted = world.provisioned().offerings();
        assert_eq!(named(&world.provisioned()), counts(&[("cr-2", 4)]));
    }

    #[test]
    fn claims_that_name_one_reservation_are_like_the_plan_that_allows_all() {
        let mut world = world(4, &pair(2, 2));
        let plan = world.provisioned();
        let begun: Vec<NodeClaim> = plan
            .held_groups()
            .map(|(slot, _)| {
                let mut claim = slot.claim().into_owned();
                claim
                    .metadata
                    .labels
                    .get_or_insert_default()
                    .insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
                claim
            })
            .collect();
        assert_eq!(begun.iter().map(ids_of).collect::<Vec<_>>(), ["cr-1", "cr-2"]);
        assert!(plan.has_like(&begun));
        let mut other_types = begun.clone();
        for claim in &mut other_types {
            let mut asked = claim.spec.requirements.iter_mut();
            asked.find(|asked| asked.key == names::INSTANCE_TYPE).unwrap().values.push("p6".to_owned());
        }
        let retyped = plan.clone().with_types_of(&other_types, false).unwrap();
        assert_eq!(named(&retyped), named(&plan), "the others keep their reservation");
        world.selection = OptionSelection::Like { begun: Box::leak(begun.into_boxed_slice()), plan: None };
        let Outcome::Provision(again) = world.plan() else { panic!("its nodes are as before") };
        assert_eq!(again.hash(), plan.hash());
    }

    #[test]
    fn a_kept_node_is_taken_over_in_the_reservation_that_it_is_in() {
        let plan = world(4, &pair(2, 2)).provisioned();
        let kept: Vec<NodeClaim> = ["cr-2", "cr-3"]
            .into_iter()
            .map(|id| {
                let mut claim = (*plan.slots[0].template).clone();
                claim.metadata.name = Some(id.to_owned());
                claim
                    .metadata
                    .labels
                    .get_or_insert_default()
                    .insert(names::RESERVATION_ID.to_owned(), id.to_owned());
                claim
            })
            .collect();
        let taken = warm::of_plan(&plan, &kept);
        assert_eq!(
            taken.values().map(|claim| ids_of(claim)).collect::<Vec<_>>(),
            ["cr-2"],
            "cr-3 is of another tier"
        );
        let world = world(4, &pair(2, 2));
        let cluster = PlanSnapshot { warm: &kept, ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        let reused = plan.slots.iter().find(|slot| plan.reused.contains(&slot.index)).unwrap();
        assert_eq!(ids_of(&reused.claim()), "cr-2");
        assert_eq!(named(&plan), counts(&[("cr-1", 2), ("cr-2", 2)]));
        let wanted: Vec<_> = plan.slots.iter().map(|slot| slot.claim().into_owned()).collect();
        assert_eq!(warm::matches((0..).zip(&wanted), &kept).len(), 1);
    }
}
