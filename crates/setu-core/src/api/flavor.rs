//! Kueue's ResourceFlavor and Topology (cluster-scoped): the labels, tolerations and topology of the nodes behind a
//! quota.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `spec` of a ResourceFlavor.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "ResourceFlavor",
    plural = "resourceflavors",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceFlavorSpec {
    /// Labels that Kueue puts into the pods' nodeSelector; every node of the gang must carry them.
    #[serde(default)]
    pub node_labels: BTreeMap<String, String>,
    /// Taints of the nodes. Kueue gives the flavor only to pods that tolerate them.
    #[serde(default)]
    pub node_taints: Vec<Taint>,
    /// Tolerations that Kueue adds to the pods.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// Topology, if this flavor is scheduled topology-aware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_name: Option<String>,
}

/// `spec` of a Topology.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Topology",
    plural = "topologies",
    schema = "disabled",
    derive = "PartialEq"
)]
pub struct TopologySpec {
    /// Its levels, the widest first.
    #[serde(default)]
    pub levels: Vec<TopologyLevel>,
}

/// One level of a Topology.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TopologyLevel {
    /// The label whose values are the domains of this level. A node without it is in no domain.
    #[serde(default)]
    pub node_label: String,
}
