//! The Events of each transition: their reasons and texts.
//!
//! Rule: tenants read these. They say what happened, what is missing and what comes next. The answers of a cloud provider are for
//! the administrator only.

use super::explain::next_after;
use crate::api::FrontEnd;
use crate::gang::snapshot::Snapshot;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::snapshot::unbound::UnboundPods;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::journal::{Journal, JournalError};
use crate::gang::statechart::state::{State, StateName};
use crate::plan::cost::Cost;
use crate::plan::passed_over::{self, PassedOver};
use crate::plan::{ObstacleReason, Outcome};
use crate::words::{counted, to_the_second};
use jiff::{SignedDuration, Timestamp};

/// Gangs of at least this many nodes get an Event for each quarter that is ready. For smaller gangs the transitions are enough,
/// and each Event is a write.
const REPORTED_BY_QUARTERS: u32 = 16;
/// They get none in this time after they began to wait. Nodes of a fast provider are all ready by then.
const QUIET: SignedDuration = SignedDuration::from_secs(10);

/// Separates the current state from the next step in a text.
pub const NEXT: &str = ". Next: ";
/// The reason of the Event for an accepted plan.
pub const VALIDATED: &str = "GangValidated";

/// One Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The Event's reason, in CamelCase.
    pub reason: &'static str,
    /// Distinguishes Events with the same reason after the same transition.
    pub topic: String,
    /// Whether it is a Warning.
    pub warning: bool,
    /// The text for users.
    pub text: String,
}

impl Notice {
    fn new(reason: &'static str, text: impl Into<String>) -> Self {
        Self { reason, topic: String::new(), warning: false, text: text.into() }
    }

    /// About an annotation of the Job that its policy does not take.
    pub fn of_ignored_override(key: &str, why: &str) -> Self {
        let topic = format!("annotation {key} is ignored: {why}");
        let text = format!("{topic}. The gang goes on without it");
        Self { topic, ..Self::warning("JobOverrideIgnored", text) }
    }

    /// About a gang that is left alone because a newer release wrote its journal.
    pub fn of_newer_journal(error: &JournalError) -> Self {
        Self::warning("JournalNewer", error.to_string())
    }

    /// About a gang whose journal the API server refuses to write, with this answer.
    pub fn of_refused_journal(answer: &str) -> Self {
        let answer: String =
            answer.chars().filter(|c| !c.is_control()).take(Failure::MESSAGE_LIMIT).collect();
        let text = format!(
            "Setu may not write its journal: {answer}. The gang waits until it may: let Setu patch annotations here, or \
             remove large ones"
        );
        Self { topic: text.clone(), ..Self::warning("JournalRefused", text) }
    }

    fn warning(reason: &'static str, text: impl Into<String>) -> Self {
        Self { warning: true, ..Self::new(reason, text) }
    }
}

/// The next step of a gang, for Event texts.
struct NextStep<'a> {
    journal: &'a Journal,
    front_end: FrontEnd,
}

impl NextStep<'_> {
    fn words(&self) -> String {
        next_after(self.journal, self.front_end)
    }

    /// A text that describes the journal's current state, with the next step. For `Validating`, `RollingBack` and `BackingOff` it
    /// already has the next step.
    fn after(&self, text: &str) -> String {
        match self.journal.state.name() {
            StateName::Validating | StateName::RollingBack | StateName::BackingOff => text.to_owned(),
            _ => format!("{text}{NEXT}{}", self.words()),
        }
    }

    /// The text for a failure, with what happens next.
    fn after_failure(&self, failure: &Failure) -> String {
        let next = match self.journal.state.name() {
            StateName::Provisioning | StateName::WaitingReady if failure.reason.is_shortage() => {
                "the missing nodes are requested elsewhere at once".to_owned()
            }
            StateName::Provisioning | StateName::WaitingReady | StateName::Approved => {
                "what was lost is replaced".to_owned()
            }
            StateName::RollingBack => format!("all nodes are given back; after that, {}", self.words()),
            _ => self.words(),
        };
        format!("{failure}. Next: {next}")
    }
}

/// The Events for the journal's last transition. `words` describe the state after it, `cost` is the cost of the nodes, and
/// `passed_over` are the NodePools that give none.
pub fn of_transition(
    journal: &Journal,
    front_end: FrontEnd,
    words: &str,
    cost: &Cost,
    passed_over: &[PassedOver],
) -> Vec<Notice> {
    let Some(last) = journal.history.last() else {
        return Vec::new();
    };
    let next = NextStep { journal, front_end };
    let text = next.after(words);
    let failure = journal.failure_of(last);
    match (last.from, last.to) {
        (_, StateName::Validating) => Vec::new(),
        (StateName::Validating, StateName::Provisioning) => {
            vec![of_plan(journal.memory.slots, cost, passed_over), Notice::new("GangProvisioning", text)]
        }
        (StateName::Provisioning | StateName::WaitingReady, StateName::Provisioning)
            if let Some(failure) = failure.filter(|f| f.reason.is_shortage()) =>
        {
            let failed = Notice::warning("NodeClaimFailed", next.after_failure(failure));
            vec![failed, Notice::new("GangProvisioning", text)]
        }
        (StateName::WaitingReady | StateName::Approved, StateName::Provisioning)
        | (StateName::Approved, StateName::Approved)
            if let Some(failure) = failure =>
        {
            vec![Notice::warning("NodeLost", next.after_failure(failure)), Notice::new("NodeReplaced", text)]
        }
        (_, StateName::Provisioning) => vec![Notice::new("GangProvisioning", text)],
        (_, StateName::WaitingReady) => vec![Notice::new("GangWaiting", text)],
        (_, StateName::Approved) => {
            vec![Notice::new("GangReady", next.after(&format!("{words}{}", cost.clause())))]
        }
        (_, StateName::RollingBack) => match failure {
            Some(failure) => vec![
                Notice::warning("NodeClaimFailed", next.after_failure(failure)),
                Notice::warning("GangRollingBack", text),
            ],
            // Giving back nodes that are no longer needed is not a failure.
            None => vec![Notice::new("GangRollingBack", text)],
        },
        (_, StateName::BackingOff | StateName::Yielded) => vec![Notice::new("GangRetrying", text)],
        (_, StateName::Rejected) => vec![Notice::warning("GangRejected", text)],
        (_, StateName::Released) => vec![Notice::new("GangReleased", text)],
    }
}

/// The Event for an accepted plan.
fn of_plan(slots: u32, cost: &Cost, passed_over: &[PassedOver]) -> Notice {
    let text = format!(
        "{} needed{}, and nothing is in the way{}{NEXT}all NodeClaims are created at once",
        counted(slots, "node"),
        cost.clause(),
        passed_over::clause(passed_over)
    );
    Notice::new(VALIDATED, text)
}

/// The Event for an accepted plan that has drawbacks.
pub fn of_drawbacks(notes: &[String]) -> Notice {
    Notice::warning("PlanHasDrawback", format!("{}. The gang continues anyway", notes.join("; ")))
}

/// The Event for nodes of a finished gang that are deleted because Setu may not change them.
pub fn of_forbidden(nodes: u32) -> Notice {
    let text = format!(
        "{} deleted despite custody.release: Setu may not patch NodeClaims and Nodes; set rbac.handBack in the chart",
        counted(nodes, "node")
    );
    Notice::warning("HandBackRefused", text)
}

/// The Event for a NodeClaim that the API server refuses while the pods of the gang may run. `None` if it ends the attempt.
pub fn of_refused(journal: &Journal, snapshot: &Snapshot<'_>) -> Option<Notice> {
    let reason = snapshot.create_refused.filter(|_| journal.state.creates_claims())?;
    let refused = Failure::refused_claim(reason);
    let text = format!("{refused}. Next: it is created again after the wait of retry.inCheck");
    Some(Notice { topic: refused.message, ..Notice::warning("NodeClaimRefused", text) })
}

/// The Event for a running gang with pods that are not bound to a node.
pub fn of_unbound(unbound: &UnboundPods) -> Notice {
    let text = format!(
        "{}. Next: nothing by itself: the nodes are kept for the pods. Change the Job, or see to it that they can be \
         scheduled",
        unbound.text(&to_the_second(unbound.since))
    );
    Notice { topic: unbound.since.to_string(), ..Notice::warning("PodsUnbound", text) }
}

/// The Event for a gang that waits for an obstacle to clear or for the rest of its nodes. `text` describes the state.
/// `None` if the Events of the last transition are enough.
pub fn of_wait(journal: &Journal, snapshot: &Snapshot<'_>, text: &str) -> Option<Notice> {
    let mut text = NextStep { journal, front_end: snapshot.front_end }.after(text);
    let topic = match (&journal.state, snapshot.plan) {
        (State::Validating, Some(Outcome::Wait(obstacle))) => {
            if obstacle.reason == ObstacleReason::DryRun {
                text.push_str(". Next: nothing, until another strategy is set");
            }
            obstacle.reason.to_string()
        }
        (State::WaitingReady, _) if reports_quarters(journal, snapshot.now) => {
            match Attempt::of(journal, snapshot).ready().saturating_mul(4) / journal.memory.slots.max(1) {
                quarters @ 1..4 => format!("{quarters}/4 ready"),
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Notice { topic, ..Notice::new("GangWaiting", text) })
}

/// Whether a gang that waits for its nodes gets an Event for each quarter that is ready.
fn reports_quarters(journal: &Journal, now: Timestamp) -> bool {
    let entered = journal.history.last().map_or(journal.trace.since, |last| last.at);
    journal.memory.slots >= REPORTED_BY_QUARTERS && now.duration_since(entered) >= QUIET
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::statechart::event::{Event, Reason};
    use crate::gang::statechart::failure::{Failure, FailureClass};
    use crate::gang::statechart::reservation::{AdmissionId, Ending, Reservation};
    use crate::gang::{ClaimView, Health, Rules, decide};
    use crate::plan::cost::Unpriced;
    use crate::plan::pod_set_labels::PodSetLabels;
    use crate::policy::Policy;
    use std::collections::BTreeMap;

    fn reported(events: &[Event]) -> Vec<(&'static str, bool)> {
        let now = Timestamp::UNIX_EPOCH;
        let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
        let mut reported = Vec::new();
        for event in events {
            journal = decide(&journal, event, &Rules::new(&Policy::default(), now, 0.0)).journal;
            reported.extend(
                of_transition(&journal, FrontEnd::Workload, "where it is", &Cost::default(), &[])
                    .into_iter()
                    .map(|n| (n.reason, n.warning)),
            );
        }
        reported
    }

    #[test]
    fn a_failure_is_a_warning_and_a_release_is_not() {
        let planned = Event::Planned {
            slots: 2,
            plan: "p".into(),
            pinning: crate::api::parameters::Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: crate::gang::OptionPosition::default(),
        };
        let failed = Event::Failed(Failure::new(FailureClass::InsufficientCapacity, "none"));
        let start = [("GangValidated", false), ("GangProvisioning", false), ("GangWaiting", false)];
        let failure = reported(&[planned.clone(), Event::ClaimsExist, failed, Event::ClaimsGone]);
        assert_eq!(failure[..3], start);
        assert_eq!(
            failure[3..],
            [("NodeClaimFailed", true), ("GangRollingBack", true), ("GangRetrying", false)]
        );
        let ended = reported(&[
            planned,
            Event::ClaimsExist,
            Event::NodesReady,
            Event::Gone(Ending::Finished),
            Event::ClaimsGone,
        ]);
        assert_eq!(ended[3..], [("GangReady", false), ("GangRollingBack", false), ("GangReleased", false)]);
    }

    #[test]
    fn events_name_instance_types_without_a_price() {
        let now = Timestamp::UNIX_EPOCH;
        let cost = Cost {
            unpriced: 2,
            missing: [Unpriced::Type("p5.48xlarge".into(), "spot".into(), None)].into(),
            ..Cost::default()
        };
        let planned = Event::Planned {
            slots: 2,
            plan: "p".into(),
            pinning: crate::api::parameters::Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: crate::gang::OptionPosition::default(),
        };
        let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
        let mut reported = BTreeMap::new();
        for event in [planned, Event::ClaimsExist, Event::NodesReady] {
            journal = decide(&journal, &event, &Rules::new(&Policy::default(), now, 0.0)).journal;
            let notices = of_transition(&journal, FrontEnd::Workload, "where it is", &cost, &[]);
            reported.extend(notices.into_iter().map(|notice| (notice.reason, notice.text)));
        }
        let lack = ", no price for p5.48xlarge, spot (2 nodes)";
        assert!(
            reported["GangValidated"].starts_with(&format!("2 nodes needed{lack}, and nothing")),
            "{reported:?}"
        );
        assert!(reported["GangReady"].starts_with(&format!("where it is{lack}. Next: ")), "{reported:?}");
        let free = Cost { simulated: 2, ..cost };
        let of_kwok = &of_transition(&journal, FrontEnd::Workload, "where it is", &free, &[])[0].text;
        assert!(of_kwok.starts_with("where it is. Next: "), "{of_kwok}");
    }

    #[test]
    fn every_failure_class_survives_a_round_trip() {
        for class in FailureClass::ALL {
            let text = serde_json::to_string(&Reason::Failed(class)).unwrap();
            assert_eq!(serde_json::from_str::<Reason>(&text).unwrap(), Reason::Failed(class), "{text}");
        }
    }

    #[test]
    fn the_event_for_unbound_pods_has_the_reason_and_the_next_step() {
        let since = Timestamp::UNIX_EPOCH;
        let unbound = UnboundPods { pods: 1, of: 2, since, reason: "none fits".into() };
        let notice = of_unbound(&unbound);
        assert!((notice.reason, notice.warning) == ("PodsUnbound", true));
        assert!(
            notice.text.starts_with(
                "1 of 2 pods is not bound to a node since 1970-01-01T00:00:00Z: none fits. Next: "
            )
        );
    }

    #[test]
    fn every_event_has_the_next_step() {
        let now = Timestamp::UNIX_EPOCH;
        let planned = Event::Planned {
            slots: 2,
            plan: "p".into(),
            pinning: crate::api::parameters::Pinning::Selector,
            pod_sets: PodSetLabels::default(),
            option: crate::gang::OptionPosition { tier: 0, index: 0, count: 2 },
        };
        let failed = |class| Event::Failed(Failure::new(class, "none"));
        let shortage = failed(FailureClass::InsufficientCapacity);
        let ends = [
            vec![planned.clone(), Event::ClaimsExist, shortage, Event::ClaimsGone],
            vec![planned.clone(), Event::ClaimsExist, failed(FailureClass::NotPlannable), Event::ClaimsGone],
            vec![
                planned,
                Event::ClaimsExist,
                Event::NodesReady,
                Event::Gone(Ending::Finished),
                Event::ClaimsGone,
            ],
        ];
        let mut reported = BTreeMap::new();
        for events in ends {
            let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), now, None);
            for event in events {
                journal = decide(&journal, &event, &Rules::new(&Policy::default(), now, 0.0)).journal;
                let state = journal.state.name();
                let is_included = matches!(state, StateName::RollingBack | StateName::BackingOff);
                for notice in
                    of_transition(&journal, FrontEnd::Workload, "where it is", &Cost::default(), &[])
                {
                    let has_next =
                        notice.text.contains(". Next: ") || (is_included && notice.text == "where it is");
                    assert!(has_next, "{}: {}", notice.reason, notice.text);
                    reported.insert(notice.reason, notice.text);
                }
            }
        }
        assert!(
            reported["GangWaiting"]
                .ends_with("Next: once all nodes are ready the check becomes Ready, and the pods start")
        );
        assert!(reported["NodeClaimFailed"].contains("Next: all nodes are given back; after that, "));
        assert!(reported["GangReady"].contains("its pods start"));
        assert!(reported.contains_key("GangReleased"));
    }

    #[test]
    fn only_large_gangs_that_wait_long_get_an_event_per_quarter() {
        let (began, policy) = (Timestamp::UNIX_EPOCH, Policy::default());
        let reservation = Reservation::Gone(Ending::Finished);
        let reported_after = |wait: SignedDuration, slots: u32, ready: u32| {
            let now = began + wait;
            let mut journal = Journal::new("uid", AdmissionId("1-0-a".into()), began, None);
            journal.state = State::WaitingReady;
            (journal.memory.attempt, journal.memory.slots) = (1, slots);
            let claim = |slot: u32| ClaimView::new(&slot.to_string(), 1, slot, Health::Ready { since: now });
            let claims: Vec<ClaimView> = (0..ready).map(claim).collect();
            let snapshot = Snapshot { claims: &claims, ..Snapshot::of(now, &reservation, &policy) };
            of_wait(&journal, &snapshot, "where it is").map(|notice| notice.topic)
        };
        let reported = |slots, ready| reported_after(QUIET, slots, ready);
        assert_eq!(
            [reported(16, 3), reported(16, 4), reported(16, 16)],
            [None, Some("1/4 ready".to_owned()), None]
        );
        assert_eq!(reported(15, 8), None);
        assert_eq!(reported_after(QUIET - SignedDuration::from_secs(1), 16, 8), None);
    }
}
