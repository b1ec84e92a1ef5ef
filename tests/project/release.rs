//! The files of a release: archives, SBOMs, checksums and the krew manifest fit each other, and the workflow makes
//! what the script packs. And what its documents say: the script that names the owner satisfies the workflow.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PLATFORMS: [&str; 4] = ["darwin-amd64", "darwin-arm64", "linux-amd64", "linux-arm64"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The first bytes of a binary for this platform.
fn header(platform: &str) -> Vec<u8> {
    let mut bytes = vec![0_u8; 64];
    let (start, at, processor): (&[u8], usize, &[u8]) = match platform {
        "linux-amd64" => (b"\x7fELF\x02\x01", 18, &[62, 0]),
        "linux-arm64" => (b"\x7fELF\x02\x01", 18, &[183, 0]),
        "darwin-amd64" => (b"\xcf\xfa\xed\xfe", 4, &[7, 0, 0, 1]),
        "darwin-arm64" => (b"\xcf\xfa\xed\xfe", 4, &[12, 0, 0, 1]),
        other => panic!("{other}"),
    };
    bytes[..start.len()].copy_from_slice(start);
    bytes[at..at + processor.len()].copy_from_slice(processor);
    bytes
}

/// A folder with a binary and an SBOM for each platform.
fn binaries(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    for platform in PLATFORMS {
        fs::write(folder.join(format!("setu-{platform}")), header(platform)).unwrap();
        let bill = json!({"bomFormat": "CycloneDX", "components": [{"name": platform}]});
        fs::write(folder.join(format!("setu-{platform}.cdx.json")), bill.to_string()).unwrap();
    }
    folder
}

fn pack(binaries: &Path, version: &str) -> Output {
    let mut script = Command::new("python3");
    script.current_dir(root()).env("SOURCE_DATE_EPOCH", "1700000000").arg(".ci/release");
    script.arg("--binaries").arg(binaries).arg("--out").arg(binaries.join("packed"));
    script.args(["--version", version, "--source", "https://git.example/Owner/setu"]).output().unwrap()
}

/// The files of a packed release, by name.
fn packed(binaries: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(binaries.join("packed")).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    entries.map(|path| (name(&path), fs::read(&path).unwrap())).collect()
}

fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

#[test]
fn the_krew_manifest_names_the_archives_of_the_release() {
    let folder = binaries("release-krew");
    let output = pack(&folder, "1.2.3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let files = packed(&folder);
    let manifest = yaml(&String::from_utf8(files["setu.krew.yaml"].clone()).unwrap());
    assert_eq!(manifest["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((&manifest["kind"], &manifest["metadata"]["name"]), (&json!("Plugin"), &json!("setu")));
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    // krew's index takes at most 50 characters in a line of its list.
    let short = manifest["spec"]["shortDescription"].as_str().unwrap();
    assert!(short.chars().count() <= 50 && !short.ends_with('.'), "{short}");
    let mut named = BTreeSet::new();
    for platform in manifest["spec"]["platforms"].as_array().unwrap() {
        let labels = &platform["selector"]["matchLabels"];
        let of = format!("{}-{}", labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap());
        let archive = format!("setu-{of}.tar.gz");
        let address = format!("https://git.example/Owner/setu/releases/download/v1.2.3/{archive}");
        assert_eq!(platform["uri"], address);
        assert_eq!(platform["sha256"], sha256(&files[&archive]));
        let unpacked = folder.join(&of);
        fs::create_dir_all(&unpacked).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(folder.join("packed").join(&archive)).arg("-C").arg(&unpacked);
        assert!(tar.status().unwrap().success(), "{archive}");
        for file in platform["files"].as_array().unwrap() {
            assert!(unpacked.join(file["from"].as_str().unwrap()).is_file(), "{archive}: {file}");
        }
        let binary = fs::read(unpacked.join(platform["bin"].as_str().unwrap())).unwrap();
        assert_eq!(binary, header(&of));
        named.insert(of);
    }
    assert_eq!(named, PLATFORMS.map(str::to_owned).into());
}

#[test]
fn the_checksums_cover_every_file_of_the_release() {
    let folder = binaries("release-sums");
    assert!(pack(&folder, "1.2.3-rc.1").status.success());
    let mut files = packed(&folder);
    let sums = String::from_utf8(files.remove("SHA256SUMS").unwrap()).unwrap();
    let expected: BTreeSet<String> =
        files.iter().map(|(name, data)| format!("{}  {name}", sha256(data))).collect();
    assert_eq!(sums.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
    assert_eq!(files.len(), 2 * PLATFORMS.len() + 1, "{:?}", files.keys());
    let again = binaries("release-again");
    assert!(pack(&again, "1.2.3-rc.1").status.success());
    files.insert("SHA256SUMS".to_owned(), sums.into_bytes());
    assert!(packed(&again) == files, "the same binaries make another release");
}

#[test]
fn a_release_with_a_missing_or_wrong_file_is_rejected() {
    let wrong = |name: &str, version: &str, damage: &dyn Fn(&Path)| {
        let folder = binaries(name);
        damage(&folder);
        let output = pack(&folder, version);
        assert!(!output.status.success(), "{name} is packed");
        assert!(!folder.join("packed").exists(), "{name} leaves files");
        String::from_utf8(output.stderr).unwrap()
    };
    let keep = |_: &Path| {};
    let message = wrong("release-version", "v1.2", &keep);
    assert!(message.contains("v1.2 is no version such as 1.2.3"), "{message}");
    let remove = |file: &'static str| move |of: &Path| fs::remove_file(of.join(file)).unwrap();
    let message = wrong("release-none", "1.2.3", &remove("setu-darwin-arm64"));
    assert!(message.contains("setu-darwin-arm64 is missing"), "{message}");
    let message = wrong("release-no-sbom", "1.2.3", &remove("setu-linux-arm64.cdx.json"));
    assert!(message.contains("setu-linux-arm64.cdx.json is missing"), "{message}");
    let swapped = |of: &Path| fs::write(of.join("setu-linux-arm64"), header("linux-amd64")).unwrap();
    let message = wrong("release-swapped", "1.2.3", &swapped);
    assert!(message.contains("setu-linux-arm64 is no binary for linux/arm64"), "{message}");
    let empty = |of: &Path| fs::write(of.join("setu-linux-amd64.cdx.json"), "{}").unwrap();
    let message = wrong("release-empty", "1.2.3", &empty);
    assert!(message.contains("lists no component"), "{message}");
}

#[test]
fn the_workflow_builds_every_platform_that_is_packed() {
    let workflow = yaml(&fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap());
    let built = workflow["jobs"]["binaries"]["strategy"]["matrix"]["include"].as_array().unwrap();
    let platforms: BTreeSet<&str> = built.iter().map(|of| of["platform"].as_str().unwrap()).collect();
    assert_eq!(platforms, PLATFORMS.into());
    for of in built {
        let (platform, target) = (of["platform"].as_str().unwrap(), of["target"].as_str().unwrap());
        let (system, architecture) = platform.split_once('-').unwrap();
        let processor = if architecture == "amd64" { "x86_64" } else { "aarch64" };
        let vendor = if system == "linux" { "unknown-linux-musl" } else { "apple-darwin" };
        assert_eq!(target, format!("{processor}-{vendor}"), "{platform}");
    }
}

/// A copy of the scripts and of the files that name the owner.
fn copied(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let copy = "tar -cf - .ci .github/CODEOWNERS README.md charts docs examples | tar -xf - -C \"$0\"";
    let mut bash = Command::new("bash");
    bash.current_dir(root()).args(["-eo", "pipefail", "-c", copy]).arg(&folder);
    assert!(bash.status().unwrap().success(), "{copy}");
    folder
}

/// Runs a script of a copy. Returns whether it succeeded, and what it printed.
fn run(folder: &Path, script: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(folder.join(script)).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn a_published_copy_of_the_documents_satisfies_the_workflow() {
    let workflow = yaml(&fs::read_to_string(root().join(".github/workflows/release.yml")).unwrap());
    let steps = workflow["jobs"]["tested"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["run"] == "bash .ci/published"), "{steps:?}");
    let folder = copied("published");
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    // A later release, or a repository that has moved, publishes once more.
    for (owner, version) in [("example", "1.2.3"), ("an-other", "2.0.10")] {
        let (succeeded, text) = run(&folder, ".ci/publish", &[owner, version]);
        assert!(succeeded, "{text}");
        let (succeeded, text) = run(&folder, ".ci/published", &[]);
        assert!(succeeded, "{text}");
        let chart = format!("oci://ghcr.io/{owner}/setu/charts");
        let install =
            format!("helm install setu {chart}/setu --version {version} --namespace kueue-system\n");
        let readme = format!("\n```sh\n{install}kubectl wait admissioncheck/");
        let image = format!("ghcr.io/{owner}/setu:{version} ");
        for (file, words) in [
            ("README.md", &readme),
            ("docs/install.md", &install),
            (
                "docs/operations.md",
                &format!("helm upgrade setu {chart}/setu --version {version} --namespace"),
            ),
            ("docs/supply-chain.md", &image),
            ("docs/gitops.md", &format!("{chart}/setu\n    targetRevision: {version}\n")),
            ("examples/terraform/setu.tf", &chart),
            (".github/CODEOWNERS", &format!("* @{owner}\n")),
        ] {
            assert!(read(file).contains(words), "{file} does not say {words}");
        }
    }
    let documents = ["README.md", "docs/install.md", "docs/supply-chain.md", "docs/eks.md"];
    let mut prose = Command::new("python3");
    prose.current_dir(&folder).arg(".ci/prose").args(documents);
    assert!(prose.status().unwrap().success(), "a published document breaks the house style");
}

#[test]
fn a_document_from_before_the_first_release_is_found() {
    let folder = copied("unpublished");
    assert!(run(&folder, ".ci/publish", &["example", "1.2.3"]).0);
    for (file, line) in [
        ("README.md", "No image is published yet."),
        ("docs/faq.md", "Replace `OWNER`."),
        ("docs/see.md", "helm upgrade setu charts/setu"),
        ("charts/setu/README.md", "oci://ghcr.io/OWNER/setu"),
        ("examples/terraform/setu.tf", "# ghcr.io/OWNER/setu"),
        (".github/CODEOWNERS", "* @OWNER"),
    ] {
        let path = folder.join(file);
        let published = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{published}{line}\n")).unwrap();
        let (succeeded, text) = run(&folder, ".ci/published", &[]);
        assert!(!succeeded && text.contains(file) && text.contains(line), "{file}: {text}");
        fs::write(&path, published).unwrap();
    }
    fs::remove_file(folder.join("README.md")).unwrap();
    assert!(!run(&folder, ".ci/published", &[]).0, "a file that is missing is not missed");
}

#[test]
fn a_wrong_owner_or_version_changes_no_document() {
    let folder = copied("refused");
    let before = fs::read(folder.join("README.md")).unwrap();
    for (arguments, words) in [
        (&["example"][..], "it takes an owner and a version"),
        (&["Example", "1.2.3"][..], "Example is no owner"),
        (&["a/b", "1.2.3"][..], "a/b is no owner"),
        (&["example", "v1.2.3"][..], "v1.2.3 is no version such as 1.2.3"),
        (&["example", "1.2"][..], "1.2 is no version such as 1.2.3"),
    ] {
        let (succeeded, text) = run(&folder, ".ci/publish", arguments);
        assert!(!succeeded && text.contains(words), "{arguments:?}: {text}");
    }
    assert_eq!(fs::read(folder.join("README.md")).unwrap(), before);
}
