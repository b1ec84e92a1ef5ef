//! `setu crds`: the custom resource definitions as YAML.

use super::Failure;
use crate::api::ProvisioningParameters;
use kube::CustomResourceExt;

/// Words that YAML 1.1, which kubectl and Helm read, takes for booleans when they are not quoted.
const BOOLEANS: [&str; 8] = ["Off", "off", "On", "on", "Yes", "yes", "No", "no"];

/// Prints the CRDs that Setu brings.
///
/// Example: setu crds | kubectl apply --server-side -f -
#[derive(clap::Args, Debug)]
pub struct Args {}

impl Args {
    /// Prints them.
    pub fn run(self) -> Result<(), Failure> {
        super::print(&yaml()?);
        Ok(())
    }
}

/// The CRDs in a form that every YAML parser reads alike: kubectl takes a bare `Off` for `false`, and would
/// allow that instead.
pub fn yaml() -> Result<String, Failure> {
    let crd = ProvisioningParameters::crd();
    let text = serde_yaml::to_string(&crd).map_err(|e| Failure::Failed(format!("rendering the CRD: {e}")))?;
    let lines: Vec<String> = text.lines().map(quoted).collect();
    Ok(lines.join("\n") + "\n")
}

/// A line whose value is quoted if it could be taken for a boolean.
fn quoted(line: &str) -> String {
    let value = line.rsplit(' ').next().unwrap_or_default();
    let before = line.strip_suffix(value).unwrap_or_default();
    let is_value = before.ends_with("- ") || before.ends_with(": ");
    if is_value && BOOLEANS.contains(&value) { format!("{before}\"{value}\"") } else { line.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_some_parsers_take_for_booleans_are_quoted_and_prose_is_not() {
        assert_eq!(quoted("    - Off"), "    - \"Off\"");
        assert_eq!(quoted("default: on"), "default: \"on\"");
        assert_eq!(quoted("  description: turn it on"), "  description: turn it on");
        assert!(yaml().unwrap().contains("- \"Off\"\n"));
    }
}
