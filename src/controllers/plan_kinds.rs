//! The kinds, one object of each for the whole cluster or more, that plans are made from.
//!
//! One line below watches a kind, keeps its objects and reads them past the caches, and the compiler asks what follows from a change
//! (`app/feeds`). By hand: `plan::Cluster` and who fills it (`plans`, `cli/plan`), `planned_from` in `refused` if a change may end a
//! refusal, `RESOURCES` in `cluster/client`, the ClusterRoles, and `sim/api/kinds`.

use crate::api::{ClusterQueue, DaemonSet, DeviceClass, NodePool, ResourceFlavor};
use crate::cluster::guard::Guarded;
use crate::cluster::store::Store;
use crate::cluster::watch::{StartGates, Touched, watch};
use crate::effects::call;
use crate::error::Error;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::ListParams;
use kube::runtime::watcher::Config;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;

macro_rules! plan_kinds {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal;)+) => {
        /// The objects that their watches show.
        #[derive(Clone)]
        pub struct PlanStores {
            $(#[doc = concat!($plural, ".")] pub $field: Store<$kind>,)+
        }

        /// All of these objects at one instant.
        #[derive(Clone, Debug)]
        pub struct PlanObjects {
            $(#[doc = concat!("All ", $plural, ".")] pub $field: Vec<Arc<$kind>>,)+
        }

        /// The changes of these objects.
        pub struct PlanChanges {
            $(#[doc = concat!("Changes of ", $plural, ".")] pub $field: Touched<$kind>,)+
        }

        impl PlanStores {
            /// Starts a watch of each kind; nothing is reconciled before each was listed.
            pub fn watch(client: &Client, gates: &StartGates) -> (Self, PlanChanges) {
                let all = Config::default;
                $(let $field = watch::<$kind>($resource, Api::all(client.clone()), all(), Some(gates));)+
                (Self { $($field: $field.store),+ }, PlanChanges { $($field: $field.touched),+ })
            }

            /// What the caches show.
            pub fn objects(&self) -> PlanObjects {
                PlanObjects { $($field: self.$field.state()),+ }
            }
        }

        impl PlanObjects {
            /// Reads all of them past the caches.
            ///
            /// # Errors
            /// The first read that failed.
            pub async fn read(client: &Client) -> Result<Arc<Self>, Error> {
                let ($($field),+) =
                    tokio::try_join!($(all(concat!("listing ", $plural), Api::all(client.clone()))),+)?;
                Ok(Arc::new(Self { $($field),+ }))
            }
        }
    };
}

plan_kinds! {
    pools: NodePool, "nodepools", "NodePools";
    queues: ClusterQueue, "clusterqueues", "ClusterQueues";
    flavors: ResourceFlavor, "resourceflavors", "ResourceFlavors";
    runtime_classes: RuntimeClass, "runtimeclasses", "RuntimeClasses";
    device_classes: DeviceClass, "deviceclasses", "DeviceClasses";
    daemon_sets: DaemonSet, "daemonsets", "DaemonSets";
}

/// All objects of a kind that can be read; none where the API server does not serve the kind.
pub(super) async fn all<K>(what: &'static str, api: Api<Guarded<K>>) -> Result<Vec<Arc<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let list = match call(what, "", api.list(&ListParams::default())).await {
        Err(error) if error.code() == Some(404) => return Ok(Vec::new()),
        list => list?,
    };
    Ok(list.items.into_iter().filter_map(|guard| guard.0.ok()).map(Arc::new).collect())
}
