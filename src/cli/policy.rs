//! `setu policy`: validates policy files, prints their schema, and shows the effective policy of a check.

use super::CliError;
use super::policy_flags::PolicyFlags;
use super::render;
use crate::api::RawParameters;
use crate::api::parameters::ProvisioningParametersSpec;
use crate::names;
use crate::plan::policy_warnings;
use crate::policy::{PolicyFile, reference, schema, show};
use clap::{Subcommand, ValueEnum};
use kube::api::TypeMeta;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Checks policy files, prints their schema, and shows the policy in force for a check.
///
/// Example: setu policy check policy.yaml
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Checks policy files and manifests of ProvisioningParameters: reports every error, in policy files with line, column and key.
    /// Settings that are valid but probably not intended are warnings.
    ///
    /// Example: setu policy check policy.yaml
    Check {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Prints the JSON schema of the policy file, for editors, or its reference, for people.
    ///
    /// Example: setu policy schema > policy.schema.json
    Schema {
        /// What to print.
        #[arg(long, value_enum, default_value_t = Format::Json)]
        format: Format,
    },
    /// Prints the effective policy of a check as YAML, with the origin of each value.
    ///
    /// Example: setu policy show --check karpenter-provision --config policy.yaml
    Show(Box<Show>),
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Format {
    Json,
    Markdown,
}

#[derive(clap::Args, Debug)]
struct Show {
    /// Name of the AdmissionCheck.
    #[arg(long, value_name = "NAME")]
    check: String,
    /// Manifest of the ProvisioningParameters that the check names.
    #[arg(long, value_name = "FILE")]
    parameters: Option<PathBuf>,
    #[command(flatten)]
    policy: PolicyFlags,
}

/// A manifest.
#[derive(Deserialize)]
struct Manifest {
    #[serde(flatten)]
    types: TypeMeta,
    #[serde(flatten)]
    object: RawParameters,
}

impl Args {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Check { files } => check(&files),
            Command::Schema { format } => {
                super::print(&match format {
                    Format::Json => schema::json(),
                    Format::Markdown => reference::markdown(),
                });
                Ok(())
            }
            Command::Show(show) => show.run(),
        }
    }
}

fn check(files: &[PathBuf]) -> Result<(), CliError> {
    let wrong: Vec<String> = files.iter().filter_map(|path| check_file(path).err()).collect();
    if wrong.is_empty() { Ok(()) } else { Err(CliError::Invalid(wrong.join("\n"))) }
}

/// Checks a policy file or a manifest of ProvisioningParameters. The error is all that is wrong with it, in words.
fn check_file(path: &Path) -> Result<(), String> {
    let states_devices = if is_parameters(path) {
        let (_, spec) = parameters(path).map_err(|error| error.to_string())?;
        for warning in policy_warnings::of_parameters(&spec) {
            render::remark(&format!("{}: {warning} (warning)", path.display()));
        }
        states_devices([&spec])
    } else {
        let file = PolicyFile::read(path).map_err(|error| error.to_string())?;
        warn(path);
        states_devices(std::iter::once(&file.defaults).chain(file.checks.values()))
    };
    super::print(&format!("{}: valid\n", path.display()));
    if states_devices {
        render::remark(&format!("{}: devices: {DEVICES_IN_KUEUE} (note)", path.display()));
    }
    Ok(())
}

/// Whether a file is the manifest of ProvisioningParameters.
fn is_parameters(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    serde_yaml::from_str::<TypeMeta>(&text).is_ok_and(|types| types.kind == names::PARAMETERS_KIND)
}

/// Restrictions of Kueue on pods with devices, whatever the policy says.
const DEVICES_IN_KUEUE: &str = "Kueue admits pods with device claims only by ResourceClaimTemplates with exact counts, only \
                                for the classes in its deviceClassMappings, and not with topology-aware scheduling";

fn states_devices<'s>(layers: impl IntoIterator<Item = &'s ProvisioningParametersSpec>) -> bool {
    layers.into_iter().any(|spec| spec.devices.as_ref().is_some_and(|devices| !devices.is_empty()))
}

/// Prints warnings to standard error about settings of a valid file that are probably not intended.
fn warn(path: &Path) {
    // The file was read just now. If it has changed or gone since, that is not worth a warning.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    for problem in policy_warnings::of_text(&text) {
        render::remark(&format!("{}:{problem} (warning)", path.display()));
    }
}

impl Show {
    fn run(self) -> Result<(), CliError> {
        let settings = self.policy.settings()?;
        let parameters = self.parameters.as_deref().map(parameters).transpose()?;
        let named = parameters.as_ref().map(|(name, spec)| (name.as_str(), spec));
        let checks = &settings.file.checks;
        if !checks.is_empty() && !checks.contains_key(&self.check) {
            let known: Vec<&str> = checks.keys().map(String::as_str).collect();
            let (check, known) = (&self.check, known.join(", "));
            render::remark(&format!(
                "the policy file has no entry for check {check}, only for {known}; its defaults apply"
            ));
        }
        super::usable(&self.check, &settings.policy(&self.check, named.map(|(_, spec)| spec)))?;
        super::print(&show::show(&settings, &self.check, named));
        Ok(())
    }
}

/// Name and spec of the ProvisioningParameters in a file.
fn parameters(path: &Path) -> Result<(String, ProvisioningParametersSpec), CliError> {
    let invalid = |why: String| CliError::Invalid(format!("{}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| invalid(e.to_string()))?;
    let manifest: Manifest = serde_yaml::from_str(&text).map_err(|e| invalid(e.to_string()))?;
    let Manifest { types, object } = manifest;
    if (types.api_version.split('/').next(), types.kind.as_str())
        != (Some(names::API_GROUP), names::PARAMETERS_KIND)
    {
        let mismatch = format!(
            "is {} {}, and not {} of {}",
            types.api_version,
            types.kind,
            names::PARAMETERS_KIND,
            names::API_GROUP
        );
        return Err(invalid(mismatch));
    }
    let spec = crate::controllers::parameters::read(&object).map_err(invalid)?;
    Ok((object.metadata.name.unwrap_or_default(), spec))
}
