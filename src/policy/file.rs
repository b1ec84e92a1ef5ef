//! The policy file: strict YAML, read once at start.
//!
//! An unknown key or a value of the wrong type is an error that names the place; nothing is guessed.

use super::Policy;
use crate::api::parameters::ParametersSpec;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A policy file as written.
#[derive(Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyFile {
    /// Always `setu.kueue.x-k8s.io/v1alpha1`.
    pub api_version: ApiVersion,
    /// Always `Policy`.
    pub kind: Kind,
    /// Bounds of the whole controller.
    #[serde(default)]
    pub guards: Guards,
    /// For every check.
    #[serde(default)]
    pub defaults: ParametersSpec,
    /// For the check of that name, on top of `defaults`.
    #[serde(default)]
    pub checks: BTreeMap<String, ParametersSpec>,
}

/// The versions of the file that are understood.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ApiVersion {
    /// The first.
    #[default]
    #[serde(rename = "setu.kueue.x-k8s.io/v1alpha1")]
    V1alpha1,
}

/// The kinds of file that are understood.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A policy.
    #[default]
    Policy,
}

/// Bounds of the whole controller: a bug in retrying is a bill.
#[derive(Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guards {
    /// Most nodes one gang may have.
    pub gang_nodes: Option<u32>,
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
    pub fn policy(&self, check: &str, parameters: Option<&ParametersSpec>) -> Policy {
        let mut policy = Policy::default().overlaid(&self.defaults);
        if let Some(gang_nodes) = self.guards.gang_nodes {
            policy.gang_nodes = gang_nodes;
        }
        for spec in self.checks.get(check).into_iter().chain(parameters) {
            policy = policy.overlaid(spec);
        }
        policy
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
        let parameters = ParametersSpec { node_pool_name: Some("p".into()), ..Default::default() };
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
