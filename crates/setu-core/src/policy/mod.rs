//! The policy that a gang runs under: built-in defaults, the file, the command line and the parameters.
//!
//! `file` has the types of the file (read by `read`, `tree` and `decode`, checked by `check`). `settings` has the layers and
//! `resolve` merges them. `preset` has the cloud providers, and `show` prints where each value comes from. This module has
//! the result, in which every value is present. What a tenant writes reaches it only through `overrides`.

pub mod check;
mod decode;
pub mod file;
pub mod overrides;
pub mod path;
pub mod preset;
pub mod read;
pub mod reference;
mod reserved;
mod resolve;
pub mod schema;
pub mod settings;
pub mod show;
pub mod terms;
pub mod tree;
pub mod whole;

use crate::api::duration::Span;
use crate::api::node_claim::Requirement;
use crate::api::parameters::{
    Allocatable, Budget, CapacityType, ColocationMode, Compat, GateMode, NodeConditionWanted, NodeDevices,
    OnExhausted, OnNodeLost, PackingMode, Pinning, Placement, Release, StatedShape, StrategyType, Tier,
    Unknown,
};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub use file::PolicyFile;
pub use preset::NodeClassDefaults;
pub use settings::Settings;

/// Most nodes that any gang can have, whatever the policy: no journal has more slots.
pub const MOST_NODES: u32 = 16 * 1024;

/// Every value that decides how a gang is provisioned.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// NodePool named by the administrator, if any; absent if `tiers` is not empty.
    pub node_pool: Option<String>,
    /// Options in the order to try them; empty means one without a name: `node_pool` and `requirements`.
    pub tiers: Vec<Tier>,
    /// Capacity types in the order to try them within each option; empty leaves the choice to the provider.
    pub capacity_types: Vec<CapacityType>,
    /// Whether the nodes of one gang may come from several of them.
    pub mixed_tiers: bool,
    /// Requirements added to every NodeClaim.
    pub requirements: Vec<Requirement>,
    /// When to provision.
    pub strategy: StrategyType,
    /// How long every node must be ready before the gang is.
    pub buffer_time: Span,
    /// Resources whose pod sets get nodes; empty means every pod set.
    pub managed_resources: Vec<String>,
    /// How pods share nodes.
    pub packing: PackingMode,
    /// Shapes of nodes to pack into, before those learnt from existing nodes and those of the catalogue.
    pub shapes: Vec<StatedShape>,
    /// Devices that nodes have, by DeviceClass.
    pub devices: Vec<NodeDevices>,
    /// How near to each other the nodes of a gang are; `None` means it does not matter.
    pub colocation: Option<SharedLabel>,
    /// Limits of each phase.
    pub deadlines: ResolvedDeadlines,
    /// Retries while the quota is held.
    pub in_check: RetryStrategy,
    /// Retries after the quota was given back.
    pub yielding: RetryStrategy,
    /// Action to take once both are used up.
    pub on_exhausted: OnExhausted,
    /// The controller whose retry behaviour is kept; the values above are already its own.
    pub compat: Compat,
    /// Criteria that a node must meet before it counts as ready.
    pub readiness: NodeReadiness,
    /// How pods find their nodes.
    pub pinning: Pinning,
    /// Reaction to the loss of a node.
    pub on_node_lost: OnNodeLost,
    /// How the nodes are given up once the gang has ended.
    pub release: Release,
    /// How long nodes are kept with `Release::Warm`.
    pub warm_for: Span,
    /// The longest hold on a node.
    pub hold_limit: Span,
    /// Whether Karpenter must not repair the nodes when they are unhealthy.
    pub do_not_repair: bool,
    /// NodePool limits.
    pub capacity_gate: GateMode,
    /// How to treat a bound on an amount that is unknown for the nodes.
    pub unknown: Unknown,
    /// Quota of the ClusterQueue, which Kueue has reserved already.
    pub quota_gate: GateMode,
    /// NodeClass readiness.
    pub node_class_gate: GateMode,
    /// Bounds on the nodes, resources and cost of one gang.
    pub budget: Budget,
    /// Where gangs may run.
    pub placement: Placement,
    /// Most nodes one gang may have.
    pub gang_nodes: u32,
    /// Defaults for the parts of a nodeClassRef that a NodePool leaves out.
    pub node_class: NodeClassDefaults,
}

/// How near to each other the nodes of a gang are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedLabel {
    /// Node label that has the same value on all nodes of a gang.
    pub topology_key: String,
    /// Whether that is required; never `None`.
    pub mode: ColocationMode,
}

/// Criteria that a node must meet before it counts as ready.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeReadiness {
    /// Labels with these values; an empty value requires only the label.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// Conditions of the Node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_conditions: Vec<NodeConditionWanted>,
    /// How allocatable amounts are compared with the requested ones.
    pub allocatable: Allocatable,
    /// What Kueue's topologies demand of nodes. It comes from the gang's flavors, and no policy states it.
    #[serde(skip)]
    pub topologies: Vec<TopologyLevels>,
}

/// The levels of a topology by which Kueue places the pods of a flavor: it uses no node without their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopologyLevels {
    /// Labels of the levels.
    pub labels: Vec<String>,
    /// The gang's pod sets on the flavor.
    pub pod_sets: BTreeSet<String>,
    /// Node labels of the flavor.
    pub node_labels: BTreeMap<String, String>,
}

/// Limits of each phase of an attempt.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedDeadlines {
    /// Creation of a NodeClaim until Launched.
    pub launch: Span,
    /// Creation of a NodeClaim until Registered.
    pub register: Span,
    /// Creation of a NodeClaim until Initialized and ready.
    pub initialize: Span,
    /// One attempt, or the validation before it.
    pub gang: Span,
    /// Ready until admitted.
    pub admit: Span,
}

/// A bounded number of doubling waits, like the `retryStrategy` of Kueue's ProvisioningRequestConfig.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryStrategy {
    /// How many times.
    pub limit: u32,
    /// First wait.
    pub base: Span,
    /// Longest wait.
    pub max: Span,
}

impl Policy {
    /// The longest wait that a gang can get, including the jitter. A journal with a longer one was forged.
    pub fn wait_bound(&self) -> SignedDuration {
        self.in_check.max.max(self.yielding.max).signed().saturating_mul(3) / 2
    }

    /// Name of the tier with this index; `None` if no tiers are stated.
    pub fn tier_name(&self, index: u32) -> Option<&str> {
        let tier = self.tiers.get(usize::try_from(index).ok()?)?;
        Some(tier.name.as_str())
    }
}

impl RetryStrategy {
    /// The wait before try number `nth`, counted from 1: `base`, doubled each time, at most `max` and at least a second.
    pub fn wait(&self, nth: u32) -> Span {
        let factor = 2_u32.checked_pow(nth.saturating_sub(1).min(31)).unwrap_or(u32::MAX);
        let doubled = self.base.0.checked_mul(factor).unwrap_or(self.max.0);
        Span(doubled.min(self.max.0).max(whole::LEAST_WAIT.0))
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            node_pool: None,
            tiers: Vec::new(),
            capacity_types: Vec::new(),
            mixed_tiers: false,
            requirements: Vec::new(),
            strategy: StrategyType::Proactive,
            buffer_time: Span::seconds(0),
            managed_resources: Vec::new(),
            packing: PackingMode::Auto,
            shapes: Vec::new(),
            devices: Vec::new(),
            colocation: None,
            deadlines: ResolvedDeadlines {
                launch: Span::minutes(4),
                register: Span::minutes(8),
                initialize: Span::minutes(10),
                gang: Span::minutes(15),
                admit: Span::minutes(30),
            },
            in_check: RetryStrategy { limit: 5, base: Span::seconds(5), max: Span::seconds(80) },
            yielding: RetryStrategy { limit: 3, base: Span::minutes(1), max: Span::minutes(30) },
            on_exhausted: OnExhausted::Yield,
            compat: Compat::None,
            readiness: NodeReadiness::default(),
            pinning: Pinning::Auto,
            on_node_lost: OnNodeLost::Replace,
            release: Release::Delete,
            warm_for: Span::seconds(0),
            hold_limit: Span::minutes(24 * 60),
            do_not_repair: false,
            capacity_gate: GateMode::Enforce,
            unknown: Unknown::Wait,
            quota_gate: GateMode::Warn,
            node_class_gate: GateMode::Enforce,
            budget: Budget::default(),
            placement: Placement::default(),
            gang_nodes: 256,
            node_class: NodeClassDefaults::default(),
        }
    }
}
