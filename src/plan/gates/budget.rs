//! What one gang may take: nodes, resources and money an hour.

use super::{Answer, Gate, Report};
use crate::api::amount::{Money, Price};
use crate::api::pod::ResourceList;
use crate::plan::resources::{first_short, shown, sum};
use crate::plan::{ObstacleReason, Plan};
use crate::policy::Policy;
use crate::words::counted;

/// The gang is not larger than the whole controller allows.
pub fn size(policy: &Policy, plan: &Plan) -> Report {
    let nodes = plan.nodes();
    let report = Report::of(Gate::Size, "").because(ObstacleReason::TooManyNodes);
    if nodes <= policy.gang_nodes {
        return report.allow(format!(
            "{} of {} that a gang may have",
            counted(nodes, "node"),
            policy.gang_nodes
        ));
    }
    let message = format!(
        "the gang needs {}, and guards.gangNodes allows {}; ask the administrator",
        counted(nodes, "node"),
        policy.gang_nodes
    );
    report.answer(Answer::Refuse, message)
}

/// One report for each bound that the budget states.
pub fn ask(policy: &Policy, plan: &Plan) -> Vec<Report> {
    let budget = &policy.budget;
    let nodes = budget
        .max_nodes
        .map(|most| within(plan.nodes() <= most, &counted(plan.nodes(), "node"), &most.to_string()));
    let resources = budget.max_resources.as_ref().map(|most| of_resources(policy, plan, most));
    let money = budget.max_hourly_cost.map(|most| of_money(plan, most));
    let others = nodes.into_iter().chain(resources).map(|report| match report.answer {
        Answer::Refuse => {
            let message = format!("{}{}", report.message, plan.cost.clause());
            report.answer(Answer::Refuse, message)
        }
        _ => report,
    });
    others.chain(money).collect()
}

fn within(fits: bool, takes: &str, most: &str) -> Report {
    let report = Report::of(Gate::Budget, "").because(ObstacleReason::BudgetExceeded);
    if fits {
        return report.allow(format!("{takes} of {most} in the budget"));
    }
    report.answer(
        Answer::Refuse,
        format!(
            "the gang takes {takes}, and gates.budget allows {most}; make it smaller or ask the administrator"
        ),
    )
}

fn of_resources(policy: &Policy, plan: &Plan, most: &ResourceList) -> Report {
    let all = plan.reservations("");
    let total = all.iter().fold(ResourceList::new(), |t, r| sum(&t, &r.most));
    let bounded: ResourceList = total.into_iter().filter(|(key, _)| most.contains_key(key)).collect();
    let short = first_short(&bounded, most);
    let Some(key) = short.or_else(|| bounded.keys().next().map(String::as_str)) else {
        let words = "the gang takes nothing that gates.budget.maxResources bounds";
        return Report::of(Gate::Budget, "").allow(words);
    };
    let report = within(short.is_none(), &format!("{} {key}", shown(&bounded, key)), &shown(most, key));
    let or_more = all.iter().map(|r| r.or_more).fold(0, u32::saturating_add);
    let is_unknown = |key: &String| all.iter().any(|r| r.or_more > 0 && !r.counted.contains(key));
    let unknown: Vec<&str> = most.keys().filter(|key| is_unknown(key)).map(String::as_str).collect();
    if report.answer != Answer::Allow || unknown.is_empty() {
        return report;
    }
    if plan.slots.iter().all(|slot| slot.template.spec.node_class_ref.is_kwok()) {
        return report.unless_larger(or_more);
    }
    report.not_known(or_more, &unknown, policy.unknown)
}

fn of_money(plan: &Plan, most: Price) -> Report {
    let cost = &plan.cost;
    let most = Money { price: most, currency: cost.currency };
    if cost.unpriced > 0 {
        let message =
            format!("{}: gates.budget.maxHourlyCost {most} cannot be kept; {}", cost.lack(), cost.remedy());
        return Report::of(Gate::Budget, "")
            .because(ObstacleReason::BudgetExceeded)
            .answer(Answer::Refuse, message);
    }
    let takes = Money { price: cost.at_most, currency: cost.currency };
    within(takes.price <= most.price, &format!("{takes} an hour"), &most.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{World, pool};
    use serde_json::{Value, json};

    fn world(budget: &Value) -> World {
        let mut world = World::new();
        let typed = json!({"spec": {"template": {"spec": {"requirements": [
            {"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]},
            {"key": crate::names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"]},
        ]}}}});
        world.pools = vec![pool("gpu", &typed)];
        world.policy.budget = serde_json::from_value(budget.clone()).unwrap();
        world
    }

    #[test]
    fn a_gang_may_have_as_many_nodes_as_allowed_and_not_one_more() {
        let mut world = World::new();
        world.policy.gang_nodes = 2;
        assert_eq!(world.provisioned().slots.len(), 2);
        world.policy.gang_nodes = 1;
        let expected = "the gang needs 2 nodes, and guards.gangNodes allows 1; ask the administrator";
        assert_eq!(world.obstacle(), (ObstacleReason::TooManyNodes, expected.to_owned()));
    }

    #[test]
    fn each_bound_of_the_budget_is_kept_and_told_with_its_figures() {
        let prices = json!({"p5": {"on-demand": "98.32", "spot": "39.33"}});
        for (enough, too_little, figures) in [
            (json!({"maxNodes": 2}), json!({"maxNodes": 1}), "takes 2 nodes, and gates.budget allows 1"),
            (
                json!({"maxResources": {"nvidia.com/gpu": 2}}),
                json!({"maxResources": {"cpu": 100, "nvidia.com/gpu": 1}}),
                "takes 2 nvidia.com/gpu, and gates.budget allows 1",
            ),
            (
                json!({"maxHourlyCost": "196.64", "prices": prices}),
                json!({"maxHourlyCost": "196", "prices": prices}),
                "takes 196.64 USD an hour, and gates.budget allows 196 USD",
            ),
        ] {
            assert_eq!(world(&enough).provisioned().slots.len(), 2);
            let (reason, message) = world(&too_little).obstacle();
            assert_eq!(reason, ObstacleReason::BudgetExceeded);
            assert!(message.contains(figures), "{message}");
        }
    }

    #[test]
    fn a_bound_on_what_the_gang_takes_none_of_is_said_to_be_that() {
        let plan = world(&json!({"maxResources": {"example.com/nic": 4}})).provisioned();
        let report = plan.reports.iter().find(|r| r.gate == Gate::Budget).unwrap();
        assert_eq!(report.message, "the gang takes nothing that gates.budget.maxResources bounds");
    }

    #[test]
    fn a_price_that_is_not_known_is_not_taken_for_nothing() {
        let message = world(&json!({"maxHourlyCost": "9999"})).obstacle().1;
        assert!(message.starts_with("no price for p5, on-demand (2 nodes): gates.budget"), "{message}");
    }
}
