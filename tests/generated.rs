//! Generated files are committed and equal to what the code makes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use setu::policy::PolicyFile;
use std::path::Path;

fn compare(file: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("SETU_REGENERATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(committed, made, "{file} is out of date: run `just generate`");
}

#[test]
fn the_schema_and_the_reference_of_the_policy_are_those_of_the_code() {
    compare("charts/setu/policy.schema.json", &setu::policy::schema::json());
    compare("docs/policy.md", &setu::policy::reference::markdown());
}

#[test]
fn the_example_of_a_policy_is_valid_and_names_every_key() {
    let text =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.yaml")).unwrap();
    let file = PolicyFile::parse(&text).unwrap();
    let spec = serde_json::to_value(&file.defaults).unwrap();
    let reference = setu::policy::reference::markdown();
    let keys = reference.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`').map(|(key, _)| key));
    let (_, of_spec) = reference.split_once("## Keys of `defaults`").unwrap();
    let (of_spec, _) = of_spec.split_once("## What a Job").unwrap();
    for key in keys.filter(|key| of_spec.contains(&format!("| `{key}` |")) && !key.contains("[]")) {
        let found = key.split('.').try_fold(&spec, |value, part| value.get(part));
        let elsewhere =
            ["nodePoolName", "retry.compat", "gates.placement.namespaces.matchExpressions"].contains(&key);
        assert!(found.is_some() || elsewhere, "{key} is not in examples/policy.yaml");
    }
}

#[test]
fn the_crd_is_that_of_the_code() {
    let crd = setu::cli::crds::yaml().unwrap();
    compare("examples/setup/crds.yaml", &crd);
    compare("charts/setu/files/crds.yaml", &crd);
    compare("manifests/crds.yaml", &crd);
}
