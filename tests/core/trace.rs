//! A gang's trace as built from its journal: every state once, no gap, and the same from every replica.

#![allow(clippy::cast_possible_truncation, reason = "a test may panic")]

use jiff::{SignedDuration, Timestamp};
use setu::api::parameters::{OnNodeLost, Pinning};
use setu::api::{NodeClaim, Workload};
use setu::gang::trace::{
    AttributeValue, CutOff, KnownClaims, SpanStatus, Subject, TraceSpan, cut_off, spans,
};
use setu::gang::{
    AdmissionId, AdmissionPhase, Ending, Event, Failure, FailureClass, Journal, Rules, TraceContext, decide,
};
use setu::plan::pod_set_labels::PodSetLabels;
use setu::policy::Policy;
use std::collections::BTreeSet;
use std::sync::Arc;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_secs(second)
}

fn admission(number: u32) -> AdmissionId {
    AdmissionId(format!("{number}-0-a"))
}

fn planned() -> Event {
    Event::Planned {
        slots: 2,
        plan: "p".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: setu::gang::OptionPosition::default(),
    }
}

fn shortage() -> Event {
    Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "none left"))
}

fn subject() -> Subject {
    Subject {
        gang: "g".into(),
        workload: "w".into(),
        namespace: "n".into(),
        check: "c".into(),
        ..Subject::default()
    }
}

/// A NodeClaim whose conditions became True at these seconds.
fn claim(slot: u32, attempt: u32, created: i64, conditions: &[(&str, i64)]) -> Arc<NodeClaim> {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(kind, second)| {
            serde_json::json!({
                "type": kind, "status": "True", "reason": "", "message": "",
                "lastTransitionTime": at(*second).to_string(),
            })
        })
        .collect();
    Arc::new(serde_json::from_value(serde_json::json!({
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {
            "name": format!("claim-{slot}"), "creationTimestamp": at(created).to_string(),
            "labels": {"setu.kueue.x-k8s.io/attempt": attempt.to_string(), "karpenter.sh/nodepool": "gpu"},
            "annotations": {"setu.kueue.x-k8s.io/slot": slot.to_string()},
        },
        "spec": {"nodeClassRef": {"group": "", "kind": "", "name": ""}},
        "status": {"nodeName": format!("node-{slot}"), "conditions": conditions},
    }))
    .unwrap())
}

/// Applies events to a journal, one every ten seconds and each by another replica. Returns the journal and
/// the spans.
fn live(mut journal: Journal, events: &[Event], claims: &[Arc<NodeClaim>]) -> (Journal, Vec<TraceSpan>) {
    let mut policy = Policy::default();
    policy.in_check.max = policy.in_check.base;
    let mut made = Vec::new();
    for (index, event) in (1_i64..).zip(events) {
        let now = journal.entered_at + SignedDuration::from_secs(10);
        let before = journal.clone();
        journal = decide(&journal, event, &Rules::new(&policy, now, 0.0)).journal;
        let by = format!("replica-{}", index % 2);
        if journal.seq != before.seq {
            journal.sign(&by);
        }
        if journal.trace_context() != before.trace_context() {
            let end = CutOff { at: now, why: Ending::Superseded, by: &by };
            made.extend(cut_off(&before, end, KnownClaims::Then(claims), &subject()));
        }
        made.extend(spans(&journal, KnownClaims::Then(claims), &subject(), before.seq));
    }
    (journal, made)
}

fn new() -> Journal {
    Journal::new("uid", admission(1), at(0), None)
}

fn named<'a>(all: &'a [TraceSpan], name: &str) -> Vec<&'a TraceSpan> {
    all.iter().filter(|s| s.name == name).collect()
}

fn whole_life() -> Vec<Event> {
    vec![
        planned(),
        shortage(),
        Event::ClaimsGone,
        Event::WaitOver,
        planned(),
        Event::ClaimsExist,
        Event::NodesReady,
        Event::Gone(Ending::Finished),
        Event::ClaimsGone,
    ]
}

#[test]
fn a_trace_has_each_state_once_under_its_root_without_gaps() {
    let (journal, all) = live(new(), &whole_life(), &[]);
    let ids: BTreeSet<[u8; 8]> = all.iter().map(|s| s.id).collect();
    assert_eq!(ids.len(), all.len(), "an id was used twice");
    let roots = named(&all, "gang");
    let [root] = roots.as_slice() else { panic!("{} roots", roots.len()) };
    assert_eq!((root.start, root.end, root.status.clone()), (at(0), at(90), SpanStatus::Good));
    assert_eq!(TraceContext { trace: root.trace, root: root.id }.to_string(), journal.traceparent);
    let mut states: Vec<&TraceSpan> = all.iter().filter(|s| s.parent == Some(root.id)).collect();
    states.sort_by_key(|s| s.start);
    let names: Vec<&str> = states.iter().map(|s| s.name).collect();
    let path = [
        "Validating",
        "Provisioning",
        "RollingBack",
        "BackingOff",
        "Validating",
        "Provisioning",
        "WaitingReady",
        "Approved",
        "RollingBack",
        "Released",
    ];
    assert_eq!(names, path);
    for pair in states.windows(2) {
        assert_eq!(pair[0].end, pair[1].start, "between {} and {}", pair[0].name, pair[1].name);
    }
    assert_eq!((states[0].start, states[9].end), (root.start, root.end));
    let workers: BTreeSet<&str> = states.iter().map(|s| s.by.as_str()).collect();
    assert_eq!(workers.len(), 2);
}

#[test]
fn a_replica_that_knows_only_the_journal_makes_the_same_spans() {
    let (journal, mut made) = live(new(), &whole_life(), &[]);
    let again = Journal::decode(&journal.encode(), "uid", at(0), at(900)).unwrap();
    let mut remade = spans(&again, KnownClaims::Left(&[]), &subject(), 0);
    // Nothing is known about claims that are gone.
    made.retain(|s| s.name != "NodeClaim");
    made.sort_by_key(|s| s.id);
    remade.sort_by_key(|s| s.id);
    assert_eq!(made, remade);
    assert!(spans(&again, KnownClaims::Left(&[]), &subject(), again.seq).is_empty());
}

#[test]
fn node_spans_are_children_of_their_state_with_a_span_per_phase() {
    let done = [("Launched", 14), ("Registered", 17), ("Initialized", 25)];
    let claims = [claim(0, 1, 10, &done), claim(1, 1, 11, &done), claim(0, 9, 10, &done)];
    let (_, all) = live(new(), &[planned(), Event::ClaimsExist, Event::NodesReady], &claims);
    let waiting = named(&all, "WaitingReady")[0];
    let nodes = named(&all, "NodeClaim");
    assert_eq!(nodes.len(), 2);
    for (node, created) in nodes.iter().zip([10, 11]) {
        assert_eq!((node.parent, node.start, node.end), (Some(waiting.id), at(created), at(25)));
        assert_eq!(node.status, SpanStatus::Good);
        let phases: Vec<_> = all.iter().filter(|s| s.parent == Some(node.id)).collect();
        let times: Vec<_> = phases.iter().map(|p| (p.name, p.start, p.end)).collect();
        let expected =
            [("launch", at(created), at(14)), ("register", at(14), at(17)), ("initialize", at(17), at(25))];
        assert_eq!(times, expected);
    }
    assert!(nodes[1].attributes.contains(&("k8s.node.name", AttributeValue::Text("node-1".into()))));
}

/// The replacement claim of a slot.
fn replacement(slot: u32, created: i64, conditions: &[(&str, i64)]) -> Arc<NodeClaim> {
    let mut claim = claim(slot, 1, created, conditions);
    let annotations = Arc::make_mut(&mut claim).metadata.annotations.get_or_insert_default();
    annotations.insert("setu.kueue.x-k8s.io/generation".to_owned(), "1".to_owned());
    claim
}

#[test]
fn a_lost_node_is_reported_at_once_and_the_others_when_they_are_ready() {
    let done = |from: i64| [("Launched", from + 2), ("Registered", from + 3), ("Initialized", from + 5)];
    let lost = Event::Lost {
        failure: Failure::new(FailureClass::Interrupted, "gone"),
        phase: AdmissionPhase::Reserved,
    };
    let (journal, mut all) =
        live(new(), &[planned(), Event::ClaimsExist, lost], &[claim(1, 1, 10, &done(10))]);
    let nodes = named(&all, "NodeClaim");
    assert_eq!(nodes.len(), 1, "the other one goes on");
    assert!(matches!(&nodes[0].status, SpanStatus::Failed(why) if why.contains("lost")));
    assert!(nodes[0].attributes.contains(&("setu.slot", AttributeValue::Number(0))));
    let claims = [replacement(0, 31, &done(31)), claim(1, 1, 10, &done(10))];
    let (_, more) = live(journal, &[Event::ClaimsExist, Event::NodesReady], &claims);
    let came: Vec<_> = named(&more, "NodeClaim").iter().map(|n| (n.status.clone(), n.start, n.end)).collect();
    assert_eq!(came, [(SpanStatus::Good, at(31), at(36)), (SpanStatus::Good, at(10), at(15))]);
    all.extend(more);
    let ids: BTreeSet<_> = all.iter().map(|s| s.id).collect();
    assert_eq!(ids.len(), all.len(), "no id stands for two spans");
}

#[test]
fn a_replacement_in_a_running_gang_is_reported_under_the_stay_in_which_it_came_up() {
    let done = |from: i64| [("Launched", from + 2), ("Registered", from + 3), ("Initialized", from + 5)];
    let lost = || Event::Lost {
        failure: Failure::new(FailureClass::Interrupted, "gone"),
        phase: AdmissionPhase::Admitted,
    };
    let replaces = Policy { on_node_lost: OnNodeLost::Replace, ..Policy::default() };
    let mut journal = live(new(), &[planned(), Event::ClaimsExist, Event::NodesReady], &[]).0;
    let mut made = Vec::new();
    let second = {
        let mut claim = replacement(1, 50, &[("Launched", 52)]);
        Arc::make_mut(&mut claim).metadata.name = Some("second".into());
        claim
    };
    let firsts = [claim(0, 1, 10, &done(10)), claim(1, 1, 10, &done(10))];
    let come = [replacement(0, 40, &done(40)), firsts[1].clone()];
    let end = [come[0].clone(), second];
    let steps = [(40, lost(), &firsts), (50, lost(), &come), (60, Event::Gone(Ending::Finished), &end)];
    for (second, event, claims) in steps {
        let before = journal.seq;
        journal = decide(&journal, &event, &Rules::new(&replaces, at(second), 0.0)).journal;
        let then = spans(&journal, KnownClaims::Then(claims), &subject(), before);
        // A new leader reports the same for nodes that had already ended.
        assert_eq!(spans(&journal, KnownClaims::Left(claims), &subject(), before), then);
        made.push(then);
    }
    assert!(named(&made[0], "NodeClaim").is_empty(), "those were reported when they came up");
    let of = |index: usize| -> Vec<_> {
        named(&made[index], "NodeClaim")
            .iter()
            .map(|n| (n.start, n.end, n.parent, n.status == SpanStatus::Good))
            .collect()
    };
    let stay = |index: usize| Some(named(&made[index], "Approved")[0].id);
    assert_eq!(of(1), [(at(40), at(45), stay(1), true)]);
    assert_eq!(of(2), [(at(50), at(60), stay(2), false)], "it was reported before, and the other never came");
    assert_eq!(named(&made[2], "launch").len(), 1);
}

#[test]
fn a_failed_attempts_nodes_are_reported_again_only_if_they_are_left_and_unchanged() {
    let claims = [claim(0, 1, 12, &[("Launched", 15)]), claim(1, 1, 12, &[("Launched", 16)])];
    let events = [planned(), Event::ClaimsExist, shortage()];
    let (journal, all) = live(new(), &events, &claims);
    let left =
        |claims: &[Arc<NodeClaim>]| spans(&journal, KnownClaims::Left(claims), &subject(), journal.seq - 1);
    let nodes: Vec<_> = left(&claims[1..]).into_iter().filter(|s| s.name == "NodeClaim").collect();
    assert_eq!(nodes.len(), 1, "one is gone");
    assert!(nodes.iter().all(|node| all.contains(node)));
    // Registered in the same second as the transition, so possibly before or after it.
    let since = [claim(0, 1, 12, &[("Launched", 15), ("Registered", 30)])];
    assert!(named(&left(&since), "NodeClaim").is_empty());
}

#[test]
fn a_tier_change_is_an_event_of_the_state_that_chose_it() {
    let option = |tier: u32| setu::gang::OptionPosition { tier, index: tier, count: 2 };
    let planned = |tier: u32| Event::Planned {
        slots: 2,
        plan: "p".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: option(tier),
    };
    let events = [planned(0), shortage(), Event::ClaimsGone, Event::WaitOver, planned(1), Event::ClaimsExist];
    let (_, all) = live(new(), &events, &[]);
    let changes: Vec<_> = all
        .iter()
        .flat_map(|s| s.events.iter().map(move |e| (s.name, e)))
        .filter(|(_, e)| e.name == "tier change")
        .collect();
    assert_eq!(changes.len(), 1);
    assert_eq!(
        (changes[0].0, &changes[0].1.attributes),
        ("Validating", &vec![("setu.tier", AttributeValue::Number(1))])
    );
}

#[test]
fn a_workload_deleted_while_nodes_come_up_reports_how_far_they_came() {
    let claims = [claim(0, 1, 12, &[("Launched", 15), ("Registered", 17)])];
    let (journal, _) = live(new(), &[planned(), Event::ClaimsExist], &claims);
    let end = CutOff { at: at(50), why: Ending::Deleted, by: "r" };
    let all = cut_off(&journal, end, KnownClaims::Then(&claims), &subject());
    let state = named(&all, "WaitingReady")[0];
    let nodes = named(&all, "NodeClaim");
    let why = SpanStatus::Failed("not ready when the attempt was given up: Deleted".into());
    assert_eq!(nodes.len(), 2, "a slot without a claim counts too");
    assert_eq!((nodes[0].parent, &nodes[0].status, nodes[0].end), (Some(state.id), &why, at(50)));
    assert_eq!(named(&all, "register")[0].end, at(17));
    assert_eq!(named(&all, "initialize")[0].status, why);
    // A gang that ran has already reported its nodes.
    let (journal, _) = live(new(), &[planned(), Event::ClaimsExist, Event::NodesReady], &claims);
    assert_eq!(cut_off(&journal, end, KnownClaims::Then(&claims), &subject()).len(), 2);
}

#[test]
fn a_failed_attempt_has_its_reason_and_the_next_one_links_to_it() {
    let claims = [claim(0, 1, 12, &[("Launched", 15)])];
    let events = [
        planned(),
        Event::ClaimsExist,
        shortage(),
        Event::ClaimsGone,
        Event::WaitOver,
        planned(),
        Event::ClaimsExist,
    ];
    let (_, all) = live(new(), &events, &claims);
    let why = SpanStatus::Failed("InsufficientCapacity: none left".into());
    assert_eq!(named(&all, "WaitingReady")[0].status, why);
    let nodes = named(&all, "NodeClaim");
    assert!(
        nodes
            .iter()
            .all(|n| matches!(&n.status, SpanStatus::Failed(why) if why.contains("InsufficientCapacity")))
    );
    assert_eq!(nodes.len(), 2, "the slot without a claim counts too");
    assert_eq!(named(&all, "launch")[0].status, SpanStatus::Good);
    assert_eq!(named(&all, "register")[0].end, at(30));
    assert!(named(&all, "initialize").is_empty());
    let rolled_back = named(&all, "RollingBack")[0];
    assert_eq!(rolled_back.events[0].name, "retry");
    let attempts = named(&all, "Provisioning");
    assert_eq!(attempts[1].links, [TraceContext { trace: attempts[0].trace, root: attempts[0].id }]);
}

#[test]
fn a_new_admission_starts_a_new_trace_linked_to_the_previous_one() {
    let again = Event::Reserved { admission: admission(2), phase: AdmissionPhase::Reserved };
    let ended = Event::Gone(Ending::Evicted);
    // Superseded while the gang was active, and after it had ended.
    for first in [vec![again.clone(), ended.clone()], vec![ended.clone(), again.clone(), ended]] {
        let (_, all) = live(new(), &first, &[]);
        let roots = named(&all, "gang");
        assert_eq!(roots.len(), 2, "{first:?}");
        assert_ne!(roots[0].trace, roots[1].trace);
        assert_eq!(roots[1].links, [TraceContext { trace: roots[0].trace, root: roots[0].id }]);
        for root in roots {
            let mut states: Vec<_> = all.iter().filter(|s| s.parent == Some(root.id)).collect();
            states.sort_by_key(|s| s.start);
            assert_eq!(states[0].start, root.start);
            assert_eq!(states[states.len() - 1].end, root.end);
        }
    }
}

#[test]
fn an_admission_that_resumes_after_its_end_starts_a_new_linked_trace() {
    let again = Event::Reserved { admission: admission(1), phase: AdmissionPhase::Reserved };
    let ended = Event::Gone(Ending::CheckRemoved);
    let events = [ended.clone(), again.clone(), planned(), ended.clone(), Event::ClaimsGone, again, ended];
    let (_, all) = live(new(), &events, &[]);
    let roots = named(&all, "gang");
    assert_eq!(roots.len(), 3);
    let traces: BTreeSet<_> = roots.iter().map(|root| root.trace).collect();
    assert_eq!(traces.len(), 3, "each has its own");
    for pair in roots.windows(2) {
        assert_eq!(pair[1].links, [TraceContext { trace: pair[0].trace, root: pair[0].id }]);
    }
    for root in roots {
        let mut states: Vec<_> = all.iter().filter(|s| s.parent == Some(root.id)).collect();
        states.sort_by_key(|s| (s.start, s.end));
        assert_eq!((states[0].start, states[states.len() - 1].end), (root.start, root.end));
    }
}

#[test]
fn a_state_reported_again_is_unchanged_whatever_happened_since() {
    let (journal, made) = live(new(), &[planned(), shortage(), Event::ClaimsGone], &[]);
    let larger = Event::Planned {
        slots: 5,
        plan: "q".into(),
        pinning: Pinning::Selector,
        pod_sets: PodSetLabels::default(),
        option: setu::gang::OptionPosition::default(),
    };
    let (later, _) = live(journal, &[Event::WaitOver, larger, Event::ClaimsExist], &[]);
    let moved = Subject { cluster_queue: "another".into(), ..subject() };
    let again = spans(&later, KnownClaims::Left(&[]), &moved, 0);
    for span in made.iter().filter(|s| s.name != "NodeClaim") {
        assert_eq!(again.iter().find(|s| s.id == span.id), Some(span));
    }
}

#[test]
fn the_root_span_starts_with_its_epoch_even_if_the_history_is_truncated() {
    let mut events = vec![];
    for _ in 0..5 {
        events.extend([planned(), shortage(), Event::ClaimsGone, Event::WaitOver]);
    }
    // Ready, lost, and waiting again, within one admission.
    events.extend([planned(), Event::ClaimsExist]);
    for _ in 0..10 {
        events.extend([
            Event::NodesReady,
            Event::Reserved { admission: admission(1), phase: AdmissionPhase::Reserved },
        ]);
    }
    events.extend([Event::Gone(Ending::Deactivated), Event::ClaimsGone]);
    let (journal, all) = live(new(), &events, &[]);
    assert!(journal.history.len() < journal.seq as usize);
    assert_eq!(named(&all, "gang")[0].start, at(0));
}

#[test]
fn a_job_may_name_the_trace_it_was_submitted_in_and_is_linked_never_obeyed() {
    let mut workload = Workload::new("w", setu::api::workload::WorkloadSpec::default());
    let theirs = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    workload.metadata.annotations = Some([("traceparent".to_owned(), theirs.to_owned())].into());
    let subject = Subject::of(&workload, "g", "c");
    let mut journal = new();
    // A forged journal cannot put spans into a foreign trace either.
    journal.traceparent = theirs.to_owned();
    let end = CutOff { at: at(5), why: Ending::Deleted, by: "r" };
    let root = &cut_off(&journal, end, KnownClaims::Left(&[]), &subject)[1];
    assert_eq!(root.links[0].to_string(), theirs);
    assert_ne!(root.trace, root.links[0].trace);
    workload.metadata.annotations = Some([("traceparent".to_owned(), "what?".to_owned())].into());
    assert_eq!(Subject::of(&workload, "g", "c").submitted_in, None);
}
