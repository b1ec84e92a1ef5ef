//! The part of a Namespace that decides where gangs may run: its labels.

use kube_core::ObjectMeta;
use kube_derive::Resource;
use serde::{Deserialize, Serialize};

/// A Namespace, reduced to the fields that are read.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = "k8s_openapi::api::core::v1::Namespace", crates(kube_core = "::kube_core"))]
pub struct Namespace {
    /// Name and labels.
    pub metadata: ObjectMeta,
}
