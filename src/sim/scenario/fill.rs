//! Fills the placeholders of a scenario: `${id}`, `${long}` and `${now+40s}`.

use crate::api::duration::Span;
use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde_json::Value;
use setu_sim::values::seconds;

/// Fills in the scenario's id, and a name prefix that is as long as possible.
pub fn filled(text: &str, id: &str) -> String {
    text.replace("${id}", id).replace("${long}", &"long-".repeat(50))
}

/// Fills the scenario's id into a value.
pub fn substituted(value: &Value, id: &str) -> Result<Value> {
    Ok(serde_json::from_str(&filled(&value.to_string(), id))?)
}

/// Fills in times that are written as spans from now.
pub fn timed(text: &str, now: Timestamp) -> Result<String> {
    let mut parts = text.split("${now+");
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (span, rest) = part.split_once('}').context("${now+ has no end")?;
        let span: Span = span.parse().with_context(|| format!("in ${{now+{span}}}"))?;
        filled += &seconds(now.checked_add(span.signed())?);
        filled += rest;
    }
    Ok(filled)
}

/// Reads the documents of a YAML file.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    use serde::Deserialize as _;
    serde_yaml::Deserializer::from_str(text).map(|d| Ok(Value::deserialize(d)?)).collect()
}
