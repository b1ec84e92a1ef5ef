//! Karpenter's NodePool (cluster-scoped): the template and the limits of a group of nodes.

use super::condition;
use super::node_claim::{NodeClassRef, Requirement};
use super::pod::ResourceList;
use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `spec` of a NodePool.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "karpenter.sh",
    version = "v1",
    kind = "NodePool",
    plural = "nodepools",
    status = "NodePoolStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolSpec {
    /// Template of its NodeClaims.
    pub template: NodeClaimTemplate,
    /// Upper bounds over all its nodes; any resource, and `nodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
    /// Preference among pools, 1 to 100; absent counts as 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// Set on static pools, whose size Karpenter keeps by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i64>,
}

/// Template of a NodeClaim.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodeClaimTemplate {
    /// Labels and annotations of the nodes.
    #[serde(default)]
    pub metadata: TemplateMetadata,
    /// Spec of the claims.
    pub spec: NodeClaimTemplateSpec,
}

/// Metadata of a NodeClaim template.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct TemplateMetadata {
    /// Labels of the nodes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the nodes.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// Spec of a NodeClaim template.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeClaimTemplateSpec {
    /// Requirements on the instance.
    #[serde(default)]
    pub requirements: Vec<Requirement>,
    /// Taints for the node's whole life.
    #[serde(default)]
    pub taints: Vec<Taint>,
    /// Taints that something removes while the node comes up.
    #[serde(default)]
    pub startup_taints: Vec<Taint>,
    /// The provider's part of the template.
    #[serde(default)]
    pub node_class_ref: NodeClassRef,
    /// Age at which Karpenter replaces the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after: Option<String>,
    /// How long a drain may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period: Option<String>,
}

/// `status` of a NodePool.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct NodePoolStatus {
    /// Ready, NodeClassReady, ValidationSucceeded and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Total resources of its nodes; stale while claims are launching.
    #[serde(default)]
    pub resources: ResourceList,
}

/// Reason of a condition Ready that nothing has reported.
pub const ASSUMED: &str = "Assumed";

impl NodePool {
    /// Whether it counts as ready only because nothing has reported otherwise.
    pub fn is_assumed_ready(&self) -> bool {
        condition::find(self.conditions(), "Ready").is_some_and(|ready| ready.reason == ASSUMED)
    }

    /// Conditions as last reported.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }

    /// Whether it was edited, was ready before, and Karpenter has not fully reconciled the edit yet. That takes a moment. While
    /// only one of the two conditions that make up Ready is updated, Ready is Unknown.
    pub fn is_unseen(&self) -> bool {
        let of = |kind: &str| condition::find(self.conditions(), kind);
        let is_behind =
            |c: &Condition| c.observed_generation.is_some_and(|seen| Some(seen) != self.metadata.generation);
        let was_ready = match of("Ready") {
            Some(ready) if ready.status == "True" => is_behind(ready),
            Some(ready) if ready.status == "Unknown" => {
                let parts = || ["ValidationSucceeded", "NodeClassReady"].into_iter().filter_map(of);
                parts().all(|c| c.status == "True") && parts().any(is_behind)
            }
            _ => false,
        };
        was_ready && self.spec.replicas.is_none() && self.metadata.deletion_timestamp.is_none()
    }

    /// Why no claim may be created from this pool now, for users; `None` if it is usable.
    pub fn unusable(&self) -> Option<String> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        if self.spec.replicas.is_some() {
            return Some(format!(
                "NodePool {name} is static (spec.replicas): Karpenter would delete one of its nodes for each of ours; \
                 name a NodePool without replicas"
            ));
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Some(format!("NodePool {name} is being deleted"));
        }
        if self.is_unseen() {
            return Some(format!("NodePool {name} was edited and Karpenter has not reconciled it yet"));
        }
        let Some(ready) = condition::find(self.conditions(), "Ready") else {
            return Some(format!("NodePool {name} is not ready yet: Karpenter has not reconciled it"));
        };
        if ready.status == "True" {
            return None;
        }
        let cause =
            self.conditions().iter().find(|c| c.type_ != "Ready" && c.status == "False").unwrap_or(ready);
        let why = format!("{} {}", cause.reason, cause.message);
        let class = &self.spec.template.spec.node_class_ref;
        let of_class = match cause.type_.as_str() {
            "NodeClassReady" => format!(" of {} {}", class.kind, class.name),
            _ => String::new(),
        };
        // The NodePool shows only a summary of its NodeClass.
        let hint = match (cause.type_.as_str(), cause.reason.as_str()) {
            ("NodeClassReady", "NodeClassNotFound") => {
                "; create it, or name another one in the NodePool".to_owned()
            }
            ("NodeClassReady", _) => {
                format!("; kubectl describe {} {} shows what it lacks", class.kind.to_lowercase(), class.name)
            }
            _ => String::new(),
        };
        Some(format!("NodePool {name} is not ready ({}{of_class}: {}{hint})", cause.type_, why.trim_end()))
    }
}
