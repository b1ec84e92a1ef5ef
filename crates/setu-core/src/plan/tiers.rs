//! The ordered options for a gang's nodes: tiers; within a tier, capacity types if the policy orders them; then NodePools by
//! weight; then the values of the label that all nodes share.
//!
//! Rule: one option covers all nodes that are still to be created. Existing claims may come from another option if the policy
//! allows mixed tiers.

use super::claim::Draft;
use super::demand::PodSetDemand;
use super::passed_over::{self, PassedOver};
use super::pools::{self, Candidates};
use super::topology::{self, Arrangement, Topology};
use super::{Obstacle, ObstacleReason, PlanRequest, PlanSnapshot};
use crate::api::parameters::{CapacityType, ColocationMode, Tier};
use crate::names;
use crate::policy::{Policy, SharedLabel};
use std::collections::BTreeSet;

/// Most combinations of NodePools that are tried if pod sets choose among different ones.
const POOL_COMBINATIONS: usize = 64;

/// One way to get all nodes of a gang.
#[derive(Clone, Debug)]
pub struct ProvisioningOption {
    /// Index of the tier in the policy; 0 if the policy names none.
    pub tier: u32,
    /// For display: tier, capacity type, NodePool and domain, each only if there is a choice.
    pub name: String,
    /// Where its pods go, or why the option is not possible.
    pub arrangement: Result<Arrangement, Obstacle>,
    /// Its NodePools.
    pub pools: BTreeSet<String>,
    /// NodePools of the tier that are not eligible.
    pub passed_over: Vec<PassedOver>,
    /// Whether its nodes have accelerators that no pod asks for.
    pub has_spare: bool,
}

/// The tiers of a policy. A policy without tiers has one tier without a name.
pub fn of_policy(policy: &Policy) -> Vec<Tier> {
    if policy.tiers.is_empty() {
        return vec![Tier { node_pool_name: policy.node_pool.clone(), ..Tier::default() }];
    }
    policy.tiers.clone()
}

/// All options, the preferred first. Never empty.
pub fn options(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    demand: &[PodSetDemand<'_>],
    topology: &Topology,
) -> Vec<ProvisioningOption> {
    let of_tier = |(index, tier)| TierOptions { cluster, request, demand, topology, index, tier }.all();
    (0..).zip(of_policy(request.policy)).flat_map(of_tier).collect()
}

/// The inputs for the options of one tier.
struct TierOptions<'a> {
    cluster: &'a PlanSnapshot<'a>,
    request: &'a PlanRequest<'a>,
    demand: &'a [PodSetDemand<'a>],
    topology: &'a Topology,
    index: u32,
    tier: Tier,
}

impl TierOptions<'_> {
    fn all(&self) -> Vec<ProvisioningOption> {
        let impossible = |obstacle| self.option(&[&self.tier.name], BTreeSet::new(), Err(obstacle));
        let (candidates, passed_over) = match self.candidates() {
            Ok(found) => found,
            Err(obstacle) => return vec![impossible(obstacle)],
        };
        let mut options: Vec<_> = match by_capacity_type(&self.request.policy.capacity_types, candidates) {
            Ok(kinds) => kinds.into_iter().flat_map(|kind| self.of_capacity_type(kind)).collect(),
            Err(obstacle) => vec![impossible(obstacle)],
        };
        for option in &mut options {
            let others = passed_over.iter().filter(|one| !option.pools.contains(&one.node_pool));
            option.passed_over = others.cloned().collect();
        }
        options
    }

    /// The candidates of each pod set, and the NodePools that are not eligible.
    fn candidates(&self) -> Result<(Vec<Vec<Draft>>, Vec<PassedOver>), Obstacle> {
        let of = |wanted| pools::candidates(self.cluster, self.request, &self.tier, wanted);
        let all = self.demand.iter().map(of).collect::<Result<Vec<Candidates>, Obstacle>>()?;
        let (drafts, unfit): (Vec<_>, Vec<_>) =
            all.into_iter().map(|candidates| (candidates.drafts, candidates.passed_over)).unzip();
        let mut passed_over = Vec::new();
        PassedOver::add(&mut passed_over, unfit.into_iter().flatten());
        Ok((drafts, passed_over))
    }

    fn of_capacity_type(
        &self,
        OfCapacityType { kind, candidates }: OfCapacityType,
    ) -> Vec<ProvisioningOption> {
        let rows = combinations(&candidates);
        let several = rows.len() > 1;
        let colocation = self.request.policy.colocation.as_ref();
        let mut all = Vec::new();
        for drafts in rows {
            let has_spare = drafts.iter().any(|draft| draft.has_spare);
            let pools: BTreeSet<String> = drafts.iter().map(|d| d.node_pool.clone()).collect();
            let shown = if several { joined(&pools) } else { String::new() };
            for (domain, drafts) in colocated(colocation, self.cluster.shared_domain, drafts) {
                let arranged = match drafts {
                    Ok(drafts) => self.topology.arrangements(self.demand, drafts),
                    Err(obstacle) => vec![(String::new(), Err(obstacle))],
                };
                for (domains, arrangement) in arranged {
                    let name = [self.tier.name.as_str(), kind, &shown, &domain, &domains];
                    let option = self.option(&name, pools.clone(), arrangement);
                    all.push(ProvisioningOption { has_spare, ..option });
                }
            }
        }
        all
    }

    fn option(
        &self,
        name: &[&str],
        pools: BTreeSet<String>,
        arrangement: Result<Arrangement, Obstacle>,
    ) -> ProvisioningOption {
        let name = name.iter().copied().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
        let passed_over = Vec::new();
        ProvisioningOption { tier: self.index, name, arrangement, pools, passed_over, has_spare: false }
    }
}

/// Names of NodePools, for display.
fn joined(pools: &BTreeSet<String>) -> String {
    pools.iter().map(String::as_str).collect::<Vec<_>>().join(" and ")
}

impl ProvisioningOption {
    /// The option's display name beside its NodePools. Empty if the name says no more than they do.
    pub fn title(&self, policy: &Policy) -> String {
        if self.name == joined(&self.pools) {
            return String::new();
        }
        let is_named = policy.tier_name(self.tier).is_some_and(|name| !name.is_empty());
        if is_named { format!("tier {}", self.name) } else { self.name.clone() }
    }

    /// Appends the NodePools that were passed over to an obstacle, because one of them may be the intended one.
    pub fn with_passed_over(&self, obstacle: Obstacle) -> Obstacle {
        if obstacle.reason != ObstacleReason::TooLarge {
            return obstacle;
        }
        let message = format!("{}{}", obstacle.message, passed_over::clause(&self.passed_over));
        Obstacle { message, ..obstacle }
    }
}

/// Candidates of each pod set, held to a capacity type.
struct OfCapacityType {
    /// The capacity type; empty if the policy orders none.
    kind: &'static str,
    candidates: Vec<Vec<Draft>>,
}

/// Holds the candidates of each pod set to one capacity type after another. A pod set that cannot have a type gets the first one
/// that it can have.
///
/// # Errors
/// If a pod set can have none of them.
fn by_capacity_type(
    order: &[CapacityType],
    candidates: Vec<Vec<Draft>>,
) -> Result<Vec<OfCapacityType>, Obstacle> {
    if order.is_empty() {
        return Ok(vec![OfCapacityType { kind: "", candidates }]);
    }
    let held = |list: &[Draft], kind: CapacityType| -> Vec<Draft> {
        list.iter()
            .filter_map(|draft| draft.held_to(names::CAPACITY_TYPE, kind.value(), "the policy").ok())
            .collect()
    };
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for kind in order {
        let can_have = |list: &Vec<Draft>| {
            let mut kinds = std::iter::once(kind).chain(order).copied();
            kinds.find(|kind| !held(list, *kind).is_empty()).ok_or_else(|| has_none(order, list))
        };
        let kinds: Vec<CapacityType> = candidates.iter().map(can_have).collect::<Result<_, _>>()?;
        if kinds.contains(kind) && seen.insert(kinds.clone()) {
            let lists = candidates.iter().zip(kinds).map(|(list, kind)| held(list, kind));
            all.push(OfCapacityType { kind: kind.value(), candidates: lists.collect() });
        }
    }
    Ok(all)
}

fn has_none(order: &[CapacityType], list: &[Draft]) -> Obstacle {
    let order: Vec<&str> = order.iter().map(|kind| kind.value()).collect();
    let pools: Vec<&str> = list.iter().map(|draft| draft.node_pool.as_str()).collect();
    let message = format!(
        "NodePool {}, policy and pods together allow none of capacityTypes {}; list one that they allow",
        pools.join(" and "),
        order.join(", "),
    );
    Obstacle::new(ObstacleReason::RequirementsClash, message)
}

/// One NodePool for each pod set: the first of each, then the second of each, and so on. A pod set with fewer candidates stays on
/// its last one. If pod sets have different candidates, all other combinations follow.
fn combinations(candidates: &[Vec<Draft>]) -> Vec<Vec<Draft>> {
    let last = |list: &Vec<Draft>| list.len().saturating_sub(1);
    let most = candidates.iter().map(last).max().unwrap_or(0);
    let mut rows: Vec<Vec<usize>> =
        (0..=most).map(|nth| candidates.iter().map(|list| nth.min(last(list))).collect()).collect();
    let same = |a: &[Draft], b: &[Draft]| {
        a.iter().map(|draft| &draft.node_pool).eq(b.iter().map(|draft| &draft.node_pool))
    };
    if !candidates.windows(2).all(|pair| matches!(pair, [a, b] if same(a, b))) {
        let mut mixed: Vec<Vec<usize>> = vec![Vec::new()];
        for list in candidates {
            let with = |row: &Vec<usize>, n| row.iter().copied().chain([n]).collect();
            let longer = mixed.iter().flat_map(|row| (0..list.len()).map(move |n| with(row, n)));
            mixed = longer.take(POOL_COMBINATIONS).collect();
        }
        mixed.retain(|row| !rows.contains(row));
        mixed.sort_by_key(|row| row.iter().sum::<usize>());
        rows.extend(mixed);
    }
    let drafts =
        |row: &Vec<usize>| candidates.iter().zip(row).filter_map(|(list, n)| list.get(*n)).cloned().collect();
    rows.iter().map(drafts).collect()
}

/// Holds the drafts to each value of the shared label in turn. A growing gang keeps its nodes' value: it is the only one if
/// colocation is required, and otherwise the first.
fn colocated(
    colocation: Option<&SharedLabel>,
    shared_domain: Option<&str>,
    drafts: Vec<Draft>,
) -> Vec<(String, Result<Vec<Draft>, Obstacle>)> {
    let Some(SharedLabel { topology_key: key, mode }) = colocation else {
        return vec![(String::new(), Ok(drafts))];
    };
    let listed = |draft: &Draft| draft.requirements.get(key).and_then(|v| v.listed()).cloned();
    let common = drafts.iter().map(listed).reduce(|a, b| Some(&a? & &b?)).flatten();
    let required = *mode == ColocationMode::Required;
    let open = |value: &&String| !required || shared_domain.is_none_or(|domain| domain == *value);
    let mut values: Vec<&String> = common.iter().flatten().filter(open).collect();
    values.sort_by_key(|value| shared_domain != Some(value.as_str()));
    values.truncate(topology::DOMAINS);
    let mut all: Vec<_> = values
        .into_iter()
        .map(|value| (value.clone(), drafts.iter().map(|d| d.held_to(key, value, "colocation")).collect()))
        .collect();
    let why = || {
        let why = if let (Some(domain), Some(_)) = (shared_domain, &common) {
            format!("leave out {key} {domain}, where the nodes are that the gang has already")
        } else if common.is_some() {
            format!("have no value of {key} in common")
        } else {
            format!(
                "do not say which values of {key} their nodes can have; list them in spec.template.spec.requirements"
            )
        };
        let pools = drafts.iter().map(|d| d.node_pool.clone()).collect();
        format!("what NodePool {} offers and the pods ask for {why}", joined(&pools))
    };
    match mode {
        ColocationMode::Required if all.is_empty() => {
            let message = format!("all nodes must share {key}, but {}", why());
            all.push((String::new(), Err(Obstacle::new(ObstacleReason::RequirementsClash, message))));
        }
        ColocationMode::Preferred if all.is_empty() => {
            let note = format!("the nodes may have different values of {key}: {}", why());
            let mut drafts = drafts;
            if let Some(draft) = drafts.first_mut() {
                draft.notes.push(note);
            }
            all.push((String::new(), Ok(drafts)));
        }
        ColocationMode::Required => {}
        ColocationMode::Preferred | ColocationMode::None => all.push((String::new(), Ok(drafts))),
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, condition, market, offer, pool};
    use super::super::market::Market;
    use super::super::offering::Offering;
    use super::super::{OptionSelection, Outcome, Plan};
    use super::*;
    use crate::api::NodeClaim;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn tiers(list: &Value) -> Vec<Tier> {
        serde_json::from_value(list.clone()).unwrap()
    }

    fn capacity(kind: &str) -> Value {
        json!([{"key": names::CAPACITY_TYPE, "operator": "In", "values": [kind]}])
    }

    /// Spot in zone a, then on-demand anywhere.
    fn two_tiers() -> Fixture {
        let mut world = Fixture::new();
        world.policy.tiers = tiers(&json!([
            {"name": "spot", "requirements": capacity("spot"), "zones": ["a"]},
            {"name": "on-demand", "nodePoolName": "gpu", "requirements": capacity("on-demand")},
        ]));
        world
    }

    fn exhausted(plan: &Plan) -> BTreeSet<Offering> {
        plan.offerings()
    }

    #[test]
    fn the_first_tier_is_taken_or_the_next_one_if_the_first_is_short() {
        let mut world = two_tiers();
        let spot = world.provisioned();
        assert_eq!(
            (spot.tier, &*spot.option_name, spot.option_index, spot.option_count),
            (0, "tier spot", 0, 2)
        );
        world.exhausted = exhausted(&spot);
        let on_demand = world.provisioned();
        assert_eq!((on_demand.tier, &*on_demand.option_name), (1, "tier on-demand"));
        world.exhausted.extend(exhausted(&on_demand));
        assert_eq!(world.provisioned().tier, 0, "where all ran out, the first is tried again");
    }

    #[test]
    fn an_option_among_several_node_pools_is_shown_by_its_node_pool_only() {
        let mut world = Fixture::new();
        world.objects.node_pools = vec![pool("gpu", &json!({})), pool("more", &json!({}))];
        assert_eq!(world.provisioned().summary(), "2 nodes: 2 from NodePool more");
        world.policy.tiers = tiers(&json!([{"name": "any"}]));
        assert_eq!(world.provisioned().summary(), "2 nodes: 2 from NodePool more, tier any more");
    }

    #[test]
    fn the_message_for_pods_that_fit_nowhere_names_the_node_pool_that_was_passed_over() {
        let types = |family: &str| {
            let is =
                json!({"key": "karpenter.k8s.aws/instance-family", "operator": "In", "values": [family]});
            let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
            json!({"requirements": [is], "nodeClassRef": class})
        };
        let taint = json!([{"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}]);
        let tainted = crate::plan::fixtures::patched(types("g5"), &json!({"taints": taint}));
        let of = |name: &str, spec: Value| pool(name, &json!({"spec": {"template": {"spec": spec}}}));
        let mut world = Fixture::new();
        world.objects.node_pools = vec![of("cpu", types("m5")), of("gpu", tainted)];
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::TooLarge);
        let passed =
            "; passed over: gpu (pod set main does not tolerate taint nvidia.com/gpu=true:NoSchedule";
        assert!(message.contains("no instance type of NodePool cpu has nvidia.com/gpu"), "{message}");
        assert!(message.contains(passed), "{message}");
    }

    #[test]
    fn no_claims_are_created_while_karpenters_metrics_show_no_capacity_in_any_tier() {
        let mut world = two_tiers();
        let types = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]}]);
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": types}}}}))];
        world.policy.tiers[1].zones = vec!["a".into()];
        world.policy.tiers[0].node_pool_name = Some("gpu".into());
        let page = |on_demand: u8| {
            let spot = offer("available", ["p5", "spot", "a"], 0);
            market(&(spot + &offer("available", ["p5", "on-demand", "a"], on_demand)))
        };
        let planned = |world: &Fixture, market: &Market| {
            let cluster = crate::plan::PlanSnapshot { market: Some(market), ..world.cluster() };
            crate::plan::plan(&cluster, &world.request())
        };
        let market = page(0);
        world.exhausted = market.exhausted();
        let Outcome::Wait(obstacle) = planned(&world, &market) else { panic!("asked for") };
        let until = jiff::Timestamp::UNIX_EPOCH + super::super::offering::SHORTAGE_TTL;
        assert_eq!((obstacle.reason, obstacle.until), (ObstacleReason::CapacityShort, Some(until)));
        let words = "no tier can be used: spot: out of capacity by Karpenter's metrics: p5 (spot capacity in a zone); nothing is requested until they show capacity; on-demand: out of capacity by Karpenter's metrics: p5 (on-demand";
        assert!(obstacle.message.starts_with(words), "{}", obstacle.message);
        // On-demand ran out lately, but Karpenter's metrics do not report it as out, so it is tried again.
        let Outcome::Provision(plan) = planned(&world, &page(1)) else { panic!("no plan") };
        let passed: Vec<&str> = plan.passed_over.iter().map(|one| one.node_pool.as_str()).collect();
        assert_eq!((&*plan.option_name, passed), ("tier on-demand", vec!["tier spot"]));
    }

    #[test]
    fn a_tier_out_by_karpenters_metrics_is_named_with_the_missing_offerings() {
        let mut world = two_tiers();
        let types = json!([{"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]}]);
        let zones = json!([{"key": names::ZONE, "operator": "In", "values": ["a"]}]);
        let spec = json!({"requirements": [types[0], zones[0]]});
        world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        let spot = offer("available", ["p5", "spot", "a"], 0);
        let market = market(&(spot + &offer("available", ["p5", "on-demand", "a"], 1)));
        world.exhausted = market.exhausted();
        let words = "out of capacity by Karpenter's metrics: p5 (spot capacity in a zone)";
        let cluster = crate::plan::PlanSnapshot { market: Some(&market), ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        let skipped: Vec<_> =
            plan.passed_over.iter().map(|one| (one.node_pool.as_str(), &*one.reason)).collect();
        assert_eq!((&*plan.option_name, skipped), ("tier on-demand", vec![("tier spot", words)]));
        let options = crate::plan::option_reports(&cluster, &world.request()).unwrap();
        let shortages: Vec<_> = options.iter().map(|option| option.shortage.as_deref()).collect();
        assert_eq!(shortages, [Some(words), None]);
        let plan = world.provisioned();
        let words = "out of capacity lately: p5 (spot capacity in a zone)";
        assert_eq!(plan.passed_over[0].reason, words, "where Karpenter says nothing");
    }

    #[test]
    fn tiers_that_were_tried_are_not_tried_again_in_the_same_round() {
        let mut world = two_tiers();
        world.selection = OptionSelection::From(1);
        assert_eq!(world.provisioned().tier, 1);
        world.objects.node_pools = vec![pool("other", &json!({}))];
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::NodePoolMissing);
        assert!(message.starts_with("NodePool gpu does not exist"), "{message}");
    }

    #[test]
    fn if_no_tier_works_each_is_reported_with_its_reason() {
        let mut world = two_tiers();
        world.policy.tiers[0].zones = vec!["x".into()];
        world.objects.node_pools.clear();
        world.objects.node_pools.push(pool("other", &json!({})));
        let message = world.obstacle().1;
        let spot = "no tier can be used: spot: tier spot asks for topology.kubernetes.io/zone [x], but NodePool other offers [a b]";
        assert!(
            message.starts_with(spot) && message.contains("on-demand: NodePool gpu does not exist"),
            "{message}"
        );
    }

    #[test]
    fn an_accepted_option_is_kept_despite_shortage_and_a_begun_one_is_found_by_its_claims() {
        let mut world = two_tiers();
        world.exhausted = exhausted(&world.provisioned());
        let on_demand = world.provisioned();
        world.selection = OptionSelection::Accepted { option_index: 0, plan: None, begun: &[] };
        assert_eq!(world.provisioned().tier, 0);
        let world = two_tiers();
        let begun = [(*on_demand.slots[0].template).clone()];
        let request = crate::plan::PlanRequest {
            selection: OptionSelection::Like { begun: &begun, plan: None },
            ..world.request()
        };
        let Outcome::Provision(plan) = crate::plan::plan(&world.cluster(), &request) else {
            panic!("no plan")
        };
        assert_eq!((plan.tier, plan.slots), (1, on_demand.slots));
    }

    #[test]
    fn kept_claims_stay_and_the_rest_comes_from_the_next_option() {
        let mut world = two_tiers();
        let spot = world.provisioned();
        let mut kept = (*spot.slots[1].template).clone();
        kept.metadata.name = Some("kept".to_owned());
        let labels = kept.metadata.labels.get_or_insert_default();
        labels.insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
        kept.metadata.annotations.get_or_insert_default().insert(names::SLOT.to_owned(), "1".to_owned());
        world.exhausted = exhausted(&spot);
        world.selection = OptionSelection::From(1);
        let kept = [kept];
        let cluster = crate::plan::PlanSnapshot { staying: &kept, ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        assert_eq!((plan.tier, plan.nodes(), plan.to_create()), (1, 2, 1));
        assert_eq!(plan.slots[1].template.metadata.name.as_deref(), Some("kept"));
        assert!(!plan.is_exhausted(Some(&world.exhausted)), "what exists is not bought again");
        assert_ne!(plan.slots[0].template, spot.slots[0].template);
    }

    #[test]
    fn a_kept_claim_that_has_not_launched_counts_as_its_largest_type() {
        let types = json!([
            {"key": names::INSTANCE_TYPE, "operator": "In", "values": ["g5.xlarge", "g5.12xlarge"]},
        ]);
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let mut world = two_tiers();
        let spec = json!({"nodeClassRef": class, "requirements": types});
        world.objects.node_pools = vec![pool("gpu", &json!({"spec": {"template": {"spec": spec}}}))];
        let planned = world.provisioned();
        let mut kept = (*planned.slots[0].template).clone();
        kept.metadata.name = Some("kept".to_owned());
        kept.metadata.annotations.get_or_insert_default().insert(names::SLOT.to_owned(), "0".to_owned());
        let kept = [kept];
        let cluster = crate::plan::PlanSnapshot { staying: &kept, ..world.cluster() };
        let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
            panic!("no plan")
        };
        let gpus = |plan: &Plan| plan.slots[0].most.resources["nvidia.com/gpu"].0.clone();
        assert_eq!((gpus(&planned), gpus(&plan)), ("4".to_owned(), "4".to_owned()));
    }

    #[test]
    fn kept_nodes_are_taken_over_although_their_tier_has_no_capacity() {
        let mut world = two_tiers();
        let spot = world.provisioned();
        world.exhausted = exhausted(&spot);
        let planned = |kept: &[NodeClaim]| {
            let cluster = crate::plan::PlanSnapshot { warm: kept, ..world.cluster() };
            match crate::plan::plan(&cluster, &world.request()) {
                Outcome::Provision(plan) => (plan.tier, plan.to_create()),
                other => panic!("{other:?}"),
            }
        };
        let kept: Vec<NodeClaim> = spot.slots.iter().map(|slot| (*slot.template).clone()).collect();
        assert_eq!(planned(&kept), (0, 0));
        assert_eq!(planned(&kept[..1]), (1, 2), "the other node would come from that tier");
    }

    #[test]
    fn without_tiers_the_options_are_the_node_pools_by_weight() {
        let weight =
            |w: i32| json!({"spec": {"weight": w, "limits": {"nodes": if w == 9 { "1" } else { "9" }}}});
        let mut world = Fixture::new();
        world.objects.node_pools =
            vec![pool("light", &weight(1)), pool("heavy", &weight(9)), pool("middle", &weight(5))];
        let plan = world.provisioned();
        assert_eq!(
            (plan.slots[0].node_pool.as_str(), plan.option_index, plan.option_count),
            ("middle", 1, 3)
        );
        world.exhausted = exhausted(&plan);
        assert_eq!(world.provisioned().slots[0].node_pool, "light");
    }

    #[test]
    fn an_accepted_option_is_found_again_if_other_node_pools_changed_readiness() {
        let at = |name: &str, weight: i32, ready: &str| {
            let ready = condition("Ready", ready);
            pool(name, &json!({"spec": {"weight": weight}, "status": {"conditions": [ready]}}))
        };
        let pools = |heavy: &str| vec![at("light", 1, "True"), at("heavy", 9, heavy)];
        for (before, now, was, is) in [("False", "True", (0, 1), (1, 2)), ("True", "False", (1, 2), (0, 1))] {
            let mut world = Fixture::new();
            world.objects.node_pools = pools(before);
            world.selection = OptionSelection::From(was.0);
            let light = world.provisioned();
            let shown =
                |plan: &Plan| (plan.slots[0].node_pool.clone(), (plan.option_index, plan.option_count));
            assert_eq!(shown(&light), ("light".to_owned(), was));
            let hash = light.hash();
            let found = |world: &Fixture| {
                let selection =
                    OptionSelection::Accepted { option_index: was.0, plan: Some(&hash), begun: &[] };
                let request = crate::plan::PlanRequest { selection, ..world.request() };
                match crate::plan::plan(&world.cluster(), &request) {
                    Outcome::Provision(plan) => plan,
                    other => panic!("no plan: {other:?}"),
                }
            };
            world.objects.node_pools = pools(now);
            let kept = found(&world);
            assert_eq!((shown(&kept), kept.hash()), (("light".to_owned(), is), hash.clone()));
            world.objects.node_pools.retain(|pool| pool.metadata.name.as_deref() == Some("heavy"));
            world.objects.node_pools.push(at("light", 1, "False"));
            world.objects.node_pools[0] = at("heavy", 9, "True");
            assert_eq!(shown(&found(&world)).0, "heavy", "the plan has changed");
        }
    }

    /// Name of an option, and the capacity types of its first node.
    type Shown = (String, Option<Vec<String>>);

    /// The options of a gang on two NodePools. The heavier one has no reserved capacity.
    fn options(order: &Value, pods: &[(&str, i32)]) -> (Fixture, Vec<Shown>) {
        use super::super::fixtures::pod_set;
        let offers = |weight: i32, kinds: &[&str]| {
            json!({"spec": {"weight": weight, "template": {"spec": {"requirements":
                [{"key": names::CAPACITY_TYPE, "operator": "In", "values": kinds}]}}}})
        };
        let sets: Vec<Value> = pods.iter().map(|(name, count)| pod_set(name, *count)).collect();
        let mut world = Fixture::new().workload(&json!({"spec": {"podSets": sets}}));
        world.objects.node_pools = vec![
            pool("heavy", &offers(9, &["spot", "on-demand"])),
            pool("light", &offers(1, &["spot", "reserved"])),
        ];
        world.policy.capacity_types = serde_json::from_value(order.clone()).unwrap();
        let all = crate::plan::option_reports(&world.cluster(), &world.request()).unwrap();
        let kinds = |report: crate::plan::OptionReport| {
            let claim = report.plan.ok().map(|plan| plan.slots[0].template.spec.requirements.clone());
            let kind =
                claim.map(|list| list.into_iter().find(|r| r.key == names::CAPACITY_TYPE).unwrap().values);
            (report.name, kind)
        };
        let options = all.into_iter().map(kinds).collect();
        (world, options)
    }

    #[test]
    fn capacity_types_are_tried_in_the_order_of_the_policy_before_pools_by_weight() {
        let one = [("main", 2)];
        let of = |option: &str, kinds: &[&str]| {
            (option.to_owned(), Some(kinds.iter().map(|&kind| kind.to_owned()).collect::<Vec<_>>()))
        };
        let (_, unordered) = options(&json!([]), &one);
        assert_eq!(
            unordered,
            [of("heavy", &["on-demand", "spot"]), of("light", &["reserved", "spot"])],
            "the provider chooses"
        );
        let (world, ordered) = options(&json!(["reserved", "on-demand", "spot", "spot"]), &one);
        let expected = [
            of("reserved", &["reserved"]),
            of("on-demand", &["on-demand"]),
            of("spot heavy", &["spot"]),
            of("spot light", &["spot"]),
        ];
        assert_eq!(ordered, expected);
        let first = world.provisioned();
        assert_eq!((first.slots[0].node_pool.as_str(), first.option_count), ("light", 4));
        let world = Fixture { exhausted: exhausted(&first), ..world };
        assert_eq!(world.provisioned().slots[0].node_pool, "heavy", "the next type where one ran out");
        let (_, only) = options(&json!(["on-demand"]), &one);
        assert_eq!(only, [of("on-demand", &["on-demand"])]);
    }

    #[test]
    fn a_tier_narrows_the_capacity_types_and_reports_if_none_is_left() {
        let (mut world, _) = options(&json!(["reserved", "on-demand"]), &[("main", 2)]);
        world.policy.tiers = tiers(&json!([
            {"name": "calm", "requirements": capacity("on-demand")},
            {"name": "cheap", "requirements": capacity("spot")},
        ]));
        let plan = world.provisioned();
        assert_eq!((&*plan.option_name, plan.option_count), ("tier calm on-demand", 2));
        world.selection = OptionSelection::From(1);
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(
            message.starts_with(
                "NodePool heavy and light, policy and pods together allow none of capacityTypes reserved, on-demand"
            ),
            "{message}"
        );
    }

    #[test]
    fn a_pod_set_that_cannot_have_a_capacity_type_gets_the_first_that_it_can_have() {
        use super::super::fixtures::{flavor, pod_set};
        let of = |kind: &str, capacity: &[&str]| {
            json!({"spec": {"template": {"metadata": {"labels": {"kind": kind}}, "spec": {"requirements":
                [{"key": names::CAPACITY_TYPE, "operator": "In", "values": capacity}]}}}})
        };
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": [pod_set("lead", 1), pod_set("main", 1)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "lead", "flavors": {"cpu": "a"}}, {"name": "main", "flavors": {"cpu": "b"}},
            ]}},
        }));
        world.objects.flavors = ["a", "b"].map(|kind| flavor(kind, &json!({"kind": kind}))).to_vec();
        world.objects.node_pools =
            vec![pool("a", &of("a", &["on-demand"])), pool("b", &of("b", &["on-demand", "spot"]))];
        world.policy.capacity_types =
            vec![CapacityType::Spot, CapacityType::Reserved, CapacityType::OnDemand];
        let plan = world.provisioned();
        let kinds = |plan: &Plan| -> Vec<String> {
            let of = |claim: &crate::api::NodeClaim| {
                let all = &claim.spec.requirements;
                all.iter().find(|r| r.key == names::CAPACITY_TYPE).unwrap().values.join(" ")
            };
            plan.slots.iter().map(|slot| of(&slot.template)).collect()
        };
        assert_eq!((kinds(&plan), plan.option_count), (vec!["on-demand".to_owned(), "spot".to_owned()], 2));
        world.selection = OptionSelection::From(1);
        assert_eq!(kinds(&world.provisioned()), ["on-demand", "on-demand"]);
    }

    #[test]
    fn pod_sets_with_different_pools_get_any_two_that_are_open() {
        use super::super::fixtures::{flavor, pod_set};
        let of = |kind: &str, weight: i32, nodes: &str| {
            json!({"spec": {"weight": weight, "limits": {"nodes": nodes},
                "template": {"metadata": {"labels": {"kind": kind}}}}})
        };
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": [pod_set("lead", 1), pod_set("main", 2)]},
            "status": {"admission": {"podSetAssignments": [
                {"name": "lead", "flavors": {"cpu": "a"}}, {"name": "main", "flavors": {"cpu": "b"}},
            ]}},
        }));
        world.objects.flavors = ["a", "b"].map(|kind| flavor(kind, &json!({"kind": kind}))).to_vec();
        world.objects.node_pools = vec![
            pool("a1", &of("a", 9, "0")),
            pool("a2", &of("a", 1, "9")),
            pool("b1", &of("b", 9, "9")),
            pool("b2", &of("b", 1, "0")),
        ];
        let plan = world.provisioned();
        let pools: Vec<&str> = plan.slots.iter().map(|s| s.node_pool.as_str()).collect();
        assert_eq!((pools, plan.option_count), (vec!["a2", "b1", "b1"], 4));
    }

    fn together(mode: ColocationMode) -> Fixture {
        let mut world = Fixture::new();
        let topology_key = names::ZONE.to_owned();
        world.policy.colocation = Some(SharedLabel { topology_key, mode });
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
    fn the_gang_gets_one_zone_and_the_next_if_that_is_short() {
        let mut world = together(ColocationMode::Required);
        let first = world.provisioned();
        assert_eq!((zones(&first), first.option_count), (vec!["a".to_owned()], 2));
        world.exhausted = exhausted(&first);
        assert_eq!(zones(&world.provisioned()), ["b"]);
        world.selection = OptionSelection::From(1);
        assert_eq!(zones(&world.provisioned()), ["b"]);
    }

    #[test]
    fn a_growing_gang_stays_in_the_zone_of_its_nodes() {
        let plan = |world: &Fixture, domain| {
            let cluster = crate::plan::PlanSnapshot { shared_domain: Some(domain), ..world.cluster() };
            match crate::plan::plan(&cluster, &world.request()) {
                Outcome::Provision(plan) => Ok(plan),
                Outcome::Refuse(obstacle) => Err(obstacle.message),
                other => panic!("{other:?}"),
            }
        };
        let mut world = together(ColocationMode::Required);
        let first = plan(&world, "b").unwrap();
        assert_eq!((zones(&first), first.option_count), (vec!["b".to_owned()], 1));
        world.exhausted = exhausted(&first);
        assert_eq!(zones(&plan(&world, "b").unwrap()), ["b"], "it is tried again there, and nowhere else");
        let message = plan(&world, "c").unwrap_err();
        assert!(
            message.contains("leave out topology.kubernetes.io/zone c, where the nodes are"),
            "{message}"
        );
        let mut world = together(ColocationMode::Preferred);
        assert_eq!(zones(&plan(&world, "b").unwrap()), ["b"]);
        world.exhausted = exhausted(&first);
        assert_eq!(zones(&plan(&world, "b").unwrap()), ["a"]);
    }

    #[test]
    fn a_preferred_zone_is_given_up_last() {
        let mut world = together(ColocationMode::Preferred);
        assert_eq!(world.provisioned().option_count, 3);
        world.selection = OptionSelection::From(2);
        assert_eq!(zones(&world.provisioned()), ["a", "b"]);
    }

    #[test]
    fn a_short_rack_leads_to_the_next_rack_and_then_to_the_next_tier() {
        let rack = "example.com/rack";
        let offered = json!({"spec": {"template": {"spec": {"requirements": [
            {"key": rack, "operator": "In", "values": ["r1", "r2"]},
            {"key": names::CAPACITY_TYPE, "operator": "In", "values": ["spot", "on-demand"]},
        ]}}}});
        for mode in [ColocationMode::Required, ColocationMode::Preferred] {
            let mut world = two_tiers();
            world.objects.node_pools = vec![pool("gpu", &offered)];
            world.policy.tiers[0].zones = Vec::new();
            world.policy.colocation = Some(SharedLabel { topology_key: rack.into(), mode });
            let mut options = Vec::new();
            for _ in 0..4 {
                let plan = world.provisioned();
                world.exhausted.extend(exhausted(&plan));
                options.push(plan.option_name.into_string());
            }
            assert_eq!(
                options,
                ["tier spot r1", "tier spot r2", "tier on-demand r1", "tier on-demand r2"],
                "{mode:?}"
            );
            // A pool that may have any rack lists none of these, and its requirements do not name racks.
            world.policy.colocation = None;
            assert_eq!(&*world.provisioned().option_name, "tier spot");
        }
    }

    #[test]
    fn a_short_rack_of_one_tier_leaves_the_rack_of_another_tier() {
        let rack = "example.com/rack";
        let of = |racks: &[&str]| json!([{"key": rack, "operator": "In", "values": racks}]);
        let mut world = Fixture::new();
        world.objects.node_pools = vec![pool(
            "gpu",
            &json!({"spec": {"template": {"spec": {"requirements": of(&["r1", "r2", "r3"])}}}}),
        )];
        world.policy.tiers = tiers(&json!([
            {"name": "first", "requirements": of(&["r1"])},
            {"name": "second", "requirements": of(&["r1", "r2"])},
            {"name": "third", "requirements": of(&["r2"])},
            {"name": "last", "requirements": of(&["r3"])},
        ]));
        let mut options = Vec::new();
        for _ in 0..3 {
            let plan = world.provisioned();
            world.exhausted.extend(exhausted(&plan));
            options.push(plan.option_name.into_string());
        }
        assert_eq!(options, ["tier first", "tier second", "tier last"]);
    }

    #[test]
    fn any_label_can_be_shared_and_a_label_without_known_values_is_refused_with_a_remedy() {
        let rack = "example.com/rack";
        let mut world = together(ColocationMode::Required);
        world.policy.colocation =
            Some(SharedLabel { topology_key: rack.into(), mode: ColocationMode::Required });
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::RequirementsClash);
        assert!(message.contains("list them in spec.template.spec.requirements"), "{message}");
        let mut preferred = together(ColocationMode::Preferred);
        preferred.policy.colocation.as_mut().unwrap().topology_key = rack.into();
        let notes = preferred.provisioned().notes;
        let note = "the nodes may have different values of example.com/rack: what NodePool gpu offers";
        assert!(notes.iter().any(|one| one.starts_with(note)), "{notes:?}");
        let racks = json!({"spec": {"template": {"spec": {"requirements":
            [{"key": rack, "operator": "In", "values": ["r1", "r2"]}]}}}});
        world.objects.node_pools = vec![pool("gpu", &racks)];
        let plan = world.provisioned();
        assert_eq!((plan.option_count, &*plan.option_name), (2, "r1"));
        let labels = plan.slots[0].template.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[rack], "r1");
    }
}
