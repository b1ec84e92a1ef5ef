//! The policy file: what may stand in it, and the policy it gives a check.
//!
//! Rule: an unknown key or a value of the wrong type is an error that names the place; nothing is
//! guessed.

use super::Policy;
use super::preset::CloudProvider;
use crate::api::duration::Span;
use crate::api::parameters::ProvisioningParametersSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The policy of a Setu controller.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyFile {
    /// Always `setu.kueue.x-k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// Always `Policy`.
    pub kind: Kind,
    /// Preset of the NodeClass's group and kind, used where a NodePool does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cloud_provider: Option<CloudProvider>,
    /// Bounds of the whole controller: a bug in retrying is a bill.
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
    /// The first.
    #[default]
    #[serde(rename = "setu.kueue.x-k8s.io/v1alpha1")]
    V1alpha1,
}

/// The kinds of file that are understood.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A policy.
    #[default]
    Policy,
}

/// Bounds of the whole controller: a bug in retrying is a bill. What is absent has its default.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guards {
    /// Most nodes one gang may have; 256 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang_nodes: Option<u32>,
    /// Most NodeClaims that have been created and are not ready yet; 1000 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claims_in_flight: Option<u32>,
    /// Most NodeClaims created in a minute; 1200 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_minute: Option<u32>,
    /// Bounds of each LocalQueue.
    #[serde(default)]
    pub per_local_queue: QueueGuards,
}

/// Bounds of one LocalQueue. What is absent is unbounded.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct QueueGuards {
    /// Most nodes held for its gangs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Most NodeClaims created for its gangs in an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creates_per_hour: Option<u32>,
}

/// Built-in bound of `guards.claimsInFlight`.
const CLAIMS_IN_FLIGHT: u32 = 1_000;
/// Built-in bound of `guards.createsPerMinute`.
const CREATES_PER_MINUTE: u32 = 1_200;

impl Guards {
    /// Most NodeClaims that have been created and are not ready yet.
    pub fn claims_in_flight(&self) -> u32 {
        self.claims_in_flight.unwrap_or(CLAIMS_IN_FLIGHT)
    }

    /// Most NodeClaims created in a minute.
    pub fn creates_per_minute(&self) -> u32 {
        self.creates_per_minute.unwrap_or(CREATES_PER_MINUTE)
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
    /// The longest that may be asked for.
    pub max: Span,
}

/// Bounds of a choice.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChoiceBounds {
    /// The values that may be asked for.
    pub values: Vec<String>,
}

/// Why a policy file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("reading the policy file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no valid policy.
    #[error("the policy file {path} is not valid: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_yaml::Error,
    },
}

impl PolicyFile {
    /// Reads and checks a policy file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.into(), source })?;
        serde_yaml::from_str(&text).map_err(|source| FileError::Parse { path: path.into(), source })
    }

    /// The policy of one check: defaults, then this file, then the parameters the check names.
    pub fn policy(&self, check: &str, parameters: Option<&ProvisioningParametersSpec>) -> Policy {
        let mut policy = Policy::default().overlaid(&self.defaults);
        if let Some(gang_nodes) = self.guards.gang_nodes {
            policy.gang_nodes = gang_nodes;
        }
        for spec in self.checks.get(check).into_iter().chain(parameters) {
            policy = policy.overlaid(spec);
        }
        policy.in_force()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n";

    #[test]
    fn a_check_wins_over_defaults_and_parameters_win_over_both() {
        let file: PolicyFile = serde_yaml::from_str(&format!(
            "{HEAD}guards: {{gangNodes: 8}}\ndefaults: {{nodePoolName: a, managedResources: [x]}}\nchecks: {{c: {{nodePoolName: b}}}}"
        ))
        .unwrap();
        let parameters =
            ProvisioningParametersSpec { node_pool_name: Some("p".into()), ..Default::default() };
        assert_eq!(file.policy("other", None).node_pool.as_deref(), Some("a"));
        assert_eq!(file.policy("c", None).node_pool.as_deref(), Some("b"));
        let policy = file.policy("c", Some(&parameters));
        assert_eq!(policy.node_pool.as_deref(), Some("p"));
        assert_eq!((policy.managed_resources, policy.gang_nodes), (vec!["x".to_owned()], 8));
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_it() {
        let error =
            serde_yaml::from_str::<PolicyFile>(&format!("{HEAD}defaults: {{nodePool: a}}")).unwrap_err();
        assert!(error.to_string().contains("nodePool"), "{error}");
    }
}
