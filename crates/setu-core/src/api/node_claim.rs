//! Karpenter's NodeClaim (cluster-scoped): the request for one node, and its progress.

use super::condition;
use super::pod::ResourceList;
use crate::names;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_core::ObjectMeta;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// `spec` of a NodeClaim; immutable as a whole.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "karpenter.sh",
    version = "v1",
    kind = "NodeClaim",
    plural = "nodeclaims",
    status = "NodeClaimStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimSpec {
    /// Requirements on the instance.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// Resources that the node must at least have allocatable.
    #[serde(default)]
    pub resources: ResourceRequests,
    /// Taints for the node's whole life.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Taints that something removes while the node comes up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub startup_taints: Vec<Taint>,
    /// The provider's part.
    pub node_class_ref: NodeClassRef,
    /// Age at which Karpenter replaces the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<String>,
    /// How long a drain may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<String>,
}

/// One requirement on node labels.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// In, NotIn, Exists, DoesNotExist, Gt, Lt, Gte or Lte.
    pub operator: String,
    /// Values the operator takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
    /// Least number of distinct values the provider must keep to choose from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_values: Option<i32>,
}

/// Resources a claim asks for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ResourceRequests {
    /// Least allocatable amounts.
    #[serde(default)]
    pub requests: ResourceList,
}

/// Devices of a DeviceClass that the pods of a claim ask for, as [`names::DEVICES`] lists them.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedDevices {
    /// Name of the class.
    pub device_class: String,
    /// The driver that publishes them.
    pub driver: String,
    /// How many.
    pub count: u64,
}

/// Reference to the provider's NodeClass. It has no version. Parts that are left out are empty.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub struct NodeClassRef {
    /// API group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl NodeClassRef {
    /// Whether it is of Karpenter's kwok provider, whose nodes are simulated, cost nothing and have any size.
    pub fn is_kwok(&self) -> bool {
        self.group == names::KWOK_GROUP
    }
}

/// `status` of a NodeClaim.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimStatus {
    /// Name of the Node once registered; never the claim's own name.
    #[serde(default)]
    pub node_name: String,
    /// The provider's id once launched.
    #[serde(default, rename = "providerID")]
    pub provider_id: String,
    /// Total resources of the instance.
    #[serde(default)]
    pub capacity: ResourceList,
    /// Allocatable resources as the provider expects them, before the Node reports its own.
    #[serde(default)]
    pub allocatable: ResourceList,
    /// Launched, Registered, Initialized and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl NodeClaim {
    /// Conditions as last reported.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }

    /// Whether the condition of this type is True.
    pub fn is(&self, condition_type: &str) -> bool {
        condition::is_true(self.conditions(), condition_type)
    }

    /// Whether it has a machine.
    pub fn is_launched(&self) -> bool {
        self.is("Launched")
    }

    /// Whether its Node is ready for pods, as far as Karpenter can tell.
    pub fn is_initialized(&self) -> bool {
        self.is("Initialized")
    }

    /// When the condition last changed its status.
    pub fn since(&self, condition_type: &str) -> Option<Timestamp> {
        condition::since(self.conditions(), condition_type)
    }

    /// The devices that its pods ask for by DeviceClass.
    pub fn devices(&self) -> Vec<RequestedDevices> {
        serde_json::from_str(self.annotation(names::DEVICES)).unwrap_or_default()
    }

    /// Requests of the pods that its node was planned for, from [`names::POD_REQUESTS`]; `None` without a readable record.
    pub fn pod_requests(&self) -> Option<ResourceList> {
        serde_json::from_str(self.annotation(names::POD_REQUESTS)).ok()
    }

    /// What its node must have: its requests, and what its pods request that Karpenter's provider does not know.
    pub fn needs(&self) -> Cow<'_, ResourceList> {
        let unrequested = self.annotation(names::UNREQUESTED);
        let requests = &self.spec.resources.requests;
        if unrequested.is_empty() {
            return Cow::Borrowed(requests);
        }
        let mut needs: ResourceList = serde_json::from_str(unrequested).unwrap_or_default();
        needs.extend(requests.clone());
        Cow::Owned(needs)
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// When its gang took it over from an earlier one; `None` if it was created for its gang.
    pub fn taken_over(&self) -> Option<Timestamp> {
        self.annotation(names::TAKEN_OVER).parse().ok()
    }

    /// Whether Karpenter is rebooting its node, which keeps the same claim: `Initialized` is Unknown during that time and
    /// becomes True again.
    pub fn is_rebooting(&self) -> bool {
        let initialized = condition::find(self.conditions(), "Initialized");
        let reset = initialized.is_some_and(|c| c.status != "True" && c.reason == REBOOTING);
        self.is(REBOOTING) || reset
    }

    /// When the last reboot of its node ended; `None` if there was none, or it continues.
    pub fn rebooted(&self) -> Option<Timestamp> {
        let condition = condition::find(self.conditions(), REBOOTING)?;
        self.since(REBOOTING).filter(|_| condition.status == "False")
    }

    /// Index of the slot that it fills within its gang; `None` if it states none.
    pub fn slot(&self) -> Option<u32> {
        noted(&self.metadata, names::SLOT)?.parse().ok()
    }

    /// Its generation: the number of its replacement; 0 for the start of its attempt.
    pub fn generation(&self) -> u32 {
        noted(&self.metadata, names::GENERATION).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    /// Total resources of its node; before the launch, what it requests.
    pub fn counts_with(&self) -> &ResourceList {
        let known = self.status.as_ref().map(|s| &s.capacity).filter(|c| !c.is_empty());
        known.unwrap_or(&self.spec.resources.requests)
    }

    /// Name of its Node; `None` until the Node is registered.
    pub fn node_name(&self) -> Option<&str> {
        self.status.as_ref().map(|s| s.node_name.as_str()).filter(|name| !name.is_empty())
    }

    /// Value of a label, empty if absent.
    pub fn label(&self, key: &str) -> &str {
        self.metadata.labels.as_ref().and_then(|l| l.get(key)).map_or("", String::as_str)
    }

    /// Whether it is kept for a next gang and belongs to none now.
    pub fn is_warm(&self) -> bool {
        !self.label(names::WARM).is_empty()
    }

    /// When it is orphaned unless its gang was admitted: its hold plus the grace period, in which the gang can withdraw Ready. A
    /// warm claim has no grace period, because no Ready depends on it.
    pub fn hold_ends(&self) -> Option<Timestamp> {
        let end: Timestamp = self.annotation(names::HOLD_UNTIL).parse().ok()?;
        if self.is_warm() { Some(end) } else { end.checked_add(HOLD_GRACE).ok() }
    }

    /// Whether it is being handed back to Karpenter, so that pods of others may be on its Node.
    pub fn is_handing_back(&self) -> bool {
        !self.annotation(crate::names::HANDING_BACK).is_empty()
    }

    /// Value of an annotation, empty if absent.
    pub fn annotation(&self, key: &str) -> &str {
        self.metadata.annotations.as_ref().and_then(|a| a.get(key)).map_or("", String::as_str)
    }
}

/// How long after the end of a hold only the gang itself may act on its NodeClaim.
pub const HOLD_GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Karpenter, from 1.15: the condition that is True while it reboots a node, and the reason of `Initialized` during that time.
const REBOOTING: &str = "Rebooting";

/// The value of an annotation, or else of the label with the same key, which earlier versions wrote.
pub(super) fn noted<'m>(metadata: &'m ObjectMeta, key: &str) -> Option<&'m str> {
    let annotation = metadata.annotations.as_ref().and_then(|all| all.get(key));
    annotation.or_else(|| metadata.labels.as_ref()?.get(key)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn place(labels: &Value, annotations: &Value) -> (Option<u32>, u32) {
        let claim: NodeClaim = serde_json::from_value(json!({
            "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
            "metadata": {"name": "c", "labels": labels, "annotations": annotations},
            "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "n"}},
        }))
        .unwrap();
        (claim.slot(), claim.generation())
    }

    #[test]
    fn slot_and_generation_are_read_from_annotations_else_from_labels() {
        let of = |slot: &str, generation: &str| json!({names::SLOT: slot, names::GENERATION: generation});
        assert_eq!(place(&json!({}), &of("3", "2")), (Some(3), 2));
        assert_eq!(place(&of("3", "2"), &json!({})), (Some(3), 2), "of an earlier version");
        assert_eq!(place(&of("3", "2"), &of("4", "0")), (Some(4), 0), "of both");
        assert_eq!(place(&json!({names::SLOT: "3"}), &json!({})), (Some(3), 0));
        assert_eq!(place(&json!({}), &json!({})), (None, 0));
        assert_eq!(place(&json!({}), &of("x", "-1")), (None, 0));
    }
}
