//! Bounds on one gang: nodes, resources and hourly cost.

use super::unknown::UnknownAmounts;
use super::{Gate, GateAnswer, GateReport};
use crate::api::amount::{Money, Price};
use crate::api::pod::ResourceList;
use crate::plan::resources::{first_insufficient, shown, sum};
use crate::plan::{ObstacleReason, Plan};
use crate::policy::Policy;
use crate::words::counted;

/// Checks the gang's node count against the controller's limit.
pub fn size(policy: &Policy, plan: &Plan) -> GateReport {
    let nodes = plan.nodes();
    let report = GateReport::of(Gate::Size, "", ObstacleReason::TooManyNodes);
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
    report.answer(GateAnswer::Refuse, message)
}

/// One report for each bound that the budget states.
pub fn reports_of(policy: &Policy, plan: &Plan) -> Vec<GateReport> {
    let budget = &policy.budget;
    let cost = plan.cost.clause();
    let asked = counted(plan.nodes(), "node");
    let nodes = budget.max_nodes.map(|most| within(plan.nodes() <= most, &asked, &cost, &most.to_string()));
    let resources = budget.max_resources.as_ref().map(|most| of_resources(policy, plan, most));
    let money = budget.max_hourly_cost.map(|most| of_money(plan, most));
    nodes.into_iter().chain(resources).chain(money).collect()
}

/// Allows what fits and refuses the rest. The refusal includes `cost`, a clause that starts with a comma.
fn within(fits: bool, asked: &str, cost: &str, most: &str) -> GateReport {
    let report = GateReport::of(Gate::Budget, "", ObstacleReason::BudgetExceeded);
    if fits {
        return report.allow(format!("{asked} of {most} in the budget"));
    }
    report.answer(
        GateAnswer::Refuse,
        format!(
            "the gang takes {asked}{cost}, and gates.budget allows {most}; make it smaller or ask the administrator"
        ),
    )
}

fn of_resources(policy: &Policy, plan: &Plan, most: &ResourceList) -> GateReport {
    let all = plan.reservations("");
    let total = all.iter().fold(ResourceList::new(), |t, r| sum(&t, &r.most));
    let bounded: ResourceList = total.into_iter().filter(|(key, _)| most.contains_key(key)).collect();
    let insufficient = first_insufficient(&bounded, most);
    let Some(key) = insufficient.or_else(|| bounded.keys().next().map(String::as_str)) else {
        let words = "the gang requests nothing that gates.budget.maxResources limits";
        let report = GateReport::of(Gate::Budget, "", ObstacleReason::BudgetExceeded).allow(words);
        return UnknownAmounts::of(&all, most, |_| false).qualify(report, plan.is_of_kwok(), policy.unknown);
    };
    let asked = format!("{} {key}", shown(&bounded, key));
    let report = within(insufficient.is_none(), &asked, &plan.cost.clause(), &shown(most, key));
    UnknownAmounts::of(&all, most, |_| true).qualify(report, plan.is_of_kwok(), policy.unknown)
}

fn of_money(plan: &Plan, most: Price) -> GateReport {
    let cost = &plan.cost;
    let most = Money { price: most, currency: cost.currency };
    if cost.not_known() > 0 {
        let report = GateReport::of(Gate::Budget, "", ObstacleReason::BudgetExceeded);
        let (lack, least) = (cost.lack(), Money { price: cost.at_least, currency: cost.currency });
        let message = if least.price > most.price {
            format!(
                "the gang takes {least} an hour with the cheapest types that have a price, and gates.budget allows {most}; make it smaller or ask the administrator; {lack}"
            )
        } else {
            format!("{lack}: gates.budget.maxHourlyCost {most} cannot be enforced; {}", cost.remedy())
        };
        return report.answer(GateAnswer::Refuse, message);
    }
    let asked = Money { price: cost.at_most, currency: cost.currency };
    let asked = if most.price < cost.at_least && cost.at_least < cost.at_most {
        format!("at least {} an hour", Money { price: cost.at_least, ..asked })
    } else {
        format!("{asked} an hour")
    };
    within(cost.at_most <= most.price, &asked, "", &most.to_string()).by_prices_of(cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixtures::{Fixture, pool};
    use serde_json::{Value, json};

    fn world(budget: &Value) -> Fixture {
        let mut world = Fixture::new();
        let typed = json!({"spec": {"template": {"spec": {"requirements": [
            {"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]},
            {"key": crate::names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"]},
        ]}}}});
        world.objects.node_pools = vec![pool("gpu", &typed)];
        world.policy.budget = serde_json::from_value(budget.clone()).unwrap();
        world
    }

    #[test]
    fn a_gang_may_have_as_many_nodes_as_allowed_and_not_one_more() {
        let mut world = Fixture::new();
        world.policy.gang_nodes = 2;
        assert_eq!(world.provisioned().slots.len(), 2);
        world.policy.gang_nodes = 1;
        let expected = "the gang needs 2 nodes, and guards.gangNodes allows 1; ask the administrator";
        assert_eq!(world.obstacle(), (ObstacleReason::TooManyNodes, expected.to_owned()));
    }

    #[test]
    fn an_over_budget_message_states_the_cost_before_the_remedy() {
        let mut world =
            world(&json!({"maxNodes": 1, "prices": {"p5": {"on-demand": "98.32", "spot": "39.33"}}}));
        let message = "the gang takes 2 nodes, at most 196.64 USD an hour, and gates.budget allows 1; make it smaller or ask the \
                       administrator";
        assert_eq!(world.obstacle().1, message);
        world.policy.budget.max_nodes = Some(2);
        assert_eq!(world.provisioned().slots.len(), 2);
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
    fn a_bound_on_a_resource_that_the_gang_does_not_take_is_reported_as_such() {
        let plan = world(&json!({"maxResources": {"example.com/nic": 4}})).provisioned();
        let report = plan.reports.iter().find(|r| r.gate == Gate::Budget).unwrap();
        assert_eq!(report.message, "the gang requests nothing that gates.budget.maxResources limits");
    }

    #[test]
    fn a_bound_on_an_amount_that_no_shape_states_is_not_reported_as_kept() {
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let requirements =
            json!([{"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": ["g6.xlarge"]}]);
        let spec = json!({"nodeClassRef": class, "requirements": requirements});
        for bounds in [json!({"ephemeral-storage": "1Ti"}), json!({"ephemeral-storage": "1Ti", "cpu": 100})] {
            let mut world = world(&json!({"maxResources": bounds}));
            world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
            let (reason, message) = world.obstacle();
            assert_eq!(reason, ObstacleReason::AmountUnknown);
            assert!(message.contains("the amount of ephemeral-storage on 2 nodes is unknown"), "{message}");
            world.policy.unknown = crate::api::parameters::Unknown::Warn;
            let plan = world.provisioned();
            let report = plan.reports.iter().find(|r| r.gate == Gate::Budget).unwrap();
            assert_eq!(report.answer, GateAnswer::Warn);
        }
    }

    #[test]
    fn an_unknown_price_does_not_count_as_zero() {
        let message = world(&json!({"maxHourlyCost": "9999"})).obstacle().1;
        assert!(
            message.starts_with("no price for p5 (on-demand or spot, 2 nodes): gates.budget"),
            "{message}"
        );
    }

    #[test]
    fn a_cheapest_price_over_the_budget_is_reported_before_missing_prices() {
        let world = |types: &Value, most: &str| {
            let prices = json!({"a": {"on-demand": "10"}, "b": {"on-demand": "20"}});
            let mut world = world(&json!({"maxHourlyCost": most, "prices": prices}));
            let is = json!([{"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            world.objects.node_pools =
                vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": is}}}}))];
            world
        };
        let message = |types: &Value, most: &str| world(types, most).obstacle().1;
        let both = message(&json!(["a", "b"]), "19");
        let words = "the gang takes at least 20 USD an hour, and gates.budget allows 19 USD";
        assert!(both.starts_with(words), "{both}");
        let one_open = message(&json!(["a", "b", "c"]), "19");
        let words = "the gang takes 20 USD an hour with the cheapest types that have a price, and gates.budget allows 19 USD";
        assert!(one_open.starts_with(words), "{one_open}");
        assert!(one_open.ends_with("; no price for c, on-demand (2 nodes)"), "{one_open}");
        let plan = world(&json!(["a", "b", "c"]), "20").provisioned();
        let types: Vec<&String> = plan.slots[0].instance_types().collect();
        assert_eq!(types, ["a"], "what has no price is left out where the rest will do");
    }

    #[test]
    fn a_budget_checked_with_prices_of_another_region_gives_a_warning() {
        let in_zones = |zones: &Value| {
            let mut world = world(&json!({"maxHourlyCost": "9999"}));
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let mut requirements = vec![
                json!({"key": crate::names::INSTANCE_TYPE, "operator": "In", "values": ["p5.48xlarge"]}),
            ];
            if !zones.is_null() {
                requirements.push(json!({"key": crate::names::ZONE, "operator": "In", "values": zones}));
            }
            let spec = json!({"nodeClassRef": class, "requirements": requirements});
            world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
            world
        };
        let answer = |zones: &Value| {
            let plan = in_zones(zones).provisioned();
            let report = plan.reports.iter().find(|r| r.gate == Gate::Budget).unwrap().clone();
            (report.answer, report.message, plan.notes.iter().any(|note| note.contains("us-east-1's")))
        };
        let (answered, message, is_noted) = answer(&Value::Null);
        assert_eq!((answered, is_noted), (GateAnswer::Warn, true));
        let words = "an hour of 9999 USD in the budget, by us-east-1's prices: nothing says in which region";
        assert!(message.contains(words), "{message}");
        assert_eq!(answer(&json!(["us-east-1a"])).0, GateAnswer::Allow);
        let (reason, message) = in_zones(&json!(["eu-central-1a"])).obstacle();
        assert_eq!(reason, ObstacleReason::BudgetExceeded);
        assert!(
            message.starts_with("no price for p5.48xlarge, on-demand, eu-central-1 (1 node)"),
            "{message}"
        );
    }
}
