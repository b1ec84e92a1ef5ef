//! Everything that the controller is configured with, and the resulting policy of a check.
//!
//! Layers, the later wins: built-in defaults, the file's `defaults`, its `checks.NAME`, the command line (a flag before its
//! environment variable), and the ProvisioningParameters that the check names. So the parameters of one check override
//! the flags for the whole process.

use super::Policy;
use super::file::PolicyFile;
use super::overrides::{self, Ignored};
use super::preset::{CloudProvider, NodeClassDefaults};
use crate::api::parameters::ProvisioningParametersSpec;
use std::collections::BTreeMap;
use std::fmt;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// `defaults` of the file, or one of its keys that apply to all checks.
    File(&'static str),
    /// `checks.NAME` of the file.
    Check(String),
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(String),
    /// A ProvisioningParameters object.
    Parameters(String),
    /// Set by `retry.compat`.
    Compat,
    /// The preset of a cloud provider.
    Preset(CloudProvider),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(key) => write!(f, "file: {key}"),
            Self::Check(name) => write!(f, "file: checks.{name}"),
            Self::Environment(name) => write!(f, "environment: {name}"),
            Self::Flag(name) => write!(f, "flag: {name}"),
            Self::Parameters(name) => write!(f, "ProvisioningParameters {name}"),
            Self::Compat => f.write_str("retry.compat: Setu"),
            Self::Preset(provider) => write!(f, "preset: {provider}"),
        }
    }
}

/// A value and where it comes from.
pub type Stated<T> = (Origin, T);

/// Policy settings of the command line and its environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommandLine {
    /// Fields for every check.
    pub layers: Vec<Stated<ProvisioningParametersSpec>>,
    /// The cloud provider.
    pub cloud_provider: Option<Stated<CloudProvider>>,
    /// API group of the NodeClass.
    pub node_class_group: Option<Stated<String>>,
    /// Kind of the NodeClass.
    pub node_class_kind: Option<Stated<String>>,
    /// Name of the NodeClass of nodes without accelerators.
    pub node_class_default: Option<Stated<String>>,
    /// Name of the NodeClass of nodes with accelerators.
    pub node_class_gpu: Option<Stated<String>>,
}

/// Everything that the controller is configured with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The policy file, or its default if none was given.
    pub file: PolicyFile,
    /// The command line.
    pub command_line: CommandLine,
    /// API groups that the cluster serves; empty until they are known.
    pub served_groups: Vec<String>,
}

impl Settings {
    /// The policy of a check with these parameters.
    pub fn policy(&self, check: &str, parameters: Option<&ProvisioningParametersSpec>) -> Policy {
        let mut policy = Policy::default();
        policy.gang_nodes = self.file.guards.gang_nodes.unwrap_or(policy.gang_nodes);
        policy.node_class = self.node_class();
        let layers = self.layers(check).into_iter().map(|(_, spec)| spec).chain(parameters);
        layers.fold(policy, Policy::overlaid).in_force()
    }

    /// The policy of a Workload with these annotations, under a check with these parameters, and its overrides that do not count.
    pub fn policy_of(
        &self,
        annotations: &BTreeMap<String, String>,
        check: &str,
        parameters: Option<&ProvisioningParametersSpec>,
    ) -> (Policy, Vec<Ignored>) {
        overrides::apply(self.policy(check, parameters), &self.file.job_overrides, annotations)
    }

    /// The layers of a check above the built-in defaults, without its parameters.
    pub fn layers(&self, check: &str) -> Vec<Stated<&ProvisioningParametersSpec>> {
        let mut layers = vec![(Origin::File("defaults"), &self.file.defaults)];
        layers.extend(self.file.checks.get(check).map(|spec| (Origin::Check(check.to_owned()), spec)));
        layers.extend(self.command_line.layers.iter().map(|(origin, spec)| (origin.clone(), spec)));
        layers
    }

    /// The cloud provider whose preset is used.
    pub fn cloud_provider(&self) -> Stated<CloudProvider> {
        let file = self.file.cloud_provider.map(|p| (Origin::File("cloudProvider"), p));
        let stated = self.command_line.cloud_provider.clone().or(file);
        stated.unwrap_or((Origin::Default, CloudProvider::None))
    }

    /// Group and kind of the provider's preset; if it has several, the first that the cluster serves.
    pub fn preset(&self) -> Option<(&'static str, &'static str)> {
        let known = self.cloud_provider().1.node_classes();
        let served = |group: &str| self.served_groups.iter().any(|g| g == group);
        known.iter().find(|(group, _)| served(group)).or(known.first()).copied()
    }

    fn node_class(&self) -> NodeClassDefaults {
        let line = &self.command_line;
        let value = |stated: &Option<Stated<String>>| stated.as_ref().map(|(_, value)| value.clone());
        let (group, kind) = self.preset().unzip();
        let fallback = NodeClassDefaults::default();
        NodeClassDefaults {
            group: value(&line.node_class_group).or(group.map(str::to_owned)),
            kind: value(&line.node_class_kind).or(kind.map(str::to_owned)),
            default: value(&line.node_class_default).unwrap_or(fallback.default),
            gpu: value(&line.node_class_gpu).unwrap_or(fallback.gpu),
        }
    }
}

impl From<PolicyFile> for Settings {
    fn from(file: PolicyFile) -> Self {
        Self { file, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::parameters::{GateMode, Gates};

    fn settings(file: &str, layers: &[(Origin, GateMode)]) -> Settings {
        let text = format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{file}");
        let spec = |gate: &GateMode| ProvisioningParametersSpec {
            gates: Some(Gates { capacity: Some(*gate), ..Gates::default() }),
            ..ProvisioningParametersSpec::default()
        };
        let layers = layers.iter().map(|(origin, gate)| (origin.clone(), spec(gate))).collect();
        Settings {
            file: PolicyFile::parse(&text).unwrap(),
            command_line: CommandLine { layers, ..CommandLine::default() },
            served_groups: Vec::new(),
        }
    }

    #[test]
    fn the_command_line_overrides_the_file_and_parameters_override_both() {
        let file = "defaults: {gates: {capacity: Off}}\nchecks: {c: {gates: {capacity: Enforce}}}";
        let with_flag = settings(file, &[(Origin::Flag("--enforce-capacity".into()), GateMode::Warn)]);
        assert_eq!(settings(file, &[]).policy("other", None).capacity_gate, GateMode::Off);
        assert_eq!(settings(file, &[]).policy("c", None).capacity_gate, GateMode::Enforce);
        assert_eq!(with_flag.policy("c", None).capacity_gate, GateMode::Warn);
        let named: ProvisioningParametersSpec = serde_yaml::from_str("gates: {capacity: Enforce}").unwrap();
        assert_eq!(with_flag.policy("c", Some(&named)).capacity_gate, GateMode::Enforce);
    }

    #[test]
    fn a_preset_gives_the_served_node_class_and_flags_override_its_parts() {
        let mut settings = settings("cloudProvider: gcp", &[]);
        assert_eq!(settings.preset(), Some(("karpenter.k8s.gcp", "GCENodeClass")));
        settings.served_groups = vec!["apps".into(), "karpenter.gcp.io".into()];
        assert_eq!(settings.preset(), Some(("karpenter.gcp.io", "GCPNodeClass")));
        let flag = |value: &str| Some((Origin::Flag("--x".into()), value.to_owned()));
        settings.command_line.node_class_kind = flag("OtherNodeClass");
        settings.command_line.node_class_gpu = flag("big");
        let expected = NodeClassDefaults {
            group: Some("karpenter.gcp.io".into()),
            kind: Some("OtherNodeClass".into()),
            default: "default".into(),
            gpu: "big".into(),
        };
        assert_eq!(settings.policy("c", None).node_class, expected);
        settings.command_line.cloud_provider = Some((Origin::Environment("E".into()), CloudProvider::Aws));
        assert_eq!(settings.preset(), Some(("karpenter.k8s.aws", "EC2NodeClass")));
    }
}
