//! Reads what keeps a gang from its plan past the caches, before it is given up or refused for that.

use crate::api::{ClusterQueue, NodePool, ResourceFlavor};
use crate::cluster::guard::Guarded;
use crate::effects::call;
use crate::error::Error;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

/// What mostly keeps a gang from its plan, as the API server has it.
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
}

impl Grounds {
    /// Lists all of it.
    ///
    /// # Errors
    /// The first list that failed.
    pub async fn read(client: &Client) -> Result<Self, Error> {
        let (pools, queues, flavors, runtime_classes) = tokio::try_join!(
            all("listing NodePools", client),
            all("listing ClusterQueues", client),
            all("listing ResourceFlavors", client),
            all("listing RuntimeClasses", client),
        )?;
        Ok(Self { pools, queues, flavors, runtime_classes })
    }
}

/// All objects of a kind that can be read.
async fn all<K>(what: &'static str, client: &Client) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api: Api<Guarded<K>> = Api::all(client.clone());
    let list = call(what, "", api.list(&ListParams::default())).await?;
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).map(Arc::new).collect())
}
