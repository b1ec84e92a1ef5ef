//! Bad input ends with one clear line that says what to do, and exit code 2.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn setu(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_setu"))
        .args(arguments)
        .env("KUBECONFIG", "/nowhere/kubeconfig")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .output()
        .unwrap()
}

fn refused(arguments: &[&str], words: &str) {
    let output = setu(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(words), "{said}");
}

#[test]
fn without_a_cluster_it_says_how_to_name_one() {
    refused(&["run"], "Set KUBECONFIG to a kubeconfig file");
}

#[test]
fn a_policy_file_that_is_missing_or_wrong_is_named_with_the_place() {
    refused(&["run", "--config", "/nowhere/policy.yaml"], "/nowhere/policy.yaml");
    let path = std::env::temp_dir().join(format!("setu-policy-{}.yaml", std::process::id()));
    let text = "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\ndefaults: {deadlines: {lunch: 4m}}\n";
    std::fs::write(&path, text).unwrap();
    refused(&["run", "--config", path.to_str().unwrap()], "unknown field `lunch`");
    refused(&["run", "--config", path.to_str().unwrap()], "line 3");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn an_address_a_level_or_a_flag_that_is_wrong_is_named() {
    refused(&["run", "--metrics-bind-address", "8080"], "write :port or host:port");
    refused(&["run", "--log-level", "setu=loud"], "--log-level");
    refused(&["run", "--enforce-everything"], "--enforce-everything");
}

#[test]
fn charts_and_crds_are_printed() {
    let printed = |arguments: &[&str]| String::from_utf8(setu(arguments).stdout).unwrap();
    assert!(printed(&["statechart"]).starts_with("stateDiagram-v2"));
    assert!(printed(&["statechart", "--format", "scxml"]).contains("<scxml"));
    assert!(printed(&["crds"]).contains("kind: CustomResourceDefinition"));
}
