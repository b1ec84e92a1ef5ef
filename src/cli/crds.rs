//! `setu crds`: the custom resource definitions as YAML.

use super::Failure;
use crate::api::ProvisioningParameters;
use kube::CustomResourceExt;

/// Prints the CRDs that Setu brings.
///
/// Example: setu crds | kubectl apply --server-side -f -
#[derive(clap::Args, Debug)]
pub struct Args {}

impl Args {
    /// Prints them.
    pub fn run(self) -> Result<(), Failure> {
        let crd = ProvisioningParameters::crd();
        let text =
            serde_yaml::to_string(&crd).map_err(|e| Failure::Failed(format!("rendering the CRD: {e}")))?;
        super::print(&text);
        Ok(())
    }
}
