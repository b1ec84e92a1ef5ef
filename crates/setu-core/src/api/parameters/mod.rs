//! Setu's own kind ProvisioningParameters (cluster-scoped): what an AdmissionCheck may tune.
//!
//! The same fields are under `defaults` and `checks` of the policy file; `policy` merges them. Every field is optional. An
//! absent field falls back to the file, then to the default in `policy::Policy::default`.

mod custody;
mod gates;
mod nodes;
mod reservations;
mod retry;
mod strict;

pub use custody::{Allocatable, Custody, NodeConditionWanted, OnNodeLost, Pinning, Readiness, Release};
pub use gates::{Budget, GateMode, Gates, Placement, PriceTable, Unknown};
pub use nodes::{
    CAPACITY_TYPES, CapacityType, Colocation, ColocationMode, NodeDevices, Packing, PackingMode, StatedShape,
    Tier,
};
pub use reservations::{CapacityReservation, ReservationType};
pub use retry::{Backoff, Compat, OnExhausted, Retry};

use super::duration::Span;
use super::node_claim::Requirement;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ObjectMeta;
use kube_derive::{CustomResource, Resource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the nodes of gangs are provisioned: everything a check, or all of them, may tune.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "setu.kueue.x-k8s.io",
    version = "v1alpha1",
    kind = "ProvisioningParameters",
    plural = "provisioningparameters",
    singular = "provisioningparameters",
    shortname = "provparams",
    category = "setu",
    status = "ProvisioningParametersStatus",
    derive = "PartialEq",
    printcolumn(name = "NodePool", type_ = "string", json_path = ".spec.nodePoolName"),
    printcolumn(name = "Strategy", type_ = "string", json_path = ".spec.strategy.type"),
    printcolumn(
        name = "Valid",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Valid\")].status"
    ),
    printcolumn(
        name = "Used",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Used\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.retry) || !has(self.retry.compat) || self.retry.compat != 'Setu' || !has(self.deadlines)",
    "message": "retry.compat: Setu brings its own deadlines; take them out",
}]))]
#[allow(clippy::duplicated_attributes, reason = "every printcolumn has a type")]
pub struct ProvisioningParametersSpec {
    /// NodePool of the gang's nodes: shorthand for one tier. With neither this nor `tiers`, Setu tries all ready NodePools that
    /// fit the flavor, the highest weight first. Pod sets that may use the same NodePools take the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool_name: Option<String>,
    /// Requirements added to every NodeClaim, on top of the NodePool's own.
    #[serde(
        default,
        deserialize_with = "strict::some_requirements",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<Vec<strict::StrictRequirement>>", length(max = 100))]
    pub node_selector_requirements: Option<Vec<Requirement>>,
    /// Options tried in this order, within the flavor Kueue admitted the gang on. With tiers, a `nodePoolName`
    /// of the same or an earlier layer is ignored. A `nodePoolName` of a later layer replaces all tiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub tiers: Option<Vec<Tier>>,
    /// Capacity types to try in this order within each tier, before its NodePools by weight. All nodes of a pod set have
    /// the same one. Setu skips those that NodePool or tier do not allow. If the list is empty, the provider chooses for
    /// each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 3))]
    pub capacity_types: Option<Vec<CapacityType>>,
    /// Whether the nodes of one gang may come from several tiers. If a tier has no capacity for some nodes, Setu asks the
    /// next tier for those alone, and the others stay. One launch timeout fails the whole gang. Not with `colocation`
    /// Required, nor with `packing` Fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mixed_tiers: Option<bool>,
    /// When to provision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Resources whose pod sets get nodes from Setu; empty means every pod set. With `devices`, pod sets that use
    /// `resourceClaims` get nodes too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub managed_resources: Option<Vec<String>>,
    /// How pods share nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packing: Option<Packing>,
    /// Devices of dynamic resource allocation that nodes have, by DeviceClass. No object says how many devices of a class a
    /// node will have before it exists. If several entries name a class, Setu uses the first that has enough devices for a pod
    /// and fits the NodePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub devices: Option<Vec<NodeDevices>>,
    /// How near to each other the nodes of a gang are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colocation: Option<Colocation>,
    /// How long each phase may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// How often and how fast to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// What a node must show before it counts as ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Readiness>,
    /// How the nodes are kept for the gang, and what becomes of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub custody: Option<Custody>,
    /// What is checked before anything is bought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
}

/// When to provision.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Strategy {
    /// When Setu starts buying nodes.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<StrategyType>,
    /// How long every node must have been ready before the gang is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_time: Option<Span>,
}

/// When to provision.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrategyType {
    /// As soon as quota is reserved.
    #[default]
    Proactive,
    /// Once every other check of the Workload is Ready.
    LastCheck,
    /// Never: the plan is worked out and reported, and nothing is created.
    DryRun,
}

/// How long each phase may take: `launch`, `register` and `initialize` from the creation of the
/// NodeClaim, `gang` and `admit` from the start of the state.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Deadlines {
    /// Until the provider has launched the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<Span>,
    /// Until its Node has registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub register: Option<Span>,
    /// Until the Node is initialized, devices included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initialize: Option<Span>,
    /// For one attempt, from its plan, its change of tier or its last replaced node on; and for waiting before an attempt can
    /// start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Span>,
    /// From Ready until Kueue admits the Workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admit: Option<Span>,
}

/// What Setu says of the parameters.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningParametersStatus {
    /// `Valid`: whether they can be used. `Used`: whether an AdmissionCheck names them, and which.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// ProvisioningParameters without validation, so that unusable ones are seen too.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = "ProvisioningParameters", crates(kube_core = "::kube_core"))]
pub struct RawParameters {
    /// Name, generation and the like.
    pub metadata: ObjectMeta,
    /// The unvalidated [`ProvisioningParametersSpec`].
    #[serde(default)]
    pub spec: serde_json::Value,
    /// The status that Setu wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ProvisioningParametersStatus>,
}

impl RawParameters {
    /// Conditions as last reported; empty before the first report.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }
}
