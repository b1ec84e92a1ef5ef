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
        super::print(&yaml().map_err(|e| Failure::Failed(format!("rendering the CRD: {e}")))?);
        Ok(())
    }
}

/// The CRDs as YAML of any version: kubectl takes a bare `Off` for `false`, and would allow that instead.
pub fn yaml() -> Result<String, serde_yaml::Error> {
    let text = serde_yaml::to_string(&ProvisioningParameters::crd())?;
    Ok(text.replace("- Off\n", "- \"Off\"\n"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_bare_word_in_the_crds_is_a_boolean_to_kubectl() {
        let text = super::yaml().unwrap();
        assert!(text.contains("- \"Off\""));
        let word =
            |line: &str| line.trim_start_matches([' ', '-']).rsplit(": ").next().unwrap_or("").to_lowercase();
        for line in text.lines() {
            assert!(!["on", "off", "yes", "no", "y", "n"].contains(&word(line).as_str()), "{line}");
        }
    }
}
