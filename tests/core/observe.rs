//! How a snapshot is interpreted: how far claims are, why claims were lost, which events follow, and which
//! verdict Kueue gets.

use jiff::Timestamp;
use serde_json::{Value, json};
use setu::api::parameters::Compat;
use setu::api::workload::{CheckState, PodSetUpdate, Verdict};
use setu::api::{Node, NodeClaim};
use setu::gang::report::message::check_message;
use setu::gang::report::verdict::desired;
use setu::gang::snapshot::loss::{GoneClaim, Loss};
use setu::gang::{
    AdmissionId, AdmissionPhase, ClaimView, Ending, Event, Explanation, Failure, FailureClass, Forecast,
    Freshness, Health, Journal, Nodes, Observation, Refusal, Reservation, Rules, Snapshot, State, Step,
    WaitsFor, decide, observe, step, wake_at,
};
use setu::plan::gates::Gate;
use setu::plan::pod_set_labels::PodSetLabels;
use setu::plan::{Obstacle, ObstacleReason, Outcome};
use setu::policy::Policy;
use std::collections::BTreeMap;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": at(5).to_string()})
}

/// The same, with another transition time.
fn condition_at(kind: &str, status: &str, reason: &str, since: i64) -> Value {
    let mut condition = condition(kind, status, reason);
    condition["lastTransitionTime"] = json!(at(since).to_string());
    condition
}

/// A registered claim whose node is rebooting, or was rebooted.
fn rebooting(reboot: &Value, initialized: &Value) -> NodeClaim {
    let up = ["Launched", "Registered"].map(|kind| condition(kind, "True", kind));
    claim(&[&up[..], &[reboot.clone(), initialized.clone()]].concat())
}

/// A claim of slot 0, created at 0, with these conditions.
fn claim(conditions: &[Value]) -> NodeClaim {
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": "setu-w-abc-0", "uid": "u0", "creationTimestamp": at(0).to_string(),
            "labels": {"setu.kueue.x-k8s.io/attempt": "1"}, "annotations": {"setu.kueue.x-k8s.io/slot": "0"},
        },
        "spec": {
            "requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            "taints": [{"key": "setu.kueue.x-k8s.io/gang", "value": "x", "effect": "NoSchedule"}],
            "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "8"}},
        },
        "status": {"nodeName": "node-0", "conditions": conditions},
    }))
    .unwrap()
}

fn initialized() -> NodeClaim {
    claim(&["Launched", "Registered", "Initialized"].map(|kind| condition(kind, "True", kind)))
}

/// A node that can run the claim's pods, with `spec` merged into its spec.
fn node(spec: &Value, gpus: &str) -> Node {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"},
        "spec": {"taints": [{"key": "setu.kueue.x-k8s.io/gang", "value": "x", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"cpu": "16", "nvidia.com/gpu": gpus},
        },
    });
    for (key, value) in spec.as_object().unwrap() {
        node["spec"][key] = value.clone();
    }
    serde_json::from_value(node).unwrap()
}

fn health(claim: &NodeClaim, node: Option<&Node>, now: i64) -> Health {
    ClaimView::of(claim, node, &Policy::default(), at(now), Some(at(0))).health
}

fn waits_for(health: &Health) -> String {
    match health {
        Health::Coming { waits_for, .. } => waits_for.to_string(),
        other => panic!("{other:?} waits for nothing"),
    }
}

fn failure(health: &Health) -> FailureClass {
    match health {
        Health::Failed(failure) => failure.reason,
        other => panic!("{other:?} is no failure"),
    }
}

#[test]
fn initialized_alone_does_not_make_a_node_ready() {
    let claim = initialized();
    let taint = json!({"taints": [{"key": "readiness.k8s.io/network", "effect": "NoSchedule"}]});
    assert_eq!(waits_for(&health(&claim, None, 10)), "its Node to appear");
    assert!(
        waits_for(&health(&claim, Some(&node(&json!({"unschedulable": true}), "8")), 10))
            .contains("uncordoned")
    );
    assert!(waits_for(&health(&claim, Some(&node(&taint, "8")), 10)).contains("readiness.k8s.io/network"));
    assert!(waits_for(&health(&claim, Some(&node(&json!({}), "7")), 10)).contains("nvidia.com/gpu (7 of 8)"));
    assert_eq!(health(&claim, Some(&node(&json!({}), "8")), 10), Health::Ready { since: at(5) });
}

#[test]
fn a_node_too_small_for_its_pods_fails_and_the_message_has_the_amounts() {
    let small = |claim_cpu: &str| {
        let mut claim = initialized();
        claim.spec.resources.requests.insert("cpu".into(), serde_json::from_value(json!(claim_cpu)).unwrap());
        health(&claim, Some(&node(&json!({}), "8")), 10)
    };
    assert_eq!(small("16"), Health::Ready { since: at(5) });
    let Health::Failed(failure) = small("17") else { panic!("not refused") };
    assert_eq!(failure.reason, FailureClass::NodeTooSmall);
    assert!(failure.message.contains("has too little cpu (16 of 17)"), "{}", failure.message);
}

#[test]
fn the_buffer_time_counts_from_initialized() {
    let policy = Policy { buffer_time: setu::api::duration::Span::seconds(20), ..Policy::default() };
    let good = node(&json!({}), "8");
    let seen = |now| ClaimView::of(&initialized(), Some(&good), &policy, at(now), None).health;
    assert_eq!(waits_for(&seen(24)), "the buffer time");
    assert_eq!(seen(25), Health::Ready { since: at(5) });
}

#[test]
fn each_phase_has_its_own_deadline_and_reason() {
    let launching = claim(&[condition("Launched", "Unknown", "AwaitingReconciliation")]);
    let refused = claim(&[condition("Launched", "Unknown", "Unauthorized")]);
    let registering = claim(&[condition("Launched", "True", "Launched")]);
    let launched = [condition("Launched", "True", "Launched"), condition("Registered", "True", "Registered")];
    let initializing =
        claim(&[&launched[..], &[condition("Initialized", "Unknown", "ResourceNotRegistered")]].concat());
    assert_eq!(waits_for(&health(&claim(&[]), None, 29)), "launch");
    let untouched = "Karpenter, which has not touched its NodeClaim: check that it runs, and the chart's karpenter.namespace";
    assert_eq!(waits_for(&health(&claim(&[]), None, 30)), untouched);
    assert_eq!(waits_for(&health(&launching, None, 239)), "launch");
    assert_eq!(failure(&health(&launching, None, 240)), FailureClass::LaunchTimeout);
    assert_eq!(waits_for(&health(&refused, None, 19)), "launch (Unauthorized with k n)");
    assert_eq!(failure(&health(&refused, None, 20)), FailureClass::LaunchFailed);
    assert_eq!(failure(&health(&registering, None, 480)), FailureClass::RegistrationTimeout);
    assert!(waits_for(&health(&initializing, None, 599)).contains("ResourceNotRegistered"));
    assert_eq!(failure(&health(&initializing, None, 600)), FailureClass::InitializationTimeout);
}

#[test]
fn a_launch_error_counts_from_when_it_was_first_seen() {
    let refused = claim(&[condition_at("Launched", "Unknown", "LaunchFailed", 0)]);
    let seen = |since, now| ClaimView::of(&refused, None, &Policy::default(), at(now), since).health;
    assert_eq!(
        waits_for(&seen(None, 60)),
        "launch (LaunchFailed with k n)",
        "seen for the first time, long after its creation"
    );
    assert_eq!(waits_for(&seen(Some(at(60)), 76)), "launch (LaunchFailed with k n)");
    assert_eq!(failure(&seen(Some(at(60)), 80)), FailureClass::LaunchFailed);
    assert_eq!(
        failure(&seen(Some(at(235)), 240)),
        FailureClass::LaunchFailed,
        "the launch has a deadline of its own"
    );
}

#[test]
fn a_rebooting_node_outlasts_every_phase_deadline() {
    let up = node(&json!({}), "8");
    let requested =
        rebooting(&condition("Rebooting", "True", "RebootRequested"), &condition("Initialized", "True", ""));
    let issued = condition_at("Initialized", "Unknown", "Rebooting", 7_000);
    let under_way = rebooting(&condition("Rebooting", "True", "RebootIssued"), &issued);
    let over = rebooting(&condition_at("Rebooting", "False", "RebootSucceeded", 8_000), &issued);
    for (claim, node) in [(&requested, Some(&up)), (&under_way, Some(&up)), (&under_way, None), (&over, None)]
    {
        let seen = health(claim, node, 9_000);
        assert_eq!(waits_for(&seen), "node node-0 to come up after a reboot");
        assert!(view(0, seen).may_have_pods());
    }
    let fenced = node(&json!({"taints": [{"key": "karpenter.sh/rebooting", "effect": "NoSchedule"}]}), "8");
    assert!(waits_for(&health(&initialized(), Some(&fenced), 9_000)).contains("karpenter.sh/rebooting"));
}

#[test]
fn a_reboot_restarts_the_initialization_deadline() {
    let over = condition_at("Rebooting", "False", "RebootSucceeded", 8_000);
    let claim = rebooting(&over, &condition_at("Initialized", "Unknown", "ResourceNotRegistered", 7_000));
    assert!(waits_for(&health(&claim, None, 8_599)).contains("ResourceNotRegistered"));
    assert_eq!(failure(&health(&claim, None, 8_600)), FailureClass::InitializationTimeout);
    let again = rebooting(&over, &condition_at("Initialized", "True", "", 8_100));
    assert_eq!(health(&again, Some(&node(&json!({}), "8")), 9_000), Health::Ready { since: at(8_100) });
}

#[test]
fn what_a_cloud_says_of_its_accounts_reaches_no_tenant() {
    const SECRET: &str = "account 123456789012, subnet-0abc";
    let mut refused = condition("Launched", "Unknown", "Unauthorized");
    refused["message"] = json!(SECRET);
    let refused = claim(&[refused]);
    for now in [14, 15, 240] {
        let reported = match health(&refused, None, now) {
            Health::Coming { waits_for, .. } => waits_for.to_string(),
            Health::Failed(failure) => failure.message,
            ready @ Health::Ready { .. } => panic!("{ready:?}"),
        };
        assert!(reported.contains("Unauthorized") && !reported.contains("123456789012"), "{reported}");
    }
    for reason in ["InsufficientCapacityError", "LaunchFailed"] {
        let event = Some((reason.to_owned(), SECRET.to_owned()));
        let died = GoneClaim { event, noticed: Some(at(0)), ..GoneClaim::default() };
        let Loss::Failed(failure) = Loss::of(3, None, &died, None, at(900_000)) else {
            panic!("{reason} is unclear")
        };
        assert!(!failure.message.contains("123456789012"), "{}", failure.message);
    }
}

#[test]
fn the_reason_a_claim_vanished_is_inferred() {
    let event = |message: &str| GoneClaim {
        event: Some(("InsufficientCapacityError".into(), message.into())),
        ..GoneClaim::default()
    };
    let fault = |class| Failure::new(class, "NodePool gpu: so it is");
    let [missing, unready] = [FailureClass::NodeClassMissing, FailureClass::NodeClassNotReady].map(fault);
    let of = |claim: Option<&NodeClaim>, gone_claim: &GoneClaim, fault: Option<&Failure>, now| match Loss::of(
        3,
        claim.map(|claim| ClaimView::of(claim, None, &Policy::default(), at(0), None)).as_ref(),
        gone_claim,
        fault,
        at(now),
    ) {
        Loss::Failed(failure) | Loss::Superseded(failure) => failure.reason,
        Loss::Unclear(until) => panic!("unclear until {until}"),
    };
    let gone = GoneClaim { noticed: Some(at(0)), ..GoneClaim::default() };
    let launched = GoneClaim { launched: true, ..gone.clone() };
    let given_up = GoneClaim { given_up: true, ..launched.clone() };
    assert_eq!(of(None, &given_up, None, 0), FailureClass::RegistrationTimeout, "nobody else deleted it");
    assert_eq!(of(None, &event("no p5 left"), None, 0), FailureClass::InsufficientCapacity);
    let no_class = event("resolving node class from nodeclaim");
    assert_eq!(of(None, &no_class, None, 0), FailureClass::InsufficientCapacity, "words decide nothing");
    assert_eq!(of(None, &no_class, Some(&unready), 0), FailureClass::InsufficientCapacity);
    assert_eq!(of(None, &event("no p5 left"), Some(&missing), 0), FailureClass::NodeClassMissing);
    assert_eq!(of(None, &launched, None, 0), FailureClass::Interrupted);
    assert_eq!(of(Some(&initialized()), &launched, None, 0), FailureClass::DeletedByOther);
    assert_eq!(of(Some(&claim(&[])), &gone, None, 300), FailureClass::LaunchTimeout);
    assert_eq!(of(None, &gone, Some(&unready), 0), FailureClass::NodeClassNotReady);
    assert_eq!(Loss::of(3, None, &gone, None, at(29)), Loss::Unclear(at(30)));
    assert_eq!(of(None, &gone, None, 30), FailureClass::Unknown);
}

fn view(slot: u32, health: Health) -> ClaimView {
    ClaimView::new(&format!("c{slot}"), 1, slot, health)
}

fn ready(slot: u32) -> ClaimView {
    view(slot, Health::Ready { since: at(0) })
}

fn admission() -> AdmissionId {
    AdmissionId("1-0-a".into())
}

fn held(phase: AdmissionPhase) -> Reservation {
    Reservation::Held { admission: admission(), phase }
}

fn journal(state: State) -> Journal {
    let mut journal = Journal::new("uid", admission(), at(0), Some(at(900)));
    journal.state = state;
    journal.seq = 3;
    journal.memory.attempt = 1;
    journal.memory.slots = 2;
    journal
}

fn read(
    journal: &Journal,
    reservation: &Reservation,
    claims: &[ClaimView],
    freshness: Freshness,
    losses: &BTreeMap<u32, Loss>,
) -> Observation {
    read_reported(Verdict::Pending, journal, reservation, (claims, freshness, losses))
}

fn read_reported(
    reported: Verdict,
    journal: &Journal,
    reservation: &Reservation,
    seen: (&[ClaimView], Freshness, &BTreeMap<u32, Loss>),
) -> Observation {
    read_all((reported, None), journal, reservation, seen)
}

/// The reading of a gang without claims whose plan has this outcome.
fn read_planned(journal: &Journal, plan: &Outcome, freshness: Freshness) -> Observation {
    let seen = (&[][..], freshness, &BTreeMap::new());
    read_all((Verdict::Pending, Some(plan)), journal, &held(AdmissionPhase::Reserved), seen)
}

fn read_all(
    (reported, plan): (Verdict, Option<&Outcome>),
    journal: &Journal,
    reservation: &Reservation,
    (claims, freshness, losses): (&[ClaimView], Freshness, &BTreeMap<u32, Loss>),
) -> Observation {
    let policy = Policy::default();
    let snapshot =
        Snapshot { reported, plan, claims, losses, freshness, ..Snapshot::of(at(10), reservation, &policy) };
    observe(journal, &snapshot)
}

#[test]
fn readiness_and_loss_are_decided_on_a_quorum_read_alone() {
    let waiting = journal(State::WaitingReady);
    let reserved = held(AdmissionPhase::Reserved);
    let none = BTreeMap::new();
    let both = [ready(0), ready(1)];
    assert_eq!(read(&waiting, &reserved, &both, Freshness::Cached, &none), Observation::NeedsQuorumRead);
    assert_eq!(
        read(&waiting, &reserved, &both, Freshness::Quorum, &none),
        Observation::Events(vec![Event::NodesReady])
    );
    let lost = Failure::new(FailureClass::Interrupted, "gone");
    let losses = BTreeMap::from([(1, Loss::Failed(lost.clone()))]);
    assert_eq!(
        read(&waiting, &reserved, &both[..1], Freshness::Cached, &losses),
        Observation::NeedsQuorumRead
    );
    let seen = read(&waiting, &reserved, &both[..1], Freshness::Quorum, &losses);
    assert_eq!(
        seen,
        Observation::Events(vec![Event::Lost { failure: lost, phase: AdmissionPhase::Reserved }])
    );
    let back = journal(State::RollingBack { then: setu::gang::Then::Yielded });
    assert_eq!(read(&back, &reserved, &[], Freshness::Cached, &none), Observation::NeedsQuorumRead);
    assert_eq!(
        read(&back, &reserved, &[], Freshness::Quorum, &none),
        Observation::Events(vec![Event::ClaimsGone])
    );
}

#[test]
fn a_reboot_ends_no_attempt_and_no_running_gang() {
    let issued = condition("Initialized", "Unknown", "Rebooting");
    let claim = rebooting(&condition("Rebooting", "True", "RebootIssued"), &issued);
    let claims = [ready(0), view(1, health(&claim, None, 10))];
    let none = BTreeMap::new();
    for (state, phase) in [
        (State::WaitingReady, AdmissionPhase::Reserved),
        (State::Approved { nodes: Nodes::Held }, AdmissionPhase::Admitted),
        (State::Approved { nodes: Nodes::Held }, AdmissionPhase::AdmittedPods),
        (State::Approved { nodes: Nodes::Held }, AdmissionPhase::Running),
    ] {
        let seen = read(&journal(state), &held(phase), &claims, Freshness::Quorum, &none);
        assert_eq!(seen, Observation::Events(Vec::new()), "{phase:?}");
    }
}

#[test]
fn gang_deadlines_wait_for_a_reboot_and_the_initialization_after_it() {
    let issued = condition("Initialized", "Unknown", "Rebooting");
    let under_way = rebooting(&condition("Rebooting", "True", "RebootIssued"), &issued);
    let anew = rebooting(
        &condition_at("Rebooting", "False", "RebootSucceeded", 8_000),
        &condition_at("Initialized", "Unknown", "ResourceNotRegistered", 7_000),
    );
    let (reserved, none) = (held(AdmissionPhase::Reserved), BTreeMap::new());
    let failure = |state: &State, health: Health, rebooted: Option<i64>| {
        let mut journal = journal(state.clone());
        // Both have passed by 10.
        (journal.memory.deadline, journal.entered_at) = (Some(at(9)), at(-7_200));
        let second = ClaimView { rebooted: rebooted.map(at), ..view(1, health) };
        match read(&journal, &reserved, &[ready(0), second], Freshness::Quorum, &none) {
            Observation::Events(events) => events.into_iter().find_map(|event| match event {
                Event::Failed(failure) => Some(failure.reason),
                _ => None,
            }),
            Observation::NeedsQuorumRead | Observation::NeedsPlanRead => panic!("it was a quorum read"),
        }
    };
    let late = [
        (State::Provisioning, FailureClass::GangTimeout),
        (State::WaitingReady, FailureClass::GangTimeout),
        (State::Approved { nodes: Nodes::Held }, FailureClass::NotAdmitted),
    ];
    let coming = |waits_for| Health::Coming { waits_for, until: None };
    for (state, reason) in late {
        assert_eq!(failure(&state, coming(WaitsFor::Node), None), Some(reason));
        assert_eq!(failure(&state, health(&under_way, None, 10), None), None, "{state:?}");
        assert_eq!(failure(&state, health(&anew, None, 8_100), Some(8_000)), None, "{state:?}");
        // The reboot ended at 5, and the node is not ready yet.
        assert_eq!(failure(&state, coming(WaitsFor::BufferTime), Some(5)), None, "{state:?}");
    }
    let back = Health::Ready { since: at(5) };
    assert_eq!(
        failure(&State::Approved { nodes: Nodes::Held }, back.clone(), None),
        Some(FailureClass::NotAdmitted)
    );
    assert_eq!(
        failure(&State::Approved { nodes: Nodes::Held }, back, Some(5)),
        None,
        "its time to be admitted begins anew"
    );
    let long_ago = Some(-7_200);
    assert_eq!(
        failure(&State::WaitingReady, coming(WaitsFor::Node), long_ago),
        Some(FailureClass::GangTimeout)
    );
}

#[test]
fn a_message_says_how_long_the_remaining_nodes_usually_take() {
    let policy = Policy::default();
    let (reserved, losses) = (held(AdmissionPhase::Reserved), BTreeMap::new());
    let (one, both) = ([ready(0)], [ready(0), ready(1)]);
    let message = |claims: &[ClaimView], now: i64, ready_by: Option<i64>| {
        let snapshot = Snapshot {
            claims,
            losses: &losses,
            forecast: Forecast {
                ready_by: ready_by.map(at),
                tier: Some("on-demand"),
                unplaced: false,
                unbound: None,
            },
            ..Snapshot::of(at(now), &reserved, &policy)
        };
        check_message(&journal(State::WaitingReady), &snapshot)
    };
    assert!(message(&one, 10, None).starts_with("1/2 nodes ready; attempt 1, tier on-demand"));
    let reported = message(&one, 10, Some(70));
    assert!(
        reported.starts_with("1/2 nodes ready, usually 70 s more; attempt 1, tier on-demand"),
        "{reported}"
    );
    // A message changes only when something happens, not with time.
    assert_eq!(message(&one, 60, Some(70)), reported);
    assert!(message(&both, 10, Some(300)).contains("usually 5 min more"));
    assert!(message(&one, 99, Some(-3)).contains("later than usual"));
}

#[test]
fn an_eviction_in_progress_ends_an_attempt_but_not_an_approved_gang() {
    let leaving = Reservation::Leaving(Ending::Evicted);
    let seen =
        |state| read(&journal(state), &leaving, &[ready(0), ready(1)], Freshness::Quorum, &BTreeMap::new());
    assert_eq!(seen(State::WaitingReady), Observation::Events(vec![Event::Leaving(Ending::Evicted)]));
    assert_eq!(seen(State::Approved { nodes: Nodes::Held }), Observation::Events(Vec::new()));
}

#[test]
fn claims_of_another_attempt_are_unwanted_in_every_state() {
    let mut old = ready(0);
    old.attempt = 7;
    old.name = "old".into();
    for state in [State::WaitingReady, State::Approved { nodes: Nodes::Held }, State::Released] {
        let claims =
            if state.wants_claims() { vec![ready(0), ready(1), old.clone()] } else { vec![old.clone()] };
        let reservation =
            if state.is_over() { Reservation::Gone(Ending::Evicted) } else { held(AdmissionPhase::Admitted) };
        let Observation::Events(events) =
            read(&journal(state), &reservation, &claims, Freshness::Cached, &BTreeMap::new())
        else {
            panic!("looked again");
        };
        assert_eq!(events.first(), Some(&Event::Unwanted(vec!["old".into()])));
    }
}

#[test]
fn the_claims_of_an_admitted_gang_override_an_older_journal() {
    let seen = |attempt, slots, phase| {
        let mut forged = journal(State::Approved { nodes: Nodes::Held });
        (forged.memory.attempt, forged.memory.slots) = (attempt, slots);
        let claims = [ready(0), ready(1)];
        let seen = (&claims[..], Freshness::Cached, &BTreeMap::new());
        let Observation::Events(events) = read_reported(Verdict::Ready, &forged, &held(phase), seen) else {
            panic!("looked again")
        };
        events.into_iter().next()
    };
    let attempt = ready(0).attempt;
    for phase in [AdmissionPhase::Admitted, AdmissionPhase::AdmittedPods] {
        let found =
            Event::Found { attempt, generation: 0, slots: 2, pod_sets: PodSetLabels::default(), phase };
        assert_eq!(seen(attempt, 0, phase), Some(found.clone()));
        assert_eq!(seen(attempt - 1, 2, phase), Some(found), "an old journal was put back");
        assert_eq!(seen(attempt, 2, phase), None);
    }
    let unwanted = Event::Unwanted(vec![ready(0).name, ready(1).name]);
    assert_eq!(seen(attempt, 0, AdmissionPhase::Reserved), Some(unwanted), "no pod runs yet");
}

#[test]
fn an_impossibly_long_backoff_is_over() {
    let after = |until| {
        let rules = Rules::new(&Policy::default(), at(10), 0.0);
        decide(&journal(State::BackingOff { until }), &Event::WaitOver, &rules).journal.state
    };
    assert_eq!(after(at(10)), State::Validating);
    assert_eq!(after(at(11)), State::BackingOff { until: at(11) });
    assert_eq!(after(Timestamp::MAX), State::Validating, "a tenant can write that");
}

#[test]
fn returned_capacity_ends_a_backoff_early_except_in_compat_mode() {
    let read = |state, compat| {
        let (reserved, policy) = (held(AdmissionPhase::Reserved), Policy { compat, ..Policy::default() });
        let snapshot = Snapshot { capacity_back: true, ..Snapshot::of(at(10), &reserved, &policy) };
        observe(&journal(state), &snapshot)
    };
    let events = |events: &[Event]| Observation::Events(events.to_vec());
    let waits = State::BackingOff { until: at(40) };
    assert_eq!(read(waits.clone(), Compat::None), events(&[Event::CapacityBack]));
    assert_eq!(read(waits, Compat::Setu), events(&[]));
    assert_eq!(read(State::BackingOff { until: at(10) }, Compat::None), events(&[Event::WaitOver]));
    assert_eq!(read(State::Validating, Compat::None), events(&[]));
}

#[test]
fn a_closed_gate_on_a_later_tier_is_waited_for_until_the_next_round() {
    let read = |option_index, obstacle: &Obstacle, now| {
        let mut journal = journal(State::Validating);
        (journal.memory.option.index, journal.memory.option.count) = (option_index, 3);
        let plan = Outcome::Wait(obstacle.clone());
        let (reserved, policy) = (held(AdmissionPhase::Reserved), Policy::default());
        let snapshot = Snapshot {
            plan: Some(&plan),
            freshness: Freshness::Quorum,
            ..Snapshot::of(at(now), &reserved, &policy)
        };
        (observe(&journal, &snapshot), wake_at(&journal, &snapshot))
    };
    let failed = |reading: &Observation| matches!(reading, Observation::Events(all) if matches!(all[..], [Event::Failed(_)]));
    let closed = Obstacle {
        gate: Some((Gate::Capacity, "gpu".to_owned())),
        ..Obstacle::new(ObstacleReason::LimitExceeded, "full")
    };
    // The first backoff is five seconds.
    let (reading, woken) = read(1, &closed, 4);
    assert!(!failed(&reading), "{reading:?}");
    assert_eq!(woken, Some(at(5)));
    assert!(failed(&read(1, &closed, 5).0));
    let (reading, woken) = read(0, &closed, 10);
    assert!(!failed(&reading), "{reading:?}");
    assert_eq!(woken, Some(at(900)), "the first tier is waited for as long as the gang may take");
    let gone = Obstacle::new(ObstacleReason::NodePoolMissing, "no such NodePool");
    assert!(failed(&read(1, &gone, 4).0), "nothing is to be waited for on a later tier but a gate");
}

#[test]
fn a_gang_that_creates_its_claims_wakes_when_a_gate_opens_that_closed_meanwhile() {
    let woken = |until: Option<i64>| {
        let journal = journal(State::Provisioning);
        let plan = Outcome::Wait(Obstacle {
            until: until.map(at),
            ..Obstacle::new(ObstacleReason::Guarded, "too many creates a minute")
        });
        let (reserved, policy) = (held(AdmissionPhase::Reserved), Policy::default());
        let snapshot = Snapshot { plan: Some(&plan), ..Snapshot::of(at(10), &reserved, &policy) };
        wake_at(&journal, &snapshot)
    };
    assert_eq!(woken(Some(30)), Some(at(30)));
    assert_eq!(woken(Some(10)), woken(None), "it is open, so there is nothing to wait for");
}

#[test]
fn a_released_gang_that_still_has_its_reservation_starts_again() {
    let seen = |state, phase| read(&journal(state), &held(phase), &[], Freshness::Quorum, &BTreeMap::new());
    let again = |phase| Observation::Events(vec![Event::Reserved { admission: admission(), phase }]);
    assert_eq!(seen(State::Released, AdmissionPhase::Reserved), again(AdmissionPhase::Reserved));
    assert_eq!(
        seen(State::Released, AdmissionPhase::Admitted),
        again(AdmissionPhase::Admitted),
        "by a Ready of before"
    );
    assert_eq!(seen(State::Yielded, AdmissionPhase::Reserved), Observation::Events(Vec::new()));
    // Kueue admitted while the check was off the Workload: the pods run on other nodes.
    assert_eq!(seen(State::Yielded, AdmissionPhase::Running), again(AdmissionPhase::Running));
}

#[test]
fn ready_is_revoked_before_a_loss_is_acted_on() {
    let (approved, policy, reservation) =
        (journal(State::Approved { nodes: Nodes::Held }), Policy::default(), held(AdmissionPhase::Reserved));
    let lost = Failure::new(FailureClass::Interrupted, "gone");
    let losses = BTreeMap::from([(1, Loss::Failed(lost.clone()))]);
    let claims = [ready(0)];
    let snapshot = |reported| Snapshot {
        reported,
        claims: &claims,
        losses: &losses,
        freshness: Freshness::Quorum,
        ..Snapshot::of(at(10), &reservation, &policy)
    };
    assert_eq!(observe(&approved, &snapshot(Verdict::Ready)), Observation::Events(Vec::new()));
    let check = entry(Verdict::Ready, &update("x"));
    let desired = desired(&approved, &snapshot(Verdict::Ready), &check, Ok(update("x"))).unwrap();
    assert_eq!((desired.state, desired.updates.len()), (Verdict::Pending, 0));
    let next = observe(&approved, &snapshot(Verdict::Pending));
    assert_eq!(
        next,
        Observation::Events(vec![Event::Lost { failure: lost, phase: AdmissionPhase::Reserved }])
    );
}

fn entry(state: Verdict, updates: &[PodSetUpdate]) -> CheckState {
    CheckState {
        name: "c".into(),
        state,
        last_transition_time: at(0),
        message: String::new(),
        requeue_after_seconds: None,
        pod_set_updates: updates.to_vec(),
    }
}

fn update(value: &str) -> Vec<PodSetUpdate> {
    let node_selector = [("gang".to_owned(), value.to_owned())].into();
    vec![PodSetUpdate { name: "main".into(), node_selector, ..PodSetUpdate::default() }]
}

fn reported(state: State, reservation: &Reservation, entry: &CheckState) -> Option<(Verdict, usize)> {
    let policy = Policy::default();
    let losses = BTreeMap::new();
    let snapshot = Snapshot {
        reported: entry.state,
        claims: &[ready(0), ready(1)],
        losses: &losses,
        freshness: Freshness::Quorum,
        ..Snapshot::of(at(10), reservation, &policy)
    };
    desired(&journal(state), &snapshot, entry, Ok(update("x"))).map(|d| (d.state, d.updates.len()))
}

#[test]
fn bare_pods_are_never_evicted_and_get_their_nodes_late() {
    let pods = held(AdmissionPhase::AdmittedPods);
    let ready_entry = entry(Verdict::Ready, &update("x"));
    for state in [
        State::Yielded,
        State::Rejected,
        State::RollingBack { then: setu::gang::Then::Yielded },
        State::BackingOff { until: at(99) },
        State::Released,
    ] {
        assert_eq!(reported(state.clone(), &pods, &ready_entry), None, "{state:?}");
    }
    // A Job's pods are recreated, so it is evicted.
    let job = reported(State::Yielded, &held(AdmissionPhase::Admitted), &ready_entry);
    assert_eq!(job, Some((Verdict::Retry, 0)));
    let again = read(&journal(State::Yielded), &pods, &[], Freshness::Quorum, &BTreeMap::new());
    let phase = AdmissionPhase::AdmittedPods;
    assert_eq!(again, Observation::Events(vec![Event::Reserved { admission: admission(), phase }]));
}

#[test]
fn the_verdict_follows_the_state_unless_kueue_would_misread_it() {
    let (reserved, admitted) = (held(AdmissionPhase::Reserved), held(AdmissionPhase::Admitted));
    let pending = entry(Verdict::Pending, &[]);
    let ready_entry = entry(Verdict::Ready, &update("x"));
    assert_eq!(
        reported(State::Approved { nodes: Nodes::Held }, &reserved, &pending),
        Some((Verdict::Ready, 1))
    );
    assert_eq!(reported(State::Approved { nodes: Nodes::Held }, &reserved, &ready_entry), None);
    // The updates of an existing Ready may not be replaced.
    assert_eq!(
        reported(State::Approved { nodes: Nodes::Held }, &reserved, &entry(Verdict::Ready, &update("y"))),
        Some((Verdict::Pending, 0))
    );
    assert_eq!(
        reported(State::Approved { nodes: Nodes::Held }, &admitted, &entry(Verdict::Ready, &update("y"))),
        None
    );
    assert_eq!(reported(State::Yielded, &reserved, &pending), Some((Verdict::Retry, 0)));
    assert_eq!(reported(State::WaitingReady, &reserved, &ready_entry), Some((Verdict::Pending, 0)));
    // A Ready left over from a reservation that ended without an eviction is revoked.
    assert_eq!(
        reported(State::Released, &Reservation::Gone(Ending::QuotaLost), &ready_entry),
        Some((Verdict::Pending, 0))
    );
    for gone in [Ending::Evicted, Ending::Finished, Ending::Deactivated] {
        assert_eq!(reported(State::Yielded, &Reservation::Gone(gone), &pending), None);
        assert_eq!(
            reported(State::Approved { nodes: Nodes::Held }, &Reservation::Leaving(gone), &pending),
            None
        );
    }
}

/// The classes of failures that a stale watch may show.
const NEED_QUORUM: [FailureClass; 10] = [
    FailureClass::LaunchFailed,
    FailureClass::LaunchTimeout,
    FailureClass::RegistrationTimeout,
    FailureClass::InitializationTimeout,
    FailureClass::GangTimeout,
    FailureClass::NodeTooSmall,
    FailureClass::PlanChanged,
    FailureClass::NotPlannable,
    FailureClass::NotAdmitted,
    FailureClass::Unknown,
];

#[test]
fn a_timeout_is_decided_only_on_a_quorum_read() {
    let late = |reason| view(1, Health::Failed(Failure::new(reason, "late")));
    let reserved = held(AdmissionPhase::Reserved);
    let seen = |state, claims: &[ClaimView], freshness| {
        read(&journal(state), &reserved, claims, freshness, &BTreeMap::new())
    };
    let need: Vec<FailureClass> = FailureClass::ALL.into_iter().filter(|c| c.needs_quorum()).collect();
    assert_eq!(need, NEED_QUORUM);
    for reason in NEED_QUORUM {
        for state in [State::Provisioning, State::WaitingReady] {
            let claims = [ready(0), late(reason)];
            assert_eq!(
                seen(state.clone(), &claims, Freshness::Cached),
                Observation::NeedsQuorumRead,
                "{reason}"
            );
            let failed = Event::Failed(Failure::new(reason, "late"));
            assert_eq!(
                seen(state, &claims, Freshness::Quorum),
                Observation::Events(vec![failed]),
                "{reason}"
            );
        }
    }
    // The gang's deadline.
    let coming = view(1, Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: None });
    let mut over = journal(State::WaitingReady);
    over.memory.deadline = Some(at(10));
    let seen = |freshness| read(&over, &reserved, &[ready(0), coming.clone()], freshness, &BTreeMap::new());
    assert_eq!(seen(Freshness::Cached), Observation::NeedsQuorumRead);
    assert!(
        matches!(seen(Freshness::Quorum), Observation::Events(events) if matches!(events[..], [Event::Failed(_)]))
    );
}

#[test]
fn a_changed_plan_and_a_plan_without_nodes_are_acted_on_only_after_a_quorum_read() {
    let not_ready = || Obstacle::new(ObstacleReason::NodePoolNotReady, "NodePool gpu is not ready");
    let nothing = || Outcome::NothingNeeded("no pod set requests a managed resource".into());
    for (state, plan) in [
        (State::Provisioning, Outcome::Wait(not_ready())),
        (State::Provisioning, Outcome::Refuse(not_ready())),
        (State::Provisioning, nothing()),
        (State::Validating, nothing()),
    ] {
        let seen = |freshness| read_planned(&journal(state.clone()), &plan, freshness);
        assert_eq!(seen(Freshness::Cached), Observation::NeedsQuorumRead, "{state:?} {plan:?}");
        let Observation::Events(events) = seen(Freshness::Quorum) else { panic!("{state:?} {plan:?}") };
        let ends = |event: &Event| match event {
            Event::Failed(failure) => failure.reason == FailureClass::PlanChanged,
            event => *event == Event::NothingNeeded,
        };
        assert!(events.len() == 1 && ends(&events[0]), "{events:?}");
    }
}

#[test]
fn a_decision_over_the_plan_needs_a_quorum_read_of_what_it_is_made_from() {
    let (policy, reserved) = (Policy::default(), held(AdmissionPhase::Reserved));
    let short = || Obstacle::new(ObstacleReason::TooManyNodes, "3 of 2 nodes");
    let mut over = journal(State::Validating);
    over.memory.deadline = Some(at(10));
    let unneeded = journal(State::Approved { nodes: Nodes::Unneeded });
    let nothing = Outcome::NothingNeeded("no pod set requests a managed resource".into());
    for (journal, plan) in [
        (&over, Outcome::Wait(short())),
        (&over, Outcome::Refuse(short())),
        (&over, Outcome::Never(short())),
        (&over, nothing.clone()),
        (&journal(State::Provisioning), nothing),
        (&unneeded, Outcome::Refuse(short())),
    ] {
        let seen = |freshness, plan_freshness| {
            let snapshot = Snapshot {
                plan: Some(&plan),
                freshness,
                plan_freshness,
                ..Snapshot::of(at(10), &reserved, &policy)
            };
            observe(journal, &snapshot)
        };
        let needs =
            [Freshness::Cached, Freshness::Quorum].map(|freshness| seen(freshness, Freshness::Cached));
        assert_eq!(needs, [Observation::NeedsPlanRead, Observation::NeedsPlanRead], "{plan:?}");
        assert_eq!(seen(Freshness::Cached, Freshness::Quorum), Observation::NeedsQuorumRead, "{plan:?}");
        let Observation::Events(events) = seen(Freshness::Quorum, Freshness::Quorum) else {
            panic!("{plan:?}")
        };
        assert_eq!(events.len(), 1, "{plan:?}");
    }
}

#[test]
fn an_attempt_whose_time_is_over_ends_whatever_its_plan_is_made_from() {
    let (policy, reserved) = (Policy::default(), held(AdmissionPhase::Reserved));
    let mut over = journal(State::Provisioning);
    over.memory.deadline = Some(at(10));
    let waits = Outcome::Wait(Obstacle::new(ObstacleReason::NodePoolNotReady, "NodePool gpu is not ready"));
    let snapshot = Snapshot {
        plan: Some(&waits),
        freshness: Freshness::Quorum,
        plan_freshness: Freshness::Cached,
        ..Snapshot::of(at(10), &reserved, &policy)
    };
    let Observation::Events(events) = observe(&over, &snapshot) else { panic!("it is over") };
    assert!(
        matches!(&events[..], [Event::Failed(failure)] if failure.reason == FailureClass::GangTimeout),
        "{events:?}"
    );
}

#[test]
fn a_waiting_gang_is_given_up_only_after_a_quorum_read() {
    let mut over = journal(State::Validating);
    over.memory.deadline = Some(at(10));
    let obstacle = Obstacle::new(ObstacleReason::NodePoolNotReady, "NodePool gpu is not ready");
    let waits = Outcome::Wait(obstacle);
    let seen = |freshness| read_planned(&over, &waits, freshness);
    assert_eq!(seen(Freshness::Cached), Observation::NeedsQuorumRead);
    let failed =
        Failure::of_obstacle(&Obstacle::new(ObstacleReason::NodePoolNotReady, "NodePool gpu is not ready"));
    assert_eq!(seen(Freshness::Quorum), Observation::Events(vec![Event::Failed(failed)]));
}

#[test]
fn a_rollback_waits_for_a_deleting_claim_until_it_counts_as_stuck() {
    let going = |stuck| ClaimView { deleting: true, stuck, ..ready(0) };
    let back = journal(State::RollingBack { then: setu::gang::Then::Yielded });
    let reserved = held(AdmissionPhase::Reserved);
    let seen = |claims: &[ClaimView], freshness| read(&back, &reserved, claims, freshness, &BTreeMap::new());
    assert_eq!(seen(&[going(false), going(true)], Freshness::Quorum), Observation::Events(Vec::new()));
    assert_eq!(seen(&[going(true)], Freshness::Cached), Observation::NeedsQuorumRead);
    assert_eq!(seen(&[going(true)], Freshness::Quorum), Observation::Events(vec![Event::ClaimsGone]));
}

#[test]
fn an_unfinished_rollback_is_reported_under_the_next_reservation() {
    let back = journal(State::RollingBack { then: setu::gang::Then::Released });
    let next = Reservation::Held { admission: AdmissionId("2-1-a".into()), phase: AdmissionPhase::Reserved };
    let (policy, losses) = (Policy::default(), BTreeMap::new());
    let claims = [ClaimView { deleting: true, stuck: true, ..ready(0) }];
    let snapshot = Snapshot { claims: &claims, losses: &losses, ..Snapshot::of(at(10), &next, &policy) };
    let check = desired(&back, &snapshot, &entry(Verdict::Pending, &[]), Ok(Vec::new())).unwrap();
    assert_eq!(check.state, Verdict::Pending);
    assert!(check.message.contains("1 NodeClaim left"), "{}", check.message);
    assert!(
        check.message.contains("NodeClaim c0 of an earlier attempt cannot be deleted"),
        "{}",
        check.message
    );
}

fn refusable<'a>(
    reservation: &'a Reservation,
    plan: Option<&'a Outcome>,
    refusal: Option<Refusal>,
    (policy, losses): (&'a Policy, &'a BTreeMap<u32, Loss>),
) -> Snapshot<'a> {
    Snapshot { plan, losses, refusal, ..Snapshot::of(at(10_000), reservation, policy) }
}

#[test]
fn a_refused_gang_yields_at_once_and_stays_out_of_the_queue_while_it_is_refused() {
    let plan = Outcome::Refuse(Obstacle::new(ObstacleReason::TooManyNodes, "3 of 2 nodes"));
    let (policy, losses) = (Policy::default(), BTreeMap::new());
    let (reserved, evicted) = (held(AdmissionPhase::Reserved), Reservation::Gone(Ending::Evicted));
    let rest = (&policy, &losses);
    let validating = journal(State::Validating);
    let refused =
        Event::Refused(Failure::of_obstacle(&Obstacle::new(ObstacleReason::TooManyNodes, "3 of 2 nodes")));
    let cached = refusable(&reserved, Some(&plan), None, rest);
    assert_eq!(observe(&validating, &cached), Observation::NeedsQuorumRead, "what is cached may be over");
    let first = Snapshot { freshness: Freshness::Quorum, ..cached };
    assert_eq!(observe(&validating, &first), Observation::Events(vec![refused.clone()]));
    let rules = Rules::new(&policy, at(10_000), 0.0);
    let yielded = decide(&validating, &refused, &rules).journal;
    assert_eq!((&yielded.state, yielded.memory.not_before), (&State::Yielded, None));

    let refusal = Some(Refusal { until: at(10_060), again_at: at(10_001) });
    let stands = refusable(&evicted, None, refusal, rest);
    let check = desired(&yielded, &stands, &entry(Verdict::Pending, &[]), Ok(Vec::new())).unwrap();
    assert_eq!(check.state, Verdict::Retry, "Kueue reserves no quota for it");
    assert!(check.message.ends_with("Cause: TooManyNodes: 3 of 2 nodes"), "{}", check.message);
    assert_eq!(wake_at(&yielded, &stands), Some(at(10_060)));
    let over = refusable(&evicted, None, None, rest);
    let check = desired(&yielded, &over, &entry(Verdict::Retry, &[]), Ok(Vec::new())).unwrap();
    assert_eq!(check.state, Verdict::Pending, "something has changed");
    assert_eq!(desired(&yielded, &over, &entry(Verdict::Pending, &[]), Ok(Vec::new())), None);

    // Kueue was faster, and reserved quota before it saw Retry again.
    let again = Event::Reserved { admission: AdmissionId("2-1-a".into()), phase: AdmissionPhase::Reserved };
    let next = decide(&yielded, &again, &rules).journal;
    assert_eq!(next.state, State::Validating);
    let lost = refusable(&reserved, Some(&plan), refusal, rest);
    assert_eq!(
        observe(&validating, &lost),
        Observation::Events(Vec::new()),
        "a pause, so that this has an end"
    );
    assert_eq!(wake_at(&validating, &lost), Some(at(10_001)));
}

#[test]
fn a_step_acts_at_the_times_that_an_explanation_announces() {
    let (policy, reserved) = (Policy::default(), held(AdmissionPhase::Reserved));
    let full = Outcome::Wait(Obstacle::new(ObstacleReason::LimitExceeded, "full"));
    let coming = [ready(0), view(1, Health::Coming { waits_for: WaitsFor::Node, until: None })];
    let both = [ready(0), ready(1)];
    let cases: [(State, Option<&Outcome>, &[ClaimView], &str); 5] = [
        (State::BackingOff { until: at(40) }, None, &[], "WaitOver"),
        (State::Validating, Some(&full), &[], "NotPlannable"),
        (State::Provisioning, None, &[], "GangTimeout"),
        (State::WaitingReady, None, &coming, "GangTimeout"),
        (State::Approved { nodes: Nodes::Held }, None, &both, "NotAdmitted"),
    ];
    for (state, plan, claims, reason) in cases {
        let journal = journal(state);
        let snapshot = |now| Snapshot {
            plan,
            claims,
            freshness: Freshness::Quorum,
            ..Snapshot::of(now, &reserved, &policy)
        };
        let explanation = Explanation::of(&journal, &snapshot(at(10)), &[]);
        let announced = explanation.next_at.or(explanation.otherwise.map(|o| o.at)).unwrap();
        let cause = |now| match step(&journal, &snapshot(now)) {
            Step::Moved(moved) => moved.cause.map(|event| event.reason().to_string()),
            Step::Still | Step::NeedsQuorumRead | Step::NeedsPlanRead => None,
        };
        assert_eq!(cause(announced).as_deref(), Some(reason));
        assert_eq!(cause(announced - jiff::SignedDuration::from_secs(1)), None, "{reason}");
    }
}

#[test]
fn a_gang_without_a_plan_reports_when_it_stops_waiting() {
    let (policy, reserved, losses) = (Policy::default(), held(AdmissionPhase::Reserved), BTreeMap::new());
    let mut validating = journal(State::Validating);
    validating.memory.deadline = Some(at(900));
    let reported = |plan: Outcome| {
        let snapshot =
            Snapshot { plan: Some(&plan), losses: &losses, ..Snapshot::of(at(10), &reserved, &policy) };
        (
            check_message(&validating, &snapshot),
            Explanation::of(&validating, &snapshot, &[]).otherwise.map(|o| o.at),
        )
    };
    let (message, stops) = reported(Outcome::Wait(Obstacle::new(ObstacleReason::LimitExceeded, "full")));
    let end = format!("Continues automatically once this is fixed; stops waiting at {}", at(900));
    assert_eq!((message, stops), (format!("LimitExceeded: full. {end}"), Some(at(900))));
    for lasts in [
        Outcome::Wait(Obstacle::new(ObstacleReason::OtherChecks, "x")),
        Outcome::Wait(Obstacle::new(ObstacleReason::DryRun, "x")),
        Outcome::Refuse(Obstacle::new(ObstacleReason::TooManyNodes, "x")),
    ] {
        let (message, stops) = reported(lasts);
        assert!(!message.contains("stops waiting") && stops.is_none(), "{message}");
    }
}

#[test]
fn a_refused_create_ends_an_attempt_unless_pods_may_run_on_its_other_nodes() {
    let policy = Policy::default();
    let read = |state, phase, claims: &[ClaimView]| {
        let reservation = held(phase);
        let snapshot = Snapshot {
            create_refused: Some("Forbidden"),
            claims,
            freshness: Freshness::Quorum,
            ..Snapshot::of(at(10), &reservation, &policy)
        };
        observe(&journal(state), &snapshot)
    };
    let refused = Failure::new(FailureClass::Refused, "the API server refused a NodeClaim: Forbidden");
    let ended = Observation::Events(vec![Event::Failed(refused)]);
    assert_eq!(read(State::Provisioning, AdmissionPhase::Reserved, &[]), ended);
    let stands = Observation::Events(Vec::new());
    assert_eq!(read(State::Provisioning, AdmissionPhase::Admitted, &[ready(0)]), stands);
    assert_eq!(
        read(State::Approved { nodes: Nodes::Replacing }, AdmissionPhase::Admitted, &[ready(0)]),
        stands
    );
}
