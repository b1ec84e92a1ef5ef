//! Dramas that random seeds may miss: leaders that do not know of each other, clock skew, neighbours that never
//! recover, many gangs at once, and blocked telemetry.

use super::each;
use super::single::{courses, differs};
use jiff::SignedDuration;
use serde_json::json;
use setu::gang::StateName;
use setu::sim::drama::{Drama, DramaOutcome, GangRole, Scene};
use setu::sim::moves::Move;
use setu::telemetry::metrics;
use setu_sim::faults::{Rates, WriteFault};
use std::collections::BTreeMap;

/// Plays named dramas. Each must succeed, and end like its reference if it has one.
fn all_go_well(all: &[(String, Drama, Option<&DramaOutcome>)]) -> Vec<DramaOutcome> {
    let played = each(all, |(name, drama, reference)| {
        let outcome = drama.play(false).unwrap();
        let wrong = outcome.violations.first().map(ToString::to_string);
        let other = || reference.and_then(|reference| differs(reference, &outcome, drama));
        (wrong.or_else(other).map(|wrong| format!("{name}: {wrong}")), outcome)
    });
    let (wrong, outcomes): (Vec<Option<String>>, Vec<DramaOutcome>) = played.into_iter().unzip();
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{} of {} failed:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    outcomes
}

/// A name, and a change to a drama.
type Change<'c> = (&'c str, &'c (dyn Fn(&mut Drama) + Sync));

/// Checks that every course, with each change, ends as it does without it. Returns all runs, change by change.
fn every_course_with(changes: &[Change<'_>]) -> Vec<DramaOutcome> {
    let courses = courses();
    let references: Vec<DramaOutcome> = each(&courses, |course| course.drama.play(false).unwrap());
    let mut all = Vec::new();
    for (what, change) in changes {
        for (course, reference) in courses.iter().zip(&references) {
            let mut drama = course.drama.clone();
            change(&mut drama);
            all.push((format!("{}, {what}", course.name), drama, Some(reference)));
        }
    }
    all_go_well(&all)
}

#[test]
fn two_permanent_leaders_do_no_harm() {
    let far = Rates { lag: 3_000, ..Rates::default() };
    every_course_with(&[
        ("two leaders", &|drama| drama.replicas = vec![0, 0]),
        ("two leaders that see late", &|drama| {
            drama.replicas = vec![0, 0];
            drama.rates = far.clone();
        }),
    ]);
}

#[test]
fn a_clock_skew_of_an_hour_does_no_harm() {
    every_course_with(&[
        ("an hour fast", &|drama| drama.replicas = vec![3_600]),
        ("one fast and one slow", &|drama| drama.replicas = vec![3_600, -3_600]),
    ]);
}

#[test]
fn a_clock_jump_does_no_harm() {
    let jumps = |at: u64, seconds: i64| {
        move |drama: &mut Drama| {
            drama.scenes.push((at, Scene::Clock(0, seconds)));
            drama.scenes.sort_by_key(|(at, _)| *at);
            drama.chaos = drama.chaos.max(at + 1_000);
        }
    };
    let all = every_course_with(&[
        ("an hour back at the start", &jumps(500, -3_600)),
        ("an hour back while nodes come up", &jumps(5_000, -3_600)),
        ("an hour on while nodes come up", &jumps(5_000, 3_600)),
        ("a minute back while it runs", &jumps(12_000, -60)),
    ]);
    let met = |outcome: &DramaOutcome, state| outcome.met.contains_key(&(state, "Clock".to_owned()));
    for (jump, state) in
        [(1, StateName::WaitingReady), (2, StateName::WaitingReady), (3, StateName::Approved)]
    {
        let runs = all.chunks(courses().len()).nth(jump).unwrap();
        assert!(runs.iter().any(|outcome| met(outcome, state)), "jump {jump} meets nobody in {state}");
    }
}

#[test]
fn a_leader_that_resumes_after_ten_minutes_with_stale_state_does_no_harm() {
    let quiet = Drama::quiet(2);
    let reference = quiet.play(false).unwrap();
    let mut all = Vec::new();
    for (alone, replicas) in [("alone", vec![0]), ("beside another", vec![0, 0])] {
        for at in (0..16_000).step_by(2_000) {
            let scenes = vec![(at, Scene::Sleep(0, 600))];
            let drama = Drama { replicas: replicas.clone(), scenes, chaos: at + 610_000, ..quiet.clone() };
            all.push((format!("{alone}, asleep from {at} ms on"), drama, Some(&reference)));
        }
    }
    let outcomes = all_go_well(&all);
    let slow = |outcome: &DramaOutcome| took(outcome, "gang-0") > SignedDuration::from_mins(9);
    let (alone, beside) = outcomes.split_at(all.len() / 2);
    assert!(alone.iter().any(slow), "no one was asleep while it mattered");
    assert!(!beside.iter().any(slow), "the other one goes on");
}

fn took(outcome: &DramaOutcome, job: &str) -> SignedDuration {
    outcome.ends.get(job).and_then(|end| end.took).unwrap()
}

#[test]
fn a_gang_ends_after_a_minute_of_any_disturbance() {
    let mut all = Vec::new();
    for what in Move::ALL {
        let gangs = vec![GangRole { pods: 2, runs: 10, enters: 0 }, GangRole { pods: 1, runs: 5, enters: 8 }];
        let scenes = vec![(6_000, Scene::Move(what)), (66_000, Scene::Calm)];
        let drama = Drama { gangs, scenes, chaos: 67_000, ..Drama::quiet(2) };
        all.push((format!("{what:?}"), drama, None));
    }
    all_go_well(&all);
}

#[test]
fn thirty_gangs_that_arrive_during_an_outage_all_finish_after_it() {
    let gangs = (0..30).map(|n| GangRole { pods: 2, runs: 5, enters: n / 3 }).collect();
    let scenes = vec![(0, Scene::Move(Move::ApiServerDown)), (60_000, Scene::Calm)];
    let mut drama = Drama { gangs, scenes, chaos: 61_000, ..Drama::quiet(2) };
    // The default deadlines of dramas are too short for this.
    json_patch::merge(
        &mut drama.policy,
        &json!({"deadlines": {"launch": "4m", "register": "8m", "initialize": "10m", "gang": "15m"}}),
    );
    let outcome = all_go_well(&[("thirty".to_owned(), drama, None)]).remove(0);
    assert_eq!(outcome.ends.values().filter(|end| end.finished).count(), 30);
    assert_eq!(outcome.created, 60);
    let last = outcome.ends.values().filter_map(|end| end.took).max().unwrap();
    assert!(last < SignedDuration::from_mins(4), "the last was served after {last:#}");
}

/// How much later the first of two gangs ends because of what happens to the second.
fn delay(scenes: Vec<(u64, Scene)>) -> SignedDuration {
    let first = GangRole { pods: 2, runs: 5, enters: 10 };
    let other = GangRole { pods: 3, runs: 5, enters: 0 };
    let chaos = 100_000;
    let alone = Drama { gangs: vec![first.clone()], chaos, ..Drama::quiet(2) };
    let beside = Drama { gangs: vec![first, other], scenes, ..alone.clone() };
    let both = all_go_well(&[("alone".to_owned(), alone, None), ("beside".to_owned(), beside, None)]);
    let [alone, beside] = both.as_slice() else { panic!("two were played") };
    let ended = |outcome: &DramaOutcome| outcome.ends.get("gang-0").is_some_and(|end| end.finished);
    assert!(ended(alone) && ended(beside), "{:?}", beside.ends);
    took(beside, "gang-0") - took(alone, "gang-0")
}

/// The longest that one gang may delay another.
const CONSTANT: SignedDuration = SignedDuration::from_secs(5);

#[test]
fn a_gang_whose_journal_is_corrupted_all_the_time_delays_no_other() {
    let poison = [
        Move::GarbleJournal,
        Move::ForgeRollback,
        Move::EraseJournal,
        Move::FillAnnotations,
        Move::ForgeApproved,
    ];
    let scenes = (0..180_u64).zip(poison.into_iter().cycle());
    let scenes = scenes.map(|(n, what)| (n * 500, Scene::MoveOn(1, what))).collect();
    let delay = delay(scenes);
    assert!(delay < CONSTANT, "{delay:#}");
}

#[test]
fn a_gang_that_never_recovers_delays_no_other() {
    let error = json!({"reason": "Unauthorized", "message": "not allowed"});
    let never = |rule| vec![(0, Scene::Weather(vec![rule]))];
    // Only the larger gang has a slot 2.
    let delayed = delay(never(json!({"slot": "2", "createError": error})));
    assert!(delayed < CONSTANT, "{delayed:#}");
    let delayed = delay(never(json!({"slot": "2", "registrationDelay": "1h"})));
    assert!(delayed < CONSTANT, "{delayed:#}");
}

#[test]
fn a_real_delay_is_detected() {
    let delayed = delay(vec![(9_000, Scene::Weather(vec![json!({"launchDelay": "1m"})]))]);
    assert!(delayed > CONSTANT, "{delayed:#}");
}

/// Plays a drama. Returns how often each step was counted, and how often it was committed.
fn counted(drama: &Drama) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let recorder = metrics::recorder().unwrap();
    let handle = recorder.handle();
    let outcome = ::metrics::with_local_recorder(&recorder, || drama.play(false)).unwrap();
    assert!(outcome.violations.is_empty(), "{:?}", outcome.violations);
    let committed = outcome
        .steps
        .iter()
        .map(|((from, to, why), times)| (format!("from=\"{from}\",to=\"{to}\",reason=\"{why}\""), *times));
    let text = handle.render();
    let lines = text.lines().filter_map(|line| line.strip_prefix("setu_gang_transitions_total{"));
    let counted = lines.map(|line| {
        let (labels, times) = line.split_once("} ").unwrap();
        (labels.to_owned(), times.parse().unwrap())
    });
    (counted.collect(), committed.collect())
}

#[test]
fn the_metric_counts_each_committed_step_exactly_once() {
    for course in courses() {
        let (counted, committed) = counted(&course.drama);
        assert!(committed.len() > 3, "{}", course.name);
        assert_eq!(counted, committed, "{}", course.name);
    }
    for course in courses().into_iter().take(2) {
        let doubled = Drama { plan: Some((4, WriteFault::AppliedTwice)), ..course.drama.clone() };
        let (counted, committed) = counted(&doubled);
        for (step, times) in &counted {
            assert!(committed.get(step).is_some_and(|most| times <= most), "{}: {step}", course.name);
        }
        // Whether the step of the write that was applied twice counts is not known.
        let missed = committed.values().sum::<u64>() - counted.values().sum::<u64>();
        assert!(missed <= 1, "{}: {counted:?} of {committed:?}", course.name);
    }
}

#[test]
fn blocked_telemetry_changes_nothing() {
    for course in courses() {
        let plain = course.drama.play(false).unwrap();
        let traced = Drama { traced: true, ..course.drama.clone() }.play(false).unwrap();
        assert_eq!(traced.digest, plain.digest, "{}: spans", course.name);
        let mut mute = course.drama.clone();
        mute.scenes.insert(0, (0, Scene::Move(Move::DenyEvents)));
        mute.chaos = mute.chaos.max(30_000);
        let mute = mute.play(false).unwrap();
        assert_eq!(
            (&mute.violations, differs(&plain, &mute, &course.drama)),
            (&Vec::new(), None),
            "{}: Events",
            course.name
        );
    }
}
