//! Cluster Autoscaler's ProvisioningRequest: a demand for capacity, as Kueue's own provisioning check or another client writes it.
//!
//! A request of Setu's class that no Workload controls is called standalone. Setu creates a Workload for it.

use super::{FrontEnd, Workload, condition};
use crate::digest::hex_digest;
use crate::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Start of the name of a Workload that is created for a standalone request.
const STANDALONE: &str = "provisioningrequest-";
/// How much of the request's name that name keeps. The API server takes 253 characters.
const KEPT_OF_NAME: usize = 200;

/// `spec` of a ProvisioningRequest. It is immutable.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "autoscaling.x-k8s.io",
    version = "v1",
    kind = "ProvisioningRequest",
    plural = "provisioningrequests",
    namespaced,
    status = "ProvisioningRequestStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningRequestSpec {
    /// Who is to provide the capacity, and how.
    #[serde(default)]
    pub provisioning_class_name: String,
    /// Settings of that class.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// Pods that capacity is wanted for.
    #[serde(default)]
    pub pod_sets: Vec<RequestedPods>,
}

/// Pods that a ProvisioningRequest wants capacity for.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RequestedPods {
    /// The PodTemplate in the request's namespace.
    #[serde(default)]
    pub pod_template_ref: TemplateReference,
    /// How many.
    #[serde(default)]
    pub count: i32,
}

/// A PodTemplate, by its name.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct TemplateReference {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// `status` of a ProvisioningRequest.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningRequestStatus {
    /// Accepted, Provisioned, Failed and others.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Details that the class reports about the capacity.
    #[serde(default)]
    pub provisioning_class_details: BTreeMap<String, String>,
}

impl ProvisioningRequest {
    /// Conditions as last reported.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }

    /// Whether the condition of this type is True.
    pub fn is(&self, condition_type: &str) -> bool {
        condition::is_true(self.conditions(), condition_type)
    }

    /// Whether its nodes were reported.
    pub fn is_provisioned(&self) -> bool {
        self.is("Provisioned")
    }

    /// Whether Setu is to serve it.
    pub fn is_of_setus_class(&self) -> bool {
        self.spec.provisioning_class_name == names::REQUEST_CLASS
    }

    /// Whether Setu is to create a Workload for it.
    pub fn is_standalone(&self) -> bool {
        self.is_of_setus_class() && self.workload().is_none()
    }

    /// How many pods it is made for.
    pub fn pods(&self) -> u32 {
        let counts = self.spec.pod_sets.iter().map(|set| u32::try_from(set.count).unwrap_or_default());
        counts.fold(0, u32::saturating_add)
    }

    /// Name and UID of the Workload that controls it, if one does.
    pub fn workload(&self) -> Option<(&str, &str)> {
        controlling_workload(&self.metadata)
    }
}

/// Name and UID of the Workload that controls an object with this metadata, if one does.
pub fn controlling_workload(metadata: &ObjectMeta) -> Option<(&str, &str)> {
    let controller = metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    let workload =
        controller.filter(|o| o.kind == "Workload" && o.api_version.starts_with("kueue.x-k8s.io/"))?;
    Some((&workload.name, &workload.uid))
}

/// Name of the Workload that is created for the standalone request of this name.
pub fn name_of_standalone(request: &str) -> String {
    match request.split_at_checked(KEPT_OF_NAME) {
        Some((kept, rest)) if !rest.is_empty() => {
            format!("{STANDALONE}{}-{}", kept.trim_end_matches(['.', '-']), hex_digest(&[request], 4))
        }
        _ => format!("{STANDALONE}{request}"),
    }
}

impl Workload {
    /// Name and UID of the standalone request that it was created for. `None` for any other Workload, whatever its annotations say:
    /// its name must match, and nothing may own it.
    pub fn standalone_request(&self) -> Option<(&str, &str)> {
        let (name, uid) = self.metadata.annotations.as_ref()?.get(names::REQUEST)?.split_once('/')?;
        let is_alone = self.metadata.owner_references.iter().flatten().next().is_none();
        let is_meant = self.metadata.name.as_deref() == Some(name_of_standalone(name).as_str());
        (is_alone && is_meant).then_some((name, uid))
    }

    /// Whether it was created for this request.
    pub fn is_for(&self, request: &ProvisioningRequest) -> bool {
        self.standalone_request().is_some_and(|(_, uid)| request.metadata.uid.as_deref() == Some(uid))
    }

    /// Whether Kueue starts its pods, with what their ResourceFlavors say. A client starts those of a standalone request, also if
    /// Kueue made another request for its Workload.
    pub fn has_pods_of_kueue(&self) -> bool {
        let is_marked =
            || self.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(names::REQUEST));
        match self.front_end() {
            FrontEnd::Workload => true,
            FrontEnd::ProvisioningRequest => !is_marked(),
            FrontEnd::StandaloneRequest => false,
        }
    }
}
