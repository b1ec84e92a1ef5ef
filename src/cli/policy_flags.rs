//! Policy flags and environment variables, shared by the commands that need a policy, with the origin
//! of each value.

use super::CliError;
use crate::api::parameters::{GateMode, Gates, ProvisioningParametersSpec};
use crate::policy::preset::CloudProvider;
use crate::policy::settings::{CommandLine, Origin, Stated};
use crate::policy::{PolicyFile, Settings};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// [`CloudProvider`], as it is typed.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Provider {
    /// Amazon Web Services: `karpenter.k8s.aws` EC2NodeClass.
    Aws,
    /// Google Cloud: `karpenter.k8s.gcp` GCENodeClass or `karpenter.gcp.io` GCPNodeClass, whichever the
    /// cluster serves.
    Gcp,
    /// Microsoft Azure: `karpenter.azure.com` AKSNodeClass.
    Azure,
    /// Karpenter's kwok provider, which simulates nodes: `karpenter.kwok.sh` KWOKNodeClass.
    Kwok,
    /// No preset: every NodePool says it itself.
    None,
}

impl From<Provider> for CloudProvider {
    fn from(typed: Provider) -> Self {
        match typed {
            Provider::Aws => Self::Aws,
            Provider::Gcp => Self::Gcp,
            Provider::Azure => Self::Azure,
            Provider::Kwok => Self::Kwok,
            Provider::None => Self::None,
        }
    }
}

/// What was typed.
#[derive(Args, Debug)]
struct Typed {
    /// Policy file; without it all defaults hold.
    #[arg(long, env = "SETU_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Preset of the NodeClass's group and kind, used where a NodePool does not say it.
    #[arg(long, env = "SETU_CLOUD_PROVIDER", value_enum)]
    cloud_provider: Option<Provider>,
    /// Wait while the quota that Kueue reserved does not add up, instead of only warning.
    #[arg(long, env = "SETU_ENFORCE_QUOTA", num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", action = clap::ArgAction::Set)]
    enforce_quota: Option<bool>,
    /// Refuse to exceed NodePool limits. Karpenter does not check them for claims it did not make.
    #[arg(long, env = "SETU_ENFORCE_CAPACITY", num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", action = clap::ArgAction::Set)]
    enforce_capacity: Option<bool>,
    /// Wait while the NodeClass of the NodePool is not ready.
    #[arg(long, env = "SETU_VALIDATE_NODE_CLASS", num_args = 0..=1, require_equals = true, value_name = "BOOL", default_missing_value = "true", action = clap::ArgAction::Set)]
    validate_node_class: Option<bool>,
    /// API group of the NodeClass, instead of the preset's.
    #[arg(long, env = "SETU_NODE_CLASS_GROUP", value_name = "GROUP")]
    node_class_group: Option<String>,
    /// Kind of the NodeClass, instead of the preset's.
    #[arg(long, env = "SETU_NODE_CLASS_KIND", value_name = "KIND")]
    node_class_kind: Option<String>,
    /// NodeClass of nodes without accelerators, where the NodePool names none [default: default].
    #[arg(long, env = "SETU_NODE_CLASS_DEFAULT", value_name = "NAME")]
    node_class_default: Option<String>,
    /// NodeClass of nodes with accelerators, where the NodePool names none [default: gpu].
    #[arg(long, env = "SETU_NODE_CLASS_GPU", value_name = "NAME")]
    node_class_gpu: Option<String>,
}

/// The flags, and which of them came from the environment.
#[derive(Debug)]
pub struct PolicyFlags {
    typed: Typed,
    from_environment: BTreeMap<&'static str, bool>,
}

/// Ids of the flags of [`Typed`] that are policy.
const IDS: [&str; 8] = [
    "cloud_provider",
    "enforce_quota",
    "enforce_capacity",
    "validate_node_class",
    "node_class_group",
    "node_class_kind",
    "node_class_default",
    "node_class_gpu",
];

impl FromArgMatches for PolicyFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let from_environment = |id| matches.value_source(id) == Some(ValueSource::EnvVariable);
        Ok(Self {
            typed: Typed::from_arg_matches(matches)?,
            from_environment: IDS.into_iter().map(|id| (id, from_environment(id))).collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for PolicyFlags {
    fn augment_args(command: Command) -> Command {
        Typed::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Typed::augment_args_for_update(command)
    }
}

impl PolicyFlags {
    /// The policy file, if one was named.
    pub fn file(&self) -> Option<&PathBuf> {
        self.typed.config.as_ref()
    }

    /// Reads the policy file and adds the flags.
    pub fn settings(&self) -> Result<Settings, CliError> {
        let file = match &self.typed.config {
            Some(path) => PolicyFile::read(path).map_err(|e| CliError::Invalid(e.to_string()))?,
            None => PolicyFile::default(),
        };
        Ok(Settings { file, command_line: self.command_line(), served_groups: Vec::new() })
    }

    fn command_line(&self) -> CommandLine {
        let typed = &self.typed;
        let gate = |enforce: bool| if enforce { GateMode::Enforce } else { GateMode::Warn };
        let gates = [
            ("enforce_quota", Gates { quota: typed.enforce_quota.map(gate), ..Gates::default() }),
            ("enforce_capacity", Gates { capacity: typed.enforce_capacity.map(gate), ..Gates::default() }),
            (
                "validate_node_class",
                Gates { node_class: typed.validate_node_class.map(gate), ..Gates::default() },
            ),
        ];
        let layer = |(id, gates)| {
            let spec = ProvisioningParametersSpec { gates: Some(gates), ..Default::default() };
            (self.origin(id), spec)
        };
        CommandLine {
            layers: gates.into_iter().filter(|(_, g)| *g != Gates::default()).map(layer).collect(),
            cloud_provider: self
                .stated("cloud_provider", typed.cloud_provider.map(CloudProvider::from).as_ref()),
            node_class_group: self.stated("node_class_group", typed.node_class_group.as_ref()),
            node_class_kind: self.stated("node_class_kind", typed.node_class_kind.as_ref()),
            node_class_default: self.stated("node_class_default", typed.node_class_default.as_ref()),
            node_class_gpu: self.stated("node_class_gpu", typed.node_class_gpu.as_ref()),
        }
    }

    fn stated<T: Clone>(&self, id: &'static str, value: Option<&T>) -> Option<Stated<T>> {
        value.map(|value| (self.origin(id), value.clone()))
    }

    fn origin(&self, id: &'static str) -> Origin {
        if self.from_environment.get(id) == Some(&true) {
            Origin::Environment(format!("SETU_{}", id.to_uppercase()))
        } else {
            Origin::Flag(format!("--{}", id.replace('_', "-")))
        }
    }
}
