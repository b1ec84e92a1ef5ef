//! The scenario to play: one of the binary's own, by name, or a file of the user.

use super::super::CliError;
use crate::sim::scenario::{self, Run};
use crate::words::{counted, nearest};
use std::fmt::Write as _;
use std::path::Path;

/// The argument that lists the names.
pub const LIST: &str = "list";

/// The runs of a scenario, given by name or as a file.
pub fn runs(scenario: &str) -> Result<Vec<Run>, CliError> {
    let invalid = |e: anyhow::Error| CliError::Invalid(format!("{e:#}"));
    let known = scenario::find(scenario).map_err(invalid)?;
    if !known.is_empty() {
        return Ok(known);
    }
    let path = Path::new(scenario);
    if path.is_file() {
        let runs = scenario::read_file(path).map_err(invalid)?;
        let wrong = |e: anyhow::Error| invalid(e.context(scenario.to_owned()));
        runs.iter().try_for_each(scenario::check).map_err(wrong)?;
        return Ok(runs);
    }
    let is_path = scenario.contains('/') || path.extension().is_some_and(|e| e == "yaml");
    let what = if is_path { "is no file" } else { "is not the name of a scenario" };
    let names: Vec<&str> = scenario::names().collect();
    let near = nearest(path.file_stem().and_then(|s| s.to_str()).unwrap_or(scenario), &names);
    let near = near.map_or_else(String::new, |name| format!("; did you mean {name}?"));
    let how = format!("`setu demo --scenario {LIST}` shows the names");
    Err(CliError::Invalid(format!("--scenario {scenario} {what}{near} ({how})")))
}

/// Every built-in scenario, one per line.
pub fn list() -> Result<String, CliError> {
    let width = scenario::names().map(str::len).max().unwrap_or_default();
    let mut text = String::new();
    for name in scenario::names() {
        let runs = scenario::find(name).map_err(|e| CliError::Failed(format!("{name}: {e:#}")))?;
        let Some(first) = runs.first() else { continue };
        let title = &first.scenario.title;
        let more = match runs.len() {
            1 if first.scenario.kill_after_each_write => ", once for each write".to_owned(),
            1 => String::new(),
            many => format!(" ({})", counted(u32::try_from(many).unwrap_or(u32::MAX), "run")),
        };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<width$}  {title}{more}");
    }
    Ok(text)
}

/// A notice of what is skipped if a scenario is served: only its first run is played, because its cluster stays.
pub fn left_out(scenario: &str, runs: &[Run]) -> Option<String> {
    let (first, others) = runs.split_first()?;
    if let Some(next) = others.first() {
        let all = counted(u32::try_from(runs.len()).unwrap_or(u32::MAX), "run");
        let how = if scenario::names().any(|name| name == scenario) {
            format!("; name another by its id, such as --scenario {}", next.id)
        } else {
            String::new()
        };
        return Some(format!("the scenario has {all}, of which the first is served{how}"));
    }
    first.scenario.kill_after_each_write.then(|| "served without the kills after each write".to_owned())
}
