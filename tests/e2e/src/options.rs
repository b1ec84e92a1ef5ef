//! The parts of a stack. The one rule: a default is what most tests start.

use std::path::PathBuf;

use crate::HarnessLayout;

/// Which programs a stack has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StackScope {
    /// Everything.
    #[default]
    Full,
    /// etcd and kube-apiserver only.
    ApiServer,
    /// Everything but Kueue and the controllers of jobs. Whoever starts the stack runs Kueue's controllers.
    WithoutKueue,
    /// Everything, and a node with a real kubelet; see [`crate::node`].
    RealNode,
}

/// The cloud that Karpenter buys from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum StackProvider {
    /// Ours, under weather.
    #[default]
    Kwok,
    /// Karpenter's own for AWS, in front of a mock; see [`crate::aws`].
    Aws,
}

/// The kinds of jobs that a stack serves, with the controllers that run for them. Each includes those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum StackJobKinds {
    /// Kubernetes' own.
    #[default]
    Kubernetes,
    /// JobSets and LeaderWorkerSets too.
    Sets,
    /// Those of all operators too, with Kueue's integrations for them.
    Frameworks,
}

/// Options of the stack to start.
#[derive(Clone, Debug, Default)]
pub struct StackOptions {
    /// The paths of sources and outputs.
    pub layout: HarnessLayout,
    /// Which programs to start.
    pub scope: StackScope,
    /// Which cloud to use.
    pub provider: StackProvider,
    /// YAML files and folders to apply once everything runs.
    pub apply: Vec<PathBuf>,
    /// Whether to start Jaeger too.
    pub jaeger: bool,
    /// Which kinds of jobs are served.
    pub job_kinds: StackJobKinds,
    /// Whether ProvisioningRequests are served, so that Kueue's own provisioning check works.
    pub provisioning_requests: bool,
}
