//! The result of a gang's reconcile, for its Workload's.

use crate::api::workload::CheckState;
use crate::gang::Failure;
use crate::gang::workload::queueing::Queueing;
use crate::gang::workload::request::Details;
use jiff::Timestamp;
use std::time::Duration;

/// The result of reconciling a gang.
pub struct Reconciled {
    /// The entry to write, if it differs.
    pub entry: Option<CheckState>,
    /// Whether that entry only reports progress.
    pub progress: bool,
    /// Details of its nodes, and why its last attempt failed, for a ProvisioningRequest.
    pub in_request: InRequest,
    /// Whether Kueue may queue the Workload, judged by this gang alone.
    pub queueing: Queueing,
    /// Whether the gang may run on nodes of its own.
    pub has_nodes: bool,
    /// Whether it has claims, or may still get some.
    pub holds: bool,
    /// When to reconcile again if no change is seen.
    pub net: Duration,
    /// When time alone may change something.
    pub wake: Option<Timestamp>,
}

impl Reconciled {
    /// The result for a gang whose journal is refused: this entry is written, and its Workload's reconcile fails.
    pub fn refused(entry: CheckState) -> Self {
        Self {
            entry: Some(entry),
            progress: false,
            in_request: InRequest::default(),
            queueing: Queueing::Allowed,
            has_nodes: false,
            holds: true,
            net: Duration::ZERO,
            wake: None,
        }
    }
}

/// The report about a gang in its ProvisioningRequest, besides the state of the check.
#[derive(Debug, Default)]
pub struct InRequest {
    /// Its nodes.
    pub details: Details,
    /// Why the last attempt failed.
    pub failure: Option<Failure>,
}

/// A gang that a newer release manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAlone;
