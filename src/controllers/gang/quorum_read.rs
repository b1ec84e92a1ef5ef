//! Reads a gang past every cache: its claims, its nodes, and the other pods on them.

use super::Gang;
use crate::api::parameters::Pinning;
use crate::api::workload::Verdict;
use crate::api::{Node, NodeClaim, Pod, Workload};
use crate::controllers::plans;
use crate::effects::{claims, pods};
use crate::error::Error;
use crate::gang::initial_journal::has_possible_slots;
use crate::gang::observed::OtherPods;
use crate::gang::{ClaimView, Freshness, State};
use crate::names;
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use std::collections::BTreeSet;

/// How often the nodes of a gang that waits for admission are checked for other pods.
const LIST_AGAIN: SignedDuration = SignedDuration::from_mins(1);

/// The most claims that are read one by one.
const BY_NAME: usize = 16;

impl Gang<'_> {
    pub(super) async fn read_quorum(&mut self, workload: &Workload) -> Result<(), Error> {
        // The caches usually know the nodes by now, so their pods can be listed at the same time.
        let known = self.nodes_to_list_pods_of(workload);
        let client = self.scope.client;
        let (read, found) = tokio::join!(self.read(), pods::on_nodes(client, known.clone()));
        let (claims, nodes) = read?;
        self.observed.replace(claims, nodes);
        let tolerated = self.tolerated(workload);
        self.observed.ignore_taints(&tolerated);
        self.observed.freshness = Freshness::Quorum;
        if !self.stored.fresh && !has_possible_slots(self.journal(), workload, &self.observed.claims) {
            // The cache did not show the claims that contradict the journal.
            self.stored.rebuild(&self.scope, workload);
        }
        let mut nodes = self.nodes_to_list_pods_of(workload);
        if !nodes.is_empty() {
            self.observed.pods_listed = Some(self.scope.now());
        }
        let rest = nodes.iter().filter(|node| !known.contains(node)).cloned().collect();
        let found = [permitted(found)?, permitted(pods::on_nodes(client, rest).await)?];
        // If Setu may not list pods, no node is known to be free of them.
        if found.iter().any(Option::is_none) {
            nodes.clear();
        }
        let pods: Vec<Pod> = found.into_iter().flatten().flatten().collect();
        let each = plans::each(self.scope.context, &self.request(workload));
        self.observed.others = OtherPods::listed(&pods, nodes, each);
        Ok(())
    }

    /// The current claims and Nodes of the gang. A list waits until the API server's cache has caught up, which can take
    /// long. So a set that is known to be complete is read by name.
    async fn read(&self) -> Result<(Vec<NodeClaim>, Vec<Node>), Error> {
        let (client, identity) = (self.scope.client, &self.scope.identity);
        if let Some(known) = self.observed.complete(self.journal(), BY_NAME)
            && let Some(read) = claims::reread(client, identity, known).await?
        {
            return Ok(read);
        }
        let list = |uids: Vec<String>| async move { claims::read(client, &uids).await };
        let read = self.scope.context.reads.read(identity.uid.clone(), list).await?;
        let (claims, nodes) = &*read;
        let own = nodes.iter().filter(|node| node.label(names::WORKLOAD_UID) == identity.uid);
        let claims = claims.iter().filter(|claim| identity.made(claim));
        Ok((claims.cloned().collect(), own.cloned().collect()))
    }

    /// Whether other pods may have landed on the gang's nodes since it was reported Ready: no taint keeps them off, and
    /// Kueue may still admit the gang.
    pub(super) fn is_pod_list_due(&self, workload: &Workload) -> bool {
        let memory = &self.journal().memory;
        let approved = self.journal().state.holds_nodes() && !workload.is("Admitted");
        let due = |last: Timestamp| last.checked_add(LIST_AGAIN).is_ok_and(|at| at <= self.scope.now());
        approved && memory.pinning != Pinning::SelectorAndTaint && self.observed.pods_listed.is_none_or(due)
    }

    /// The nodes to list pods of. Before a gang is reported Ready, all of its nodes: anyone may write a
    /// toleration for the taint. Once it is admitted, the nodes of failed claims.
    fn nodes_to_list_pods_of(&self, workload: &Workload) -> Vec<String> {
        let waits = matches!(self.journal().state, State::WaitingReady | State::Approved { .. });
        let reported = workload.check(&self.scope.identity.check).is_some_and(|c| c.state == Verdict::Ready)
            && !self.is_pod_list_due(workload);
        if waits && !reported && self.observed.has_ready_nodes(self.journal()) {
            return self.observed.nodes.keys().cloned().collect();
        }
        let comes = matches!(self.journal().state, State::Provisioning | State::WaitingReady);
        if !comes || !workload.is("Admitted") {
            return Vec::new();
        }
        let failed: BTreeSet<String> =
            self.views(self.scope.now()).into_iter().filter(ClaimView::has_failed).map(|v| v.name).collect();
        let lost = self.observed.claims.iter().filter(|c| failed.contains(&c.name_any()));
        lost.filter_map(NodeClaim::node_name).map(str::to_owned).collect()
    }
}

/// The pods found; `None` if Setu may not list pods.
fn permitted(pods: Result<Vec<Pod>, Error>) -> Result<Option<Vec<Pod>>, Error> {
    match pods {
        Err(error) if error.code() == Some(403) => {
            tracing::warn!(error = %error.in_full(), "could not list other pods on a gang's nodes");
            Ok(None)
        }
        pods => pods.map(Some),
    }
}
