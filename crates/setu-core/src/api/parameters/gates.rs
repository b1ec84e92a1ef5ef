//! Checks before anything is bought.

use super::strict;
use crate::api::amount::{self, Amounts, Currency, Price};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Price per hour, by instance type and capacity type.
pub type PriceTable = BTreeMap<String, BTreeMap<String, Price>>;

/// What is checked before anything is bought.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gates {
    /// Checks NodePool limits, because Karpenter does not check them for Setu's NodeClaims. Counts other gangs' planned nodes
    /// too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<GateMode>,
    /// What Setu does if a NodePool limit or a bound of the budget counts a resource whose amount on the nodes is unknown. This
    /// happens if it knows too little about an instance type that they may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<Unknown>,
    /// Quota of the ClusterQueue. Kueue has reserved it already, so this only finds what does not add up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<GateMode>,
    /// Readiness of the NodeClass, as the NodePool reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<GateMode>,
    /// What one gang may cost. When an elastic Job grows, this bounds the nodes that it adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
    /// Where gangs may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
}

/// How strict a gate is. `Off` needs quotes in what kubectl applies, which takes the bare word for
/// `false`.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename = "Gate")]
pub enum GateMode {
    /// Buy nothing until the gate is open.
    #[default]
    Enforce,
    /// Report a closed gate and go on.
    Warn,
    /// Ignore this gate.
    Off,
}

/// What is done where an amount is not known.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Buy nothing until it is known.
    #[default]
    Wait,
    /// Report it, and count only what the NodeClaims request.
    Warn,
}

/// What one gang may cost. What is absent is unbounded.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Budget {
    /// Maximum number of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub max_nodes: Option<u32>,
    /// Maximum amount of each resource, over all nodes.
    #[serde(default, deserialize_with = "amount::some_amounts", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "amount::amounts_schema")]
    pub max_resources: Option<Amounts>,
    /// Currency of all prices and bounds, by its code of ISO 4217; USD if it is not stated. What Karpenter's metrics and the
    /// catalogue say is in US dollars: `multiplier` converts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub currency: Option<Currency>,
    /// Maximum cost per hour, over all nodes, in `currency`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hourly_cost: Option<Price>,
    /// Price of a node per hour, by instance type and capacity type (on-demand, spot, reserved), in place of what Karpenter's
    /// metrics and the catalogue say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<PriceTable>,
    /// Factor on prices that are not stated, such as "0.7" for a savings plan: by instance type, by its family, or by capacity
    /// type. The first of these that is stated counts. A spot price has the factor of `spot` alone: savings plans do not
    /// cover it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<BTreeMap<String, Price>>,
}

impl Budget {
    /// The factor on the price of an instance type of this family with this capacity type, if one is set.
    pub fn multiplier(&self, instance_type: &str, family: &str, capacity_type: &str) -> Option<Price> {
        let all = self.multiplier.as_ref()?;
        let of_type = [instance_type, family].into_iter().filter(|_| capacity_type != "spot");
        of_type.chain([capacity_type]).find_map(|key| all.get(key)).copied()
    }
}

/// Where gangs may run. What is absent or empty allows everything.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Placement {
    /// Labels of the namespaces whose Workloads may be provisioned for.
    #[serde(default, deserialize_with = "strict::some_selector", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<strict::StrictSelector>")]
    pub namespaces: Option<LabelSelector>,
    /// Zones that nodes may be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub zones: Option<Vec<String>>,
    /// ResourceFlavors that may be provisioned for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub flavors: Option<Vec<String>>,
}
