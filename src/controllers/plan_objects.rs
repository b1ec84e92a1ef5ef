//! The objects that plans are made from, read from the caches or from the API server. A gang is given up, refused, ended, or let
//! through without nodes only after a live read.

use super::plan_kinds::{all, read_all};
use super::stores::Stores;
use crate::api::{ClusterQueue, Namespace, Workload};
use crate::cluster::joined::Joined;
use crate::effects::call;
use crate::error::Error;
use crate::plan::PlanObjects;
use crate::plan::limit_ranges::LimitRanges;
use k8s_openapi::api::core::v1::LimitRange;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt};
use std::sync::Arc;

/// The objects that mostly decide whether a gang has a plan.
#[derive(Clone, Debug)]
pub struct GangPlanObjects {
    /// The objects that all Workloads share.
    pub cluster: Arc<PlanObjects>,
    /// The LimitRanges of the namespaces of the Workload and of DaemonSets.
    pub limit_ranges: LimitRanges,
    /// The namespace, if namespaces can be read.
    pub namespace: Option<Arc<Namespace>>,
}

impl GangPlanObjects {
    /// The plan objects for a Workload, as the caches show them.
    pub fn cached(stores: &Stores, workload: &Workload) -> Self {
        let namespace = workload.namespace();
        let named = |name: &String| stores.namespaces.store.get(&ObjectRef::new(name));
        let cluster = Arc::new(stores.plan.objects());
        let all = stores.limit_ranges.state();
        let of = namespace.as_deref().unwrap_or_default();
        Self {
            limit_ranges: LimitRanges::for_plan(all, of, &cluster.daemon_sets),
            cluster,
            namespace: namespace.as_ref().and_then(named),
        }
    }

    /// The ClusterQueue that granted a Workload its quota.
    pub fn queue_of(&self, workload: &Workload) -> Option<&Arc<ClusterQueue>> {
        let name = workload.admission()?.cluster_queue.as_str();
        self.cluster.cluster_queues.iter().find(|queue| queue.metadata.name.as_deref() == Some(name))
    }
}

/// Reads under way. Concurrent requests for the same objects share a read.
#[derive(Debug, Default)]
pub struct PlanObjectReads {
    of_cluster: Joined<(), PlanObjects, Error>,
    of_namespaces: Joined<String, OfNamespace, Error>,
}

impl PlanObjectReads {
    /// Reads all of it for the Workloads of a namespace, past the caches.
    ///
    /// # Errors
    /// The first read that failed.
    pub async fn read(
        &self,
        client: &Client,
        stores: &Stores,
        namespace: &str,
    ) -> Result<GangPlanObjects, Error> {
        let (cluster, of_namespace) = tokio::try_join!(
            self.of_cluster.read((), read_all(client)),
            self.of_namespaces.read(namespace.to_owned(), OfNamespace::read(client, stores, namespace)),
        )?;
        let OfNamespace { limit_ranges: own, namespace: object } = (*of_namespace).clone();
        let is_other = |range: &Arc<LimitRange>| range.metadata.namespace.as_deref() != Some(namespace);
        // Those of DaemonSets do not decide alone whether a gang is refused.
        let others = stores.limit_ranges.state().into_iter().filter(is_other);
        let limit_ranges =
            LimitRanges::for_plan(own.into_iter().chain(others), namespace, &cluster.daemon_sets);
        Ok(GangPlanObjects { cluster, limit_ranges, namespace: object })
    }
}

/// The objects that all Workloads of a namespace share.
#[derive(Clone, Debug)]
struct OfNamespace {
    limit_ranges: Vec<Arc<LimitRange>>,
    namespace: Option<Arc<Namespace>>,
}

impl OfNamespace {
    async fn read(client: &Client, stores: &Stores, name: &str) -> Result<Arc<Self>, Error> {
        let (limit_ranges, namespace) = tokio::try_join!(
            all("listing LimitRanges", Api::namespaced(client.clone(), name)),
            named(client, stores, name),
        )?;
        Ok(Arc::new(Self { limit_ranges, namespace }))
    }
}

/// A namespace, if namespaces can be read.
async fn named(client: &Client, stores: &Stores, name: &str) -> Result<Option<Arc<Namespace>>, Error> {
    if !stores.namespaces.listed.is_done() {
        return Ok(None);
    }
    let api: Api<Namespace> = Api::all(client.clone());
    Ok(call("reading a Namespace", name, api.get_opt(name)).await?.map(Arc::new))
}
