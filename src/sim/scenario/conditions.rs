//! The expectations of a scenario, as its file states them.
//!
//! Rule: what would be true of anything is an error, so that no step checks nothing.

use crate::api::workload::Verdict;
use crate::gang::{FailureClass, StateName};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// An object by kind and name, in the scenario's namespace if its kind has one.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectName {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Conditions that must all be true.
#[derive(Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// Seconds until it must be true, or for which it must hold.
    #[serde(default = "two_minutes")]
    pub within: u64,
    /// The Job or pod group that the following fields are about.
    pub job: Option<String>,
    /// State of its gang.
    pub state: Option<StateName>,
    /// Verdict of its check.
    pub verdict: Option<Verdict>,
    /// Text contained in the check's message.
    pub message: Option<String>,
    /// Class of the last failure.
    pub failure: Option<FailureClass>,
    /// States that its gang has been in, in this order; other states may lie between.
    pub went_through: Option<Vec<StateName>>,
    /// Whether it holds quota.
    pub reserved: Option<bool>,
    /// Whether it is admitted.
    pub admitted: Option<bool>,
    /// Whether it has finished.
    pub finished: Option<bool>,
    /// Number of running pods.
    pub running: Option<usize>,
    /// Number of running pods, each on a node of this gang, one pod per node. Nodes of NodeClaims that are being
    /// deleted do not count.
    pub running_on_own_nodes: Option<usize>,
    /// Number of NodeClaims of this gang.
    pub claims: Option<usize>,
    /// The gang's current or last attempt.
    pub attempt: Option<u32>,
    /// Number of NodeClaims of this gang by capacity type.
    pub capacity_types: Option<BTreeMap<String, usize>>,
    /// Number of NodeClaims of this gang whose machine has a GPU.
    pub gpu_nodes: Option<usize>,
    /// Annotations that every NodeClaim of this gang has; null for those that it must not have.
    pub annotations: Option<BTreeMap<String, Option<String>>>,
    /// Label key for which every NodeClaim of this gang requires the same single value, which every Node has.
    pub together: Option<String>,
    /// Number of foreign pods that run on the nodes of this gang.
    pub foreign_pods: Option<usize>,
    /// Reason of an Event on its Workload.
    pub event: Option<String>,
    /// Number of NodeClaims in the whole scenario.
    pub all_claims: Option<usize>,
    /// Number of Nodes of the scenario's NodePools, of any gang.
    pub nodes: Option<usize>,
    /// An object that must not exist.
    pub gone: Option<ObjectName>,
    /// Status and reason of the check's Active condition.
    pub active: Option<String>,
}

fn two_minutes() -> u64 {
    120
}

/// Reads what must become true.
pub(super) fn until<'de, D: Deserializer<'de>>(written: D) -> Result<Expect, D::Error> {
    let expect = Expect::deserialize(written)?;
    let wrong = match (&expect.job, subjects(&expect)) {
        (None, (true, _)) => "it says something about a job, and not about which one",
        (None, (false, false)) => "it expects nothing",
        _ => return Ok(expect),
    };
    Err(D::Error::custom(wrong))
}

/// Reads what must hold for a while.
pub(super) fn holds<'de, D: Deserializer<'de>>(written: D) -> Result<Expect, D::Error> {
    let expect = until(written)?;
    if expect.within == 0 {
        return Err(D::Error::custom("anything holds for 0 seconds"));
    }
    Ok(expect)
}

/// Whether fields about the Job are set, and whether others are.
fn subjects(expect: &Expect) -> (bool, bool) {
    // Without `..`, so that a new field must be added here.
    let Expect {
        within: _,
        job: _,
        state,
        verdict,
        message,
        failure,
        went_through,
        reserved,
        admitted,
        finished,
        running,
        running_on_own_nodes,
        claims,
        attempt,
        capacity_types,
        gpu_nodes,
        annotations,
        together,
        foreign_pods,
        event,
        all_claims,
        nodes,
        gone,
        active,
    } = expect;
    let texts = [message, together, event].map(Option::is_some);
    let flags = [reserved, admitted, finished].map(Option::is_some);
    let counts = [running, running_on_own_nodes, claims, gpu_nodes, foreign_pods].map(Option::is_some);
    let of_job = [state.is_some(), verdict.is_some(), failure.is_some(), went_through.is_some()];
    let more = [attempt.is_some(), capacity_types.is_some(), annotations.is_some()];
    let of_all = [all_claims.is_some(), nodes.is_some(), gone.is_some(), active.is_some()];
    let of_job = [&texts[..], &flags, &counts, &of_job, &more].concat();
    (of_job.contains(&true), of_all.contains(&true))
}
