//! `setu crds`: the custom resource definitions as YAML.

use super::CliError;
use crate::api::ProvisioningParameters;
use kube::CustomResourceExt;

/// Words that YAML 1.1, which kubectl and Helm read, parses as booleans unless they are quoted.
const BOOLEANS: [&str; 8] = ["Off", "off", "On", "on", "Yes", "yes", "No", "no"];

/// Prints the CRDs that Setu brings.
///
/// Example: setu crds | kubectl apply --server-side -f -
#[derive(clap::Args, Debug)]
pub struct Args {}

impl Args {
    /// Prints the CRDs.
    pub fn run(self) -> Result<(), CliError> {
        super::print(&yaml()?);
        Ok(())
    }
}

/// The CRDs in a form that all YAML parsers read the same: kubectl parses a bare `Off` as `false`, and
/// would allow that value instead.
pub fn yaml() -> Result<String, CliError> {
    let crd = ProvisioningParameters::crd();
    let text =
        serde_yaml::to_string(&crd).map_err(|e| CliError::Failed(format!("rendering the CRD: {e}")))?;
    let lines: Vec<String> = text.lines().map(quoted).collect();
    Ok(lines.join("\n") + "\n")
}

/// Quotes the value of a line if it could be parsed as a boolean.
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
    fn boolean_words_are_quoted_in_values_but_not_in_prose() {
        assert_eq!(quoted("    - Off"), "    - \"Off\"");
        assert_eq!(quoted("default: on"), "default: \"on\"");
        assert_eq!(quoted("  description: turn it on"), "  description: turn it on");
        assert!(yaml().unwrap().contains("- \"Off\"\n"));
    }
}
