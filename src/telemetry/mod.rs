//! What Setu says about itself: logs, metrics and traces.
//!
//! Rule: nothing here can fail an action; a broken exporter changes nothing else.

pub mod logs;
pub mod metrics;
pub mod traces;

/// How a replica is heard of.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Name of this replica's process, unlike that of any other.
    pub instance: String,
    /// Where its gangs' spans go.
    pub traces: traces::Traces,
    /// Whether the steps of a gang are told on the Job too, not only on its Workload.
    pub events_on_job: bool,
}
