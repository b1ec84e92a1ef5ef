//! The identity of the gang being reconciled, and its context. Nothing here changes during a reconcile.

use crate::api::{FrontEnd, Workload};
use crate::controllers::Context;
use crate::effects::events::Moment;
use crate::gang::GangIdentity;
use crate::gang::identity::gang_label;
use crate::gang::report::notice::Notice;
use crate::gang::trace::Subject;
use crate::gang::workload::request::owner_ref;
use crate::plan::{OptionSelection, PlanRequest};
use crate::policy::Policy;
use jiff::Timestamp;
use kube::Client;
use kube::runtime::reflector::ObjectRef;

/// One gang, and what it is reconciled with.
pub(super) struct GangScope<'a> {
    pub context: &'a Context,
    /// Writes only while this replica leads the gang's shard.
    pub client: &'a Client,
    pub identity: GangIdentity,
    pub id: String,
    /// Value of the gang's label on its nodes.
    pub label: String,
    /// The gang's front-end.
    pub front_end: FrontEnd,
    /// The Workload that owns the ProvisioningRequest, where the gang is that of one.
    pub owner: Option<String>,
    our_checks: &'a [String],
    /// All checks of its Workload that Setu answers, itself or through ProvisioningRequests.
    answered_checks: Vec<String>,
    /// The context's count of changes when the reconcile began.
    pub changes: u64,
}

impl<'a> GangScope<'a> {
    pub(super) fn of(
        context: &'a Context,
        workload: &Workload,
        check: &str,
        our_checks: &'a [String],
    ) -> Self {
        let identity = GangIdentity::of(workload, check);
        Self {
            context,
            client: context.client_of(&identity.uid),
            id: identity.id(),
            label: gang_label(workload, check),
            front_end: workload.front_end(),
            owner: owner_ref(workload),
            our_checks,
            answered_checks: context.answered_checks(workload),
            changes: context.changes(),
            identity,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.context.now()
    }

    /// The plan request of this gang; any option may be chosen.
    pub(super) fn request<'r>(&'r self, workload: &'r Workload, policy: &'r Policy) -> PlanRequest<'r> {
        PlanRequest {
            workload,
            check: &self.identity.check,
            our_checks: self.our_checks,
            answered_checks: &self.answered_checks,
            gang_label: &self.label,
            policy,
            selection: OptionSelection::From(0),
        }
    }

    /// Whether the Workload still exists in the cache.
    pub(super) fn is_there(&self, workload: &Workload) -> bool {
        let known = self.context.stores.workloads.entry(&ObjectRef::from_obj(workload));
        known.is_some_and(|known| known.uid == self.identity.uid)
    }

    pub(super) fn subject(&self, workload: &Workload) -> Subject {
        Subject::of(workload, &self.id, &self.identity.check)
    }

    /// Publishes an Event about the transition with this number.
    pub(super) fn publish(&self, workload: &Workload, seq: u64, at: Timestamp, notice: &Notice) {
        let moment = Moment { check: &self.identity.check, seq, at };
        self.context.events.publish(workload, moment, notice);
    }
}
