//! Which nodes to ask for: tiers to try in order, shapes to pack pods into, and colocation.

use super::reservations::CapacityReservation;
use super::strict;
use crate::api::amount::{self, Amounts};
use crate::api::duration::Span;
use crate::api::node_claim::Requirement;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One option to get the nodes of a gang from.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tier {
    /// Name in messages and metrics; unique among the tiers.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// NodePool of the tier. Without it, Setu tries all ready NodePools that fit the flavor, the highest weight first. Pod sets
    /// that may use the same NodePools take the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool_name: Option<String>,
    /// Requirements added to the NodeClaims of this tier, on top of `nodeSelectorRequirements`.
    #[serde(default, deserialize_with = "strict::requirements", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<strict::StrictRequirement>", length(max = 100))]
    pub requirements: Vec<Requirement>,
    /// Until the provider has launched the instance, instead of `deadlines.launch`: then the next
    /// tier is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch_timeout: Option<Span>,
    /// Capacity reservations that all nodes of the tier are launched into. Setu uses the tier while all of them are open
    /// and have room for the gang. Put reservations with other times into a tier of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub reservations: Vec<CapacityReservation>,
    /// Zones of the tier; empty means every zone of the NodePool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub zones: Vec<String>,
}

/// The capacity types that Karpenter knows.
pub const CAPACITY_TYPES: [&str; 3] = ["on-demand", "reserved", "spot"];

/// How the provider sells a node: the value of its label `karpenter.sh/capacity-type`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub enum CapacityType {
    /// Out of a reservation.
    Reserved,
    /// At the list price.
    OnDemand,
    /// Until the provider takes it back.
    Spot,
}

impl CapacityType {
    /// The value of the label.
    pub fn value(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::OnDemand => "on-demand",
            Self::Spot => "spot",
        }
    }
}

/// How pods share nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Packing {
    /// Whether pods share nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<PackingMode>,
    /// Shapes of nodes to pack into, before those learnt from nodes seen and those of the embedded catalogue of types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub shapes: Option<Vec<StatedShape>>,
}

/// How pods share nodes.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackingMode {
    /// `Fill` where every instance type that a node may be of is known, `PerPod` where not; the plan says which.
    #[default]
    Auto,
    /// One node per pod.
    PerPod,
    /// As many pods on a node as its shape has room for, the largest first.
    Fill,
}

/// What one instance type offers its pods.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename = "Shape", rename_all = "camelCase", deny_unknown_fields)]
pub struct StatedShape {
    /// Value of label `node.kubernetes.io/instance-type`.
    #[schemars(length(min = 1, max = 63))]
    pub instance_type: String,
    /// What its Node has allocatable, DaemonSets not yet taken off.
    #[serde(deserialize_with = "amount::amounts")]
    #[schemars(schema_with = "amount::amounts_schema")]
    pub allocatable: Amounts,
}

/// Devices of one DeviceClass on a node.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeDevices {
    /// Name of the DeviceClass that the ResourceClaimTemplates of pods name.
    #[schemars(length(min = 1, max = 253))]
    pub device_class: String,
    /// DRA driver that publishes the devices, as in `spec.driver` of its ResourceSlices.
    #[schemars(length(min = 1, max = 63))]
    pub driver: String,
    /// Extended resource of the same devices, such as `nvidia.com/gpu`. The nodes must not offer it through a device plugin
    /// too. Pods that request it get devices of the class if `spec.extendedResourceName` of the DeviceClass names it too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended_resource: Option<String>,
    /// How many devices of the class each node has.
    #[schemars(range(min = 1))]
    pub per_node: u32,
    /// Requirements added to the NodeClaims of pods that ask for these devices, such as the instance types that have them.
    #[serde(default, deserialize_with = "strict::requirements", skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<strict::StrictRequirement>", length(max = 100))]
    pub requirements: Vec<Requirement>,
}

/// How near to each other the nodes of a gang are.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Colocation {
    /// Node label whose value is the same for all nodes of a gang; `topology.kubernetes.io/zone` if none is named. The
    /// NodePool's requirements must list its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_key: Option<String>,
    /// How strictly nodes share the label's value. Required if `colocation` is stated without it in all layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ColocationMode>,
}

/// Whether nodes have to be near each other.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColocationMode {
    /// All nodes share the value, or the gang gets none.
    #[default]
    Required,
    /// Tried first, and given up where it cannot be had.
    Preferred,
    /// No constraint; overrides an earlier layer.
    None,
}
