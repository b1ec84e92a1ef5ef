//! The part of a DeviceClass with the extended resource that it serves.

use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of a DeviceClass, slimmed.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "resource.k8s.io",
    version = "v1",
    kind = "DeviceClass",
    plural = "deviceclasses",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct DeviceClassSpec {
    /// The extended resource whose requests it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_resource_name: Option<String>,
}
