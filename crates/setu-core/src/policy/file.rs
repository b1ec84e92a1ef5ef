//! The types of the policy file. `read` reads them, and `check` checks them.

use super::Policy;
use super::preset::CloudProvider;
use crate::api::amount::{self, Amounts, Price};
use crate::api::duration::Span;
use crate::api::parameters::ProvisioningParametersSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The policy of a Setu controller.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyFile {
    /// Always `setu.kueue.x-k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// Always `Policy`.
    pub kind: FileKind,
    /// Preset of the NodeClass's group and kind, used where a NodePool does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<CloudProvider>,
    /// Limits of the whole controller, so that a retry bug cannot run up a bill.
    #[serde(default)]
    pub guards: Guards,
    /// What a Job may change by annotations `provreq.kueue.x-k8s.io/setu-<key>`, and within which bounds.
    #[serde(default)]
    pub job_overrides: JobOverrides,
    /// For every check.
    #[serde(default)]
    pub defaults: ProvisioningParametersSpec,
    /// For the check of that name, on top of `defaults`.
    #[serde(default)]
    pub checks: BTreeMap<String, ProvisioningParametersSpec>,
}

/// The versions of the file that are understood.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiVersion {
    /// The only version so far.
    #[default]
    #[serde(rename = "setu.kueue.x-k8s.io/v1alpha1")]
    V1alpha1,
}

/// The kinds of file that are understood.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename = "Kind")]
pub enum FileKind {
    /// A policy file.
    #[default]
    Policy,
}

/// Limits of the whole controller, so that a retry bug cannot run up a bill. What is absent has its default.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guards {
    /// Maximum number of nodes of a gang; at most 16384.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_nodes: Option<u32>,
    /// Maximum number of NodeClaims in flight: created and not ready yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_in_flight: Option<u32>,
    /// Maximum number of NodeClaims created in a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_minute: Option<u32>,
    /// Bounds of each LocalQueue.
    #[serde(default, skip_serializing_if = "QueueGuards::is_unbounded")]
    pub per_local_queue: QueueGuards,
}

/// Bounds of one LocalQueue. What is absent is unbounded.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueGuards {
    /// Maximum number of nodes held for its gangs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Maximum number of NodeClaims created for its gangs in an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_hour: Option<u32>,
    /// Maximum amount of each resource, devices above all, on the nodes held for its gangs at a time.
    #[serde(default, deserialize_with = "amount::some_amounts", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "amount::amounts_schema")]
    pub max_resources: Option<Amounts>,
    /// Maximum cost per hour of the nodes held for its gangs at a time, by the prices of the
    /// check's `gates.budget`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_hourly_cost: Option<Price>,
}

impl QueueGuards {
    /// Whether any bound is set for LocalQueues.
    pub fn is_bounded(&self) -> bool {
        !self.is_unbounded()
    }

    fn is_unbounded(&self) -> bool {
        *self == Self::default()
    }
}

/// Default of `guards.claimsInFlight`.
const CLAIMS_IN_FLIGHT: u32 = 1_000;
/// Default of `guards.createsPerMinute`.
const CREATES_PER_MINUTE: u32 = 1_200;

impl Guards {
    /// Maximum number of NodeClaims that have been created and are not ready yet.
    pub fn claims_in_flight(&self) -> u32 {
        self.claims_in_flight.unwrap_or(CLAIMS_IN_FLIGHT)
    }

    /// Maximum number of NodeClaims created in a minute.
    pub fn creates_per_minute(&self) -> u32 {
        self.creates_per_minute.unwrap_or(CREATES_PER_MINUTE)
    }

    /// These guards with every default filled in.
    #[must_use]
    pub fn filled(&self) -> Self {
        Self {
            gang_nodes: self.gang_nodes.or(Some(Policy::default().gang_nodes)),
            claims_in_flight: Some(self.claims_in_flight()),
            creates_per_minute: Some(self.creates_per_minute()),
            per_local_queue: self.per_local_queue.clone(),
        }
    }
}

/// What a Job may change, each within its bounds. A key that is absent is closed.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JobOverrides {
    /// How long one attempt, or one wait before it, may take: `deadlines.gang`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<SpanBounds>,
    /// Capacity types to choose from, as a requirement on `karpenter.sh/capacity-type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_type: Option<ChoiceBounds>,
    /// Zones to choose from, as a requirement on `topology.kubernetes.io/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<ChoiceBounds>,
}

/// Bounds of a span of time.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpanBounds {
    /// The longest that a Job may ask for.
    pub max: Span,
}

/// Bounds of a choice.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChoiceBounds {
    /// The values that a Job may ask for.
    pub values: Vec<String>,
}
