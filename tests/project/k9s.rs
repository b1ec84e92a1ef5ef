//! The files for k9s call commands that exist, and their columns read what Setu writes.

use clap::CommandFactory as _;
use serde_json::Value;
use setu::cli::Cli;
use setu::names;
use std::collections::BTreeSet;

fn read(file: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn yaml(file: &str) -> Value {
    serde_yaml::from_str(&read(file)).unwrap()
}

#[test]
fn every_k9s_plugin_calls_a_command_of_setu() {
    let file = yaml("k9s/plugins.yaml");
    let plugins = file["plugins"].as_object().unwrap();
    assert!(plugins.len() > 2, "{plugins:?}");
    let mut keys = BTreeSet::new();
    for (name, plugin) in plugins {
        assert!(keys.insert(plugin["shortCut"].as_str().unwrap()), "{name}: its key is taken");
        assert_eq!((&plugin["command"], &plugin["args"][0]), (&"sh".into(), &"-c".into()), "{name}");
        let line = plugin["args"][1].as_str().unwrap();
        let typed = line.split(" 2>&1 |").next().unwrap().split(' ');
        if let Err(error) = Cli::command().try_get_matches_from(typed) {
            panic!("{name}: {line}: {error}");
        }
        for variable in line.split('$').skip(1).filter_map(|part| part.split(' ').next()) {
            assert!(["NAME", "NAMESPACE", "CONTEXT"].contains(&variable), "{name}: k9s has no {variable}");
        }
    }
}

#[test]
fn the_columns_of_k9s_read_what_setu_writes() {
    let views = yaml("k9s/views.yaml");
    let of = |kind: &str, column: &str| -> String {
        let columns = views["views"][kind]["columns"].as_array().unwrap();
        let start = format!("{column}:");
        let found = columns.iter().find_map(|c| c.as_str().unwrap().strip_prefix(&start));
        found.unwrap_or_else(|| panic!("{kind} has no column {column}")).to_owned()
    };
    // kubectl's tests run the same columns on a cluster.
    let kubectl = read("columns.txt");
    let columns: Vec<&str> = kubectl.lines().nth(1).unwrap().split_whitespace().collect();
    let workloads = "kueue.x-k8s.io/v1beta2/workloads";
    for (column, number) in [("QUEUE", 2), ("STATE", 3), ("PROGRESS", 4)] {
        assert_eq!(of(workloads, column), columns[number]);
    }
    let escaped = |key: &str| key.replace('.', "\\.");
    assert!(of(workloads, "STATE").contains(&escaped(names::STATE_PREFIX)));
    let workload = format!(".metadata.annotations['{}']", escaped(names::WORKLOAD));
    assert_eq!(of("karpenter.sh/v1/nodeclaims", "WORKLOAD"), workload);
}
