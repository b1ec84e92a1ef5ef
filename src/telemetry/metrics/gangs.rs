//! Metrics of gangs: their transitions, retries and verdicts.

use super::catalog;
use crate::gang::StateName;
use metrics::{counter, gauge, histogram};
use std::collections::BTreeMap;
use std::time::Duration;

/// Retries up to this one are counted by number; further ones count as `more`.
const MAX_NUMBERED: u32 = 10;

/// A transition as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// State left.
    pub from: StateName,
    /// State entered.
    pub to: StateName,
    /// Why; from a closed set.
    pub reason: &'a str,
    /// Time spent in the state left.
    pub stayed: Duration,
}

/// A gang went from one state to another.
pub fn transition(step: Counted<'_>) {
    let Counted { from, to, reason, stayed } = step;
    counter!(catalog::TRANSITIONS.name, "from" => from.to_string(), "to" => to.to_string(), "reason" => reason.to_owned())
        .increment(1);
    histogram!(catalog::STATE_TIME.name, "state" => from.to_string()).record(stayed.as_secs_f64());
    let attempt = match (from, to) {
        (StateName::WaitingReady, StateName::Approved) => Some("success"),
        (StateName::Provisioning | StateName::WaitingReady, StateName::RollingBack) => Some("rollback"),
        _ => None,
    };
    if let Some(result) = attempt {
        counter!(catalog::ATTEMPTS.name, "result" => result).increment(1);
    }
    let processed = match to {
        // A gang with replaced nodes stays where it is.
        _ if from == to => None,
        StateName::Approved => Some("approved"),
        StateName::Rejected => Some("rejected"),
        StateName::Yielded => Some("yielded"),
        _ => None,
    };
    if let Some(result) = processed {
        counter!(catalog::PROCESSED.name, "result" => result).increment(1);
    }
}

/// A gang will try again, for the n-th time, by this operation: `in_check`, `tier` or `yield`.
pub fn attempt_retried(operation: &'static str, nth: u32) {
    let attempt = if nth > MAX_NUMBERED { "more".to_owned() } else { nth.to_string() };
    counter!(catalog::RETRIES.name, "operation" => operation, "attempt" => attempt).increment(1);
}

/// Ready was committed this long after the last node was seen ready.
pub fn verdict_delay(delay: Duration) {
    histogram!(catalog::VERDICT_DELAY.name).record(delay.as_secs_f64());
}

/// A verdict was committed this long after quota was reserved.
pub fn verdict(result: &'static str, since_reserved: Duration) {
    histogram!(catalog::LATENCY.name, "result" => result).record(since_reserved.as_secs_f64());
}

/// How many gangs are in each state now, and how long the oldest of them has been there.
pub fn gangs(by_state: &BTreeMap<StateName, (usize, Duration)>) {
    for state in StateName::ALL {
        let (count, oldest) = by_state.get(&state).copied().unwrap_or_default();
        let count = f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        gauge!(catalog::GANGS.name, "state" => state.to_string()).set(count);
        gauge!(catalog::OLDEST.name, "state" => state.to_string()).set(oldest.as_secs_f64());
    }
}

/// How many gangs have pods that are not bound to a node although they may run.
pub fn gangs_with_unbound_pods(gangs: usize) {
    gauge!(catalog::UNBOUND.name).set(f64::from(u32::try_from(gangs).unwrap_or(u32::MAX)));
}
