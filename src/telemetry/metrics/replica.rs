//! Metrics of a replica itself: its requests to the API server, whether it leads, and what it could not report.

use super::catalog;
use http::Method;
use metrics::{counter, gauge, histogram};
use std::time::Duration;

/// The result of reading the policy file again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// It is in force from now on.
    Applied,
    /// It is broken; the previous one stays in force.
    Refused,
}

/// Why spans did not reach the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The queue was full.
    Queue,
    /// The collector did not take them.
    Export,
    /// The environment's settings for the export cannot be used.
    Setting,
}

/// Why an Event was not published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpublished {
    /// Too many for one Workload, or too many in the queue.
    Limited,
    /// The API server did not take it.
    Failed,
}

/// A request was made to the API server; `code` is `None` if it got no answer.
pub fn api_request(method: &Method, resource: &'static str, code: Option<u16>) {
    let verb = method.as_str().to_ascii_lowercase();
    let code = code.map_or_else(|| "none".to_owned(), |c| c.to_string());
    counter!(catalog::REQUESTS.name, "verb" => verb, "resource" => resource, "code" => code).increment(1);
}

/// A reconcile of this controller took this long.
pub fn reconciled(controller: &'static str, succeeded: bool, took: Duration) {
    let labels = [("controller", controller), ("result", if succeeded { "success" } else { "error" })];
    histogram!(catalog::RECONCILES.name, &labels).record(took.as_secs_f64());
}

/// A watch broke.
pub fn watch_error(kind: &'static str) {
    counter!(catalog::WATCH_ERRORS.name, "kind" => kind).increment(1);
}

/// The policy file was read again.
pub fn policy_reload(result: Reload) {
    let (label, good) = match result {
        Reload::Applied => ("applied", 1.0),
        Reload::Refused => ("refused", 0.0),
    };
    counter!(catalog::RELOADS.name, "result" => label).increment(1);
    gauge!(catalog::POLICY_GOOD.name).set(good);
}

/// Karpenter's own metrics page was read, or could not be.
pub fn karpenter_page(read: bool) {
    let result = if read { "read" } else { "failed" };
    counter!(catalog::KARPENTER_PAGES.name, "result" => result).increment(1);
}

/// Whether this replica leads; with several shards, for one of them.
pub fn leader(shard: Option<usize>, leads: bool) {
    let labels = shard.map(|shard| ("shard", shard.to_string()));
    gauge!(catalog::LEADER.name, labels.as_slice()).set(f64::from(u8::from(leads)));
}

/// Sets the version of this release.
pub fn build_info() {
    gauge!(catalog::BUILD.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

/// This many more spans did not reach the collector.
pub fn spans_unsent(reason: Unsent, count: u64) {
    let reason = match reason {
        Unsent::Queue => "queue_full",
        Unsent::Export => "export_failed",
        Unsent::Setting => "bad_setting",
    };
    counter!(catalog::SPANS_UNSENT.name, "reason" => reason).increment(count);
}

/// An Event was not published.
pub fn event_unpublished(reason: Unpublished) {
    let reason = match reason {
        Unpublished::Limited => "limited",
        Unpublished::Failed => "failed",
    };
    counter!(catalog::EVENTS_UNPUBLISHED.name, "reason" => reason).increment(1);
}
