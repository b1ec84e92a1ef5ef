//! The NodePools that a gang gets no nodes from, and other options on its own NodePools that are out of capacity, each with a
//! reason.
//!
//! Filled by `pools` with NodePools that are not eligible, and completed once an option is chosen.

use super::gates::Gate;
use super::offering::{Offering, REMEMBERED, is_short};
use super::passed_over::PassedOver;
use super::tiers::ProvisioningOption;
use super::{Cluster, Obstacle, ObstacleReason, Plan};
use crate::policy::Policy;
use crate::words::few;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::ptr;
use std::sync::Arc;

/// A shortage: nodes of a plan have no capacity anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The source, and the offerings that are short.
    pub words: String,
    /// When the shortage expires, if Karpenter's metrics report it for all of them.
    pub told_until: Option<Timestamp>,
}

impl Shortage {
    /// The obstacle for nodes that Karpenter's metrics mark as out of capacity.
    pub fn obstacle(&self) -> Obstacle {
        let message = format!("{}; nothing is requested until they show capacity", self.words);
        Obstacle { until: self.told_until, ..Obstacle::new(ObstacleReason::CapacityShort, message) }
    }
}

/// The shortage that blocks nodes of this plan. `None` if all may have capacity.
pub fn shortage(cluster: &Cluster<'_>, plan: &Plan) -> Option<Shortage> {
    let short = cluster.short?;
    let is_out = |slot: &&super::Slot| is_short(&slot.template, &slot.place_keys, short);
    let out = plan.wanted().filter(is_out);
    let out: BTreeSet<Offering> =
        out.flat_map(|slot| Offering::of(&slot.template, &slot.place_keys)).collect();
    if out.is_empty() {
        return None;
    }
    let has_all = |market: &&super::market::Market| {
        let reported = market.short();
        out.iter().all(|offering| offering.is_in(&reported))
    };
    let told_until = cluster.market.filter(has_all).map(|market| market.seen + REMEMBERED);
    let who = if told_until.is_some() {
        "out of capacity by Karpenter's metrics"
    } else {
        "out of capacity lately"
    };
    let names: Vec<String> = out.iter().map(ToString::to_string).collect();
    let words = format!("{who}: {}", few(names.iter().map(String::as_str)));
    Some(Shortage { words, told_until })
}

/// The obstacle of each option that is closed or out of capacity, in option order.
pub fn obstacles<'c>(
    options: &'c [ProvisioningOption],
    closed: &[(&ProvisioningOption, Obstacle)],
    out: &[(&ProvisioningOption, Shortage)],
) -> Vec<(&'c str, Obstacle)> {
    let of = |option: &ProvisioningOption| {
        let closed = closed.iter().find(|(other, _)| ptr::eq(*other, option));
        let out = || out.iter().find(|(other, _)| ptr::eq(*other, option));
        closed.map(|(_, obstacle)| obstacle.clone()).or_else(|| out().map(|(_, why)| why.obstacle()))
    };
    options.iter().filter_map(|option| Some((option.name.as_str(), of(option)?))).collect()
}

/// The reason that other NodePools came before this one, with their weights.
fn first(cluster: &Cluster<'_>, used: &BTreeSet<String>, pool: &str) -> String {
    let weight = |name: &str| {
        let pool = cluster.node_pools.iter().find(|pool| pool.metadata.name.as_deref() == Some(name));
        pool.and_then(|pool| pool.spec.weight).unwrap_or_default()
    };
    let own = weight(pool);
    let before: Vec<String> =
        used.iter().map(|name| format!("NodePool {name} of weight {}", weight(name))).collect();
    let is_by_name = used.iter().all(|name| weight(name) == own);
    let own = if is_by_name { "the same, and the last name comes first".to_owned() } else { own.to_string() };
    format!("{} came first; its own weight is {own}", before.join(" and "))
}

/// Adds to the plan every NodePool that it takes no nodes from, each with the reason: closed, later in order, out of capacity, or
/// not eligible. Also adds options on its own NodePools that are out of capacity, and a note for each tier whose reservations are
/// closed.
pub fn in_words(
    cluster: &Cluster<'_>,
    policy: &Policy,
    mut plan: Plan,
    options: &[ProvisioningOption],
    closed: &[(&ProvisioningOption, Obstacle)],
    out: &[(&ProvisioningOption, Shortage)],
) -> Plan {
    let used: BTreeSet<String> = plan.slots.iter().map(|slot| slot.node_pool.clone()).collect();
    let of = |pools: &BTreeSet<String>, reason: &str| -> Vec<PassedOver> {
        let others = pools.iter().filter(|pool| !used.contains(*pool));
        others.map(|pool| PassedOver { node_pool: pool.clone(), reason: reason.to_owned() }).collect()
    };
    let mut all = Vec::new();
    for (option, obstacle) in closed {
        PassedOver::add(&mut all, of(&option.pools, &obstacle.message));
        if let Some((Gate::Reservations, tier)) = &obstacle.gate {
            let note = format!("tier {tier} is passed over: {}", obstacle.message);
            if !plan.notes.contains(&note) {
                plan.notes.push(note);
            }
        }
    }
    let taken = usize::try_from(plan.option_index).ok().and_then(|index| options.get(index));
    // If all options are out of capacity, one of them is tried.
    for (option, why) in out.iter().filter(|(option, _)| !taken.is_some_and(|taken| ptr::eq(taken, *option)))
    {
        PassedOver::add(&mut all, of(&option.pools, &why.words));
        if option.pools.is_subset(&used) {
            let tier = policy.tier_name(option.tier).filter(|name| !name.is_empty());
            let node_pool =
                if tier.is_some() { format!("tier {}", option.name) } else { option.name.clone() };
            PassedOver::add(&mut all, [PassedOver { node_pool, reason: why.words.clone() }]);
        }
    }
    for (index, option) in (0..).zip(options) {
        let reason = |pool: &String| {
            if index < plan.option_index {
                "it ran out of capacity lately".to_owned()
            } else if option.tier != plan.tier {
                "an earlier tier came first".to_owned()
            } else if option.has_spare && taken.is_some_and(|taken| !taken.has_spare) {
                "its instance types have accelerators, which the pods do not ask for".to_owned()
            } else {
                first(cluster, &used, pool)
            }
        };
        let others = option.pools.iter().filter(|pool| !used.contains(*pool));
        PassedOver::add(
            &mut all,
            others.map(|pool| PassedOver { node_pool: pool.clone(), reason: reason(pool) }),
        );
    }
    let others = options.iter().flat_map(|option| &option.passed_over);
    PassedOver::add(&mut all, others.filter(|one| !used.contains(&one.node_pool)).cloned());
    all.sort_by(|a, b| a.node_pool.cmp(&b.node_pool));
    plan.passed_over = Arc::new(all);
    plan
}
