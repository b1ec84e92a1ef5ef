//! The part of a DaemonSet that decides where its pods run and what they take from a node.

use super::pod::PodTemplate;
use kube_core::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Serialize};

/// A DaemonSet, reduced to the fields that are read.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = "k8s_openapi::api::apps::v1::DaemonSet", crates(kube_core = "::kube_core"))]
pub struct DaemonSet {
    /// Name, namespace and the like.
    pub metadata: ObjectMeta,
    /// Its pods.
    #[serde(default)]
    pub spec: DaemonSetSpec,
}

/// `spec` of a DaemonSet, reduced.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct DaemonSetSpec {
    /// Template of its pods.
    #[serde(default)]
    pub template: PodTemplate,
}
