//! Kueue's AdmissionCheck (cluster-scoped): its controller and its parameters.

use crate::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

/// `spec` of an AdmissionCheck.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "AdmissionCheck",
    plural = "admissionchecks",
    status = "AdmissionCheckStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionCheckSpec {
    /// Key of the controller that answers; immutable.
    #[serde(default)]
    pub controller_name: String,
    /// The object that tunes this check, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<ParametersRef>,
}

/// Reference to a cluster-scoped parameters object.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ParametersRef {
    /// API group of the object.
    pub api_group: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

/// `status` of an AdmissionCheck.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionCheckStatus {
    /// Kueue reads only `Active`: while it is not True, no Workload of the queue is admitted.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl ParametersRef {
    /// Why Setu cannot use it, worded for the administrator; `None` if it names ProvisioningParameters.
    pub fn fault(&self) -> Option<String> {
        (!self.is_setus()).then(|| {
            format!(
                "spec.parameters names {}/{}; Setu understands {}/{} only",
                self.api_group,
                self.kind,
                names::API_GROUP,
                names::PARAMETERS_KIND
            )
        })
    }

    /// Whether it names an object of Setu's kind.
    fn is_setus(&self) -> bool {
        (self.api_group.as_str(), self.kind.as_str()) == (names::API_GROUP, names::PARAMETERS_KIND)
    }
}

impl AdmissionCheck {
    /// Name of the ProvisioningParameters that it names; `None` if it names none, or an object of another kind.
    pub fn parameters_name(&self) -> Option<&str> {
        let reference = self.spec.parameters.as_ref()?;
        reference.is_setus().then_some(reference.name.as_str())
    }

    /// Conditions as last reported; empty before the first report.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |s| &s.conditions)
    }

    /// Whether Kueue's own provisioning controller answers it, by ProvisioningRequests.
    pub fn is_by_request(&self) -> bool {
        self.spec.controller_name == names::PROVISIONING_REQUEST
    }
}
