//! The part of a ResourceClaimTemplate that says how many devices of which class each pod gets.

use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of a ResourceClaimTemplate, slimmed.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "resource.k8s.io",
    version = "v1",
    kind = "ResourceClaimTemplate",
    plural = "resourceclaimtemplates",
    namespaced,
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct ResourceClaimTemplateSpec {
    /// `spec` of each claim that is made from it.
    #[serde(default)]
    pub spec: ResourceClaimSpec,
}

/// `spec` of a ResourceClaim, slimmed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ResourceClaimSpec {
    /// The devices.
    #[serde(default)]
    pub devices: DeviceClaim,
}

/// The devices of a claim.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct DeviceClaim {
    /// Requests that are all to be met.
    #[serde(default)]
    pub requests: Vec<DeviceRequest>,
    /// Attributes that devices must or must not share. Only their presence matters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<serde_json::Value>,
}

/// One request for devices: either `exactly` or `first_available`.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRequest {
    /// Name within the claim.
    #[serde(default)]
    pub name: String,
    /// Devices of one class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exactly: Option<ExactDeviceRequest>,
    /// Alternatives: the scheduler takes the first one that it can satisfy. Only their presence matters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_available: Vec<DeviceSubRequest>,
}

/// An alternative of a request.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct DeviceSubRequest {
    /// Name within the request.
    #[serde(default)]
    pub name: String,
}

/// Devices of one class.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExactDeviceRequest {
    /// The DeviceClass.
    #[serde(default)]
    pub device_class_name: String,
    /// `ExactCount` or `All`; `ExactCount` if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_mode: Option<String>,
    /// How many with `ExactCount`; 1 if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Whether the pods get access to devices that others use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// CEL expressions on the devices. Only their presence matters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<serde_json::Value>,
}
