//! Kueue's current reservation of a Workload, and the identity of its admission.
//!
//! Kueue's API has no attempt id, and an eviction may come and go unseen within a second. So an admission is identified by
//! everything that changes with it.

use crate::api::Workload;
use crate::api::workload::Verdict;
use crate::digest::digest;
use crate::listed::listed;
use crate::names;
use crate::planted::planted;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identity of one admission: `<reservation time>-<evictions>-<hash of what was admitted>`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(transparent)]
pub struct AdmissionId(pub String);

impl AdmissionId {
    /// The admission of a Workload whose quota is reserved, as `check` sees it.
    pub fn of(workload: &Workload, check: &str) -> Self {
        let reserved = workload.reserved_since().map_or(0, jiff::Timestamp::as_second);
        let mut admitted = workload.admission().cloned();
        for set in admitted.iter_mut().flat_map(|admission| &mut admission.pod_set_assignments) {
            set.delayed_topology_request.clear();
            set.topology_assignment = None;
        }
        let admitted = serde_json::to_string(&admitted).unwrap_or_default();
        let uid = workload.metadata.uid.as_deref().unwrap_or_default();
        if planted!(AdmissionIdIgnored) {
            return Self("0-0-same".to_owned());
        }
        Self(format!("{reserved}-{}-{}", workload.evictions(), digest(&[uid, check, &admitted], 10)))
    }

    /// Whether both admit the same counts under the same flavors.
    pub fn same_assignment(&self, other: &Self) -> bool {
        self.parts().1 == other.parts().1
    }

    /// Whether both belong to one reservation, whatever it admits.
    pub fn same_reservation(&self, other: &Self) -> bool {
        self.parts().0 == other.parts().0
    }

    /// The reservation, and a hash of what it admits.
    fn parts(&self) -> (&str, &str) {
        self.0.rsplit_once('-').unwrap_or(("", &self.0))
    }
}

/// Whether the nodes of a gang match what Kueue assigned it.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AssignmentMatch {
    /// They match.
    #[default]
    Same,
    /// Kueue changed what the reservation admits, and the pods keep running.
    Changed,
    /// Kueue admitted another reservation on a Ready that did not apply to it.
    Stale,
}

impl AssignmentMatch {
    /// Whether they match.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
    pub fn is_same(&self) -> bool {
        *self == Self::Same
    }
}

impl fmt::Display for AdmissionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

listed! {
    /// Why a reservation ended. The names appear in the journal's history.
    #[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Ending {
        /// All pods are done.
        Finished,
        /// Another slice of its elastic Job replaced it, and its pods keep running.
        Replaced,
        /// Kueue evicted it.
        Evicted,
        /// `spec.active` is false.
        Deactivated,
        /// Quota was lost without an eviction.
        QuotaLost,
        /// Our check is no longer on the Workload.
        CheckRemoved,
        /// The Workload is being deleted.
        Deleted,
        /// Another reservation replaced it.
        Superseded,
    }
}

/// The reservation in one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Quota is reserved and nothing prevents running.
    Held {
        /// Which admission it is.
        admission: AdmissionId,
        /// Its phase in Kueue.
        phase: AdmissionPhase,
    },
    /// Quota is still reserved, but Kueue is taking the Workload down; pods may still run.
    Leaving(Ending),
    /// No quota is reserved and no pod runs.
    Gone(Ending),
}

/// The phase of a reservation in Kueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionPhase {
    /// Reserved, not admitted.
    Reserved,
    /// Admitted on our Ready.
    Admitted,
    /// Admitted while our check was Pending: the check was added when the pods were already running.
    Running,
    /// Admitted, and an eviction would delete pods that nothing recreates, or pods of another slice.
    AdmittedPods,
}

impl AdmissionPhase {
    /// Whether our Ready let the pods start.
    pub const fn lets_pods_start(self) -> bool {
        matches!(self, Self::Admitted | Self::AdmittedPods)
    }
}

impl Reservation {
    /// Whether Kueue reserves no quota because a check still has this verdict after its eviction.
    pub fn retry_blocks_requeue(&self, reported: Verdict) -> bool {
        reported == Verdict::Retry && *self == Self::Gone(Ending::Evicted)
    }

    /// Reads the reservation of `workload`, as `check` sees it.
    pub fn of(workload: &Workload, check: &str) -> Self {
        if workload.is_replaced() {
            // A slice that never ran has nothing to hand over.
            let ran = workload.is_admitted();
            return if ran { Self::Leaving(Ending::Replaced) } else { Self::Gone(Ending::Replaced) };
        }
        // Finished comes first: a finished Workload keeps its admission and QuotaReserved=True.
        if workload.is_finished() {
            return Self::Gone(Ending::Finished);
        }
        let reserved = workload.has_quota() && workload.admission().is_some();
        let stopped = !workload.metadata.finalizers.iter().flatten().any(|f| f == names::KUEUE_FINALIZER);
        let ending = if workload.metadata.deletion_timestamp.is_some() {
            if stopped {
                // Only another finalizer, such as ours, keeps it.
                return Self::Gone(Ending::Deleted);
            }
            Some(Ending::Deleted)
        } else if workload.spec.active == Some(false) {
            Some(Ending::Deactivated)
        } else if workload.is_evicted() {
            Some(Ending::Evicted)
        } else {
            None
        };
        match (reserved, ending) {
            (false, ending) => Self::Gone(ending.unwrap_or(Ending::QuotaLost)),
            (true, Some(ending)) => Self::Leaving(ending),
            (true, None) => match workload.check(check) {
                // Removed, or not listed yet. Kueue starts no pod on the nodes of a check that the Workload does not have.
                None if !workload.is_admitted() => Self::Gone(Ending::CheckRemoved),
                None => Self::Leaving(Ending::CheckRemoved),
                Some(entry) => Self::Held {
                    admission: AdmissionId::of(workload, check),
                    phase: phase(workload, entry.state),
                },
            },
        }
    }
}

fn phase(workload: &Workload, reported: Verdict) -> AdmissionPhase {
    let slice = workload.replaces().is_some();
    let keeps_pods = workload.is_plain_pods() || slice;
    match (workload.is_admitted(), keeps_pods) {
        (true, _) if reported == Verdict::Pending && !slice => AdmissionPhase::Running,
        (true, true) => AdmissionPhase::AdmittedPods,
        (true, false) => AdmissionPhase::Admitted,
        (false, _) => AdmissionPhase::Reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn what_kueue_writes_later_and_what_setu_reads_newly_changes_no_admission() {
        let id = |more: &Value| {
            let mut set = json!({"name": "main", "flavors": {"cpu": "gpu"}, "count": 2});
            set.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let workload = json!({
                "metadata": {"name": "w", "uid": "u"}, "spec": {},
                "status": {"admission": {"clusterQueue": "q", "podSetAssignments": [set]}},
            });
            AdmissionId::of(&serde_json::from_value(workload).unwrap(), "prov").0
        };
        let known = "0-0-bjq01uagr9";
        assert_eq!(id(&json!({})), known, "earlier releases wrote it in their journals");
        let placed = json!({"levels": ["rack"], "slices": []});
        assert_eq!(id(&json!({"delayedTopologyRequest": "Ready", "topologyAssignment": placed})), known);
        assert_eq!(id(&json!({"topologyAssignment": placed})), known);
        assert_ne!(id(&json!({"count": 1})), known);
    }
}
