//! The documents of YAML files, and what a cluster would add to them.

use super::pod_sets::text;
use crate::api::node_pool::ASSUMED;
use crate::cli::CliError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// An object of a file.
pub struct Document<'p> {
    pub object: Value,
    /// The file.
    pub path: &'p Path,
    /// The file and the number of the document in it.
    pub place: String,
}

/// Reads YAML files.
pub fn read(files: &[PathBuf]) -> Result<Vec<Document<'_>>, CliError> {
    let mut all = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path)
            .map_err(|e| CliError::Invalid(format!("reading {}: {e}", path.display())))?;
        for (n, document) in (1..).zip(serde_yaml::Deserializer::from_str(&text)) {
            let place = format!("{}, document {n}", path.display());
            let value =
                Value::deserialize(document).map_err(|e| CliError::Invalid(format!("{place}: {e}")))?;
            let of_file = |object| Document { object, path, place: place.clone() };
            all.extend(items(value).into_iter().map(of_file));
        }
    }
    Ok(all)
}

/// The objects of a document: those of a list, or the one that it is.
fn items(mut document: Value) -> Vec<Value> {
    if text(&document, "/kind") != "List" {
        return vec![document];
    }
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items.into_iter().flat_map(self::items).collect(),
        _ => Vec::new(),
    }
}

/// An object of a file with what a cluster would add.
pub fn completed(kind: &str, object: Value) -> Value {
    match kind {
        "NodePool" => assumed_ready(object),
        "ResourceFlavor" => with_spec(object),
        _ => object,
    }
}

/// A ResourceFlavor may be written without a spec, which Kueue adds.
fn with_spec(mut flavor: Value) -> Value {
    if let Some(fields) = flavor.as_object_mut() {
        fields.entry("spec").or_insert_with(|| json!({}));
    }
    flavor
}

/// A NodePool that was never in a cluster has no status; it is taken for usable.
fn assumed_ready(mut pool: Value) -> Value {
    if pool.get("status").is_none()
        && let Some(fields) = pool.as_object_mut()
    {
        let ready = json!({"type": "Ready", "status": "True", "reason": ASSUMED, "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z"});
        fields.insert("status".to_owned(), json!({"conditions": [ready]}));
    }
    pool
}
