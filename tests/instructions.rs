//! Work whose instructions `.ci/instructions` counts with callgrind and compares with `tests/instructions.json`.
//!
//! Each test does one piece of work in a function with the test's name after `counted_`; only this function is counted.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "../benches/pure/world.rs"]
mod world;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use setu::api::parameters::Pinning;
use setu::gang::snapshot::expectation::{ClaimEvent, Expectation};
use setu::gang::{
    AdmissionId, AdmissionPhase, ClaimView, Event, Failure, FailureClass, Health, Journal, OptionPosition,
    Reservation, Rules, Snapshot, State, Step, WaitsFor, decide, step,
};
use setu::plan::Outcome;
use setu::plan::pod_set_labels::PodSetLabels;
use setu::policy::Policy;
use world::World;

/// Nodes of the gang.
const NODES: u32 = 256;

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn admission() -> AdmissionId {
    AdmissionId("1-0-a".into())
}

fn planned(index: u32) -> Event {
    Event::Planned {
        slots: NODES,
        plan: "0123456789abcdef".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: OptionPosition { tier: index, index, count: 2 },
    }
}

/// The journal after these events, a minute apart.
fn lived(events: &[Event], policy: &Policy) -> Journal {
    let new = Journal::new("uid", admission(), start(), None);
    events.iter().zip(0..).fold(new, |journal, (event, minute)| {
        decide(&journal, event, &Rules::new(policy, start() + SignedDuration::from_mins(minute), 0.5)).journal
    })
}

/// A gang that waits for its nodes.
fn waiting(policy: &Policy) -> Journal {
    let reserved = Event::Reserved { admission: admission(), phase: AdmissionPhase::Reserved };
    lived(&[reserved, planned(0), Event::ClaimsExist], policy)
}

#[inline(never)]
fn counted_a_life_of_two_attempts(events: &[Event], policy: &Policy) -> Journal {
    lived(events, policy)
}

#[test]
fn a_life_of_two_attempts() {
    let events = [
        Event::Reserved { admission: admission(), phase: AdmissionPhase::Reserved },
        planned(0),
        Event::ClaimsExist,
        Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "no capacity left")),
        Event::ClaimsGone,
        Event::WaitOver,
        planned(1),
        Event::ClaimsExist,
        Event::NodesReady,
    ];
    let journal = counted_a_life_of_two_attempts(&events, &Policy::default());
    assert!(matches!(journal.state, State::Approved { .. }), "{:?}", journal.state);
}

#[inline(never)]
fn counted_a_plan_of_256_nodes(world: &World) -> Outcome {
    world.plan()
}

#[test]
fn a_plan_of_256_nodes() {
    let unknown = json!({"group": "g", "kind": "K", "name": "default"});
    let world = World::new(NODES, &json!({"cpu": "4", "nvidia.com/gpu": "1"}), &unknown, &json!([]));
    let made = counted_a_plan_of_256_nodes(&world);
    assert!(matches!(&made, Outcome::Provision(plan) if plan.nodes() == NODES), "{made:?}");
}

#[inline(never)]
fn counted_a_step_of_256_nodes(journal: &Journal, snapshot: &Snapshot<'_>) -> Step {
    step(journal, snapshot)
}

#[test]
fn a_step_of_256_nodes() {
    let policy = Policy::default();
    let journal = waiting(&policy);
    let reservation = Reservation::Held { admission: admission(), phase: AdmissionPhase::Reserved };
    let claims: Vec<ClaimView> = (0..NODES)
        .map(|slot| {
            let coming = Health::Coming { waits_for: WaitsFor::Node, until: None };
            let health = if slot == 0 { coming } else { Health::Ready { since: start() } };
            ClaimView::new(&format!("claim-{slot}"), 1, slot, health)
        })
        .collect();
    let now = start() + SignedDuration::from_mins(4);
    let snapshot = Snapshot { claims: &claims, ..Snapshot::of(now, &reservation, &policy) };
    let next = counted_a_step_of_256_nodes(&journal, &snapshot);
    assert!(matches!(next, Step::Still), "{next:?}");
}

#[inline(never)]
fn counted_an_event_of_one_of_256_nodes(expected: &mut Expectation) -> bool {
    expected.takes("claim-77", ClaimEvent::Ready)
}

#[test]
fn an_event_of_one_of_256_nodes() {
    let names = (0..NODES).map(|slot| format!("claim-{slot}")).collect();
    assert!(!counted_an_event_of_one_of_256_nodes(&mut Expectation::Ready(names)));
}
