//! What it all came to: for each gang its way, its nodes, its waste and its writes.

use super::live::name;
use crate::sim::show::Gang;
use std::fmt::Write as _;

/// The summary of a show.
pub fn text(gangs: &[Gang]) -> String {
    let mut text = String::from("\n");
    let width = gangs.iter().map(|g| g.job.len()).max().unwrap_or_default().max(4);
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{:<width$}  {:>5}  {:>13}  {:>10}  PATH",
        "GANG", "NODES", "WASTED NODE-S", "API WRITES"
    );
    for gang in gangs {
        let path =
            gang.path.iter().map(|(state, time)| format!("{} {:.1}s", name(*state), time.as_secs_f64()));
        let end = gang.state.map_or("no quota", |(state, _)| name(state)).to_owned();
        let path: Vec<String> = path.chain([end]).collect();
        let _ = writeln!(
            text,
            "{:<width$}  {:>5}  {:>13.1}  {:>10}  {}",
            gang.job,
            gang.created,
            gang.wasted,
            gang.writes,
            path.join(" → ")
        );
    }
    text.push_str(
        "\nLook deeper: setu demo --speed 0 --seed 2; setu statechart; setu demo --scenario examples/scenarios/shortage.yaml\n",
    );
    text
}
