//! The policy file described for machines: its JSON schema, from the types.

use super::PolicyFile;
use schemars::generate::SchemaSettings;

/// The JSON schema of the policy file, for editors; pretty, with a newline at its end.
pub fn json() -> String {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<PolicyFile>();
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}
