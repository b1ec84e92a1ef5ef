//! Metrics: what is counted and measured, through one typed function for each.
//!
//! [`catalog`] lists every metric once, with its type, labels, buckets and meaning. The functions of the other files
//! record them. Rule: label values come from closed sets and from the names of NodePools and ClusterQueues, never from
//! tenants.

pub mod catalog;
mod gangs;
mod nodes;
mod replica;

pub use gangs::{
    Counted, attempt_retried, gangs, gangs_with_unbound_pods, transition, verdict, verdict_delay,
};
pub use nodes::{
    NodeCosts, WarmResult, claim_created, claim_failed, claim_ready, claims, gate, held_nodes,
    karpenter_stalled, kept_warm, node_costs, swept, wasted, wasted_cost,
};
pub use replica::{
    Reload, Unpublished, Unsent, api_request, build_info, event_unpublished, karpenter_page, leader,
    policy_reload, reconciled, spans_unsent, watch_error,
};

use catalog::MetricKind;
use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

/// A recorder with the buckets of the catalog.
pub fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in catalog::ALL {
        if let MetricKind::Histogram(buckets) = metric.kind {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
        }
    }
    Ok(builder.build_recorder())
}

/// Installs the recorder, describes every metric, and sets the metrics that must exist from the start. Called once.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let recorder = recorder()?;
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder)?;
    describe();
    build_info();
    spans_unsent(Unsent::Export, 0);
    spans_unsent(Unsent::Queue, 0);
    spans_unsent(Unsent::Setting, 0);
    nodes::none_swept();
    Ok(handle)
}

/// Registers the description of every metric with the current recorder.
pub fn describe() {
    for metric in catalog::ALL {
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, metric.help),
            MetricKind::Gauge => describe_gauge!(metric.name, metric.help),
            MetricKind::Histogram(_) => describe_histogram!(metric.name, metric.help),
        }
    }
}
