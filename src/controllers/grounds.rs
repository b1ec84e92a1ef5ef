//! What plans are made from, as the caches show it or as the API server has it: a gang is given up, refused, ended or let through
//! without nodes by the latter alone, but for an attempt whose time is over.

use super::admission_check;
use super::context::Context;
use super::plans;
use crate::api::{ClusterQueue, DaemonSet, DeviceClass, Namespace, NodePool, ResourceFlavor, Workload};
use crate::cluster::guard::Guarded;
use crate::cluster::joined::Joined;
use crate::effects::call;
use crate::error::Error;
use k8s_openapi::api::core::v1::LimitRange;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::ListParams;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

/// What mostly decides whether a gang has a plan.
#[derive(Clone, Debug)]
pub struct Grounds {
    /// All NodePools.
    pub pools: Vec<Arc<NodePool>>,
    /// All ClusterQueues.
    pub queues: Vec<Arc<ClusterQueue>>,
    /// All ResourceFlavors.
    pub flavors: Vec<Arc<ResourceFlavor>>,
    /// All RuntimeClasses.
    pub runtime_classes: Vec<Arc<RuntimeClass>>,
    /// All DeviceClasses.
    pub device_classes: Vec<Arc<DeviceClass>>,
    /// All DaemonSets.
    pub daemon_sets: Vec<Arc<DaemonSet>>,
    /// The LimitRanges of the Workload's namespace.
    pub limit_ranges: Vec<Arc<LimitRange>>,
    /// This namespace, where namespaces can be read.
    pub namespace: Option<Arc<Namespace>>,
}

impl Grounds {
    /// What the caches show for a Workload.
    pub fn cached(context: &Context, workload: &Workload) -> Self {
        let stores = &context.stores;
        let namespace = workload.namespace();
        let named = |name: &String| stores.namespaces.store.get(&ObjectRef::new(name));
        Self {
            pools: stores.pools.state(),
            queues: stores.queues.state(),
            flavors: stores.flavors.state(),
            runtime_classes: stores.runtime_classes.state(),
            device_classes: stores.device_classes.state(),
            daemon_sets: stores.daemon_sets.state(),
            limit_ranges: plans::limit_ranges(context, workload),
            namespace: namespace.as_ref().and_then(named),
        }
    }

    /// Reads all of it for the Workloads of a namespace, and the parameters of their check anew.
    ///
    /// # Errors
    /// The first read that failed.
    pub async fn read(context: &Context, check: &str, namespace: &str) -> Result<Self, Error> {
        let grounds = &context.grounds;
        // What is wrong with the parameters is told of by the policy.
        let (all, of_namespace, _) = tokio::try_join!(
            grounds.of_cluster.read((), OfCluster::read(&context.client)),
            grounds.of_namespaces.read(namespace.to_owned(), OfNamespace::read(context, namespace)),
            admission_check::refresh(context, check),
        )?;
        let OfCluster { pools, queues, flavors, runtime_classes, device_classes, daemon_sets } =
            (*all).clone();
        let OfNamespace { limit_ranges, namespace } = (*of_namespace).clone();
        Ok(Self {
            pools,
            queues,
            flavors,
            runtime_classes,
            device_classes,
            daemon_sets,
            limit_ranges,
            namespace,
        })
    }
}

/// Reads of it that are under way: what is asked for together is read once.
#[derive(Debug, Default)]
pub struct Reads {
    of_cluster: Joined<(), OfCluster, Error>,
    of_namespaces: Joined<String, OfNamespace, Error>,
}

/// What is the same for all Workloads.
#[derive(Clone, Debug)]
struct OfCluster {
    pools: Vec<Arc<NodePool>>,
    queues: Vec<Arc<ClusterQueue>>,
    flavors: Vec<Arc<ResourceFlavor>>,
    runtime_classes: Vec<Arc<RuntimeClass>>,
    device_classes: Vec<Arc<DeviceClass>>,
    daemon_sets: Vec<Arc<DaemonSet>>,
}

/// What is the same for those of a namespace.
#[derive(Clone, Debug)]
struct OfNamespace {
    limit_ranges: Vec<Arc<LimitRange>>,
    namespace: Option<Arc<Namespace>>,
}

impl OfCluster {
    async fn read(client: &Client) -> Result<Arc<Self>, Error> {
        let (pools, queues, flavors, runtime_classes, device_classes, daemon_sets) = tokio::try_join!(
            all("listing NodePools", Api::all(client.clone())),
            all("listing ClusterQueues", Api::all(client.clone())),
            all("listing ResourceFlavors", Api::all(client.clone())),
            all("listing RuntimeClasses", Api::all(client.clone())),
            all("listing DeviceClasses", Api::all(client.clone())),
            all("listing DaemonSets", Api::all(client.clone())),
        )?;
        Ok(Arc::new(Self { pools, queues, flavors, runtime_classes, device_classes, daemon_sets }))
    }
}

impl OfNamespace {
    async fn read(context: &Context, name: &str) -> Result<Arc<Self>, Error> {
        let (limit_ranges, namespace) = tokio::try_join!(
            all("listing LimitRanges", Api::namespaced(context.client.clone(), name)),
            named(context, name),
        )?;
        Ok(Arc::new(Self { limit_ranges, namespace }))
    }
}

/// All objects of a kind that can be read; none where the API server does not serve the kind.
async fn all<K>(what: &'static str, api: Api<Guarded<K>>) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = match call(what, "", api.list(&ListParams::default())).await {
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).map(Arc::new).collect())
}

/// A namespace, where namespaces can be read.
async fn named(context: &Context, name: &str) -> Result<Option<Arc<Namespace>>, Error> {
    if !context.stores.namespaces.listed.is_done() {
        return Ok(None);
    }
    let api: Api<Namespace> = Api::all(context.client.clone());
    Ok(call("reading a Namespace", name, api.get_opt(name)).await?.map(Arc::new))
}
