//! Capacity reservations of the plan's tier: whether they stay open while the gang may run, and have room for its nodes.

use super::{Gate, GateAnswer, GateReport};
use crate::api::parameters::{CapacityReservation, Tier};
use crate::names;
use crate::plan::reservations::Room;
use crate::plan::{ObstacleReason, Plan, PlanRequest, PlanSnapshot, Slot, lifetime, tiers};
use crate::words::{counted, few, to_the_second};
use jiff::Timestamp;
use std::collections::BTreeSet;

/// One report on their times and one on their room, if the tier has any.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: &Plan) -> Vec<GateReport> {
    let tiers = tiers::of_policy(request.policy);
    let mut tiers = tiers.iter().skip(usize::try_from(plan.tier).unwrap_or(usize::MAX));
    let Some(tier) = tiers.next().filter(|tier| !tier.reservations.is_empty()) else { return Vec::new() };
    let falls_on = request.policy.mixed_tiers && tiers.next().is_some();
    let report = || GateReport::of(Gate::Reservations, &tier.name, ObstacleReason::ReservationNotOpen);
    let next = if falls_on { Next::Tier } else { Next::None };
    vec![time(report(), cluster, request, tier), room(report(), (cluster, request), plan, (tier, next))]
}

/// Where nodes come from if the reservations have no room for them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// From the next tier.
    Tier,
    /// From nowhere.
    None,
}

/// Whether all reservations are open and stay open until the gang has ended.
fn time(
    report: GateReport,
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    tier: &Tier,
) -> GateReport {
    let (now, limit) = (cluster.now, request.policy.deadlines.gang);
    let times = |time: fn(&CapacityReservation) -> Option<Timestamp>| {
        tier.reservations.iter().filter_map(move |one| Some((one, time(one)?)))
    };
    let later = times(|one| one.opens).filter(|(_, opens)| *opens > now).max_by_key(|(_, opens)| *opens);
    let first_to_end = times(CapacityReservation::ends).min_by_key(|(_, ends)| *ends);
    let begins = later.map_or(now, |(_, opens)| opens);
    let closes_first = first_to_end.and_then(|(one, ends)| {
        let is_over = ends <= now;
        let over = is_over.then(|| format!("which is over; take it out of tier {}", tier.name));
        Some((one, over.or_else(|| too_short(request, begins, ends))?))
    });
    if let Some((one, why)) = closes_first {
        let message = format!("{one} {}, {why}", one.closing().unwrap_or_default());
        return report.answer(GateAnswer::Refuse, message).because(ObstacleReason::ReservationClosesFirst);
    }
    if let Some((one, opens)) = later {
        // Hold the quota no longer than for any other gate.
        let soon = now.checked_add(limit.signed()).is_ok_and(|by| opens <= by);
        let (answer, reason) = if soon {
            (GateAnswer::Wait, ObstacleReason::ReservationNotOpen)
        } else {
            (GateAnswer::Refuse, ObstacleReason::ReservationOpensLater)
        };
        let message = format!("{one} opens at {}", to_the_second(opens));
        return report.answer(answer, message).because(reason).until(Some(opens));
    }
    let Some((one, _)) = first_to_end else {
        return report.allow(format!("{} open for good", are(&tier.reservations)));
    };
    let closing = one.closing().unwrap_or_default();
    if lifetime::of_job(request.workload).is_some() {
        return report.allow(format!("{one} {closing}, after the gang"));
    }
    let message = format!(
        "{one} {closing}, and nothing bounds how long the gang runs: what runs then loses its nodes; label the Job with {}",
        names::MAX_EXECUTION
    );
    report.answer(GateAnswer::Warn, message)
}

/// Why the time between these is too short for the gang, if it is.
fn too_short(request: &PlanRequest<'_>, begins: Timestamp, ends: Timestamp) -> Option<String> {
    let limit = request.policy.deadlines.gang;
    let runs = lifetime::of_job(request.workload);
    let needed = limit.signed().saturating_add(runs.unwrap_or_default().signed());
    begins.checked_add(needed).is_ok_and(|end| end > ends).then(|| {
        let runs = runs.map_or_else(String::new, |runs| format!(" and {runs} to run"));
        format!("but the gang may need {limit} to start{runs}")
    })
}

/// Whether the reservations have room for all nodes that draw on them.
fn room(
    report: GateReport,
    (cluster, request): (&PlanSnapshot<'_>, &PlanRequest<'_>),
    plan: &Plan,
    (tier, next): (&Tier, Next),
) -> GateReport {
    let known: BTreeSet<String> = tier.reservations.iter().map(|one| one.id.clone()).collect();
    let total = Room::of(tier).free();
    let mut room = Room::beside(cluster, request, plan, tier);
    let free = room.free();
    let (mut needed, mut placed) = (0_u32, 0_u32);
    let mut drawing: Vec<(&Slot, u32)> = plan.held_groups().collect();
    drawing.retain(|(slot, _)| !slot.reservation_ids().is_disjoint(&known));
    // Slots that are held to none get what the others leave.
    drawing.sort_by_key(|(slot, _)| slot.held_to.is_empty());
    for (slot, nodes) in drawing {
        needed = needed.saturating_add(nodes);
        placed = placed.saturating_add(room.give_like(nodes, &slot.claim()));
    }
    let all: Vec<String> = tier.reservations.iter().map(ToString::to_string).collect();
    let have = if all.len() == 1 { "has" } else { "have" };
    let names = few(all.iter().map(String::as_str));
    let figures = format!("{names} {have} room for {placed} of {}", counted(needed, "node"));
    if placed == needed {
        return report.allow(figures);
    }
    if next == Next::Tier && placed > 0 {
        let message = format!("{figures}; the next tier is asked for the others");
        return report.answer(GateAnswer::Warn, message).because(ObstacleReason::ReservationFull);
    }
    if needed > total {
        return report.answer(GateAnswer::Refuse, figures).because(ObstacleReason::ReservationTooSmall);
    }
    let used = total.saturating_sub(free);
    let used = if used == 0 { String::new() } else { format!(", as {used} of {total} are in use") };
    report.answer(GateAnswer::Wait, figures + &used).because(ObstacleReason::ReservationFull)
}

/// Their names with the verb.
fn are(all: &[CapacityReservation]) -> String {
    let verb = if all.len() == 1 { "is" } else { "are" };
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("{} {verb}", few(all.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::NodeClaim;
    use crate::plan::fixtures::{Fixture, object, patched, pod_set, pool};
    use crate::plan::{OptionSelection, Outcome, PendingNodes, option_reports};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    /// A gang of `nodes` nodes at midnight, with these reservations in its first tier and on-demand in its second.
    fn world(nodes: i64, reservations: &Value) -> Fixture {
        let mut world = Fixture::new().workload(&json!({"spec": {"podSets": [pod_set("main", 1)]}}));
        world.workload.spec.pod_sets[0].count = nodes.try_into().unwrap();
        let kinds =
            json!({"key": names::CAPACITY_TYPE, "operator": "In", "values": ["reserved", "on-demand"]});
        let types = json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5", "p4"]});
        let zones = json!({"key": names::ZONE, "operator": "In", "values": ["a", "b"]});
        let pools = json!({"spec": {"template": {"spec": {"requirements": [kinds, types, zones]}}}});
        world.objects.node_pools = vec![pool("gpu", &pools)];
        let on_demand = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]);
        world.policy.tiers = object(json!([
            {"name": "reserved", "reservations": reservations},
            {"name": "bought", "requirements": on_demand},
        ]));
        world.now = "2026-12-01T00:00:00Z".parse().unwrap();
        world
    }

    fn alone(nodes: i64, reservations: &Value) -> Fixture {
        let mut world = world(nodes, reservations);
        world.policy.tiers.pop();
        world
    }

    fn runs(mut world: Fixture, hours: u32) -> Fixture {
        world.workload.spec.maximum_execution_time_seconds = Some(hours * 3_600);
        world
    }

    fn claim(uid: &str, change: &Value) -> Arc<NodeClaim> {
        object(patched(
            json!({
                "metadata": {"name": uid, "labels": {(names::GANG): uid, (names::WORKLOAD_UID): uid}},
                "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
            }),
            change,
        ))
    }

    fn launched(id: &str) -> Arc<NodeClaim> {
        claim("other", &json!({"metadata": {"labels": {(names::RESERVATION_ID): id}}}))
    }

    fn required(claim: &NodeClaim, key: &str) -> Vec<String> {
        claim.spec.requirements.iter().filter(|r| r.key == key).flat_map(|r| r.values.clone()).collect()
    }

    #[test]
    fn nodes_ask_for_reserved_capacity_of_the_ids_types_and_zones_that_the_tier_names() {
        let of =
            |second: &Value| json!([{"id": "cr-1", "nodes": 2, "instanceType": "p5", "zone": "a"}, second]);
        let both = world(2, &of(&json!({"id": "cr-2", "nodes": 2, "instanceType": "p4", "zone": "a"})));
        let plan = both.provisioned();
        let claim = &plan.slots[0].template;
        assert_eq!(required(claim, names::CAPACITY_TYPE), ["reserved"]);
        assert_eq!(required(claim, names::RESERVATION_ID), ["cr-1", "cr-2"]);
        assert_eq!(required(claim, names::INSTANCE_TYPE), ["p4", "p5"]);
        assert_eq!(required(claim, names::ZONE), ["a"]);
        assert!(!claim.metadata.labels.as_ref().unwrap().contains_key(names::RESERVATION_ID));
        let open = world(2, &of(&json!({"id": "cr-2", "nodes": 2}))).provisioned();
        assert_eq!(required(&open.slots[0].template, names::ZONE), ["a", "b"]);
    }

    #[test]
    fn a_node_pool_without_reserved_capacity_cannot_serve_reservations() {
        let mut world = alone(2, &json!([{"id": "cr-1", "nodes": 2}]));
        let kinds = json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]);
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": kinds}}}}))];
        let expected = "tier reserved, whose nodes come from reservations, asks for karpenter.sh/capacity-type [reserved], but \
                        NodePool gpu offers [on-demand]";
        assert_eq!(world.obstacle().1, expected);
    }

    #[test]
    fn a_reservation_with_room_for_half_of_the_gang_is_passed_over_with_the_figures() {
        let eight = json!([{"id": "cr-1", "nodes": 8}]);
        let mut world = world(8, &eight);
        assert_eq!(&*world.provisioned().option_name, "tier reserved");
        world.claims = (0..4).map(|_| launched("cr-1")).collect();
        world.claims.push(launched("cr-2"));
        let plan = world.provisioned();
        let expected =
            "tier reserved is passed over: reservation cr-1 has room for 4 of 8 nodes, as 4 of 8 are in use";
        assert_eq!((&*plan.option_name, plan.notes), ("tier bought", vec![expected.to_owned()]));
        world.policy.tiers.pop();
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::ReservationFull);
        assert!(expected.ends_with(&message), "{message}");
        let small = alone(9, &eight);
        let Outcome::Refuse(obstacle) = small.plan() else { panic!("it can never have room") };
        assert_eq!(obstacle.message, "reservation cr-1 has room for 8 of 9 nodes");
    }

    #[test]
    fn mixed_tiers_use_the_free_room_and_warn() {
        let mut world = world(8, &json!([{"id": "cr-1", "nodes": 4}]));
        world.policy.mixed_tiers = true;
        let plan = world.provisioned();
        let expected = "reservation cr-1 has room for 4 of 8 nodes; the next tier is asked for the others";
        assert_eq!((&*plan.option_name, plan.notes), ("tier reserved", vec![expected.to_owned()]));
        world.claims = (0..4).map(|_| launched("cr-1")).collect();
        assert_eq!(&*world.provisioned().option_name, "tier bought");
        world.policy.tiers.pop();
        assert_eq!(world.obstacle().0, ObstacleReason::ReservationTooSmall);
    }

    #[test]
    fn claims_in_flight_already_take_room_in_a_reservation() {
        let two = json!([{"id": "cr-1", "nodes": 2}, {"id": "cr-2", "nodes": 2}]);
        let asks = |ids: &Value| {
            let ids = json!([{"key": names::RESERVATION_ID, "operator": "In", "values": ids}]);
            claim("other", &json!({"spec": {"requirements": ids}}))
        };
        let mut world = alone(4, &two);
        world.claims = vec![asks(&json!(["cr-3"]))];
        assert_eq!(world.provisioned().nodes(), 4);
        let launched =
            json!({"type": "Launched", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let mut over = asks(&json!(["cr-1"]));
        Arc::make_mut(&mut over).status = Some(object(json!({"conditions": [launched]})));
        world.claims.push(over);
        assert_eq!(world.provisioned().nodes(), 4, "it was in one that is over");
        world.claims.push(asks(&json!(["cr-1", "cr-2"])));
        assert!(
            world.obstacle().1.starts_with("reservation cr-1, reservation cr-2 have room for 3 of 4 nodes")
        );
        world.claims.clear();
        let plan = world.provisioned();
        let other = PendingNodes { gang: "g2".to_owned(), ..plan.reservations("g2").remove(0) };
        let each = |id: &str| ([id.to_owned()].into(), 2);
        assert_eq!(other.drawn, BTreeMap::from([each("cr-1"), each("cr-2")]));
        world.pending = vec![other];
        assert!(world.obstacle().1.contains("have room for 0 of 4 nodes, as 4 of 4 are in use"));
    }

    #[test]
    fn own_nodes_of_the_gang_are_not_counted_twice() {
        let mut world = alone(2, &json!([{"id": "cr-1", "nodes": 2}]));
        world.workload.metadata.uid = Some("own".to_owned());
        let own = json!({"metadata": {"labels": {(names::GANG): "g1", (names::RESERVATION_ID): "cr-1"}}});
        world.claims = vec![claim("own", &own)];
        assert_eq!(world.provisioned().nodes(), 2);
        world.claims = vec![launched("cr-1")];
        assert_eq!(world.obstacle().0, ObstacleReason::ReservationFull);
    }

    #[test]
    fn a_reservation_in_another_zone_has_no_room_for_the_nodes() {
        let zoned = json!([{"id": "cr-1", "nodes": 2, "zone": "a"}, {"id": "cr-2", "nodes": 2, "zone": "b"}]);
        let mut world = alone(3, &zoned);
        assert_eq!(world.provisioned().nodes(), 3);
        world.policy.colocation = Some(crate::policy::SharedLabel {
            topology_key: names::ZONE.to_owned(),
            mode: crate::api::parameters::ColocationMode::Required,
        });
        assert!(world.obstacle().1.contains("have room for 2 of 3 nodes"), "{}", world.obstacle().1);
    }

    #[test]
    fn before_a_reservation_opens_the_gang_takes_the_next_tier_or_waits() {
        let opening = |at: &str| json!([{"id": "cr-1", "type": "capacity-block", "nodes": 2, "opens": at}]);
        let soon = "2026-12-01T00:15:00Z";
        assert_eq!(&*world(2, &opening(soon)).provisioned().option_name, "tier bought");
        let mut world = alone(2, &opening(soon));
        let Outcome::Wait(obstacle) = world.plan() else {
            panic!("it opens within the time that quota is held")
        };
        assert_eq!(
            (obstacle.reason, obstacle.until),
            (ObstacleReason::ReservationNotOpen, soon.parse().ok())
        );
        assert_eq!(obstacle.message, "Capacity Block cr-1 opens at 2026-12-01T00:15:00Z");
        world.now = soon.parse().unwrap();
        assert_eq!(world.provisioned().nodes(), 2);
        let late: Timestamp = "2026-12-01T00:15:01Z".parse().unwrap();
        let again = Timestamp::UNIX_EPOCH;
        let outcome = alone(2, &opening(&late.to_string())).plan();
        assert_eq!(outcome.refused_until(again), late);
        let Outcome::Refuse(obstacle) = outcome else { panic!("quota is not held for so long") };
        assert_eq!(obstacle.reason, ObstacleReason::ReservationOpensLater);
        let other = crate::plan::Obstacle { reason: ObstacleReason::TooManyNodes, ..obstacle };
        assert_eq!(Outcome::Refuse(other).refused_until(again), again);
    }

    #[test]
    fn a_reservation_that_ends_before_the_gang_can_is_passed_over() {
        let closing = |kind: &str| json!([{"id": "cr-1", "type": kind, "nodes": 2, "opens": "2026-12-01T00:10:00Z", "closes": "2026-12-01T04:04:00Z"}]);
        // It may start after ten minutes and take fifteen to start. A Capacity Block reclaims its nodes 40 minutes before its
        // end.
        let option = |kind: &str, hours| runs(world(2, &closing(kind)), hours).provisioned();
        for (kind, hours, note) in [
            (
                "default",
                4,
                "reservation cr-1 closes at 2026-12-01T04:04:00Z, but the gang may need 15m to start and 4h to run",
            ),
            (
                "capacity-block",
                3,
                "Capacity Block cr-1 closes at 2026-12-01T04:04:00Z and gives up its nodes at 2026-12-01T03:24:00Z, but the gang may \
                 need 15m to start and 3h to run",
            ),
        ] {
            let plan = option(kind, hours);
            let expected = format!("tier reserved is passed over: {note}");
            assert_eq!((&*plan.option_name, plan.notes), ("tier bought", vec![expected]));
            let mut open = runs(alone(2, &closing(kind)), hours - 1);
            assert_eq!(open.obstacle().0, ObstacleReason::ReservationNotOpen);
            open.now = "2026-12-01T00:10:00Z".parse().unwrap();
            assert_eq!(
                (&*open.provisioned().option_name, open.provisioned().notes),
                ("tier reserved", vec![])
            );
        }
    }

    #[test]
    fn a_run_time_bound_of_the_pods_bounds_the_gang() {
        let bounded = |hours: i64| {
            let closing = json!([{"id": "cr-1", "nodes": 2, "closes": "2026-12-01T04:00:00Z"}]);
            let mut world = alone(2, &closing);
            world.workload.spec.pod_sets[0].template.spec.active_deadline_seconds = Some(hours * 3_600);
            world
        };
        let (reason, message) = bounded(4).obstacle();
        assert_eq!(reason, ObstacleReason::ReservationClosesFirst);
        assert!(message.ends_with("may need 15m to start and 4h to run"), "{message}");
        assert!(bounded(3).provisioned().notes.is_empty());
    }

    #[test]
    fn an_unbounded_gang_starts_with_a_warning_and_no_gang_starts_after_the_end() {
        let mut world = alone(2, &json!([{"id": "cr-1", "nodes": 2, "closes": "2026-12-01T04:00:00Z"}]));
        let note = "reservation cr-1 closes at 2026-12-01T04:00:00Z, and nothing bounds how long the gang runs: what runs then \
                    loses its nodes; label the Job with kueue.x-k8s.io/max-exec-time-seconds";
        assert_eq!(world.provisioned().notes, [note]);
        world.now = "2026-12-01T03:50:00Z".parse().unwrap();
        assert!(world.obstacle().1.ends_with("the gang may need 15m to start"));
        world.now = "2026-12-01T04:00:00Z".parse().unwrap();
        let over =
            "reservation cr-1 closes at 2026-12-01T04:00:00Z, which is over; take it out of tier reserved";
        assert_eq!(world.obstacle(), (ObstacleReason::ReservationClosesFirst, over.to_owned()));
    }

    #[test]
    fn an_accepted_gang_continues_when_its_reservation_has_no_room_or_time_left() {
        let mut world = alone(2, &json!([{"id": "cr-1", "nodes": 2, "closes": "2026-12-01T04:00:00Z"}]));
        let first = world.provisioned();
        world.now = "2026-12-01T03:59:00Z".parse().unwrap();
        world.claims = vec![launched("cr-1")];
        world.selection = OptionSelection::Accepted { option_index: 0, plan: None, begun: &[] };
        assert_eq!(world.provisioned().hash(), first.hash());
    }

    #[test]
    fn only_a_tier_with_reservations_gets_the_two_reports() {
        let world = world(2, &json!([{"id": "cr-1", "nodes": 2}]));
        let options = option_reports(&world.cluster(), &world.request()).unwrap();
        let in_words = |index: usize| -> Vec<&str> {
            let reports = options[index].reports.iter().filter(|r| r.gate == Gate::Reservations);
            reports.map(|r| r.message.as_str()).collect()
        };
        assert_eq!(
            in_words(0),
            ["reservation cr-1 is open for good", "reservation cr-1 has room for 2 of 2 nodes"]
        );
        assert!(in_words(1).is_empty());
    }
}
