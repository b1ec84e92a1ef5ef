//! Metrics of nodes: their claims, what they wait for, what is held and what is wasted; and the gates that a gang passes
//! before any node is bought.

use super::catalog::{self, Metric};
use crate::api::NodeClaim;
use crate::api::amount::{MICROS_OF_A_CENT, Price};
use crate::gang::release::orphan::OrphanReason;
use crate::names;
use crate::plan::gates::{Gate, GateResult};
use jiff::Timestamp;
use metrics::{Label, counter, gauge, histogram};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A NodeClaim was created.
pub fn claim_created(node_pool: &str, capacity_type: &str) {
    let (node_pool, capacity_type) = (node_pool.to_owned(), capacity_type.to_owned());
    counter!(catalog::CREATED.name, "nodepool" => node_pool, "capacity_type" => capacity_type).increment(1);
}

/// A NodeClaim's node became ready this long after the claim's creation.
pub fn claim_ready(node_pool: &str, took: Duration) {
    provisioned(node_pool, "ready", took);
}

/// A NodeClaim was given up, not ready, this long after its creation.
pub fn claim_failed(node_pool: &str, after: Duration) {
    provisioned(node_pool, "failed", after);
}

fn provisioned(node_pool: &str, result: &'static str, took: Duration) {
    histogram!(catalog::PROVISIONED.name, "nodepool" => node_pool.to_owned(), "result" => result)
        .record(took.as_secs_f64());
}

/// The series of a gauge by the values of their labels. Earlier ones are kept, to become 0.
type Series<const LABELS: usize> = BTreeMap<[String; LABELS], f64>;

/// NodeClaims that exist now, by NodePool and state.
pub fn claims(counts: &BTreeMap<(String, &'static str), u32>) {
    static KNOWN: Mutex<Series<2>> = Mutex::new(Series::new());
    set_all(&catalog::CLAIMS, by_state(counts), &KNOWN);
}

/// Nodes that are held now, by NodePool and state.
pub fn held_nodes(counts: &BTreeMap<(String, &'static str), u32>) {
    static KNOWN: Mutex<Series<2>> = Mutex::new(Series::new());
    set_all(&catalog::HELD, by_state(counts), &KNOWN);
}

/// The current cost of nodes.
#[derive(Clone, Debug, Default)]
pub struct NodeCosts {
    /// Cost per hour, by NodePool, capacity type and state.
    pub per_hour: BTreeMap<[String; 3], Price>,
    /// Nodes without a known price, by NodePool and capacity type.
    pub without_price: BTreeMap<[String; 2], u32>,
}

/// Sets what nodes cost now.
pub fn node_costs(costs: &NodeCosts) {
    static COSTS: Mutex<Series<3>> = Mutex::new(Series::new());
    static UNPRICED: Mutex<Series<2>> = Mutex::new(Series::new());
    set_all(&catalog::COST, costs.per_hour.iter().map(|(key, cost)| (key.clone(), cost.units())), &COSTS);
    let unpriced = costs.without_price.iter().map(|(key, nodes)| (key.clone(), f64::from(*nodes)));
    set_all(&catalog::UNPRICED, unpriced, &UNPRICED);
}

fn by_state(counts: &BTreeMap<(String, &'static str), u32>) -> impl Iterator<Item = ([String; 2], f64)> {
    let series = |(pool, state): &(String, &'static str)| [pool.clone(), (*state).to_owned()];
    counts.iter().map(move |(key, count)| (series(key), f64::from(*count)))
}

/// Sets every series of a gauge. A series that is no longer counted becomes 0.
fn set_all<const LABELS: usize>(
    metric: &Metric,
    values: impl Iterator<Item = ([String; LABELS], f64)>,
    known: &Mutex<Series<LABELS>>,
) {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.values_mut().for_each(|value| *value = 0.0);
    known.extend(values);
    for (key, value) in &*known {
        let labels = metric.labels.iter().zip(key).map(|(name, value)| Label::new(*name, value.clone()));
        gauge!(metric.name, labels.collect::<Vec<Label>>()).set(*value);
    }
}

/// Some NodeClaim of ours had no provider ID for this many more seconds.
pub fn karpenter_stalled(seconds: u64) {
    counter!(catalog::STALL.name).increment(seconds);
}

/// A node of a rolled-back attempt had lived for this many seconds. The reason is from a closed set.
pub fn wasted(reason: &str, seconds: u64) {
    counter!(catalog::WASTED.name, "reason" => reason.to_owned()).increment(seconds);
}

/// A node of a rolled-back attempt had cost this much; `cost` is its price per hour times the seconds it lived. Only whole cents
/// are counted; the rest counts with the next node. By NodePool, capacity type and reason, which is from a closed set.
pub fn wasted_cost(of: [&str; 3], cost: Price) {
    static LEFT: Mutex<BTreeMap<[String; 3], u64>> = Mutex::new(BTreeMap::new());
    let of = of.map(str::to_owned);
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let left = left.entry(of.clone()).or_default();
    let all = left.saturating_add(cost.micros / 3_600);
    *left = all % MICROS_OF_A_CENT;
    let labels = catalog::WASTED_COST.labels.iter().zip(of).map(|(name, value)| Label::new(*name, value));
    counter!(catalog::WASTED_COST.name, labels.collect::<Vec<Label>>()).increment(all / MICROS_OF_A_CENT);
}

/// Why a node is no longer kept for a next gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WarmResult {
    /// A gang took it over.
    Reused,
    /// Its time was over.
    Unused,
}

/// Counts a node that is no longer kept.
pub fn kept_warm(claim: &NodeClaim, result: WarmResult, now: Timestamp) {
    let result = match result {
        WarmResult::Reused => "reused",
        WarmResult::Unused => "unused",
    };
    let since: Option<Timestamp> = claim.annotation(names::WARM_SINCE).parse().ok();
    let kept = since.map_or(0, |since| now.duration_since(since).as_secs());
    counter!(catalog::KEPT_WARM.name, "nodepool" => claim.label(names::NODEPOOL).to_owned(), "result" => result)
        .increment(u64::try_from(kept).unwrap_or_default());
}

/// Starts the counters at 0: a counter that first appears after its first sweeps hides them from queries for its
/// increase.
pub(super) fn none_swept() {
    for reason in OrphanReason::ALL {
        counter!(catalog::SWEPT.name, "reason" => reason.name()).increment(0);
    }
}

/// A NodeClaim that is no longer wanted was deleted.
pub fn swept(reason: OrphanReason) {
    counter!(catalog::SWEPT.name, "reason" => reason.name()).increment(1);
}

/// A gate answered about the limits of a NodePool or the quota of a ClusterQueue. Other gates are not counted.
pub fn gate(gate: Gate, subject: &str, result: GateResult) {
    let (subject, result) = (subject.to_owned(), result.name());
    match gate {
        Gate::Capacity => {
            counter!(catalog::CAPACITY.name, "nodepool" => subject, "result" => result).increment(1);
        }
        Gate::Quota => counter!(catalog::QUOTA.name, "queue" => subject, "result" => result).increment(1),
        Gate::Placement | Gate::Readiness | Gate::Reservations | Gate::Size | Gate::Budget | Gate::Guards => {
        }
    }
}
