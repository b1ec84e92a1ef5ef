//! Picks the NodePools that a pod set gets its nodes from.
//!
//! The NodePool that the tier names, or else every usable one that fits flavors and pods, by weight as Karpenter orders them.
//! Each one that does not fit gets a reason.

use super::claim::Draft;
use super::demand::PodSetDemand;
use super::gates::readiness;
use super::passed_over::PassedOver;
use super::slots::fit::{self, Suits};
use super::{Obstacle, ObstacleReason, PlanRequest, PlanSnapshot, devices};
use crate::api::NodePool;
use crate::api::parameters::{NodeDevices, PackingMode, Tier};
use crate::policy::Policy;
use crate::policy::preset::asks_for_accelerator;
use std::cmp::Reverse;
use std::sync::Arc;

/// Most candidates whose reasons a message lists.
const SHOWN: usize = 4;

/// Whether planning by this policy must know all live claims of a NodePool: it has limits, shapes are learnt from its nodes, or its
/// nodes may use a tier's capacity reservations.
pub fn needs_all_claims(policy: &Policy, pool: &NodePool) -> bool {
    let is_limited = pool.spec.limits.as_ref().is_some_and(|limits| !limits.is_empty());
    let learns = match policy.packing {
        PackingMode::PerPod => false,
        PackingMode::Fill => policy.shapes.is_empty(),
        PackingMode::Auto => policy.shapes.is_empty() && !pool.spec.template.spec.node_class_ref.is_kwok(),
    };
    is_limited || learns || policy.tiers.iter().any(|tier| !tier.reservations.is_empty())
}

/// The NodePools of a tier for one pod set.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Drafts of those that fit, best first.
    pub drafts: Vec<Draft>,
    /// The others.
    pub passed_over: Vec<PassedOver>,
}

/// The drafts of all NodePools of a tier that fit, best first, and why the others do not. Pods without accelerators prefer
/// NodePools that have types without accelerators.
///
/// # Errors
/// The obstacle of the nearest of them, if none fits.
pub fn candidates(
    cluster: &PlanSnapshot<'_>,
    request: &PlanRequest<'_>,
    tier: &Tier,
    wanted: &PodSetDemand<'_>,
) -> Result<Candidates, Obstacle> {
    if let Some(name) = &tier.node_pool_name {
        let drafts = vec![draft(cluster, named(cluster, name)?, request, tier, wanted)?];
        return Ok(Candidates { drafts, ..Candidates::default() });
    }
    let mut pools: Vec<&Arc<NodePool>> = cluster.objects.node_pools.iter().collect();
    pools.sort_by_key(|p| Reverse((p.spec.weight.unwrap_or_default(), p.metadata.name.clone())));
    let (mut ranked, mut unfit) = (Vec::new(), Vec::new());
    for pool in pools {
        match draft(cluster, pool, request, tier, wanted) {
            Ok(draft) => ranked.push(Ranked::of(cluster, request, pool, draft, wanted)),
            Err(obstacle) => unfit.push((pool.metadata.name.clone().unwrap_or_default(), obstacle)),
        }
    }
    let Some(best) = ranked.iter().map(|one| one.rank).min() else {
        // Nearest first: pools that lack their NodeClass, then pools of the right flavor, then the rest.
        let mut reasons: Vec<Obstacle> = unfit.into_iter().map(|(_, obstacle)| obstacle).collect();
        let nearest = reasons.iter().map(distance).min();
        reasons.retain(|o| Some(distance(o)) == nearest);
        return Err(none_fits(wanted, &reasons));
    };
    ranked.sort_by_key(|one| (one.rank, one.draft.has_spare));
    let (taken, others): (Vec<Ranked>, Vec<Ranked>) = ranked.into_iter().partition(|one| one.rank == best);
    let unfit = unfit.into_iter().map(|(node_pool, o)| PassedOver { node_pool, reason: o.message });
    let others =
        others.into_iter().map(|one| PassedOver { node_pool: one.draft.node_pool, reason: one.reason });
    Ok(Candidates {
        drafts: taken.into_iter().map(|one| one.draft).collect(),
        passed_over: unfit.chain(others).collect(),
    })
}

/// The NodePool of this name.
fn named<'c>(cluster: &PlanSnapshot<'c>, name: &String) -> Result<&'c Arc<NodePool>, Obstacle> {
    let mut pools = cluster.objects.node_pools.iter();
    pools.find(|p| p.metadata.name.as_ref() == Some(name)).ok_or_else(|| {
        let message = format!(
            "NodePool {name} does not exist; create it, or name another one in the policy or parameters"
        );
        Obstacle::new(ObstacleReason::NodePoolMissing, message)
    })
}

/// How well a NodePool that fits suits a pod set, the best first. Only those of the best rank are candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Usable,
    /// The readiness gate reports what these lack.
    NotReady,
    /// Its types do not hold the pods. The plan reports their figures.
    TooSmall,
}

/// A NodePool that fits flavors and pods.
struct Ranked {
    rank: Rank,
    draft: Draft,
    /// Why it is not usable. Empty if it is.
    reason: String,
}

impl Ranked {
    fn of(
        cluster: &PlanSnapshot<'_>,
        request: &PlanRequest<'_>,
        pool: &NodePool,
        mut draft: Draft,
        wanted: &PodSetDemand<'_>,
    ) -> Self {
        let (rank, reason) = match fit::suits(cluster, request, &draft, wanted) {
            Err(obstacle) => (Rank::TooSmall, obstacle.message),
            Ok(_) if !readiness::is_open(pool, request.policy, cluster.edited) => {
                (Rank::NotReady, pool.unusable().unwrap_or_default())
            }
            Ok(suits) => {
                draft.has_spare = suits == Suits::WithSpareAccelerators;
                (Rank::Usable, String::new())
            }
        };
        Self { rank, draft, reason }
    }
}

/// How far a NodePool is from a match. Lower is nearer.
fn distance(obstacle: &Obstacle) -> u8 {
    match obstacle.reason {
        ObstacleReason::NodePoolNotReady => 0,
        ObstacleReason::FlavorNotOffered => 2,
        _ => 1,
    }
}

fn none_fits(wanted: &PodSetDemand<'_>, reasons: &[Obstacle]) -> Obstacle {
    if reasons.is_empty() {
        return Obstacle::new(ObstacleReason::NodePoolMissing, "there is no NodePool; create one");
    }
    if let [only] = reasons {
        return only.clone();
    }
    let shown: Vec<&str> = reasons.iter().take(SHOWN).map(|o| o.message.as_str()).collect();
    let more = reasons.len().saturating_sub(SHOWN);
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    let message = format!("no NodePool fits pod set {}: {}{more}", wanted.pod_set.name, shown.join("; "));
    // No other pool fits at all, so none of them can become usable later.
    let fixed = reasons.iter().any(|o| o.reason == ObstacleReason::StaticNodePool);
    let reason = if fixed { ObstacleReason::StaticNodePool } else { ObstacleReason::NoNodePoolFits };
    Obstacle::new(reason, message)
}

/// The draft from one NodePool, if it fits.
fn draft(
    cluster: &PlanSnapshot<'_>,
    pool: &Arc<NodePool>,
    request: &PlanRequest<'_>,
    tier: &Tier,
    wanted: &PodSetDemand<'_>,
) -> Result<Draft, Obstacle> {
    let pool = &completed(pool, request, wanted);
    let class = &pool.spec.template.spec.node_class_ref;
    if class.group.is_empty() || class.kind.is_empty() {
        let message = format!(
            "NodePool {} does not say which NodeClass its nodes have; write spec.template.spec.nodeClassRef, or \
             cloudProvider in the policy file",
            pool.metadata.name.as_deref().unwrap_or_default()
        );
        return Err(Obstacle::new(ObstacleReason::NodePoolNotReady, message));
    }
    let draft = with_devices(cluster, pool, request, tier, wanted)?;
    // A static pool stays unusable.
    match (pool.spec.replicas, pool.unusable()) {
        (Some(_), Some(fault)) => Err(Obstacle::new(ObstacleReason::StaticNodePool, fault)),
        _ => fit::of_known_types(cluster, request, draft, wanted),
    }
}

/// The draft with the first of the policy's entries of devices that types of the NodePool have, as far as types are known.
fn with_devices(
    cluster: &PlanSnapshot<'_>,
    pool: &Arc<NodePool>,
    request: &PlanRequest<'_>,
    tier: &Tier,
    wanted: &PodSetDemand<'_>,
) -> Result<Draft, Obstacle> {
    let draft = |devices: &[&NodeDevices]| {
        Draft::new(pool, request, tier, wanted, devices)?.held_to_reservations(tier)
    };
    let choices = devices::choices(&request.policy.devices, &wanted.pod_set.name, &wanted.each)?;
    let suits = |draft: &Draft| {
        let known = fit::of_known_types(cluster, request, draft.clone(), wanted);
        known.and_then(|known| fit::suits(cluster, request, &known, wanted)).is_ok()
    };
    let several = choices.len() > 1;
    let mut first = None;
    for devices in choices {
        match draft(&devices) {
            Ok(draft) if !several || suits(&draft) => return Ok(draft),
            other => _ = first.get_or_insert(other),
        }
    }
    first.unwrap_or_else(|| draft(&[]))
}

/// The NodePool with the missing parts of its nodeClassRef filled in.
fn completed(pool: &Arc<NodePool>, request: &PlanRequest<'_>, wanted: &PodSetDemand<'_>) -> Arc<NodePool> {
    let own = &pool.spec.template.spec.node_class_ref;
    if ![&own.group, &own.kind, &own.name].iter().any(|part| part.is_empty()) {
        return Arc::clone(pool);
    }
    let spec = &wanted.pod_set.template.spec;
    let containers = spec.containers.iter().chain(&spec.init_containers).filter_map(|c| c.resources.as_ref());
    let lists = containers.chain(&spec.resources).flat_map(|r| [&r.requests, &r.limits]).flatten();
    let managed = &request.policy.managed_resources;
    let accelerated = lists.into_iter().any(|list| asks_for_accelerator(list, managed));
    let mut pool = (**pool).clone();
    pool.spec.template.spec.node_class_ref =
        request.policy.node_class.complete(&pool.spec.template.spec.node_class_ref, accelerated);
    Arc::new(pool)
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Fixture, condition, flavor, patched, pool};
    use super::super::{Edited, Outcome};
    use super::*;
    use crate::api::parameters::GateMode;
    use serde_json::{Value, json};

    fn world(pools: &[(&str, Value)]) -> Fixture {
        Fixture::new().pools(pools.iter().map(|(name, change)| pool(name, change)).collect())
    }

    fn chosen(world: &Fixture) -> String {
        world.provisioned().slots[0].node_pool.clone()
    }

    fn not_ready(conditions: &[(&str, &str)]) -> Value {
        let list: Vec<Value> = conditions.iter().map(|(kind, status)| condition(kind, status)).collect();
        json!({"status": {"conditions": list}})
    }

    #[test]
    fn all_claims_are_needed_of_pools_with_limits_or_learnt_shapes_and_for_capacity_reservations() {
        let packed = |packing| Policy { packing, ..Policy::default() };
        let kwok = pool("gpu", &json!({}));
        assert!(!needs_all_claims(&Policy::default(), &kwok));
        assert!(needs_all_claims(
            &Policy::default(),
            &pool("gpu", &json!({"spec": {"limits": {"cpu": "9"}}}))
        ));
        let class = json!({"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"});
        let ec2 = pool("gpu", &json!({"spec": {"template": {"spec": {"nodeClassRef": class}}}}));
        assert!(needs_all_claims(&packed(PackingMode::Auto), &ec2));
        assert!(needs_all_claims(&packed(PackingMode::Fill), &kwok));
        assert!(!needs_all_claims(&packed(PackingMode::PerPod), &ec2));
        let shapes = json!([{"instanceType": "p5.48xlarge", "allocatable": {"cpu": "190"}}]);
        let shapes = serde_json::from_value(shapes).unwrap();
        assert!(!needs_all_claims(&Policy { shapes, ..packed(PackingMode::Auto) }, &ec2));
        let tiers = json!([{"name": "odcr", "reservations": [{"id": "cr-1", "nodes": 1}]}]);
        let tiers = serde_json::from_value(tiers).unwrap();
        assert!(needs_all_claims(&Policy { tiers, ..packed(PackingMode::PerPod) }, &kwok));
    }

    #[test]
    fn the_heaviest_pool_comes_first_and_ties_take_the_later_name() {
        let weight = |w: i32| json!({"spec": {"weight": w}});
        assert_eq!(chosen(&world(&[("a", weight(1)), ("b", weight(9)), ("c", json!({}))])), "b");
        assert_eq!(chosen(&world(&[("a", weight(5)), ("b", weight(5)), ("c", weight(1))])), "b");
    }

    #[test]
    fn a_pool_that_does_not_fit_the_flavor_is_passed_over() {
        let mut world = world(&[("cpu", json!({"spec": {"weight": 9}})), ("gpu", json!({}))]);
        world.objects.flavors = vec![flavor("gpu", &json!({(crate::names::NODEPOOL): "gpu"}))];
        assert_eq!(chosen(&world), "gpu");
    }

    #[test]
    fn the_named_pool_is_taken_even_if_another_is_heavier() {
        let mut world = world(&[("a", json!({})), ("b", json!({"spec": {"weight": 9}}))]);
        world.policy.node_pool = Some("a".into());
        assert_eq!(chosen(&world), "a");
        world.policy.node_pool = Some("c".into());
        let expected =
            "NodePool c does not exist; create it, or name another one in the policy or parameters";
        assert_eq!(world.obstacle(), (ObstacleReason::NodePoolMissing, expected.to_owned()));
    }

    fn zoned(zone: &str) -> Value {
        json!({"spec": {"template": {"spec": {"requirements":
            [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]}]}}}})
    }

    #[test]
    fn each_candidate_of_the_right_flavor_is_reported_with_its_reason() {
        let world = world(&[("far", zoned("b")), ("static", json!({"spec": {"replicas": 3}}))]);
        let world = world.pods(&json!({"nodeSelector": {"topology.kubernetes.io/zone": "a"}}));
        let (reason, message) = world.obstacle();
        assert_eq!(reason, ObstacleReason::StaticNodePool);
        let far = "pod set main asks for topology.kubernetes.io/zone [a], but NodePool far offers [b]";
        assert!(message.contains("NodePool static is static") && message.contains(far), "{message}");
    }

    #[test]
    fn a_static_pool_is_refused_where_no_other_could_give_the_nodes() {
        let fixed = || ("static", json!({"spec": {"replicas": 3}}));
        assert!(matches!(world(&[fixed()]).plan(), Outcome::Refuse(_)));
        let mut named = world(&[fixed()]);
        named.policy.node_pool = Some("static".into());
        assert!(matches!(named.plan(), Outcome::Refuse(_)));
        let late = ("late", not_ready(&[("Ready", "False")]));
        assert_eq!(world(&[fixed(), late]).obstacle().0, ObstacleReason::NodePoolNotReady);
    }

    #[test]
    fn only_the_nearest_candidates_are_reported() {
        let mut world = world(&[("far", zoned("b")), ("tainted", zoned("a")), ("late", zoned("a"))]);
        world.objects.flavors = vec![flavor("gpu", &json!({"topology.kubernetes.io/zone": "a"}))];
        let taint =
            json!({"spec": {"template": {"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}}});
        world.objects.node_pools[1] = pool("tainted", &taint);
        world.objects.node_pools[2] = pool("late", &not_ready(&[("Ready", "False")]));
        assert_eq!(world.obstacle().1, "NodePool late is not ready (Ready: Because so it is)");
        world.objects.node_pools.pop();
        assert_eq!(world.obstacle().0, ObstacleReason::TaintNotTolerated);
        world.objects.node_pools.pop();
        let far = "ResourceFlavor gpu asks for topology.kubernetes.io/zone [a], but NodePool far offers [b]";
        assert_eq!(world.obstacle(), (ObstacleReason::FlavorNotOffered, far.to_owned()));
    }

    #[test]
    fn an_unreadable_requirement_and_a_taint_are_quoted_as_written() {
        let of = |spec: Value| world(&[("gpu", json!({"spec": {"template": {"spec": spec}}}))]).obstacle().1;
        let asks = |operator: &str, value: &str| {
            of(
                json!({"requirements": [{"key": "karpenter.kwok.sh/instance-cpu", "operator": operator, "values": [value]}]}),
            )
        };
        let who = "the template of NodePool gpu states a requirement on karpenter.kwok.sh/instance-cpu that cannot be read";
        assert_eq!(asks("Gt", "many"), format!("{who}: Gt takes one whole number, not many"));
        let operators = "write In, NotIn, Exists, DoesNotExist, Gt, Gte, Lt or Lte";
        assert_eq!(asks("Above", "4"), format!("{who}: Above is not an operator; {operators}"));
        for (taint, words) in [
            (json!({"key": "team", "value": "ml", "effect": "NoSchedule"}), "taint team=ml:NoSchedule of"),
            (json!({"key": "team", "value": "", "effect": "NoSchedule"}), "taint team:NoSchedule of"),
            (json!({"key": "team", "effect": "NoExecute"}), "taint team:NoExecute of"),
        ] {
            let message = of(json!({"taints": [taint]}));
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn the_absence_of_any_pool_is_reported() {
        assert_eq!(world(&[]).obstacle().1, "there is no NodePool; create one");
    }

    #[test]
    fn a_pool_with_only_a_node_class_fault_passes_if_that_gate_is_not_enforced() {
        let mut world = world(&[("gpu", not_ready(&[("Ready", "False"), ("NodeClassReady", "False")]))]);
        assert_eq!(world.obstacle().0, ObstacleReason::NodePoolNotReady);
        world.policy.node_class_gate = GateMode::Off;
        assert!(world.provisioned().notes.is_empty());
        world.policy.node_class_gate = GateMode::Warn;
        assert_eq!(
            world.provisioned().notes,
            ["NodePool gpu is not ready (NodeClassReady of KWOKNodeClass default: Because so it is; \
              kubectl describe kwoknodeclass default shows what it lacks)"]
        );
    }

    #[test]
    fn any_other_fault_excludes_a_pool_with_every_gate_setting() {
        let class = ("NodeClassReady", "False");
        for change in [
            not_ready(&[("Ready", "False"), class, ("ValidationSucceeded", "False")]),
            not_ready(&[("Ready", "False")]),
            not_ready(&[]),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ] {
            let mut world = world(&[("gpu", change.clone())]);
            world.policy.node_class_gate = GateMode::Off;
            assert_eq!(world.obstacle().0, ObstacleReason::NodePoolNotReady, "{change}");
        }
        let mut world = world(&[("gpu", json!({"metadata": {"generation": 2}}))]);
        world.policy.node_class_gate = GateMode::Off;
        let expected = "NodePool gpu was edited and Karpenter has not reconciled it yet";
        assert_eq!(world.obstacle(), (ObstacleReason::NodePoolEdited, expected.to_owned()));
    }

    /// A NodePool of generation 2, with conditions that observed these generations.
    fn edited(conditions: &[(&str, &str, i64)]) -> Value {
        let of = |(kind, status, generation): &(&str, &str, i64)| {
            patched(condition(kind, status), &json!({"observedGeneration": generation}))
        };
        let list: Vec<Value> = conditions.iter().map(of).collect();
        json!({"metadata": {"generation": 2}, "spec": {"weight": 9}, "status": {"conditions": list}})
    }

    #[test]
    fn an_edited_pool_is_waited_for_until_karpenter_has_seen_it() {
        let (valid, class) = ("ValidationSucceeded", "NodeClassReady");
        for unseen in [
            &[("Ready", "True", 1)][..],
            &[("Ready", "True", 1), (valid, "True", 1), (class, "True", 1)],
            // Karpenter sets the conditions one after another.
            &[("Ready", "Unknown", 2), (valid, "True", 1), (class, "True", 2)],
        ] {
            let world = world(&[("light", json!({})), ("heavy", edited(unseen))]);
            assert_eq!(world.obstacle().0, ObstacleReason::NodePoolEdited, "{unseen:?}");
            let cluster = PlanSnapshot { edited: Edited::PassedOver, ..world.cluster() };
            let Outcome::Provision(plan) = crate::plan::plan(&cluster, &world.request()) else {
                panic!("nothing may ever reconcile it")
            };
            assert_eq!(plan.slots[0].node_pool, "light");
        }
        for seen in [
            &[("Ready", "False", 2), (valid, "True", 1), (class, "False", 2)][..],
            &[("Ready", "Unknown", 2), (valid, "Unknown", 2), (class, "True", 2)],
            &[("Ready", "Unknown", 1), (valid, "Unknown", 1), (class, "True", 1)],
        ] {
            assert_eq!(chosen(&world(&[("light", json!({})), ("heavy", edited(seen))])), "light", "{seen:?}");
        }
        let ready = [("Ready", "True", 2), (valid, "True", 2), (class, "True", 2)];
        assert_eq!(chosen(&world(&[("light", json!({})), ("heavy", edited(&ready))])), "heavy");
    }

    #[test]
    fn an_accepted_option_waits_while_its_pool_is_edited_at_any_rank() {
        let mut world = world(&[("light", json!({})), ("heavy", json!({"spec": {"weight": 9}}))]);
        let hash = world.provisioned().hash();
        let again = |world: &Fixture| {
            let selection =
                crate::plan::OptionSelection::Accepted { option_index: 0, plan: Some(&hash), begun: &[] };
            crate::plan::plan(&world.cluster(), &PlanRequest { selection, ..world.request() })
        };
        let unseen = edited(&[("Ready", "True", 1)]);
        for weight in [9, 0] {
            world.objects.node_pools[1] =
                pool("heavy", &patched(unseen.clone(), &json!({"spec": {"weight": weight}})));
            let Outcome::Wait(obstacle) = again(&world) else { panic!("{:?}", again(&world)) };
            assert_eq!(obstacle.reason, ObstacleReason::NodePoolEdited);
        }
        let seen = edited(&[("Ready", "True", 2)]);
        world.objects.node_pools[1] =
            pool("heavy", &patched(seen, &json!({"spec": {"limits": {"nodes": "9"}}})));
        assert!(matches!(again(&world), Outcome::Provision(plan) if plan.hash() == hash));
    }
}
