//! The objects of one gang: the only place where commands read its journal and take its snapshot.
//!
//! `explain` and `inspect` explain the gang from them, and `repair` rebuilds its journal.

use super::cluster::ClusterObjects;
use crate::api::workload::Verdict;
use crate::api::{Node, NodeClaim, Pod, Workload};
use crate::gang::report::verdict::is_kept_out;
use crate::gang::snapshot::resource_slices::wait_for_devices;
use crate::gang::statechart::journal::JournalError;
use crate::gang::workload::opening::stored_journal;
use crate::gang::workload::repair::rebuild_journal;
use crate::gang::{
    AdmittedPods, ClaimView, Ending, Explanation, Forecast, GangIdentity, Journal, Judgement, Nodes, Refusal,
    Reservation, Snapshot, SnapshotParts, UnboundPods,
};
use crate::names;
use crate::policy::Policy;
use jiff::Timestamp;
use kube::ResourceExt;
use std::sync::Arc;

/// A gang among the objects that were read.
pub struct GangObjects<'o> {
    /// All objects.
    pub objects: &'o ClusterObjects,
    /// Its Workload.
    pub workload: &'o Workload,
    /// Its identity.
    pub identity: GangIdentity,
    /// Its NodeClaims, as far as they may be read.
    pub claims: Vec<NodeClaim>,
    journal: Option<Result<Journal, JournalError>>,
}

impl<'o> GangObjects<'o> {
    /// The gang of this Workload under this check.
    pub fn of(objects: &'o ClusterObjects, workload: &'o Workload, check: &str) -> Self {
        let identity = GangIdentity::of(workload, check);
        let claims = objects.claims.iter().flatten().filter(|claim| identity.made(claim)).cloned().collect();
        let journal = stored_journal(workload, &identity, objects.now);
        Self { objects, workload, identity, claims, journal }
    }

    /// When its Workload was created.
    pub fn created(&self) -> Timestamp {
        self.workload.metadata.creation_timestamp.as_ref().map_or(self.objects.now, |t| t.0)
    }

    /// The annotation that holds its journal.
    pub fn annotation(&self) -> Option<&'o str> {
        self.workload.annotations().get(&names::journal_key(&self.identity.check)).map(String::as_str)
    }

    /// Its journal, or why it cannot be used; `None` if there is none.
    pub fn journal(&self) -> Option<Result<&Journal, &JournalError>> {
        self.journal.as_ref().map(Result::as_ref)
    }

    /// Whether Setu keeps it out of Kueue's queue.
    pub fn is_kept_out(&self, journal: &Journal) -> bool {
        is_kept_out(journal, &self.reservation(), self.reported())
    }

    /// Explains it by the snapshot that decides its next step, as far as the objects show it.
    pub fn explain(&self, journal: &Journal) -> Explanation {
        let (policy, now) = (self.policy(journal), self.objects.now);
        let is_reported = self.reported() == Verdict::Ready;
        let view = |claim| {
            let node = self.node_of(claim);
            let mut view = ClaimView::of(claim, node, &policy, now, None);
            if !is_reported {
                wait_for_devices(&mut view, claim, node, &self.objects.resource_slices, now);
            }
            view
        };
        let mut views: Vec<ClaimView> = self.claims.iter().map(view).collect();
        views.sort_by_key(|view| view.slot);
        let parts = SnapshotParts::of(self.workload, &self.identity.check, views, now);
        let unbound = self.unbound_pods().filter(|_| Nodes::of(journal.memory.slots) != Nodes::Unneeded);
        let snapshot = Snapshot {
            refusal: self.is_kept_out(journal).then_some(Refusal { until: now, again_at: now }),
            forecast: Forecast { unbound: unbound.as_ref(), ..Forecast::default() },
            ..parts.snapshot(&policy)
        };
        Explanation::of(journal, &snapshot, &self.claims)
    }

    /// Its journal as the controller would rebuild it.
    ///
    /// # Errors
    /// The ending, if Kueue is taking its Workload down.
    pub fn rebuild_journal(&self) -> Result<Journal, Ending> {
        let (policy, now) = (Policy::default(), self.objects.now);
        let view = |claim| ClaimView::of(claim, None, &policy, now, None);
        let views: Vec<ClaimView> = self.claims.iter().map(view).collect();
        let known = self.journal().and_then(Result::ok);
        rebuild_journal(self.workload, &self.identity, &views, known, now)
    }

    /// The policy that judges it.
    fn policy(&self, journal: &Journal) -> Arc<Policy> {
        Judgement::of(journal, &self.claims, self.objects.policy(&self.identity.check), None).policy
    }

    fn reservation(&self) -> Reservation {
        Reservation::of(self.workload, &self.identity.check)
    }

    fn reported(&self) -> Verdict {
        self.workload.check(&self.identity.check).map(|entry| entry.state).unwrap_or_default()
    }

    fn node_of(&self, claim: &NodeClaim) -> Option<&'o Node> {
        let name = claim.node_name()?;
        self.objects.nodes.iter().flatten().find(|node| node.metadata.name.as_deref() == Some(name))
    }

    /// Its unbound pods once it is admitted, if pods were read.
    fn unbound_pods(&self) -> Option<UnboundPods> {
        let namespace = self.workload.namespace();
        let pods = self.objects.pods.as_ref()?.iter().filter(|pod| pod.metadata.namespace == namespace);
        let pods: Vec<Pod> = pods.cloned().collect();
        AdmittedPods::of(self.workload, &self.identity.check)?.find(&pods, self.objects.now)
    }
}
