//! Expands scenario files into runs: one for each combination of a file's matrix.

use super::file::{Scenario, ScenarioStep};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// One run of a scenario, with its alternatives chosen.
#[derive(Clone, Debug)]
pub struct Run {
    /// Name for the report.
    pub title: String,
    /// Id of all its objects: short, a DNS label.
    pub id: String,
    /// The scenario, with `${id}` not replaced yet.
    pub scenario: Scenario,
}

/// Reads all scenario files of a folder into runs.
pub fn read(folder: &Path) -> Result<Vec<Run>> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    files.sort_by_key(std::fs::DirEntry::path);
    let mut runs = Vec::new();
    for file in files.iter().map(std::fs::DirEntry::path) {
        if file.extension().is_some_and(|e| e == "yaml") {
            runs.extend(read_file(&file)?);
        }
    }
    Ok(runs)
}

/// Reads one scenario file into runs, named after the file.
pub fn read_file(file: &Path) -> Result<Vec<Run>> {
    let stem = file.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    parse(stem, &text).with_context(|| format!("{}", file.display()))
}

/// Reads a scenario into runs.
pub fn parse(stem: &str, text: &str) -> Result<Vec<Run>> {
    let value: Value = serde_yaml::from_str(text)?;
    let scenario: Scenario = serde_json::from_value(value)?;
    expand(stem, &scenario)
}

/// One run for every combination of the matrix.
fn expand(stem: &str, scenario: &Scenario) -> Result<Vec<Run>> {
    let mut choices: Vec<BTreeMap<String, String>> = vec![BTreeMap::new()];
    for (axis, options) in &scenario.matrix {
        ensure!(!options.is_empty(), "axis {axis} of the matrix has no alternatives");
        choices = choices
            .iter()
            .flat_map(|chosen| {
                options.keys().map(|option| {
                    let mut chosen = chosen.clone();
                    chosen.insert(axis.clone(), option.clone());
                    chosen
                })
            })
            .collect();
    }
    let mut runs = Vec::new();
    for chosen in choices {
        let mut scenario = scenario.clone();
        scenario.steps = resolve(&scenario, &scenario.steps, &chosen)?;
        let suffix: Vec<&str> = chosen.values().map(String::as_str).collect();
        let title = if suffix.is_empty() {
            scenario.title.clone()
        } else {
            format!("{}: {}", scenario.title, suffix.join(", "))
        };
        let id = format!("{stem}-{}", suffix.join("-")).trim_end_matches('-').to_lowercase();
        runs.push(Run { title, id, scenario });
    }
    Ok(runs)
}

fn resolve(
    scenario: &Scenario,
    steps: &[ScenarioStep],
    chosen: &BTreeMap<String, String>,
) -> Result<Vec<ScenarioStep>> {
    let mut all = Vec::new();
    for step in steps {
        match step {
            ScenarioStep::Use(axis) => {
                let option = chosen.get(axis).with_context(|| format!("no axis {axis} in the matrix"))?;
                let steps = scenario.matrix.get(axis).and_then(|o| o.get(option));
                all.extend(steps.with_context(|| format!("no alternative {option} on axis {axis}"))?.clone());
            }
            step => all.push(step.clone()),
        }
    }
    Ok(all)
}
