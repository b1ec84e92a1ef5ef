//! The part of a Node that decides whether it can run pods.

use super::node_claim::noted;
use super::pod::ResourceList;
use crate::names;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Taint;
use kube_core::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Deserializer, Serialize};

/// A Node, slimmed.
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

/// `spec` of a Node, slimmed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeSpec {
    /// The provider's id; empty until the provider or the kubelet has said it.
    #[serde(default, rename = "providerID", skip_serializing_if = "String::is_empty")]
    pub provider_id: String,
    /// What pods must tolerate.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// `status` of a Node, slimmed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeStatus {
    /// What pods may use.
    #[serde(default)]
    pub allocatable: ResourceList,
    /// Devices that it has, whether they work or not.
    #[serde(default, rename = "capacity", deserialize_with = "devices")]
    pub devices: ResourceList,
    /// Ready and others.
    #[serde(default)]
    pub conditions: Vec<NodeCondition>,
}

/// The extended resources of a list, under the names of their vendors.
fn devices<'de, D: Deserializer<'de>>(list: D) -> Result<ResourceList, D::Error> {
    let mut list = ResourceList::deserialize(list)?;
    list.retain(|key, _| key.contains('/'));
    Ok(list)
}

/// A condition of a Node, slimmed.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeCondition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the status last changed.
    #[serde(default, rename = "lastTransitionTime", skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Timestamp>,
}

impl Node {
    /// When it last became Ready or stopped being so; `None` if it does not say.
    pub fn ready_since(&self) -> Option<Timestamp> {
        self.ready()?.last_transition_time
    }

    /// Since when nobody has heard from its kubelet; `None` while the kubelet speaks, whatever it says.
    pub fn silent_since(&self) -> Option<Timestamp> {
        let ready = self.ready()?;
        ready.last_transition_time.filter(|_| ready.status == "Unknown")
    }

    /// Whether the kubelet reports it Ready.
    pub fn is_ready(&self) -> bool {
        self.ready().is_some_and(|ready| ready.status == "True")
    }

    fn ready(&self) -> Option<&NodeCondition> {
        self.status.conditions.iter().find(|c| c.kind == "Ready")
    }

    /// Index of the slot it fills within its gang; `None` where it does not say.
    pub fn slot(&self) -> Option<u32> {
        noted(&self.metadata, names::SLOT)?.parse().ok()
    }

    /// Value of a label, empty if absent.
    pub fn label(&self, key: &str) -> &str {
        self.metadata.labels.as_ref().and_then(|l| l.get(key)).map_or("", String::as_str)
    }
}
