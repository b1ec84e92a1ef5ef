//! The NodePools that a gang gets no nodes from, each with its reason.
//!
//! Filled by `pools` with those that do not come into question, and completed once a way is chosen.

use super::gates::Gate;
use super::tiers::Choice;
use super::{Obstacle, Plan};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A NodePool that a gang gets no nodes from.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PassedOver {
    /// Its name.
    pub node_pool: String,
    /// Why.
    pub reason: String,
}

impl PassedOver {
    /// Adds those of which nothing is told yet.
    pub fn add(all: &mut Vec<Self>, more: impl IntoIterator<Item = Self>) {
        for one in more {
            if !all.iter().any(|known| known.node_pool == one.node_pool) {
                all.push(one);
            }
        }
    }
}

/// The plan with every NodePool that it takes no nodes from: one whose way is closed, one that comes later or has run out
/// lately, and those that do not come into question; and a note on each tier whose reservations are closed.
pub fn told(mut plan: Plan, choices: &[Choice], closed: &[(&Choice, Obstacle)]) -> Plan {
    let used: BTreeSet<String> = plan.slots.iter().map(|slot| slot.node_pool.clone()).collect();
    let of = |pools: &BTreeSet<String>, reason: &str| -> Vec<PassedOver> {
        let others = pools.iter().filter(|pool| !used.contains(*pool));
        others.map(|pool| PassedOver { node_pool: pool.clone(), reason: reason.to_owned() }).collect()
    };
    let mut all = Vec::new();
    for (choice, obstacle) in closed {
        PassedOver::add(&mut all, of(&choice.pools, &obstacle.message));
        if let Some((Gate::Reservations, tier)) = &obstacle.gate {
            let note = format!("tier {tier} is passed over: {}", obstacle.message);
            if !plan.notes.contains(&note) {
                plan.notes.push(note);
            }
        }
    }
    for (index, choice) in (0..).zip(choices) {
        let reason =
            if index < plan.choice { "it ran out of capacity lately" } else { "another NodePool came first" };
        PassedOver::add(&mut all, of(&choice.pools, reason));
    }
    let others = choices.iter().flat_map(|choice| &choice.passed_over);
    PassedOver::add(&mut all, others.filter(|one| !used.contains(&one.node_pool)).cloned());
    all.sort_by(|a, b| a.node_pool.cmp(&b.node_pool));
    plan.passed_over = Arc::new(all);
    plan
}
