//! Whether Karpenter would create nodes from a NodePool now. Reads the NodePool's conditions, which include the state of its
//! NodeClass, whatever its kind.
//!
//! Rule: the policy can let only NodeClass problems pass.

use super::{Gate, GateAnswer, GateReport};
use crate::api::NodePool;
use crate::api::condition;
use crate::api::node_claim::NodeClassRef;
use crate::api::parameters::GateMode;
use crate::plan::{Edited, ObstacleReason, Plan, PlanSnapshot};
use crate::policy::Policy;
use std::collections::BTreeSet;

/// One report for each NodePool that the plan still creates nodes from.
pub fn reports_of(cluster: &PlanSnapshot<'_>, policy: &Policy, plan: &Plan) -> Vec<GateReport> {
    let mut asked = BTreeSet::new();
    let pools = plan.wanted().filter_map(|slot| {
        let found =
            cluster.objects.node_pools.iter().find(|p| p.metadata.name.as_ref() == Some(&slot.node_pool))?;
        asked.insert(&slot.node_pool).then_some((found, &slot.template.spec.node_class_ref))
    });
    pools.filter_map(|(pool, class)| of_pool(pool, class, policy.node_class_gate)).collect()
}

/// Whether nodes can be created from a NodePool now, apart from what the policy lets pass. A just edited NodePool counts as open
/// while it is waited for.
pub fn is_open(pool: &NodePool, policy: &Policy, edited: Edited) -> bool {
    let report = of_pool(pool, &NodeClassRef::default(), policy.node_class_gate);
    (edited == Edited::Awaited && pool.is_unseen()) || report.is_none_or(|report| !report.is_closed())
}

fn of_pool(pool: &NodePool, class: &NodeClassRef, force: GateMode) -> Option<GateReport> {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let report = GateReport::of(Gate::Readiness, name, ObstacleReason::NodePoolNotReady);
    if pool.is_assumed_ready() {
        let words = format!("NodePool {name} has no status here, so it is taken for ready");
        return Some(report.answer(GateAnswer::Unknown, words));
    }
    let Some(fault) = pool.unusable() else {
        let NodeClassRef { group, kind, name: of } = class;
        return Some(report.allow(format!("NodePool {name} and its {kind}.{group} {of} are ready")));
    };
    if pool.is_unseen() {
        return Some(report.because(ObstacleReason::NodePoolEdited).answer(GateAnswer::Wait, fault));
    }
    let report = report.answer(GateAnswer::Wait, fault);
    if !only_the_class_is_not_ready(pool) {
        return Some(report);
    }
    (force != GateMode::Off).then(|| report.limited_by(force))
}

fn only_the_class_is_not_ready(pool: &NodePool) -> bool {
    let is_false = |kind: &str| condition::find(pool.conditions(), kind).is_some_and(|c| c.status == "False");
    let class = condition::find(pool.conditions(), "NodeClassReady").is_some_and(|c| c.status != "True");
    class && !is_false("ValidationSucceeded") && pool.metadata.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{Fixture, condition, pool};
    use crate::plan::option_reports;
    use serde_json::{Value, json};

    fn world(conditions: &[(&str, &str)]) -> Fixture {
        with(&conditions.iter().map(|(kind, status)| condition(kind, status)).collect::<Vec<_>>())
    }

    /// A NodePool with these conditions.
    fn with(list: &[Value]) -> Fixture {
        let class = json!({"group": "karpenter.example.com", "kind": "ExampleNodeClass", "name": "gpu"});
        let change =
            json!({"spec": {"template": {"spec": {"nodeClassRef": class}}}, "status": {"conditions": list}});
        Fixture::new().pools(vec![pool("gpu", &change)])
    }

    /// The gate's answer about the NodePool, if there is one.
    fn in_words(world: &Fixture) -> Option<(GateAnswer, String)> {
        let options = option_reports(&world.cluster(), &world.request()).unwrap();
        let report = options[0].reports.iter().find(|r| r.gate == Gate::Readiness);
        report.map(|r| (r.answer, r.message.clone()))
    }

    #[test]
    fn a_ready_node_pool_is_reported_with_its_node_class_of_any_kind() {
        let expected = "NodePool gpu and its ExampleNodeClass.karpenter.example.com gpu are ready";
        assert_eq!(in_words(&world(&[("Ready", "True")])), Some((GateAnswer::Allow, expected.to_owned())));
    }

    #[test]
    fn a_missing_node_class_is_to_be_created_and_another_one_described() {
        let describe = "kubectl describe examplenodeclass gpu shows what it lacks";
        for (reason, hint) in [
            ("NodeClassNotFound", "create it, or name another one in the NodePool"),
            ("NodeClassReadinessUnknown", describe),
            ("UnhealthyDependents", describe),
        ] {
            let mut class = condition("NodeClassReady", "False");
            (class["reason"], class["message"]) = (json!(reason), json!(""));
            let (_, message) = in_words(&with(&[condition("Ready", "False"), class])).unwrap();
            let expected = format!(
                "NodePool gpu is not ready (NodeClassReady of ExampleNodeClass gpu: {reason}; {hint})"
            );
            assert_eq!(message, expected);
        }
    }

    #[test]
    fn a_node_class_that_is_not_ready_follows_the_policy_and_shows_its_condition() {
        let mut world = world(&[("Ready", "False"), ("NodeClassReady", "False")]);
        let expected = "NodePool gpu is not ready (NodeClassReady of ExampleNodeClass gpu: Because so it is; \
                        kubectl describe examplenodeclass gpu shows what it lacks)";
        for (gate, answer) in [(GateMode::Enforce, GateAnswer::Wait), (GateMode::Warn, GateAnswer::Warn)] {
            world.policy.node_class_gate = gate;
            assert_eq!(in_words(&world), Some((answer, expected.to_owned())));
        }
        world.policy.node_class_gate = GateMode::Off;
        assert_eq!(in_words(&world), None);
    }

    #[test]
    fn an_accepted_node_pool_that_became_unusable_gets_no_more_nodes() {
        let mut world = world(&[("Ready", "False")]);
        world.policy.node_class_gate = GateMode::Off;
        world.selection = crate::plan::OptionSelection::Accepted { option_index: 0, plan: None, begun: &[] };
        assert_eq!(world.obstacle().0, ObstacleReason::NodePoolNotReady);
    }
}
