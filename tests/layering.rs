//! Checks the layers, the purity of the core, and the house rules that readers rely on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Every source file of the core and of the controller, with its path in `src`.
fn sources() -> Vec<(PathBuf, String)> {
    ["crates/setu-core/src", "src"].into_iter().flat_map(sources_in).collect()
}

fn sources_in(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, all: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, all);
            } else if path.extension().is_some_and(|e| e == "rs") {
                all.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut all = Vec::new();
    walk(&root, &mut all);
    all.iter().map(|(p, s)| (p.strip_prefix(&root).unwrap().to_owned(), s.clone())).collect()
}

/// The part of a file before its unit tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]").next().unwrap()
}

/// Layers. Each may use only itself and those before it; modules in one row may use each other.
const LAYERS: [&[&str]; 11] = [
    &["names", "digest", "words", "api", "clock", "error", "planted"],
    &["policy"],
    &["plan"],
    &["gang"],
    &["telemetry"],
    &["cluster"],
    &["effects"],
    &["controllers"],
    &["app"],
    &["sim"],
    &["cli"],
];

fn layer(path: &Path) -> Option<usize> {
    let first = path.iter().next()?.to_str()?.trim_end_matches(".rs").to_owned();
    LAYERS.iter().position(|names| names.contains(&first.as_str()))
}

#[test]
fn each_layer_uses_only_those_before_it() {
    for (path, source) in sources() {
        let Some(own) = layer(&path) else { continue };
        for (later, names) in LAYERS.iter().enumerate().skip(own + 1) {
            for name in *names {
                let source = without_tests(&source);
                let found = [format!("crate::{name}::"), format!("crate::{name};")]
                    .iter()
                    .any(|w| source.contains(w));
                assert!(!found, "{} (layer {own}) uses crate::{name} (layer {later})", path.display());
            }
        }
    }
}

/// Every package in the dependency tree of `package`, with its features, from `cargo tree`.
fn packages(package: &str, more: &[&str]) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p} {f}"])
        .args(["--package", package])
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    String::from_utf8(tree.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The embedded cluster, virtual time, planted bugs and fail points are only for tests and the demo.
#[test]
fn the_image_and_the_releases_contain_no_test_features() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in ["Dockerfile", ".ci/static", ".ci/image", ".github/workflows/release.yml", "justfile"] {
        let text = fs::read_to_string(root.join(file)).unwrap().replace("\", \"", " ");
        let builds: Vec<&str> = text.lines().filter(|line| line.contains("--bin setu")).collect();
        assert!(!builds.is_empty(), "{file} builds nothing");
        for build in builds {
            // Without `-p`, cargo unifies the features that all workspace members request.
            let is_lean = build.contains("--no-default-features -p setu ") && !build.contains("--features");
            assert!(is_lean, "{file}: {build}");
        }
    }
    let features = |more: &[&str]| {
        let ours = |line: &String| ["tokio ", "setu ", "setu-core "].iter().any(|p| line.starts_with(p));
        packages("setu", more).into_iter().filter(ours).collect::<Vec<_>>().concat()
    };
    let [with, without] = [features(&[]), features(&["--no-default-features"])];
    assert!(with.contains("demo") && with.contains("test-util"), "{with}");
    for word in ["demo", "test-util", "planted-bugs", "fail-points"] {
        assert!(!without.contains(word), "{without}");
    }
}

/// The core has no crate that is impure, and only uses deterministic parts of the standard library.
#[test]
fn the_core_uses_no_client_runtime_log_clock_or_randomness() {
    let packages = packages("setu-core", &[]);
    let crates: BTreeSet<&str> = packages.iter().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains("kube-core") && crates.len() > 30, "{crates:?}");
    for impure in ["kube", "kube-client", "tokio", "tracing", "log", "rand", "fastrand", "hyper", "chrono"] {
        assert!(!crates.contains(impure), "setu-core depends on {impure}");
    }
    for (path, source) in sources_in("crates/setu-core/src") {
        for word in ["::now()", "HashMap", "std::thread"] {
            assert!(!without_tests(&source).contains(word), "{} contains {word}", path.display());
        }
    }
}

#[test]
fn only_effects_and_the_lease_write_to_the_api_server() {
    for (path, source) in sources() {
        let writes =
            path.starts_with("effects") || path.starts_with("cluster/lease") || path.starts_with("sim");
        for params in ["PatchParams", "PostParams", "DeleteParams"] {
            let found = without_tests(&source).contains(params);
            assert!(writes || !found, "{} writes: it contains {params}", path.display());
        }
    }
}

#[test]
fn keys_are_spelled_out_only_in_names() {
    for (path, source) in sources() {
        if path != Path::new("names.rs") {
            let code = without_tests(&source);
            for key in ["setu.kueue.x-k8s.io/", "\"karpenter.sh/nodepool", "\"karpenter.sh/do-not-disrupt"] {
                let mut lines = code.lines().filter(|l| !l.trim_start().starts_with("//") && l.contains(key));
                // A version in a serde rename is not a key.
                assert!(lines.all(|l| l.contains("v1alpha1")), "{} spells out {key}", path.display());
            }
        }
    }
}

#[test]
fn every_file_has_a_module_doc_and_at_most_400_lines() {
    for (path, source) in sources() {
        assert!(source.starts_with("//! "), "{} does not open with what it owns", path.display());
        let lines = without_tests(&source).lines().count();
        assert!(lines <= 400, "{} has {lines} lines before its tests", path.display());
    }
}
