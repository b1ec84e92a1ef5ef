//! The frameworks that docs/frameworks.md names are those that have an example and those that a test runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FOLDER: &str = "frameworks/";
const RUNS: &str = "tests/e2e/tests/examples.rs";

fn path(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn read(file: &str) -> String {
    std::fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

#[test]
fn each_framework_has_a_row_an_example_and_a_run_on_the_real_control_plane() {
    let document = read("docs/frameworks.md");
    let row = |line: &str| {
        let kind = line.strip_prefix("| ")?.split_once(" |")?.0.to_owned();
        let example = line.split_once("](../examples/")?.1.split_once(')')?.0.to_owned();
        Some((example, kind))
    };
    let rows: BTreeMap<String, String> = document.lines().filter_map(row).collect();
    let runs = read(RUNS);
    let runs: BTreeSet<String> = runs
        .split("\n    (\"")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("\", ")?.0.to_owned()))
        .collect();
    let unplayed: Vec<&String> = rows.keys().filter(|example| !runs.contains(*example)).collect();
    assert!(unplayed.is_empty(), "{RUNS} does not run {unplayed:?}");

    let files = std::fs::read_dir(path("examples").join(FOLDER)).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| FOLDER.to_owned() + file.unwrap().file_name().to_str().unwrap()).collect();
    let of_folder = |example: &&String| example.starts_with(FOLDER);
    for (what, named) in [
        ("docs/frameworks.md", rows.keys().filter(of_folder).cloned().collect::<BTreeSet<String>>()),
        (RUNS, runs.iter().filter(of_folder).cloned().collect()),
    ] {
        let apart: Vec<&String> = named.symmetric_difference(&files).collect();
        assert!(apart.is_empty(), "only in {what}, or only in examples/{FOLDER}: {apart:?}");
    }
    for (example, kind) in rows.iter().filter(|(example, _)| files.contains(*example)) {
        let is_there = read(&format!("examples/{example}")).contains(&format!("kind: {kind}\n"));
        assert!(is_there, "examples/{example} has no {kind}");
    }
}
