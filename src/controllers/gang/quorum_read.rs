//! Reads a gang past every cache: its claims, its nodes, the other pods on them, and the devices that their drivers publish.

use super::Gang;
use crate::api::{Node, NodeClaim, Pod, Workload};
use crate::controllers::plans;
use crate::effects::{claims, pods, resource_slices};
use crate::error::Error;
use crate::gang::Freshness;
use crate::gang::snapshot::observed::OtherPods;
use crate::gang::snapshot::pod_list::PodListing;
use crate::names;
use crate::telemetry::traces::own;
use tracing::Instrument as _;

/// The most claims that are read one by one.
const BY_NAME: usize = 16;

impl Gang<'_> {
    pub(super) async fn read_quorum(&mut self, workload: &Workload) -> Result<(), Error> {
        self.read_all(workload).instrument(tracing::info_span!(target: own::TARGET, "quorum read")).await
    }

    async fn read_all(&mut self, workload: &Workload) -> Result<(), Error> {
        // The caches usually know the nodes by now, so their pods can be listed at the same time.
        let known = self.nodes_to_list_pods_of(workload);
        let client = self.scope.client;
        let (read, found) = tokio::join!(self.read(), pods::on_nodes(client, known.clone()));
        let (claims, nodes) = read?;
        self.observed.replace(claims, nodes);
        let tolerated = self.tolerated(workload);
        self.observed.ignore_taints(&tolerated);
        self.observed.freshness = Freshness::Quorum;
        self.stored.verify(workload, &self.scope.identity, &self.observed.claims, self.scope.now());
        let nodes = self.nodes_to_list_pods_of(workload);
        if !nodes.is_empty() {
            self.observed.pods_listed = Some(self.scope.now());
        }
        let rest = nodes.iter().filter(|node| !known.contains(node)).cloned().collect();
        let (found, rest) = (permitted(found)?, permitted(pods::on_nodes(client, rest).await)?);
        let pods = found.zip(rest).map(|(found, rest)| [found, rest].concat());
        let each = plans::each(self.scope.context, &self.request(workload));
        self.observed.others = OtherPods::listed(pods.as_deref(), nodes, each);
        let reported =
            workload.check(&self.scope.identity.check).map(|check| check.state).unwrap_or_default();
        let with_devices = self.observed.nodes_with_devices(reported);
        self.observed.resource_slices = resource_slices::of_nodes(client, with_devices).await?;
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
        let claims = claims.iter().filter(|claim| identity.is_of_gang(claim));
        Ok((claims.cloned().collect(), own.cloned().collect()))
    }

    pub(super) fn pod_listing<'p>(&'p self, workload: &'p Workload) -> PodListing<'p> {
        let check = self.scope.identity.check.as_str();
        PodListing {
            journal: self.journal(),
            workload,
            check,
            observed: &self.observed,
            now: self.scope.now(),
        }
    }

    fn nodes_to_list_pods_of(&self, workload: &Workload) -> Vec<String> {
        self.pod_listing(workload).nodes(|| self.views(self.scope.now()))
    }
}

/// The pods found; `None` if Setu may not list pods.
fn permitted(pods: Result<Vec<Pod>, Error>) -> Result<Option<Vec<Pod>>, Error> {
    match pods {
        Err(error) if error.is_forbidden() => {
            tracing::warn!(error = %error.in_full(), "may not list pods, so other pods on a gang's nodes are not seen; allow list on pods");
            Ok(None)
        }
        pods => pods.map(Some),
    }
}
