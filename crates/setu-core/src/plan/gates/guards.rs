//! Limits of the whole controller. They bound the cost of a bug in the retries.

use super::{Gate, GateAnswer, GateReport};
use crate::plan::{ObstacleReason, Plan, PlanSnapshot};
use jiff::Timestamp;

/// One report for each guard.
pub fn reports_of(cluster: &PlanSnapshot<'_>, plan: &Plan) -> Vec<GateReport> {
    let (Some(guards), Some(inflight)) = (cluster.guards, cluster.inflight) else {
        return Vec::new();
    };
    let nodes = plan.to_create();
    let guard = |key: &str, used: u32, most: u32, what: &str, until: Option<Timestamp>| {
        let report = GateReport::of(Gate::Guards, "", ObstacleReason::Guarded).until(until);
        if used.saturating_add(nodes) <= most {
            return report.allow(format!("{used} NodeClaims {what} and {nodes} more, of {most}"));
        }
        let message = format!(
            "guards.{key} allows {most} NodeClaims {what}: there are {used}, and the gang needs {nodes}"
        );
        if nodes > most {
            let report = report.because(ObstacleReason::TooManyNodes);
            return report
                .answer(GateAnswer::Refuse, format!("{message}; ask the administrator to raise it"));
        }
        report.answer(GateAnswer::Wait, message)
    };
    vec![
        guard(
            "claimsInFlight",
            inflight.in_flight,
            guards.claims_in_flight(),
            "on their way",
            inflight.recheck_at,
        ),
        guard(
            "createsPerMinute",
            inflight.last_minute.claims,
            guards.creates_per_minute(),
            "created within a minute",
            inflight.last_minute.frees_at,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::inflight::{HeldNodes, InflightNodes, RecentCreates};
    use super::*;
    use crate::api::pod::ResourceList;
    use crate::plan::fixtures::Fixture;
    use crate::plan::{Outcome, plan};
    use crate::policy::file::{Guards, QueueGuards};
    use std::sync::Arc;

    /// The outcome of planning a gang of two nodes.
    fn outcome(guards: &Guards, inflight: &InflightNodes) -> Outcome {
        let world = Fixture::new();
        plan(
            &PlanSnapshot { guards: Some(guards), inflight: Some(inflight), ..world.cluster() },
            &world.request(),
        )
    }

    #[test]
    fn each_guard_lets_pass_what_is_within_it_and_says_when_to_look_again() {
        let later = Some(Timestamp::UNIX_EPOCH);
        let created = |claims| RecentCreates { claims, frees_at: later };
        let all = Guards {
            claims_in_flight: Some(5),
            creates_per_minute: Some(5),
            per_local_queue: QueueGuards {
                nodes: Some(5),
                creates_per_hour: Some(5),
                ..QueueGuards::default()
            },
            ..Guards::default()
        };
        let template = Arc::clone(&Fixture::new().provisioned().slots[0].template);
        let held =
            |nodes| vec![HeldNodes { nodes, resources: ResourceList::new(), claim: Arc::clone(&template) }];
        let full = |claims| InflightNodes {
            in_flight: claims,
            recheck_at: later,
            last_minute: created(claims),
            queue: held(claims),
            queue_last_hour: created(claims),
        };
        assert!(matches!(outcome(&all, &full(3)), Outcome::Provision(_)));
        for (inflight, key) in [
            (InflightNodes { in_flight: 4, ..full(3) }, "guards.claimsInFlight allows 5"),
            (InflightNodes { last_minute: created(4), ..full(3) }, "guards.createsPerMinute allows 5"),
            (InflightNodes { queue: held(4), ..full(3) }, "guards.perLocalQueue.nodes allows 5"),
            (
                InflightNodes { queue_last_hour: created(4), ..full(3) },
                "guards.perLocalQueue.createsPerHour allows 5",
            ),
        ] {
            let Outcome::Wait(obstacle) = outcome(&all, &inflight) else { panic!("{key}") };
            assert!(obstacle.message.starts_with(key), "{}", obstacle.message);
            assert_eq!(obstacle.until, later);
        }
    }

    #[test]
    fn a_gang_larger_than_a_guard_is_refused() {
        let guards = Guards { creates_per_minute: Some(1), ..Guards::default() };
        let Outcome::Refuse(obstacle) = outcome(&guards, &InflightNodes::default()) else {
            panic!("not refused")
        };
        assert!(obstacle.message.ends_with("ask the administrator to raise it"), "{}", obstacle.message);
    }
}
