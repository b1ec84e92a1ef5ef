//! The options that were tried before one was taken, and what a plan or an obstacle says of them and of the NodePools that give no
//! nodes.

use super::gates::Gate;
use super::offering::{Offering, SHORTAGE_TTL};
use super::passed_over::PassedOver;
use super::tiers::ProvisioningOption;
use super::{Obstacle, ObstacleReason, Plan, PlanSnapshot, Slot};
use crate::policy::Policy;
use crate::words::few;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::ptr;
use std::sync::Arc;

/// A shortage: nodes of a plan have no capacity anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityShortage {
    /// The source, and the exhausted offerings.
    pub words: String,
    /// When the shortage expires, if Karpenter's metrics report it for all of them.
    pub reported_until: Option<Timestamp>,
}

impl CapacityShortage {
    /// The obstacle for nodes that Karpenter's metrics mark as out of capacity.
    pub fn obstacle(&self) -> Obstacle {
        let message = format!("{}; nothing is requested until they show capacity", self.words);
        Obstacle { until: self.reported_until, ..Obstacle::new(ObstacleReason::CapacityShort, message) }
    }
}

/// The shortage that blocks nodes of this plan. `None` if all may have capacity.
pub fn shortage(cluster: &PlanSnapshot<'_>, plan: &Plan) -> Option<CapacityShortage> {
    let exhausted = cluster.exhausted?;
    let out = plan.wanted().filter(|slot| slot.is_exhausted(exhausted));
    let out: BTreeSet<Offering> = out.flat_map(Slot::offerings).collect();
    if out.is_empty() {
        return None;
    }
    let has_all = |market: &&super::market::Market| {
        let reported = market.exhausted();
        out.iter().all(|offering| offering.is_in(&reported))
    };
    let reported_until = cluster.market.filter(has_all).map(|market| market.seen + SHORTAGE_TTL);
    let who = if reported_until.is_some() {
        "out of capacity by Karpenter's metrics"
    } else {
        "out of capacity lately"
    };
    let names: Vec<String> = out.iter().map(ToString::to_string).collect();
    let words = format!("{who}: {}", few(names.iter().map(String::as_str)));
    Some(CapacityShortage { words, reported_until })
}

/// The options that were tried so far.
pub struct TriedOptions<'o> {
    /// All options, in order.
    options: &'o [ProvisioningOption],
    /// Those that are closed.
    pub closed: Vec<(&'o ProvisioningOption, Obstacle)>,
    /// Those that are out of capacity.
    pub exhausted: Vec<(&'o ProvisioningOption, CapacityShortage)>,
}

impl<'o> TriedOptions<'o> {
    /// None of these yet.
    pub fn none(options: &'o [ProvisioningOption]) -> Self {
        Self { options, closed: Vec::new(), exhausted: Vec::new() }
    }

    /// The obstacle of each option that is closed or out of capacity, in option order.
    pub fn obstacles(&self) -> Vec<(&'o str, Obstacle)> {
        let of = |option: &ProvisioningOption| {
            let closed = self.closed.iter().find(|(other, _)| ptr::eq(*other, option));
            let exhausted = || self.exhausted.iter().find(|(other, _)| ptr::eq(*other, option));
            closed
                .map(|(_, obstacle)| obstacle.clone())
                .or_else(|| exhausted().map(|(_, why)| why.obstacle()))
        };
        self.options.iter().filter_map(|option| Some((option.name.as_str(), of(option)?))).collect()
    }

    /// Adds to the plan every NodePool that it takes no nodes from, each with the reason: closed, later in order, out of capacity,
    /// or not eligible. Also adds options on its own NodePools that are out of capacity, and a note for each tier whose
    /// reservations are closed.
    pub fn recorded_in(&self, mut plan: Plan, cluster: &PlanSnapshot<'_>, policy: &Policy) -> Plan {
        let used = plan.slots.iter().map(|slot| slot.node_pool.clone()).collect();
        let mut unused = Unused { used, all: Vec::new() };
        for (option, obstacle) in &self.closed {
            unused.add(option, |_| obstacle.message.clone());
            if let Some((Gate::Reservations, tier)) = &obstacle.gate {
                let note = format!("tier {tier} is passed over: {}", obstacle.message);
                if !plan.notes.contains(&note) {
                    plan.notes.push(note);
                }
            }
        }
        let taken = usize::try_from(plan.option_index).ok().and_then(|index| self.options.get(index));
        // If all options are out of capacity, one of them is tried.
        let is_taken = |option: &ProvisioningOption| taken.is_some_and(|taken| ptr::eq(taken, option));
        for (option, why) in self.exhausted.iter().filter(|(option, _)| !is_taken(option)) {
            unused.add(option, |_| why.words.clone());
            unused.add_option(option, policy, &why.words);
        }
        for (index, option) in (0..).zip(self.options) {
            if index < plan.option_index {
                unused.add(option, |_| "it ran out of capacity lately".to_owned());
            } else if option.tier != plan.tier {
                unused.add(option, |_| "an earlier tier came first".to_owned());
            } else if option.has_spare && taken.is_some_and(|taken| !taken.has_spare) {
                let why = "its instance types have accelerators, which the pods do not ask for";
                unused.add(option, |_| why.to_owned());
            } else {
                let used = unused.used.clone();
                unused.add(option, |pool| came_first(cluster, &used, pool));
            }
        }
        plan.passed_over = Arc::new(unused.sorted(self.options));
        plan
    }
}

/// The NodePools and options that a plan does not use.
struct Unused {
    /// The NodePools that it uses.
    used: BTreeSet<String>,
    all: Vec<PassedOver>,
}

impl Unused {
    /// Adds the NodePools of an option.
    fn add(&mut self, option: &ProvisioningOption, reason: impl Fn(&str) -> String) {
        let others = option.pools.iter().filter(|pool| !self.used.contains(*pool));
        let others = others.map(|pool| PassedOver { node_pool: pool.clone(), reason: reason(pool) });
        PassedOver::add(&mut self.all, others);
    }

    /// Adds an option on NodePools that are used.
    fn add_option(&mut self, option: &ProvisioningOption, policy: &Policy, reason: &str) {
        if option.pools.is_subset(&self.used) {
            let tier = policy.tier_name(option.tier).filter(|name| !name.is_empty());
            let node_pool =
                if tier.is_some() { format!("tier {}", option.name) } else { option.name.clone() };
            PassedOver::add(&mut self.all, [PassedOver { node_pool, reason: reason.to_owned() }]);
        }
    }

    /// All of them by name, with the NodePools that are not eligible for any option.
    fn sorted(mut self, options: &[ProvisioningOption]) -> Vec<PassedOver> {
        let others = options.iter().flat_map(|option| &option.passed_over);
        PassedOver::add(&mut self.all, others.filter(|one| !self.used.contains(&one.node_pool)).cloned());
        self.all.sort_by(|a, b| a.node_pool.cmp(&b.node_pool));
        self.all
    }
}

/// The reason that other NodePools came before this one, with their weights.
fn came_first(cluster: &PlanSnapshot<'_>, used: &BTreeSet<String>, pool: &str) -> String {
    let weight = |name: &str| {
        let pool = cluster.objects.node_pools.iter().find(|pool| pool.metadata.name.as_deref() == Some(name));
        pool.and_then(|pool| pool.spec.weight).unwrap_or_default()
    };
    let own = weight(pool);
    let before: Vec<String> =
        used.iter().map(|name| format!("NodePool {name} of weight {}", weight(name))).collect();
    let is_by_name = used.iter().all(|name| weight(name) == own);
    let own = if is_by_name { "the same, and the last name comes first".to_owned() } else { own.to_string() };
    format!("{} came first; its own weight is {own}", before.join(" and "))
}
