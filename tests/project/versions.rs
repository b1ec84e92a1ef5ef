//! The versions that the end-to-end tests run on, as docs/compatibility.md has them.

use setu::sim::scenario::{self, KarpenterProvider};
use std::collections::BTreeMap;
use std::path::Path;

const DOCUMENT: &str = "docs/compatibility.md";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The version of a package that a Go module requires.
pub fn version_of(module: &str, package: &str) -> String {
    let lines = module.lines().map(|line| line.trim_start().trim_start_matches("require "));
    let version = lines.filter_map(|line| line.strip_prefix(package)?.strip_prefix(" v"));
    version.map(|rest| rest.split(' ').next().unwrap().to_owned()).next().unwrap()
}

/// The version of a package in a set of versions.
fn version_in(set: &str, module: &str, package: &str) -> String {
    let folder = root().join("tests/e2e/programs").join(module);
    let own = folder.join(format!("{set}.mod"));
    let file = if own.exists() { own } else { folder.join("go.mod") };
    version_of(&std::fs::read_to_string(file).unwrap(), package)
}

fn minor(version: &str) -> (u32, u32) {
    let mut parts = version.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}

/// The table of the sets of versions, with how many scenarios run on each, and what needs a newer version.
fn versions() -> String {
    const PROGRAMS: [(&str, &str, &str); 5] = [
        ("Kubernetes", "k8s", "k8s.io/kubernetes"),
        ("Karpenter", "karpenter", "sigs.k8s.io/karpenter"),
        ("Kueue", "kueue", "sigs.k8s.io/kueue"),
        ("JobSet", "kueue", "sigs.k8s.io/jobset"),
        ("LeaderWorkerSet", "kueue", "sigs.k8s.io/lws"),
    ];
    let folders = ["examples/scenarios", "tests/e2e/scenarios"];
    let runs = folders.into_iter().flat_map(|folder| scenario::read(&root().join(folder)).unwrap());
    let mut scenarios: BTreeMap<String, BTreeMap<String, String>> = runs
        .filter(|run| run.scenario.provider == KarpenterProvider::Kwok)
        .map(|run| (run.scenario.title, run.scenario.since))
        .collect();
    let names = PROGRAMS.map(|(name, _, _)| name).join(" | ");
    let mut lines =
        vec![format!("| set | {names} | scenarios |"), format!("|---|{}", "---|".repeat(PROGRAMS.len() + 1))];
    for set in ["oldest", "between", "", "newest"] {
        let versions = PROGRAMS.map(|(_, module, package)| version_in(set, module, package));
        let reaches = |since: &&BTreeMap<String, String>| {
            since.iter().all(|(program, oldest)| {
                let at = PROGRAMS.iter().position(|(name, _, _)| name.to_lowercase() == *program).unwrap();
                minor(&versions[at]) >= minor(oldest)
            })
        };
        let (count, all) = (scenarios.values().filter(reaches).count(), scenarios.len());
        let name = if set.is_empty() { "each change" } else { set };
        lines.push(format!("| {name} | {} | {count} of {all} |", versions.join(" | ")));
    }
    lines.extend(["", "What needs more than the oldest set:", ""].map(str::to_owned));
    scenarios.retain(|_, since| !since.is_empty());
    for (title, since) in scenarios {
        let since: Vec<String> =
            since.iter().map(|(program, version)| format!("{program} {version}")).collect();
        lines.push(format!("- {title} ({})", since.join(", ")));
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_table_of_versions_is_generated_from_the_modules_and_the_scenarios() {
    let read = || std::fs::read_to_string(root().join(DOCUMENT)).unwrap();
    let text = read();
    let (before, rest) = text.split_once("<!-- versions -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- /versions -->").unwrap();
    let generated = format!("{before}<!-- versions -->\n{}<!-- /versions -->{after}", versions());
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::write(root().join(DOCUMENT), &generated).unwrap();
    }
    assert_eq!(read(), generated, "the table of versions is out of date: run `just generate`");
}
