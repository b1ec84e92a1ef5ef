//! A gang without nodes: it accepts its plan, waits for one, or is refused.

use super::observation::Observation;
use super::option_retry;
use crate::gang::snapshot::attempt::Attempt;
use crate::gang::statechart::event::Event;
use crate::gang::statechart::failure::Failure;
use crate::gang::statechart::journal::Journal;
use crate::gang::statechart::option_position::OptionPosition;
use crate::plan::pod_set_labels::PodSetLabels;
use crate::plan::{Obstacle, Outcome, Plan};
use crate::planted::planted;

/// Observation that follows from the plan for a gang that has nothing yet.
pub(super) fn validating(attempt: &Attempt<'_>) -> Option<Observation> {
    let Attempt { journal, snapshot, .. } = attempt;
    let confirmed = |event| Some(Observation::confirmed(snapshot, event));
    match snapshot.plan? {
        Outcome::NothingNeeded(_) => confirmed(Event::NothingNeeded),
        // Claims of an earlier attempt must be gone first.
        _ if snapshot.claims.iter().any(|c| !c.stuck) => None,
        Outcome::Provision(plan) if planted!(PlanOnCachedAbsence) => Some(Observation::of(planned(plan))),
        Outcome::Provision(plan) => confirmed(planned(plan)),
        Outcome::Refuse(_) if snapshot.refusal.is_some_and(|refusal| refusal.again_at > snapshot.now) => None,
        Outcome::Never(obstacle) => confirmed(Event::Impossible(Failure::of_obstacle(obstacle))),
        Outcome::Refuse(obstacle) if journal.memory.option.index > 0 => {
            confirmed(Event::Failed(of_last_tiers(journal, obstacle)))
        }
        Outcome::Refuse(obstacle) => confirmed(Event::Refused(Failure::of_obstacle(obstacle))),
        outcome if outcome.waits_without_deadline() => None,
        Outcome::Wait(obstacle)
            if attempt.has_expired() || option_retry::is_round_over(journal, snapshot) =>
        {
            Some(Observation::failed(snapshot, Failure::of_obstacle(obstacle)))
        }
        Outcome::Wait(_) => None,
    }
}

/// The event for a plan that is carried out.
pub(super) fn planned(plan: &Plan) -> Event {
    Event::Planned {
        slots: u32::try_from(plan.slots.len()).unwrap_or(u32::MAX),
        plan: plan.hash(),
        pinning: plan.pinning,
        pod_sets: PodSetLabels::of(&plan.slots),
        option: OptionPosition { tier: plan.tier, index: plan.option_index, count: plan.option_count },
    }
}

/// The failure of a gang that the remaining tiers refuse. The earlier tiers ran out of capacity, which is temporary. So the
/// gang itself is not refused, and it does not wait for what the remaining tiers lack.
fn of_last_tiers(journal: &Journal, obstacle: &Obstacle) -> Failure {
    let before = journal.memory.last_failure.as_ref().map(|last| format!("; the tiers before: {last}"));
    let message = format!("{}{}", obstacle.message, before.unwrap_or_default());
    let failure = Failure::of_obstacle(&Obstacle { message, ..obstacle.clone() });
    Failure { obstacle: failure.obstacle.filter(|reason| !reason.may_appear()), ..failure }
}
