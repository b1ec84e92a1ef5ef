//! The documents that users read before they install the chart: its README, and the guide for Argo CD and Flux.

use crate::helm::{chart, command, root, succeed};
use crate::render::{compare, documents, fenced};
use serde_json::Value;
use setu_e2e::{HarnessLayout, programs};
use std::process::Command;

#[test]
fn the_readme_matches_the_values_and_its_command_renders() {
    let mut docs = Command::new(programs::helm_docs(&HarnessLayout::default()).unwrap());
    docs.args(["--dry-run", "--log-level", "warning", "--sort-values-order", "file", "--chart-search-root"]);
    let made = succeed(docs.arg(chart()));
    let rows = made.lines().filter(|line| line.starts_with("| "));
    assert!(rows.clone().count() > 80, "{made}");
    for row in rows.clone() {
        assert!(!row.ends_with("|  |"), "values.yaml does not say what this does: {row}");
    }
    compare(&chart().join("README.md"), &made);
    let line = fenced(&made, "sh")[0].replace("helm install", "helm template");
    let folder = tempfile::tempdir().unwrap();
    let helm = command(folder.path());
    let bin = std::path::Path::new(helm.get_program()).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let rendered = succeed(Command::new("bash").args(["-ec", &line]).current_dir(chart()).env("PATH", path));
    assert!(rendered.contains("[\"system:masters\",\"GROUP\"]"), "{line}");
}

#[test]
fn the_values_in_the_gitops_guide_are_those_of_the_chart() {
    let text = std::fs::read_to_string(root().join("docs/gitops.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut rendered = 0;
    for object in fenced(&text, "yaml").into_iter().flat_map(documents) {
        let values = match object["kind"].as_str().unwrap() {
            "Application" => &object["spec"]["source"]["helm"]["valuesObject"],
            "HelmRelease" => &object["spec"]["values"],
            _ => continue,
        };
        assert!(values["admissionPolicies"]["breakGlassGroups"].is_array(), "{values}");
        let file = folder.path().join("values.yaml");
        std::fs::write(&file, values.to_string()).unwrap();
        let mut helm = command(folder.path());
        let all = documents(&succeed(helm.args(["template", "setu", "--values"]).arg(&file).arg(chart())));
        let hook = |of: &Value| of["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete";
        assert!(all.iter().any(|of| of["kind"] == "Job" && hook(of)), "the guide speaks of the hook");
        rendered += 1;
    }
    assert_eq!(rendered, 2);
}

#[test]
fn no_object_depends_on_the_cluster_state() {
    let templates = std::fs::read_dir(chart().join("templates")).unwrap().map(|e| e.unwrap().path());
    for file in templates.filter(|file| file.is_file() && !file.ends_with("NOTES.txt")) {
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("lookup"), "{}: Argo CD renders without the cluster", file.display());
    }
}
