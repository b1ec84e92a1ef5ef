//! The error when a program cannot be built because no registry answers.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use setu_e2e::HarnessLayout;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Nothing listens there.
const NOWHERE: &str = "http://127.0.0.1:1";

/// A fake `go` that builds empty scripts and has one folder for all modules.
const GO: &str = r#"#!/bin/sh
case $1 in
  list) echo "$MODULE" ;;
  build)
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\n' >"$2" && chmod +x "$2" ;;
esac
"#;

/// The files that the build reads from the modules' folders.
const OF_MODULES: [&str; 5] = [
    "kustomize/stage/node/fast/node-initialize.yaml",
    "kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "kustomize/stage/pod/fast/pod-ready.yaml",
    "kustomize/stage/pod/fast/pod-delete.yaml",
    "pkg/apis/crds/karpenter.k8s.aws_ec2nodeclasses.yaml",
];

/// A workspace in which nothing is built.
fn workspace() -> TempDir {
    let folder = TempDir::new().unwrap();
    for name in ["aws", "helm", "jaeger", "k8s", "kueue", "kwok"] {
        let to = folder.path().join("tests/e2e/programs").join(name);
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(HarnessLayout::default().module(name)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
    folder
}

/// Checks that `setu-e2e build` fails with this text from a tool, and returns the last line of its output.
fn fails(workspace: &Path, environment: &[(&str, &Path)], tool: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_setu-e2e"));
    command.args(["build", "--provider", "aws", "--workspace"]).arg(workspace);
    let output = command.envs(environment.iter().copied()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(tool), "{said}");
    said.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_build_without_goproxy_names_go_in_the_error() {
    let folder = workspace();
    let cache = folder.path().join("modules");
    let said = fails(
        folder.path(),
        &[
            ("GOPROXY", Path::new(NOWHERE)),
            ("GOMODCACHE", &cache),
            ("GOTOOLCHAIN", Path::new("local")),
            ("GOFLAGS", Path::new("-modcacherw")),
        ],
        "connection refused",
    );
    assert!(
        said.starts_with(
            "error: building programs/k8s: go, which takes modules that it has not from GOPROXY"
        ),
        "{said}"
    );
}

#[test]
fn a_build_without_package_index_names_pip_in_the_error() {
    let folder = workspace();
    let (module, tools) = (folder.path().join("module"), folder.path().join("tools"));
    for file in OF_MODULES {
        let file = module.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }
    fs::create_dir_all(&tools).unwrap();
    fs::write(tools.join("go"), GO).unwrap();
    fs::set_permissions(tools.join("go"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([tools].into_iter().chain(std::env::split_paths(&path))).unwrap();
    let said = fails(
        folder.path(),
        &[
            ("PATH", Path::new(&path)),
            ("MODULE", &module),
            ("PIP_INDEX_URL", Path::new(NOWHERE)),
            ("PIP_CONFIG_FILE", Path::new("/dev/null")),
            ("PIP_RETRIES", Path::new("0")),
        ],
        "No matching distribution",
    );
    assert!(said.starts_with("error: building programs/aws: pip, which takes moto from PyPI"), "{said}");
}
