//! Every metric: its name, its meaning, its buckets and one typed function that records it.
//!
//! Rule: label values come from closed sets and from the names of NodePools; never from tenants.

use crate::gang::StateName;
use crate::plan::gates::Gate;
use http::Method;
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::BTreeMap;
use std::time::Duration;

const PROCESSED: &str = "setu_workloads_processed_total";
const CREATED: &str = "setu_nodeclaims_created_total";
const PROVISIONED: &str = "setu_nodeclaim_provisioning_duration_seconds";
const ATTEMPTS: &str = "setu_gang_provisioning_attempts_total";
const LATENCY: &str = "setu_admission_check_latency_seconds";
const CAPACITY: &str = "setu_capacity_validation_total";
const QUOTA: &str = "setu_quota_check_total";
const RETRIES: &str = "setu_retry_attempts_total";
const TRANSITIONS: &str = "setu_gang_transitions_total";
const STATE_TIME: &str = "setu_gang_state_duration_seconds";
const GANGS: &str = "setu_gangs";
const VERDICT_DELAY: &str = "setu_verdict_delay_seconds";
const REQUESTS: &str = "setu_api_requests_total";
const SWEPT: &str = "setu_orphans_swept_total";
const WATCH_ERRORS: &str = "setu_watch_errors_total";
const RELOADS: &str = "setu_policy_reloads_total";
const BUILD: &str = "setu_build_info";

/// Minutes: what clouds take.
const NODE_BUCKETS: [f64; 12] = [0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 90.0, 120.0, 300.0, 600.0, 900.0];
/// Milliseconds: what Setu itself takes.
const OWN_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Installs the recorder and describes every metric. Called once.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(VERDICT_DELAY.into()), &OWN_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &NODE_BUCKETS)?
        .install_recorder()?;
    describe_counter!(PROCESSED, Unit::Count, "Gangs whose attempt came to an end, by result");
    describe_counter!(CREATED, Unit::Count, "NodeClaims created, by NodePool and capacity type");
    describe_histogram!(PROVISIONED, Unit::Seconds, "Creation of a NodeClaim until its node is ready");
    describe_counter!(ATTEMPTS, Unit::Count, "Attempts to provision a gang, by result");
    describe_histogram!(LATENCY, Unit::Seconds, "Quota reservation until the verdict, by result");
    describe_counter!(CAPACITY, Unit::Count, "NodePool limits checked for a gang, by result");
    describe_counter!(QUOTA, Unit::Count, "Reserved quota checked for a gang, by result");
    describe_counter!(RETRIES, Unit::Count, "Attempts after the first, by level");
    describe_counter!(TRANSITIONS, Unit::Count, "Transitions of gangs, by reason");
    describe_histogram!(STATE_TIME, Unit::Seconds, "Time spent in a state");
    describe_gauge!(GANGS, Unit::Count, "Gangs by state");
    describe_histogram!(VERDICT_DELAY, Unit::Seconds, "Last node seen ready until the verdict is committed");
    describe_counter!(REQUESTS, Unit::Count, "Requests to the API server, by verb, resource and status code");
    describe_counter!(SWEPT, Unit::Count, "NodeClaims deleted because nobody wants them, by reason");
    describe_counter!(WATCH_ERRORS, Unit::Count, "Watches that broke or could not start, by kind");
    describe_counter!(RELOADS, Unit::Count, "New versions of the policy file, by what became of them");
    describe_gauge!(BUILD, Unit::Count, "The release that runs");
    gauge!(BUILD, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

/// A gang went from one state to another, after this long in the first.
pub fn transition(from: StateName, to: StateName, reason: String, stayed: Duration) {
    counter!(TRANSITIONS, "from" => from.to_string(), "to" => to.to_string(), "reason" => reason)
        .increment(1);
    histogram!(STATE_TIME, "state" => from.to_string()).record(stayed.as_secs_f64());
    let attempt = match (from, to) {
        (StateName::WaitingReady, StateName::Approved) => Some("success"),
        (StateName::Provisioning | StateName::WaitingReady, StateName::RollingBack) => Some("rollback"),
        _ => None,
    };
    if let Some(result) = attempt {
        counter!(ATTEMPTS, "result" => result).increment(1);
    }
    let retry = match to {
        StateName::BackingOff => Some("in_check"),
        StateName::Yielded => Some("yield"),
        _ => None,
    };
    if let Some(operation) = retry {
        counter!(RETRIES, "operation" => operation).increment(1);
    }
    let processed = match to {
        StateName::Approved => Some("approved"),
        StateName::Rejected => Some("rejected"),
        StateName::Yielded => Some("yielded"),
        _ => None,
    };
    if let Some(result) = processed {
        counter!(PROCESSED, "result" => result).increment(1);
    }
}

/// A gate said something about a NodePool or a ClusterQueue. The others are not counted.
pub fn gate(gate: Gate, subject: &str, result: &'static str) {
    match gate {
        Gate::Capacity => {
            counter!(CAPACITY, "nodepool" => subject.to_owned(), "result" => result).increment(1);
        }
        Gate::Quota => counter!(QUOTA, "queue" => subject.to_owned(), "result" => result).increment(1),
        Gate::Placement | Gate::Size | Gate::Budget | Gate::Guards => {}
    }
}

/// A NodeClaim was created.
pub fn claim_created(node_pool: &str, capacity_type: &str) {
    counter!(CREATED, "nodepool" => node_pool.to_owned(), "capacity_type" => capacity_type.to_owned())
        .increment(1);
}

/// A NodeClaim's node became ready this long after the claim's creation.
pub fn claim_ready(node_pool: &str, took: Duration) {
    histogram!(PROVISIONED, "nodepool" => node_pool.to_owned(), "result" => "ready")
        .record(took.as_secs_f64());
}

/// Ready was committed this long after the last node was seen ready.
pub fn verdict_delay(delay: Duration) {
    histogram!(VERDICT_DELAY).record(delay.as_secs_f64());
}

/// A verdict was committed this long after quota was reserved.
pub fn verdict(result: &'static str, since_reserved: Duration) {
    histogram!(LATENCY, "result" => result).record(since_reserved.as_secs_f64());
}

/// The API server was asked; `None` when it gave no answer.
pub fn api_request(method: &Method, resource: &'static str, code: Option<u16>) {
    let verb = method.as_str().to_ascii_lowercase();
    let code = code.map_or_else(|| "none".to_owned(), |c| c.to_string());
    counter!(REQUESTS, "verb" => verb, "resource" => resource, "code" => code).increment(1);
}

/// A NodeClaim that nobody wants was deleted.
pub fn swept(reason: &'static str) {
    counter!(SWEPT, "reason" => reason).increment(1);
}

/// What became of a new version of the policy file.
#[derive(Clone, Copy, Debug)]
pub enum Reload {
    /// It holds.
    Applied,
    /// It is no valid policy; the last good one holds.
    Invalid,
    /// It could not be read; the last good one holds.
    Unreadable,
}

/// The policy file changed.
pub fn policy_reloaded(reload: Reload) {
    let result = match reload {
        Reload::Applied => "applied",
        Reload::Invalid => "invalid",
        Reload::Unreadable => "unreadable",
    };
    counter!(RELOADS, "result" => result).increment(1);
}

/// A watch broke.
pub fn watch_error(kind: &'static str) {
    counter!(WATCH_ERRORS, "kind" => kind).increment(1);
}

/// How many gangs are in each state now.
pub fn gangs(by_state: &BTreeMap<StateName, usize>) {
    for state in StateName::ALL {
        let count = by_state.get(&state).copied().unwrap_or_default();
        gauge!(GANGS, "state" => state.to_string()).set(f64::from(u32::try_from(count).unwrap_or(u32::MAX)));
    }
}
