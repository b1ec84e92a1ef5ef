//! The sentence for users: what the gang waits for, how far it is and what comes next.
//!
//! Rule: it contains points in time but no elapsed time, so that it changes only when something happens.

use crate::api::FrontEnd;
use crate::api::parameters::{OnNodeLost, Pinning};
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::state::{Nodes, State, Then};
use crate::gang::step::replacement::{lacks_nodes, replacement_obstacle};
use crate::plan::{Obstacle, ObstacleReason, Outcome};
use crate::words::{counted, to_the_second};
use jiff::Timestamp;

/// The sentence for the check's message.
pub fn check_message(journal: &Journal, snapshot: &Snapshot<'_>) -> String {
    sentence(&Attempt::of(journal, snapshot))
}

/// As [`check_message`], for an attempt that is already computed.
pub(super) fn sentence(attempt: &Attempt<'_>) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    let text = match &journal.state {
        State::Validating => validating(attempt),
        State::Provisioning => provisioning(attempt),
        State::WaitingReady => waiting_ready(attempt),
        State::RollingBack { then } => rolling_back(attempt, *then),
        State::BackingOff { until } => backing_off(journal, *until),
        State::Approved { nodes: Nodes::Unneeded } => match snapshot.plan {
            Some(Outcome::NothingNeeded(why)) => format!("no node is needed: {why}"),
            _ => "no node is needed".to_owned(),
        },
        State::Approved { nodes: Nodes::Held | Nodes::Replacing } => holding_nodes(attempt),
        State::Yielded => yielded(journal, snapshot),
        State::Rejected => format!("cannot run as specified{}", cause(journal)),
        State::Released => "all nodes are given back".to_owned(),
    };
    let text = text + &stuck(journal, snapshot);
    text.chars().take(1024).collect()
}

fn validating(attempt: &Attempt<'_>) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    match snapshot.plan {
        Some(Outcome::Wait(obstacle)) if obstacle.reason == ObstacleReason::DryRun => {
            format!("{}: {}", obstacle.reason, obstacle.message)
        }
        Some(Outcome::Wait(Obstacle { reason, message, .. })) => {
            // On a later tier a new round starts before the deadline.
            let stops = journal
                .memory
                .deadline
                .filter(|_| !reason.has_no_deadline() && journal.memory.option.index == 0);
            let stops = at(stops, "; stops waiting at ");
            format!("{reason}: {message}. Continues automatically once this is fixed{stops}")
        }
        Some(Outcome::Refuse(Obstacle { reason, message, until, .. })) => {
            if snapshot.front_end.is_request() {
                return format!("{reason}: {message}. The request fails");
            }
            let opens = at(*until, ", or at ");
            format!("{reason}: {message}. It gives its quota back and continues when this changes{opens}")
        }
        _ if snapshot.claims.iter().any(|c| !c.stuck) => {
            format!("waiting for {} of an earlier attempt to be deleted", claims(snapshot))
        }
        _ => "working out which nodes are needed".to_owned(),
    }
}

fn provisioning(attempt: &Attempt<'_>) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    let (existing, slots) = (attempt.existing(), journal.memory.slots);
    format!("{existing}/{slots} NodeClaims created; {}", attempt_in_words(journal, snapshot))
}

/// A clause that says what the first slot that is not ready waits for; empty if all are ready.
pub(super) fn lag(attempt: &Attempt<'_>) -> String {
    attempt.first_unready().map_or_else(String::new, |(slot, what)| format!("; slot {slot} waits for {what}"))
}

fn waiting_ready(attempt: &Attempt<'_>) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    let lag = lag(attempt);
    let end = at(attempt.deadline(), "; gives up at ");
    format!(
        "{}/{} nodes ready{}{lag}; {}{end}",
        attempt.ready(),
        journal.memory.slots,
        usually(attempt),
        attempt_in_words(journal, snapshot)
    )
}

fn rolling_back(attempt: &Attempt<'_>, then: Then) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    let next = match then {
        Then::BackingOff if journal.memory.option.index > 0 => "then tries the next tier",
        Then::BackingOff => "then tries again",
        Then::Yielded => "then gives the quota back",
        Then::Rejected => "then rejects",
        Then::Released => "then nothing more",
    };
    // A release is not a failure, even if an earlier attempt failed.
    let (what, cause) = match then {
        Then::Released => ("giving back the nodes of", String::new()),
        Then::BackingOff | Then::Yielded | Then::Rejected => ("rolling back", cause(journal)),
    };
    format!("{what} attempt {}: {} left, {next}{cause}", journal.memory.attempt, claims(snapshot))
}

fn backing_off(journal: &Journal, until: Timestamp) -> String {
    if journal.memory.option.index > 0 {
        return format!("the next tier is tried{}", cause(journal));
    }
    format!("next attempt at {}{}", to_the_second(until), cause(journal))
}

fn holding_nodes(attempt: &Attempt<'_>) -> String {
    let Attempt { journal, snapshot, .. } = attempt;
    let slots = journal.memory.slots;
    if lacks_nodes(attempt) {
        let is_replaced = snapshot.policy.on_node_lost == OnNodeLost::Replace;
        let next = match replacement_obstacle(attempt) {
            Some(obstacle) => format!("; nothing is replaced now: {obstacle}"),
            None if is_replaced => "; what is lost is replaced".to_owned(),
            None => String::new(),
        };
        return format!("{}/{slots} nodes are left{next}{}", attempt.existing(), cause(journal));
    }
    if let Some((_, why)) = attempt.first_unready() {
        return format!("{}/{slots} nodes are ready: {why}", attempt.ready());
    }
    let untainted = untainted(journal, snapshot);
    if slots == 1 {
        format!("its node is ready{untainted}")
    } else {
        format!("all {slots} nodes are ready{untainted}")
    }
}

/// That nothing keeps other pods off the nodes, if the policy wants that and it was not possible.
fn untainted(journal: &Journal, snapshot: &Snapshot<'_>) -> &'static str {
    let is_wanted = matches!(snapshot.policy.pinning, Pinning::Auto | Pinning::SelectorAndTaint);
    if is_wanted && journal.memory.pinning == Pinning::Selector {
        ", without a taint that keeps other pods off"
    } else {
        ""
    }
}

fn yielded(journal: &Journal, snapshot: &Snapshot<'_>) -> String {
    let asks_again = match snapshot.front_end {
        FrontEnd::Workload => None,
        FrontEnd::ProvisioningRequest => Some("Kueue"),
        FrontEnd::StandaloneRequest => Some("its client"),
    };
    if let Some(who) = asks_again {
        return format!("the request has failed, and {who} decides when to ask again{}", cause(journal));
    }
    if let Some(refusal) = snapshot.refusal {
        return format!(
            "refused and without quota until the Job, its queue, the policy or a NodePool changes; retried at {} in any \
             case{}",
            to_the_second(refusal.until),
            cause(journal)
        );
    }
    let next = at(journal.memory.not_before, "; next attempt not before ");
    format!("quota given back{next}{}", cause(journal))
}

/// Names a NodeClaim of an earlier attempt that cannot be deleted, for an administrator.
fn stuck(journal: &Journal, snapshot: &Snapshot<'_>) -> String {
    let all = || snapshot.claims.iter().filter(|c| c.stuck);
    let Some(first) = all().next().filter(|_| journal.state != State::Released) else {
        return String::new();
    };
    let more = all().count().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!(
        ". NodeClaim {}{more} of an earlier attempt cannot be deleted: see its finalizers, the \
         PodDisruptionBudgets of pods on its node, and Setu's rights",
        first.name
    )
}

/// How many NodeClaims the gang has, in words.
fn claims(snapshot: &Snapshot<'_>) -> String {
    counted(u32::try_from(snapshot.claims.len()).unwrap_or(u32::MAX), "NodeClaim")
}

/// One line for the state annotation, made from the check's message.
pub fn headline(journal: &Journal, sentence: &str) -> String {
    format!("{}: {sentence}", journal.state.name())
}

/// The attempt and its tier: the policy's name for it, or the capacity type.
fn attempt_in_words(journal: &Journal, snapshot: &Snapshot<'_>) -> String {
    let memory = &journal.memory;
    let of_policy = || snapshot.policy.tier_name(memory.option.tier);
    let tier = memory.tier_name.as_deref().or_else(of_policy).or(snapshot.forecast.tier);
    let tier = tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
    format!("attempt {}{tier}", memory.attempt)
}

/// How long it usually takes from the last progress until all nodes are ready.
fn usually(attempt: &Attempt<'_>) -> String {
    let Some(by) = attempt.snapshot.forecast.ready_by else { return String::new() };
    let entered_at = attempt.journal.entered_at;
    let happened = attempt.last_ready().map_or(entered_at, |t| t.max(entered_at));
    let seconds = by.duration_since(happened).as_secs();
    // Creation times have a resolution of one second.
    if seconds < 0 {
        return ", later than usual".to_owned();
    }
    // Rounded to ten seconds, and to minutes if there are many: the estimate is not more precise.
    match seconds.saturating_add(5) / 10 * 10 {
        rounded @ ..=120 => format!(", usually {} s more", rounded.max(10)),
        _ => format!(", usually {} min more", seconds.saturating_add(30) / 60),
    }
}

/// A point in time after these words; empty if there is none.
fn at(time: Option<Timestamp>, words: &str) -> String {
    time.map_or_else(String::new, |time| format!("{words}{}", to_the_second(time)))
}

fn cause(journal: &Journal) -> String {
    journal.memory.last_failure.as_ref().map_or_else(String::new, |f| format!(". Cause: {f}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::workload::Verdict;
    use crate::gang::statechart::failure::{Failure, FailureClass};
    use crate::gang::statechart::reservation::{AdmissionId, Ending, Reservation};
    use crate::policy::Policy;
    use jiff::Timestamp;

    #[test]
    fn a_released_gang_does_not_show_the_failure_of_an_earlier_attempt() {
        let (now, policy) = (Timestamp::UNIX_EPOCH, Policy::default());
        let snapshot = Snapshot {
            reported: Verdict::Ready,
            ..Snapshot::of(now, &Reservation::Gone(Ending::Finished), &policy)
        };
        let sentence_for = |then| {
            let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
            journal.memory.last_failure = Some(Failure::new(FailureClass::InsufficientCapacity, "none"));
            journal.state = State::RollingBack { then };
            check_message(&journal, &snapshot)
        };
        assert!(sentence_for(Then::BackingOff).ends_with("Cause: InsufficientCapacity: none"));
        assert!(sentence_for(Then::Released).ends_with("then nothing more"));
    }

    #[test]
    fn only_setus_own_check_gives_quota_back() {
        let (now, policy) = (Timestamp::UNIX_EPOCH, Policy::default());
        let reservation = Reservation::Gone(Ending::QuotaLost);
        let said = |front_end| {
            let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
            journal.state = State::Yielded;
            check_message(&journal, &Snapshot { front_end, ..Snapshot::of(now, &reservation, &policy) })
        };
        assert!(said(FrontEnd::Workload).starts_with("quota given back"));
        assert_eq!(
            said(FrontEnd::ProvisioningRequest),
            "the request has failed, and Kueue decides when to ask again"
        );
        assert_eq!(
            said(FrontEnd::StandaloneRequest),
            "the request has failed, and its client decides when to ask again"
        );
    }

    #[test]
    fn the_message_says_that_a_wanted_taint_is_missing() {
        let now = Timestamp::UNIX_EPOCH;
        let is_said = |wanted, pinning| {
            let policy = Policy { pinning: wanted, ..Policy::default() };
            let reservation = Reservation::Gone(Ending::Finished);
            let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
            journal.memory.pinning = pinning;
            !untainted(&journal, &Snapshot::of(now, &reservation, &policy)).is_empty()
        };
        assert!(is_said(Pinning::Auto, Pinning::Selector));
        assert!(is_said(Pinning::SelectorAndTaint, Pinning::Selector));
        assert!(!is_said(Pinning::Selector, Pinning::Selector));
        assert!(!is_said(Pinning::Auto, Pinning::SelectorAndTaint));
    }
}
