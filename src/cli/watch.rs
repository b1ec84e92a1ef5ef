//! Live objects for `--watch`, from the same watches that the controller uses.

use super::CliError;
use super::cluster::{ClusterObjects, ClusterReader};
use crate::api::{Node, NodeClaim, ProvisioningRequest, Workload};
use crate::cluster::watch::{FirstLists, Unlisted, Watched, watch};
use crate::names;
use kube::Api;
use kube::runtime::watcher::Config;
use std::sync::Arc;
use std::time::Duration;

/// Changes within this time are shown together.
const PACE: Duration = Duration::from_millis(300);
/// Ages and waits are redrawn this often even if nothing changed.
const TICK: Duration = Duration::from_secs(5);

/// Watches of the objects that change.
pub struct Live {
    workloads: Watched<Workload>,
    requests: Watched<ProvisioningRequest>,
    claims: Watched<NodeClaim>,
    nodes: Watched<Node>,
    lists: FirstLists,
    /// The objects that are not watched, and which kinds may not be read.
    base: ClusterObjects,
}

impl Live {
    /// Starts the watches; `base` was read before.
    pub fn start(cluster: &ClusterReader, base: ClusterObjects) -> Self {
        let lists = FirstLists::default();
        let client = || cluster.client.clone();
        let ours = Config::default().labels(&format!("{}={}", names::MANAGED_BY, names::SETU));
        let of_gangs = Config::default().labels(names::GANG);
        let workloads = cluster.scope.workloads(&cluster.client);
        Self {
            workloads: watch("workloads", workloads, Config::default(), Some(&lists)),
            requests: watch(
                "provisioningrequests",
                cluster.scope.workloads(&cluster.client),
                Config::default(),
                base.requests.is_some().then_some(&lists),
            ),
            claims: watch("nodeclaims", Api::all(client()), ours, base.claims.is_some().then_some(&lists)),
            nodes: watch("nodes", Api::all(client()), of_gangs, base.nodes.is_some().then_some(&lists)),
            lists,
            base,
        }
    }

    /// Returns the objects after a change, or after `TICK`.
    pub async fn next(&mut self, cluster: &ClusterReader) -> Result<ClusterObjects, CliError> {
        loop {
            let change = async {
                tokio::select! {
                    Some(_) = self.workloads.touched.recv() => {}
                    Some(_) = self.requests.touched.recv() => {}
                    Some(_) = self.claims.touched.recv() => {}
                    Some(_) = self.nodes.touched.recv() => {}
                    else => std::future::pending().await,
                }
            };
            // Redraw in both cases: objects changed, or time passed.
            let _ = tokio::time::timeout(TICK, change).await;
            tokio::time::sleep(PACE).await;
            while self.workloads.touched.skip()
                || self.requests.touched.skip()
                || self.claims.touched.skip()
                || self.nodes.touched.skip()
            {}
            let missing = self.lists.missing();
            if missing.is_empty() {
                return Ok(self.objects(cluster));
            }
            if let Some((kind, why)) =
                missing.into_iter().find(|(_, why)| matches!(why, Unlisted::Forbidden(_)))
            {
                return Err(CliError::Failed(format!("cannot watch {kind}: {why}")));
            }
        }
    }

    fn objects(&self, cluster: &ClusterReader) -> ClusterObjects {
        fn all<K: Clone>(items: Vec<Arc<K>>) -> Vec<K> {
            items.into_iter().map(Arc::unwrap_or_clone).collect()
        }
        let mut objects = ClusterObjects {
            now: cluster.empty().now,
            workloads: all(self.workloads.store.state()),
            requests: self.base.requests.is_some().then(|| all(self.requests.store.state())),
            claims: self.base.claims.is_some().then(|| all(self.claims.store.state())),
            nodes: self.base.nodes.is_some().then(|| all(self.nodes.store.state())),
            ..self.base.clone()
        };
        objects.add_requests();
        objects
    }
}
