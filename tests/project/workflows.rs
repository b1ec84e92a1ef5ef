//! Tests for what runs elsewhere: workflows pin what they use and have minimal rights, and the script that inspects
//! the static binary works.

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
fn jobs_that_compile_third_party_code_have_no_write_permission() {
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
fn chart_testing_takes_its_charts_from_one_place() {
    let config: Value =
        serde_yaml::from_str(&fs::read_to_string(root().join(".github/ct.yaml")).unwrap()).unwrap();
    let mut lints = 0;
    for (name, job) in jobs() {
        let runs = steps(&job).iter().filter_map(|step| step["run"].as_str());
        for run in runs.filter(|run| run.contains("ct lint ")) {
            // It refuses both together.
            assert!(run.contains("--all") != config["charts"].is_array(), "{name}: {run}");
            lints += 1;
        }
    }
    assert!(lints > 0, "no workflow lints the chart");
}

/// A folder with the inspecting script, and programs that come first in the PATH.
fn prepared(name: &str, programs: &[(&str, &str)]) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join(".ci")).unwrap();
    fs::copy(root().join(".ci/static"), folder.join(".ci/static")).unwrap();
    for (program, text) in programs {
        let path = folder.join(program);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    folder
}

fn inspect(folder: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> (bool, String) {
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut script = Command::new("bash");
    script.arg(folder.join(".ci/static")).args(arguments).env("PATH", path).env_remove("NAMES");
    let output = script.envs(environment.iter().copied()).output().unwrap();
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), text)
}

/// A fake of .ci/image. Its binary contains the value of `NAMES`.
const BUILD: &str = r#"
[ "$*" = ".ci/image --only host --no-archive" ] || exit 3
binary=$PWD/target/of-some-machine/release/setu
mkdir -p "$(dirname "$binary")"
{
  echo '#!/bin/sh'
  eval "echo '#' $NAMES"
} > "$binary"
chmod +x "$binary"
echo "$binary"
"#;

#[test]
fn the_inspection_of_the_static_binary_finds_folder_names_and_unreproducible_builds() {
    let programs = [("python3", BUILD), ("readelf", "[ \"$1\" != --sections ] || echo .dep-v0")];
    let folder = prepared("folders", &programs);
    for (names, arguments, end) in [
        ("nothing", &[][..], None),
        ("nothing", &["--twice"][..], None),
        ("$PWD/src/main.rs", &[][..], Some("names the folder")),
        ("$CARGO_HOME/registry", &[][..], Some("names the folder")),
        ("$RANDOM$RANDOM$RANDOM", &[][..], None),
        ("$RANDOM$RANDOM$RANDOM", &["--twice"][..], Some("another one")),
    ] {
        let (succeeded, text) =
            inspect(&folder, &[("NAMES", names), ("CARGO_HOME", "/home/of/crates")], arguments);
        assert_eq!(succeeded, end.is_none(), "{names} {arguments:?}: {text}");
        assert!(end.is_none_or(|end| text.contains(end)), "{names} {arguments:?}: {text}");
        assert!(end.is_some() || arguments.is_empty() || text.contains("is the same"), "{text}");
    }
}

/// Runs the chart changes of a release, in a folder with these values. Returns whether they succeeded.
fn released(name: &str, values: &str) -> (bool, PathBuf) {
    let jobs = jobs();
    let (_, job) = jobs.iter().find(|(name, _)| name == "release.yml: chart").unwrap();
    let script = steps(job).iter().find(|step| step["id"] == "chart").unwrap()["run"].as_str().unwrap();
    let (script, _) = script.split_once("helm package").unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("charts/setu")).unwrap();
    fs::write(folder.join("charts/setu/values.yaml"), values).unwrap();
    fs::copy(root().join("charts/setu/Chart.yaml"), folder.join("charts/setu/Chart.yaml")).unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-ec", script]).current_dir(&folder).envs([
        ("REGISTRY", "registry.example"),
        ("REPOSITORY", "Owner/Setu"),
        ("SOURCE", "https://git.example/Owner/Setu"),
        ("DIGEST", "sha256:0f"),
        ("GITHUB_REF_NAME", "v1.2.3"),
    ]);
    (bash.status().unwrap().success(), folder)
}

#[test]
fn a_chart_is_released_only_with_the_images_name_and_digest() {
    let values = fs::read_to_string(root().join("charts/setu/values.yaml")).unwrap();
    for line in ["  repository: \"\"", "  digest: \"\""] {
        assert_eq!(values.lines().filter(|l| *l == line).count(), 1, "{line}");
        let (succeeded, _) = released("renamed", &values.replace(line, &format!("{line} # as it is")));
        assert!(!succeeded, "a chart without its image is published");
    }
    let (succeeded, folder) = released("released", &values);
    assert!(succeeded);
    let read = |file: &str| -> Value {
        serde_yaml::from_str(&fs::read_to_string(folder.join("charts/setu").join(file)).unwrap()).unwrap()
    };
    let image = read("values.yaml")["image"].take();
    assert_eq!(
        (&image["repository"], &image["digest"]),
        (&"registry.example/owner/setu".into(), &"sha256:0f".into())
    );
    let chart = read("Chart.yaml");
    assert_eq!(chart["sources"], serde_json::json!(["https://git.example/Owner/Setu"]));
    assert_eq!(chart["home"], "https://git.example/Owner/Setu");
    let images: Value =
        serde_yaml::from_str(chart["annotations"]["artifacthub.io/images"].as_str().unwrap()).unwrap();
    assert_eq!(
        images[1],
        serde_json::json!({"name": "setu", "image": "registry.example/owner/setu:1.2.3@sha256:0f"})
    );
}

#[test]
fn every_set_of_versions_is_run_nightly() {
    let jobs = jobs();
    let (_, job) = jobs.iter().find(|(name, _)| name == "nightly.yml: versions").unwrap();
    let script = "bash tests/e2e/versions.sh ";
    let run = steps(job).iter().find_map(|step| step["run"].as_str()?.strip_prefix(script)).unwrap();
    let sets = fs::read_to_string(root().join("tests/e2e/src/versions.rs")).unwrap();
    let sets = sets.split("    StackVersions { name: \"").skip(1).filter_map(|rest| rest.split('"').next());
    let others: Vec<&str> = sets.filter(|set| !set.is_empty()).collect();
    assert_eq!(run.split(' ').collect::<Vec<_>>(), others, "the usual set is run on each change");
}
