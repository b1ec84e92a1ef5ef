//! The summary after a demo: the states, nodes, waste and writes of each gang.

use crate::sim::show::ShownGang;
use std::fmt::Write as _;

/// Width of the lines if standard output is not a terminal.
const WIDTH: usize = 140;
/// Separator between the tiers that a gang tried.
const THEN: &str = " → ";
/// Width of the number columns, with the gaps between them.
const NUMBERS: usize = 42;
/// Minimum width of the WAY column.
const LEAST: usize = 40;

/// The summary, in lines of this many columns.
pub fn text(gangs: &[ShownGang], columns: Option<usize>) -> String {
    let mut text = String::from("\n");
    let width = gangs.iter().map(|g| g.job.len()).max().unwrap_or_default().max(4);
    let tiers = |gang: &ShownGang| gang.tiers.join(THEN);
    let wide = gangs.iter().map(|g| tiers(g).chars().count()).max().unwrap_or_default().max("TIERS".len());
    let room = columns.unwrap_or(WIDTH).saturating_sub(width + NUMBERS + wide + 2).max(LEAST);
    // Writing to a String cannot fail.
    let _ =
        writeln!(text, "{:<width$}  NODES  WASTED NODE-SECONDS  API WRITES  {:<wide$}  WAY", "GANG", "TIERS");
    for gang in gangs {
        let steps =
            gang.path.iter().map(|(state, time)| format!("{} {:.1}s", state.name(), time.as_secs_f64()));
        let end = gang.state.map_or("no quota", |(state, _)| state.name()).to_owned();
        let mut way = wrapped(steps.chain([end]), room).into_iter();
        let first = way.next().unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<width$}  {:>5}  {:>19.1}  {:>10}  {:<wide$}  {first}",
            gang.job,
            gang.created,
            gang.wasted,
            gang.writes,
            tiers(gang)
        );
        for line in way {
            let _ = writeln!(text, "{:width$}  {:5}  {:19}  {:10}  {:wide$}  {line}", "", "", "", "", "");
        }
    }
    text.push('\n');
    text.push_str(&filled(LEGEND, columns.unwrap_or(WIDTH)));
    text
}

/// The words of a text in lines of at most this many columns.
fn filled(text: &str, columns: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + word.len() < columns => {
                let _ = write!(line, " {word}");
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

/// The meaning of the columns.
const LEGEND: &str = "
NODES were created in all its attempts: a rival that gets a part of its nodes gives them back and tries again. They were
WASTED for as long as they existed without a pod of it. API WRITES are Setu's: to its Workload and NodeClaims, and Events.
TIERS are those of the policy, or capacity types. The WAY has the time in each state.
";

/// Joins steps with arrows and wraps the lines.
fn wrapped(steps: impl Iterator<Item = String>, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for step in steps {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            line.push_str(&step);
        } else if line.chars().count() + step.len() + 3 > width {
            lines.push(format!("→ {step}"));
        } else {
            let _ = write!(line, " → {step}");
        }
    }
    lines
}

/// Suggestions for what to try next.
pub const DEEPER: &str = "
Look deeper, with `cargo run --release --` in the place of `setu` while it is not installed:
  setu demo --serve 127.0.0.1:8080  # the same with a port for kubectl; it stays until Ctrl-C
  setu demo --scenario shortage     # one of the scenarios that the tests run; `list` shows them all
  setu demo --speed 0 --seed 2      # another random seed, as fast as the machine can
  setu statechart                   # every state and what leads from one to another
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_path_is_wrapped_without_loss() {
        let steps: Vec<String> = (0..20).map(|n| format!("State {n}s")).collect();
        let lines = wrapped(steps.iter().cloned(), 50);
        assert!(lines.len() > 1 && lines.iter().all(|l| l.chars().count() <= 50));
        assert_eq!(lines.join(" "), steps.join(" → "));
    }
}
