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

/// A file with this text that is gone once the test is over.
struct File(std::path::PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("setu-{name}-{}.yaml", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn policy(name: &str, body: &str) -> Self {
        Self::new(name, &format!("apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: Policy\n{body}"))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_policy_file_that_is_missing_or_wrong_is_named_with_the_place() {
    refused(&["run", "--config", "/nowhere/policy.yaml"], "/nowhere/policy.yaml");
    let file = File::policy("wrong", "defaults: {deadlines: {lunch: 4m}}\ngaurds: {}\n");
    for command in [&["run", "--config", file.path()][..], &["policy", "check", file.path()]] {
        let first =
            format!("{}:3:24: defaults.deadlines.lunch: unknown key; did you mean launch?", file.path());
        refused(command, &first);
        refused(command, &format!("{}:4:1: gaurds: unknown key; did you mean guards?", file.path()));
    }
}

#[test]
fn several_policy_files_are_checked_at_once() {
    let (good, bad) = (File::policy("good", "guards: {gangNodes: 1}\n"), File::policy("bad", "guards: 1\n"));
    let output = setu(&["policy", "check", good.path(), bad.path()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stdout).unwrap().contains(&format!("{}: valid", good.path())));
    assert!(String::from_utf8(output.stderr).unwrap().contains("guards: found 1, expected a map"));
    assert_eq!(setu(&["policy", "check", good.path()]).status.code(), Some(0));
}

#[test]
fn a_flag_stands_above_the_environment_and_that_above_the_file() {
    let file = File::policy(
        "precedence",
        "cloudProvider: azure\ndefaults: {gates: {capacity: Off, nodeClass: Off}}\n",
    );
    let show = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_setu"));
        command.args(["policy", "show", "--check", "c", "--config", file.path()]).args(flags);
        let output = command.envs(environment.iter().copied()).output().unwrap();
        let page = String::from_utf8(output.stdout).unwrap();
        page.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let has =
        |page: &[String], line: &str| assert!(page.iter().any(|l| l == line), "{line} is not in {page:#?}");
    let page = show(&[], &[]);
    has(&page, "capacity: \"Off\" # file: defaults");
    has(&page, "cloudProvider: azure # file: cloudProvider");
    has(&page, "group: karpenter.azure.com # preset: azure");
    let environment = [("SETU_ENFORCE_CAPACITY", "false"), ("SETU_CLOUD_PROVIDER", "gcp")];
    let page = show(&[], &environment);
    has(&page, "capacity: Warn # environment: SETU_ENFORCE_CAPACITY");
    has(&page, "cloudProvider: gcp # environment: SETU_CLOUD_PROVIDER");
    has(&page, "nodeClass: \"Off\" # file: defaults");
    let flags = [
        "--enforce-capacity",
        "--cloud-provider=aws",
        "--node-class-gpu",
        "big",
        "--validate-node-class=false",
    ];
    let page = show(&flags, &environment);
    has(&page, "capacity: Enforce # flag: --enforce-capacity");
    has(&page, "kind: EC2NodeClass # preset: aws");
    has(&page, "gpu: big # flag: --node-class-gpu");
    has(&page, "nodeClass: Warn # flag: --validate-node-class");
}

#[test]
fn parameters_are_shown_above_everything_else() {
    let head =
        "apiVersion: setu.kueue.x-k8s.io/v1alpha1\nkind: ProvisioningParameters\nmetadata: {name: gpu}\n";
    let file = File::new(
        "parameters",
        &format!("{head}spec: {{gates: {{capacity: Warn}}, retry: {{compat: Setu}}}}"),
    );
    let output = setu(&["policy", "show", "--check", "c", "--enforce-capacity", "--parameters", file.path()]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("# ProvisioningParameters gpu") && page.contains("one-way door"), "{page}");
    let bad = File::new("bad-parameters", &format!("{head}spec: {{deadlines: {{gang: 0s}}}}"));
    refused(&["policy", "show", "--check", "c", "--parameters", bad.path()], "spec.deadlines.gang");
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
