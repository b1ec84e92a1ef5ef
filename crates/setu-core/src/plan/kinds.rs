//! The kinds, one object of each for the whole cluster or more, that plans are made from.
//!
//! One line below adds a kind: to what a plan is made from, to the watches and reads of the controller (`controllers/plan_kinds`), and to
//! what `setu plan` reads (`cli/plan/from_cluster`). By hand remain the ClusterRoles and `api/kinds` of `setu-sim`; a test asks for both.

use serde_json::Value;
use std::sync::Arc;

/// Hands the list of kinds to a macro. Each has its name in [`PlanObjects`], its type, its resource, its plural for
/// people, and two functions of `controllers/plan_kinds`: which changes wake gangs that wait for a plan, and what of the objects
/// ends a refusal when it changes.
#[macro_export]
macro_rules! for_each_plan_kind {
    ($then:ident) => {
        $then! {
            node_pools: $crate::api::NodePool, "nodepools", "NodePools", once_seen, by_generation;
            cluster_queues: $crate::api::ClusterQueue, "clusterqueues", "ClusterQueues", always, uncounted;
            flavors: $crate::api::ResourceFlavor, "resourceflavors", "ResourceFlavors", always, uncounted;
            runtime_classes: k8s_openapi::api::node::v1::RuntimeClass, "runtimeclasses", "RuntimeClasses", always, by_version;
            device_classes: $crate::api::DeviceClass, "deviceclasses", "DeviceClasses", always, by_version;
            daemon_sets: $crate::api::DaemonSet, "daemonsets", "DaemonSets", once_a_generation, by_generation;
        }
    };
}

macro_rules! plan_objects {
    ($($field:ident: $kind:ty, $resource:literal, $plural:literal, $matters:ident, $counted:ident;)+) => {
        /// All objects of these kinds at one instant.
        #[derive(Clone, Debug, Default)]
        pub struct PlanObjects {
            $(#[doc = concat!("Every one of the ", $plural, ".")] pub $field: Vec<Arc<$kind>>,)+
        }

        impl PlanObjects {
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
