//! The part of a ResourceSlice that says how many devices of a driver a node has.

use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of a ResourceSlice, slimmed.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "resource.k8s.io",
    version = "v1",
    kind = "ResourceSlice",
    plural = "resourceslices",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSliceSpec {
    /// The driver that publishes it.
    #[serde(default)]
    pub driver: String,
    /// The pool that it is a part of.
    #[serde(default)]
    pub pool: ResourcePool,
    /// The node that has the devices; empty for devices that are not of a single node.
    #[serde(default)]
    pub node_name: String,
    /// The devices, of which only the number and the taints matter.
    #[serde(default)]
    pub devices: Vec<PublishedDevice>,
}

/// A pool of devices, which a driver publishes as one or more ResourceSlices.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourcePool {
    /// Name; unique for the driver.
    #[serde(default)]
    pub name: String,
    /// Number of the pool's version. ResourceSlices of lower generations are outdated.
    #[serde(default)]
    pub generation: i64,
    /// How many ResourceSlices the pool has in this generation.
    #[serde(default)]
    pub resource_slice_count: i64,
}

/// A device in a ResourceSlice.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PublishedDevice {
    /// Taints that its driver sets. No request is known to tolerate one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<DeviceTaint>,
}

/// A taint of a device.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct DeviceTaint {
    /// `NoSchedule`, `NoExecute` or `None`.
    #[serde(default)]
    pub effect: String,
}

impl PublishedDevice {
    /// Whether pods can get it.
    pub fn is_usable(&self) -> bool {
        !self.taints.iter().any(|taint| ["NoSchedule", "NoExecute"].contains(&taint.effect.as_str()))
    }
}
