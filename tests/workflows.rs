//! What runs elsewhere, as far as it can be looked at here: workflows pin what they use and may do no more than they need,
//! and the script that looks into the static binary looks.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test may panic")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every job of every workflow, with its file and name.
fn jobs() -> Vec<(String, Value)> {
    let files = fs::read_dir(root().join(".github/workflows")).unwrap().map(|e| e.unwrap().path());
    let jobs = files.flat_map(|file| {
        let workflow: Value = serde_yaml::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(
            workflow["permissions"],
            serde_json::json!({}),
            "{}: jobs have rights by default",
            file.display()
        );
        let file = file.file_name().unwrap().to_str().unwrap().to_owned();
        let jobs = workflow["jobs"].as_object().unwrap().clone();
        jobs.into_iter().map(move |(name, job)| (format!("{file}: {name}"), job))
    });
    let jobs: Vec<_> = jobs.collect();
    assert!(jobs.len() > 8, "{jobs:?}");
    jobs
}

fn steps(job: &Value) -> &[Value] {
    job["steps"].as_array().unwrap()
}

#[test]
fn every_action_is_pinned_by_commit() {
    for (name, job) in jobs() {
        for action in steps(&job).iter().filter_map(|step| step["uses"].as_str()) {
            let commit = action.rsplit_once('@').unwrap().1;
            assert!(commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit()), "{name}: {action}");
        }
    }
}

#[test]
fn what_compiles_the_code_of_others_may_write_nothing() {
    let mut compiling = 0;
    for (name, job) in jobs() {
        let permissions =
            job["permissions"].as_object().unwrap_or_else(|| panic!("{name} names no permissions"));
        let runs = steps(&job).iter().filter_map(|step| step["run"].as_str());
        if runs
            .clone()
            .any(|run| run.contains("cargo ") || run.contains(".ci/run") || run.contains(".ci/static"))
        {
            compiling += 1;
            assert!(permissions.values().all(|right| right == "read"), "{name}: {permissions:?}");
        }
        let keeps = |step: &&Value| step["uses"].as_str().is_some_and(|u| u.starts_with("actions/checkout@"));
        for checkout in steps(&job).iter().filter(keeps) {
            assert_eq!(
                checkout["with"]["persist-credentials"], false,
                "{name}: the token stays in the folder"
            );
        }
    }
    assert!(compiling > 4, "{compiling} jobs compile");
}

#[test]
fn a_dockerfile_that_says_no_flags_stops_the_look_into_the_static_binary() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-flags");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join(".ci")).unwrap();
    fs::copy(root().join(".ci/static"), folder.join(".ci/static")).unwrap();
    fs::write(folder.join("Dockerfile"), "ENV CC=clang\n").unwrap();
    // Nothing is fetched or built, whatever the script does.
    for program in ["rustup", "cargo"] {
        let path = folder.join(program);
        fs::write(&path, "#!/bin/sh\nexit 3\n").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let script = Command::new("bash").arg(folder.join(".ci/static")).env("PATH", path).output().unwrap();
    let said = String::from_utf8_lossy(&script.stderr);
    assert!(script.status.code() == Some(1) && said.contains("does not say"), "{script:?}");
}
