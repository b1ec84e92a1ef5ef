//! Setu's own kind ProvisioningParameters (cluster-scoped): what an AdmissionCheck may tune.
//!
//! The same fields appear under `defaults` and `checks` of the policy file; `policy` merges them.
//! Every field is optional: what is absent falls back to the file and then to the built-in default.

use super::duration::Span;
use super::node_claim::Requirement;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `spec` of ProvisioningParameters.
#[derive(CustomResource, JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "setu.kueue.x-k8s.io",
    version = "v1alpha1",
    kind = "ProvisioningParameters",
    plural = "provisioningparameters",
    singular = "provisioningparameters",
    shortname = "provparams",
    category = "setu",
    printcolumn(name = "NodePool", type_ = "string", json_path = ".spec.nodePoolName"),
    printcolumn(name = "Strategy", type_ = "string", json_path = ".spec.strategy.type"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[allow(clippy::duplicated_attributes, reason = "every printcolumn has a type")]
pub struct ParametersSpec {
    /// NodePool of the gang's nodes. Without it, every ready NodePool that fits the flavor, by weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_pool_name: Option<String>,
    /// Requirements added to every NodeClaim, on top of the NodePool's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector_requirements: Option<Vec<Requirement>>,
    /// When to provision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Resources whose pod sets get nodes from Setu; empty means every pod set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_resources: Option<Vec<String>>,
    /// How long each phase may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadlines: Option<Deadlines>,
    /// How often and how fast to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How the nodes are kept for the gang.
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
    /// The only strategy so far: as soon as quota is reserved.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<StrategyType>,
    /// How long every node must have been ready before the gang is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer_time: Option<Span>,
}

/// Names of the strategies.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StrategyType {
    /// Provision as soon as quota is reserved.
    #[default]
    Proactive,
}

/// How long each phase may take, from the creation of a NodeClaim; `gang` and `admit` from the state's start.
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
    /// For one attempt as a whole, and for waiting before an attempt can start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Span>,
    /// From Ready until Kueue admits the Workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admit: Option<Span>,
}

/// How often and how fast to try again.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retry {
    /// With the quota held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_check: Option<Backoff>,
    /// With the quota given back.
    #[serde(default, rename = "yield", skip_serializing_if = "Option::is_none")]
    pub yielding: Option<Backoff>,
    /// What happens once both are used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_exhausted: Option<OnExhausted>,
}

/// A bounded, doubling wait.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Backoff {
    /// How many times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// First wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Span>,
    /// Longest wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
}

/// What happens once every retry is used up.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExhausted {
    /// Keep giving the quota back, at the slowest pace.
    #[default]
    Yield,
    /// Reject: Kueue deactivates the Workload, and only deleting it helps.
    Reject,
}

/// How the nodes are kept for the gang.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Custody {
    /// How pods find their nodes and strangers are kept off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
    /// How long a hold on a node lasts at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_limit: Option<Span>,
}

/// How pods find their nodes and strangers are kept off.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Pinning {
    /// Selector and taint where every DaemonSet of the node tolerates it, else the selector alone.
    #[default]
    Auto,
    /// Neither.
    None,
    /// Node selector on the gang's label.
    Selector,
    /// Node selector, and a taint that only the gang tolerates.
    SelectorAndTaint,
}

/// What is checked before anything is bought.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gates {
    /// NodePool limits, which Karpenter does not check for claims it did not make.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Gate>,
    /// Readiness of the NodeClass, as the NodePool reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<Gate>,
}

/// How strict a gate is.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    /// Wait until it opens.
    #[default]
    Enforce,
    /// Say so and go on.
    Warn,
    /// Do not look.
    Off,
}
