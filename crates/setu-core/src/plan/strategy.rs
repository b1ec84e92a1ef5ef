//! When a plan may be executed: at once, after all other checks, or never.

use super::{Obstacle, ObstacleReason, Outcome, PlanRequest};
use crate::api::parameters::StrategyType;
use crate::api::workload::Verdict;

/// The outcome after the strategy is applied.
pub fn timed(outcome: Outcome, request: &PlanRequest<'_>) -> Outcome {
    let Outcome::Provision(plan) = outcome else { return outcome };
    match request.policy.strategy {
        StrategyType::Proactive => Outcome::Provision(plan),
        StrategyType::LastCheck => match others(request).as_slice() {
            [] => Outcome::Provision(plan),
            others => {
                let message =
                    format!("{}; they are created once check {} is Ready", plan.summary(), others.join(", "));
                Outcome::Wait(Obstacle::new(ObstacleReason::OtherChecks, message))
            }
        },
        StrategyType::DryRun => {
            let message =
                format!("{}; they would be created; strategy DryRun creates nothing", plan.summary());
            Outcome::Wait(Obstacle::new(ObstacleReason::DryRun, message))
        }
    }
}

/// Checks that are not Ready, of other controllers or that Setu answers and that have an earlier name. Two that Setu answers do not
/// wait for each other.
fn others<'w>(request: &PlanRequest<'w>) -> Vec<&'w str> {
    let is_other = |name: &String| !request.answered_checks.contains(name) || name.as_str() < request.check;
    let open = request.workload.checks().iter().filter(|c| is_other(&c.name) && c.state != Verdict::Ready);
    open.map(|c| c.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::Fixture;
    use super::*;
    use serde_json::json;

    fn outcome(strategy: StrategyType, other: &str) -> Outcome {
        let entry = |name: &str, state: &str| json!({"name": name, "state": state, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""});
        let mut world = Fixture::new().workload(&json!({
            "status": {"admissionChecks": [entry("prov", "Pending"), entry("other", other)]},
        }));
        world.policy.strategy = strategy;
        timed(world.plan(), &world.request())
    }

    #[test]
    fn of_several_checks_of_setus_the_last_by_name_waits_for_the_others() {
        let entry = |name: &str, state: &str| json!({"name": name, "state": state, "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""});
        let summary = |other: &str, state: &str| {
            let mut world = Fixture::new().workload(&json!({
                "status": {"admissionChecks": [entry(other, state), entry("prov", "Pending")]},
            }));
            world.checks = vec!["prov".to_owned(), other.to_owned()];
            world.policy.strategy = StrategyType::LastCheck;
            match timed(Fixture::new().plan(), &world.request()) {
                Outcome::Wait(obstacle) => obstacle.message,
                Outcome::Provision(_) => "provisioned".to_owned(),
                outcome => panic!("{outcome:?}"),
            }
        };
        let waits = summary("alpha", "Pending");
        assert!(waits.ends_with("they are created once check alpha is Ready"), "{waits}");
        assert_eq!(summary("alpha", "Ready"), "provisioned");
        assert_eq!(summary("zeta", "Pending"), "provisioned", "that one waits for this one");
    }

    #[test]
    fn a_check_that_setu_answers_by_requests_waits_for_no_later_one_either() {
        let entry = |name: &str| json!({"name": name, "state": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""});
        let mut world =
            Fixture::new().workload(&json!({"status": {"admissionChecks": [entry("prov"), entry("zeta")]}}));
        world.policy.strategy = StrategyType::LastCheck;
        let answered = ["prov".to_owned(), "zeta".to_owned()];
        let request = PlanRequest { answered_checks: &answered, ..world.request() };
        assert!(matches!(timed(Fixture::new().plan(), &request), Outcome::Provision(_)));
    }

    #[test]
    fn proactive_proceeds_last_check_waits_and_dry_run_only_reports() {
        let waits = |outcome: Outcome| match outcome {
            Outcome::Wait(obstacle) => Some((obstacle.reason, obstacle.message)),
            _ => None,
        };
        assert_eq!(waits(outcome(StrategyType::Proactive, "Pending")), None);
        assert_eq!(waits(outcome(StrategyType::LastCheck, "Ready")), None);
        let (reason, message) = waits(outcome(StrategyType::LastCheck, "Pending")).unwrap();
        assert_eq!(reason, ObstacleReason::OtherChecks);
        assert_eq!(message, "2 nodes: 2 from NodePool gpu; they are created once check other is Ready");
        let (reason, message) = waits(outcome(StrategyType::DryRun, "Ready")).unwrap();
        assert_eq!(reason, ObstacleReason::DryRun);
        assert!(message.starts_with("2 nodes: 2 from NodePool gpu; they would be created"), "{message}");
    }
}
