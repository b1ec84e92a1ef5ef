//! The part of a Node that decides whether it can run pods.

use super::node_claim::noted;
use super::pod::ResourceList;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_core::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer, Serialize};

/// A Node, reduced to the fields that are read.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = "k8s_openapi::api::core::v1::Node", crates(kube_core = "::kube_core"))]
pub struct Node {
    /// Name, labels and the like.
    pub metadata: ObjectMeta,
    /// Taints and the cordon.
    #[serde(default)]
    pub spec: NodeSpec,
    /// Conditions and allocatable.
    #[serde(default)]
    pub status: NodeStatus,
}

/// `spec` of a Node, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeSpec {
    /// The provider's id; empty until the provider or the kubelet has set it.
    #[serde(default, rename = "providerID", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// Taints that pods must tolerate.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Whether it is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// `status` of a Node, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeStatus {
    /// Resources that pods may use.
    #[serde(default)]
    pub allocatable: ResourceList,
    /// Its devices, whether they work or not.
    #[serde(default, rename = "capacity", deserialize_with = "devices")]
    pub devices: ResourceList,
    /// Ready and others.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
}

/// The extended resources of a list, by their vendors' names.
fn devices<'de, D: Deserializer<'de>>(list: D) -> Result<ResourceList, D::Error> {
    let mut list = ResourceList::deserialize(list)?;
    list.retain(|key, _| key.contains('/'));
    Ok(list)
}

/// A condition of a Node, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed.
    #[serde(default, rename = "lastTransitionTime", skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

impl Node {
    /// When it last became Ready or stopped being Ready; `None` if it is unknown.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.ready()?.last_transition_time
    }

    /// Since when its kubelet has been silent; `None` while the kubelet reports anything.
    pub fn silent_since(&self) -> Option<Timestamp> {
        let ready = self.ready()?;
        ready.last_transition_time.filter(|_| ready.status == "Unknown")
    }

    /// Whether the kubelet reports it Ready.
    pub fn is_ready(&self) -> bool {
        self.ready().is_some_and(|ready| ready.status == "True")
    }

    /// Whether it is ready and not cordoned.
    pub fn takes_pods(&self) -> bool {
        self.is_ready() && !self.spec.unschedulable
    }

    fn ready(&self) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|c| c.kind == "Ready")
    }

    /// Index of the slot that it fills within its gang; `None` if it states none.
    pub fn slot(&self) -> Option<u32> {
        noted(&self.metadata, names::SLOT)?.parse().ok()
    }

    /// Name of its NodeClaim, which Karpenter makes its owner at registration; `None` before.
    pub fn claim_name(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.as_deref().unwrap_or_default();
        owners.iter().find(|owner| owner.kind == "NodeClaim").map(|owner| owner.name.as_str())
    }

    /// Value of a label, empty if absent.
    pub fn label(&self, key: &str) -> &str {
        self.metadata.labels.as_ref().and_then(|l| l.get(key)).map_or("", String::as_str)
    }
}
