//! The reaction to a lost node: while the gang waits, once it is ready, and after Kueue has admitted it.
//! Pure: only journals, snapshots and decisions.

use crate::plans::plan;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;
use setu::api::NodeClaim;
use setu::api::parameters::{OnNodeLost, Pinning};
use setu::api::workload::{CheckState, Verdict};
use setu::gang::report::message::check_message;
use setu::gang::report::verdict::desired;
use setu::gang::snapshot::loss::Loss;
use setu::gang::snapshot::waits::NodeProblem;
use setu::gang::step::approved::failure_before_admission;
use setu::gang::{
    AdmissionId, AdmissionPhase, Attempt, ClaimView, Effect, Ending, Event, Failure, FailureClass, Freshness,
    Health, Journal, Nodes, Observation, OptionPosition, Reservation, Rules, Snapshot, State, StateName,
    Then, WaitsFor, decide, observe, wake_at,
};
use setu::plan::pod_set_labels::PodSetLabels;
use setu::plan::{Obstacle, ObstacleReason, Outcome, Plan};
use setu::policy::Policy;
use std::collections::BTreeMap;
use std::sync::Arc;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// A gang of two nodes, as seen at one instant.
struct TwoNodeGang {
    journal: Journal,
    policy: Policy,
    phase: AdmissionPhase,
    /// Whether another slice of its Job has replaced it.
    replaced: bool,
    reported: Verdict,
    plan: Outcome,
    claims: Vec<ClaimView>,
    losses: BTreeMap<u32, Loss>,
    freshness: Freshness,
    now: i64,
}

fn ready(slot: u32, generation: u32) -> ClaimView {
    ClaimView {
        generation,
        ..ClaimView::new(&format!("c{slot}-{generation}"), 1, slot, Health::Ready { since: at(0) })
    }
}

fn going(slot: u32, generation: u32) -> ClaimView {
    ClaimView { deleting: true, ..ready(slot, generation) }
}

fn lost(reason: FailureClass) -> Failure {
    Failure::new(reason, "the node of slot 1 went away")
}

impl TwoNodeGang {
    /// Slot 1 was interrupted and its claim is being deleted, on a quorum read.
    fn new(state: State, phase: AdmissionPhase) -> Self {
        let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), at(0), Some(at(900)));
        journal.state = state;
        journal.seq = 3;
        journal.memory.attempt = 1;
        journal.memory.slots = 2;
        journal.memory.plan = Some(plan(2).hash());
        journal.memory.pinning = Pinning::SelectorAndTaint;
        Self {
            journal,
            policy: Policy::default(),
            phase,
            replaced: false,
            reported: if phase == AdmissionPhase::Reserved { Verdict::Pending } else { Verdict::Ready },
            plan: Outcome::Provision(plan(2)),
            claims: vec![ready(0, 0), going(1, 0)],
            losses: BTreeMap::from([(1, Loss::Failed(lost(FailureClass::Interrupted)))]),
            freshness: Freshness::Quorum,
            now: 10,
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Snapshot<'_>) -> T) -> T {
        let held = Reservation::Held { admission: AdmissionId("1-0-a".into()), phase: self.phase };
        let reservation = if self.replaced { Reservation::Leaving(Ending::Replaced) } else { held };
        act(&Snapshot {
            reported: self.reported,
            plan: Some(&self.plan),
            claims: &self.claims,
            losses: &self.losses,
            freshness: self.freshness,
            ..Snapshot::of(at(self.now), &reservation, &self.policy)
        })
    }

    fn read(&self) -> Observation {
        self.with(|snapshot| observe(&self.journal, snapshot))
    }

    fn events(&self) -> Vec<Event> {
        match self.read() {
            Observation::Events(events) => events,
            Observation::NeedsQuorumRead | Observation::NeedsPlanRead => panic!("looks again"),
        }
    }

    /// Applies the first event. Returns the slots to create.
    fn step(&mut self) -> Vec<u32> {
        let mut created = Vec::new();
        let rules = Rules::new(&self.policy, at(self.now), 0.0);
        for event in self.events() {
            let decision = decide(&self.journal, &event, &rules);
            if decision.journal.memory.generation > self.journal.memory.generation {
                // No slot has lost a claim of this generation yet.
                self.losses.clear();
            }
            self.journal = decision.journal;
            for effect in decision.effects {
                match effect {
                    Effect::CreateClaims(slots) => created.extend(slots),
                    Effect::DeleteClaims(names) => panic!("deletes {names:?}"),
                }
            }
        }
        created
    }

    /// Interrupts slot 1 once more.
    fn loses(&mut self, claim: ClaimView) {
        self.claims = vec![ready(0, 0), claim];
        self.losses = BTreeMap::from([(1, Loss::Failed(lost(FailureClass::Interrupted)))]);
    }

    fn state(&self) -> StateName {
        self.journal.state.name()
    }
}

#[test]
fn a_claim_known_to_be_gone_is_not_recreated_under_its_name() {
    let mut seen = TwoNodeGang::new(State::Provisioning, AdmissionPhase::Reserved);
    seen.journal.memory.slots = 3;
    seen.plan = Outcome::Provision(plan(3));
    seen.journal.memory.plan = Some(plan(3).hash());
    seen.claims = vec![ready(0, 0)];
    let shortage = Failure::new(FailureClass::InsufficientCapacity, "none left");
    seen.losses = BTreeMap::from([(1, Loss::Failed(shortage.clone()))]);
    assert_eq!(seen.events(), [Event::Failed(shortage)], "whatever else is still to be created");
    // The reason for its loss may become known within the next seconds.
    seen.losses = BTreeMap::from([(1, Loss::Unclear(at(20)))]);
    assert_eq!(seen.events(), [Event::ClaimsMissing(vec![2])]);
    seen.claims.push(ready(2, 0));
    assert_eq!(seen.events(), [Event::ClaimsExist]);
    seen.losses.clear();
    assert_eq!(seen.events(), [Event::ClaimsMissing(vec![1])], "nobody knows of one");
}

#[test]
fn a_lost_node_is_replaced_under_a_new_name_and_the_attempt_continues() {
    for state in [State::WaitingReady, State::Approved { nodes: Nodes::Held }] {
        let mut seen = TwoNodeGang::new(state, AdmissionPhase::Reserved);
        assert_eq!(seen.step(), Vec::<u32>::new());
        let memory = &seen.journal.memory;
        assert_eq!(seen.state(), StateName::Provisioning);
        assert_eq!((memory.attempt, memory.generation, memory.slots), (1, 1, 2));
        assert_eq!(memory.pinning, Pinning::SelectorAndTaint);
        assert_eq!(memory.last_failure.as_ref().unwrap().reason, FailureClass::Interrupted);
        // Its replacement does not wait until the old claim is gone.
        assert_eq!(seen.step(), [1]);
        seen.claims.push(ClaimView {
            health: Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: None },
            ..ready(1, 1)
        });
        seen.losses.clear();
        seen.step();
        assert_eq!(seen.state(), StateName::WaitingReady);
        assert_eq!(seen.events(), []);
        seen.claims.pop();
        seen.claims.push(ready(1, 1));
        seen.step();
        assert_eq!(seen.state(), StateName::Approved);
    }
}

/// A gang with this policy and number of tiers. The first tier has no capacity for slot 1.
fn short(state: State, mixed_tiers: bool, tiers: u32) -> TwoNodeGang {
    let mut seen = TwoNodeGang::new(state, AdmissionPhase::Reserved);
    seen.policy.mixed_tiers = mixed_tiers;
    seen.journal.memory.option.count = tiers;
    seen.losses = BTreeMap::from([(1, Loss::Failed(lost(FailureClass::InsufficientCapacity)))]);
    seen
}

#[test]
fn with_mixed_tiers_only_the_missing_nodes_come_from_the_next_tier() {
    for state in [State::Provisioning, State::WaitingReady] {
        let mut seen = short(state, true, 2);
        seen.freshness = Freshness::Cached;
        assert_eq!(
            seen.read(),
            Observation::NeedsQuorumRead,
            "that a claim is gone counts in a quorum read alone"
        );
        seen.freshness = Freshness::Quorum;
        assert_eq!(seen.step(), Vec::<u32>::new());
        let memory = &seen.journal.memory;
        assert_eq!(seen.state(), StateName::Provisioning);
        assert_eq!((memory.attempt, memory.generation, memory.option.index, memory.tries), (1, 1, 0, 0));
        seen.plan = Outcome::Provision(Plan { tier: 1, option_index: 1, option_count: 2, ..plan(2) });
        assert_eq!(seen.step(), Vec::<u32>::new());
        assert_eq!(seen.journal.memory.option, OptionPosition { tier: 1, index: 1, count: 2 });
        assert_eq!(seen.step(), [1]);
        seen.claims.push(ready(1, 1));
        seen.losses.clear();
        seen.step();
        assert_eq!(seen.state(), StateName::WaitingReady);
        seen.step();
        assert_eq!(seen.state(), StateName::Approved);
    }
}

#[test]
fn with_mixed_tiers_a_second_shortage_is_served_by_the_same_later_tier() {
    let mut seen = short(State::WaitingReady, true, 2);
    seen.step();
    seen.plan = Outcome::Provision(Plan { tier: 1, option_index: 1, option_count: 2, ..plan(2) });
    seen.step();
    assert_eq!(seen.step(), [1]);
    seen.claims.push(ready(1, 1));
    // Slot 0 is still on the first tier, and is lost later.
    seen.claims.retain(|c| c.slot == 1);
    seen.losses = BTreeMap::from([(0, Loss::Failed(lost(FailureClass::InsufficientCapacity)))]);
    seen.step();
    let memory = &seen.journal.memory;
    assert_eq!((seen.state(), memory.attempt, memory.option.index), (StateName::Provisioning, 1, 1));
    assert_eq!(seen.step(), [0]);
    // It waits for another gang that tries that tier first.
    seen.losses.clear();
    seen.plan = Outcome::Wait(Obstacle::new(ObstacleReason::OthersFirst, "another gang tries there first"));
    assert_eq!(seen.step(), [0_u32; 0]);
    assert_eq!(seen.state(), StateName::Provisioning);
    // If no tier has capacity, the attempt ends.
    let none = Obstacle::new(ObstacleReason::CapacityShort, "nothing is to be had");
    seen.plan = Outcome::Wait(none);
    seen.step();
    assert_eq!(seen.state(), StateName::RollingBack);
    let failure = seen.journal.memory.last_failure.as_ref().unwrap();
    assert_eq!(failure.reason, FailureClass::InsufficientCapacity);
}

#[test]
fn with_mixed_tiers_an_unexplained_loss_is_not_retried_on_the_same_tier() {
    let mut seen = short(State::WaitingReady, true, 2);
    let unknown = || BTreeMap::from([(1, Loss::Failed(lost(FailureClass::Unknown)))]);
    seen.losses = unknown();
    seen.step();
    let memory = &seen.journal.memory;
    assert_eq!((seen.state(), memory.attempt, memory.option.index), (StateName::Provisioning, 1, 1));
    seen.plan = Outcome::Provision(Plan { tier: 1, option_index: 1, option_count: 2, ..plan(2) });
    seen.step();
    assert_eq!(seen.step(), [1]);
    // On the last tier it can only give back its nodes and retry later.
    seen.journal.memory.generation = 2;
    seen.losses = unknown();
    seen.journal.state = State::WaitingReady;
    seen.step();
    assert_eq!(seen.state(), StateName::RollingBack);
    assert_eq!((seen.journal.memory.option.index, seen.journal.memory.tries), (0, 1));
}

#[test]
fn with_mixed_tiers_an_unexplained_loss_of_an_earlier_tier_is_replaced_on_the_current_tier() {
    let after = |option_index, mixed, loss: fn(Loss) -> Loss| {
        let mut seen = short(State::WaitingReady, mixed, 3);
        seen.journal.memory.plan = None;
        seen.journal.memory.generation = 1;
        seen.journal.memory.option = OptionPosition { tier: option_index, index: option_index, count: 3 };
        seen.claims = vec![ready(0, 1)];
        seen.losses = BTreeMap::from([(1, loss(Loss::Failed(lost(FailureClass::Unknown))))]);
        seen
    };
    // With or without a later tier: the current one was not tried for this slot.
    for option_index in [1, 2] {
        let mut seen = after(option_index, true, Loss::superseded);
        seen.freshness = Freshness::Cached;
        assert_eq!(
            seen.read(),
            Observation::NeedsQuorumRead,
            "that a claim is gone counts in a quorum read alone"
        );
        seen.freshness = Freshness::Quorum;
        seen.step();
        let memory = &seen.journal.memory;
        assert_eq!(
            (seen.state(), memory.attempt, memory.option.index),
            (StateName::Provisioning, 1, option_index)
        );
        assert_eq!((memory.generation, memory.tries), (2, 0));
        seen.plan = Outcome::Provision(Plan { tier: option_index, option_index, option_count: 3, ..plan(2) });
        assert_eq!(seen.step(), [1]);
    }
    // An unexplained loss on the last tier would happen again, and without mixed tiers all nodes share one.
    for (mixed, loss) in [(true, (|loss| loss) as fn(Loss) -> Loss), (false, Loss::superseded)] {
        let mut seen = after(2, mixed, loss);
        seen.step();
        assert_eq!(seen.state(), StateName::RollingBack, "{mixed}");
    }
}

#[test]
fn a_next_tier_with_a_different_pinning_ends_the_attempt() {
    let mut seen = short(State::WaitingReady, true, 2);
    seen.step();
    let untainted = Plan { pinning: Pinning::Selector, ..plan(2) };
    seen.plan = Outcome::Provision(untainted);
    seen.step();
    assert_eq!(seen.state(), StateName::RollingBack);
}

#[test]
fn a_shortage_rolls_back_the_gang_without_mixed_tiers_or_a_next_tier() {
    for (mixed, tiers) in [(false, 2), (true, 1)] {
        for state in [State::Provisioning, State::WaitingReady] {
            let mut seen = short(state, mixed, tiers);
            seen.step();
            assert_eq!(seen.state(), StateName::RollingBack, "{mixed} {tiers}");
        }
    }
}

#[test]
fn a_failure_while_admitted_pods_wait_for_late_nodes_affects_only_its_slot() {
    let shortage = || BTreeMap::from([(1, Loss::Failed(lost(FailureClass::InsufficientCapacity)))]);
    // A Job can be admitted here too, if Kueue still saw the Ready of its last reservation.
    let all = [AdmissionPhase::Admitted, AdmissionPhase::AdmittedPods]
        .map(|s| [State::Provisioning, State::WaitingReady].map(|state| (state, s)));
    for (state, phase) in all.into_iter().flatten() {
        let mut seen = TwoNodeGang::new(state, phase);
        seen.losses = shortage();
        seen.freshness = Freshness::Cached;
        assert_eq!(
            seen.read(),
            Observation::NeedsQuorumRead,
            "that a claim is gone counts in a quorum read alone"
        );
        seen.freshness = Freshness::Quorum;
        seen.step();
        let memory = &seen.journal.memory;
        assert_eq!((seen.state(), memory.attempt, memory.generation), (StateName::Provisioning, 1, 1));
        assert_eq!(seen.step(), [1]);
        // The replacement is lost too. It is replaced after a backoff, even past the attempt's deadline.
        seen.claims = vec![ready(0, 0), going(1, 1)];
        seen.journal.state = State::WaitingReady;
        seen.losses = shortage();
        assert_eq!(seen.events(), []);
        let next = seen.with(|snapshot| wake_at(&seen.journal, snapshot)).unwrap();
        assert!(next > at(seen.now));
        seen.now = 2_000;
        seen.step();
        assert_eq!((seen.state(), seen.journal.memory.generation), (StateName::Provisioning, 2));
    }
}

#[test]
fn a_deadline_ends_nothing_while_pods_may_run_on_some_nodes() {
    for phase in [AdmissionPhase::Admitted, AdmissionPhase::AdmittedPods] {
        let mut seen = TwoNodeGang::new(State::WaitingReady, phase);
        let coming = Health::Coming { waits_for: WaitsFor::Reboot("n1".into()), until: None };
        seen.claims = vec![ready(0, 0), ClaimView { health: coming, ..ready(1, 0) }];
        (seen.claims[0].held_until, seen.now) = (Some(at(900)), 901);
        seen.losses.clear();
        assert_eq!(seen.events(), [], "{phase:?}");
    }
}

#[test]
fn nodes_whose_hold_expired_are_not_reused_for_the_next_reservation() {
    let next = |held_until: i64| {
        let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Reserved);
        seen.journal.memory.admission = AdmissionId("1-0-b".into());
        seen.claims =
            [0, 1].map(|slot| ClaimView { held_until: Some(at(held_until)), ..ready(slot, 0) }).into();
        seen.losses.clear();
        seen.events()
    };
    assert!(matches!(next(11)[..], [Event::Reserved { .. }]));
    assert_eq!(next(10), [Event::Gone(Ending::Superseded)]);
}

#[test]
fn a_late_node_is_given_up_only_if_no_pods_can_be_on_it() {
    let with = |reason| {
        let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::AdmittedPods);
        let failed = Health::Failed(Failure::new(reason, "late"));
        seen.claims = vec![ready(0, 0), ClaimView { health: failed, ..ready(1, 0) }];
        seen.losses.clear();
        seen
    };
    let gives_up = |seen: &mut TwoNodeGang| {
        assert!(matches!(seen.events().as_slice(), [Event::Lost { .. }]), "{:?}", seen.events());
        seen.step();
        // The journal records that a new claim is needed before the old one is deleted.
        let memory = &seen.journal.memory;
        assert_eq!((seen.state(), memory.attempt, memory.generation), (StateName::Provisioning, 1, 1));
        assert_eq!(seen.events(), [Event::Unwanted(vec!["c1-0".into()]), Event::ClaimsMissing(vec![1])]);
    };
    // A node that never came up is given up once its pods were listed and it has none.
    let mut seen = with(FailureClass::InitializationTimeout);
    seen.freshness = Freshness::Cached;
    assert_eq!(seen.read(), Observation::NeedsQuorumRead);
    seen.freshness = Freshness::Quorum;
    assert_eq!(seen.events(), []);
    let failed = seen.claims.pop().unwrap();
    seen.claims.push(ClaimView { vacant: true, ..failed });
    gives_up(&mut seen);
    let mut seen = with(FailureClass::LaunchTimeout);
    gives_up(&mut seen);
    // The next failure waits for its backoff.
    let failed = Health::Failed(Failure::new(FailureClass::LaunchTimeout, "late"));
    seen.claims = vec![ready(0, 0), ClaimView { health: failed, ..ready(1, 1) }];
    seen.journal.state = State::WaitingReady;
    assert_eq!(seen.events(), []);
    seen.now = 2_000;
    seen.step();
    assert_eq!(seen.journal.memory.generation, 2);
    assert_eq!(with(FailureClass::NodeTooSmall).events(), []);
    assert_eq!(with(FailureClass::InitializationTimeout).events(), []);
    // While no node is up, no pod can run, and the next tier may take the whole gang.
    let coming = Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: None };
    seen.claims = vec![ClaimView { health: coming, ..ready(0, 0) }, going(1, 0)];
    seen.losses = BTreeMap::from([(1, Loss::Failed(lost(FailureClass::InsufficientCapacity)))]);
    seen.step();
    assert_eq!(seen.journal.state, State::RollingBack { then: Then::BackingOff });
}

#[test]
fn lost_nodes_of_a_replaced_slice_are_replaced_because_its_pods_run_on() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.replaced = true;
    seen.step();
    assert_eq!(seen.journal.state, State::Approved { nodes: Nodes::Replacing });
    assert_eq!(seen.step(), [1]);
}

#[test]
fn a_replacement_is_created_only_on_a_quorum_read() {
    let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::Reserved);
    seen.freshness = Freshness::Cached;
    assert_eq!(seen.read(), Observation::NeedsQuorumRead);
    seen.freshness = Freshness::Quorum;
    seen.step();
    seen.freshness = Freshness::Cached;
    assert_eq!(
        seen.read(),
        Observation::NeedsQuorumRead,
        "a cache may not show the first claim, which has another name"
    );
    seen.freshness = Freshness::Quorum;
    assert_eq!(seen.events(), [Event::ClaimsMissing(vec![1])]);
}

#[test]
fn the_policy_decides_what_a_lost_node_leads_to() {
    let rolling_back = |then| State::RollingBack { then };
    for state in [State::WaitingReady, State::Approved { nodes: Nodes::Held }] {
        for (on_node_lost, end) in [
            (OnNodeLost::Replace, State::Provisioning),
            (OnNodeLost::Yield, rolling_back(Then::Yielded)),
            (OnNodeLost::Reject, rolling_back(Then::Rejected)),
            (OnNodeLost::Ignore, state.clone()),
        ] {
            let mut seen = TwoNodeGang::new(state.clone(), AdmissionPhase::Reserved);
            seen.policy.on_node_lost = on_node_lost;
            seen.step();
            assert_eq!(seen.journal.state, end, "{on_node_lost:?} in {state:?}");
        }
    }
}

#[test]
fn a_capacity_shortage_does_not_count_as_a_lost_node() {
    let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::Reserved);
    seen.losses = BTreeMap::from([(1, Loss::Failed(lost(FailureClass::InsufficientCapacity)))]);
    seen.step();
    assert_eq!(seen.journal.state, State::RollingBack { then: Then::BackingOff });
    // If both happen at once, the worse one counts: a replacement would not help.
    let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::Reserved);
    let failed = Failure::new(FailureClass::LaunchTimeout, "late");
    seen.claims = vec![ClaimView { health: Health::Failed(failed), ..ready(0, 0) }, going(1, 0)];
    seen.step();
    assert_eq!(seen.journal.state, State::RollingBack { then: Then::BackingOff });
}

#[test]
fn losses_under_the_last_admission_do_not_count_against_the_next_one() {
    let anew = |on_node_lost| {
        let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Reserved);
        seen.policy.on_node_lost = on_node_lost;
        seen.journal.memory.admission = AdmissionId("0-0-a".into());
        seen.journal.memory.tries = 2;
        seen
    };
    for on_node_lost in [OnNodeLost::Yield, OnNodeLost::Reject, OnNodeLost::Ignore] {
        let mut seen = anew(on_node_lost);
        seen.freshness = Freshness::Cached;
        assert_eq!(
            seen.read(),
            Observation::NeedsQuorumRead,
            "that a claim is gone counts in a quorum read alone"
        );
        seen.freshness = Freshness::Quorum;
        seen.step();
        assert_eq!(seen.journal.state, State::RollingBack { then: Then::Released }, "{on_node_lost:?}");
        seen.claims.clear();
        seen.losses.clear();
        seen.step();
        seen.step();
        assert_eq!((seen.state(), seen.journal.memory.tries), (StateName::Validating, 0));
    }
    // With Replace the node is replaced, and the tries of the last admission do not count.
    let mut seen = anew(OnNodeLost::Replace);
    seen.step();
    assert_eq!((seen.state(), seen.journal.memory.tries), (StateName::WaitingReady, 0));
}

#[test]
fn replacements_count_as_tries() {
    let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::Reserved);
    seen.policy.in_check.limit = 2;
    for generation in 0..2 {
        seen.loses(going(1, generation));
        seen.step();
        assert_eq!((seen.state(), seen.journal.memory.generation), (StateName::Provisioning, generation + 1));
        seen.journal.state = State::WaitingReady;
    }
    seen.loses(going(1, 2));
    seen.step();
    assert_eq!(seen.journal.state, State::RollingBack { then: Then::Yielded });
}

#[test]
fn a_replacement_lost_during_provisioning_ends_the_attempt() {
    let mut seen = TwoNodeGang::new(State::WaitingReady, AdmissionPhase::Reserved);
    seen.step();
    seen.loses(going(1, 1));
    seen.step();
    assert_eq!(seen.journal.state, State::RollingBack { then: Then::BackingOff });
}

/// The entry of a check that is Ready.
fn ready_entry() -> CheckState {
    CheckState {
        name: "c".into(),
        state: Verdict::Ready,
        last_transition_time: at(0),
        message: String::new(),
        requeue_after_seconds: None,
        pod_set_updates: Vec::new(),
    }
}

#[test]
fn a_loss_revokes_ready_unless_losses_are_ignored() {
    let entry = ready_entry();
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Reserved);
    seen.reported = Verdict::Ready;
    assert_eq!(seen.events(), []);
    let verdict = |seen: &TwoNodeGang| {
        seen.with(|f| desired(&seen.journal, f, &entry, Ok(Vec::new()))).map(|d| d.state)
    };
    assert_eq!(verdict(&seen), Some(Verdict::Pending));
    seen.policy.on_node_lost = OnNodeLost::Ignore;
    assert_eq!(verdict(&seen), None);
    assert_eq!(seen.with(|f| failure_before_admission(&Attempt::of(&seen.journal, f))), None);
}

#[test]
fn a_node_that_becomes_unready_before_admission_only_delays_the_gang() {
    let entry = ready_entry();
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Reserved);
    seen.reported = Verdict::Ready;
    seen.losses.clear();
    let waits_for = WaitsFor::Readiness { node: "n".to_owned(), lack: NodeProblem::NotReady };
    seen.claims =
        vec![ready(0, 0), ClaimView { health: Health::Coming { waits_for, until: None }, ..ready(1, 0) }];
    let verdict = |seen: &TwoNodeGang| {
        seen.with(|f| desired(&seen.journal, f, &entry, Ok(Vec::new()))).map(|d| d.state)
    };
    assert_eq!(verdict(&seen), Some(Verdict::Pending));
    assert_eq!((seen.events(), seen.state()), (vec![], StateName::Approved));
    seen.freshness = Freshness::Cached;
    assert_eq!(verdict(&seen), None, "a cache may not know the node yet");
    assert_eq!(seen.read(), Observation::NeedsQuorumRead);
    seen.freshness = Freshness::Quorum;
    seen.claims = vec![ready(0, 0), ready(1, 0)];
    assert_eq!(verdict(&seen), None);
}

#[test]
fn a_lost_node_of_an_admitted_gang_is_replaced_in_place() {
    for phase in [AdmissionPhase::Admitted, AdmissionPhase::AdmittedPods] {
        let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, phase);
        assert_eq!(seen.step(), Vec::<u32>::new());
        assert_eq!((seen.state(), seen.journal.memory.generation), (StateName::Approved, 1));
        let message = seen.with(|f| check_message(&seen.journal, f));
        assert!(message.starts_with("1/2 nodes are left; what is lost is replaced"), "{message}");
        assert_eq!(seen.step(), [1]);
        seen.claims.push(ready(1, 1));
        seen.losses.clear();
        seen.step();
        assert_ne!(seen.journal.state, State::Approved { nodes: Nodes::Replacing });
        // Once the gang is complete, all its tries are available again.
        assert_eq!((seen.journal.memory.tries, seen.events()), (1, vec![Event::NodesReady]));
        seen.step();
        assert_eq!((seen.journal.memory.tries, seen.events()), (0, vec![]));
    }
}

#[test]
fn a_replacement_that_fails_is_replaced_once_its_node_is_known_to_have_no_pods() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.journal.memory.generation = 1;
    let failed = Health::Failed(Failure::new(FailureClass::InitializationTimeout, "no GPU came"));
    let replacement = ClaimView { health: failed, ..ready(1, 1) };
    seen.claims = vec![ready(0, 0), replacement.clone()];
    seen.losses.clear();
    let message = seen.with(|f| check_message(&seen.journal, f));
    assert_eq!(message, "1/2 nodes are ready: no GPU came");
    seen.freshness = Freshness::Cached;
    assert_eq!(seen.read(), Observation::NeedsQuorumRead);
    seen.freshness = Freshness::Quorum;
    assert_eq!(seen.events(), [], "its node may have pods");
    seen.claims = vec![ready(0, 0), ClaimView { vacant: true, ..replacement.clone() }];
    assert!(matches!(seen.events().as_slice(), [Event::Lost { .. }]), "{:?}", seen.events());
    seen.step();
    assert_eq!((seen.state(), seen.journal.memory.generation), (StateName::Approved, 2));
    assert_eq!(seen.events(), [Event::Unwanted(vec!["c1-1".into()]), Event::ClaimsMissing(vec![1])]);
    // An old cache may show a node that runs as one that never came.
    let never_came = Health::Failed(Failure::new(FailureClass::LaunchTimeout, "late"));
    seen.claims = vec![ready(0, 0), ClaimView { health: never_came, ..replacement }];
    seen.freshness = Freshness::Cached;
    assert_eq!(seen.read(), Observation::NeedsQuorumRead);
    // A node of the first generation was ready, and may become so again.
    let first = Health::Failed(Failure::new(FailureClass::NodeTooSmall, "too small"));
    seen.journal.state = State::Approved { nodes: Nodes::Held };
    seen.claims = vec![ready(0, 0), ClaimView { health: first, vacant: true, ..ready(1, 0) }];
    seen.freshness = Freshness::Quorum;
    assert_eq!(seen.events(), []);
}

#[test]
fn a_gang_wakes_when_its_replacement_is_due() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.journal.memory.generation = 1;
    let coming = Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: Some(at(700)) };
    seen.claims = vec![ready(0, 0), ClaimView { health: coming, ..ready(1, 1) }];
    seen.losses.clear();
    assert_eq!(seen.with(|f| wake_at(&seen.journal, f)), Some(at(700)));
}

#[test]
fn after_admission_losses_are_left_to_the_job_unless_the_policy_replaces() {
    for on_node_lost in [OnNodeLost::Yield, OnNodeLost::Reject, OnNodeLost::Ignore] {
        let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
        seen.policy.on_node_lost = on_node_lost;
        assert_eq!(seen.events(), []);
    }
    // Pods that ran before the check was added do not use our nodes.
    assert_eq!(
        TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Running).events(),
        []
    );
}

#[test]
fn replacements_for_a_running_gang_back_off_and_never_end() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.step();
    seen.journal.state = State::Approved { nodes: Nodes::Held };
    seen.loses(going(1, 1));
    let due = at(10) + SignedDuration::from_secs(5);
    assert_eq!(seen.events(), []);
    assert_eq!(seen.with(|f| wake_at(&seen.journal, f)), Some(due));
    seen.now = 15;
    seen.step();
    assert_eq!(seen.journal.memory.generation, 2);
    seen.journal.state = State::Approved { nodes: Nodes::Held };
    seen.journal.memory.tries = seen.policy.in_check.limit + 1;
    seen.loses(going(1, 2));
    let due = at(15) + seen.policy.yielding.wait(2).signed();
    assert_eq!((seen.events(), seen.with(|f| wake_at(&seen.journal, f))), (vec![], Some(due)));
    seen.now = due.as_second();
    assert!(matches!(seen.events().as_slice(), [Event::Lost { .. }]), "{:?}", seen.events());
}

#[test]
fn a_changed_plan_replaces_nothing_under_running_pods() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.step();
    seen.plan = Outcome::Provision(plan(3));
    assert_eq!(seen.step(), Vec::<u32>::new());
    assert_eq!(seen.state(), StateName::Approved);
    let message = seen.with(|f| check_message(&seen.journal, f));
    let words = "1/2 nodes are left; nothing is replaced now: a plan for its pods gives other nodes now";
    assert!(message.starts_with(words), "{message}");
}

#[test]
fn a_lost_node_is_replaced_although_a_daemon_set_takes_more_or_a_volume_was_bound_since() {
    let changes: [fn(&mut NodeClaim); 2] = [
        |claim| {
            claim.spec.resources.requests.insert("cpu".into(), Quantity("9".into()));
        },
        |claim| {
            let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a"]});
            claim.spec.requirements.push(serde_json::from_value(zone).unwrap());
        },
    ];
    for change in changes {
        let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
        seen.step();
        let mut now = plan(2);
        for slot in &mut now.slots {
            change(Arc::make_mut(&mut slot.template));
        }
        assert_ne!(now.hash(), plan(2).hash());
        seen.plan = Outcome::Provision(now);
        assert_eq!(seen.step(), [1]);
    }
}

#[test]
fn a_gang_with_a_different_node_count_than_its_plan_is_rolled_back() {
    let seen = |slots, claims: Vec<ClaimView>| {
        let mut seen = TwoNodeGang::new(State::Provisioning, AdmissionPhase::Reserved);
        seen.plan = Outcome::Provision(plan(3));
        (seen.journal.memory.slots, seen.journal.memory.plan) = (slots, Some(plan(3).hash()));
        seen.losses.clear();
        seen.claims = claims;
        seen.events()
    };
    let all = || vec![ready(0, 0), ready(1, 0), ready(2, 0)];
    assert_eq!(seen(3, all()), [Event::ClaimsExist]);
    for (slots, claims) in [(1, vec![ready(0, 0)]), (1, Vec::new()), (4, all())] {
        let events = seen(slots, claims);
        let changed =
            |event: &Event| matches!(event, Event::Failed(f) if f.reason == FailureClass::PlanChanged);
        assert!(events.iter().any(changed), "{slots}: {events:?}");
    }
}

#[test]
fn the_newer_of_two_claims_for_a_slot_is_kept() {
    let mut seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted);
    seen.journal.memory.generation = 1;
    seen.losses.clear();
    seen.claims = vec![ready(0, 0), ready(1, 0), ready(1, 1)];
    assert_eq!(seen.events(), [Event::Unwanted(vec!["c1-0".into()])]);
    // A newer claim that is being deleted supersedes nothing: the older claim keeps the slot.
    seen.claims = vec![ready(0, 0), ready(1, 0), going(1, 1)];
    assert_eq!(seen.events(), []);
}

#[test]
fn a_missing_journal_is_rebuilt_from_claims_including_replacements_and_lost_slots() {
    let mut seen = TwoNodeGang::new(State::Validating, AdmissionPhase::Admitted);
    seen.journal.seq = 0;
    seen.claims = vec![going(0, 0), ready(1, 0), ready(2, 3)];
    let found = seen.with(|snapshot| observe(&seen.journal, &Snapshot { is_substitute: true, ..*snapshot }));
    let expected = Event::Found {
        attempt: 1,
        generation: 3,
        slots: 3,
        pod_sets: PodSetLabels::default(),
        phase: AdmissionPhase::Admitted,
    };
    assert_eq!(found, Observation::Events(vec![expected]));
}

#[test]
fn a_journal_without_replacements_omits_their_fields_and_can_be_read() {
    let seen = TwoNodeGang::new(State::Approved { nodes: Nodes::Held }, AdmissionPhase::Reserved);
    let text = seen.journal.encode();
    assert!(!text.contains("generation") && !text.contains("mending"), "{text}");
    assert_eq!(Journal::decode(&text, "uid", at(0), at(20)).unwrap(), seen.journal);
    let mut mended = seen.journal;
    mended.memory.generation = 7;
    mended.state = State::Approved { nodes: Nodes::Replacing };
    assert_eq!(Journal::decode(&mended.encode(), "uid", at(0), at(20)).unwrap(), mended);
}
