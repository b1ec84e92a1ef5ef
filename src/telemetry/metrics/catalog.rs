//! The list of all metrics: name, type, labels, buckets and meaning.
//!
//! `docs/metrics.md` is generated from this list, and a test compares it with what is really recorded.

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricKind,
    /// Labels, in the order of the documentation.
    pub labels: &'static [&'static str],
    /// Its help text.
    pub help: &'static str,
}

/// Type of a metric, as in Prometheus.
#[derive(Clone, Copy, Debug)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// The current value.
    Gauge,
    /// Durations in seconds, sorted into these buckets.
    Histogram(&'static [f64]),
}

/// Up to minutes: how long clouds take.
const NODES: &[f64] = &[1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0];
/// Milliseconds: how long Setu itself takes.
const OWN: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// From milliseconds to hours: a gang may leave a state at once, or stay for as long as a job runs.
const STATES: &[f64] =
    &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3_600.0, 14_400.0];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: MetricKind::Gauge, labels, help }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    buckets: &'static [f64],
    help: &'static str,
) -> Metric {
    Metric { name, kind: MetricKind::Histogram(buckets), labels, help }
}

macro_rules! catalog {
    ($($id:ident = $metric:expr;)*) => {
        $(pub(super) const $id: Metric = $metric;)*
        /// Every metric, by subject.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

catalog! {
    PROCESSED = counter("setu_workloads_processed_total", &["result"],
        "Gangs with a verdict: approved, yielded or rejected");
    ATTEMPTS = counter("setu_gang_provisioning_attempts_total", &["result"],
        "Attempts to provision a gang that ended: success or rollback");
    RETRIES = counter("setu_retry_attempts_total", &["operation", "attempt"],
        "Retries, by kind (in_check, tier, yield) and ordinal");
    TRANSITIONS = counter("setu_gang_transitions_total", &["from", "to", "reason"],
        "Transitions of gangs from state to state");
    STATE_TIME = histogram("setu_gang_state_duration_seconds", &["state"], STATES,
        "Time that gangs spent in a state they have left");
    GANGS = gauge("setu_gangs", &["state"], "Gangs by state");
    OLDEST = gauge("setu_oldest_gang_seconds", &["state"],
        "Longest time any gang has been in a state, excluding those waiting for another check or an administrator; 0 if none");
    UNBOUND = gauge("setu_gangs_with_unbound_pods", &[],
        "Gangs that run while some of their pods have not been bound to a node for two minutes");
    LATENCY = histogram("setu_admission_check_latency_seconds", &["result"], NODES,
        "Time from quota reservation to the committed verdict");
    VERDICT_DELAY = histogram("setu_verdict_delay_seconds", &[], OWN,
        "Time from the last node seen ready to the committed Ready");
    CREATED = counter("setu_nodeclaims_created_total", &["nodepool", "capacity_type"],
        "NodeClaims created");
    PROVISIONED = histogram("setu_nodeclaim_provisioning_duration_seconds", &["nodepool", "result"], NODES,
        "Time from creating a NodeClaim until its node was ready or its attempt was given up");
    CLAIMS = gauge("setu_active_nodeclaims", &["nodepool", "state"],
        "NodeClaims of Setu, by phase; stuck are those that have been deleting, or could not be deleted, for ten minutes");
    HELD = gauge("setu_held_nodes", &["nodepool", "state"],
        "Nodes by what they are held for: gathering (the rest of the gang), idle (the gang is ready), used, leaving, warm (a next gang), stray (no NodeClaim), unknown");
    COST = gauge("setu_node_cost_per_hour", &["nodepool", "capacity_type", "state"],
        "What launched nodes with a known price cost an hour, at most, by what they are held for, as in setu_held_nodes");
    UNPRICED = gauge("setu_nodes_without_price", &["nodepool", "capacity_type"],
        "Launched nodes without a known price, which setu_node_cost_per_hour leaves out");
    STALL = counter("setu_karpenter_stall_seconds_total", &[],
        "Seconds in which some NodeClaim of Setu had no provider ID; Karpenter's own provisioning stands still then");
    WASTED = counter("setu_wasted_node_seconds_total", &["reason"],
        "Seconds that launched nodes lived in attempts that were taken back before a pod could run");
    WASTED_COST = counter("setu_wasted_cost_cents_total", &["nodepool", "capacity_type", "reason"],
        "What the seconds of setu_wasted_node_seconds_total cost at most, in hundredths of the currency, of nodes with a known price");
    KEPT_WARM = counter("setu_warm_node_seconds_total", &["nodepool", "result"],
        "Seconds that nodes were kept for a next gang, until one took them over (reused) or they left unused (unused)");
    SWEPT = counter("setu_orphans_swept_total", &["reason"],
        "NodeClaims, and Nodes without one, that were deleted because nothing needs them. Their Workload is gone, their hold ran out, their gang is over, or their elastic Job has neither quota nor pods. Or their AdmissionCheck is gone, or no gang took over warm nodes in time");
    CAPACITY = counter("setu_capacity_validation_total", &["nodepool", "result"],
        "Comparisons of a gang's demand with the limits of a NodePool");
    QUOTA = counter("setu_quota_check_total", &["queue", "result"],
        "Comparisons of a gang's demand with the quota of its ClusterQueue");
    REQUESTS = counter("setu_api_requests_total", &["verb", "resource", "code"],
        "Requests to the API server");
    RECONCILES = histogram("setu_reconcile_duration_seconds", &["controller", "result"], OWN,
        "How long a reconcile of a Workload, NodeClaim, AdmissionCheck or ProvisioningParameters took, its waits for the API server included");
    WATCH_ERRORS = counter("setu_watch_errors_total", &["kind"],
        "Watches that broke or could not start");
    RELOADS = counter("setu_policy_reloads_total", &["result"],
        "Times the policy file was read again: applied or refused");
    POLICY_GOOD = gauge("setu_policy_last_reload_successful", &[],
        "Whether the policy file could be used when it was last read again: 1 or 0");
    KARPENTER_PAGES = counter("setu_karpenter_metrics_reads_total", &["result"],
        "Times Karpenter's own metrics page was read (`--karpenter-metrics`): read or failed");
    LEADER = gauge("setu_leader", &["shard"],
        "1 on the replica that acts, 0 on the others; by shard where there are several (`--shards`)");
    SPANS_UNSENT = counter("setu_trace_export_failures_total", &["reason"],
        "Spans that did not reach the collector: the queue was full, the export failed, or its settings cannot be used");
    EVENTS_UNPUBLISHED = counter("setu_events_unpublished_total", &["reason"],
        "Kubernetes Events that were not published: too many at once, or the API server did not take them");
    BUILD = gauge("setu_build_info", &["version"], "The release that runs");
}
