//! The kinds that plans are made from and that are read whole: every object in the cluster.
//!
//! One line below adds a kind to what plans are made from, to the watches and reads of the controller (`controllers/plan_kinds`), and
//! to what `setu plan` reads (`cli/plan/from_cluster`). These must be changed by hand: the ClusterRoles, `RESOURCES` in
//! `cluster/client` and `api/kinds` of `setu-sim`; a test of `controllers/plan_kinds` checks them.

use serde_json::Value;
use std::sync::Arc;

/// Passes the list of kinds to a macro. Each entry has the field in [`PlanObjects`], the type, the resource, the plural for people,
/// what is not done in a cluster that need not serve the kind and does not, and two functions that `controllers/plan_kinds` calls:
/// what a change may clear for gangs that wait for a plan, and which part of the objects ends a refusal when it changes.
#[macro_export]
macro_rules! for_each_plan_kind {
    ($then:ident) => {
        $then! {
            node_pools: $crate::api::NodePool, "nodepools", "NodePools", None, of_node_pool, by_generation;
            cluster_queues: $crate::api::ClusterQueue, "clusterqueues", "ClusterQueues", None, of_cluster_queue, uncounted;
            flavors: $crate::api::ResourceFlavor, "resourceflavors", "ResourceFlavors", None, of_any, uncounted;
            runtime_classes: k8s_openapi::api::node::v1::RuntimeClass, "runtimeclasses", "RuntimeClasses", None, of_any, by_version;
            device_classes: $crate::api::DeviceClass, "deviceclasses", "DeviceClasses",
                Some("pods with ResourceClaims are refused, because the API server does not serve resource.k8s.io/v1, which Kubernetes has since 1.34"),
                of_any, by_version;
            daemon_sets: $crate::api::DaemonSet, "daemonsets", "DaemonSets", None, of_generation, by_generation;
        }
    };
}

macro_rules! plan_objects {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal, $limitation:expr, $change:ident, $counted:ident;)+) => {
        /// All objects of these kinds at one instant.
        #[derive(Clone, Debug, Default)]
        pub struct PlanObjects {
            $(#[doc = concat!("Every one of the ", $plural, ".")] pub $field: Vec<Arc<$kind>>,)+
        }

        impl PlanObjects {
            /// Limitations where the API server does not serve a kind, by its resource. `None` if each cluster serves it; then
            /// nothing is planned before it was listed.
            pub const LIMITATIONS: &[(&str, Option<&str>)] = &[$(($resource, $limitation)),+];

            /// Adds an object of one of these kinds. `None` if it is of another.
            ///
            /// # Errors
            /// If it cannot be read as its kind.
            pub fn add(&mut self, kind: &str, object: &Value) -> Option<Result<(), serde_json::Error>> {
                $(if kind == <$kind as kube_core::Resource>::kind(&()) {
                    return Some(serde::Deserialize::deserialize(object).map(|read| self.$field.push(Arc::new(read))));
                })+
                None
            }
        }
    };
}

for_each_plan_kind!(plan_objects);
