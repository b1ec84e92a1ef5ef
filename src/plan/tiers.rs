//! The ordered options to get a gang's nodes from: tiers, within a tier NodePools by weight, and within
//! these the values of the label that all nodes are to share.
//!
//! Rule: one option is one way for all nodes that are still to come; only claims that exist, where the
//! policy lets tiers be mixed, may have come by another.

use super::claim::Draft;
use super::demand::PodSetDemand;
use super::{Cluster, Obstacle, ObstacleReason, Request, pools};
use crate::api::parameters::{ColocationMode, Tier};
use crate::policy::{Colocation, Policy};
use std::collections::BTreeSet;

/// One way to get all nodes of a gang.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Index of the tier in the policy; 0 where it names none.
    pub tier: u32,
    /// Tier, NodePool and place, as far as there is a choice of each; for people.
    pub name: String,
    /// One draft for each pod set, or why this is no way.
    pub drafts: Result<Vec<Draft>, Obstacle>,
}

/// The tiers of a policy. One that names none has a single tier without a name.
pub fn of_policy(policy: &Policy) -> Vec<Tier> {
    if policy.tiers.is_empty() {
        return vec![Tier { node_pool_name: policy.node_pool.clone(), ..Tier::default() }];
    }
    policy.tiers.clone()
}

/// Every way, the preferred first. Never empty.
pub fn choices(cluster: &Cluster<'_>, request: &Request<'_>, demand: &[PodSetDemand<'_>]) -> Vec<Choice> {
    let mut all = Vec::new();
    for (index, tier) in (0_u32..).zip(of_policy(request.policy)) {
        let one = |name: Vec<&str>, drafts| Choice { tier: index, name: name.join(" "), drafts };
        let candidates: Result<Vec<Vec<Draft>>, Obstacle> =
            demand.iter().map(|wanted| pools::candidates(cluster, request, &tier, wanted)).collect();
        let candidates = match candidates {
            Ok(candidates) => candidates,
            Err(obstacle) => {
                all.push(one(vec![&tier.name], Err(obstacle)));
                continue;
            }
        };
        let most = candidates.iter().map(Vec::len).max().unwrap_or(1);
        for nth in 0..most {
            // A pod set with fewer NodePools to choose from stays on its last one.
            let drafts: Vec<Draft> =
                candidates.iter().filter_map(|list| list.get(nth).or_else(|| list.last())).cloned().collect();
            let pools: BTreeSet<&str> = drafts.iter().map(|d| d.node_pool.as_str()).collect();
            let pools =
                if most > 1 { pools.into_iter().collect::<Vec<_>>().join(" and ") } else { String::new() };
            for (place, drafts) in places(request.policy.colocation.as_ref(), drafts) {
                let name = [tier.name.as_str(), &pools, &place].into_iter().filter(|part| !part.is_empty());
                all.push(one(name.collect(), drafts));
            }
        }
    }
    all
}

/// The drafts held to each value of the shared label in turn, with that value.
fn places(
    colocation: Option<&Colocation>,
    drafts: Vec<Draft>,
) -> Vec<(String, Result<Vec<Draft>, Obstacle>)> {
    let Some(Colocation { topology_key: key, mode }) = colocation else {
        return vec![(String::new(), Ok(drafts))];
    };
    let listed = |draft: &Draft| draft.requirements.get(key).and_then(|v| v.listed()).cloned();
    let common = drafts.iter().map(listed).reduce(|a, b| Some(&a? & &b?)).flatten();
    let mut all: Vec<_> = common
        .iter()
        .flatten()
        .map(|value| (value.clone(), drafts.iter().map(|d| d.held_to(key, value)).collect()))
        .collect();
    match (mode, common) {
        (ColocationMode::Required, Some(_)) if !all.is_empty() => {}
        (ColocationMode::Required, common) => {
            let pools: BTreeSet<&str> = drafts.iter().map(|d| d.node_pool.as_str()).collect();
            let pools = pools.into_iter().collect::<Vec<_>>().join(" and ");
            let why = if common.is_some() {
                format!("have no value of {key} in common")
            } else {
                format!(
                    "do not say which values of {key} their nodes can have; list them in spec.template.spec.requirements"
                )
            };
            let message = format!(
                "all nodes are to share {key}, but what NodePool {pools} offers and the pods ask for {why}"
            );
            all.push((String::new(), Err(Obstacle::new(ObstacleReason::RequirementsClash, message))));
        }
        (ColocationMode::Preferred | ColocationMode::None, _) => all.push((String::new(), Ok(drafts))),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{World, pool};
    use super::super::offering::Offering;
    use super::super::{Outcome, Plan, Ways};
    use super::*;
    use crate::names;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn tiers(list: &Value) -> Vec<Tier> {
        serde_json::from_value(list.clone()).unwrap()
    }

    fn capacity(kind: &str) -> Value {
        json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": [kind]}])
    }

    /// Spot in zone a, then on-demand anywhere.
    fn two_tiers() -> World {
        let mut world = World::new();
        world.policy.tiers = tiers(&json!([
            {"name": "spot", "requirements": capacity("spot"), "zones": ["a"]},
            {"name": "on-demand", "nodePoolName": "gpu", "requirements": capacity("on-demand")},
        ]));
        world
    }

    fn short(plan: &Plan) -> BTreeSet<Offering> {
        plan.offerings()
    }

    #[test]
    fn the_first_tier_is_taken_and_the_next_one_where_the_first_ran_out_lately() {
        let mut world = two_tiers();
        let spot = world.provisioned();
        assert_eq!((spot.tier, spot.way.as_str(), spot.choice, spot.choices), (0, "spot", 0, 2));
        world.short = short(&spot);
        let on_demand = world.provisioned();
        assert_eq!((on_demand.tier, on_demand.way.as_str()), (1, "on-demand"));
        world.short.extend(short(&on_demand));
        assert_eq!(world.provisioned().tier, 0, "where all ran out, the first is tried again");
    }

    #[test]
    fn tiers_that_were_tried_are_not_tried_again_in_the_same_round() {
        let mut world = two_tiers();
        world.ways = Ways::From(1);
        assert_eq!(world.provisioned().tier, 1);
        world.pools = vec![pool("other", &json!({}))];
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::NodePoolMissing);
        assert!(message.starts_with("NodePool gpu does not exist"), "{message}");
    }

    #[test]
    fn where_no_tier_will_do_each_is_told_with_its_own_reason() {
        let mut world = two_tiers();
        world.policy.tiers[0].zones = vec!["x".into()];
        world.pools.clear();
        world.pools.push(pool("other", &json!({})));
        let message = world.obstacle().1;
        let spot = "no tier will do: spot: tier spot asks for topology.kubernetes.io/zone [x], but NodePool other offers [a b]";
        assert!(
            message.starts_with(spot) && message.contains("on-demand: NodePool gpu does not exist"),
            "{message}"
        );
    }

    #[test]
    fn an_accepted_way_is_kept_whatever_was_short_and_a_begun_one_is_known_by_its_claims() {
        let mut world = two_tiers();
        world.short = short(&world.provisioned());
        let on_demand = world.provisioned();
        world.ways = Ways::Accepted(0);
        assert_eq!(world.provisioned().tier, 0);
        let world = two_tiers();
        let begun = (*on_demand.slots[0].template).clone();
        let request = crate::plan::Request { ways: Ways::Like(&begun), ..world.request() };
        let Outcome::Provision(plan) = crate::plan::plan(&world.cluster(), &request) else {
            panic!("no plan")
        };
        assert_eq!((plan.tier, plan.slots), (1, on_demand.slots));
    }

    #[test]
    fn what_is_kept_stays_and_the_rest_comes_by_the_next_way() {
        let mut world = two_tiers();
        let spot = world.provisioned();
        let mut kept = (*spot.slots[1].template).clone();
        kept.metadata.name = Some("kept".to_owned());
        let labels = kept.metadata.labels.get_or_insert_default();
        labels.extend([
            (names::SLOT.to_owned(), "1".to_owned()),
            (names::NODEPOOL.to_owned(), "gpu".to_owned()),
        ]);
        world.short = short(&spot);
        world.ways = Ways::From(1);
        let kept = [kept];
        let cluster = crate::plan::Cluster { kept: &kept, ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        assert_eq!((plan.tier, plan.nodes(), plan.to_create()), (1, 2, 1));
        assert_eq!(plan.slots[1].template.metadata.name.as_deref(), Some("kept"));
        assert!(!plan.is_short(Some(&world.short)), "what is there already is not looked for");
        assert_ne!(plan.slots[0].template, spot.slots[0].template);
    }

    #[test]
    fn pools_by_weight_are_the_ways_where_the_policy_names_no_tier() {
        let weight =
            |w: i32| json!({"spec": {"weight": w, "limits": {"nodes": if w == 9 { "1" } else { "9" }}}});
        let mut world = World::new();
        world.pools = vec![pool("light", &weight(1)), pool("heavy", &weight(9)), pool("middle", &weight(5))];
        let plan = world.provisioned();
        assert_eq!((plan.slots[0].node_pool.as_str(), plan.choice, plan.choices), ("middle", 1, 3));
        world.short = short(&plan);
        assert_eq!(world.provisioned().slots[0].node_pool, "light");
    }

    fn together(mode: ColocationMode) -> World {
        let mut world = World::new();
        let topology_key = names::ZONE.to_owned();
        world.policy.colocation = Some(Colocation { topology_key, mode });
        world
    }

    fn zones(plan: &Plan) -> Vec<String> {
        let of = |claim: &Arc<crate::api::NodeClaim>| {
            claim.spec.requirements.iter().find(|r| r.key == names::ZONE).unwrap().values.clone()
        };
        let mut all: Vec<String> = plan.slots.iter().flat_map(|s| of(&s.template)).collect();
        all.sort();
        all.dedup();
        all
    }

    #[test]
    fn one_zone_for_the_whole_gang_and_the_next_where_that_ran_out() {
        let mut world = together(ColocationMode::Required);
        let first = world.provisioned();
        assert_eq!((zones(&first), first.choices), (vec!["a".to_owned()], 2));
        world.short = short(&first);
        assert_eq!(zones(&world.provisioned()), ["b"]);
        world.ways = Ways::From(1);
        assert_eq!(zones(&world.provisioned()), ["b"]);
    }

    #[test]
    fn a_preferred_zone_is_given_up_last() {
        let mut world = together(ColocationMode::Preferred);
        assert_eq!(world.provisioned().choices, 3);
        world.ways = Ways::From(2);
        assert_eq!(zones(&world.provisioned()), ["a", "b"]);
    }

    #[test]
    fn any_label_can_be_shared_and_one_without_known_values_is_refused_with_the_remedy() {
        let rack = "example.com/rack";
        let mut world = together(ColocationMode::Required);
        world.policy.colocation =
            Some(Colocation { topology_key: rack.into(), mode: ColocationMode::Required });
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(message.contains("list them in spec.template.spec.requirements"), "{message}");
        let racks = json!({"spec": {"template": {"spec": {"requirements":
            [{"key": rack, "operator": "In", "values": ["r1", "r2"]}]}}}});
        world.pools = vec![pool("gpu", &racks)];
        let plan = world.provisioned();
        assert_eq!((plan.choices, plan.way.as_str()), (2, "r1"));
        let labels = plan.slots[0].template.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[rack], "r1");
    }
}
