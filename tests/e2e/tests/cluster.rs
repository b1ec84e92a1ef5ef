//! `just cluster` prints the path to a kubeconfig of a complete cluster, and ends on SIGTERM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use setu_e2e::{HarnessLayout, programs};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Whether kubectl succeeded with these arguments, and its output.
fn kubectl(kubeconfig: &str, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(programs::kubectl(&HarnessLayout::default()).unwrap());
    let output = command.env("KUBECONFIG", kubeconfig).args(arguments).current_dir(root()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a line of the install options in a shell. Returns whether it succeeded, and its output.
fn typed(kubeconfig: &str, begins: &str) -> (bool, String) {
    let options = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
    let line = options.lines().find(|line| line.starts_with(begins)).unwrap();
    let kubectl = programs::kubectl(&HarnessLayout::default()).unwrap();
    let path = [kubectl.parent().unwrap().to_owned()].into_iter();
    let path =
        std::env::join_paths(path.chain(std::env::split_paths(&std::env::var_os("PATH").unwrap()))).unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).envs([("PATH", path), ("KUBECONFIG", kubeconfig.into())]);
    let output = shell.current_dir(root()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_cluster_starts_accepts_the_manifests_and_ends() {
    let justfile = std::fs::read_to_string(root().join("justfile")).unwrap();
    let recipe =
        justfile.lines().find_map(|l| l.strip_prefix("cluster *flags='")?.strip_suffix("':")).unwrap();
    let mut cluster = Command::new(env!("CARGO_BIN_EXE_setu-e2e"))
        .arg("cluster")
        .args(recipe.split(' '))
        .current_dir(root())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(cluster.stdout.take().unwrap()).lines().next();
    let printed = printed.unwrap_or_else(|| panic!("it ended: {:?}", cluster.wait())).unwrap();
    let kubeconfig = printed.strip_prefix("export KUBECONFIG=").unwrap();
    let queues = kubectl(kubeconfig, &["get", "clusterqueues,nodepools", "-o", "name"]);
    let manifests = typed(kubeconfig, "kubectl kustomize manifests");
    let image = "jsonpath={.items[*].spec.template.spec.containers[*].image}";
    let image =
        kubectl(kubeconfig, &["get", "deployments", "-A", "-l", "app.kubernetes.io/name=setu", "-o", image]);
    let gone = kubectl(kubeconfig, &["delete", "-k", "manifests", "--wait=false"]);
    let term = Command::new("kill").args(["-TERM", &cluster.id().to_string()]).status().unwrap();
    let ended = cluster.wait().unwrap();
    assert!(
        queues.0 && ["clusterqueue", "nodepool"].iter().all(|kind| queues.1.contains(kind)),
        "{queues:?}"
    );
    for kind in ["deployment", "clusterrole", "admissioncheck", "validatingadmissionpolicy"] {
        assert!(manifests.0 && manifests.1.contains(kind), "no {kind}: {}", manifests.1);
    }
    assert!(image.0 && image.1.starts_with("REGISTRY/setu:"), "{}", image.1);
    assert!(gone.0, "{}", gone.1);
    assert!(term.success() && ended.success(), "{ended}");
}

/// The process ID of the child of `parent` whose command line contains this text.
fn child(parent: u32, with: &str) -> u32 {
    let is_it = |id: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.contains(with)
    };
    children(parent).into_iter().find(is_it).unwrap_or_else(|| panic!("no {with} runs"))
}

fn children(parent: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-o", "pid=", "--ppid", &parent.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn a_cluster_whose_cloud_dies_reports_it_and_stops_all_processes() {
    let mut cluster = Command::new(env!("CARGO_BIN_EXE_setu-e2e"))
        .args(["cluster", "--provider", "aws"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(cluster.stdout.take().unwrap()).lines().next();
    assert!(printed.is_some(), "it ended: {:?}", cluster.wait_with_output());
    let programs = children(cluster.id());
    let moto = child(cluster.id(), "moto_server");
    assert!(Command::new("kill").args(["-KILL", &moto.to_string()]).status().unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(30);
    while cluster.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            cluster.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let ended = cluster.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(last, "error: the cluster ends: moto has ended: signal: 9 (SIGKILL)", "{said}");
    assert!(programs.len() > 8, "only {programs:?} ran");
    for program in programs {
        assert!(!Path::new(&format!("/proc/{program}")).exists(), "{program} still runs: {said}");
    }
}
