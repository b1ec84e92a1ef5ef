//! The part of a pod template that decides where its pods fit: resources, selectors, tolerations.

use k8s_openapi::api::core::v1::{
    ContainerPort, EphemeralVolumeSource, NodeAffinity, PodAffinity, PodAntiAffinity, PodCondition,
    ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Amounts by resource name, as Kubernetes writes them.
pub type ResourceList = BTreeMap<String, Quantity>;

/// A pod template, reduced to the fields that are read.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations the pods start with.
    #[serde(default)]
    pub metadata: TemplateMeta,
    /// The pods' spec.
    #[serde(default)]
    pub spec: PodSpec,
}

/// Metadata of a pod template.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct TemplateMeta {
    /// Labels of the pods.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// A pod's spec, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    /// Whether the pods use the node's network, so that each port is a port of the host.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
    /// Main containers.
    #[serde(default)]
    pub containers: Vec<Container>,
    /// Init containers; those with `restartPolicy: Always` are sidecars.
    #[serde(default)]
    pub init_containers: Vec<Container>,
    /// Pod-level resources, which replace the containers' sum for cpu, memory and hugepages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Resources that the runtime itself needs for each pod.
    #[serde(default)]
    pub overhead: Option<ResourceList>,
    /// RuntimeClass, whose overhead counts when `overhead` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Node labels that the pods require.
    #[serde(default)]
    pub node_selector: BTreeMap<String, String>,
    /// Affinity to nodes and to other pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How the pods spread over topology domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Taints the pods tolerate.
    #[serde(default)]
    pub tolerations: Vec<Toleration>,
    /// How long each pod may run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    /// Volumes; those that depend on storage objects decide where the pods can run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Claims of dynamic resource allocation.
    #[serde(default)]
    pub resource_claims: Vec<ResourceClaim>,
}

/// A container, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    /// Name, for messages.
    #[serde(default)]
    pub name: String,
    /// Its requests and limits.
    #[serde(default)]
    pub resources: Option<ResourceRequirements>,
    /// Ports; two pods with the same host port cannot share a node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// `Always` on an init container makes it a sidecar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
}

/// Affinity, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Affinity {
    /// Which nodes the pods may run on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<NodeAffinity>,
    /// Other pods that they must run near.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_affinity: Option<PodAffinity>,
    /// Other pods that they must not run near.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_anti_affinity: Option<PodAntiAffinity>,
}

/// A volume, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Name within the pod.
    #[serde(default)]
    pub name: String,
    /// The claim that it uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<ClaimSource>,
    /// The claim that is created with each pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralVolumeSource>,
}

/// A claim by its name.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSource {
    /// Name of the PersistentVolumeClaim.
    #[serde(default)]
    pub claim_name: String,
}

impl Volume {
    /// Name of the StorageClass of the claim that is created with each pod, if one is named.
    pub fn ephemeral_class(&self) -> Option<&str> {
        let template = self.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
        template.spec.storage_class_name.as_deref().filter(|name| !name.is_empty())
    }
}

/// One claim of dynamic resource allocation: a claim by its name, or a template from which each pod gets a claim of its own.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ResourceClaim {
    /// Name within the pod.
    #[serde(default)]
    pub name: String,
    /// Name of a ResourceClaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_name: Option<String>,
    /// Name of a ResourceClaimTemplate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_claim_template_name: Option<String>,
}

/// A pod, reduced to the fields that are read.
#[derive(kube_derive::Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod", crates(kube_core = "::kube_core"))]
pub struct Pod {
    /// Name, owners and the like.
    pub metadata: kube_core::ObjectMeta,
    /// Its spec, with the node that it is bound to.
    #[serde(default)]
    pub spec: BoundSpec,
    /// Its state.
    #[serde(default)]
    pub status: PodStatus,
}

/// `spec` of a pod, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BoundSpec {
    /// Node it is bound to.
    #[serde(default)]
    pub node_name: String,
    /// The fields that a template has too.
    #[serde(flatten)]
    pub pod: PodSpec,
}

/// `status` of a pod, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: String,
    /// Conditions, such as whether it was scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PodCondition>,
}

impl Pod {
    /// Whether it has ended and takes nothing from its node any more.
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether an owner of this kind created it.
    pub fn is_of(&self, kind: &str) -> bool {
        self.metadata.owner_references.iter().flatten().any(|o| o.kind == kind)
    }
}
