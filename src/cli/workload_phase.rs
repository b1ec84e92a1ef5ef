//! How far Kueue has got with a Workload.

use crate::api::{Workload, condition};
use crate::gang::workload::request::{has_ended, is_unowned};
use serde::Serialize;

/// How far Kueue has got with a Workload.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadPhase {
    /// It is a ProvisioningRequest without a Workload.
    Unowned,
    /// It is a ProvisioningRequest that has ended, and its Workload is gone.
    Ended,
    /// No quota is reserved.
    Queued,
    /// Quota is reserved, but not every check is Ready.
    Reserved,
    /// It is admitted.
    Admitted,
    /// It is being evicted.
    Evicted,
    /// `spec.active` is false.
    Deactivated,
    /// All its pods have finished.
    Finished,
}

impl WorkloadPhase {
    /// Reads it from the Workload's conditions.
    pub fn of(workload: &Workload) -> Self {
        if is_unowned(workload) {
            if has_ended(workload.conditions()) { Self::Ended } else { Self::Unowned }
        } else if workload.is_finished() {
            Self::Finished
        } else if workload.spec.active == Some(false) {
            Self::Deactivated
        } else if workload.is_evicted() && workload.has_quota() {
            Self::Evicted
        } else if workload.is_admitted() {
            Self::Admitted
        } else if workload.has_quota() {
            Self::Reserved
        } else {
            Self::Queued
        }
    }

    /// Kueue's own message about why it holds the Workload back.
    pub fn in_kueues_words(self, workload: &Workload) -> Option<String> {
        let words = |kind: &str| {
            let found = condition::find(workload.conditions(), kind)?;
            let text = if found.message.is_empty() { &found.reason } else { &found.message };
            Some(text.trim_end_matches('.').to_owned()).filter(|t| !t.is_empty())
        };
        match self {
            Self::Queued => words("QuotaReserved").or_else(|| words("Evicted")),
            Self::Evicted | Self::Deactivated => words("Evicted"),
            Self::Finished => words("Finished"),
            Self::Reserved | Self::Admitted | Self::Unowned | Self::Ended => None,
        }
    }
}
