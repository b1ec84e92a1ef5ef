//! Every fault that can hit a single write, at every write of every course that a gang can take. The run must end
//! like the one without a fault, and buy no more than necessary.

use super::each;
use serde_json::{Value, json};
use setu::gang::StateName;
use setu::sim::drama::{Drama, DramaOutcome, GangRole, Scene};
use setu::sim::moves::Move;
use setu_sim::faults::WriteFault;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The faults after which a restart, or another answer, must lead to the same end; and a write that arrives
/// late.
const WORST: [WriteFault; 6] = [
    WriteFault::CrashBefore,
    WriteFault::CrashAfter,
    WriteFault::ReplyLost,
    WriteFault::AppliedTwice,
    WriteFault::StaleRestart,
    WriteFault::Delayed,
];

/// The longest attempt: `deadlines.gang` of a drama, plus the time to replace a dead replica.
const ATTEMPT: Duration = Duration::from_secs(140);

/// How long a dead replica is not replaced, and some seconds until the next one acts.
const RESTART: Duration = Duration::from_secs(25);

/// A course that a gang can take, and the check that the run without a fault took it.
pub struct Course {
    pub name: &'static str,
    pub drama: Drama,
    goes: fn(&DramaOutcome) -> bool,
    /// Whether Setu decides on what only its memory has: which capacity is short, or that a lost node existed. The next
    /// replica may spend an attempt to find that out again.
    remembers: bool,
}

impl Course {
    /// Whether this fault may cost each gang the attempt that it hits, for as long as that may last.
    fn may_cost_attempts(&self, fault: WriteFault) -> bool {
        match fault {
            WriteFault::CrashBefore | WriteFault::CrashAfter => self.remembers,
            // The write is committed, and nobody dies.
            WriteFault::ReplyLost | WriteFault::Timeout | WriteFault::AppliedTwice => false,
            _ => true,
        }
    }
}

/// Gangs by their pods, the seconds that these run, and when they start.
fn gangs(all: &[(u32, u64, u64)]) -> Vec<GangRole> {
    all.iter().map(|&(pods, runs, enters)| GangRole { pods, runs, enters }).collect()
}

fn of(gangs: Vec<GangRole>, scenes: Vec<(u64, Scene)>, more: &Value) -> Drama {
    let mut policy = Drama::quiet(1).policy;
    json_patch::merge(&mut policy, &json!({"retry": {"inCheck": {"limit": 20}}}));
    json_patch::merge(&mut policy, more);
    let chaos = if scenes.is_empty() { 0 } else { 30_000 };
    Drama { gangs, scenes, chaos, policy, ..Drama::quiet(1) }
}

fn weather(rule: Value) -> (u64, Scene) {
    (0, Scene::Weather(vec![rule]))
}

fn moves(at: u64, what: Move) -> (u64, Scene) {
    (at, Scene::Move(what))
}

fn met(outcome: &DramaOutcome, state: StateName, what: Move) -> bool {
    outcome.met.contains_key(&(state, format!("{what:?}")))
}

fn went(outcome: &DramaOutcome, from: StateName, to: StateName) -> bool {
    outcome.steps.keys().any(|step| (step.0, step.1) == (from, to))
}

/// Every course.
pub fn courses() -> Vec<Course> {
    let tier = |zone: &str| json!({"name": zone, "zones": [zone]});
    let slow = || weather(json!({"registrationDelay": "10s"}));
    let none = json!({});
    let course = |name, drama, goes| Course { name, drama, goes, remembers: false };
    let remembering = |name, drama, goes| Course { name, drama, goes, remembers: true };
    vec![
        course("nothing happens", Drama::quiet(2), |o| went(o, StateName::WaitingReady, StateName::Approved)),
        remembering(
            "a tier runs short, and the next one has room",
            of(
                gangs(&[(2, 5, 0)]),
                vec![weather(json!({"zone": "us-east-1a", "capacity": 1}))],
                &json!({"tiers": [tier("us-east-1a"), tier("us-east-1b")]}),
            ),
            |o| went(o, StateName::RollingBack, StateName::BackingOff),
        ),
        remembering(
            "two gangs want the same nodes",
            of(gangs(&[(2, 5, 0), (2, 5, 1)]), vec![weather(json!({"capacity": 3}))], &none),
            |o| went(o, StateName::RollingBack, StateName::BackingOff),
        ),
        course(
            "it is evicted while its claims are created",
            of(
                gangs(&[(2, 5, 0)]),
                vec![moves(0, Move::HangWebhook), moves(5_000, Move::Evict), (8_000, Scene::Calm)],
                &none,
            ),
            |o| met(o, StateName::Provisioning, Move::Evict),
        ),
        course(
            "it is evicted while its nodes come up",
            of(gangs(&[(2, 5, 0)]), vec![slow(), moves(6_000, Move::Evict)], &none),
            |o| met(o, StateName::WaitingReady, Move::Evict),
        ),
        course(
            "its Workload is deleted while its nodes come up",
            of(gangs(&[(2, 5, 0)]), vec![slow(), moves(6_000, Move::DeleteWorkload)], &none),
            |o| met(o, StateName::WaitingReady, Move::DeleteWorkload),
        ),
        remembering(
            "a node is lost before it runs",
            of(gangs(&[(2, 5, 0)]), vec![slow(), moves(6_000, Move::DeleteClaim)], &none),
            |o| went(o, StateName::WaitingReady, StateName::Provisioning),
        ),
        course(
            "a node is lost while it runs",
            of(gangs(&[(2, 20, 0)]), vec![moves(15_000, Move::DeleteClaim)], &none),
            |o| went(o, StateName::Approved, StateName::Approved),
        ),
        course(
            "its nodes pass to the next gang",
            of(
                gangs(&[(2, 2, 0), (2, 2, 20)]),
                Vec::new(),
                &json!({"custody": {"release": "Warm", "warmFor": "30s"}}),
            ),
            |o| o.created == 2 && o.ends.len() == 2,
        ),
    ]
}

/// How a run differs from the one without a fault, apart from time. The fault may cost each gang an attempt.
pub fn differs(reference: &DramaOutcome, faulty: &DramaOutcome, drama: &Drama) -> Option<String> {
    differs_in(reference, faulty, drama, true)
}

/// The same, for a fault that may or may not cost attempts.
fn differs_in(
    reference: &DramaOutcome,
    faulty: &DramaOutcome,
    drama: &Drama,
    costs_attempts: bool,
) -> Option<String> {
    let ends = |outcome: &DramaOutcome| -> BTreeMap<String, (bool, bool)> {
        outcome.ends.iter().map(|(job, end)| (job.clone(), (end.finished, end.given_up))).collect()
    };
    if ends(reference) != ends(faulty) {
        return Some(format!("it ends as {:?}, and without the fault as {:?}", faulty.ends, reference.ends));
    }
    // With tight timing the gang may also be too late to reuse nodes that were kept for it.
    let pods: u32 = drama.gangs.iter().map(|gang| gang.pods).sum();
    let allowed = reference.created + if costs_attempts { u64::from(pods) } else { 0 };
    if faulty.created > allowed {
        return Some(format!("{} claims are made, {allowed} at most", faulty.created));
    }
    let asleep =
        drama.scenes.iter().map(|(_, scene)| if let Scene::Sleep(_, seconds) = scene { *seconds } else { 0 });
    let idle = if costs_attempts { ATTEMPT } else { RESTART } + Duration::from_secs(asleep.sum());
    let allowed = reference.wasted + f64::from(pods) * idle.as_secs_f64();
    (faulty.wasted > allowed)
        .then(|| format!("{:.0} node-seconds serve nobody, {allowed:.0} at most", faulty.wasted))
}

/// A fault at one write: the course, the write and the fault.
type Case = (usize, usize, WriteFault);

/// Plays these faults at every write of every course, except for cases that `keep` drops. Returns the cases played.
fn every(faults: &[WriteFault], keep: impl Fn(&Case) -> bool) -> Vec<Case> {
    let started = Instant::now();
    let courses = courses();
    let references: Vec<DramaOutcome> = each(&courses, |course| course.drama.play(false).unwrap());
    let mut cases: Vec<Case> = Vec::new();
    for (index, (course, reference)) in courses.iter().zip(&references).enumerate() {
        assert!(reference.violations.is_empty(), "{}: {:?}", course.name, reference.violations);
        assert!(reference.ends.values().all(|end| end.finished), "{}: {:?}", course.name, reference.ends);
        assert!((course.goes)(reference), "{}: it takes another course, {:?}", course.name, reference.steps);
        let writes = (0..reference.writes).flat_map(|write| faults.iter().map(move |f| (index, write, *f)));
        cases.extend(writes);
    }
    let all = cases.len();
    cases.retain(keep);
    let failed = each(&cases, |&(index, write, fault)| {
        let (course, reference) = courses.iter().zip(&references).nth(index).unwrap();
        let drama = Drama { plan: Some((write, fault)), ..course.drama.clone() };
        let outcome = drama.play(false).unwrap();
        let wrong = outcome.violations.first().map(ToString::to_string);
        let missed = (outcome.fired != 1).then(|| "the fault did not hit".to_owned());
        let costs = course.may_cost_attempts(fault);
        let wrong = wrong.or(missed).or_else(|| differs_in(reference, &outcome, &drama, costs))?;
        Some(format!("{}; write {write}, {fault}: {wrong}", course.name))
    });
    println!("{} of {all} single faults in {:?}", cases.len(), started.elapsed());
    let failed: Vec<String> = failed.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), cases.len(), failed.join("\n"));
    cases
}

/// Plays one in `apart` of these faults at every write of every course, in rotation.
fn in_turn(faults: &[WriteFault], apart: usize) {
    let place = |fault: &WriteFault| faults.iter().position(|known| known == fault);
    let cases = every(faults, |&(course, write, fault)| {
        place(&fault).is_some_and(|at| (course + write + at).is_multiple_of(apart))
    });
    let courses: BTreeSet<usize> = cases.iter().map(|(course, ..)| *course).collect();
    let played: BTreeSet<WriteFault> = cases.iter().map(|(_, _, fault)| *fault).collect();
    assert_eq!((courses.len(), played.len()), (self::courses().len(), faults.len()), "{cases:?}");
}

#[test]
fn the_worst_faults_at_a_single_write_do_not_change_how_a_gang_ends() {
    in_turn(&WORST, 4);
}

/// Plays a sample of what the next test plays.
#[test]
fn other_faults_at_a_single_write_do_not_change_how_a_gang_ends() {
    let others: Vec<WriteFault> =
        WriteFault::ALL.into_iter().filter(|fault| !WORST.contains(fault)).collect();
    in_turn(&others, others.len());
}

/// `just nightly` runs it.
#[test]
#[ignore = "takes minutes"]
fn every_fault_at_every_write_does_not_change_how_a_gang_ends() {
    every(&WriteFault::ALL, |_| true);
}

#[test]
fn a_different_end_is_detected() {
    let drama = Drama::quiet(2);
    let reference = drama.play(false).unwrap();
    let cut_short = of(gangs(&[(2, 5, 0)]), vec![moves(5_000, Move::DeleteJob)], &json!({}));
    let cut_short = cut_short.play(false).unwrap();
    assert!(differs(&reference, &cut_short, &drama).unwrap().contains("it ends as"));
    let dear = DramaOutcome { created: 5, ..reference.clone() };
    assert!(differs(&reference, &dear, &drama).unwrap().contains("5 claims are made, 4 at most"));
    let idle = DramaOutcome { wasted: reference.wasted + 300.0, ..reference.clone() };
    assert!(differs(&reference, &idle, &drama).unwrap().contains("node-seconds serve nobody"));
    let one_more = DramaOutcome { created: 3, ..reference.clone() };
    assert_eq!(differs(&reference, &one_more, &drama), None);
    let wrong = differs_in(&reference, &one_more, &drama, false).unwrap();
    assert!(wrong.contains("3 claims are made, 2 at most"), "{wrong}");
    assert_eq!(differs_in(&reference, &reference, &drama, false), None);
}
