//! Bounds on the gangs of one LocalQueue together: nodes, devices and other resources, and hourly cost.
//!
//! Rule: what is about to be created counts like what exists. Kept nodes of the LocalQueue that the gang takes over count once,
//! as the gang's.

use super::capacity::most_of;
use super::inflight::{HeldNodes, RecentCreates};
use super::unknown::UnknownAmounts;
use super::{Gate, GateAnswer, GateReport};
use crate::api::amount::{Money, Price};
use crate::api::pod::ResourceList;
use crate::plan::cost::Prices;
use crate::plan::resources::{self, shown, sum};
use crate::plan::{ObstacleReason, Plan, PlanRequest, PlanSnapshot, warm};
use jiff::Timestamp;

/// The held nodes, where one that has not launched counts with its largest possible type.
fn with_most(held: &HeldNodes, cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>) -> HeldNodes {
    let most = resources::times(&most_of(&held.claim, cluster, request.policy), held.nodes);
    HeldNodes { resources: resources::max(&held.resources, &most), ..held.clone() }
}

/// The nodes of a LocalQueue and of a gang's plan, to compare with the bounds.
struct QueueUse<'a> {
    queue: &'a str,
    others: Vec<HeldNodes>,
    own: Vec<HeldNodes>,
    recheck_at: Option<Timestamp>,
}

/// One report for each bound that is stated.
pub fn reports_of(cluster: &PlanSnapshot<'_>, request: &PlanRequest<'_>, plan: &Plan) -> Vec<GateReport> {
    let (Some(guards), Some(inflight)) = (cluster.guards, cluster.inflight) else {
        return Vec::new();
    };
    let bounds = &guards.per_local_queue;
    let kept = warm::of_plan(plan, cluster.warm);
    let taken_over =
        |held: &&HeldNodes| kept.values().any(|claim| claim.metadata.name == held.claim.metadata.name);
    // Nodes still to be created already count with the most. Prices need only their claims.
    let counted = |held: &HeldNodes| match &bounds.max_resources {
        Some(_) if held.claim.metadata.name.is_some() => with_most(held, cluster, request),
        _ => held.clone(),
    };
    let asked = QueueUse {
        queue: &request.workload.spec.queue_name,
        others: inflight.queue.iter().filter(|held| !taken_over(held)).map(counted).collect(),
        own: plan.held(),
        recheck_at: inflight.recheck_at,
    };
    let nodes = bounds.nodes.map(|most| asked.nodes(most));
    let creates =
        bounds.creates_per_hour.map(|most| asked.creates(inflight.queue_last_hour, plan.to_create(), most));
    let resources = bounds.max_resources.as_ref().map(|most| {
        let is_asked = |key: &str| {
            asked.own.iter().any(|held| held.resources.get(key).is_some_and(resources::is_positive))
        };
        let unknown = UnknownAmounts::of(&plan.reservations(""), most, is_asked);
        unknown.qualify(asked.resources(most), plan.is_of_kwok(), request.policy.unknown)
    });
    let money = bounds.max_hourly_cost.map(|most| asked.money(cluster.prices(request.policy), most));
    nodes.into_iter().chain(creates).chain(resources).chain(money).collect()
}

/// One bound, with its figures in words.
struct QueueBound {
    key: &'static str,
    /// The bounded quantity; follows each figure.
    what: String,
    used: String,
    more: String,
    most: String,
    /// The reason if the gang alone exceeds it.
    refusal: ObstacleReason,
}

impl QueueBound {
    /// Allows what fits beside the others, makes what fits alone wait, and refuses the rest.
    fn report(self, fits: bool, fits_alone: bool, until: Option<Timestamp>) -> GateReport {
        let Self { key, what, used, more, most, refusal } = self;
        let report = GateReport::of(Gate::Guards, "", ObstacleReason::Guarded).until(until);
        if fits {
            return report.allow(format!("{used} {what} and {more} more, of {most}"));
        }
        let message = format!(
            "guards.perLocalQueue.{key} allows {most} {what}: {used} so far, and {more} more for the gang"
        );
        if fits_alone {
            return report.answer(GateAnswer::Wait, message);
        }
        let report = report.because(refusal);
        report.answer(GateAnswer::Refuse, format!("{message}; ask the administrator to raise it"))
    }
}

/// A bound on a number of NodeClaims: current count, additional count and maximum.
fn counted(
    key: &'static str,
    what: String,
    [used, more, most]: [u32; 3],
    until: Option<Timestamp>,
) -> GateReport {
    let bound = QueueBound {
        key,
        what,
        used: used.to_string(),
        more: more.to_string(),
        most: most.to_string(),
        refusal: ObstacleReason::TooManyNodes,
    };
    bound.report(used.saturating_add(more) <= most, more <= most, until)
}

impl QueueUse<'_> {
    fn nodes(&self, most: u32) -> GateReport {
        let used = self.others.iter().map(|held| held.nodes).fold(0, u32::saturating_add);
        let what = format!("NodeClaims held for LocalQueue {}", self.queue);
        let own = self.own.iter().map(|held| held.nodes).fold(0, u32::saturating_add);
        counted("nodes", what, [used, own, most], self.recheck_at)
    }

    fn creates(&self, created: RecentCreates, own: u32, most: u32) -> GateReport {
        let what = format!("NodeClaims created within an hour for LocalQueue {}", self.queue);
        counted("createsPerHour", what, [created.claims, own, most], created.frees_at)
    }

    fn resources(&self, most: &ResourceList) -> GateReport {
        let total = |all: &mut dyn Iterator<Item = &HeldNodes>| {
            all.fold(ResourceList::new(), |total, held| sum(&total, &held.resources))
        };
        let mut own = total(&mut self.own.iter());
        // The gang does not wait for resources that it does not take.
        own.retain(|key, quantity| most.contains_key(key) && resources::is_positive(quantity));
        let mut used = total(&mut self.others.iter());
        used.retain(|key, _| own.contains_key(key));
        let both = sum(&used, &own);
        let insufficient = resources::first_insufficient(&both, most);
        let Some(key) = insufficient.or_else(|| own.keys().next().map(String::as_str)) else {
            return GateReport::of(Gate::Guards, "", ObstacleReason::BudgetExceeded)
                .allow("the gang takes nothing that guards.perLocalQueue.maxResources bounds");
        };
        let bound = QueueBound {
            key: "maxResources",
            what: format!("{key} held for LocalQueue {}", self.queue),
            used: shown(&used, key),
            more: shown(&own, key),
            most: shown(most, key),
            refusal: ObstacleReason::BudgetExceeded,
        };
        let fits_alone = resources::first_insufficient(&own, most).is_none();
        bound.report(insufficient.is_none(), fits_alone, self.recheck_at)
    }

    fn money(&self, prices: Prices<'_>, most: Price) -> GateReport {
        let shown = |price: Price| Money { price, currency: prices.currency() }.to_string();
        let cost = |all: &mut dyn Iterator<Item = &HeldNodes>| {
            prices.of_nodes(all.map(|held| (&*held.claim, held.nodes)))
        };
        let (own, used) = (cost(&mut self.own.iter()), cost(&mut self.others.iter()));
        for (cost, whose, answer, reason) in [
            (&own, "the gang's", GateAnswer::Refuse, ObstacleReason::BudgetExceeded),
            (&used, "its other gangs'", GateAnswer::Wait, ObstacleReason::Guarded),
        ] {
            if cost.not_known() > 0 {
                let message = format!(
                    "{} of {whose} nodes: guards.perLocalQueue.maxHourlyCost {} of LocalQueue {} cannot be enforced; {}",
                    cost.lack(),
                    shown(most),
                    self.queue,
                    cost.remedy()
                );
                let report = GateReport::of(Gate::Guards, "", reason).until(self.recheck_at);
                return report.answer(answer, message);
            }
        }
        let bound = QueueBound {
            key: "maxHourlyCost",
            what: format!("an hour for nodes of LocalQueue {}", self.queue),
            used: shown(used.at_most),
            more: shown(own.at_most),
            most: shown(most),
            refusal: ObstacleReason::BudgetExceeded,
        };
        let both = used.at_most.micros.saturating_add(own.at_most.micros);
        bound.report(both <= most.micros, own.at_most <= most, self.recheck_at).by_prices_of(&own)
    }
}

#[cfg(test)]
mod tests {
    use super::super::inflight::InflightNodes;
    use super::*;
    use crate::names;
    use crate::plan::fixtures::{Fixture, object, patched, pool};
    use crate::plan::{Obstacle, Outcome, plan};
    use crate::policy::file::{Guards, QueueGuards};
    use serde_json::{Value, json};
    use std::sync::Arc;

    /// A gang of two nodes of one GPU each, of a type with prices.
    fn world() -> Fixture {
        let mut world = Fixture::new();
        let typed = json!({"spec": {"template": {"spec": {"requirements": [
            {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]},
            {"key": names::CAPACITY_TYPE, "operator": "In", "values": ["on-demand", "spot"]},
        ]}}}});
        world.objects.node_pools = vec![pool("gpu", &typed)];
        world.policy.budget =
            serde_json::from_value(json!({"prices": {"p5": {"on-demand": "10", "spot": "4"}}})).unwrap();
        world
    }

    fn held(name: &str, change: &Value) -> HeldNodes {
        let claim = json!({
            "metadata": {"name": name, "labels": {(names::INSTANCE_TYPE): "p5", (names::CAPACITY_TYPE): "spot"}},
            "spec": {
                "nodeClassRef": {"group": "g", "kind": "k", "name": "n"},
                "resources": {"requests": {"nvidia.com/gpu": "1"}},
            },
        });
        HeldNodes::of_claim(Arc::new(object(patched(claim, change))))
    }

    fn outcome(world: &Fixture, bounds: &QueueGuards, queue: Vec<HeldNodes>) -> Outcome {
        let guards = Guards { per_local_queue: bounds.clone(), ..Guards::default() };
        let inflight =
            InflightNodes { queue, recheck_at: Some(Timestamp::UNIX_EPOCH), ..InflightNodes::default() };
        let cluster = PlanSnapshot { guards: Some(&guards), inflight: Some(&inflight), ..world.cluster() };
        plan(&cluster, &world.request())
    }

    fn waits(outcome: Outcome) -> Obstacle {
        match outcome {
            Outcome::Wait(obstacle) => obstacle,
            other => panic!("{other:?}"),
        }
    }

    fn refused(outcome: Outcome) -> Obstacle {
        match outcome {
            Outcome::Refuse(obstacle) => obstacle,
            other => panic!("{other:?}"),
        }
    }

    fn gpus(most: &str) -> QueueGuards {
        let bounds = json!({"maxResources": {"nvidia.com/gpu": most, "cpu": "1000"}});
        serde_json::from_value(bounds).unwrap()
    }

    fn money(most: &str) -> QueueGuards {
        QueueGuards { max_hourly_cost: Some(most.parse().unwrap()), ..QueueGuards::default() }
    }

    #[test]
    fn devices_of_all_gangs_of_the_queue_count_with_everything_their_nodes_have() {
        let others = || vec![held("a", &json!({})), held("b", &json!({}))];
        assert!(matches!(outcome(&world(), &gpus("4"), others()), Outcome::Provision(_)));
        let obstacle = waits(outcome(&world(), &gpus("3"), others()));
        assert_eq!(
            obstacle.message,
            "guards.perLocalQueue.maxResources allows 3 nvidia.com/gpu held for LocalQueue lq: 2 so far, and 2 more \
             for the gang"
        );
        assert_eq!((obstacle.reason, obstacle.until), (ObstacleReason::Guarded, Some(Timestamp::UNIX_EPOCH)));
        let whole = vec![held("a", &json!({"status": {"allocatable": {"nvidia.com/gpu": "8"}}}))];
        assert!(waits(outcome(&world(), &gpus("9"), whole)).message.contains("8 so far"));
    }

    #[test]
    fn a_claim_that_has_not_launched_counts_with_the_largest_type_that_it_lists() {
        let mut world = world();
        let shape = |name: &str, gpus: u32| json!({"instanceType": name, "allocatable": {"cpu": "64", "nvidia.com/gpu": gpus}});
        world.policy.shapes = serde_json::from_value(json!([shape("p5", 1), shape("p6", 8)])).unwrap();
        let listing = |types: &[&str], change: &Value| {
            let asked = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": types}]);
            let labels = json!({(names::INSTANCE_TYPE): null, (names::CAPACITY_TYPE): null});
            let claim = json!({"metadata": {"labels": labels}, "spec": {"requirements": asked}});
            vec![held("a", &patched(claim, change))]
        };
        let one = json!({"status": {"capacity": {"nvidia.com/gpu": "1"}}});
        assert!(matches!(outcome(&world, &gpus("9"), listing(&["p5"], &json!({}))), Outcome::Provision(_)));
        let obstacle = waits(outcome(&world, &gpus("9"), listing(&["p5", "p6"], &json!({}))));
        assert!(obstacle.message.contains("8 so far, and 2 more"), "{}", obstacle.message);
        assert!(matches!(outcome(&world, &gpus("9"), listing(&["p5", "p6"], &one)), Outcome::Provision(_)));
    }

    #[test]
    fn a_gang_does_not_wait_for_resources_that_it_does_not_take() {
        let others = vec![held("a", &json!({"spec": {"resources": {"requests": {"example.com/nic": "9"}}}}))];
        let bounds: QueueGuards =
            serde_json::from_value(json!({"maxResources": {"example.com/nic": 1}})).unwrap();
        let Outcome::Provision(plan) = outcome(&world(), &bounds, others) else { panic!("no plan") };
        let words = "the gang takes nothing that guards.perLocalQueue.maxResources bounds";
        assert!(plan.reports.iter().any(|r| r.message == words), "{:?}", plan.reports);
    }

    #[test]
    fn an_unknown_amount_is_not_reported_as_within_the_bound() {
        let on = |name: &str| {
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            let is = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": [name]}]);
            let template = json!({"spec": {"nodeClassRef": class, "requirements": is}});
            Fixture::new().pools(vec![pool("gpu", &json!({"spec": {"template": template}}))])
        };
        let disk: QueueGuards =
            serde_json::from_value(json!({"maxResources": {"ephemeral-storage": "9Ti"}})).unwrap();
        let mut world = on("g6.xlarge");
        let obstacle = refused(outcome(&world, &disk, Vec::new()));
        assert_eq!(obstacle.reason, ObstacleReason::AmountUnknown);
        let words = "the amount of ephemeral-storage on 2 nodes is unknown";
        assert!(obstacle.message.contains(words), "{}", obstacle.message);
        world.policy.unknown = crate::api::parameters::Unknown::Warn;
        assert!(matches!(outcome(&world, &disk, Vec::new()), Outcome::Provision(_)));
        let mut open = on("p9.huge");
        open.objects.node_pools = vec![pool(
            "gpu",
            &json!({"spec": {"template": {"spec": {"nodeClassRef": {"group": "karpenter.gcp.io"}}}}}),
        )];
        assert_eq!(refused(outcome(&open, &gpus("4"), Vec::new())).reason, ObstacleReason::AmountUnknown);
    }

    #[test]
    fn cost_uses_the_launched_type_or_the_most_expensive_possible_type() {
        let others = || vec![held("a", &json!({}))];
        assert!(matches!(outcome(&world(), &money("24"), others()), Outcome::Provision(_)));
        assert_eq!(
            waits(outcome(&world(), &money("23.5"), others())).message,
            "guards.perLocalQueue.maxHourlyCost allows 23.50 USD an hour for nodes of LocalQueue lq: 4 USD so far, and 20 USD more for \
             the gang"
        );
        let unknown = vec![held("a", &json!({"metadata": {"labels": {(names::INSTANCE_TYPE): "x1"}}}))];
        let message = waits(outcome(&world(), &money("99"), unknown)).message;
        assert!(message.starts_with("no price for x1, spot (1 node) of its other gangs' nodes"), "{message}");
    }

    #[test]
    fn a_gang_that_does_not_fit_alone_is_refused() {
        for bounds in [gpus("1"), money("19")] {
            let Outcome::Refuse(obstacle) = outcome(&world(), &bounds, Vec::new()) else {
                panic!("{bounds:?}")
            };
            assert!(obstacle.message.ends_with("ask the administrator to raise it"), "{}", obstacle.message);
        }
        let mut unpriced = world();
        unpriced.policy.budget.prices = None;
        let Outcome::Refuse(obstacle) = outcome(&unpriced, &money("99"), Vec::new()) else {
            panic!("bought")
        };
        assert!(
            obstacle.message.starts_with("no price for p5 (on-demand or spot, 2 nodes) of the gang's nodes"),
            "{}",
            obstacle.message
        );
    }

    #[test]
    fn kept_nodes_that_the_gang_takes_over_count_only_once() {
        let world = world();
        let mut kept = (*world.provisioned().slots[0].template).clone();
        kept.metadata.name = Some("kept".to_owned());
        let guards = Guards { per_local_queue: gpus("2"), ..Guards::default() };
        let inflight = InflightNodes {
            queue: vec![HeldNodes::of_claim(Arc::new(kept.clone()))],
            ..InflightNodes::default()
        };
        let warm = [kept];
        let cluster = PlanSnapshot { guards: Some(&guards), inflight: Some(&inflight), ..world.cluster() };
        assert!(matches!(plan(&cluster, &world.request()), Outcome::Wait(_)));
        let cluster = PlanSnapshot { warm: &warm, ..cluster };
        assert!(matches!(plan(&cluster, &world.request()), Outcome::Provision(_)));
    }
}
