//! Setu's reports about itself: logs, metrics and traces.
//!
//! Rule: nothing here can fail an action; a broken exporter changes nothing else.

pub mod logs;
pub mod metrics;
pub mod traces;

/// How a replica reports about itself.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// A unique name of this replica's process.
    pub instance: String,
    /// Where its gangs' spans go.
    pub traces: traces::Traces,
    /// Whether a gang's Events are published on its Job too, not only on its Workload.
    pub events_on_job: bool,
}
