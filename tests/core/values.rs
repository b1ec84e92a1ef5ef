//! Each policy value that the core uses changes what happens to a gang, without any other value being
//! changed.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use setu::api::parameters::{Pinning, ProvisioningParametersSpec};
use setu::api::{Node, NodeClaim};
use setu::gang::{
    AdmissionId, AdmissionPhase, ClaimView, Event, Failure, FailureClass, Freshness, Health, Journal, Nodes,
    Observation, Reservation, Rules, Snapshot, State, StateName, decide, observe,
};
use setu::plan::pod_set_labels::PodSetLabels;
use setu::policy::Policy;

fn policy(yaml: &str) -> Policy {
    let spec: ProvisioningParametersSpec = serde_yaml::from_str(yaml).unwrap();
    Policy::default().overlaid(&spec).in_force()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Checks that changing `yaml` alone turns `before` into `after`.
fn changes<T: PartialEq + std::fmt::Debug>(
    yaml: &str,
    outcome: impl Fn(&Policy) -> T,
    (before, after): (T, T),
) {
    assert_ne!(before, after);
    assert_eq!(outcome(&policy("{}")), before, "by default");
    assert_eq!(outcome(&policy(yaml)), after, "with {yaml}");
}

/// A claim created at 0 whose conditions up to `reached` are True since 5.
fn claim(reached: &str) -> NodeClaim {
    let phases = ["Launched", "Registered", "Initialized"];
    let done = phases.iter().position(|p| *p == reached).map_or(0, |n| n + 1);
    let condition = |kind: &&str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": at(5).to_string()});
    let conditions: Vec<Value> = phases[..done].iter().map(condition).collect();
    serde_json::from_value(json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": "c", "uid": "u", "creationTimestamp": at(0).to_string(),
            "labels": {"setu.kueue.x-k8s.io/attempt": "1"}, "annotations": {"setu.kueue.x-k8s.io/slot": "0"},
        },
        "spec": {
            "requirements": [], "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
            "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": "8"}},
        },
        "status": {"nodeName": "n", "conditions": conditions},
    }))
    .unwrap()
}

/// A node with this much CPU and this many GPUs.
fn node(cpu: &str, gpus: &str) -> Node {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "labels": {"rack": "r1"}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "GpuHealthy", "status": "True"}],
            "allocatable": {"cpu": cpu, "nvidia.com/gpu": gpus},
        },
    }))
    .unwrap()
}

fn is_ready(policy: &Policy, node: &Node, now: i64) -> bool {
    ClaimView::of(&claim("Initialized"), Some(node), policy, at(now), None).is_ready()
}

fn failed(policy: &Policy, reached: &str, now: i64) -> Option<FailureClass> {
    match ClaimView::of(&claim(reached), None, policy, at(now), None).health {
        Health::Failed(failure) => Some(failure.reason),
        _ => None,
    }
}

#[test]
fn each_phase_deadline_applies_to_its_phase() {
    for (yaml, reached, class) in [
        ("deadlines: {launch: 1m}", "", FailureClass::LaunchTimeout),
        ("deadlines: {register: 1m}", "Launched", FailureClass::RegistrationTimeout),
        ("deadlines: {initialize: 1m}", "Registered", FailureClass::InitializationTimeout),
    ] {
        changes(yaml, |p| failed(p, reached, 60), (None, Some(class)));
    }
}

#[test]
fn the_policy_decides_when_a_node_is_ready() {
    let good = node("16", "8");
    for yaml in [
        "strategy: {bufferTime: 20s}",
        "readiness: {nodeLabels: {rack: r2}}",
        "readiness: {nodeLabels: {spine: ''}}",
        "readiness: {nodeConditions: [{type: NetworkReady}]}",
        "readiness: {nodeConditions: [{type: GpuHealthy, status: 'False'}]}",
    ] {
        changes(yaml, |p| is_ready(p, &good, 20), (true, false));
    }
    for yaml in ["readiness: {nodeLabels: {rack: r1}}", "readiness: {nodeConditions: [{type: GpuHealthy}]}"] {
        assert!(is_ready(&policy(yaml), &good, 20), "{yaml}");
    }
    changes("readiness: {allocatable: Devices}", |p| is_ready(p, &node("1", "8"), 20), (false, true));
    changes("readiness: {allocatable: None}", |p| is_ready(p, &node("1", "7"), 20), (false, true));
    assert!(!is_ready(&policy("readiness: {allocatable: Devices}"), &node("1", "7"), 20));
}

#[test]
fn a_node_that_was_unready_is_waited_for_and_restarts_its_buffer_time() {
    let seen = |status: &str, changed: i64, now: i64| {
        let mut node = node("16", "8");
        node.status.conditions[0].status = status.into();
        node.status.conditions[0].last_transition_time = Some(at(changed));
        let policy = policy("strategy: {bufferTime: 20s}");
        ClaimView::of(&claim("Initialized"), Some(&node), &policy, at(now), None).health
    };
    assert!(matches!(seen("True", 0, 100), Health::Ready { .. }));
    assert!(matches!(seen("Unknown", 90, 500), Health::Coming { .. }), "it is no failure");
    assert!(matches!(seen("True", 90, 109), Health::Coming { .. }));
    assert_eq!(seen("True", 90, 110), Health::Ready { since: at(90) });
    // A clock that is ahead of ours delays nothing.
    assert!(matches!(seen("True", 9_000, 100), Health::Ready { .. }));
}

/// Runs a gang through attempts that all fail at once, with a new admission after each yield. Returns how
/// long it waited before each try, and its last state.
fn retries(policy: &Policy, jitter: f64, class: FailureClass) -> (Vec<i64>, StateName) {
    let mut now = at(0);
    let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), now, None);
    let mut waits = Vec::new();
    let take = |journal: &mut Journal, event: Event, now: Timestamp| {
        *journal = decide(journal, &event, &Rules::new(policy, now, jitter)).journal;
    };
    while waits.len() < 12 {
        take(
            &mut journal,
            Event::Planned {
                slots: 1,
                plan: "p".into(),
                pinning: Pinning::Selector,
                pod_sets: PodSetLabels::default(),
                option: setu::gang::OptionPosition::default(),
            },
            now,
        );
        take(&mut journal, Event::Failed(Failure::new(class, "none")), now);
        take(&mut journal, Event::ClaimsGone, now);
        let until = match &journal.state {
            State::BackingOff { until } => *until,
            State::Yielded => {
                let until = journal.memory.not_before.unwrap();
                let admission = AdmissionId(format!("{}-1-a", waits.len() + 2));
                take(&mut journal, Event::Reserved { admission, phase: AdmissionPhase::Reserved }, now);
                until
            }
            _ => break,
        };
        waits.push(until.duration_since(now).as_secs());
        now = until;
        take(&mut journal, Event::WaitOver, now);
    }
    (waits, journal.state.name())
}

fn waits(policy: &Policy) -> Vec<i64> {
    retries(policy, 0.0, FailureClass::InsufficientCapacity).0
}

#[test]
fn each_retry_value_takes_effect() {
    let first = |n: usize| move |p: &Policy| waits(p)[..n].to_vec();
    let quick = vec![5, 10, 20, 40, 80, 60];
    changes("retry: {inCheck: {limit: 2}}", first(3), (quick[..3].to_vec(), vec![5, 10, 60]));
    changes("retry: {inCheck: {base: 7s}}", first(2), (vec![5, 10], vec![7, 14]));
    changes("retry: {inCheck: {max: 15s}}", first(4), (quick[..4].to_vec(), vec![5, 10, 15, 15]));
    changes("retry: {yield: {base: 90s}}", first(6), (quick.clone(), vec![5, 10, 20, 40, 80, 90]));
    let yields = |p: &Policy| {
        let p = Policy { in_check: setu::policy::RetryStrategy { limit: 0, ..p.in_check }, ..p.clone() };
        waits(&p)[..6].to_vec()
    };
    changes(
        "retry: {yield: {max: 100s}}",
        yields,
        (vec![60, 120, 240, 480, 960, 1_800], vec![60, 100, 100, 100, 100, 100]),
    );
}

#[test]
fn the_policy_decides_what_happens_once_retries_are_exhausted() {
    let end = |yaml: &'static str| {
        move |p: &Policy| {
            let short: ProvisioningParametersSpec = serde_yaml::from_str(yaml).unwrap();
            let (waits, end) = retries(&p.clone().overlaid(&short), 0.0, FailureClass::InsufficientCapacity);
            (waits.len(), end)
        }
    };
    let used_up = "retry: {inCheck: {limit: 1}, yield: {limit: 1}}";
    // Backoff with the quota held, one yield, backoff with the quota held again, and then it is rejected.
    changes(
        "retry: {onExhausted: Reject}",
        end(used_up),
        ((12, StateName::Validating), (3, StateName::Rejected)),
    );
    let rejecting = "retry: {inCheck: {limit: 1}, onExhausted: Reject}";
    changes(
        "retry: {yield: {limit: 0}}",
        end(rejecting),
        ((7, StateName::Rejected), (1, StateName::Rejected)),
    );
}

#[test]
fn compat_mode_retries_five_times_without_jitter_and_then_rejects() {
    let setu = policy("retry: {compat: Setu}");
    let capacity = retries(&setu, 0.9, FailureClass::InsufficientCapacity);
    assert_eq!(capacity, (vec![5, 10, 20, 40, 80], StateName::Rejected));
    assert_eq!(retries(&setu, 0.9, FailureClass::GangTimeout), (Vec::new(), StateName::Rejected));
    let now = policy("{}");
    assert_ne!(retries(&now, 0.9, FailureClass::InsufficientCapacity).0[..5], [5, 10, 20, 40, 80]);
    assert_eq!(retries(&now, 0.9, FailureClass::GangTimeout).1, StateName::Validating);
}

fn journal(state: State, deadline: i64) -> Journal {
    let mut journal = Journal::new("u", AdmissionId("1-0-a".into()), at(0), Some(at(deadline)));
    journal.state = state;
    journal.seq = 2;
    journal.memory.attempt = 1;
    journal.memory.slots = 1;
    journal
}

/// The failure of a gang with one node whose claim was created at 0.
fn seen(policy: &Policy, journal: &Journal, reached: &str, now: i64) -> Option<FailureClass> {
    let reservation =
        Reservation::Held { admission: AdmissionId("1-0-a".into()), phase: AdmissionPhase::Reserved };
    let mut view = ClaimView::of(&claim(reached), Some(&node("16", "8")), policy, at(now), None);
    view.held_until = Some(at(0) + policy.hold_limit.signed());
    let snapshot = Snapshot {
        claims: &[view],
        freshness: Freshness::Quorum,
        ..Snapshot::of(at(now), &reservation, policy)
    };
    match observe(journal, &snapshot) {
        Observation::Events(events) => events.into_iter().find_map(|e| match e {
            Event::Failed(failure) => Some(failure.reason),
            _ => None,
        }),
        Observation::NeedsQuorumRead | Observation::NeedsPlanRead => None,
    }
}

#[test]
fn the_policy_limits_how_long_a_ready_gang_waits_for_admission() {
    let approved =
        |p: &Policy| seen(p, &journal(State::Approved { nodes: Nodes::Held }, 900), "Initialized", 600);
    let not_admitted = Some(FailureClass::NotAdmitted);
    changes("deadlines: {admit: 10m}", approved, (None, not_admitted));
    changes("custody: {holdLimit: 10m}", approved, (None, not_admitted));
    let waiting = |p: &Policy| seen(p, &journal(State::WaitingReady, 900), "Registered", 300);
    changes("custody: {holdLimit: 5m}", waiting, (None, Some(FailureClass::GangTimeout)));
}

#[test]
fn the_policy_limits_how_long_an_attempt_takes() {
    let deadline = |p: &Policy| {
        let planned = Event::Planned {
            slots: 1,
            plan: "p".into(),
            pinning: Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: setu::gang::OptionPosition::default(),
        };
        let begun = decide(&journal(State::Validating, 0), &planned, &Rules::new(p, at(0), 0.0)).journal;
        begun.memory.deadline.unwrap().duration_since(at(0))
    };
    let minutes = SignedDuration::from_mins;
    changes("deadlines: {gang: 1m}", deadline, (minutes(15), minutes(1)));
    let late = |p: &Policy| seen(p, &journal(State::WaitingReady, 300), "Registered", 300);
    assert_eq!(late(&policy("{}")), Some(FailureClass::GangTimeout));
}
