//! Topology constraints of the pods: zone spread, pod affinity, pod anti-affinity, and volumes that pods share.
//!
//! Rule: nodes are requested in domains where the scheduler can place every pod of the gang. If that cannot be guaranteed, the
//! gang is refused. Pods outside the gang are unknown, so they get no guarantee.
//!
//! A gang may have one constraint on one topology key, shared by all pod sets that it covers. Because of pinning, the gang's pods
//! can run only on the gang's nodes, so the scheduler counts no other domains.

mod constraints;

use self::constraints::ConstraintReader;
use super::claim::Draft;
use super::demand::PodSetDemand;
use super::{Obstacle, ObstacleReason, Plan, PlanRequest, PlanSnapshot};
use crate::api::NodeClaim;
use crate::api::requirements::{Values, normalized};
use crate::names;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most domains that are tried one by one, or that pods are spread over. A tenant can name any number of values.
pub(super) const DOMAINS: usize = 64;
/// Most pods that each get a domain of their own.
const MOST_APART: usize = 256;
/// Most domains of all lists but the first, because each domain of a list is planned by itself.
const MOST_LISTED: usize = 256;

/// Some pods of a pod set, and what their nodes must be.
#[derive(Clone, Debug)]
pub struct Portion {
    /// Index of the pod set in the demand.
    pub set: usize,
    /// How many of its pods.
    pub pods: u32,
    /// The draft of their nodes.
    pub draft: Draft,
}

impl Portion {
    /// The demand of these pods alone, and their draft.
    pub fn of<'a>(&self, demand: &[PodSetDemand<'a>]) -> Option<(PodSetDemand<'a>, Draft)> {
        let set = demand.get(self.set)?;
        Some((PodSetDemand { pods: self.pods, ..set.clone() }, self.draft.clone()))
    }
}

/// How the domains of a topology key are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DomainRule {
    /// All pods in one domain.
    Together,
    /// Each pod in a different domain.
    Apart,
    /// Equally many pods in each domain, within the allowed skew.
    Even,
}

/// One constraint of one pod set.
#[derive(Clone, Debug)]
struct Constraint {
    /// The start of messages: the pod set and what it asks for.
    text: String,
    key: String,
    rule: DomainRule,
    /// Pod sets of the demand that it covers, including its own.
    members: BTreeSet<usize>,
    /// Pod sets of the demand whose pods it counts.
    counted: BTreeSet<usize>,
    max_skew: u32,
    min_domains: usize,
}

/// The combined topology constraints of a gang.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    constraints: Vec<Constraint>,
    /// Affinities to the same host: the message and the names of the pod sets that must share one node.
    hosts: Vec<(String, BTreeSet<String>)>,
}

impl Topology {
    /// Reads the constraints of all pod sets.
    ///
    /// # Errors
    /// The constraint that cannot be guaranteed with any nodes.
    pub fn of(
        cluster: &PlanSnapshot<'_>,
        request: &PlanRequest<'_>,
        demand: &[PodSetDemand<'_>],
    ) -> Result<Self, Obstacle> {
        let reader = ConstraintReader { cluster, request, demand };
        let mut topology = Self::default();
        for (index, set) in demand.iter().enumerate() {
            for constraint in reader.spreads(index, &set.spec) {
                topology.constraints.extend(constraint?);
            }
            for constraint in reader.affinities(index, &set.spec) {
                topology.constraints.extend(constraint?);
            }
        }
        topology.constraints.extend(reader.shared_volumes()?);
        let (hosts, others) = topology.constraints.into_iter().partition(|c| c.key == names::HOSTNAME);
        topology.constraints = others;
        let names_of = |c: &Constraint| -> BTreeSet<String> {
            let sets = c.members.iter().filter_map(|member| demand.get(*member));
            sets.map(|set| set.pod_set.name.clone()).collect()
        };
        let hosts: Vec<Constraint> = hosts;
        topology.hosts = hosts.iter().map(|c| (c.text.clone(), names_of(c))).collect();
        topology.one_rule()?;
        let grows = !cluster.predecessors.is_empty();
        match topology.constraints.first() {
            Some(first) if grows && !is_colocated(request, first) => Err(refused(format!(
                "{}; an elastic Job cannot grow with that, because it is not known where its first pods run",
                first.text
            ))),
            _ => Ok(topology),
        }
    }

    /// Checks that all constraints have the same key and rule.
    fn one_rule(&self) -> Result<(), Obstacle> {
        let Some(first) = self.constraints.first() else { return Ok(()) };
        let same = |c: &&Constraint| (&c.key, c.rule) == (&first.key, first.rule);
        match self.constraints.iter().find(|c| !same(c)) {
            None => Ok(()),
            Some(other) => Err(refused(format!(
                "{}, and {}; Setu can guarantee one of them only, so leave one out",
                first.text, other.text
            ))),
        }
    }

    /// How the pod sets may use the domains that their drafts offer, the preferred first. Never empty. The text names the domains
    /// if there is a choice.
    pub fn arrangements(
        &self,
        demand: &[PodSetDemand<'_>],
        drafts: Vec<Draft>,
    ) -> Vec<(String, Result<Arrangement, Obstacle>)> {
        let lists = self.arranger(demand, &drafts).map_or_else(|| Ok(vec![Vec::new()]), |gang| gang.lists());
        let lists = match lists {
            Ok(lists) => lists,
            Err(obstacle) => return vec![(String::new(), Err(obstacle))],
        };
        let several = lists.len() > 1;
        let drafts: Arc<[Draft]> = drafts.into();
        let option = |domains: Vec<String>| {
            let name = if several { domains.join(" and ") } else { String::new() };
            (name, Ok(Arrangement { drafts: Arc::clone(&drafts), domains }))
        };
        lists.into_iter().map(option).collect()
    }

    /// All pods of the gang, with the drafts of their nodes.
    ///
    /// # Errors
    /// The constraint that they would violate, or what the nodes cannot have.
    pub fn portions(
        &self,
        demand: &[PodSetDemand<'_>],
        arrangement: &Arrangement,
    ) -> Result<Vec<Portion>, Obstacle> {
        let Arrangement { drafts, domains } = arrangement;
        if let Some(gang) = self.arranger(demand, drafts) {
            return gang.portions(domains).and_then(|portions| self.check(portions));
        }
        let whole = |((set, demand), draft): ((usize, &PodSetDemand<'_>), &Draft)| Portion {
            set,
            pods: demand.pods,
            draft: draft.clone(),
        };
        Ok(demand.iter().enumerate().zip(drafts.iter()).map(whole).collect())
    }

    /// The arranger of the pods; `None` without a constraint.
    fn arranger<'a>(&'a self, demand: &'a [PodSetDemand<'a>], drafts: &'a [Draft]) -> Option<Arranger<'a>> {
        let first = self.constraints.first()?;
        let members = self.constraints.iter().flat_map(|c| c.members.clone()).collect();
        Some(Arranger { first, demand, drafts, members })
    }

    /// Checks the skew of these portions.
    fn check(&self, portions: Vec<Portion>) -> Result<Vec<Portion>, Obstacle> {
        for constraint in self.constraints.iter().filter(|c| c.rule == DomainRule::Even) {
            let domain = |p: &Portion| p.draft.requirements.get(&constraint.key)?.pick();
            let members =
                portions.iter().filter(|p| self.constraints.iter().any(|c| c.members.contains(&p.set)));
            let domains: BTreeSet<String> = members.filter_map(domain).collect();
            let pods = |of: &String| -> u32 {
                let counted = portions.iter().filter(|p| constraint.counted.contains(&p.set));
                counted.filter(|p| domain(p).as_ref() == Some(of)).map(|p| p.pods).sum()
            };
            let counts: Vec<u32> = domains.iter().map(pods).collect();
            let least = if domains.len() < constraint.min_domains {
                0
            } else {
                counts.iter().copied().min().unwrap_or(0)
            };
            let most = counts.iter().copied().max().unwrap_or(0);
            if most.saturating_sub(least) > constraint.max_skew {
                return Err(refused(format!(
                    "{} with maxSkew {} and minDomains {}, which {} pods in one of {} domains would not meet; have the NodePool \
                     offer more of them, or allow more skew",
                    constraint.text,
                    constraint.max_skew,
                    constraint.min_domains,
                    most,
                    domains.len()
                )));
            }
        }
        Ok(portions)
    }

    /// Checks that existing claims are in the domains that the plan has for their slots.
    ///
    /// # Errors
    /// The constraint that they would violate.
    pub fn allows_staying(&self, plan: &Plan, staying: &[NodeClaim]) -> Result<(), Obstacle> {
        let Some(first) = self.constraints.first() else { return Ok(()) };
        let domain = |claim: &NodeClaim| {
            let requirement = claim.spec.requirements.iter().find(|r| normalized(&r.key) == first.key);
            requirement.map(|r| (r.operator.clone(), r.values.clone()))
        };
        let differs = |claim: &&NodeClaim| {
            let slot = plan.slots.iter().find(|slot| Some(slot.index) == claim.slot());
            slot.is_some_and(|slot| domain(&slot.template) != domain(claim))
        };
        match staying.iter().find(differs) {
            None => Ok(()),
            Some(_) => Err(refused(format!(
                "{}; the nodes that the gang has already are in other domains than the rest would be",
                first.text
            ))),
        }
    }

    /// Checks that pods that must share one node do so in this plan.
    ///
    /// # Errors
    /// The affinity that the plan does not meet.
    pub fn allows_hosts(&self, plan: &Plan) -> Result<(), Obstacle> {
        for (text, sets) in &self.hosts {
            let holds = |slot: &&super::Slot| slot.pods.iter().any(|share| sets.contains(&share.pod_set));
            let nodes = plan.slots.iter().filter(holds).count();
            if nodes > 1 {
                return Err(refused(format!(
                    "{text}, but they need {nodes} nodes; take the affinity off, or use packing: {{mode: Fill}} with nodes that \
                     hold them all"
                )));
            }
        }
        Ok(())
    }
}

/// The domains that a gang's pods are arranged in, and the drafts of its pod sets. There may be many, so portions are made only for
/// the one that is tried.
#[derive(Clone, Debug)]
pub struct Arrangement {
    drafts: Arc<[Draft]>,
    /// Empty without a constraint.
    domains: Vec<String>,
}

/// Arranges the pods of a gang by its first constraint. All constraints have the same key and rule.
struct Arranger<'a> {
    first: &'a Constraint,
    demand: &'a [PodSetDemand<'a>],
    drafts: &'a [Draft],
    members: BTreeSet<usize>,
}

impl Arranger<'_> {
    /// The domain lists to try.
    fn lists(&self) -> Result<Vec<Vec<String>>, Obstacle> {
        let Constraint { key, text, rule, .. } = self.first;
        let drafts = || self.members.iter().filter_map(|member| self.drafts.get(*member));
        let listed = |draft: &Draft| draft.requirements.get(key).and_then(Values::listed).cloned();
        let pools: BTreeSet<&str> = drafts().map(|draft| draft.node_pool.as_str()).collect();
        let pools = pools.into_iter().collect::<Vec<_>>().join(" and ");
        let common = drafts().map(listed).reduce(|a, b| Some(&a? & &b?)).flatten();
        let domains: Vec<String> = common.into_iter().flatten().collect();
        if domains.is_empty() {
            return Err(refused(format!(
                "{text}, but NodePool {pools} does not say which values of {key} all these pods can have; list them in \
                 spec.template.spec.requirements"
            )));
        }
        let pods = usize::try_from(self.pods()).unwrap_or(usize::MAX);
        // The first domains, and lists in each of which one is left out, because it may be out of capacity.
        let all_and_without_one = |pods: usize, left_out: usize| {
            let without = |n: usize| {
                let others = domains.iter().enumerate().filter(move |(other, _)| *other != n);
                others.map(|(_, domain)| domain.clone()).take(pods).collect()
            };
            let mut lists: Vec<Vec<String>> = vec![domains.iter().take(pods).cloned().collect()];
            lists.extend((0..left_out.min(MOST_LISTED / pods.min(domains.len()).max(1))).map(without));
            let mut seen = BTreeSet::new();
            lists.retain(|list| seen.insert(list.clone()));
            lists
        };
        Ok(match rule {
            DomainRule::Together => domains.iter().take(DOMAINS).map(|domain| vec![domain.clone()]).collect(),
            DomainRule::Apart if pods > domains.len() => {
                return Err(refused(format!(
                    "{text}, so {pods} pods need as many values, but NodePool {pools} offers {} ({})",
                    domains.len(),
                    domains.join(", ")
                )));
            }
            DomainRule::Apart if pods > MOST_APART => {
                return Err(refused(format!(
                    "{text}, so {pods} pods need as many values; Setu arranges at most {MOST_APART}"
                )));
            }
            DomainRule::Apart if pods < domains.len() && pods <= DOMAINS => all_and_without_one(pods, pods),
            DomainRule::Apart => all_and_without_one(pods, 0),
            // Enough must remain to spread over.
            DomainRule::Even if domains.len() > 2 => {
                all_and_without_one(pods.min(DOMAINS), domains.len().min(DOMAINS))
            }
            DomainRule::Even => all_and_without_one(pods.min(DOMAINS), 0),
        })
    }

    /// The number of pods to arrange.
    fn pods(&self) -> u32 {
        let sets = self.members.iter().filter_map(|member| self.demand.get(*member));
        sets.map(|set| set.pods).fold(0, u32::saturating_add)
    }

    /// All pods of the gang: the members' in equal shares over these domains, the others' in any of them.
    fn portions(&self, domains: &[String]) -> Result<Vec<Portion>, Obstacle> {
        let (key, text) = (&self.first.key, self.first.text.as_str());
        let count = u32::try_from(domains.len()).unwrap_or(u32::MAX).max(1);
        let mut next = 0_usize;
        let mut all = Vec::new();
        for ((set, wanted), draft) in self.demand.iter().enumerate().zip(self.drafts) {
            if !self.members.contains(&set) {
                // A domain that has a node but none of these pods would count for the skew.
                let draft = match self.first.rule {
                    DomainRule::Even => draft.narrowed(key, &Values::of(domains), text)?,
                    DomainRule::Together | DomainRule::Apart => draft.clone(),
                };
                all.push(Portion { set, pods: wanted.pods, draft });
                continue;
            }
            let (least, rest) = (wanted.pods / count, wanted.pods % count);
            let rest = usize::try_from(rest).unwrap_or(usize::MAX);
            // Each pod set starts where the last one ended, so that the total is spread too.
            let turns = domains.iter().cycle().skip(next).take(domains.len()).enumerate();
            for (turn, domain) in turns {
                let pods = least.saturating_add(u32::from(turn < rest));
                if pods > 0 {
                    all.push(Portion { set, pods, draft: draft.held_to(key, domain, text)? });
                }
            }
            next = next.saturating_add(rest) % domains.len().max(1);
        }
        Ok(all)
    }
}

/// Whether the policy's colocation holds all nodes of the gang to one value of the key.
fn is_colocated(request: &PlanRequest<'_>, constraint: &Constraint) -> bool {
    let key = request.policy.colocation.as_ref().map(|colocation| colocation.topology_key.as_str());
    constraint.rule == DomainRule::Together && key == Some(constraint.key.as_str())
}

fn refused(message: String) -> Obstacle {
    Obstacle::new(ObstacleReason::TopologyUnmet, message)
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::super::fixtures::{Fixture, object, patched, pod_set, pool};
    use super::*;
    use crate::api::parameters::{ColocationMode, PackingMode, Pinning};
    use serde_json::{Value, json};

    /// `count` pods of a Job with label `app: train` and this spec, on a NodePool of these zones.
    fn world(count: i32, spec: &Value, zones: &[&str]) -> Fixture {
        sets(&[("main", count, spec.clone())], zones)
    }

    fn sets(sets: &[(&str, i32, Value)], zones: &[&str]) -> Fixture {
        let set = |(name, count, spec): &(&str, i32, Value)| {
            let template = json!({"template": {"metadata": {"labels": {"app": "train"}}, "spec": spec}});
            patched(pod_set(name, *count), &template)
        };
        let assigned: Vec<Value> =
            sets.iter().map(|(name, ..)| json!({"name": name, "flavors": {"cpu": "gpu"}})).collect();
        let mut world = Fixture::new().workload(&json!({
            "spec": {"podSets": sets.iter().map(set).collect::<Vec<_>>()},
            "status": {"admission": {"podSetAssignments": assigned}},
        }));
        let requirement = json!({"key": names::ZONE, "operator": "In", "values": zones});
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": [requirement]}}}}))];
        world
    }

    fn own() -> Value {
        json!({"matchLabels": {"app": "train"}})
    }

    fn spread(change: &Value) -> Value {
        let base = json!({
            "topologyKey": names::ZONE, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": own(),
        });
        json!({"topologySpreadConstraints": [patched(base, change)]})
    }

    fn affinity(kind: &str, key: &str, selector: &Value) -> Value {
        let term = json!({"topologyKey": key, "labelSelector": selector});
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}})
    }

    /// The zones of each node, in the order of the slots.
    fn zones(world: &Fixture) -> Vec<String> {
        zones_of(&world.provisioned())
    }

    fn zones_of(plan: &crate::plan::Plan) -> Vec<String> {
        let zone = |slot: &super::super::Slot| {
            let requirements = &slot.template.spec.requirements;
            requirements.iter().find(|r| r.key == names::ZONE).unwrap().values.join(" ")
        };
        plan.slots.iter().map(zone).collect()
    }

    fn refusal(world: &Fixture) -> String {
        match world.plan() {
            Outcome::Refuse(obstacle) => {
                assert_eq!(obstacle.reason, ObstacleReason::TopologyUnmet);
                obstacle.message
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zone_spread_gives_each_zone_its_share() {
        assert_eq!(zones(&world(5, &spread(&json!({})), &["a", "b"])), ["a", "a", "a", "b", "b"]);
        assert_eq!(zones(&world(2, &spread(&json!({})), &["a", "b", "c"])), ["a", "b"]);
        let anyway = spread(&json!({"whenUnsatisfiable": "ScheduleAnyway"}));
        assert_eq!(zones(&world(2, &anyway, &["a", "b"])), ["a b", "a b"]);
        let old = spread(&json!({"topologyKey": "failure-domain.beta.kubernetes.io/zone"}));
        assert_eq!(zones(&world(2, &old, &["a", "b"])), ["a", "b"]);
    }

    /// A well-known key that no NodePool here restricts.
    const OPEN: &str = "topology.k8s.aws/zone-id";

    /// `count` pods that allow this many values of [`OPEN`], with these constraints.
    fn of_open_values(count: i32, values: usize, constraints: &Value) -> Fixture {
        let names: Vec<String> = (0..values).map(|n| format!("z{n:05}")).collect();
        let term = json!({"matchExpressions": [{"key": OPEN, "operator": "In", "values": names}]});
        let affinity = json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]},
        }}});
        world(count, &patched(affinity, constraints), &["a"])
    }

    #[test]
    fn pods_that_allow_thousands_of_values_are_planned_in_no_time() {
        let started = std::time::Instant::now();
        let even = spread(&json!({"topologyKey": OPEN}));
        let plan = of_open_values(200, 4_000, &even).provisioned();
        let used: BTreeSet<String> = plan
            .slots
            .iter()
            .filter_map(|slot| slot.template.spec.requirements.iter().find(|r| r.key == OPEN))
            .map(|r| r.values.join(" "))
            .collect();
        assert_eq!((plan.slots.len(), used.len()), (200, DOMAINS));
        let apart = affinity("podAntiAffinity", OPEN, &own());
        assert_eq!(of_open_values(200, 4_000, &apart).provisioned().slots.len(), 200);
        let refusal = refusal(&of_open_values(300, 4_000, &apart));
        assert!(refusal.ends_with("300 pods need as many values; Setu arranges at most 256"), "{refusal}");
        let mut together = of_open_values(8, 4_000, &json!({}));
        let shared = crate::policy::SharedLabel { topology_key: OPEN.into(), mode: ColocationMode::Required };
        together.policy.colocation = Some(shared);
        assert_eq!(usize::try_from(together.provisioned().option_count).unwrap(), DOMAINS);
        // An unoptimized build took a second; without bounds it takes minutes and gigabytes.
        assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    }

    #[test]
    fn zone_spread_with_packing_fills_the_nodes_of_each_zone() {
        let mut world = world(8, &spread(&json!({})), &["a", "b"]);
        world.policy.packing = PackingMode::Fill;
        let types = json!({"key": names::INSTANCE_TYPE, "operator": "In", "values": ["p5"]});
        let zone = json!({"key": names::ZONE, "operator": "In", "values": ["a", "b"]});
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": [types, zone]}}}}))];
        let shape = json!([{"instanceType": "p5", "allocatable": {"cpu": 190, "nvidia.com/gpu": 8}}]);
        world.policy.shapes = serde_json::from_value(shape).unwrap();
        assert_eq!(zones(&world), ["a", "b"]);
        let plan = world.provisioned();
        assert!(plan.slots.iter().all(|slot| slot.pods[0].pods == 4), "{:?}", plan.slots);
    }

    #[test]
    fn pod_sets_that_a_spread_selects_together_are_spread_together() {
        let world = sets(&[("lead", 1, spread(&json!({}))), ("main", 3, spread(&json!({})))], &["a", "b"]);
        assert_eq!(zones(&world), ["a", "b", "b", "a"]);
    }

    #[test]
    fn pod_sets_that_a_spread_does_not_select_stay_in_its_zones() {
        let other = json!({"matchLabels": {"app": "other"}});
        let lead = json!({});
        let mut world = sets(&[("lead", 1, lead), ("main", 2, spread(&json!({})))], &["a", "b", "c"]);
        world.workload.spec.pod_sets[0].template.metadata.labels = object(json!({"app": "other"}));
        assert_eq!(zones(&world), ["a b", "a", "b"]);
        let of_none = spread(&json!({"labelSelector": other}));
        assert_eq!(zones(&self::world(2, &of_none, &["a", "b"])), ["a b", "a b"]);
    }

    #[test]
    fn spread_over_fewer_zones_than_min_domains_is_refused() {
        let four = world(4, &spread(&json!({"minDomains": 3})), &["a", "b"]);
        assert!(refusal(&four).contains("spreads over topology.kubernetes.io/zone"), "{}", refusal(&four));
        assert_eq!(zones(&world(2, &spread(&json!({"minDomains": 3})), &["a", "b"])), ["a", "b"]);
    }

    #[test]
    fn spread_that_counts_the_nodes_of_others_is_refused() {
        let everywhere = world(2, &spread(&json!({"nodeAffinityPolicy": "Ignore"})), &["a", "b"]);
        assert!(refusal(&everywhere).contains("nodeAffinityPolicy: Ignore"));
        let mut unpinned = world(2, &spread(&json!({})), &["a", "b"]);
        unpinned.policy.pinning = Pinning::None;
        assert!(refusal(&unpinned).contains("pinning: None"));
    }

    #[test]
    fn zone_affinity_to_itself_takes_one_zone_for_all_and_then_the_next() {
        let mut world = world(3, &affinity("podAffinity", names::ZONE, &own()), &["a", "b"]);
        assert_eq!(zones(&world), ["a", "a", "a"]);
        let first = world.provisioned();
        assert_eq!((first.option_count, &*first.option_name), (2, "a"));
        world.exhausted = first.offerings();
        assert_eq!(zones(&world), ["b", "b", "b"]);
    }

    #[test]
    fn zone_anti_affinity_gives_each_pod_a_zone_or_is_refused() {
        let apart = affinity("podAntiAffinity", names::ZONE, &own());
        let mut two = world(2, &apart, &["a", "b", "c"]);
        assert_eq!(zones(&two), ["a", "b"]);
        two.exhausted = two.provisioned().offerings();
        two.exhausted.retain(|offering| offering.zone == "a");
        assert_eq!(zones(&two), ["b", "c"]);
        let begun = two.provisioned();
        let hash = begun.hash();
        let mut left = (*begun.slots[0].template).clone();
        left.metadata.labels.get_or_insert_default().insert(names::NODEPOOL.to_owned(), "gpu".to_owned());
        left.metadata.annotations.get_or_insert_default().insert(names::SLOT.to_owned(), "0".to_owned());
        two.exhausted.clear();
        let selection = crate::plan::OptionSelection::Like { begun: &[left], plan: Some(&hash) };
        let request = crate::plan::PlanRequest { selection, ..two.request() };
        let Outcome::Provision(plan) = crate::plan::plan(&two.cluster(), &request) else { panic!("no plan") };
        assert_eq!(zones_of(&plan), ["b", "c"], "the lost node comes back to its zone");
        let message = refusal(&world(3, &apart, &["a", "b"]));
        assert!(message.contains("podAntiAffinity, so 3 pods need as many values"), "{message}");
        assert!(message.contains("offers 2 (a, b)"), "{message}");
    }

    #[test]
    fn many_values_that_a_tenant_names_are_planned_a_bounded_number_of_times() {
        let names: Vec<String> = (0..65).map(|zone| format!("z{zone}")).collect();
        let zones: Vec<&str> = names.iter().map(String::as_str).collect();
        let rules = [affinity("podAntiAffinity", names::ZONE, &own()), spread(&json!({}))];
        for (pods, rule) in [8, 32, 64].iter().flat_map(|pods| rules.iter().map(move |rule| (*pods, rule))) {
            let plan = world(pods, rule, &zones).provisioned();
            let planned = plan.option_count * u32::try_from(pods).unwrap();
            assert!(plan.option_count > 1 && planned <= 320, "{} lists of {pods}", plan.option_count);
        }
    }

    #[test]
    fn affinity_to_pods_outside_the_gang_is_refused() {
        let other = json!({"matchLabels": {"app": "db"}});
        for kind in ["podAffinity", "podAntiAffinity"] {
            let message = refusal(&world(2, &affinity(kind, names::ZONE, &other), &["a", "b"]));
            assert!(message.contains(kind) && message.contains("not known where they run"), "{message}");
        }
        let mut elsewhere = affinity("podAffinity", names::ZONE, &own());
        elsewhere["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["namespaces"] =
            json!(["db"]);
        refusal(&world(2, &elsewhere, &["a", "b"]));
    }

    #[test]
    fn affinity_by_a_label_that_the_gangs_pods_do_not_have_is_refused() {
        let other = json!({"matchLabels": {"app": "redis"}});
        let of_job = json!({"matchLabels": {"batch.kubernetes.io/job-name": "train"}});
        for key in [names::ZONE, names::HOSTNAME] {
            for pods in [1, 2] {
                let without_labels = |term: &Value| {
                    let mut world = world(pods, &affinity("podAffinity", key, term), &["a", "b"]);
                    world.workload.spec.pod_sets[0].template.metadata.labels.clear();
                    world
                };
                assert!(
                    refusal(&without_labels(&other)).contains("not known where they run"),
                    "{key} {pods}"
                );
                let is_one_host = key == names::HOSTNAME && pods > 1;
                let own = without_labels(&of_job).plan();
                assert_eq!(matches!(own, Outcome::Provision(_)), !is_one_host, "{key} {pods} {own:?}");
            }
        }
    }

    #[test]
    fn zones_that_the_node_pool_does_not_list_are_asked_for() {
        let mut world = world(2, &spread(&json!({})), &["a"]);
        world.objects.node_pools =
            vec![pool("gpu", &json!({"spec": {"template": {"spec": {"requirements": []}}}}))];
        assert!(refusal(&world).contains("does not say which values of topology.kubernetes.io/zone"));
    }

    #[test]
    fn pods_that_must_share_a_host_are_refused_more_than_one_node() {
        let near = affinity("podAffinity", names::HOSTNAME, &own());
        assert!(refusal(&world(2, &near, &["a"])).contains("but they need 2 nodes"));
        assert_eq!(world(1, &near, &["a"]).provisioned().slots.len(), 1);
    }

    #[test]
    fn different_rules_in_one_gang_are_refused() {
        let both = patched(spread(&json!({})), &affinity("podAffinity", names::ZONE, &own()));
        assert!(refusal(&world(2, &both, &["a", "b"])).contains("one of them only"));
    }
}
