//! When a node counts as ready, how it is kept for its gang, and what happens to it afterwards.

use crate::api::duration::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a node must show before it counts as ready, besides being Ready, schedulable and free of taints
/// that its pods do not tolerate.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Readiness {
    /// Labels with these values; an empty value asks for the label alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_labels: Option<BTreeMap<String, String>>,
    /// Conditions of the Node, as a device or problem detector sets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub node_conditions: Option<Vec<NodeConditionWanted>>,
    /// How the Node's allocatable amounts are compared with what its NodeClaim asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocatable: Option<Allocatable>,
}

/// A condition that a Node must have.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeConditionWanted {
    /// Type of the condition.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 316))]
    pub kind: String,
    /// Its status: True, False or Unknown.
    #[serde(default = "true_status")]
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
}

fn true_status() -> String {
    "True".to_owned()
}

/// How allocatable amounts are compared with what was asked for.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocatable {
    /// Every resource has to be there in full.
    #[default]
    Exact,
    /// Devices and other extended resources have to be there in full; CPU and memory are not compared.
    Devices,
    /// Nothing is compared.
    None,
}

/// How the nodes are kept for the gang, and what becomes of them.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.warmFor) || !has(self.release) || self.release == 'Warm' || self.warmFor.matches('^0+[a-z]+$')",
    "message": "warmFor needs release: Warm",
}]))]
pub struct Custody {
    /// How pods find their nodes and other pods are kept off. Label and taint are `setu.kueue.x-k8s.io/gang=ID`. Where the nodes of
    /// pod sets differ, the selector also names the pod sets: `setu.kueue.x-k8s.io/pod-sets=NAMES`. The taint's
    /// effect is NoSchedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinning: Option<Pinning>,
    /// What happens when a node that was there goes away before the gang is admitted. After admission only `Replace` has an
    /// effect; otherwise recovery is left to the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_node_lost: Option<OnNodeLost>,
    /// What becomes of the nodes once the gang is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<Release>,
    /// How long nodes are kept for the next gang; only with `release: Warm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm_for: Option<Span>,
    /// How long a node is held at most for a gang that is not admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_limit: Option<Span>,
    /// If true, Karpenter 1.15 or later neither reboots nor replaces unhealthy nodes while the gang holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub do_not_repair: Option<bool>,
}

/// How pods find their nodes and other pods are kept off.
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

/// What happens when a node that was there goes away before the gang is admitted.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnNodeLost {
    /// Another one is made in its place, as often as `retry.inCheck` gives tries. A running gang goes on with the waits of
    /// `retry.yield`.
    #[default]
    Replace,
    /// Everything is given back, and so is the quota.
    Yield,
    /// The Workload is rejected: Kueue deactivates it.
    Reject,
    /// Nothing.
    Ignore,
}

/// What becomes of the nodes once the gang is over.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// They are deleted.
    #[default]
    Delete,
    /// Nodes of a finished gang go back to Karpenter, which uses them for other pods or consolidates them. All others are
    /// deleted.
    HandBack,
    /// Those of a gang that has finished are kept for `warmFor`. The next gang of the same LocalQueue takes
    /// over those it would otherwise buy. All others are deleted.
    Warm,
}
