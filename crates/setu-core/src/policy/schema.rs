//! The JSON schema of the policy file, generated from the types.

use super::PolicyFile;
use schemars::generate::SchemaSettings;

/// The JSON schema of the policy file, for editors; pretty-printed, with a newline at the end.
pub fn json() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<PolicyFile>();
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
