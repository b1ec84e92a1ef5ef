//! Properties of every gang, whatever is observed: random observations walk the statechart.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use setu::api::parameters::{OnExhausted, Pinning};
use setu::gang::{
    AdmissionId, AdmissionPhase, Effect, Ending, Event, Failure, FailureClass, Journal, Nodes,
    OptionPosition, Rules, State, StateName, Then, decide, statechart::diagram,
};
use setu::plan::pod_set_labels::PodSetLabels;
use setu::plan::{Obstacle, ObstacleReason};
use setu::policy::Policy;
use setu::policy::terms::Terms;

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn new_journal() -> Journal {
    Journal::new("uid", AdmissionId("1-0-a".into()), start(), None)
}

fn rules(step: i64) -> Rules {
    Rules::new(&Policy::default(), start() + SignedDuration::from_secs(step * 10), 0.5)
}

fn event() -> impl Strategy<Value = Event> {
    let phase = prop_oneof![
        Just(AdmissionPhase::Reserved),
        Just(AdmissionPhase::Admitted),
        Just(AdmissionPhase::AdmittedPods)
    ];
    let admission =
        prop_oneof![Just("1-0-a"), Just("2-0-a"), Just("3-1-b")].prop_map(|e| AdmissionId(e.to_owned()));
    let ending = proptest::sample::select(&Ending::ALL[..]);
    prop_oneof![
        (admission, phase.clone()).prop_map(|(admission, phase)| Event::Reserved { admission, phase }),
        ending.clone().prop_map(Event::Leaving),
        ending.prop_map(Event::Gone),
        (proptest::sample::select(&FailureClass::ALL[..]), phase)
            .prop_map(|(c, phase)| Event::Lost { failure: Failure::new(c, "f"), phase }),
        (1..9_u32, 0..3_u32).prop_map(|(slots, option_index)| Event::Planned {
            slots,
            plan: "p".into(),
            pinning: Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: OptionPosition { tier: option_index, index: option_index, count: 3 },
        }),
        Just(Event::NothingNeeded),
        Just(Event::Impossible(Failure::new(FailureClass::NotPlannable, "never"))),
        Just(Event::ClaimsMissing(vec![0, 1])),
        Just(Event::ClaimsExist),
        Just(Event::NodesReady),
        Just(Event::ClaimsGone),
        Just(Event::WaitOver),
        Just(Event::CapacityBack),
        Just(Event::Unwanted(vec!["x".into()])),
        proptest::sample::select(&FailureClass::ALL[..]).prop_map(|c| Event::Failed(Failure::new(c, "f"))),
    ]
}

proptest! {
    #[test]
    fn every_step_is_an_edge_of_the_chart_and_increments_seq(events in proptest::collection::vec(event(), 0..60)) {
        let mut journal = new_journal();
        for (step, event) in (0_i64..).zip(&events) {
            let next = decide(&journal, event, &rules(step)).journal;
            prop_assert!(next.seq - journal.seq <= 1);
            if next.seq > journal.seq {
                let edge = (journal.state.name(), next.state.name());
                prop_assert!(diagram::edges().contains_key(&edge), "{edge:?} by {event:?}");
            } else {
                prop_assert_eq!(next.state.name(), journal.state.name());
            }
            journal = next;
        }
    }

    #[test]
    fn claims_are_created_only_when_needed_and_an_attempt_is_never_reused(events in proptest::collection::vec(event(), 0..80)) {
        let mut journal = new_journal();
        let mut rolled_back = 0;
        for (step, event) in (0_i64..).zip(&events) {
            let decision = decide(&journal, event, &rules(step));
            for effect in &decision.effects {
                if let Effect::CreateClaims(_) = effect {
                    let mends = journal.state == State::Approved { nodes: Nodes::Replacing };
                    prop_assert!(mends || journal.state == State::Provisioning);
                    prop_assert!(journal.memory.attempt > rolled_back);
                }
            }
            if decision.journal.state.name() == StateName::RollingBack {
                rolled_back = decision.journal.memory.attempt;
            }
            prop_assert!(decision.journal.memory.attempt >= journal.memory.attempt);
            journal = decision.journal;
        }
    }

    #[test]
    fn a_gang_that_was_told_to_run_is_torn_down_only_when_its_reservation_is_gone_or_its_nodes_are(event in event()) {
        let mut journal = new_journal();
        journal.state = State::Approved { nodes: Nodes::Held };
        journal.memory.slots = 2;
        let next = decide(&journal, &event, &rules(0)).journal;
        if next.state.name() == StateName::RollingBack {
            let lawful = match &event {
                Event::Gone(_) | Event::Failed(_) => true,
                Event::Lost { phase, .. } => *phase == AdmissionPhase::Reserved,
                Event::Reserved { admission, phase } => {
                    *phase == AdmissionPhase::Reserved && !admission.same_assignment(&journal.memory.admission)
                }
                _ => false,
            };
            prop_assert!(lawful, "{event:?}");
        }
    }

    #[test]
    fn a_journal_survives_whatever_is_in_the_annotation(text in ".{0,400}") {
        let _ = Journal::decode(&text, "uid", start(), start());
    }
}

fn failed(journal: &Journal, step: i64, policy: &Policy) -> Journal {
    let rules = Rules::new(policy, start() + SignedDuration::from_secs(step * 3_600), 0.0);
    let mut journal = journal.clone();
    let failure = Failure::new(FailureClass::InsufficientCapacity, "none left");
    for event in [
        Event::WaitOver,
        Event::Planned {
            slots: 2,
            plan: "p".into(),
            pinning: Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: OptionPosition::default(),
        },
        Event::Failed(failure),
        Event::ClaimsGone,
    ] {
        journal = decide(&journal, &event, &rules).journal;
    }
    journal
}

#[test]
fn quota_is_given_back_after_five_retries() {
    let mut journal = new_journal();
    for try_ in 0..5 {
        journal = failed(&journal, try_, &Policy::default());
        assert_eq!(journal.state.name(), StateName::BackingOff, "after try {try_}");
    }
    journal = failed(&journal, 5, &Policy::default());
    assert_eq!(journal.state, State::Yielded);
    assert_eq!((journal.memory.attempt, journal.memory.yields), (6, 1));
}

#[test]
fn returned_capacity_ends_a_backoff_early_and_the_next_attempt_counts_as_a_try() {
    let waits = failed(&new_journal(), 0, &Policy::default());
    let early = Rules::new(&Policy::default(), waits.entered_at + SignedDuration::from_secs(1), 0.0);
    assert_eq!(decide(&waits, &Event::WaitOver, &early).journal, waits, "its time is not over");
    let begins = decide(&waits, &Event::CapacityBack, &early).journal;
    assert_eq!((begins.state.clone(), begins.memory.tries), (State::Validating, 1));
    assert!(begins.memory.deadline > waits.memory.deadline, "the next attempt has its whole time");
    let again = failed(&begins, 0, &Policy::default());
    assert_eq!((again.state.name(), again.memory.tries), (StateName::BackingOff, 2));
}

#[test]
fn after_the_last_yield_a_gang_is_rejected_only_if_the_policy_says_so() {
    for (on_exhausted, end) in
        [(OnExhausted::Yield, StateName::Yielded), (OnExhausted::Reject, StateName::Rejected)]
    {
        let mut policy = Policy { on_exhausted, ..Policy::default() };
        policy.in_check.limit = 0;
        policy.yielding.limit = 1;
        let first = failed(&new_journal(), 0, &policy);
        assert_eq!(first.state.name(), StateName::Yielded);
        let reserved =
            Event::Reserved { admission: AdmissionId("2-1-a".into()), phase: AdmissionPhase::Reserved };
        let second = decide(&first, &reserved, &rules(1_000)).journal;
        assert_eq!(failed(&second, 2_000, &policy).state.name(), end);
    }
}

#[test]
fn an_admission_on_a_stale_ready_gives_the_quota_back() {
    let mut journal = new_journal();
    journal.state = State::Released;
    let stale = |phase| Event::Reserved { admission: AdmissionId("9-1-a".into()), phase };
    let next = decide(&journal, &stale(AdmissionPhase::Admitted), &rules(0)).journal;
    assert_eq!(next.state.name(), StateName::Yielded);
    // An eviction would delete the user's own pods, so their nodes are provided late instead.
    let next = decide(&journal, &stale(AdmissionPhase::AdmittedPods), &rules(0)).journal;
    assert_eq!(next.state.name(), StateName::Validating);
}

fn shortage() -> Event {
    Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "none left"))
}

#[test]
fn a_change_of_tier_is_one_rollback_that_keeps_the_quota_and_costs_no_try() {
    let mut journal = new_journal();
    let planned = |option_index| Event::Planned {
        slots: 4,
        plan: "p".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: OptionPosition { tier: option_index, index: option_index, count: 2 },
    };
    let mut take = |events: &[Event]| {
        for event in events {
            journal = decide(&journal, event, &rules(1)).journal;
        }
        (journal.state.clone(), journal.memory.tries, journal.memory.option)
    };
    let (state, tries, option) = take(&[planned(0), Event::ClaimsExist, shortage()]);
    assert_eq!((state, tries), (State::RollingBack { then: Then::BackingOff }, 0));
    assert_eq!((option.index, option.tier), (1, 0));
    let (state, ..) = take(&[Event::ClaimsGone]);
    assert_eq!(state, State::BackingOff { until: rules(1).now }, "nothing has to be waited for");
    let (state, tries, option) = take(&[Event::WaitOver, planned(1), Event::ClaimsExist]);
    assert_eq!((state, tries, option.tier), (State::WaitingReady, 0, 1));
    let (state, tries, option) = take(&[shortage(), Event::ClaimsGone]);
    assert!(matches!(state, State::BackingOff { until } if until > rules(1).now), "{state:?}");
    assert_eq!((tries, option.index), (1, 0), "after the last tier the round is over");
}

#[test]
fn a_closed_later_tier_ends_the_round_but_not_the_admission() {
    let mut journal = new_journal();
    journal.memory.option = OptionPosition { tier: 0, index: 1, count: 2 };
    let closed = Event::Failed(Failure::new(FailureClass::NotPlannable, "at its limit"));
    let next = decide(&journal, &closed, &rules(1)).journal;
    assert_eq!((next.state.name(), next.memory.tries), (StateName::BackingOff, 1));
    assert_eq!(decide(&new_journal(), &closed, &rules(1)).journal.state.name(), StateName::Yielded);
}

#[test]
fn a_refusal_for_something_that_may_still_appear_costs_no_yield_and_rejects_no_gang() {
    let mut policy = Policy { on_exhausted: OnExhausted::Reject, ..Policy::default() };
    policy.yielding.limit = 1;
    let rules = Rules::new(&policy, start(), 0.0);
    let refused = |journal: &Journal, reason| {
        let failure = Failure::of_obstacle(&Obstacle::new(reason, "no plan"));
        let journal = Journal { state: State::Validating, ..journal.clone() };
        decide(&journal, &Event::Refused(failure), &rules).journal
    };
    let counts = |journal: &Journal| (journal.state.name(), journal.memory.yields, journal.memory.waits);
    let (missing, too_many) = (ObstacleReason::NodePoolMissing, ObstacleReason::TooManyNodes);
    let twice = refused(&refused(&new_journal(), missing), missing);
    assert_eq!(counts(&twice), (StateName::Yielded, 0, 2));
    let once = refused(&twice, too_many);
    assert_eq!(counts(&once), (StateName::Yielded, 1, 2));
    assert_eq!(counts(&refused(&once, missing)), (StateName::Yielded, 1, 3));
    assert_eq!(counts(&refused(&once, too_many)), (StateName::Rejected, 1, 2));
    let option = OptionPosition::default();
    let planned = Event::Planned {
        slots: 2,
        plan: "p".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option,
    };
    let validating = Journal { state: State::Validating, ..once };
    assert_eq!(counts(&decide(&validating, &planned, &rules).journal), (StateName::Provisioning, 1, 0));
}

#[test]
fn the_deadline_and_terms_of_an_attempt_last_as_long_as_the_attempt() {
    let policy = Policy::default();
    let at = |second: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second);
    let limit = policy.deadlines.gang.signed();
    let after = |journal: &Journal, event: &Event, second| {
        decide(journal, event, &Rules::new(&policy, at(second), 0.0)).journal
    };
    let planned = Event::Planned {
        slots: 1,
        plan: "p".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: OptionPosition::default(),
    };
    let started = Journal::new("uid", AdmissionId("1-0-a".into()), at(0), None);
    let mut begun = after(&started, &planned, 10);
    assert_eq!(begun.memory.deadline, Some(at(10) + limit));
    begun.memory.terms = Terms::of(&policy, 0);
    let waiting = after(&begun, &Event::ClaimsExist, 20);
    assert_eq!(
        (waiting.memory.deadline, &waiting.memory.terms),
        (begun.memory.deadline, &begun.memory.terms)
    );
    let back = after(&waiting, &Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "")), 30);
    assert_eq!(back.memory.terms, begun.memory.terms, "what is given back is judged by it, too");
    let rests = after(&back, &Event::ClaimsGone, 40);
    assert_eq!((rests.state.name(), rests.memory.terms.clone()), (StateName::BackingOff, None));
    let again = after(&rests, &Event::CapacityBack, 50);
    assert_eq!((again.state.name(), again.memory.deadline), (StateName::Validating, Some(at(50) + limit)));
}
