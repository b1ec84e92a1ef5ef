//! The transition function under arbitrary observations: each runs until nothing changes.

use crate::plans;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use setu::api::parameters::{OnExhausted, Pinning};
use setu::api::workload::Verdict;
use setu::gang::snapshot::loss::Loss;
use setu::gang::statechart::journal::WRITE_LIMIT;
use setu::gang::{
    AdmissionId, AdmissionPhase, ClaimView, Effect, Ending, Event, Failure, FailureClass, Freshness, Health,
    Journal, Nodes, Observation, Refusal, Reservation, Rules, Snapshot, State, WaitsFor, decide, observe,
};
use setu::plan::{Obstacle, ObstacleReason, Outcome, Plan};
use setu::policy::Policy;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of turns after which a reconcile counts as an endless loop, as in the controller.
const TURNS: usize = 16;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn policy() -> Policy {
    let mut policy = Policy { on_exhausted: OnExhausted::Reject, ..Policy::default() };
    policy.in_check.limit = 3;
    policy
}

/// The content of one snapshot, with claims relative to the journal's attempt at that time.
#[derive(Clone, Debug)]
struct SnapshotInputs {
    after: i64,
    reservation: Reservation,
    reported: Verdict,
    plan: u8,
    claims: Vec<(bool, u32, bool, u8)>,
    quorum: bool,
    lost: bool,
    /// Whether a refusal stands, and whether reserved quota is already due to be given back.
    refused: Option<bool>,
}

fn snapshot_parts() -> impl Strategy<Value = SnapshotInputs> {
    let admission =
        proptest::sample::select(vec!["1-0-a", "2-0-a", "3-1-b"]).prop_map(|e| AdmissionId(e.into()));
    let phase = proptest::sample::select(vec![
        AdmissionPhase::Reserved,
        AdmissionPhase::Reserved,
        AdmissionPhase::Reserved,
        AdmissionPhase::Admitted,
        AdmissionPhase::Running,
        AdmissionPhase::AdmittedPods,
    ]);
    let ending = proptest::sample::select(&Ending::ALL[..]);
    let reservation = prop_oneof![
        8 => (admission, phase).prop_map(|(admission, phase)| Reservation::Held { admission, phase }),
        1 => ending.clone().prop_map(Reservation::Leaving),
        1 => ending.prop_map(Reservation::Gone),
    ];
    let reported = proptest::sample::select(vec![Verdict::Pending, Verdict::Pending, Verdict::Ready]);
    let claim = (any::<bool>(), 0..3_u32, any::<bool>(), 0..3_u8);
    let claims = proptest::collection::vec(claim, 0..4);
    let refused = any::<Option<bool>>();
    (0..2_000_i64, reservation, reported, 0..9_u8, claims, any::<bool>(), any::<bool>(), refused).prop_map(
        |(after, reservation, reported, plan, claims, quorum, lost, refused)| SnapshotInputs {
            after,
            reservation,
            reported,
            plan,
            claims,
            quorum,
            lost,
            refused,
        },
    )
}

fn plan(kind: u8) -> Outcome {
    let obstacle = || Obstacle::new(ObstacleReason::NodePoolNotReady, "not now");
    match kind {
        0 => Outcome::Wait(obstacle()),
        1 => Outcome::Never(obstacle()),
        2 => Outcome::NothingNeeded("none".into()),
        3 => Outcome::Refuse(obstacle()),
        _ => Outcome::Provision(Plan { pinning: Pinning::Selector, ..plans::plan(2) }),
    }
}

fn view(attempt: u32, (own, slot, deleting, health): (bool, u32, bool, u8)) -> ClaimView {
    let health = match health {
        0 => Health::Ready { since: at(0) },
        1 => Health::Coming { waits_for: WaitsFor::Launch(String::new()), until: None },
        _ => Health::Failed(Failure::new(FailureClass::LaunchFailed, "no")),
    };
    let attempt = if own { attempt } else { attempt + 1 };
    let name = format!("{attempt}-{slot}");
    ClaimView { deleting, ..ClaimView::new(&name, attempt, slot, health) }
}

/// The result of one reconcile.
struct Reconciled {
    journal: Journal,
    steps: Vec<(Journal, Event)>,
    effects: Vec<(Journal, Effect)>,
    claims: Vec<ClaimView>,
    turns: usize,
}

/// Advances a journal as far as one snapshot leads. The effects are not applied.
fn reconcile(start: &Journal, seen: &SnapshotInputs, claims: &[ClaimView], now: Timestamp) -> Reconciled {
    let (policy, outcome) = (policy(), plan(seen.plan));
    let loss = |slot| (slot, Loss::Failed(Failure::new(FailureClass::Interrupted, "gone")));
    let losses: BTreeMap<u32, Loss> = if seen.lost { (0..2).map(loss).collect() } else { BTreeMap::new() };
    let mut result = Reconciled {
        journal: start.clone(),
        steps: Vec::new(),
        effects: Vec::new(),
        claims: claims.to_vec(),
        turns: 0,
    };
    let refusal = seen.refused.map(|is_due| Refusal {
        until: now + SignedDuration::from_mins(1),
        again_at: if is_due { now } else { now + SignedDuration::from_secs(1) },
    });
    let mut freshness = if seen.quorum { Freshness::Quorum } else { Freshness::Cached };
    while result.turns < TURNS {
        result.turns += 1;
        let snapshot = Snapshot {
            reported: seen.reported,
            plan: result.journal.state.needs_plan().then_some(&outcome),
            claims,
            losses: &losses,
            freshness,
            refusal,
            ..Snapshot::of(now, &seen.reservation, &policy)
        };
        let events = match observe(&result.journal, &snapshot) {
            Observation::NeedsQuorumRead | Observation::NeedsPlanRead => {
                assert_eq!(freshness, Freshness::Cached, "a quorum read is never asked for twice");
                freshness = Freshness::Quorum;
                continue;
            }
            Observation::Events(events) => events,
        };
        let before = result.journal.clone();
        for event in events {
            let decision = decide(&result.journal, &event, &Rules::new(&policy, now, 0.5));
            let stepped = decision.journal.seq > result.journal.seq;
            result.effects.extend(decision.effects.into_iter().map(|e| (result.journal.clone(), e)));
            result.journal = decision.journal;
            if stepped {
                result.steps.push((result.journal.clone(), event));
                break;
            }
        }
        if result.journal == before {
            break;
        }
    }
    result
}

static LOOKS: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU64 = AtomicU64::new(0);

/// Prints now and then how much all tests of this file have walked together.
fn count(steps: usize) {
    let steps = STEPS.fetch_add(steps as u64, Ordering::Relaxed) + steps as u64;
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed) + 1;
    if looks.is_multiple_of(5_000) {
        println!("{looks} looks, {steps} steps");
    }
}

/// Walks a sequence of observations and passes each result to `check`.
fn walk(
    seen: &[SnapshotInputs],
    mut check: impl FnMut(&Journal, &SnapshotInputs, &Reconciled, Timestamp) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), at(0), Some(at(900)));
    let mut clock = 0;
    for one in seen {
        clock += one.after;
        let claims: Vec<ClaimView> = one.claims.iter().map(|c| view(journal.memory.attempt, *c)).collect();
        let result = reconcile(&journal, one, &claims, at(clock));
        count(result.steps.len());
        check(&journal, one, &result, at(clock))?;
        journal = result.journal;
    }
    Ok(())
}

fn all_snapshot_parts() -> impl Strategy<Value = Vec<SnapshotInputs>> {
    proptest::collection::vec(snapshot_parts(), 0..40)
}

proptest! {
    #[test]
    fn the_same_observation_again_changes_nothing(seen in all_snapshot_parts()) {
        walk(&seen, |_, one, first, now| {
            prop_assert!(first.turns < TURNS, "goes in circles: {:?}", first.journal.state);
            let again = reconcile(&first.journal, one, &first.claims, now);
            prop_assert_eq!(&again.journal, &first.journal);
            Ok(())
        })?;
    }

    #[test]
    fn every_step_increments_seq_and_is_in_the_history(seen in all_snapshot_parts()) {
        walk(&seen, |start, _, result, _| {
            let mut seq = start.seq;
            for (journal, event) in &result.steps {
                seq += 1;
                let step = journal.history.last().unwrap();
                prop_assert_eq!((journal.seq, step.seq, step.reason), (seq, seq, event.reason()));
            }
            prop_assert_eq!(result.journal.seq, seq);
            prop_assert!(result.journal.encode().len() <= WRITE_LIMIT);
            Ok(())
        })?;
    }

    #[test]
    fn attempts_are_limited_and_backoff_never_shrinks_within_an_admission(seen in all_snapshot_parts()) {
        let limit = policy().in_check.limit;
        let (mut attempts, mut last_wait) = (0, SignedDuration::ZERO);
        walk(&seen, |_, _, result, now| {
            for (journal, event) in &result.steps {
                match (&journal.state, event) {
                    (_, Event::Reserved { .. }) => (attempts, last_wait) = (0, SignedDuration::ZERO),
                    (State::Provisioning, _) => attempts += 1,
                    (State::BackingOff { until }, Event::ClaimsGone) => {
                        let wait = until.duration_since(now);
                        prop_assert!(wait >= last_wait, "{wait:?} after {last_wait:?}");
                        last_wait = wait;
                    }
                    _ => {}
                }
                prop_assert!(attempts <= limit + 1, "{attempts} attempts");
            }
            Ok(())
        })?;
    }

    #[test]
    fn claims_are_created_only_when_needed_and_deleted_only_when_unwanted(seen in all_snapshot_parts()) {
        walk(&seen, |_, one, result, _| {
            let let_go = |phase| matches!(phase, AdmissionPhase::Admitted | AdmissionPhase::AdmittedPods);
            let late = matches!(one.reservation, Reservation::Held { phase, .. } if let_go(phase));
            for (journal, effect) in &result.effects {
                match effect {
                    Effect::CreateClaims(slots) => {
                        let mends = journal.state == State::Approved { nodes: Nodes::Replacing };
                        prop_assert!(mends || journal.state == State::Provisioning);
                        prop_assert!(slots.iter().all(|s| *s < journal.memory.slots));
                    }
                    Effect::DeleteClaims(names) => for name in names {
                        // Once the gang's pods are admitted, a new claim may replace one that is given up.
                        let coming = matches!(journal.state, State::Provisioning | State::WaitingReady);
                        let given_up = |c: &ClaimView| {
                            late && coming && c.generation < journal.memory.generation && c.has_failed() && !c.may_have_pods()
                        };
                        let wanted = |c: &&ClaimView| {
                            journal.state.wants_claims()
                                && c.attempt == journal.memory.attempt
                                && c.slot < journal.memory.slots
                                && !given_up(c)
                        };
                        let extra = result.claims.iter().find(|c| c.name == *name && !c.deleting && !wanted(c));
                        prop_assert!(extra.is_some(), "{name} in {:?}", journal.state);
                    },
                }
            }
            Ok(())
        })?;
    }
}
